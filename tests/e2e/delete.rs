//! `--delete`: the target becomes a mirror of what was pushed, and of nothing that could not be read.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::dry_run::snapshot;
use crate::harness::{Site, both_ways};
use crate::rsync::rsync;
use crate::tree::{assert_pictures, assert_same, names, paint, picture, set_mode, set_own_mtime};

both_ways!(
    what_is_at_the_target_alone_goes,
    without_the_option_it_stays,
    links_go_and_what_they_point_to_stays,
    only_what_is_pushed_is_mirrored,
    several_sources_are_mirrored_together,
    a_file_alone_removes_nothing,
    a_source_that_is_missing_removes_nothing,
    what_running_transfers_hide_stays,
    a_directory_in_the_way_of_a_file_still_stays,
    names_of_any_bytes_go,
    a_preview_lists_and_removes_nothing,
    many_names_go_and_many_stay,
    rsync_makes_the_same,
    what_is_left_out_stays,
    what_sizes_leave_out_is_at_the_source,
    a_preview_spares_what_is_left_out,
    rsync_spares_the_same,
);

fn delete(site: &Site) -> u64 {
    site.push(&["--json", "--delete"], site.contents(), "").done().summary()["removed"].as_u64().unwrap()
}

fn grow(site: &Site) {
    for name in ["kept", "d/kept", "d/e/kept", "changed"] {
        paint(site.source().join(name), 10);
    }
    std::fs::create_dir(site.source().join("empty")).unwrap();
    paint(site.target().join("changed"), 20);
    paint(site.target().join("d/kept"), 10);
}

fn what_is_at_the_target_alone_goes(site: &Site) {
    grow(site);
    for name in ["alone", "d/alone", "d/e/alone", "tree/a/b/c", "tree/x", "d/tree/y", "empty/z"] {
        paint(site.target().join(name), 10);
    }
    symlink("nowhere", site.target().join("d/link")).unwrap();
    assert!(Command::new("mkfifo").arg(site.target().join("fifo")).status().unwrap().success());
    set_mode(site.target().join("tree/a"), 0o555);
    // the named ones, the link, the fifo, and the directories tree, tree/a, tree/a/b and d/tree
    assert_eq!(delete(site), 7 + 2 + 4);
    assert_same(&site.source(), &site.target());
    assert_eq!(delete(site), 0);
    let text = site.push(&["--delete"], site.contents(), "").done().stdout;
    assert!(!text.contains("removed"), "{text}");
    paint(site.target().join("alone"), 3);
    let text = site.push(&["--delete"], site.contents(), "").done().stdout;
    assert!(text.contains("1 removed"), "{text}");
}

fn without_the_option_it_stays(site: &Site) {
    grow(site);
    paint(site.target().join("alone"), 10);
    assert_eq!(site.push_contents()["removed"], 0);
    assert!(site.target().join("alone").exists());
}

fn links_go_and_what_they_point_to_stays(site: &Site) {
    grow(site);
    let outside = site.path("outside");
    paint(outside.join("precious"), 10);
    paint(outside.join("d/precious"), 10);
    for place in ["link", "d/link", "tree/link"] {
        std::fs::create_dir_all(site.target().join(place).parent().unwrap()).unwrap();
        symlink(&outside, site.target().join(place)).unwrap();
    }
    // where the source has a directory the target has a link to one that holds more
    symlink(outside.join("d"), site.target().join("empty")).unwrap();
    let before = snapshot(&outside);
    assert_eq!(delete(site), 4);
    assert_eq!(snapshot(&outside), before);
    assert_same(&site.source(), &site.target());
}

fn only_what_is_pushed_is_mirrored(site: &Site) {
    grow(site);
    for name in ["x/alone", "x/source/alone", "x/source/d/alone"] {
        paint(site.target().join(name), 10);
    }
    site.push(&["--delete"], site.source(), "x").done();
    assert_eq!(names(&site.target().join("x")), ["alone", "source"]);
    assert_same(&site.source(), &site.target().join("x/source"));
}

fn several_sources_are_mirrored_together(site: &Site) {
    for name in ["a/one", "a/d/two", "b/three", "c/four"] {
        paint(site.source().join(name), 10);
    }
    for name in ["alone", "d/alone", "c/alone", "e/alone"] {
        paint(site.target().join(name), 10);
    }
    let sources = ["source/a/", "source/b/", "source/c"].map(OsStr::new);
    site.push_command(&["--delete"], &sources, "").outcome().done();
    assert_eq!(names(&site.target()), ["c", "d", "one", "three"]);
    assert_eq!(names(&site.target().join("c")), ["four"]);
    assert_eq!(names(&site.target().join("d")), ["two"]);
    // without a source whose contents go there, the target itself is not mirrored
    paint(site.target().join("alone"), 10);
    let sources = ["source/a/d", "source/c"].map(OsStr::new);
    site.push_command(&["--delete"], &sources, "").outcome().done();
    assert_eq!(names(&site.target()), ["alone", "c", "d", "one", "three"]);
}

fn a_file_alone_removes_nothing(site: &Site) {
    grow(site);
    paint(site.target().join("alone"), 10);
    site.push(&["--delete"], site.source().join("kept"), "").done();
    site.push(&["--delete"], site.source().join("kept"), "d/").done();
    assert_eq!(names(&site.target()), ["alone", "changed", "d", "kept"]);
}

fn a_source_that_is_missing_removes_nothing(site: &Site) {
    grow(site);
    paint(site.target().join("alone"), 10);
    let sources = ["source/", "gone"].map(OsStr::new);
    let outcome = site.push_command(&["--delete"], &sources, "").outcome().expect(23);
    outcome.says(&["open 'gone'"]).says(&["nothing was removed at the target", "--ignore-errors"]).lines(2);
    assert!(site.target().join("alone").exists());
    let outcome = site.push_command(&["--delete", "--ignore-errors"], &sources, "").outcome().expect(23);
    outcome.lines(1);
    assert_same(&site.source(), &site.target());
}

fn what_running_transfers_hide_stays(site: &Site) {
    grow(site);
    paint(site.target().join("d/.zmove-0123-0"), 10);
    paint(site.target().join(".zmove-new-1.1-1-1.1-d/f"), 10);
    paint(site.target().join("tree/.zmove-0123-1"), 10);
    paint(site.target().join("tree/alone"), 10);
    let outcome = site.push(&["--delete"], site.contents(), "").expect(23);
    outcome.says(&["receiver: remove 'tree': Directory not empty"]).lines(1);
    assert!(site.target().join("d/.zmove-0123-0").exists());
    assert!(site.target().join(".zmove-new-1.1-1-1.1-d/f").exists());
    assert_eq!(names(&site.target().join("tree")), [".zmove-0123-1"]);
}

fn a_directory_in_the_way_of_a_file_still_stays(site: &Site) {
    grow(site);
    paint(site.target().join("kept/inner"), 10);
    paint(site.target().join("alone"), 10);
    let outcome = site.push(&["--delete"], site.contents(), "").expect(23);
    outcome.says(&["'kept'", "a directory of that name is in the way"]).lines(1);
    assert!(site.target().join("kept/inner").exists() && !site.target().join("alone").exists());
}

fn names_of_any_bytes_go(site: &Site) {
    grow(site);
    for name in [&b"line\nbreak"[..], b"caf\xe9", b"\xff\xfe", b"-rf", b"a b", b"..."] {
        let directory = site.target().join("d").join(OsStr::from_bytes(name));
        paint(directory.join(OsStr::from_bytes(name)), 3);
        paint(site.source().join(OsStr::from_bytes(name)), 3);
    }
    assert_eq!(delete(site), 12);
    assert_same(&site.source(), &site.target());
}

fn a_preview_lists_and_removes_nothing(site: &Site) {
    grow(site);
    site.push_contents();
    for name in ["alone", "tree/a/b", "d/line\nbreak"] {
        paint(site.target().join(name), 10);
    }
    for name in ["", "d"] {
        let time = site.source().join(name).metadata().unwrap();
        set_own_mtime(&site.target().join(name), time.mtime(), time.mtime_nsec());
    }
    let before = snapshot(&site.target());
    let outcome = site.push(&["-n", "--delete"], site.contents(), "").done();
    assert_eq!(snapshot(&site.target()), before);
    let mut lines: Vec<_> = outcome.stdout.lines().collect();
    let summary = lines.pop().unwrap();
    lines.sort_unstable();
    assert_eq!(lines, ["- alone", "- d/line\\nbreak", "- tree/"]);
    assert!(summary.starts_with("dry run: 0 to add, 0 to change, 3 to remove; "), "{summary}");
    let told = site.push(&["-n", "--delete", "--json"], site.contents(), "").done();
    assert_eq!(told.summary()["removed"], 3);
    let sources = ["source/", "gone"].map(OsStr::new);
    let outcome = site.push_command(&["-n", "--delete"], &sources, "").outcome().expect(23);
    assert!(!outcome.stdout.lines().any(|line| line.starts_with("- ")), "{}", outcome.stdout);
    outcome.says(&["nothing was removed"]);
    assert_eq!(delete(site), 5);
}

/// More than one message tells, and more than one answer holds.
fn many_names_go_and_many_stay(site: &Site) {
    let touch = |path: &Path| drop(std::fs::File::create(path).unwrap());
    for directory in ["big", "other"] {
        std::fs::create_dir(site.source().join(directory)).unwrap();
        std::fs::create_dir(site.target().join(directory)).unwrap();
    }
    (0..6_000).for_each(|number| touch(&site.source().join(format!("big/{:06}", number * 7))));
    (0..66_000).for_each(|number| touch(&site.target().join(format!("big/{number:06}"))));
    (0..100).for_each(|number| {
        std::fs::create_dir(site.source().join(format!("other/{number}"))).unwrap();
        paint(site.target().join(format!("other/{number}/alone")), 1);
    });
    assert_eq!(delete(site), 66_000 - 6_000 + 100);
    assert_eq!(names(&site.source().join("big")), names(&site.target().join("big")));
    assert_eq!(delete(site), 0);
}

fn rsync_makes_the_same(site: &Site) {
    let other = site.path("other");
    grow(site);
    for target in [&other, &site.target()] {
        for name in ["alone", "tree/a/b", "d/alone", "changed", "d/e", "empty/z/y"] {
            paint(target.join(name), 20);
        }
        symlink("/", target.join("link")).unwrap();
    }
    for name in ["kept", "d/kept", "d/e/kept", "changed", "d/e", "d", "empty", ""] {
        set_own_mtime(&site.source().join(name), 1_000, 0);
    }
    if rsync(&["--delete"], &site.source(), &other) {
        site.push(&["--delete"], site.contents(), "").done();
        assert_pictures(&picture(&other), &picture(&site.target()));
    }
}

/// Things at both ends and at the target alone, some of which rules leave out.
fn grow_beside_rules(source: &Path, target: &Path) {
    for name in ["main.c", "main.o", "lib/a.c", "lib/a.o", "cache/x", "lib/cache/x", "build"] {
        paint(source.join(name), 10);
    }
    for name in [
        "alone.c",
        "alone.o",
        "cache/y",
        "lib/alone.o",
        "lib/alone.c",
        "lib/cache/y",
        "old/f",
        "old/deep/a.o",
        "old/deep/b",
        "old/deeper/none/f",
        "other/cache/f",
        "other/f",
        "gone/f",
        "gone/d/f",
        "tree/build/f",
    ] {
        paint(target.join(name), 10);
    }
    symlink("f", target.join("other/link.o")).unwrap();
}

fn what_is_left_out_stays(site: &Site) {
    grow_beside_rules(&site.source(), &site.target());
    let options = ["--json", "--delete", "--exclude", "*.o", "--exclude", "cache/"];
    let summary = site.push(&options, site.contents(), "").done().summary();
    // alone.c, lib/alone.c, old: f, deep/b, and deeper with 3; other/f; gone with 4; tree with 3
    assert_eq!(summary["removed"], 1 + 1 + 2 + 3 + 1 + 4 + 3);
    assert_eq!(names(&site.target()), ["alone.o", "build", "cache", "lib", "main.c", "old", "other"]);
    assert_eq!(names(&site.target().join("lib")), ["a.c", "alone.o", "cache"]);
    assert_eq!(names(&site.target().join("cache")), ["y"]);
    assert_eq!(names(&site.target().join("lib/cache")), ["y"]);
    assert_eq!(names(&site.target().join("old")), ["deep"]);
    assert_eq!(names(&site.target().join("old/deep")), ["a.o"]);
    assert_eq!(names(&site.target().join("other")), ["cache", "link.o"]);
    let again = site.push(&options, site.contents(), "").done().summary();
    assert_eq!(again["removed"], 0);
    // seven things are left out, and old, old/deep, other and other/cache hold some of them
    assert_eq!(delete(site), 7 + 4);
    assert_same(&site.source(), &site.target());
}

fn what_sizes_leave_out_is_at_the_source(site: &Site) {
    for (name, bytes) in [("small", 10), ("large", 3_000), ("d/large", 3_000), ("d/tiny", 1)] {
        paint(site.source().join(name), bytes);
    }
    for name in ["small", "large", "d/large", "d/tiny", "alone", "tree/large"] {
        paint(site.target().join(name), 4_000);
    }
    let options = ["--json", "--delete", "--min-size", "5", "--max-size", "1KiB"];
    let summary = site.push(&options, site.contents(), "").done().summary();
    assert_eq!((&summary["removed"], &summary["left_out"]), (&3.into(), &3.into()));
    assert_eq!(names(&site.target()), ["d", "large", "small"]);
    assert_eq!(names(&site.target().join("d")), ["large", "tiny"]);
    assert_eq!(site.target().join("large").metadata().unwrap().len(), 4_000);
    assert_eq!(site.target().join("small").metadata().unwrap().len(), 10);
}

fn a_preview_spares_what_is_left_out(site: &Site) {
    grow_beside_rules(&site.source(), &site.target());
    let before = snapshot(&site.target());
    let options = ["-n", "--delete", "--exclude", "*.o", "--exclude", "cache/"];
    let outcome = site.push(&options, site.contents(), "").done();
    assert_eq!(snapshot(&site.target()), before);
    let mut lines: Vec<_> = outcome.stdout.lines().filter(|line| line.starts_with("- ")).collect();
    lines.sort_unstable();
    let expected = [
        "- alone.c",
        "- gone/",
        "- lib/alone.c",
        "- old/deep/b",
        "- old/deeper/",
        "- old/f",
        "- other/f",
        "- tree/",
    ];
    assert_eq!(lines, expected);
    assert!(outcome.stdout.contains(", 8 to remove; "), "{}", outcome.stdout);
}

fn rsync_spares_the_same(site: &Site) {
    // the first rule that matches decides for rsync, the last one here
    let rules: [&[&str]; 6] = [
        &["--exclude=*.o"],
        &["--exclude=cache/"],
        &["--exclude=cache"],
        &["--exclude=/build", "--exclude=*.o"],
        &["--exclude=*.o", "--include=alone.o"],
        &["--exclude=*", "--include=*.c", "--include=*/"],
    ];
    for (number, options) in rules.into_iter().enumerate() {
        let base = site.path(&number.to_string());
        let (source, other, ours) = (base.join("source"), base.join("other"), site.target());
        std::fs::remove_dir_all(&ours).unwrap();
        grow_beside_rules(&source, &other);
        grow_beside_rules(&site.path("unused"), &ours);
        std::fs::remove_dir_all(site.path("unused")).unwrap();
        let theirs: Vec<_> = [&["--delete"], options].concat();
        let reversed: Vec<_> = theirs.iter().copied().take(1).chain(options.iter().rev().copied()).collect();
        if !rsync(&reversed, &source, &other) {
            return;
        }
        site.push(&theirs, source.join(""), "").done();
        let paths = |root: &Path| picture(root).into_keys().collect::<Vec<_>>();
        assert_eq!(paths(&ours), paths(&other), "{options:?}");
    }
}

#[test]
fn a_list_is_no_mirror() {
    let site = Site::local();
    paint(site.source().join("f"), 3);
    paint(site.target().join("alone"), 3);
    std::fs::write(site.path("list"), "f\n").unwrap();
    let outcome = site.push(&["--delete", "--files-from", "list"], site.source(), "").expect(1);
    outcome.says(&["--delete cannot be used with --files-from"]).lines(1);
    assert_eq!(names(&site.target()), ["alone"]);
}

/// A directory that is left out is not looked into on the second walk either.
#[test]
fn what_is_left_out_need_not_be_readable() {
    let Some(site) = Site::unprivileged() else { return };
    grow(&site);
    paint(site.source().join("closed/f"), 3);
    paint(site.target().join("closed/g"), 3);
    paint(site.target().join("alone"), 3);
    site.give_away();
    set_mode(site.source().join("closed"), 0);
    let summary =
        site.push(&["--json", "--delete", "--exclude", "closed"], site.contents(), "").done().summary();
    assert_eq!(summary["removed"], 1);
    assert_eq!(names(&site.target().join("closed")), ["g"]);
    set_mode(site.source().join("closed"), 0o755);
}

/// What cannot be listed removes nothing anywhere; with `--ignore-errors` it protects only itself.
fn an_unreadable_source_directory(site: &Site) {
    grow(site);
    paint(site.source().join("closed/kept"), 10);
    site.give_away();
    site.push_contents();
    for name in ["alone", "closed/alone", "d/alone"] {
        paint(site.target().join(name), 10);
    }
    site.give_away();
    set_mode(site.source().join("closed"), 0);
    let outcome = site.push(&["--delete"], site.contents(), "").expect(23);
    outcome
        .says(&["sender: open directory", "closed'"])
        .says(&["nothing was removed at the target", "1 errors", "--ignore-errors"])
        .lines(2);
    for name in ["alone", "closed/alone", "d/alone", "closed/kept"] {
        assert!(site.target().join(name).exists(), "{name}");
    }
    // it has its mode now, and nobody could look into it
    set_mode(site.target().join("closed"), 0o755);
    let outcome = site.push(&["--delete", "--ignore-errors"], site.contents(), "").expect(23);
    outcome.says(&["sender: open directory", "closed'"]).lines(1);
    let there =
        ["alone", "closed/alone", "d/alone", "closed/kept"].map(|name| site.target().join(name).exists());
    assert_eq!(there, [false, true, false, true]);
    for place in [site.source(), site.target()] {
        set_mode(place.join("closed"), 0o755);
    }
}

#[test]
fn an_unreadable_source_directory_removes_nothing_locally() {
    if let Some(site) = Site::unprivileged() {
        an_unreadable_source_directory(&site);
    }
}

#[test]
fn an_unreadable_source_directory_removes_nothing_at_a_daemon() {
    if let Some(mut site) = Site::unprivileged() {
        site.start_daemon();
        an_unreadable_source_directory(&site);
    }
}

fn read_only_directories(site: &Site) {
    grow(site);
    paint(site.target().join("d/alone"), 10);
    paint(site.target().join("tree/a/alone"), 10);
    for (place, mode) in [("d", 0o555), ("tree/a", 0o000), ("tree", 0o555)] {
        set_mode(site.target().join(place), mode);
    }
    set_mode(site.source().join("d"), 0o555);
    site.give_away();
    assert_eq!(delete(site), 4);
    assert_same(&site.source(), &site.target());
    paint(site.target().join("d/e/alone"), 3);
    site.give_away();
    assert_eq!(delete(site), 1);
    assert_same(&site.source(), &site.target());
    for place in [site.source(), site.target()] {
        set_mode(place.join("d"), 0o755);
    }
}

#[test]
fn read_only_directories_lose_what_is_alone_locally() {
    if let Some(site) = Site::unprivileged() {
        read_only_directories(&site);
    }
}

#[test]
fn read_only_directories_lose_what_is_alone_at_a_daemon() {
    if let Some(mut site) = Site::unprivileged() {
        site.start_daemon();
        read_only_directories(&site);
    }
}

#[test]
fn a_source_within_its_own_mirror_is_refused() {
    let site = Site::local();
    paint(site.path("data/new/f"), 10);
    let before = picture(&site.path("data"));
    let outcome = site.zmove(&["push", "--delete", "data/new/", "data"]).outcome().expect(1);
    outcome.says(&["the source 'data/new/' lies in", "--delete would remove it"]).lines(1);
    assert_pictures(&before, &picture(&site.path("data")));
    site.zmove(&["push", "--delete", "data/new", "data"]).outcome().done();
}
