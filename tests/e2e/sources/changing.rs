//! Sources that change during the copy: the target never gets a mixture, and a message always reports the change.
//!
//! The time of the change is deterministic: an event of the push or a read triggers it.

use std::fs::OpenOptions;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zmove_sender::{Removals, SenderConfig};
use zmove_types::{Event, GROUP_BYTES};
use zmove_wire::Overwrite;

use crate::support::harness::Site;
use crate::support::hooks::HookedDisk;
use crate::support::inprocess::{InProcess, Pushed};
use crate::support::tree::{
    Content, Contents, assert_part_of, assert_same, names, paint, painted, picture, set_old,
};

const LARGE: u64 = 2 * GROUP_BYTES + 5;
/// Number of reads of the large file.
const READS: u64 = 3;

/// Pushes, and changes the large file `big` before the read with the number `reads_before`.
fn push_meddled(site: &Site, reads_before: u64, change: fn(&Path)) -> Pushed {
    paint(site.source().join("other"), 500);
    let path = site.source().join("big");
    paint(&path, LARGE);
    set_old(&path);
    let reads = AtomicU64::new(0);
    let file_io = HookedDisk::before_read(move || {
        if reads.fetch_add(1, Ordering::SeqCst) == reads_before {
            change(&path);
        }
    });
    let config = SenderConfig {
        file_io,
        ..SenderConfig::default()
    };
    InProcess {
        config,
        ..InProcess::default()
    }
    .push(&site.source(), &site.target())
}

#[track_caller]
fn expect_only_other(site: &Site, pushed: &Pushed, failed: &str) {
    let summary = pushed.summary();
    assert_eq!(
        (summary.counters.files, summary.counters.failed),
        (1, 1),
        "{:?}",
        pushed.failed()
    );
    let path = site.source().join(failed);
    let [line] = pushed.failed()[..] else {
        panic!("{:?}", pushed.failed())
    };
    assert!(
        line.starts_with("sender: ") && line.contains(path.to_str().unwrap()),
        "{line}"
    );
    assert_eq!(names(&site.target()), ["other"]);
}

#[test]
fn a_large_file_that_shrinks_while_it_is_read_fails() {
    for reads in 0..READS {
        let site = Site::local();
        let pushed = push_meddled(&site, reads, |path| {
            OpenOptions::new()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(100)
                .unwrap();
        });
        expect_only_other(&site, &pushed, "big");
        assert!(
            pushed.failed()[0].contains("changed while it was being copied"),
            "{:?}",
            pushed.failed()
        );
    }
}

/// The contents of the file are unknown, so an entry with another name at the target may be its only copy.
#[test]
fn a_file_that_changes_while_it_is_read_removes_nothing_at_the_target() {
    let site = Site::local();
    paint(site.target().join("big, under its old name"), LARGE);
    let path = site.source().join("big");
    paint(&path, LARGE);
    let shrunk = AtomicBool::new(false);
    let file_io = HookedDisk::before_read(move || {
        if !shrunk.swap(true, Ordering::SeqCst) {
            OpenOptions::new()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(100)
                .unwrap();
        }
    });
    let config = SenderConfig {
        file_io,
        ..SenderConfig::default()
    };
    let mirror = Some(Removals::default());
    let pushed = InProcess {
        config,
        mirror,
        ..InProcess::default()
    }
    .push(&site.source(), &site.target());
    pushed.assert_removed_and_failed(0, 1);
    assert_eq!(names(&site.target()), ["big, under its old name"]);
}

#[test]
fn a_large_file_that_is_rewritten_while_it_is_read_fails() {
    for reads in 0..READS {
        let site = Site::local();
        let pushed = push_meddled(&site, reads, |path| {
            std::fs::write(path, painted(LARGE, 7)).unwrap()
        });
        expect_only_other(&site, &pushed, "big");
    }
}

#[test]
fn a_large_file_that_grows_while_it_is_read_fails() {
    for reads in 0..READS {
        let site = Site::local();
        let pushed = push_meddled(&site, reads, |path| {
            OpenOptions::new()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(LARGE + 1)
                .unwrap();
        });
        expect_only_other(&site, &pushed, "big");
    }
}

/// The old file stays open, so replacing its name does not change the contents that are read.
#[test]
fn a_large_file_that_is_replaced_while_it_is_read_is_copied_as_it_was_or_not_at_all() {
    let site = Site::local();
    let pushed = push_meddled(&site, 1, |path| {
        let new = path.with_file_name("../new");
        std::fs::write(&new, painted(LARGE, 9)).unwrap();
        std::fs::rename(new, path).unwrap();
    });
    let summary = pushed.summary();
    assert_eq!(summary.counters.files + summary.counters.failed, 2);
    if let Some(node) = picture(&site.target()).get(&b"big"[..]) {
        let whole = Contents::read(&painted(LARGE, 0)[..]);
        assert!(node.content == Content::File(whole), "{node:?}");
    }
}

/// Changes a file between the scan and its read.
fn push_changed_after_scan(site: &Site, name: &str, change: fn(&Path)) -> Pushed {
    push_over_changed_after_scan(site, Overwrite::Differing, name, change)
}

fn push_over_changed_after_scan(
    site: &Site,
    overwrite: Overwrite,
    name: &str,
    change: fn(&Path),
) -> Pushed {
    let path = site.source().join(name);
    let on_event = move |event: &Event| {
        if matches!(event, Event::Found { files: 1.., .. }) {
            change(&path);
        }
    };
    let push = InProcess {
        overwrite,
        on_event: Box::new(on_event),
        ..InProcess::default()
    };
    push.push(&site.source(), &site.target())
}

#[test]
fn a_file_that_vanishes_after_the_scan_fails() {
    for bytes in [100, LARGE] {
        let site = Site::local();
        paint(site.source().join("other"), 500);
        paint(site.source().join("f"), bytes);
        let pushed =
            push_changed_after_scan(&site, "f", |path| std::fs::remove_file(path).unwrap());
        expect_only_other(&site, &pushed, "f");
        assert!(
            pushed.failed()[0].contains("No such file or directory"),
            "{:?}",
            pushed.failed()
        );
    }
}

#[test]
fn a_file_that_becomes_a_link_after_the_scan_is_not_followed() {
    for bytes in [100, LARGE] {
        let site = Site::local();
        paint(site.source().join("other"), 500);
        paint(site.source().join("f"), bytes);
        let pushed = push_changed_after_scan(&site, "f", |path| {
            std::fs::remove_file(path).unwrap();
            symlink("/etc/passwd", path).unwrap();
        });
        // If the walk was still in the directory at the time of the change, it reads the directory again and the link
        // arrives.
        let arrived = site.target().join("f");
        if arrived.is_symlink() {
            std::fs::remove_file(arrived).unwrap();
        }
        expect_only_other(&site, &pushed, "f");
    }
}

/// By then the file is large, and it is sent as a large file.
#[test]
fn a_small_file_that_outgrows_its_batch_after_the_scan_is_sent_as_a_large_one() {
    let site = Site::local();
    paint(site.source().join("other"), 500);
    paint(site.source().join("f"), 100);
    let pushed = push_changed_after_scan(&site, "f", |path| paint(path, GROUP_BYTES + 1));
    assert_eq!(
        (
            pushed.summary().counters.files,
            pushed.summary().counters.failed
        ),
        (2, 0),
        "{:?}",
        pushed.failed()
    );
    assert_same(&site.source(), &site.target());
}

/// The file was to be sent before the receiver's answer. Now it is offered like any other file.
#[test]
fn a_file_that_is_to_stay_stays_even_if_its_source_outgrows_a_batch() {
    for overwrite in [Overwrite::Nothing, Overwrite::Differing] {
        let site = Site::local();
        paint(site.source().join("f"), 100);
        std::fs::create_dir_all(site.target()).unwrap();
        std::fs::write(site.target().join("f"), "there").unwrap();
        let grow = |path: &Path| paint(path, GROUP_BYTES + 1);
        let pushed = push_over_changed_after_scan(&site, overwrite, "f", grow);
        let counters = &pushed.summary().counters;
        let counts = [counters.files, counters.skipped, counters.failed];
        if overwrite == Overwrite::Differing {
            assert_eq!(counts, [1, 0, 0], "{:?}", pushed.failed());
            assert_same(&site.source(), &site.target());
        } else {
            assert_eq!(counts, [0, 1, 0], "{:?}", pushed.failed());
            assert_eq!(std::fs::read(site.target().join("f")).unwrap(), b"there");
        }
    }
}

#[test]
fn a_small_file_that_grows_or_shrinks_after_the_scan_is_copied_as_it_is_then() {
    for bytes in [0, 50, 200] {
        let site = Site::local();
        paint(site.source().join("f"), 100);
        let change = match bytes {
            0 => |path: &Path| paint(path, 0),
            50 => |path: &Path| paint(path, 50),
            _ => |path: &Path| paint(path, 200),
        };
        let pushed = push_changed_after_scan(&site, "f", change);
        assert_eq!(
            (
                pushed.summary().counters.files,
                pushed.summary().counters.failed
            ),
            (1, 0)
        );
        assert_same(&site.source(), &site.target());
    }
}

#[test]
fn a_large_file_with_another_size_after_the_scan_fails() {
    let site = Site::local();
    paint(site.source().join("other"), 500);
    paint(site.source().join("f"), LARGE);
    let pushed = push_changed_after_scan(&site, "f", |path| paint(path, 2 * GROUP_BYTES));
    expect_only_other(&site, &pushed, "f");
}

/// Sets a flag when dropped, so that the writer ends even if a push panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A writer continuously truncates and fills a small file. Each push copies a complete prefix of the file or reports
/// that it changed, and eventually one reports it.
#[test]
fn a_small_file_that_is_always_being_rewritten_is_never_mixed() {
    let site = Site::local();
    let path = site.source().join("f");
    let whole = painted(GROUP_BYTES, 0);
    std::fs::write(&path, &whole).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::fs::write(&path, &whole).unwrap();
            }
        });
        let _stop = SetOnDrop(&done);
        let mut caught = false;
        for _ in 0..200 {
            let pushed = InProcess::default().push(&site.source(), &site.target());
            let summary = pushed.summary();
            assert_eq!(
                summary.counters.files + summary.counters.skipped + summary.counters.failed,
                1
            );
            caught |= pushed
                .failed()
                .iter()
                .any(|line| line.contains("changed while it was being copied"));
            if let Ok(bytes) = std::fs::read(site.target().join("f")) {
                assert!(
                    whole.starts_with(&bytes),
                    "the target holds what the source never held"
                );
            }
            if caught {
                break;
            }
        }
        assert!(caught, "200 pushes saw no change");
    });
    InProcess::default().push(&site.source(), &site.target());
    assert_part_of(&site.source(), &site.target());
}
