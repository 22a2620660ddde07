//! Pulls: this side connects and receives, and the daemon sends. The result is the same as after a push.

mod hostile;
mod lanes;
mod rights;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Instant;

use serde_json::Value;
use zmove_types::GROUP_BYTES;

use crate::commands::ssh::Sshd;
use crate::connections::breakage::{interrupt, kill};
use crate::connections::resume::{journals_in, wait_for_journal_in};
use crate::support::command::{Runner, ZMOVE, finish};
use crate::support::daemon::Daemon;
use crate::support::harness::{PROMPT, Site};
use crate::support::tree::{assert_same, names, paint, paint_interesting_sizes};

const LARGE_BYTES: u64 = 12 * GROUP_BYTES + 5;

fn site() -> Site {
    Site::reading(&[], &[])
}

/// Number of small files in a tree.
pub(crate) const SMALL_FILES: u64 = 100;

/// A tree with files of all sizes and entries of each kind.
fn grow(directory: &Path) {
    paint_interesting_sizes(directory);
    grow_kinds(directory);
}

/// A tree with small files, a file of several groups, links of both kinds, holes, and an empty directory.
pub(crate) fn grow_kinds(directory: &Path) {
    paint(directory.join("groups"), 2 * GROUP_BYTES + 1);
    for number in 0..SMALL_FILES {
        paint(
            directory.join(format!("d{}/f{number}", number % 7)),
            100 + number,
        );
    }
    std::fs::create_dir(directory.join("empty")).unwrap();
    symlink("d1/f1", directory.join("link")).unwrap();
    symlink("/etc/passwd", directory.join("out")).unwrap();
    std::fs::hard_link(directory.join("d1/f1"), directory.join("d2/other")).unwrap();
    std::fs::File::create(directory.join("hole"))
        .unwrap()
        .set_len(3 * GROUP_BYTES)
        .unwrap();
    std::fs::write(directory.join(".hidden"), "hidden").unwrap();
}

fn pulled(site: &Site, options: &[&str], sources: &[&str]) -> Value {
    site.pull(&[&["--json"], options].concat(), sources, "")
        .done()
        .summary()
}

#[track_caller]
pub(crate) fn assert_counts(summary: &Value, counts: &[(&str, u64)]) {
    for (name, count) in counts {
        assert_eq!(summary[*name].as_u64(), Some(*count), "{name} in {summary}");
    }
}

/// Asserts the counts of another transfer of the same tree.
#[track_caller]
pub(crate) fn assert_counts_as(summary: &Value, expected: &Value) {
    for name in [
        "files",
        "bytes",
        "hard_links",
        "skipped",
        "specials",
        "failed",
        "not_kept",
        "left_out",
    ] {
        assert_eq!(summary[name], expected[name], "{name}");
    }
}

fn a_tree_arrives_and_the_next_pull_moves_nothing(site: &Site) {
    grow(&site.source());
    let first = pulled(site, &[], &[""]);
    assert_same(&site.source(), &site.target());
    let files = first["files"].as_u64().unwrap();
    assert_counts(&first, &[("skipped", 0), ("failed", 0), ("reconnects", 0)]);
    assert!(
        first["lanes"].as_u64() > Some(0) && files > SMALL_FILES,
        "{first}"
    );
    let second = pulled(site, &[], &[""]);
    assert_counts(&second, &[("files", 0), ("skipped", files), ("failed", 0)]);
    site.the_daemon().wait_for_log("sent to tester");
}

#[test]
fn a_tree_arrives_over_tcp() {
    a_tree_arrives_and_the_next_pull_moves_nothing(&site());
}

#[test]
fn a_tree_arrives_over_quic() {
    let quic = &["--transport", "quic"];
    a_tree_arrives_and_the_next_pull_moves_nothing(&Site::reading(quic, quic));
}

#[test]
fn a_tree_arrives_over_lanes_in_clear() {
    a_tree_arrives_and_the_next_pull_moves_nothing(&Site::reading(
        &["--cipher", "none"],
        &["--allow-clear"],
    ));
}

/// A pull of the same trees has the same counts as a push.
#[test]
fn a_pull_counts_as_a_push_does() {
    let site = site();
    grow_kinds(&site.source());
    let pull = pulled(&site, &[], &[""]);
    let copy = site.path("copy");
    let mut push = site.zmove(&["push", "--json", "source/"]);
    push.0.arg(&copy);
    let push = push.outcome().done().summary();
    assert_counts_as(&pull, &push);
    assert_same(&copy, &site.target());
}

#[test]
fn a_tree_arrives_over_ssh() {
    let site = Site::local();
    let Some(sshd) = Sshd::start(&site) else {
        return;
    };
    grow_kinds(&site.source());
    let mut pull = site.zmove(&[
        "pull",
        "--json",
        "--ssh-command",
        &sshd.command(),
        "--remote-zmove",
    ]);
    pull.0
        .arg(ZMOVE)
        .arg(sshd.at(&site.source().join("")))
        .arg(site.target());
    assert_counts(&pull.outcome().done().summary(), &[("failed", 0)]);
    assert_same(&site.source(), &site.target());
}

#[test]
fn sources_are_named_as_rsync_names_them() {
    let site = site();
    for path in ["a/x.txt", "a/y.txt", "a/z.bin", "b/w", "single"] {
        paint(site.source().join(path), 10);
    }
    let found = |options: &[&str], sources: &[&str], path: &str| {
        site.pull(options, sources, path).expect(0);
        names(&site.target().join(path))
    };
    assert_eq!(found(&[], &["a"], "one"), ["a"]);
    assert_eq!(found(&[], &["a/"], "two"), ["x.txt", "y.txt", "z.bin"]);
    assert_eq!(
        found(&[], &["a/*.txt", "b"], "three"),
        ["b", "x.txt", "y.txt"]
    );
    assert_eq!(found(&[], &["[ab]/[xw]*"], "four"), ["w", "x.txt"]);
    site.pull(&[], &["single"], "renamed").expect(0);
    assert!(site.target().join("renamed").is_file());
    let mut colons = site.zmove(&["pull"]);
    colons
        .0
        .args([site.address("a/"), ":b".into(), ":single".into()])
        .arg(site.target().join("five"));
    colons.outcome().expect(0);
    assert_eq!(
        names(&site.target().join("five")),
        ["b", "single", "x.txt", "y.txt", "z.bin"]
    );
    let absolute = site.source().join("b").canonicalize().unwrap();
    assert_eq!(found(&[], &[absolute.to_str().unwrap()], "six"), ["b"]);
}

#[test]
fn a_source_that_is_missing_is_named_and_the_others_arrive() {
    let site = site();
    paint(site.source().join("f"), 10);
    site.pull(&[], &["f", "none", "glob*"], "")
        .expect(23)
        .says(&["sender: open '", "/none'"])
        .says(&["glob*"]);
    assert_eq!(names(&site.target()), ["f"]);
    site.pull(&[], &["none"], "")
        .expect(23)
        .says(&["zmove: sender: nothing to send: open '", "none'"])
        .lines(1);
}

/// The target is on this side, and its error is reported only once.
#[test]
fn an_impossible_target_is_reported_once() {
    let site = site();
    paint(site.source().join("f"), 10);
    std::fs::write(site.target().join("file"), "x").unwrap();
    let outcome = site.pull(&[], &["f"], "file/below/").expect(3).lines(1);
    let told = outcome
        .stderr
        .strip_prefix("zmove: receiver: target '")
        .unwrap_or_default();
    assert!(
        told.contains("/file' is a file and not a directory (choose another target"),
        "{}",
        outcome.stderr
    );
    assert_eq!(told.matches("is a file").count(), 1, "{told}");
}

#[test]
fn extraneous_entries_are_removed_and_a_dry_run_lists_them() {
    let site = site();
    paint(site.source().join("d/kept"), 10);
    for path in ["d/old", "d/older/deep", "beside"] {
        paint(site.target().join(path), 10);
    }
    let listed = site
        .pull(&["--dry-run", "--delete"], &["d"], "")
        .expect(0)
        .stdout;
    for line in ["- d/old\n", "- d/older/\n", "+ d/kept\n"] {
        assert!(listed.contains(line), "{listed}");
    }
    assert_eq!(names(&site.target().join("d")), ["old", "older"]);
    site.pull(&["--delete", "--max-delete", "1"], &["d"], "")
        .expect(25);
    assert_counts(&pulled(&site, &["--delete"], &["d"]), &[("failed", 0)]);
    assert_eq!(names(&site.target().join("d")), ["kept"]);
    assert_eq!(
        names(&site.target()),
        ["beside", "d"],
        "what was not asked for stays"
    );
    pulled(&site, &["--delete"], &[""]);
    assert_same(&site.source(), &site.target());
}

#[test]
fn the_manifest_is_that_of_a_push() {
    let site = site();
    grow(&site.source());
    let lines = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let [pull, push] = ["pull.b3", "push.b3"].map(|name| site.path(name));
    pulled(&site, &["--manifest", pull.to_str().unwrap()], &[""]);
    let mut command = site.zmove(&["push", "--manifest", push.to_str().unwrap(), "source/"]);
    command.0.arg(site.path("copy"));
    command.outcome().done();
    assert!(lines(&pull).len() as u64 > SMALL_FILES);
    assert_eq!(lines(&pull), lines(&push));
}

#[test]
fn only_what_is_selected_arrives() {
    let site = site();
    for path in ["a/x.o", "a/x.c", "a/keep.o", "a/large", "b/y"] {
        paint(
            site.source().join(path),
            if path.ends_with("large") { 5_000 } else { 10 },
        );
    }
    let rules = [
        "--exclude",
        "*.o",
        "--include",
        "keep.o",
        "--exclude",
        "b/",
        "--max-size",
        "1KiB",
    ];
    let summary = pulled(&site, &rules, &[""]);
    assert_counts(&summary, &[("files", 2), ("left_out", 3)]);
    assert_eq!(names(&site.target().join("a")), ["keep.o", "x.c"]);
}

#[test]
fn only_what_is_listed_arrives() {
    let site = site();
    for path in ["a/x", "a/y", "b/z"] {
        paint(site.source().join(path), 10);
    }
    let list = site.path("list");
    std::fs::write(&list, "a/x\n./b//z\nnone\n").unwrap();
    let options = ["--files-from", list.to_str().unwrap()];
    site.pull(&options, &[""], "")
        .expect(23)
        .says(&["find the listed path 'none'"])
        .lines(1);
    assert_eq!(
        (names(&site.target()), names(&site.target().join("a"))),
        (vec!["a".into(), "b".into()], vec!["x".into()])
    );
    std::fs::write(&list, "y\0x\0").unwrap();
    pulled(
        &site,
        &["-0", "--files-from", list.to_str().unwrap()],
        &["a"],
    );
    assert!(site.target().join("y").is_file() && site.target().join("x").is_file());
}

/// The list does not fit into one message.
#[test]
fn a_long_list_arrives_in_parts() {
    let site = site();
    paint(site.source().join("last"), 10);
    let list = site.path("list");
    let text = "./".repeat(100) + "last\n";
    std::fs::write(&list, text.repeat(15_000)).unwrap();
    assert_counts(
        &pulled(&site, &["--files-from", list.to_str().unwrap()], &[""]),
        &[("files", 1)],
    );
}

#[test]
fn a_pull_that_is_killed_goes_on_where_it_was() {
    let site = site();
    paint(site.source().join("large"), LARGE_BYTES);
    let journals = site.path("client/journal");
    let client = site
        .pull_command(&["--json", "--limit", "8MB"], &[""], "")
        .start();
    wait_for_journal_in(&journals);
    kill(client);
    let summary = pulled(&site, &[], &[""]);
    assert_same(&site.source(), &site.target());
    let [moved, resumed] = ["bytes", "bytes_resumed"].map(|key| summary[key].as_u64().unwrap());
    assert!(
        resumed >= GROUP_BYTES && moved + resumed == LARGE_BYTES,
        "{summary}"
    );
    assert_eq!(journals_in(&journals), [], "no unfinished transfers");
}

#[test]
fn a_pull_goes_on_when_its_daemon_is_killed_and_comes_back() {
    let mut site = site();
    paint(site.source().join("large"), LARGE_BYTES);
    for number in 0..50 {
        paint(site.source().join(format!("small/{number}")), 1_000);
    }
    let manifest = site.path("pull.b3");
    let options = [
        "--json",
        "--limit",
        "12MB",
        "--manifest",
        manifest.to_str().unwrap(),
    ];
    let client = site.pull_command(&options, &[""], "").start();
    wait_for_journal_in(&site.path("client/journal"));
    let mut daemon = site.take_daemon();
    daemon.kill();
    let again = Daemon::start(
        &site.path("server"),
        &daemon.address.to_string(),
        &Runner::default(),
    );
    let outcome = finish(client)
        .expect(0)
        .says(&["lost: ", "; reconnecting for up to 5 min"]);
    let summary = outcome
        .says(&["zmove: reconnected after ", " s"])
        .lines(2)
        .summary();
    assert_counts(
        &summary,
        &[
            ("reconnects", 1),
            ("files", 51),
            ("failed", 0),
            ("skipped", 0),
        ],
    );
    assert_same(&site.source(), &site.target());
    let text = std::fs::read_to_string(manifest).unwrap();
    assert_eq!(
        text.lines().count(),
        51,
        "what came by the connection that was lost stands there too"
    );
    for (hash, name) in text.lines().map(|line| line.split_once("  ").unwrap()) {
        let contents = std::fs::read(site.source().join(name)).unwrap();
        assert_eq!(hash, blake3::hash(&contents).to_hex().as_str(), "{name}");
    }
    again.wait_for_log("sent to tester");
}

#[test]
fn a_pull_that_is_interrupted_ends_at_once() {
    let site = site();
    // Transferring this file would take hours.
    std::fs::File::create(site.source().join("large"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let options = ["--limit", "8MB", "--sparse", "never"];
    let client = site.pull_command(&options, &["large"], "").start();
    wait_for_journal_in(&site.path("client/journal"));
    let since = Instant::now();
    interrupt(client).expect(20);
    assert!(since.elapsed() < PROMPT, "{:?}", since.elapsed());
    site.the_daemon().wait_for_log("broken off");
}

#[test]
fn a_copy_is_a_push_or_a_pull() {
    let site = site();
    paint(site.source().join("f"), 10);
    let mut copy = site.zmove(&["copy"]);
    copy.0.arg(site.address("")).arg(site.target());
    copy.outcome().expect(0);
    assert_same(&site.source(), &site.target());
    let mut copy = site.zmove(&["copy", "source/"]);
    copy.0.arg(site.path("copy"));
    copy.outcome().expect(0);
    assert_same(&site.source(), &site.path("copy"));
}

#[test]
fn a_trace_has_the_sender_s_stages() {
    let site = site();
    let bytes = 2 * GROUP_BYTES + 5;
    paint(site.source().join("large"), bytes);
    let trace = site.path("trace");
    pulled(&site, &["--trace", trace.to_str().unwrap()], &["large"]);
    let text = std::fs::read_to_string(trace).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["bytes_stored"].as_u64(), Some(bytes));
    // A group whose lane is late at the end is read again for another lane.
    assert!(last["bytes_read"].as_u64() >= Some(bytes), "{last}");
}
