//! Btrfs subvolumes and snapshots, in a source and below a target.

use std::ffi::OsStr;

use crate::support::harness::{Site, has_program, skip};
use crate::support::tree::{assert_same, names, paint};
use crate::targets::full_disk::BTRFS;

/// A site whose target is a Btrfs file system. Returns `None` if this host cannot provide it.
fn site() -> Option<Site> {
    if !has_program("btrfs") {
        skip("btrfs is missing: nothing makes a subvolume");
        return None;
    }
    Site::within_image(&BTRFS)
}

/// Runs `btrfs` with these arguments and the paths of these names.
#[track_caller]
fn btrfs(site: &Site, words: &str, paths: &[&str]) {
    let paths: Vec<_> = paths.iter().map(|name| site.path(name)).collect();
    let words = ["btrfs"].into_iter().chain(words.split(' '));
    let words = words.map(OsStr::new);
    let command: Vec<_> = words
        .chain(paths.iter().map(|path| path.as_os_str()))
        .collect();
    assert!(site.namespace().run(&command), "{command:?}");
}

/// In a snapshot, an empty directory represents a nested subvolume. Its timestamps are always the current time.
#[test]
fn a_snapshot_of_nested_subvolumes_is_mirrored() {
    let Some(site) = site() else { return };
    btrfs(&site, "subvolume create", &["target/home"]);
    btrfs(&site, "subvolume create", &["target/home/nested"]);
    paint(site.target().join("home/file"), 1000);
    btrfs(
        &site,
        "subvolume snapshot -r",
        &["target/home", "target/snapshot"],
    );
    let copy = site.target().join("copy");
    paint(copy.join("surplus"), 10);
    let mut push = site.zmove(&["push", "--delete"]);
    push.0.arg(site.target().join("snapshot/")).arg(&copy);
    push.outcome().done();
    assert_eq!(names(&copy).len(), 2, "{:?}", names(&copy));
    assert!(copy.join("file").exists() && copy.join("nested").is_dir());
}

#[test]
fn an_equal_read_only_subvolume_below_the_target_is_no_fault() {
    let Some(site) = site() else { return };
    btrfs(&site, "subvolume create", &["target/sub"]);
    paint(site.source().join("sub/same"), 1000);
    site.push_contents();
    set_read_only(&site, "true");
    paint(site.source().join("new"), 1000);
    site.push_contents();
    assert_same(&site.source(), &site.target());
    paint(site.source().join("sub/same"), 1001);
    let outcome = site.push(&[], site.contents(), "").expect(23);
    assert!(
        outcome.stderr.contains("Read-only file system"),
        "{}",
        outcome.stderr
    );
    set_read_only(&site, "false");
    site.push_contents();
    assert_same(&site.source(), &site.target());
}

#[track_caller]
fn set_read_only(site: &Site, value: &str) {
    let path = site.path("target/sub");
    let words = ["btrfs", "property", "set", "-ts"].map(OsStr::new);
    let rest = [path.as_os_str(), OsStr::new("ro"), OsStr::new(value)];
    assert!(
        site.namespace().run(&[&words[..], &rest].concat()),
        "ro {value}"
    );
}
