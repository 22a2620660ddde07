//! Targets on mergerfs, which finds an open file by the name under which it was opened, and renames without options
//! alone. Sources on mergerfs, which may give equal inode numbers to files of different file systems.

use crate::support::harness::Site;
use crate::support::namespace::Namespace;
use crate::support::tree::{assert_same, paint};

/// Files that get a hidden name for a later transfer to resume from, and one that does not.
const SIZES: [u64; 3] = [(16 << 20) - 1, 16 << 20, (33 << 20) + 5];

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
