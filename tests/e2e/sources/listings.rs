//! Listings that give a name twice, as some network file systems and unions do.

use std::fmt::Write;
use std::path::Path;

use crate::support::command::ZMOVE;
use crate::support::harness::{Site, skip};
use crate::support::tree::{assert_same, paint};
use crate::targets::faults::can_inject;

/// Has the kernel give this program one more entry at the end of each listing of a directory.
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

/// The kinds of entries in a listing.
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
