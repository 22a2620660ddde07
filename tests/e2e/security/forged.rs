//! A local user of the receiving host renames a directory of root to the name of a leftover. The next push by root
//! removes leftovers and must not remove that directory: without zmove the user could rename it but not remove it.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};

use crate::support::command::NOBODY;
use crate::support::harness::{Site, both_ways, is_root, skip};
use crate::support::tree::{assert_part_of, names, paint, set_mode};

/// A directory in which other users may rename entries.
#[derive(Clone, Copy, Debug)]
struct OpenDirectory {
    owner: u32,
    group: u32,
    mode: u32,
}

const OPEN_DIRECTORIES: [OpenDirectory; 4] = [
    OpenDirectory {
        owner: NOBODY,
        group: NOBODY,
        mode: 0o755,
    },
    // The owner of a directory with the sticky bit may rename entries of other users.
    OpenDirectory {
        owner: NOBODY,
        group: NOBODY,
        mode: 0o1777,
    },
    OpenDirectory {
        owner: 0,
        group: NOBODY,
        mode: 0o2775,
    },
    OpenDirectory {
        owner: 0,
        group: 0,
        mode: 0o777,
    },
];

impl OpenDirectory {
    fn make(self, path: &Path) {
        fs::create_dir(path).unwrap();
        chown(path, Some(self.owner), Some(self.group)).unwrap();
        set_mode(path, self.mode);
    }
}

/// Creates a source with directories that are staged, at the top and in a subdirectory. Returns `false` if this user is
/// not root.
fn prepare(site: &Site) -> bool {
    if !is_root() {
        skip("not root: cannot act as another user");
        return false;
    }
    set_mode(site.path(""), 0o755);
    for number in 0..40 {
        paint(site.source().join(format!("new/{number}")), 100);
        paint(site.source().join(format!("sub/new/{number}")), 100);
    }
    true
}

/// Creates a tree that only root can remove.
fn make_tree_of_root(path: &Path) {
    for file in ["f2", "sub/data"] {
        paint(path.join(file), 10);
    }
}

#[track_caller]
fn assert_complete(tree: &Path, case: &str) {
    for file in ["f2", "sub/data"] {
        assert!(tree.join(file).exists(), "{case}: {file} is gone");
    }
}

/// Returns the name that a staging directory of an ended process would have next to this directory.
fn leftover_name(victim: &Path) -> PathBuf {
    let directory = victim.parent().unwrap();
    let parent = look_at(directory);
    let birth = look_at(victim).stx_btime;
    let moment = birth.tv_sec * 1_000 + i64::from(birth.tv_nsec / 1_000_000);
    let own = zmove_disk::own_process();
    let machine_and_boot: Vec<_> = own.split('-').take(2).collect();
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    directory.join(format!(
        ".zmove-{:x}.{:x}.{:x}-{}-{:x}-1-{moment:x}-0",
        parent.stx_ino,
        parent.stx_btime.tv_sec,
        parent.stx_btime.tv_nsec,
        machine_and_boot.join("-"),
        ended.id(),
    ))
}

fn look_at(path: &Path) -> Statx {
    let asked = StatxFlags::INO | StatxFlags::BTIME;
    statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, asked).unwrap()
}

/// Lets the other user rename a directory to the name of a leftover, and returns the new path.
fn forge(victim: &Path) -> PathBuf {
    let forged = leftover_name(victim);
    let mut rename = Command::new("mv");
    rename.args([victim, &forged]).uid(NOBODY).gid(NOBODY);
    assert!(rename.status().unwrap().success());
    forged
}

fn a_directory_that_another_user_could_rename_stays(site: &Site) {
    if !prepare(site) {
        return;
    }
    for (number, directory) in OPEN_DIRECTORIES.into_iter().enumerate() {
        for place in ["", "sub"] {
            let case = format!("{directory:?} at '{place}'");
            let target = format!("{number}{place}");
            let parent = site.target().join(&target).join(place);
            match place {
                "" => directory.make(&parent),
                _ => {
                    fs::create_dir(parent.parent().unwrap()).unwrap();
                    directory.make(&parent);
                }
            }
            make_tree_of_root(&parent.join("tree"));
            let forged = forge(&parent.join("tree"));
            site.push(&[], site.contents(), &target).done();
            assert_complete(&forged, &case);
            assert_part_of(&site.target().join(&target), &site.source());
        }
    }
}

/// Other users cannot rename root's directories there. They can rename their own directories, even with a tree of root
/// inside.
fn a_directory_of_another_user_in_one_with_the_sticky_bit_stays(site: &Site) {
    if !prepare(site) {
        return;
    }
    let parent = site.target().join("t");
    let sticky = OpenDirectory {
        owner: 0,
        group: 0,
        mode: 0o1777,
    };
    sticky.make(&parent);
    fs::create_dir(parent.join("theirs")).unwrap();
    make_tree_of_root(&parent.join("theirs/tree"));
    chown(parent.join("theirs"), Some(NOBODY), Some(NOBODY)).unwrap();
    let forged = forge(&parent.join("theirs"));
    site.push(&[], site.contents(), "t").done();
    assert_complete(&forged.join("tree"), "sticky");
    assert_part_of(&parent, &site.source());
}

fn a_leftover_is_removed_where_no_other_user_may_rename(site: &Site) {
    if !prepare(site) {
        return;
    }
    for mode in [0o755, 0o1777] {
        let parent = site.target().join(format!("{mode:o}"));
        fs::create_dir(&parent).unwrap();
        set_mode(&parent, mode);
        make_tree_of_root(&parent.join("tree"));
        fs::rename(parent.join("tree"), leftover_name(&parent.join("tree"))).unwrap();
        site.push(&[], site.contents(), &format!("{mode:o}")).done();
        assert_eq!(names(&parent), ["new", "sub"], "{mode:o}");
    }
}

/// A file with such a name may be removed, since a user who can rename it can also remove it. A new directory replaces
/// a file.
fn a_file_with_the_name_of_a_leftover_is_removed_where_others_may_rename(site: &Site) {
    if !prepare(site) {
        return;
    }
    for (number, directory) in OPEN_DIRECTORIES.into_iter().enumerate() {
        let parent = site.target().join(number.to_string());
        directory.make(&parent);
        paint(parent.join("left"), 10);
        fs::rename(parent.join("left"), leftover_name(&parent.join("left"))).unwrap();
        paint(parent.join("new"), 10);
        site.push(&[], site.contents(), &number.to_string()).done();
        assert_eq!(names(&parent), ["new", "sub"], "{directory:?}");
        assert_part_of(&parent, &site.source());
    }
}

both_ways!(
    a_directory_that_another_user_could_rename_stays,
    a_directory_of_another_user_in_one_with_the_sticky_bit_stays,
    a_leftover_is_removed_where_no_other_user_may_rename,
    a_file_with_the_name_of_a_leftover_is_removed_where_others_may_rename,
);
