//! Directories at the target that have the name of a file or link. An empty directory is replaced. A non-empty one is
//! replaced only with `--delete` or `--force`, unless an entry in it must stay.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;

use rustix::fs::{CWD, FileType, Mode};
use zmove_types::GROUP_BYTES;

use crate::support::harness::{Site, both_ways};
use crate::support::namespace::Namespace;
use crate::support::tree::{assert_same, names, paint, picture};

both_ways!(
    empty_directories_are_replaced,
    full_directories_are_replaced_on_request,
    a_preview_reports_replacements,
    entries_that_a_rule_protects_stay,
    hidden_entries_of_transfers_stay,
    no_more_is_replaced_than_may_be_removed,
    ignore_existing_replaces_no_directory,
);

const NAMES: [&str; 5] = ["small", "large", "link", "pipe", "tied"];

/// Creates a file of each kind, and a directory with its name at the target.
fn grow(site: &Site, is_filled: bool) {
    paint(site.source().join("d/small"), 10);
    paint(site.source().join("d/large"), 2 * GROUP_BYTES + 5);
    symlink("elsewhere", site.source().join("d/link")).unwrap();
    let pipe = site.source().join("d/pipe");
    rustix::fs::mknodat(CWD, pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    std::fs::hard_link(site.source().join("d/small"), site.source().join("d/tied")).unwrap();
    for name in NAMES {
        let directory = site.target().join("d").join(name);
        std::fs::create_dir_all(&directory).unwrap();
        if is_filled {
            paint(directory.join("a/b/old"), 3);
            symlink("/", directory.join("a/out")).unwrap();
        }
    }
}

fn empty_directories_are_replaced(site: &Site) {
    grow(site, false);
    let summary = site.push(&["-aH", "--json"], site.contents(), "").done();
    assert_same(&site.source(), &site.target());
    assert_eq!(summary.summary()["replaced_below"], NAMES.len());
}

fn full_directories_are_replaced_on_request(site: &Site) {
    for option in ["--force", "--delete"] {
        grow_again(site);
        let summary = site.push(&["-aH", "--json", option], site.contents(), "");
        let summary = summary.done().summary();
        assert_same(&site.source(), &site.target());
        // The directory and four entries in it.
        assert_eq!(summary["replaced_below"], 5 * NAMES.len(), "{option}");
        assert_eq!(summary["removed"], 0, "{option}");
    }
}

#[test]
fn a_pull_replaces_directories_too() {
    let site = Site::reading(&[], &[]);
    for (options, is_filled) in [
        (&[][..], false),
        (&["--force"], true),
        (&["--delete"], true),
    ] {
        grow_again(&site);
        if !is_filled {
            std::fs::remove_dir_all(site.target().join("d")).unwrap();
            for name in NAMES {
                std::fs::create_dir_all(site.target().join("d").join(name)).unwrap();
            }
        }
        let options = [&["-aH", "--json"], options].concat();
        let summary = site.pull(&options, &[""], "").done().summary();
        assert_same(&site.source(), &site.target());
        let entries_of_each = if is_filled { 5 } else { 1 };
        assert_eq!(
            summary["replaced_below"],
            entries_of_each * NAMES.len(),
            "{options:?}"
        );
        assert_eq!(summary["removed"], 0, "{options:?}");
    }
}

/// Removes the trees and creates them again.
fn grow_again(site: &Site) {
    for place in [site.source(), site.target()] {
        let d = place.join("d");
        if d.exists() {
            std::fs::remove_dir_all(d).unwrap();
        }
    }
    grow(site, true);
}

fn a_preview_reports_replacements(site: &Site) {
    grow(site, true);
    let before = picture(&site.target());
    let told = site.push(&["-naH"], site.contents(), "").expect(23);
    assert_eq!(
        told.stderr
            .matches("a directory of that name is in the way")
            .count(),
        NAMES.len(),
        "{}",
        told.stderr
    );
    let told = site.push(&["-naH", "--force"], site.contents(), "").done();
    for name in NAMES {
        let line = format!("~ d/{name}");
        assert!(told.stdout.contains(&line), "{line}: {}", told.stdout);
    }
    assert!(picture(&site.target()) == before);
}

fn entries_that_a_rule_protects_stay(site: &Site) {
    grow(site, true);
    let before = picture(&site.target().join("d/small"));
    for rule in ["old", "/d/*/a/", "small/"] {
        for option in ["--force", "--delete"] {
            let options = [option, "--exclude", rule, "--exclude", "/d/[!s]*"];
            let outcome = site.push(&options, site.contents(), "").expect(23);
            let outcome = outcome.says(&[
                "zmove: receiver: make room for 'd/small': a directory of that name is in the way",
                "contains entries that the selection leaves out",
            ]);
            outcome.lines(if option == "--delete" { 2 } else { 1 });
            assert!(picture(&site.target().join("d/small")) == before, "{rule}");
        }
    }
}

fn hidden_entries_of_transfers_stay(site: &Site) {
    paint(site.source().join("f"), 10);
    paint(site.target().join("f/a/.zmove-0123-0"), 10);
    let outcome = site.push(&["--force"], site.contents(), "").expect(23);
    outcome
        .says(&["zmove: receiver: make room for 'f'", ".zmove-"])
        .lines(1);
    assert_eq!(names(&site.target().join("f/a")), [".zmove-0123-0"]);
}

fn no_more_is_replaced_than_may_be_removed(site: &Site) {
    paint(site.source().join("f"), 10);
    paint(site.target().join("f/a/old"), 10);
    for most in ["0", "2"] {
        let options = ["--delete", "--max-delete", most];
        let outcome = site.push(&options, site.contents(), "").expect(23);
        outcome.says(&["zmove: receiver: make room for 'f'", "--max-delete"]);
        assert_eq!(names(&site.target().join("f/a")), ["old"], "{most}");
    }
    let options = ["--delete", "--max-delete", "3"];
    site.push(&options, site.contents(), "").done();
    assert_same(&site.source(), &site.target());
}

fn ignore_existing_replaces_no_directory(site: &Site) {
    paint(site.source().join("f"), 10);
    paint(site.target().join("f/old"), 10);
    let options = ["--force", "--ignore-existing"];
    site.push(&options, site.contents(), "").done();
    assert_eq!(names(&site.target().join("f")), ["old"]);
}

#[test]
fn mounted_directories_are_not_replaced() {
    let site = Site::within(|target| {
        std::fs::create_dir_all(target.join("f/a/mounted")).unwrap();
        std::fs::create_dir_all(target.join("g")).unwrap();
        Namespace::with_binds(&[
            (target, &target.join("f/a/mounted")),
            (target, &target.join("g")),
        ])
    });
    let Some(site) = site else { return };
    paint(site.source().join("f"), 10);
    paint(site.source().join("g"), 10);
    let outcome = site.push(&["--force"], site.contents(), "").expect(23);
    outcome
        .says(&["make room for 'f'", "a file system is mounted there"])
        .says(&["make room for 'g'", "a file system is mounted there"])
        .lines(2);
    let mounted = site.path("target").join("f/a/mounted/f");
    let words = [OsStr::new("test"), "-d".as_ref(), mounted.as_os_str()];
    assert!(site.namespace().run(&words));
}
