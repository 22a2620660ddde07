//! Entries of the source that are renamed during the walk.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use zmove_scan::ScanConfig;
use zmove_sender::{Removals, SenderConfig};
use zmove_types::Event;

use crate::support::harness::{Site, both_ways};
use crate::support::inprocess::{InProcess, Pushed};
use crate::support::tree::{names, paint};

both_ways!(a_directory_that_changes_whenever_it_is_read_is_named_and_removes_nothing);

/// Pushes with a walk that waits for the planner after each batch, and renames entries when the first files have been
/// found.
fn push_renaming(site: &Site, mirror: Option<Removals>, renames: Vec<[PathBuf; 2]>) -> Pushed {
    let is_done = AtomicBool::new(false);
    let on_event = move |event: &Event| {
        if matches!(event, Event::Found { files: 1.., .. }) && !is_done.swap(true, Ordering::SeqCst)
        {
            for [from, to] in &renames {
                std::fs::rename(from, to).unwrap();
            }
        }
    };
    let scan = ScanConfig {
        threads: 1,
        queue_batches_max: 1,
        ..ScanConfig::default()
    };
    InProcess {
        config: SenderConfig {
            scan,
            ..SenderConfig::default()
        },
        mirror,
        on_event: Box::new(on_event),
        ..InProcess::default()
    }
    .push(&site.source(), &site.target())
}

/// Creates ten directories. At most three of them have been listed when the first files are found.
fn grow_directories(site: &Site) -> Vec<[PathBuf; 2]> {
    let names = |from: usize, to: usize| format!("d{to}/f{from}");
    let source = site.source();
    (0..10)
        .map(|number| {
            let old = source.join(names(number, number));
            paint(&old, 10 + number as u64);
            [old, source.join(names(number, (number + 5) % 10))]
        })
        .collect()
}

fn assert_arrived(site: &Site, renames: &[[PathBuf; 2]]) {
    let missing: Vec<_> = renames
        .iter()
        .map(|[_, to]| to.strip_prefix(site.source()).unwrap())
        .filter(|path| !site.target().join(path).exists())
        .collect();
    let first = missing.first();
    assert!(missing.is_empty(), "{} such as {first:?}", missing.len());
}

#[test]
fn files_that_are_moved_between_directories_arrive() {
    let site = Site::local();
    let renames = grow_directories(&site);
    push_renaming(&site, None, renames.clone());
    assert_arrived(&site, &renames);
}

#[test]
fn files_that_are_moved_between_directories_arrive_before_anything_is_removed() {
    let site = Site::local();
    let renames = grow_directories(&site);
    InProcess::default()
        .push(&site.source(), &site.target())
        .summary();
    paint(site.target().join("alone"), 10);
    let pushed = push_renaming(&site, Some(Removals::default()), renames.clone());
    assert_eq!(pushed.failed(), [""; 0]);
    assert_arrived(&site, &renames);
}

#[test]
fn a_directory_that_is_moved_arrives_with_all_that_is_in_it() {
    let site = Site::local();
    for number in 0..10 {
        paint(site.source().join(format!("d{number}/f")), 10);
        paint(
            site.source().join(format!("d{number}/e{number}/deep/f")),
            10,
        );
    }
    let renames: Vec<_> = (0..10)
        .map(|number| {
            let path = |directory| site.source().join(format!("d{directory}/e{number}"));
            [path(number), path((number + 5) % 10)]
        })
        .collect();
    push_renaming(&site, None, renames.clone());
    let files: Vec<_> = renames
        .into_iter()
        .map(|[from, to]| [from, to.join("deep/f")])
        .collect();
    assert_arrived(&site, &files);
}

/// The names of the directory need several buffers.
#[test]
fn files_that_are_renamed_in_a_large_directory_arrive() {
    let site = Site::local();
    let name = |letter: char, number: usize| {
        let fill = "x".repeat(200);
        site.source().join(format!("{letter}{number}{fill}"))
    };
    let renames: Vec<_> = (0..3000)
        .map(|number| [name('n', number), name('m', number)])
        .collect();
    for [old, _] in &renames {
        paint(old, 1);
    }
    push_renaming(&site, None, renames.clone());
    assert_arrived(&site, &renames);
}

/// Ends the thread even if the case panics.
struct Churn(Arc<AtomicBool>);

impl Drop for Churn {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Continuously creates and removes names in a directory. The selection excludes these names.
fn churn(directory: PathBuf) -> Churn {
    let is_over = Arc::new(AtomicBool::new(false));
    let churn = Churn(Arc::clone(&is_over));
    thread::spawn(move || {
        let (one, other) = (directory.join("churn0"), directory.join("churn1"));
        std::fs::write(&one, "").unwrap();
        while !is_over.load(Ordering::Relaxed) {
            if std::fs::rename(&one, &other).is_err() || std::fs::rename(&other, &one).is_err() {
                return;
            }
        }
    });
    churn
}

fn a_directory_that_changes_whenever_it_is_read_is_named_and_removes_nothing(site: &Site) {
    paint(site.source().join("busy/f"), 10);
    paint(site.target().join("alone"), 10);
    let _churn = churn(site.source().join("busy"));
    let options = ["--delete", "--exclude", "churn*"];
    for _ in 0..100 {
        let outcome = site.push(&options, site.contents(), "");
        if outcome.code != Some(24) {
            // The thread made no change during one of the walks.
            assert!(
                outcome.code == Some(0) || outcome.code == Some(23),
                "{}",
                outcome.stderr
            );
            paint(site.target().join("alone"), 10);
            continue;
        }
        let busy = site.source().join("busy");
        let why = "it changed each time it was read";
        outcome
            .says(&["sender: list directory '", busy.to_str().unwrap(), why])
            .says(&["nothing was removed at the target"]);
        assert_eq!(names(&site.target()), ["alone", "busy"]);
        return;
    }
    panic!("100 pushes were certain of a directory that changes all the time");
}
