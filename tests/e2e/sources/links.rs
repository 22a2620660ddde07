//! Hard links: names of one file at the source become names of one file at the target, whichever way they are
//! transferred, and the data is sent once.
//!
//! rsync checks the result if it is installed. The groups of names with equal inodes are compared too, which rsync does
//! not do.

mod full_size;
mod non_regular;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::hard_link;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use serde_json::Value;
use zmove_types::{GROUP_BYTES, RelPath};
use zmove_wire::{
    Batch, BatchEntry, DirectoryGroup, EntryFault, FaultCode, LinkEntry, Operation,
    PreserveOptions, ToSender,
};

use crate::connections::resume::break_off_after;
use crate::security::intruder::{
    Deed, Intruded, Intruder, batch, file, metadata, name, path, raw_batch,
};
use crate::sources::metadata::rsync_output;
use crate::support::command::{ZMOVE, Zmove};
use crate::support::harness::{Site, every_way, has_program, skip};
use crate::support::namespace::{Image, Namespace};
use crate::support::tree::{
    assert_same, names, paint, painted, picture, set_mode, set_mtime, set_old,
    wait_for_another_time,
};

/// Returns the groups of names that lead to one regular file.
fn groups(root: &Path) -> Vec<Vec<String>> {
    let mut groups = BTreeMap::<u64, Vec<String>>::new();
    for path in picture(root).into_keys() {
        let text = String::from_utf8(path).unwrap();
        let stat = root.join(&text).symlink_metadata().unwrap();
        if stat.is_file() {
            groups.entry(stat.ino()).or_default().push(text);
        }
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort();
    groups
}

/// Asserts that both trees have the same contents and groups, and that rsync would change nothing.
#[track_caller]
fn assert_same_groups(site: &Site) {
    assert_same(&site.source(), &site.target());
    assert_eq!(groups(&site.source()), groups(&site.target()));
    assert_rsync_changes_nothing(&site.source(), &site.target());
}

#[track_caller]
fn assert_rsync_changes_nothing(source: &Path, target: &Path) {
    if has_program("rsync") {
        let mut rsync = Command::new("rsync");
        rsync
            .args(["-naHAXS", "--numeric-ids", "-i", "--checksum", "--delete"])
            .arg(source.join(""))
            .arg(target.join(""));
        assert_eq!(rsync_output(rsync), "");
    }
}

fn push(site: &Site, options: &[&str]) -> Value {
    site.push(&[options, &["--json"]].concat(), site.contents(), "")
        .done()
        .summary()
}

fn numbers<const N: usize>(summary: &Value, keys: [&str; N]) -> [u64; N] {
    keys.map(|key| summary[key].as_u64().unwrap())
}

/// Creates files with several names in several directories, small, empty and large, and some with one name.
fn tie(source: &Path) {
    for (first, bytes) in [
        ("a/small", 700),
        ("b/empty", 0),
        ("large", 2 * GROUP_BYTES + 5),
        ("group", GROUP_BYTES),
    ] {
        paint(source.join(first), bytes);
        set_old(source.join(first));
    }
    for number in 0..20 {
        paint(source.join(format!("a/alone{number}")), 30 + number);
    }
    for (first, others) in [
        (
            "a/small",
            &["a/small2", "b/small", "c/d/small", "small"][..],
        ),
        ("b/empty", &["empty"]),
        ("large", &["a/large", "c/large"]),
        ("group", &["c/d/group"]),
    ] {
        for other in others {
            std::fs::create_dir_all(source.join(other).parent().unwrap()).unwrap();
            hard_link(source.join(first), source.join(other)).unwrap();
        }
    }
    symlink("a/small", source.join("link")).unwrap();
}

/// Number of bytes in the files that [`tie`] creates, each counted once.
fn tied_bytes() -> u64 {
    700 + 2 * GROUP_BYTES + 5 + GROUP_BYTES + (30..50).sum::<u64>()
}

every_way!(groups_are_kept, links_are_made_and_broken);

fn groups_are_kept(site: &Site) {
    tie(&site.source());
    let first = push(site, &["-a", "--no-preserve", "owner"]);
    assert_same_groups(site);
    assert_eq!(
        numbers(&first, ["files", "hard_links", "bytes"]),
        [32, 8, tied_bytes()]
    );
    assert_eq!(first["not_kept"].as_array().unwrap().len(), 0, "{first}");
    for options in [&[][..], &["--checksum"]] {
        let again = push(site, options);
        assert_eq!(
            numbers(&again, ["files", "skipped", "bytes"]),
            [0, 32, 0],
            "{options:?}"
        );
        assert_same_groups(site);
    }
}

fn links_are_made_and_broken(site: &Site) {
    tie(&site.source());
    push(site, &[]);
    // One name becomes a separate file, another file gets equal metadata, and a former single name becomes a name of
    // another file.
    let [source, target] = [site.source(), site.target()];
    for (from, to) in [("a/small", "b/small"), ("large", "c/large")] {
        std::fs::remove_file(source.join(to)).unwrap();
        std::fs::copy(source.join(from), source.join(to)).unwrap();
        set_old(source.join(to));
    }
    std::fs::remove_file(source.join("a/alone3")).unwrap();
    hard_link(source.join("a/alone4"), source.join("a/alone3")).unwrap();
    std::fs::remove_file(target.join("empty")).unwrap();
    paint(target.join("empty"), 0);
    set_old(target.join("empty"));
    std::fs::remove_file(target.join("small")).unwrap();
    symlink("a/small", target.join("small")).unwrap();
    hard_link(target.join("a/alone5"), target.join("alone")).unwrap();
    let listed = site
        .push(&["--dry-run", "--delete"], site.contents(), "")
        .done()
        .stdout;
    assert!(listed.contains("hard link"), "{listed}");
    push(site, &["--delete"]);
    assert_same_groups(site);
    let again = push(site, &["--delete"]);
    assert_eq!(numbers(&again, ["files", "bytes"]), [0, 0]);
    // The contents of a group change.
    std::fs::write(source.join("a/small2"), painted(900, 1)).unwrap();
    set_mode(source.join("large"), 0o604);
    for options in [&["--checksum"][..], &["--inplace"], &[]] {
        push(site, options);
        assert_same_groups(site);
    }
}

mod one_way_over_the_network {
    use super::{
        a_file_that_may_not_be_replaced_gets_no_further_name, a_manifest_has_all_names,
        a_preview_lists_hard_links, an_in_place_update_links_the_names_of_the_source,
        another_first_name_replaces_one_that_cannot_be_placed,
        names_that_are_not_pushed_are_not_linked, snapshots_at_the_target_keep_their_metadata,
        snapshots_at_the_target_stay_as_they_are, thousands_of_names,
        without_hard_links_each_name_is_a_file,
    };

    crate::support::harness::both_ways!(
        thousands_of_names,
        names_that_are_not_pushed_are_not_linked,
        a_preview_lists_hard_links,
        snapshots_at_the_target_stay_as_they_are,
        snapshots_at_the_target_keep_their_metadata,
        an_in_place_update_links_the_names_of_the_source,
        a_file_that_may_not_be_replaced_gets_no_further_name,
        without_hard_links_each_name_is_a_file,
        another_first_name_replaces_one_that_cannot_be_placed,
        a_manifest_has_all_names,
    );
}

/// Files with ten names each, spread over several batches and many directories.
fn thousands_of_names(site: &Site) {
    const FILES: u64 = 400;
    let source = site.source();
    for number in 0..FILES {
        let first = source.join(format!("d{}/f{number}", number % 37));
        paint(&first, number % 50);
        for other in 1..10 {
            let directory = source.join(format!("e{}", (number * 7 + other) % 41));
            std::fs::create_dir_all(&directory).unwrap();
            hard_link(&first, directory.join(format!("f{number}.{other}"))).unwrap();
        }
    }
    let first = push(site, &[]);
    let bytes = (0..FILES).map(|number| number % 50).sum();
    assert_eq!(
        numbers(&first, ["files", "hard_links", "bytes"]),
        [10 * FILES, 9 * FILES, bytes]
    );
    assert_same_groups(site);
    for name in ["e3", "d5"] {
        std::fs::remove_dir_all(site.target().join(name)).unwrap();
    }
    push(site, &["--delete"]);
    assert_same_groups(site);
    let again = push(site, &["--delete"]);
    assert_eq!(
        numbers(&again, ["files", "skipped", "removed"]),
        [0, 10 * FILES, 0]
    );
}

/// The first name is excluded, or only some names are listed.
fn names_that_are_not_pushed_are_not_linked(site: &Site) {
    tie(&site.source());
    let left_out = ["--exclude", "/a", "--exclude", "/large"];
    let summary = push(site, &left_out);
    let expected = [
        &["b/small", "c/d/small", "small"][..],
        &["b/empty", "empty"],
        &["c/large"],
        &["c/d/group", "group"],
    ];
    let mut expected: Vec<_> = expected
        .map(|group| {
            group
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>()
        })
        .into();
    expected.sort();
    assert_eq!(
        (groups(&site.target()), &summary["hard_links"]),
        (expected, &4.into())
    );
    let list = site.path("list");
    std::fs::write(&list, "large\na/small\nc/d/small\na/alone7\n").unwrap();
    std::fs::create_dir(site.target().join("listed")).unwrap();
    let options = ["--files-from", list.to_str().unwrap()];
    site.push(&options, site.contents(), "listed").done();
    let listed = groups(&site.target().join("listed"));
    assert_eq!(
        listed,
        [&["a/alone7"][..], &["a/small", "c/d/small"], &["large"]]
    );
}

fn a_preview_lists_hard_links(site: &Site) {
    paint(site.source().join("one"), 10);
    hard_link(site.source().join("one"), site.source().join("two")).unwrap();
    let told = site.push(&["-n"], site.contents(), "").done().stdout;
    assert!(
        told.contains("+ one => two\n") || told.contains("+ two => one\n"),
        "{told}"
    );
    assert!(told.contains("2 files of 10 B to send"), "{told}");
    assert_eq!(names(&site.target()), [""; 0]);
    let told = site
        .push(&["-n", "--json"], site.contents(), "")
        .done()
        .stdout;
    assert!(told.contains(r#""hard_link":""#), "{told}");
    push(site, &[]);
    let told = site.push(&["-n"], site.contents(), "").done().stdout;
    assert!(told.contains("0 to add, 0 to change"), "{told}");
}

/// Creates a copy of a tree whose files are hard links to those of the tree.
fn copy_as_links(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-al").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// Snapshots of a tree as hard links (`cp -al`). Names that are not pushed do not count.
fn snapshots_at_the_target_stay_as_they_are(site: &Site) {
    tie(&site.source());
    site.push(&["--json"], site.contents(), "today").done();
    let [today, before] = ["today", "before"].map(|name| site.target().join(name));
    copy_as_links(&today, &before);
    let at_first = groups(&site.target());
    paint(site.source().join("new"), 10);
    let summary = site
        .push(&["--json", "--delete"], site.contents(), "today")
        .done()
        .summary();
    assert_eq!(numbers(&summary, ["files", "bytes"]), [1, 10]);
    std::fs::remove_file(today.join("new")).unwrap();
    assert_eq!(groups(&site.target()), at_first);
    // A changed file is recreated, and the older snapshot keeps its contents.
    std::fs::write(site.source().join("a/small"), painted(800, 3)).unwrap();
    site.push(&["--inplace"], site.contents(), "today").done();
    assert_eq!(groups(&today), groups(&site.source()));
    assert_eq!(
        std::fs::read(before.join("c/d/small")).unwrap(),
        painted(700, 0)
    );
}

/// A file with other names is recreated if its mode, timestamp or attributes change, and its data is not sent again.
fn snapshots_at_the_target_keep_their_metadata(site: &Site) {
    let [source, target] = [site.source(), site.target()];
    for name in ["mode", "time", "xattr", "same", "group"] {
        paint(source.join(name), 100);
    }
    hard_link(source.join("group"), source.join("other")).unwrap();
    site.push(&[], site.contents(), "today").done();
    let [today, before] = ["today", "before"].map(|name| target.join(name));
    copy_as_links(&today, &before);
    let at_first = picture(&before);
    for name in ["mode", "group"] {
        set_mode(source.join(name), 0o600);
    }
    set_old(source.join("time"));
    let has_xattrs = setxattr(source.join("xattr"), "user.a", b"x", XattrFlags::empty()).is_ok();
    // The second name of the group counts as a file.
    let changed = if has_xattrs { 5 } else { 4 };
    wait_for_another_time(&today.join("same"));
    let push = || {
        let summary = site.push(&["--json", "-c"], site.contents(), "today");
        numbers(&summary.done().summary(), ["files"])
    };
    assert_eq!(push(), [changed]);
    assert_eq!(picture(&before), at_first);
    let mut value = [0; 1];
    assert!(getxattr(before.join("xattr"), "user.a", &mut value).is_err());
    assert_eq!(picture(&today), picture(&source));
    assert_eq!(groups(&today), groups(&source));
    let inode = |directory: &Path| directory.join("same").metadata().unwrap().ino();
    assert_eq!(inode(&today), inode(&before));
    assert_eq!(push(), [0]);
}

fn an_in_place_update_links_the_names_of_the_source(site: &Site) {
    let [source, target] = [site.source(), site.target()];
    paint(source.join("a"), 500);
    hard_link(source.join("a"), source.join("b")).unwrap();
    paint(source.join("c"), 500);
    // At the target, all three names lead to one file.
    paint(target.join("a"), 300);
    for name in ["b", "c"] {
        hard_link(target.join("a"), target.join(name)).unwrap();
    }
    push(site, &["--inplace"]);
    assert_same_groups(site);
    push(site, &["--inplace"]);
    assert_same_groups(site);
}

/// An existing name that is not replaced and has other contents cannot be the first name of the file.
fn a_file_that_may_not_be_replaced_gets_no_further_name(site: &Site) {
    let [source, target] = [site.source(), site.target()];
    paint(source.join("a"), 500);
    set_old(source.join("a"));
    for name in ["b", "c", "d"] {
        hard_link(source.join("a"), source.join(name)).unwrap();
    }
    // The result is the same whichever name the walk finds first.
    for name in names(&source).iter().take(3) {
        std::fs::write(target.join(name), "stays").unwrap();
    }
    push(site, &["--ignore-existing"]);
    let of = |name: &str| std::fs::read(target.join(name)).unwrap();
    assert_eq!([of("a"), of("b"), of("c")], [b"stays", b"stays", b"stays"]);
    assert_eq!(of("d"), painted(500, 0));
    std::fs::remove_file(target.join("c")).unwrap();
    push(site, &["--update"]);
    assert_eq!([of("a"), of("b")], [b"stays", b"stays"]);
    assert_eq!(groups(&target), [&["a"][..], &["b"], &["c", "d"]]);
}

fn without_hard_links_each_name_is_a_file(site: &Site) {
    paint(site.source().join("a"), 500);
    hard_link(site.source().join("a"), site.source().join("b")).unwrap();
    for options in [&["--no-H"][..], &["-a", "--no-preserve", "links,owner"]] {
        let summary = push(site, &[options, &["--checksum"]].concat());
        assert_eq!(
            summary["not_kept"].as_array().unwrap().len(),
            0,
            "{summary}"
        );
        assert_eq!(groups(&site.target()).len(), 2);
    }
    push(site, &["-H"]);
    assert_same_groups(site);
    // Names of one file at the target stay linked, since no option asks to separate them.
    push(site, &["--no-H"]);
    assert_same_groups(site);
}

fn another_first_name_replaces_one_that_cannot_be_placed(site: &Site) {
    let [source, target] = [site.source(), site.target()];
    paint(source.join("a"), 500);
    for name in ["b", "c", "d", "e", "f"] {
        hard_link(source.join("a"), source.join(name)).unwrap();
    }
    for name in ["a", "c", "e"] {
        paint(target.join(name).join("in the way"), 1);
    }
    let outcome = site.push(&["--json"], site.contents(), "").expect(23);
    assert_eq!(outcome.stderr.lines().count(), 3, "{}", outcome.stderr);
    let one_group = groups(&target)
        .into_iter()
        .filter(|group| group[0].len() == 1)
        .collect::<Vec<_>>();
    assert_eq!(one_group, [["b", "d", "f"]]);
    for name in ["a", "c", "e"] {
        std::fs::remove_dir_all(target.join(name)).unwrap();
    }
    push(site, &[]);
    assert_same_groups(site);
}

fn a_manifest_has_all_names(site: &Site) {
    tie(&site.source());
    let manifest = site.path("manifest");
    push(site, &["--manifest", manifest.to_str().unwrap()]);
    let text = std::fs::read_to_string(&manifest).unwrap();
    assert_eq!(text.lines().count(), 32, "{text}");
    let root = |name: &str| {
        let ends = format!("  {name}");
        text.lines()
            .find_map(|line| line.strip_suffix(&ends))
            .map(str::to_owned)
    };
    assert!(root("small").is_some() && root("small") == root("a/small2"));
    assert!(root("large").is_some() && root("large") == root("c/large"));
}

/// The sender is killed while the large file of a group is in transit.
#[test]
fn a_resumed_push_creates_the_same_groups() {
    let site = Site::daemon();
    tie(&site.source());
    let large = site.source().join("very large");
    std::fs::write(&large, painted(12 * GROUP_BYTES, 7)).unwrap();
    hard_link(&large, site.source().join("c/very large")).unwrap();
    break_off_after(8 * GROUP_BYTES, &site, |relay| {
        site.push_by(relay, &["--json"])
    });
    push(&site, &[]);
    assert_same_groups(&site);
    let again = push(&site, &[]);
    assert_eq!(numbers(&again, ["files", "bytes"]), [0, 0]);
}

/// Returns the inode number of each name.
fn inodes(root: &Path) -> BTreeMap<Vec<u8>, u64> {
    let paths = picture(root).into_keys();
    let inode = |path: Vec<u8>| {
        let stat = root.join(OsStr::from_bytes(&path)).symlink_metadata();
        (path, stat.unwrap().ino())
    };
    paths.map(inode).collect()
}

/// Pushes locally under strace, with faults injected into the calls that create links.
fn push_under(site: &Site, inject: &str) -> Option<Value> {
    push_under_with(site, inject, &[])
}

fn push_under_with(site: &Site, inject: &str, options: &[&str]) -> Option<Value> {
    let mut command = Command::new("strace");
    let log = site.path("strace.log");
    command
        .args(["-f", "--seccomp-bpf", "-qq", "-e", "trace=linkat", "-o"])
        .arg(&log);
    command
        .arg("-e")
        .arg(format!("inject=linkat:{inject}"))
        .env("ZMOVE_HOME", site.path("client"));
    command
        .arg(ZMOVE)
        .args(["push", "--json"])
        .args(options)
        .arg(site.contents())
        .arg(site.target());
    let outcome = Zmove(command).outcome();
    let told = std::fs::read_to_string(log)
        .is_ok_and(|log| log.contains("INJECTED") || log.contains("SIGKILL"));
    if !told {
        skip("strace cannot run here: nothing makes a system call fail");
        return None;
    }
    Some(if inject.starts_with("error") {
        outcome.done().summary()
    } else {
        Value::Null
    })
}

#[test]
fn where_the_target_cannot_link_there_are_copies_and_they_are_counted() {
    if !has_program("strace") {
        return skip("strace is missing: nothing makes a system call fail");
    }
    for (errno, why) in [
        ("EPERM", "not permitted to the receiver's user"),
        ("EOPNOTSUPP", "not supported there"),
        ("EXDEV", "not supported there"),
    ] {
        let site = Site::local();
        tie(&site.source());
        let Some(summary) = push_under(&site, &format!("error={errno}")) else {
            return;
        };
        assert_same(&site.source(), &site.target());
        assert_eq!(groups(&site.target()).len(), 32);
        let lack = &summary["not_kept"][0];
        assert_eq!(
            (&lack["what"], &lack["why"], &lack["entries"]),
            (&"hard link".into(), &why.into(), &8.into())
        );
        let copies = inodes(&site.target());
        for options in [&[][..], &["--checksum"]] {
            let again = push_under_with(&site, &format!("error={errno}"), options).unwrap();
            assert_eq!(numbers(&again, ["files", "skipped", "bytes"]), [0, 32, 0]);
            assert_eq!(again["not_kept"], summary["not_kept"], "{options:?}");
            assert_eq!(inodes(&site.target()), copies, "{options:?}");
        }
        // Changed files are sent to all of their names.
        paint(site.source().join("a/small"), 800);
        let changed = push_under_with(&site, &format!("error={errno}"), &[]).unwrap();
        assert_eq!(numbers(&changed, ["files", "bytes"]), [5, 5 * 800]);
        assert_same(&site.source(), &site.target());
        push(&site, &[]);
        assert_same_groups(&site);
    }
}

/// When a file has the maximum number of names, a copy gets the next ones.
#[test]
fn beyond_the_maximum_of_links_a_copy_gets_the_other_names() {
    if !has_program("strace") {
        return skip("strace is missing: nothing makes a system call fail");
    }
    let site = Site::local();
    paint(site.source().join("0"), 500);
    for number in 1..12 {
        hard_link(
            site.source().join("0"),
            site.source().join(number.to_string()),
        )
        .unwrap();
    }
    let Some(summary) = push_under(&site, "error=EMLINK:when=4..6") else {
        return;
    };
    assert_same(&site.source(), &site.target());
    let sizes: Vec<_> = groups(&site.target()).iter().map(Vec::len).collect();
    assert!(
        sizes.len() == 2 && sizes.iter().sum::<usize>() == 12,
        "{sizes:?}"
    );
    assert_eq!(
        summary["not_kept"][0]["why"],
        "Too many links (os error 31)"
    );
    // No first name can have another link, so all existing entries stay.
    let there = inodes(&site.target());
    let again = push_under_with(&site, "error=EMLINK", &[]).unwrap();
    assert_eq!(numbers(&again, ["files", "skipped", "bytes"]), [0, 12, 0]);
    assert_eq!(inodes(&site.target()), there);
}

#[test]
fn a_push_that_is_killed_while_it_links_can_be_repeated() {
    if !has_program("strace") {
        return skip("strace is missing: nothing ends a process in a system call");
    }
    let site = Site::local();
    tie(&site.source());
    if push_under(&site, "signal=KILL:when=1").is_none() {
        return;
    }
    push(&site, &[]);
    assert_same_groups(&site);
    assert!(
        !picture(&site.target())
            .keys()
            .any(|path| path.starts_with(b".zmove"))
    );
}

/// A name that is kept without a comparison may have any contents, even if size and time are equal.
#[test]
fn a_file_that_was_not_compared_gets_no_further_name() {
    for there in ["a", "b"] {
        let site = Site::local();
        std::fs::write(site.source().join("a"), "AAAAAAAA").unwrap();
        set_mtime(site.source().join("a"), UNIX_EPOCH + Duration::from_secs(9));
        hard_link(site.source().join("a"), site.source().join("b")).unwrap();
        std::fs::create_dir_all(site.target()).unwrap();
        std::fs::write(site.target().join(there), "XXXXXXXX").unwrap();
        set_mtime(
            site.target().join(there),
            UNIX_EPOCH + Duration::from_secs(9),
        );
        push(&site, &["--checksum", "--ignore-existing"]);
        let of = |name: &str| std::fs::read(site.target().join(name)).unwrap();
        let other = if there == "a" { "b" } else { "a" };
        assert_eq!(
            (of(there), of(other)),
            (b"XXXXXXXX".to_vec(), b"AAAAAAAA".to_vec()),
            "{there}"
        );
    }
}

/// The first name gets the time of the push, which identifies it.
#[test]
fn hard_links_are_kept_without_modification_times() {
    let site = Site::local();
    tie(&site.source());
    push(&site, &["--no-t"]);
    assert_eq!(groups(&site.source()), groups(&site.target()));
}

/// A file system is mounted below the target.
#[test]
fn names_on_another_file_system_are_copies() {
    let site = Site::within(|target| {
        std::fs::create_dir(target.join("other")).unwrap();
        Namespace::with_small_disk(&target.join("other"), 16 << 20)
    });
    let Some(site) = site else { return };
    paint(site.source().join("a"), 500);
    std::fs::create_dir(site.source().join("other")).unwrap();
    for name in ["b", "other/a", "other/b", "other/c"] {
        hard_link(site.source().join("a"), site.source().join(name)).unwrap();
    }
    let summary = push(&site, &[]);
    assert_same(&site.source(), &site.target());
    let lack = &summary["not_kept"][0];
    assert_eq!(
        (&lack["what"], &lack["why"]),
        (&"hard link".into(), &"not supported there".into())
    );
    let groups: Vec<_> = groups(&site.target())
        .into_iter()
        .filter(|names| names.len() > 1)
        .collect();
    let above = vec!["a".to_owned(), "b".to_owned()];
    let other = ["a", "b", "c"].map(|name| format!("other/{name}")).to_vec();
    // The names on the file system of the first name are links.
    let (linked, copies) = if groups == [above] { (2, 3) } else { (3, 2) };
    assert!(groups.len() == 1 && groups[0].len() == linked, "{groups:?}");
    assert!(linked == 2 || groups == [other], "{groups:?}");
    assert_eq!(lack["entries"], copies);
}

/// A directory of the target is a subvolume, which counts as a separate file system.
#[test]
fn copies_in_a_subvolume_stay_and_no_data_travels_again() {
    copies_in_a_subvolume(&["sub/a"], &[&[], &["--checksum"]]);
    // The walk may find another first name each time.
    copies_in_a_subvolume(&["b", "sub/a", "sub/b"], &[&[], &[]]);
}

fn copies_in_a_subvolume(names: &[&str], rules: &[&[&str]]) {
    const BTRFS: Image = Image {
        bytes: 200 << 20,
        make: "mkfs.btrfs -q -f",
        options: "loop",
    };
    if !has_program("btrfs") {
        return skip("btrfs is missing: nothing makes a subvolume");
    }
    let Some(site) = Site::within_image(&BTRFS) else {
        return;
    };
    let subvolume = site.path("target/sub");
    assert!(site.namespace().run(&[
        "btrfs".as_ref(),
        "subvolume".as_ref(),
        "create".as_ref(),
        subvolume.as_os_str()
    ]));
    paint(site.source().join("a"), 3 * GROUP_BYTES);
    std::fs::create_dir(site.source().join("sub")).unwrap();
    for name in names {
        hard_link(site.source().join("a"), site.source().join(name)).unwrap();
    }
    // One file, and a copy for each name on the other file system.
    let copies = names.len().div_ceil(2) as u64;
    let bytes = (1 + copies) * 3 * GROUP_BYTES;
    let first = push(&site, &[]);
    assert_same(&site.source(), &site.target());
    assert_eq!(numbers(&first, ["bytes"]), [bytes]);
    let places = || ["a", "sub/a"].map(|name| site.target().join(name).metadata().unwrap().ino());
    let there = places();
    for options in rules {
        let again = push(&site, options);
        assert_eq!(numbers(&again, ["bytes"]), [0], "{options:?}");
        assert_eq!(again["not_kept"][0]["entries"], copies, "{again}");
        assert_same(&site.source(), &site.target());
        if names.len() == 1 {
            assert_eq!(places(), there);
        }
    }
}

#[test]
fn an_ordinary_user_keeps_hard_links() {
    let Some(site) = Site::unprivileged() else {
        return;
    };
    tie(&site.source());
    site.give_away();
    push(&site, &[]);
    assert_eq!(groups(&site.source()), groups(&site.target()));
}

fn link(text: &str, first: &str) -> BatchEntry {
    let name = name(text);
    BatchEntry::Link(LinkEntry {
        name,
        metadata: metadata(0o600),
        bytes: 1,
        first: path(first),
    })
}

fn intruder(root: &Path) -> Intruder {
    let mut intruder = Intruder::new(root);
    intruder.open.target = root.as_os_str().as_encoded_bytes().to_vec();
    intruder.open.keeping = PreserveOptions::default();
    intruder
}

/// Returns the faults of all batches. Each fault is reported once.
fn faults(intruded: &Intruded) -> Vec<EntryFault> {
    let mut all = Vec::new();
    for answer in &intruded.answers {
        if let ToSender::Stored(stored) = answer {
            all.extend(stored.items.iter().flat_map(|item| item.faults.clone()));
        }
    }
    all
}

/// Forbidden targets of links: each is a fault, and no name is created.
#[test]
fn links_to_entries_that_are_no_files_of_the_push_are_not_created() {
    let home = tempfile::tempdir().unwrap();
    let (root, outside) = (home.path().join("root"), home.path().join("outside"));
    std::fs::create_dir_all(root.join("directory")).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "x").unwrap();
    symlink(&outside, root.join("out")).unwrap();
    symlink(outside.join("secret"), root.join("symlink")).unwrap();
    std::fs::write(root.join("other"), "longer than what is meant").unwrap();
    let firsts = [
        "never sent",
        "nowhere/file",
        "directory",
        "symlink",
        "out/secret",
        "other",
        "sent later",
    ];
    let entries = (0..)
        .zip(firsts)
        .map(|(number, first)| link(&format!("l{number}"), first))
        .collect();
    let deeds = vec![
        batch(0, "", entries),
        Deed::Meanwhile(1, Box::new(|| {})),
        batch(1, "", vec![file("sent later", 0o600)]),
    ];
    let intruded = intruder(&root).does(deeds);
    assert!(intruded.ended.is_ok(), "{:?}", intruded.ended);
    let faults = faults(&intruded);
    assert_eq!(faults.len(), firsts.len(), "{faults:?}");
    assert!(
        faults
            .iter()
            .all(|fault| fault.operation == Operation::Link),
        "{faults:?}"
    );
    let there = names(&root);
    assert!(
        !there
            .iter()
            .any(|name| name.starts_with('l') || name.starts_with(".zmove")),
        "{there:?}"
    );
    assert_eq!(outside.join("secret").metadata().unwrap().nlink(), 1);
}

/// `..` and an absolute path cannot be parsed, so the transfer ends.
#[test]
fn links_beyond_the_target_end_the_transfer() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(home.path().join("secret"), "x").unwrap();
    let groups = vec![DirectoryGroup {
        directory: RelPath::root(),
        entries: vec![link("l", "aaaaaaaaa")],
    }];
    let head = Batch { groups }.encode();
    for first in ["aaaaaaaaa", "../secret", "/..secret", "d/../d/dd", ""] {
        let mut head = head.clone();
        head.truncate(head.len() - 10);
        head.push(u8::try_from(first.len()).unwrap());
        head.extend(first.as_bytes());
        let intruded = intruder(&root).does(vec![raw_batch(0, head, b"")]);
        // A name inside the target merely does not exist.
        assert_eq!(intruded.ended.is_ok(), first == "aaaaaaaaa", "{first}");
        assert_eq!(names(&root), [""; 0]);
    }
}

/// A name that already leads to the file is reported and not created again.
#[test]
fn a_link_that_is_requested_repeatedly_is_created_once() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let flood = || {
        (0..2000)
            .map(|number| link(&format!("l{number}"), "f"))
            .collect()
    };
    std::fs::write(root.join("f"), "x").unwrap();
    set_mtime(root.join("f"), UNIX_EPOCH + Duration::from_secs(9));
    let mut deeds: Vec<_> = (0..5).map(|item| batch(item, "", flood())).collect();
    deeds.push(Deed::Meanwhile(5, Box::new(|| {})));
    deeds.push(batch(5, "", flood()));
    let intruded = intruder(&root).does(deeds);
    assert!(intruded.ended.is_ok(), "{:?}", intruded.ended);
    assert_eq!(root.join("f").metadata().unwrap().nlink(), 2001);
    let faults = faults(&intruded);
    // For the first five batches, several threads may create the same link concurrently. The last batch finds all
    // links.
    let are_as_many = (2000..=10_000).contains(&faults.len());
    assert!(are_as_many, "{}", faults.len());
    assert!(
        faults
            .iter()
            .all(|fault| fault.code == FaultCode::AlreadyThere)
    );
}
