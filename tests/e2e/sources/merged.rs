//! Targets on mergerfs, which looks up an open file by the name under which it was opened, and supports renames only
//! without options. Sources on mergerfs, which may give equal inode numbers to files of different file systems.
//! Listings with duplicate names, as in union and some network file systems.

use std::fmt::Write;
use std::path::Path;

use crate::support::command::ZMOVE;
use crate::support::harness::{Site, skip};
use crate::support::namespace::Namespace;
use crate::support::tree::{assert_same, paint};
use crate::targets::faults::can_inject;

/// Sizes of two files. Only one of them gets a hidden name from which a later transfer can resume.
const SIZES: [u64; 2] = [(16 << 20) - 1, 16 << 20];

#[test]
fn large_files_are_stored_and_replaced_on_mergerfs() {
    for is_remote in [false, true] {
        let Some(mut site) = Site::within(Namespace::with_merged) else {
            return;
        };
        if is_remote {
            site.start_daemon();
        }
        for bytes in SIZES {
            paint(site.source().join(format!("d/{bytes}")), bytes);
        }
        for options in [&[][..], &["--ignore-existing"], &["--inplace"]] {
            let options = [&["--json"], options].concat();
            let path = format!("in{}", options.concat());
            site.push(&options, site.contents(), &path).done();
            assert_same(&site.source(), &site.target().join(&path));
        }
        for bytes in SIZES {
            paint(site.source().join(format!("d/{bytes}")), bytes + 1);
        }
        site.push(&["--json"], site.contents(), "in--json").done();
        assert_same(&site.source(), &site.target().join("in--json"));
        let summary = site.push(&["--json"], site.contents(), "in--json").done();
        assert_eq!(summary.summary()["files"], 0);
    }
}

#[test]
fn files_with_equal_inode_numbers_keep_their_own_contents() {
    let Some(site) = Site::within(Namespace::with_equal_inodes) else {
        return;
    };
    let source = site.target();
    let copy = site.path("copy");
    let mut push = site.zmove(&["push", "-q"]);
    push.0.arg(source.join("")).arg(&copy);
    push.outcome().done();
    for name in ["A", "B"] {
        let read = |file: &str| std::fs::read_to_string(copy.join(name).join(file)).unwrap();
        assert_eq!(
            [read("x"), read("y")],
            [(); 2].map(|()| format!("the file {name}\n"))
        );
    }
}

/// Makes strace append an additional entry to the end of each listing of a directory.
fn list_once_more(site: &mut Site, listed: &Path, entry: &[u8], kind: u8) {
    let bytes = (19 + entry.len() + 1).next_multiple_of(8);
    let mut record = [99_u64.to_le_bytes(), 5_u64.to_le_bytes()].concat();
    record.extend_from_slice(&u16::try_from(bytes).unwrap().to_le_bytes());
    record.push(kind);
    record.extend_from_slice(entry);
    record.resize(bytes, 0);
    let hex = record.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    });
    let log = site.path("strace.log");
    site.run_by_script(&format!(
        "exec strace -D -f -qq -A -o {} -P {} -e trace=getdents64 \
         -e inject=getdents64:retval={bytes}:poke_exit=@arg2={hex}:when=2 {ZMOVE} \"$@\"",
        log.display(),
        listed.display(),
    ));
}

/// The types of entries in a listing.
const DIRECTORY: u8 = 4;
const FILE: u8 = 8;

#[test]
fn a_name_that_is_listed_twice_is_one_entry() {
    if !can_inject() {
        return skip("strace cannot run here: nothing changes a listing");
    }
    for (entry, kind) in [("d", DIRECTORY), ("f", FILE)] {
        let mut site = Site::local();
        for path in ["d/1", "d/2", "f"] {
            paint(site.source().join(path), 10);
        }
        let source = site.source();
        list_once_more(&mut site, &source, entry.as_bytes(), kind);
        let summary = site.push(&["--json"], site.contents(), "").done().summary();
        assert_eq!(summary["files"], 3, "{entry}");
        paint(site.target().join("gone"), 10);
        let summary = site.push(&["--json", "--delete"], site.contents(), "");
        assert_eq!(summary.done().summary()["removed"], 1, "{entry}");
        assert_same(&site.source(), &site.target());
        let mut verify = site.zmove(&["verify", "-q"]);
        verify.0.arg(site.contents()).arg(site.target());
        verify.outcome().done();
        let log = std::fs::read_to_string(site.path("strace.log")).unwrap();
        assert!(log.contains("INJECTED"), "{log}");
    }
}

#[test]
fn a_name_that_the_target_lists_twice_is_removed_once() {
    if !can_inject() {
        return skip("strace cannot run here: nothing changes a listing");
    }
    for (entry, kind) in [("d", DIRECTORY), ("f", FILE)] {
        let mut site = Site::local();
        paint(site.source().join("kept"), 10);
        for path in ["d/1", "f"] {
            paint(site.target().join(path), 10);
        }
        let target = site.target();
        list_once_more(&mut site, &target, entry.as_bytes(), kind);
        let preview = site.push(&["--json", "--delete", "-n"], site.contents(), "");
        let preview = preview.done().summary();
        let summary = site.push(&["--json", "--delete"], site.contents(), "");
        let summary = summary.done().summary();
        assert_eq!(summary["removed"], preview["removed"], "{entry}");
        assert_same(&site.source(), &site.target());
        let log = std::fs::read_to_string(site.path("strace.log")).unwrap();
        assert!(log.contains("INJECTED"), "{log}");
    }
}
