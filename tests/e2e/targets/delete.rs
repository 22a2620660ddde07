//! `--delete`: the target becomes a mirror of the pushed entries, except for entries that could not be read.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use zmove_sender::{RemovalGuard, Removals};

use crate::commands::dry_run::snapshot;
use crate::support::harness::{Site, both_ways};
use crate::support::inprocess::InProcess;
use crate::support::namespace::Namespace;
use crate::support::rsync::rsync;
use crate::support::tree::{
    assert_pictures, assert_same, names, paint, picture, set_mode, set_own_mtime,
};

both_ways!(
    entries_only_at_the_target_are_removed,
    links_are_removed_and_their_targets_stay,
    only_pushed_directories_are_mirrored,
    several_sources_are_mirrored_together,
    a_file_alone_removes_nothing,
    a_source_that_is_missing_removes_nothing,
    hidden_entries_of_running_transfers_stay,
    an_empty_source_empties_its_mirror_only_where_that_is_allowed,
    a_file_that_a_rule_keeps_from_its_name_removes_nothing,
    a_renamed_file_that_cannot_be_stored_keeps_its_old_name,
    names_of_any_bytes_are_removed,
    an_entry_with_a_reserved_name_is_reported,
    a_preview_lists_and_removes_nothing,
    many_names_are_removed_and_many_stay,
    rsync_removes_the_same,
    excluded_entries_stay,
    files_excluded_by_size_stay_if_they_are_at_the_source,
    a_preview_spares_excluded_entries,
    rsync_spares_the_same,
    no_more_entries_are_removed_than_allowed,
    spared_entries_do_not_count,
);

fn delete(site: &Site) -> u64 {
    site.push(&["--json", "--delete"], site.contents(), "")
        .done()
        .summary()["removed"]
        .as_u64()
        .unwrap()
}

fn grow(site: &Site) {
    for name in ["kept", "d/kept", "d/e/kept", "changed"] {
        paint(site.source().join(name), 10);
    }
    std::fs::create_dir(site.source().join("empty")).unwrap();
    paint(site.target().join("changed"), 20);
    paint(site.target().join("d/kept"), 10);
}

/// A user's file in a directory that is to be removed.
fn an_entry_with_a_reserved_name_is_reported(site: &Site) {
    grow(site);
    paint(site.target().join("alone/d/.zmove-mine"), 10);
    paint(site.target().join("alone/d/f"), 10);
    let outcome = site.push(&["--delete"], site.contents(), "").expect(23);
    let cause = "names that begin with .zmove- may belong to a running transfer";
    outcome
        .says(&["zmove: receiver: remove", "alone/d/.zmove-mine'", cause])
        .lines(1);
    assert_eq!(names(&site.target().join("alone/d")), [".zmove-mine"]);
    std::fs::remove_file(site.target().join("alone/d/.zmove-mine")).unwrap();
    assert_eq!(delete(site), 2);
}

fn entries_only_at_the_target_are_removed(site: &Site) {
    grow(site);
    for name in [
        "alone",
        "d/alone",
        "d/e/alone",
        "tree/a/b/c",
        "tree/x",
        "d/tree/y",
        "empty/z",
    ] {
        paint(site.target().join(name), 10);
    }
    symlink("nowhere", site.target().join("d/link")).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(site.target().join("fifo"))
            .status()
            .unwrap()
            .success()
    );
    set_mode(site.target().join("tree/a"), 0o555);
    // The named files, the link, the FIFO, and the directories `tree`, `tree/a`, `tree/a/b` and `d/tree`.
    assert_eq!(delete(site), 7 + 2 + 4);
    assert_same(&site.source(), &site.target());
    assert_eq!(delete(site), 0);
    let text = site.push(&["--delete"], site.contents(), "").done().stdout;
    assert!(!text.contains("removed"), "{text}");
    paint(site.target().join("alone"), 3);
    let text = site.push(&["--delete"], site.contents(), "").done().stdout;
    assert!(text.contains("1 removed"), "{text}");
}

fn links_are_removed_and_their_targets_stay(site: &Site) {
    grow(site);
    let outside = site.path("outside");
    paint(outside.join("precious"), 10);
    paint(outside.join("d/precious"), 10);
    for place in ["link", "d/link", "tree/link"] {
        std::fs::create_dir_all(site.target().join(place).parent().unwrap()).unwrap();
        symlink(&outside, site.target().join(place)).unwrap();
    }
    // The source has a directory where the target has a link to a directory with more entries.
    symlink(outside.join("d"), site.target().join("empty")).unwrap();
    let before = snapshot(&outside);
    assert_eq!(delete(site), 4);
    assert_eq!(snapshot(&outside), before);
    assert_same(&site.source(), &site.target());
}

fn only_pushed_directories_are_mirrored(site: &Site) {
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
    site.push_command(&["--delete"], &sources, "")
        .outcome()
        .done();
    assert_eq!(names(&site.target()), ["c", "d", "one", "three"]);
    assert_eq!(names(&site.target().join("c")), ["four"]);
    assert_eq!(names(&site.target().join("d")), ["two"]);
    // The target root is mirrored only if the contents of a source are pushed into it.
    paint(site.target().join("alone"), 10);
    let sources = ["source/a/d", "source/c"].map(OsStr::new);
    site.push_command(&["--delete"], &sources, "")
        .outcome()
        .done();
    assert_eq!(names(&site.target()), ["alone", "c", "d", "one", "three"]);
}

fn a_file_alone_removes_nothing(site: &Site) {
    grow(site);
    paint(site.target().join("alone"), 10);
    site.push(&["--delete"], site.source().join("kept"), "")
        .done();
    site.push(&["--delete"], site.source().join("kept"), "d/")
        .done();
    assert_eq!(names(&site.target()), ["alone", "changed", "d", "kept"]);
}

fn a_source_that_is_missing_removes_nothing(site: &Site) {
    grow(site);
    paint(site.target().join("alone"), 10);
    let sources = ["source/", "gone"].map(OsStr::new);
    let outcome = site
        .push_command(&["--delete"], &sources, "")
        .outcome()
        .expect(23);
    outcome
        .says(&["open 'gone'"])
        .says(&["nothing was removed at the target", "--ignore-errors"])
        .lines(2);
    assert!(site.target().join("alone").exists());
    let outcome = site
        .push_command(&["--delete", "--ignore-errors"], &sources, "")
        .outcome()
        .expect(23);
    outcome.lines(1);
    assert_same(&site.source(), &site.target());
}

/// The source may be empty because its file system is not mounted.
fn an_empty_source_empties_its_mirror_only_where_that_is_allowed(site: &Site) {
    paint(site.target().join("f"), 10);
    paint(site.target().join("d/f"), 10);
    let refused = |options: &[&str]| {
        let options = [&["--delete"], options].concat();
        site.push(&options, site.contents(), "")
            .expect(23)
            .says(&["is empty and its mirror is not", "--allow-empty"]);
        assert!(site.target().join("f").is_file() && site.target().join("d/f").is_file());
    };
    refused(&[]);
    refused(&["-n"]);
    refused(&["--ignore-errors"]);
    std::fs::create_dir(site.path("full")).unwrap();
    paint(site.path("full/f"), 10);
    let sources = [site.path("full/"), site.contents().into()];
    let sources = [sources[0].as_os_str(), sources[1].as_os_str()];
    site.push_command(&["--delete"], &sources, "")
        .outcome()
        .expect(23)
        .says(&["is empty and its mirror is not"]);
    assert!(site.target().join("d/f").is_file());
    site.push(&["--delete", "--allow-empty"], site.contents(), "")
        .done();
    assert_same(&site.source(), &site.target());
    site.push(&["--delete"], site.contents(), "").done();
}

#[test]
fn an_empty_source_of_a_pull_empties_its_mirror_only_where_that_is_allowed() {
    let site = Site::reading(&[], &[]);
    paint(site.target().join("f"), 10);
    let source = site.source().join("");
    let sources = [source.to_str().unwrap()];
    site.pull(&["--delete"], &sources, "")
        .expect(23)
        .says(&["is empty and its mirror is not"]);
    assert!(site.target().join("f").is_file());
    site.pull(&["--delete", "--allow-empty"], &sources, "")
        .done();
    assert!(!site.target().join("f").exists());
}

fn hidden_entries_of_running_transfers_stay(site: &Site) {
    grow(site);
    paint(site.target().join("d/.zmove-0123-0"), 10);
    paint(site.target().join(".zmove-1.2.3-4-5-6-7-8-9/f"), 10);
    paint(site.target().join("tree/.zmove-0123-1"), 10);
    paint(site.target().join("tree/alone"), 10);
    let outcome = site.push(&["--delete"], site.contents(), "").expect(23);
    outcome
        .says(&["receiver: remove 'tree/.zmove-0123-1': names that begin with .zmove-"])
        .lines(1);
    assert!(site.target().join("d/.zmove-0123-0").exists());
    assert!(site.target().join(".zmove-1.2.3-4-5-6-7-8-9/f").exists());
    assert_eq!(names(&site.target().join("tree")), [".zmove-0123-1"]);
}

/// An exclude rule protects an entry in a directory whose name a file needs.
fn a_file_that_a_rule_keeps_from_its_name_removes_nothing(site: &Site) {
    grow(site);
    paint(site.target().join("kept/inner"), 10);
    paint(site.target().join("alone"), 10);
    let protect = ["--delete", "--exclude", "inner"];
    let outcome = site.push(&protect, site.contents(), "").expect(23);
    outcome
        .says(&["'kept'", "a directory of that name is in the way"])
        .says(&[
            "nothing was removed at the target: some entries could not be stored there",
            "--ignore-errors",
        ])
        .lines(2);
    assert!(site.target().join("alone").exists());
    let outcome = site
        .push(
            &[&protect[..], &["--ignore-errors"]].concat(),
            site.contents(),
            "",
        )
        .expect(23);
    outcome
        .says(&["'kept'", "a directory of that name is in the way"])
        .lines(1);
    assert!(site.target().join("kept/inner").exists() && !site.target().join("alone").exists());
}

/// A large file fails when it is renamed into place, after all of its groups have been settled.
fn a_renamed_file_that_cannot_be_stored_keeps_its_old_name(site: &Site) {
    let bytes = zmove_types::GROUP_BYTES + 5;
    paint(site.target().join("old name"), bytes);
    paint(site.source().join("new"), bytes);
    paint(site.target().join("new/in the way"), 10);
    let protect = ["--delete", "--exclude", "in the way"];
    site.push(&protect, site.contents(), "")
        .expect(23)
        .says(&["nothing was removed"])
        .lines(2);
    assert_eq!(names(&site.target()), ["new", "old name"]);
}

fn names_of_any_bytes_are_removed(site: &Site) {
    grow(site);
    for name in [
        &b"line\nbreak"[..],
        b"caf\xe9",
        b"\xff\xfe",
        b"-rf",
        b"a b",
        b"...",
    ] {
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
    assert!(
        summary.starts_with("dry run: 0 to add, 0 to change, 5 to remove; "),
        "{summary}"
    );
    let told = site
        .push(&["-n", "--delete", "--json"], site.contents(), "")
        .done();
    assert_eq!(told.summary()["removed"], 5);
    let sources = ["source/", "gone"].map(OsStr::new);
    let outcome = site
        .push_command(&["-n", "--delete"], &sources, "")
        .outcome()
        .expect(23);
    assert!(
        !outcome.stdout.lines().any(|line| line.starts_with("- ")),
        "{}",
        outcome.stdout
    );
    outcome.says(&["nothing was removed"]);
    assert_eq!(delete(site), 5);
}

/// The removals and the retained entries need more than one message each.
fn many_names_are_removed_and_many_stay(site: &Site) {
    let touch = |path: &Path| drop(std::fs::File::create(path).unwrap());
    for directory in ["big", "other"] {
        std::fs::create_dir(site.source().join(directory)).unwrap();
        std::fs::create_dir(site.target().join(directory)).unwrap();
    }
    let stays = |number: &u64| number.is_multiple_of(3);
    for number in (0..15_000).filter(stays) {
        let name = format!("big/{number:06}");
        touch(&site.source().join(&name));
        touch(&site.target().join(&name));
    }
    // Links are created and removed faster than files.
    touch(&site.path("seed"));
    for number in (0..15_000).filter(|number| !stays(number)) {
        let name = site.target().join(format!("big/{number:06}"));
        std::fs::hard_link(site.path("seed"), name).unwrap();
    }
    (0..100).for_each(|number| {
        std::fs::create_dir(site.source().join(format!("other/{number}"))).unwrap();
        paint(site.target().join(format!("other/{number}/alone")), 1);
    });
    assert_eq!(delete(site), 10_000 + 100);
    assert_eq!(
        names(&site.source().join("big")),
        names(&site.target().join("big"))
    );
    assert_eq!(delete(site), 0);
}

fn rsync_removes_the_same(site: &Site) {
    let other = site.path("other");
    grow(site);
    for target in [&other, &site.target()] {
        for name in [
            "alone",
            "tree/a/b",
            "d/alone",
            "changed",
            "d/e",
            "empty/z/y",
        ] {
            paint(target.join(name), 20);
        }
        symlink("/", target.join("link")).unwrap();
    }
    for name in [
        "kept", "d/kept", "d/e/kept", "changed", "d/e", "d", "empty", "",
    ] {
        set_own_mtime(&site.source().join(name), 1_000, 0);
    }
    if rsync(&["--delete"], &site.source(), &other) {
        site.push(&["--delete"], site.contents(), "").done();
        assert_pictures(&picture(&other), &picture(&site.target()));
    }
}

/// Entries at both ends and entries only at the target. Rules exclude some of them.
fn grow_beside_rules(source: &Path, target: &Path) {
    for name in [
        "main.c",
        "main.o",
        "lib/a.c",
        "lib/a.o",
        "cache/x",
        "lib/cache/x",
        "build",
    ] {
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

fn excluded_entries_stay(site: &Site) {
    grow_beside_rules(&site.source(), &site.target());
    let options = [
        "--json",
        "--delete",
        "--exclude",
        "*.o",
        "--exclude",
        "cache/",
    ];
    let summary = site.push(&options, site.contents(), "").done().summary();
    // Removed entries: alone.c, lib/alone.c, old/f and old/deep/b, old/deeper (3), other/f, gone (4), and tree (3).
    assert_eq!(summary["removed"], 1 + 1 + 2 + 3 + 1 + 4 + 3);
    assert_eq!(
        names(&site.target()),
        ["alone.o", "build", "cache", "lib", "main.c", "old", "other"]
    );
    assert_eq!(
        names(&site.target().join("lib")),
        ["a.c", "alone.o", "cache"]
    );
    assert_eq!(names(&site.target().join("cache")), ["y"]);
    assert_eq!(names(&site.target().join("lib/cache")), ["y"]);
    assert_eq!(names(&site.target().join("old")), ["deep"]);
    assert_eq!(names(&site.target().join("old/deep")), ["a.o"]);
    assert_eq!(names(&site.target().join("other")), ["cache", "link.o"]);
    let again = site.push(&options, site.contents(), "").done().summary();
    assert_eq!(again["removed"], 0);
    // Seven entries are excluded. The directories old, old/deep, other and other/cache hold some of them.
    assert_eq!(delete(site), 7 + 4);
    assert_same(&site.source(), &site.target());
}

fn files_excluded_by_size_stay_if_they_are_at_the_source(site: &Site) {
    for (name, bytes) in [
        ("small", 10),
        ("large", 3_000),
        ("d/large", 3_000),
        ("d/tiny", 1),
    ] {
        paint(site.source().join(name), bytes);
    }
    for name in ["small", "large", "d/large", "d/tiny", "alone", "tree/large"] {
        paint(site.target().join(name), 4_000);
    }
    let options = [
        "--json",
        "--delete",
        "--min-size",
        "5",
        "--max-size",
        "1KiB",
    ];
    let summary = site.push(&options, site.contents(), "").done().summary();
    assert_eq!(
        (&summary["removed"], &summary["left_out"]),
        (&3.into(), &3.into())
    );
    assert_eq!(names(&site.target()), ["d", "large", "small"]);
    assert_eq!(names(&site.target().join("d")), ["large", "tiny"]);
    assert_eq!(site.target().join("large").metadata().unwrap().len(), 4_000);
    assert_eq!(site.target().join("small").metadata().unwrap().len(), 10);
}

fn a_preview_spares_excluded_entries(site: &Site) {
    grow_beside_rules(&site.source(), &site.target());
    let before = snapshot(&site.target());
    let options = ["-n", "--delete", "--exclude", "*.o", "--exclude", "cache/"];
    let outcome = site.push(&options, site.contents(), "").done();
    assert_eq!(snapshot(&site.target()), before);
    let mut lines: Vec<_> = outcome
        .stdout
        .lines()
        .filter(|line| line.starts_with("- "))
        .collect();
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
    assert!(
        outcome.stdout.contains(", 15 to remove; "),
        "{}",
        outcome.stdout
    );
}

fn rsync_spares_the_same(site: &Site) {
    // rsync uses the first matching rule. zmove uses the last one.
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
        let reversed: Vec<_> = theirs
            .iter()
            .copied()
            .take(1)
            .chain(options.iter().rev().copied())
            .collect();
        if !rsync(&reversed, &source, &other) {
            return;
        }
        site.push(&theirs, source.join(""), "").done();
        let paths = |root: &Path| picture(root).into_keys().collect::<Vec<_>>();
        assert_eq!(paths(&ours), paths(&other), "{options:?}");
    }
}

/// Six files and directories that exist only at the target.
fn grow_alone(site: &Site) {
    for name in ["alone", "tree/a/b", "tree/a/c", "d/alone"] {
        paint(site.target().join(name), 10);
    }
}

fn no_more_entries_are_removed_than_allowed(site: &Site) {
    grow(site);
    site.push_contents();
    let kept = picture(&site.target()).len();
    for most in 0..8_usize {
        grow_alone(site);
        let (code, word) = (if most < 6 { 25 } else { 0 }, most.to_string());
        let options = ["--json", "--delete", "--max-delete", &word];
        let preview = site
            .push(&[&["-n"], &options[1..]].concat(), site.contents(), "")
            .expect(code);
        let outcome = site.push(&options, site.contents(), "").expect(code);
        let summary = outcome.summary();
        assert_eq!(summary["removed"], most.min(6));
        assert_eq!(summary["max_delete_kept"], 6_usize.saturating_sub(most));
        let left = picture(&site.target());
        assert_eq!(left.len(), kept + 6_usize.saturating_sub(most));
        for line in preview
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix("- "))
        {
            assert!(
                !site.target().join(line.trim_end_matches('/')).exists(),
                "{line}"
            );
        }
        if code == 25 {
            let more = format!(": {} more entr", 6 - most);
            outcome
                .says(&["--max-delete stopped the removal at the target", &more])
                .lines(1);
            preview
                .says(&["--max-delete stopped the removal at the target", &more])
                .lines(1);
        }
        assert_eq!(delete(site), 6_u64.saturating_sub(most as u64));
    }
    let unread = site
        .push_command(&["--max-delete", "3"], &["source/".as_ref()], "")
        .outcome();
    unread.expect(1).says(&["--delete"]);
}

fn spared_entries_do_not_count(site: &Site) {
    grow(site);
    grow_alone(site);
    let options = ["--json", "--delete", "--exclude", "b", "--max-delete", "3"];
    // `b` and its parent directories stay. `c`, `alone` and `d/alone` are removed.
    let summary = site.push(&options, site.contents(), "").done().summary();
    assert_eq!(
        (&summary["removed"], &summary["max_delete_kept"]),
        (&3.into(), &0.into())
    );
    assert_eq!(names(&site.target().join("tree/a")), ["b"]);
}

#[test]
fn a_list_cannot_be_mirrored() {
    let site = Site::local();
    paint(site.source().join("f"), 3);
    paint(site.target().join("alone"), 3);
    std::fs::write(site.path("list"), "f\n").unwrap();
    let outcome = site
        .push(&["--delete", "--files-from", "list"], site.source(), "")
        .expect(1);
    outcome
        .says(&["--delete cannot be used with --files-from"])
        .lines(1);
    assert_eq!(names(&site.target()), ["alone"]);
}

/// The second walk does not read an excluded directory either.
#[test]
fn an_excluded_directory_need_not_be_readable() {
    let Some(site) = Site::unprivileged() else {
        return;
    };
    grow(&site);
    paint(site.source().join("closed/f"), 3);
    paint(site.target().join("closed/g"), 3);
    paint(site.target().join("alone"), 3);
    site.give_away();
    set_mode(site.source().join("closed"), 0);
    let summary = site
        .push(
            &["--json", "--delete", "--exclude", "closed"],
            site.contents(),
            "",
        )
        .done()
        .summary();
    assert_eq!(summary["removed"], 1);
    assert_eq!(names(&site.target().join("closed")), ["g"]);
    set_mode(site.source().join("closed"), 0o755);
}

/// A directory that cannot be listed prevents all removals. With `--ignore-errors` it protects only its own entries.
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
        .says(&[
            "nothing was removed at the target",
            "(1 error)",
            "--ignore-errors",
        ])
        .lines(3);
    for name in ["alone", "closed/alone", "d/alone", "closed/kept"] {
        assert!(site.target().join(name).exists(), "{name}");
    }
    // The directory at the target now has the mode of the source, so this test could not list it.
    set_mode(site.target().join("closed"), 0o755);
    let outcome = site
        .push(&["--delete", "--ignore-errors"], site.contents(), "")
        .expect(23);
    outcome
        .says(&["sender: open directory", "closed'"])
        .lines(2);
    let there = ["alone", "closed/alone", "d/alone", "closed/kept"]
        .map(|name| site.target().join(name).exists());
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

/// If a renamed file cannot be read under its new name, the target holds its only copy under the old name.
fn an_unreadable_source_file(site: &Site) {
    paint(site.source().join("old"), 10);
    paint(
        site.source().join("old large"),
        zmove_types::GROUP_BYTES + 1,
    );
    site.give_away();
    site.push_contents();
    for name in ["", " large"] {
        let new = site.source().join(format!("new{name}"));
        std::fs::rename(site.source().join(format!("old{name}")), &new).unwrap();
        set_mode(&new, 0);
        for options in [&["--delete"][..], &["--delete", "-n"]] {
            let outcome = site.push(options, site.contents(), "").expect(23);
            let removes = outcome.stdout.lines().any(|line| line.starts_with("- "));
            assert!(!removes, "{}", outcome.stdout);
            outcome
                .says(&["sender: open", &format!("new{name}'"), "Permission denied"])
                .says(&[
                    "nothing was removed at the target",
                    "(1 error)",
                    "--ignore-errors",
                ])
                .lines(3);
        }
        assert_eq!(names(&site.target()), ["old", "old large"]);
        set_mode(&new, 0o600);
        std::fs::rename(&new, site.source().join(format!("old{name}"))).unwrap();
    }
    std::fs::rename(site.source().join("old"), site.source().join("new")).unwrap();
    set_mode(site.source().join("new"), 0);
    site.push(&["--delete", "--ignore-errors"], site.contents(), "")
        .expect(23)
        .lines(2);
    assert_eq!(names(&site.target()), ["old large"]);
}

#[test]
fn an_unreadable_source_file_removes_nothing_locally() {
    if let Some(site) = Site::unprivileged() {
        an_unreadable_source_file(&site);
    }
}

#[test]
fn an_unreadable_source_file_removes_nothing_at_a_daemon() {
    if let Some(mut site) = Site::unprivileged() {
        site.start_daemon();
        an_unreadable_source_file(&site);
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
fn entries_in_read_only_directories_are_removed_locally() {
    if let Some(site) = Site::unprivileged() {
        read_only_directories(&site);
    }
}

#[test]
fn entries_in_read_only_directories_are_removed_at_a_daemon() {
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
    let outcome = site
        .zmove(&["push", "--delete", "data/new/", "data"])
        .outcome()
        .expect(1);
    outcome
        .says(&["the source 'data/new/' lies in", "--delete would remove it"])
        .lines(1);
    assert_pictures(&before, &picture(&site.path("data")));
    site.zmove(&["push", "--delete", "data/new", "data"])
        .outcome()
        .done();
}

/// A directory that is mounted at two paths has the same device and inode at both.
fn bound(grow: impl Fn(&Path), pairs: &[(&str, &str)]) -> Option<Site> {
    Site::within(|target| {
        let home = target.parent().unwrap();
        grow(home);
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(from, to)| (home.join(from), home.join(to)))
            .collect();
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(from, to)| (from.as_path(), to.as_path()))
            .collect();
        Namespace::with_binds(&pairs)
    })
}

fn grow_pair(home: &Path) {
    for name in [
        "source/a/small",
        "source/x/f",
        "source/y/g",
        "target/x/kept",
    ] {
        paint(home.join(name), 10);
    }
    paint(home.join("source/a/large"), 20_000);
}

#[test]
fn a_bind_mount_of_what_the_source_lies_in_is_no_mirror_of_it() {
    let Some(site) = bound(grow_pair, &[("source", "target")]) else {
        return;
    };
    let before = snapshot(&site.source());
    for options in [
        &["--delete", "--max-size", "10KB"][..],
        &["--delete"],
        &["--delete", "-n"],
        &["--delete", "-x"],
    ] {
        let outcome = site.push(options, site.source().join("a/"), "").expect(1);
        outcome
            .says(&["the source '", "a/' lies in", "--delete would remove it"])
            .lines(1);
        assert_eq!(snapshot(&site.source()), before);
    }
    // The source and the target are the same directory under two names.
    site.push(&["--delete"], site.source().join("a"), "").done();
    // Without `--delete` a tree may be copied next to itself.
    site.push(&[], site.source().join("a/"), "").done();
}

#[test]
fn a_bind_mount_of_part_of_the_source_lies_inside_it() {
    let Some(site) = bound(grow_pair, &[("source/x", "target")]) else {
        return;
    };
    let before = snapshot(&site.source());
    for path in ["", "new", "new/deep"] {
        site.push(&[], site.contents(), path)
            .expect(1)
            .says(&["the target lies inside the source"])
            .lines(1);
    }
    assert_eq!(snapshot(&site.source()), before);
}

#[test]
fn a_part_of_the_source_that_is_mounted_below_the_target_is_not_written_to() {
    let Some(site) = bound(grow_pair, &[("source/y", "target/x")]) else {
        return;
    };
    let before = snapshot(&site.source());
    let outcome = site.push(&[], site.contents(), "").expect(1);
    outcome
        .says(&["target/x' is part of the source", "mounted there"])
        .lines(1);
    std::fs::remove_dir_all(site.source().join("x")).unwrap();
    let before_removal = snapshot(&site.source());
    assert!(before_removal.len() < before.len());
    let outcome = site.push(&["--delete"], site.contents(), "").expect(1);
    outcome
        .says(&["the source '", "--delete would remove it"])
        .lines(1);
    assert_eq!(snapshot(&site.source()), before_removal);
}

/// Tests another file system, and a bind mount of the same file system.
#[test]
fn mounts_only_at_the_target_stay_and_are_reported() {
    let grow = |home: &Path| {
        paint(home.join("source/kept"), 10);
        paint(home.join("elsewhere/precious"), 10);
        for name in ["old/mounted", "old/bound", "old/plain"] {
            std::fs::create_dir_all(home.join("target").join(name)).unwrap();
        }
    };
    let Some(mut site) = bound(grow, &[("elsewhere", "target/old/bound")]) else {
        return;
    };
    let mounted = site.path("target/old/mounted");
    let words = ["mount", "-t", "tmpfs", "none"].map(OsStr::new);
    assert!(
        site.namespace()
            .run(&[&words[..], &[mounted.as_os_str()]].concat())
    );
    paint(site.target().join("old/mounted/precious"), 10);
    let before = snapshot(&site.path("elsewhere"));
    let stays = |site: &Site, options: &[&str]| {
        let outcome = site.push(options, site.contents(), "").expect(23);
        outcome
            .says(&["receiver: remove 'old/bound': a file system is mounted there"])
            .says(&["receiver: remove 'old/mounted': a file system is mounted there"])
            .lines(2);
        assert_eq!(snapshot(&site.path("elsewhere")), before);
        assert!(site.target().join("old/mounted/precious").exists());
        assert_eq!(names(&site.target()), ["kept", "old"]);
    };
    stays(&site, &["--delete"]);
    site.start_daemon();
    stays(&site, &["-x", "--delete"]);
}

#[test]
fn a_directory_mounted_at_both_ends_is_equal() {
    let Some(site) = bound(grow_pair, &[("source/x", "target/x")]) else {
        return;
    };
    site.push(&["--delete"], site.contents(), "").done();
    assert_same(&site.source(), &site.target());
}

/// A guard that refuses after all data has been sent.
#[derive(Debug)]
struct Objects;

impl RemovalGuard for Objects {
    fn objection(&self) -> Option<String> {
        Some("it is the source".to_owned())
    }
}

#[test]
fn an_objection_during_the_push_prevents_all_removals() {
    let site = Site::local();
    grow(&site);
    paint(site.target().join("alone"), 10);
    let mirror = Some(Removals {
        guard: Some(Arc::new(Objects)),
        ..Removals::default()
    });
    let pushed = InProcess {
        mirror,
        ..InProcess::default()
    }
    .push(&site.source(), &site.target());
    assert_eq!(
        pushed.failed(),
        ["sender: nothing is removed at the target: it is the source"]
    );
    pushed.assert_removed_and_failed(0, 1);
    assert!(site.target().join("alone").exists() && site.target().join("kept").exists());
}
