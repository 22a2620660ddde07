//! `--dry-run`: a true list, and a target that nothing has touched.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::command::Outcome;
use crate::harness::{Site, both_ways, has_program, is_root, skip};
use crate::tree::{names, paint, painted, set_mode, set_old, set_own_mtime};

both_ways!(
    the_target_is_not_touched,
    a_target_that_is_not_there_is_not_made,
    each_difference_is_named,
    contents_are_compared_on_demand,
    a_second_preview_after_the_push_is_empty,
    what_would_stay_is_not_listed,
    a_single_file_is_listed_under_its_new_name,
    names_of_any_bytes_are_one_line_each,
    what_could_not_be_made_is_a_failure,
    many_entries_are_listed,
    json_has_the_list_and_the_counts,
    rsync_lists_the_same,
    only_what_is_chosen_is_listed,
);

const LARGE: u64 = 2 * zmove_types::GROUP_BYTES + 1;

/// What a push cannot keep is no change that it would make.
#[test]
fn owners_that_cannot_be_set_are_counted_and_not_listed() {
    if !is_root() {
        return skip("only root gives files away");
    }
    let unprivileged = Site::unprivileged().map(|site| (site, "the receiver's user may not"));
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
        // they differ all the same
        let mut verify = site.zmove(&["verify", "-a"]);
        verify.0.arg(site.contents()).arg(site.address(""));
        let verified = verify.outcome().expect(6).stdout;
        assert!(verified.contains("~ f (owner)"), "{verified}");
    }
}

/// All that a look at a tree can find, by path.
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

/// The lines of the list, in order, without the summary.
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

/// Something of every kind that differs, and something that does not.
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
    for options in [&[][..], &["-c"], &["-u"], &["--ignore-existing"], &["-q"]] {
        let options = [&["-n"], options].concat();
        let outcome = site.push(&options, site.contents(), "");
        assert!(matches!(outcome.code, Some(0 | 23)), "{}", outcome.stderr);
        assert_eq!(snapshot(&site.target()), before, "{options:?}");
    }
    set_mode(site.target().join("d"), 0o755);
}

fn a_target_that_is_not_there_is_not_made(site: &Site) {
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

fn what_would_stay_is_not_listed(site: &Site) {
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

fn what_could_not_be_made_is_a_failure(site: &Site) {
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

/// More than one request holds.
fn many_entries_are_listed(site: &Site) {
    for number in 0..10_000_u64 {
        let path = site.source().join(format!("d{}/f{number}", number % 10));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    let found: BTreeSet<_> = list(&preview(site, &[])).into_iter().collect();
    let files: BTreeSet<_> = (0..10_000)
        .map(|number| format!("+ d{}/f{number}", number % 10))
        .collect();
    assert!(found.is_superset(&files));
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
