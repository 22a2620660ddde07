//! Bad sources: each is reported in one clear line, the others are transferred, and the exit code shows the failure.

use std::ffi::OsStr;

use crate::support::harness::{Site, both_ways};
use crate::support::tree::{assert_same, names, paint, set_mode};

both_ways!(
    a_missing_source_is_reported,
    a_missing_source_does_not_stop_another_one,
    a_file_with_a_trailing_slash_is_reported,
    a_source_on_another_host_is_refused,
);

const NO_SUCH: &str = "No such file or directory";

fn a_missing_source_is_reported(site: &Site) {
    for source in ["nowhere", "nowhere/", "source/nowhere"] {
        let outcome = site.push(&[], source, "x").expect(23);
        outcome.says(&["zmove: sender: open", &format!("'{source}'"), NO_SUCH]);
    }
    assert!(names(&site.target()).is_empty());
}

fn a_missing_source_does_not_stop_another_one(site: &Site) {
    paint(site.source().join("f"), 10);
    let sources = ["nowhere", "source"].map(OsStr::new);
    let outcome = site
        .push_command(&["--json"], &sources, "")
        .outcome()
        .expect(23);
    let summary = outcome.summary();
    assert_eq!(
        (&summary["files"], &summary["failed"]),
        (&1.into(), &1.into())
    );
    outcome
        .says(&["zmove: sender: open 'nowhere'", NO_SUCH])
        .lines(1);
    assert_same(&site.source(), &site.target().join("source"));
}

fn a_file_with_a_trailing_slash_is_reported(site: &Site) {
    paint(site.source().join("f"), 10);
    let outcome = site.push(&[], "source/f/", "x").expect(23);
    outcome.says(&["zmove: sender: open 'source/f/'", "ot a directory"]);
}

fn a_source_on_another_host_is_refused(site: &Site) {
    let outcome = site.push(&[], "elsewhere:data", "x").expect(1);
    outcome
        .says(&["'elsewhere:data' is on another host"])
        .lines(1);
    paint(site.path("with:colon"), 10);
    site.push(&[], "./with:colon", "").done();
    assert_eq!(names(&site.target()), ["with:colon"]);
}

/// Creates a tree with an unreadable file and an unreadable directory.
fn unreadable(site: &Site) {
    let source = site.source();
    for (name, bytes) in [
        ("ok", 10),
        ("secret", 20),
        ("big", zmove_types::GROUP_BYTES + 1),
        ("d/inner", 5),
    ] {
        paint(source.join(name), bytes);
    }
    site.give_away();
    let locked = ["secret", "big", "d"];
    locked
        .iter()
        .for_each(|name| set_mode(source.join(name), 0));
    let outcome = site.push(&["--json"], site.contents(), "").expect(23);
    locked
        .iter()
        .for_each(|name| set_mode(source.join(name), 0o700));
    let summary = outcome.summary();
    assert_eq!(
        (&summary["files"], &summary["failed"]),
        (&1.into(), &3.into()),
        "{}",
        outcome.stderr
    );
    let outcome = locked.into_iter().fold(outcome, |outcome, name| {
        let path = source.join(name);
        outcome.says(&[
            "zmove: sender: open",
            path.to_str().unwrap(),
            "Permission denied",
        ])
    });
    outcome.lines(3);
    assert!(site.target().join("ok").is_file());
    assert!(!site.target().join("secret").exists() && !site.target().join("big").exists());
}

/// Unreadable files are offered like others, including those that would be sent or read before the receiver's answer.
fn unreadable_and_there(site: &Site) {
    let count = zmove_wire::limits::GUESSED_ENTRIES_MAX + 76;
    let names: Vec<_> = (0..count).map(|number| format!("f{number}")).collect();
    names
        .iter()
        .for_each(|name| paint(site.source().join(name), 3));
    site.give_away();
    site.push_contents();
    for directory in [site.source(), site.target()] {
        names
            .iter()
            .for_each(|name| set_mode(directory.join(name), 0o200));
    }
    let summary = site.push_contents();
    assert_eq!(
        (&summary["skipped"], &summary["failed"]),
        (&count.into(), &0.into())
    );
    std::fs::remove_file(site.target().join("f7")).unwrap();
    let outcome = site.push(&["--json"], site.contents(), "").expect(23);
    let summary = outcome.summary();
    assert_eq!(
        (&summary["skipped"], &summary["failed"]),
        (&(count - 1).into(), &1.into())
    );
    outcome
        .says(&["zmove: sender: open", "f7", "Permission denied"])
        .lines(1);
}

#[test]
fn unreadable_files_that_are_equal_are_skipped_locally() {
    if let Some(site) = Site::unprivileged() {
        unreadable_and_there(&site);
    }
}

#[test]
fn unreadable_files_that_are_equal_are_skipped_at_a_daemon() {
    if let Some(mut site) = Site::unprivileged() {
        site.start_daemon();
        unreadable_and_there(&site);
    }
}

#[test]
fn unreadable_files_and_directories_are_reported_locally() {
    if let Some(site) = Site::unprivileged() {
        unreadable(&site);
    }
}

#[test]
fn unreadable_files_and_directories_are_reported_to_a_daemon() {
    if let Some(mut site) = Site::unprivileged() {
        site.start_daemon();
        unreadable(&site);
    }
}
