//! `--dry-run` prints a correct list and does not touch the target.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use zmove_wire::limits::REQUESTED_ENTRIES_MAX;

use crate::support::command::Outcome;
use crate::support::harness::{Site, both_ways, has_program, is_root, skip};
use crate::support::tree::{names, paint, painted, set_mode, set_old, set_own_mtime};

both_ways!(
    the_target_is_not_touched,
    a_missing_target_is_not_created,
    each_difference_is_named,
    contents_are_compared_on_demand,
    a_second_preview_after_the_push_is_empty,
    entries_that_would_stay_are_not_listed,
    a_single_file_is_listed_under_its_new_name,
    names_of_any_bytes_are_one_line_each,
    an_entry_that_cannot_be_created_is_a_failure,
    many_entries_are_listed,
    json_has_the_list_and_the_counts,
    rsync_lists_the_same,
    only_what_is_chosen_is_listed,
);

const LARGE: u64 = 2 * zmove_types::GROUP_BYTES + 1;

/// Metadata that a push cannot set is not listed as a change.
#[test]
fn owners_that_cannot_be_set_are_counted_and_not_listed() {
    if !is_root() {
        return skip("only root gives files away");
    }
    let unprivileged =
        Site::unprivileged().map(|site| (site, "not permitted to the receiver's user"));
    for (site, why) in unprivileged
        .into_iter()
        .chain([(Site::daemon(), "the key's grant does not allow it")])
    {
        let file = site.source().join("f");
        paint(&file, 10);
        site.give_away();
        std::os::unix::fs::chown(&file, Some(1234), Some(1235)).unwrap();
        let lack = format!("not kept: owner of 1 ({why}), group of 1 ({why})");
        let pushed = site.push(&["-a"], site.contents(), "").done().stdout;
        assert!(pushed.contains(&lack), "{pushed}");
        let outcome = preview(&site, &["-a"]);
        assert_eq!(list(&outcome), [""; 0]);
        assert!(outcome.stdout.contains(&lack), "{}", outcome.stdout);
        site.push(&["-n", "-a", "--strict-metadata"], site.contents(), "")
            .expect(23);
        // The owners differ nevertheless.
        let mut verify = site.zmove(&["verify", "-a"]);
        verify.0.arg(site.contents()).arg(site.address(""));
        let verified = verify.outcome().expect(6).stdout;
        assert!(verified.contains("~ f (owner)"), "{verified}");
    }
}

/// Asserts that a dry run reports the same numbers of files and bytes as the following push moves. Returns its list.
fn foretold(site: &Site, options: &[&str]) -> Vec<String> {
    let lines = list(&preview(site, options));
    let counts = |summary: &Value| ["files", "bytes"].map(|key| summary[key].clone());
    let told = counts(&preview(site, &[options, &["--json"]].concat()).summary());
    let pushed = site.push(&[options, &["--json"]].concat(), site.contents(), "");
    assert_eq!(counts(&pushed.done().summary()), told, "{lines:?}");
    lines
}

/// The receiver's user may not set the mode of another user's file, so the push creates a new file.
#[test]
fn a_file_of_another_user_that_differs_in_its_mode_is_to_be_moved() {
    let Some(site) = Site::unprivileged().filter(|_| is_root()) else {
        return skip("only root makes files of another user");
    };
    for (root, mode) in [(site.source(), 0o600), (site.target(), 0o644)] {
        paint(root.join("f"), 10);
        set_old(root.join("f"));
        set_mode(root.join("f"), mode);
    }
    site.give_away();
    std::os::unix::fs::chown(site.target().join("f"), Some(0), Some(0)).unwrap();
    set_own_mtime(&site.source(), 7, 7);
    set_own_mtime(&site.target(), 7, 7);
    assert_eq!(foretold(&site, &[]), ["~ f (mode)"]);
}

/// Another name of the file may belong to any user, so the push creates a new file for the new owner.
#[test]
fn a_file_with_other_names_that_gets_another_owner_is_to_be_moved() {
    if !is_root() {
        return skip("only root gives files away");
    }
    let site = Site::local();
    for root in [site.source(), site.target()] {
        paint(root.join("f"), 10);
        set_old(root.join("f"));
    }
    std::os::unix::fs::chown(site.source().join("f"), Some(1234), None).unwrap();
    std::fs::hard_link(site.target().join("f"), site.path("other")).unwrap();
    set_own_mtime(&site.source(), 7, 7);
    set_own_mtime(&site.target(), 7, 7);
    assert_eq!(foretold(&site, &["-a"]), ["~ f (owner)"]);
}

/// The walk finds one of the two names first, in directory order. The other name becomes a link.
#[test]
fn with_update_a_newer_file_is_not_replaced_by_a_hard_link() {
    let is_listed = ["a", "b"].map(|newer| {
        let site = Site::local();
        paint(site.source().join("a"), 10);
        set_old(site.source().join("a"));
        std::fs::hard_link(site.source().join("a"), site.source().join("b")).unwrap();
        for name in ["a", "b"] {
            paint(site.target().join(name), 10);
            set_old(site.target().join(name));
        }
        paint(site.target().join(newer), 12);
        set_own_mtime(&site.target().join(newer), 2_000_000_000, 0);
        set_own_mtime(&site.source(), 7, 7);
        set_own_mtime(&site.target(), 7, 7);
        let lines = list(&preview(&site, &["--update"]));
        site.push(&["--update"], site.contents(), "").done();
        assert_eq!(site.target().join(newer).metadata().unwrap().len(), 12);
        !lines.is_empty()
    });
    assert!(is_listed.contains(&false), "{is_listed:?}");
}

/// The two links may not become one entry at the target.
#[test]
fn symlinks_that_are_one_entry_at_the_target_become_two() {
    let site = Site::local();
    for name in ["l", "m"] {
        symlink("to", site.source().join(name)).unwrap();
        set_own_mtime(&site.source().join(name), 9, 9);
    }
    symlink("to", site.target().join("l")).unwrap();
    set_own_mtime(&site.target().join("l"), 9, 9);
    std::fs::hard_link(site.target().join("l"), site.target().join("m")).unwrap();
    set_own_mtime(&site.source(), 7, 7);
    set_own_mtime(&site.target(), 7, 7);
    let lines = foretold(&site, &[]);
    let [line] = &lines[..] else {
        panic!("{lines:?}")
    };
    assert!(line.ends_with("(hard link)"), "{line}");
    let inode = |name| site.target().join(name).symlink_metadata().unwrap().ino();
    assert_ne!(inode("l"), inode("m"));
    assert_eq!(list(&preview(&site, &[])), [""; 0]);
}

/// Without modes, a transfer does not open a directory that its owner cannot enter.
#[test]
fn entries_of_a_closed_directory_fail_without_modes() {
    let Some(site) = Site::unprivileged() else {
        return;
    };
    paint(site.source().join("d/f"), 10);
    std::fs::create_dir(site.target().join("d")).unwrap();
    site.give_away();
    set_mode(site.target().join("d"), 0o000);
    for options in [&["-n", "--no-p"][..], &["--no-p"]] {
        site.push(options, site.contents(), "").expect(23).says(&[
            "receiver: ",
            "'d",
            "Permission denied",
        ]);
    }
    set_mode(site.target().join("d"), 0o700);
    assert!(names(&site.target().join("d")).is_empty());
}

#[test]
fn a_device_that_the_key_may_not_make_is_counted_and_not_listed() {
    if !is_root() {
        return skip("only root makes devices");
    }
    let site = Site::daemon();
    let device = site.source().join("null");
    let number = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &device,
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::RUSR,
        number,
    )
    .unwrap();
    set_own_mtime(&site.source(), 7, 7);
    set_own_mtime(&site.target(), 7, 7);
    let outcome = preview(&site, &["-a"]);
    assert_eq!(list(&outcome), [""; 0], "{}", outcome.stdout);
    assert!(
        outcome.stdout.contains("not kept: device"),
        "{}",
        outcome.stdout
    );
    let pushed = site.push(&["-a"], site.contents(), "").done().stdout;
    assert!(pushed.contains("not kept: device"), "{pushed}");
}

/// Returns the metadata of each entry of a tree, by path. A change of contents changes the times.
pub(crate) fn snapshot(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let stat = path.symlink_metadata().unwrap();
        let times = (
            stat.mtime(),
            stat.mtime_nsec(),
            stat.ctime(),
            stat.ctime_nsec(),
        );
        let shown = format!(
            "{:o} {} {} {} {times:?}",
            stat.mode(),
            stat.ino(),
            stat.size(),
            stat.nlink()
        );
        found.insert(path.as_os_str().as_bytes().to_vec(), shown);
        if stat.is_dir() {
            waiting.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
    found
}

fn preview(site: &Site, options: &[&str]) -> Outcome {
    site.push(&[&["--dry-run"], options].concat(), site.contents(), "")
        .expect(0)
}

/// Returns the sorted lines of the list without the summary.
fn list(outcome: &Outcome) -> Vec<String> {
    let is_line = |line: &&str| ["+ ", "~ ", "- "].iter().any(|sign| line.starts_with(sign));
    let mut lines: Vec<_> = outcome
        .stdout
        .lines()
        .filter(is_line)
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

/// Creates entries of each kind that differ, and entries that do not.
fn grow(site: &Site) {
    let (source, target) = (site.source(), site.target());
    for name in ["same", "size", "time", "mode", "new", "d/same", "fresh/a"] {
        paint(source.join(name), 10);
        set_old(source.join(name));
    }
    paint(source.join("large"), LARGE);
    for name in ["same", "time", "mode", "d/same"] {
        paint(target.join(name), 10);
        set_old(target.join(name));
    }
    paint(target.join("size"), 9);
    set_old(target.join("size"));
    set_own_mtime(&target.join("time"), 5, 5);
    set_mode(target.join("mode"), 0o600);
    symlink("to", source.join("link")).unwrap();
    symlink("to", source.join("new-link")).unwrap();
    symlink("elsewhere", target.join("link")).unwrap();
    paint(source.join("kind/inner"), 3);
    paint(target.join("kind"), 3);
    for name in ["link", "d", ""] {
        set_own_mtime(&source.join(name), 7, 7);
        set_own_mtime(&target.join(name), 7, 7);
    }
    set_mode(source.join("d"), 0o750);
}

fn the_target_is_not_touched(site: &Site) {
    grow(site);
    set_mode(site.target().join("d"), 0o555);
    let before = snapshot(&site.target());
    for (options, code) in [
        (&["-n"][..], 0),
        (&["-n", "-c"], 0),
        (&["-n", "-u"], 0),
        // A directory of the source cannot replace a file.
        (&["-n", "--ignore-existing"], 23),
        (&["-n", "-q"], 0),
    ] {
        site.push(options, site.contents(), "").expect(code);
        assert_eq!(snapshot(&site.target()), before, "{options:?}");
    }
    set_mode(site.target().join("d"), 0o755);
}

fn a_missing_target_is_not_created(site: &Site) {
    paint(site.source().join("d/f"), 10);
    let before = snapshot(&site.target());
    for target in ["a", "a/b/c", "a/"] {
        let outcome = site.push(&["-n"], site.contents(), target).expect(0);
        assert_eq!(list(&outcome), ["+ ./", "+ d/", "+ d/f"]);
        let outcome = site.push(&["-n"], site.source(), target).expect(0);
        assert_eq!(list(&outcome), ["+ source/", "+ source/d/", "+ source/d/f"]);
    }
    let outcome = site
        .push(&["-n"], site.source().join("d/f"), "x/y")
        .expect(0);
    assert_eq!(list(&outcome), ["+ y"]);
    assert_eq!(snapshot(&site.target()), before);
}

fn each_difference_is_named(site: &Site) {
    grow(site);
    let outcome = preview(site, &[]);
    let expected = [
        "+ fresh/",
        "+ fresh/a",
        "+ kind/inner",
        "+ large",
        "+ new",
        "+ new-link -> to",
        "~ d/ (mode)",
        "~ kind/ (type)",
        "~ link -> to (target)",
        "~ mode (mode)",
        "~ size (size)",
        "~ time (time)",
    ];
    assert_eq!(list(&outcome), expected);
    let summary = "dry run: 6 to add, 6 to change; 6 files of 8.00 MiB to send, 3 there already\n";
    assert!(outcome.stdout.ends_with(summary), "{}", outcome.stdout);
}

fn contents_are_compared_on_demand(site: &Site) {
    grow(site);
    for (name, bytes) in [("same", 10), ("large", LARGE)] {
        std::fs::write(site.target().join(name), painted(bytes, 1)).unwrap();
        let time = site.source().join(name).metadata().unwrap();
        set_own_mtime(&site.target().join(name), time.mtime(), time.mtime_nsec());
    }
    set_own_mtime(&site.target(), 7, 7);
    let found = list(&preview(site, &["--checksum"]));
    let files: Vec<_> = found
        .iter()
        .filter(|line| line.starts_with("~ "))
        .map(String::as_str)
        .collect();
    let expected = [
        "~ d/ (mode)",
        "~ kind/ (type)",
        "~ large (contents)",
        "~ link -> to (target)",
        "~ mode (mode)",
        "~ same (contents)",
        "~ size (size)",
        "~ time (time)",
    ];
    assert_eq!(files, expected);
}

fn a_second_preview_after_the_push_is_empty(site: &Site) {
    grow(site);
    let told = preview(site, &["--json"]).summary();
    let done = site.push_contents();
    assert_eq!(
        (&told["files"], &told["bytes"]),
        (&done["files"], &done["bytes"])
    );
    for options in [&[][..], &["-c"]] {
        assert!(list(&preview(site, options)).is_empty());
    }
}

fn entries_that_would_stay_are_not_listed(site: &Site) {
    for (name, seconds) in [("older", 5), ("newer", 2_000_000_000)] {
        paint(site.source().join(name), 10);
        paint(site.target().join(name), 12);
        set_own_mtime(&site.target().join(name), seconds, 0);
    }
    for place in [site.source(), site.target()] {
        set_own_mtime(&place, 7, 7);
    }
    assert_eq!(
        list(&preview(site, &["--update"])),
        ["~ older (size, time)"]
    );
    assert!(list(&preview(site, &["--ignore-existing"])).is_empty());
}

fn a_single_file_is_listed_under_its_new_name(site: &Site) {
    paint(site.source().join("f"), 10);
    paint(site.target().join("there"), 11);
    set_old(site.target().join("there"));
    let push = |target| {
        list(
            &site
                .push(&["-n"], site.source().join("f"), target)
                .expect(0),
        )
    };
    assert_eq!(push("there"), ["~ there (size, time)"]);
    assert_eq!(push("not-there"), ["+ not-there"]);
    assert_eq!(push(""), ["+ f"]);
}

fn names_of_any_bytes_are_one_line_each(site: &Site) {
    for name in [
        &b"line\nbreak"[..],
        b"caf\xe9",
        b"esc\x1b[2J",
        b"back\\slash",
    ] {
        paint(site.source().join(OsStr::from_bytes(name)), 1);
    }
    symlink("a\nb", site.source().join("link")).unwrap();
    let found = list(&preview(site, &[]));
    let shown = |line: &str| found.iter().any(|found| found == line);
    for line in [
        "+ line\\nbreak",
        "+ caf\\xe9",
        "+ esc\\u{1b}[2J",
        "+ back\\\\slash",
        "+ link -> a\\nb",
    ] {
        assert!(shown(line), "{line} in {found:?}");
    }
}

fn an_entry_that_cannot_be_created_is_a_failure(site: &Site) {
    paint(site.source().join("f"), 10);
    paint(site.target().join("f/keep"), 10);
    let outcome = site.push(&["-n"], site.contents(), "").expect(23);
    outcome
        .says(&[
            "zmove: receiver:",
            "'f'",
            "a directory of that name is in the way",
        ])
        .lines(1);
    let missing = site
        .push_command(&["-n"], &["source/".as_ref(), "nowhere".as_ref()], "")
        .outcome();
    missing.expect(23).says(&["open 'nowhere'"]);
}

/// There are more entries than fit into one request.
fn many_entries_are_listed(site: &Site) {
    let mut expected: Vec<_> = (0..10).map(|number| format!("d{number}/")).collect();
    for directory in &expected {
        std::fs::create_dir(site.source().join(directory)).unwrap();
    }
    let files = (0..=REQUESTED_ENTRIES_MAX).map(|number| format!("d{}/f{number}", number % 10));
    expected.extend(files);
    for file in &expected[10..] {
        std::fs::write(site.source().join(file), "x").unwrap();
    }
    set_own_mtime(&site.source(), 7, 7);
    set_own_mtime(&site.target(), 7, 7);
    expected.sort();
    let found = list(&preview(site, &[]));
    let found: Vec<_> = found.iter().map(|line| line.strip_prefix("+ ")).collect();
    let expected: Vec<_> = expected.iter().map(|path| Some(path.as_str())).collect();
    assert!(found == expected, "{} lines", found.len());
    assert!(names(&site.target()).is_empty());
}

fn json_has_the_list_and_the_counts(site: &Site) {
    grow(site);
    let outcome = preview(site, &["--json"]);
    let summary = outcome.summary();
    let counts = ["added", "changed", "files", "skipped", "failed"]
        .map(|key| summary[key].as_u64().unwrap());
    assert_eq!(
        (counts, &summary["dry_run"]),
        ([6, 6, 6, 3, 0], &true.into())
    );
    let events: Vec<Value> = outcome
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |path: &str| events.iter().find(|event| event["path"] == path).unwrap();
    assert_eq!(
        (&of("size")["event"], &of("size")["why"][0]),
        (&"changed".into(), &"size".into())
    );
    assert_eq!(
        (&of("new-link")["event"], &of("new-link")["link"]),
        (&"added".into(), &"to".into())
    );
    assert!(preview(site, &["--quiet"]).stdout.is_empty());
}

fn only_what_is_chosen_is_listed(site: &Site) {
    grow(site);
    let rules = ["--exclude", "new*", "--exclude", "/d", "--max-size", "1MiB"];
    let outcome = preview(site, &rules);
    let expected = [
        "+ fresh/",
        "+ fresh/a",
        "+ kind/inner",
        "~ kind/ (type)",
        "~ link -> to (target)",
        "~ mode (mode)",
        "~ size (size)",
        "~ time (time)",
    ];
    assert_eq!(list(&outcome), expected);
    assert!(
        outcome.stdout.contains("4 left out by the selection"),
        "{}",
        outcome.stdout
    );
    std::fs::write(site.path("list"), "fresh/a\nsame\nsize\nlarge\n").unwrap();
    let listed = preview(site, &["--files-from", "list", "--max-size", "1MiB"]);
    assert_eq!(list(&listed), ["+ fresh/", "+ fresh/a", "~ size (size)"]);
}

fn rsync_lists_the_same(site: &Site) {
    if !has_program("rsync") {
        return skip("rsync is missing: nothing to compare with");
    }
    grow(site);
    let mut rsync = Command::new("rsync");
    let listed = rsync
        .args(["-an", "--out-format=%i %n"])
        .arg(site.contents())
        .arg(site.target())
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let theirs: BTreeSet<_> = listed
        .lines()
        .filter_map(|line| Some(line.split_once(' ')?.1))
        .collect();
    let ours = list(&preview(site, &[]));
    let ours: BTreeSet<_> = ours
        .iter()
        .map(|line| {
            line[2..]
                .split(" (")
                .next()
                .unwrap()
                .split(" -> ")
                .next()
                .unwrap()
        })
        .collect();
    assert_eq!(ours, theirs);
}
