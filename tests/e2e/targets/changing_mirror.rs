//! `--delete` while the source changes. If an entry was removed or renamed at the source after the push began, the
//! target may hold its only copy.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use zmove_sender::Removals;
use zmove_types::{Event, GROUP_BYTES};
use zmove_wire::{AfterErrors, RemovalOrder};

use crate::connections::reconnect::{HalfWay, half_way};
use crate::support::command::{Outcome, finish};
use crate::support::harness::Site;
use crate::support::inprocess::{InProcess, Pushed};
use crate::support::namespace::Namespace;
use crate::support::proxy::Proxy;
use crate::support::tree::{assert_same, names, paint, picture, set_mode};

/// Pushes `source` to the target and makes a change when the first walk has found files.
fn push_changed(
    site: &Site,
    source: &Path,
    after_errors: AfterErrors,
    change: impl Fn() + Send + Sync + 'static,
) -> Pushed {
    let changed = AtomicBool::new(false);
    let on_event = move |event: &Event| {
        if matches!(event, Event::Found { files: 1.., .. }) && !changed.swap(true, Ordering::SeqCst)
        {
            change();
        }
    };
    let mirror = Some(Removals {
        order: RemovalOrder {
            after_errors,
            ..RemovalOrder::default()
        },
        ..Removals::default()
    });
    InProcess {
        mirror,
        on_event: Box::new(on_event),
        ..InProcess::default()
    }
    .push(source, &site.target())
}

fn warned(pushed: &Pushed) -> Vec<String> {
    let message = |event: &Event| match event {
        Event::Warned { message } => Some(message.clone()),
        _ => None,
    };
    pushed.events.iter().filter_map(message).collect()
}

#[track_caller]
fn expect_refused(site: &Site, pushed: &Pushed, source: &Path, there: &[&str]) {
    let why =
        "it is no longer the same directory as at the start; nothing is removed at the target";
    let source = source.join("");
    assert_eq!(
        pushed.failed(),
        [format!(
            "sender: list directory '{}': {why}",
            source.display()
        )]
    );
    pushed.assert_removed_and_failed(0, 1);
    assert_eq!(names(&site.target()), there);
}

#[test]
fn a_source_that_is_exchanged_removes_nothing() {
    for after_errors in [AfterErrors::Keep, AfterErrors::Remove] {
        let site = Site::local();
        paint(site.source().join("f"), 10);
        paint(site.target().join("alone"), 10);
        let source = site.source();
        let pushed = push_changed(&site, &site.source(), after_errors, move || {
            std::fs::rename(&source, source.with_file_name("old")).unwrap();
            std::fs::create_dir(&source).unwrap();
        });
        expect_refused(&site, &pushed, &site.source(), &["alone", "f"]);
    }
}

#[test]
fn a_link_to_the_source_that_leads_elsewhere_removes_nothing() {
    let site = Site::local();
    for name in ["r7/f", "r8/g", "target/alone"] {
        paint(site.path(name), 10);
    }
    let link = site.path("current");
    symlink("r7", &link).unwrap();
    let flipped = link.clone();
    let pushed = push_changed(&site, &link, AfterErrors::Keep, move || {
        symlink("r8", flipped.with_file_name("new")).unwrap();
        std::fs::rename(flipped.with_file_name("new"), &flipped).unwrap();
    });
    expect_refused(&site, &pushed, &link, &["alone", "f"]);
}

#[test]
fn a_source_that_becomes_a_file_removes_nothing() {
    let site = Site::local();
    paint(site.path("tree/f"), 10);
    paint(site.target().join("tree/alone"), 10);
    let (tree, old) = (site.path("tree"), site.path("old"));
    let changed = AtomicBool::new(false);
    let on_event = move |event: &Event| {
        if matches!(event, Event::Found { files: 1.., .. }) && !changed.swap(true, Ordering::SeqCst)
        {
            std::fs::rename(&tree, &old).unwrap();
            paint(&tree, 10);
        }
    };
    let job = crate::support::inprocess::job(&site.path("tree"), site.target().to_str().unwrap());
    let prefix = zmove_types::RelPath::from_bytes(b"tree").unwrap();
    let sources = vec![zmove_scan::ScanRoot::new(site.path("tree"), prefix)];
    let job = zmove_sender::PushJob {
        sources,
        mirror: Some(Removals::default()),
        ..job
    };
    let push = InProcess {
        on_event: Box::new(on_event),
        ..InProcess::default()
    };
    let pushed = push.push_job(job);
    pushed.assert_removed_and_failed(0, 1);
    assert_eq!(names(&site.target().join("tree")), ["alone", "f"]);
}

/// The next session resolves the source path again.
#[test]
fn a_source_that_is_exchanged_while_there_is_no_connection_removes_nothing() {
    let site = Site::daemon();
    paint(site.target().join("alone"), 5);
    let HalfWay {
        site,
        proxy,
        client,
    } = half_way(site, &["--delete"]);
    std::fs::rename(site.source(), site.path("old")).unwrap();
    paint(site.source().join("new"), 5);
    proxy.reset(site.the_daemon().address);
    let outcome = finish(client).expect(23);
    let why =
        "it is no longer the same directory as at the start; nothing is removed at the target";
    let outcome = outcome.says(&["sender: list directory '", "source/': ", why]);
    assert_eq!(outcome.summary()["removed"], 0);
    for name in ["alone", "small", "new"] {
        assert!(site.target().join(name).exists(), "{name}");
    }
}

/// Pushes to a daemon and makes a change in mid-transfer.
#[track_caller]
fn push_halted(site: &Site, change: impl FnOnce()) -> Outcome {
    let proxy = Proxy::start(site.the_daemon().address, GROUP_BYTES);
    site.pin(&proxy.address, site.the_daemon().fingerprint);
    let client = site
        .push_by(&proxy.address, &["--json", "--delete"])
        .start();
    proxy.wait_for_stall();
    change();
    proxy.resume_without_busiest(0);
    finish(client)
}

/// A site with a mount at `place`. All but two files of the source already exist at the target.
fn with_mount(mount: &str, place: &str) -> Option<Site> {
    let mut site = Site::within(|target| {
        let home = target.parent().unwrap();
        for name in ["source/m", "elsewhere"] {
            std::fs::create_dir_all(home.join(name)).unwrap();
        }
        Namespace::with_binds(&[(&home.join("elsewhere"), &home.join("elsewhere"))])
    })?;
    let (place, elsewhere) = (site.path(place), site.path("elsewhere"));
    let words = mount.split(' ').map(OsStr::new);
    let words: Vec<_> = std::iter::once(OsStr::new("mount")).chain(words).collect();
    // tmpfs ignores its mount source.
    assert!(
        site.namespace()
            .run(&[&words[..], &[elsewhere.as_os_str(), place.as_os_str()]].concat())
    );
    let inside = site.namespace().outside(&site.source());
    paint(inside.join("small"), 10);
    paint(inside.join("large"), 2 * GROUP_BYTES);
    (0..20).for_each(|number| paint(inside.join(format!("m/{number}")), 10));
    site.start_daemon();
    site.push(
        &["--exclude", "/small", "--exclude", "/large"],
        site.contents(),
        "",
    )
    .done();
    Some(site)
}

fn unmount(site: &Site, place: &Path) {
    assert!(
        site.namespace()
            .run(&["umount".as_ref(), "-l".as_ref(), place.as_os_str()])
    );
}

#[test]
fn a_source_that_is_unmounted_removes_nothing() {
    let Some(site) = with_mount("-t tmpfs", "source") else {
        return;
    };
    let outcome = push_halted(&site, || unmount(&site, &site.source())).expect(23);
    outcome
        .says(&["source/': it is no longer the same directory as at the start; nothing is removed"])
        .lines(1);
    assert_eq!(names(&site.target()), ["large", "m", "small"]);
    assert_eq!(names(&site.target().join("m")).len(), 20);
}

/// Tests another file system, and a bind mount of the same file system.
#[test]
fn a_mount_that_disappears_below_the_source_removes_nothing() {
    for mount in ["-t tmpfs", "--bind"] {
        let Some(site) = with_mount(mount, "source/m") else {
            return;
        };
        let outcome = push_halted(&site, || unmount(&site, &site.source().join("m"))).expect(23);
        let why = "the mount that was there at the start is gone; nothing is removed at the target";
        outcome
            .says(&["sender: list directory '", "source/m': ", why])
            .lines(1);
        assert_eq!(names(&site.target().join("m")).len(), 20, "{mount}");
    }
}

#[test]
fn a_file_that_gets_another_name_keeps_its_copy_until_the_next_push() {
    let site = Site::local();
    for name in ["a", "d/a", "e/kept"] {
        paint(site.source().join(name), 10);
    }
    let alone = ["e/alone", "tree/alone"].map(|name| site.target().join(name));
    let quiet = InProcess {
        mirror: Some(Removals::default()),
        ..InProcess::default()
    };
    quiet.push(&site.source(), &site.target()).summary();
    alone.iter().for_each(|path| paint(path, 10));
    let source = site.source();
    let pushed = push_changed(&site, &site.source(), AfterErrors::Remove, move || {
        std::fs::rename(source.join("d/a"), source.join("d/b")).unwrap();
    });
    assert_eq!(pushed.failed(), [""; 0]);
    let summary = pushed.summary();
    // Two files and a directory that existed only at the target were removed.
    assert_eq!(
        (
            summary.counters.removed,
            summary.counters.source_changed_kept
        ),
        (3, 1)
    );
    let why = "1 entry was not removed at the target, because the source changed during the push; run the command \
        again to remove it";
    assert_eq!(warned(&pushed), [why]);
    assert_eq!(names(&site.target()), ["a", "d", "e"]);
    // If the walk was still in the directory at the time of the rename, it reads the directory again and the new name
    // arrives.
    let arrived = names(&site.target().join("d"));
    assert!(arrived == ["a"] || arrived == ["a", "b"], "{arrived:?}");
    assert_eq!(names(&site.target().join("e")), ["kept"]);
    let again = InProcess {
        mirror: Some(Removals::default()),
        ..InProcess::default()
    };
    let pushed = again.push(&site.source(), &site.target());
    assert_eq!(
        (
            pushed.summary().counters.removed,
            pushed.summary().counters.source_changed_kept
        ),
        (1, 0)
    );
    assert_same(&site.source(), &site.target());
}

/// The entries deep inside it have unchanged timestamps.
#[test]
fn a_directory_that_takes_the_place_of_another_keeps_what_was_there() {
    let site = Site::local();
    for name in ["f", "d/deep/precious", "d/deep/kept"] {
        paint(site.source().join(name), 10);
    }
    paint(site.path("new/deep/kept"), 10);
    InProcess::default()
        .push(&site.source(), &site.target())
        .summary();
    let (source, new) = (site.source(), site.path("new"));
    let pushed = push_changed(&site, &site.source(), AfterErrors::Keep, move || {
        std::fs::rename(source.join("d"), source.with_file_name("old")).unwrap();
        std::fs::rename(&new, source.join("d")).unwrap();
    });
    assert_eq!(
        (
            pushed.summary().counters.removed,
            pushed.summary().counters.source_changed_kept
        ),
        (0, 1),
        "{:?}",
        pushed.failed()
    );
    assert_eq!(names(&site.target().join("d/deep")), ["kept", "precious"]);
}

#[test]
fn a_change_of_mode_before_the_push_is_no_change_during_it() {
    let site = Site::local();
    for number in 0..20 {
        paint(site.source().join("d/f"), 10);
        set_mode(site.source().join("d"), 0o700 + number % 8);
        paint(site.target().join("d/alone"), 10);
        let outcome = site
            .push(&["--json", "--delete"], site.contents(), "")
            .done();
        assert_eq!(outcome.summary()["removed"], 1);
    }
}

#[test]
fn entries_kept_because_of_a_change_are_reported_with_a_code() {
    let site = Site::daemon();
    paint(site.source().join("small"), 10);
    paint(site.source().join("large"), 2 * GROUP_BYTES);
    let alone = ["alone", "tree/a/b", "tree/c"].map(|name| site.target().join(name));
    alone.iter().for_each(|path| paint(path, 10));
    let outcome = push_halted(&site, || paint(site.source().join("new"), 10)).expect(23);
    assert_eq!(
        (
            &outcome.summary()["removed"],
            &outcome.summary()["source_changed_kept"]
        ),
        (&0.into(), &2.into())
    );
    outcome
        .says(&[
            "2 entries were not removed at the target, because the source changed during the push",
        ])
        .lines(1);
    assert!(alone.iter().all(|path| path.exists()));
    let outcome = site
        .push(&["--json", "--delete"], site.contents(), "")
        .done();
    assert_eq!(
        (
            &outcome.summary()["removed"],
            &outcome.summary()["source_changed_kept"]
        ),
        (&5.into(), &0.into())
    );
    assert_same(&site.source(), &site.target());
}

/// Files that the program itself writes are not changes of the source.
#[test]
fn files_that_zmove_writes_into_the_source_are_no_changes() {
    let site = Site::local();
    let home = site.source().join("home");
    let push = |options: &[&str]| {
        let manifest: PathBuf = site.source().join("d/manifest");
        let options = [
            &["--json", "--manifest", manifest.to_str().unwrap()],
            options,
        ]
        .concat();
        let mut zmove = site.push_command(&options, &[&site.contents()], "");
        zmove.0.env("ZMOVE_HOME", &home);
        zmove.outcome().expect(0)
    };
    // Large enough for the receiver to keep a journal.
    let grow = |number| {
        std::fs::File::create(site.source().join(format!("large {number}")))
            .unwrap()
            .set_len(5 * GROUP_BYTES)
    };
    grow(0).unwrap();
    paint(site.source().join("d/f"), 10);
    push(&[]);
    for number in 1..4 {
        grow(number).unwrap();
        for name in ["alone", "d/alone", "home/journal/alone"] {
            paint(site.target().join(name), 10);
        }
        assert_eq!(push(&["--delete"]).summary()["source_changed_kept"], 0);
        assert!(
            picture(&site.target())
                .keys()
                .all(|path| !path.ends_with(b"alone"))
        );
    }
}
