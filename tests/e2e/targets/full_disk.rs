//! Targets without enough space: a full disk, a read-only file system, a quota. Complete files stay, failed files are
//! reported, and the same command completes when there is space.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use zmove_types::GROUP_BYTES;

use crate::support::command::Outcome;
use crate::support::harness::{Site, both_ways_within, has_program, skip};
use crate::support::namespace::{Image, Namespace};
use crate::support::tree::{assert_part_of, assert_same, names, paint, picture};

const EXT4: Image = Image {
    bytes: 64 << 20,
    make: "mkfs.ext4 -q -F",
    options: "loop",
};
pub(crate) const BTRFS: Image = Image {
    bytes: 320 << 20,
    make: "mkfs.btrfs -q -f",
    options: "loop",
};
/// A file system with free space for the tree, but not enough inodes.
const FEW_INODES: Image = Image {
    bytes: 64 << 20,
    make: "mkfs.ext4 -q -F -N 32",
    options: "loop",
};
const LARGE: u64 = 2 * GROUP_BYTES + 5;

fn paint_all(site: &Site) {
    for number in 0..40 {
        paint(site.source().join(format!("small/{number}")), 50_000);
    }
    for number in 0..3 {
        paint(site.source().join(format!("large{number}")), LARGE);
    }
}

both_ways_within!(
    EXT4,
    a_full_disk_fails_only_files_without_room,
    small_files_arrive_beside_one_that_cannot_fit,
    a_read_only_disk_is_reported
);

/// A file that zmove did not create uses the space. It is removed later.
fn a_full_disk_fails_only_files_without_room(site: &Site) {
    paint_all(site);
    let (target, filler) = (site.target().join("in"), site.target().join("filler"));
    std::fs::create_dir(&target).unwrap();
    let stat = rustix::fs::statvfs(site.target()).unwrap();
    let left = LARGE + (1 << 20);
    std::fs::write(
        &filler,
        vec![0; usize::try_from(stat.f_bavail * stat.f_frsize - left).unwrap()],
    )
    .unwrap();
    let mut outcome = site.push(&["--json"], site.contents(), "in").expect(23);
    // The warning is printed once, before any file fails.
    let (warning, rest) = outcome.stderr.split_once('\n').unwrap();
    assert!(
        warning.starts_with("zmove: the target has ")
            && warning.contains(" free, less than the push needs"),
        "{warning}"
    );
    outcome.stderr = rest.to_owned();
    assert_all_told(&outcome, "No space left on device");
    assert_part_of(&site.source(), &target);
    let whole = inodes(&target);
    assert!(whole.len() > 1, "nothing was whole");
    // Bytes of failed files are not counted as moved.
    let bytes: u64 = whole
        .keys()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    let summary = outcome.summary();
    assert_eq!(
        (&summary["files"], &summary["bytes"]),
        (&whole.len().into(), &bytes.into()),
        "{summary}"
    );
    std::fs::remove_file(filler).unwrap();
    site.push(&["--json"], site.contents(), "in").done();
    assert_same(&site.source(), &target);
    let after = inodes(&target);
    assert!(
        whole
            .iter()
            .all(|(path, inode)| after.get(path) == Some(inode)),
        "what was whole was sent again"
    );
}

/// The part of the large file fills the disk. It is removed, and all small files arrive.
fn small_files_arrive_beside_one_that_cannot_fit(site: &Site) {
    for number in 0..400 {
        paint(site.source().join(format!("small/{number}")), 50_000);
    }
    let large = site.source().join("large");
    paint(&large, 80 << 20);
    let outcome = site.push(&["--json"], site.contents(), "in").expect(23);
    assert_eq!(
        outcome.summary()["failed"],
        1,
        "only the large file fails: {}",
        outcome.stderr
    );
    outcome.says(&["zmove: receiver: write 'large'", "No space left on device"]);
    std::fs::remove_file(large).unwrap();
    assert_same(
        &site.source().join("small"),
        &site.target().join("in/small"),
    );
}

fn a_read_only_disk_is_reported(site: &Site) {
    paint_all(site);
    let remount = |how: &str| {
        let target = site.path("target");
        let words = [
            OsStr::new("mount"),
            "-o".as_ref(),
            how.as_ref(),
            target.as_os_str(),
        ];
        assert!(site.namespace().run(&words), "{how}");
    };
    std::fs::create_dir(site.target().join("in")).unwrap();
    remount("remount,ro");
    let outcome = site.push(&[], site.contents(), "in").expect(3);
    outcome
        .says(&[
            "zmove: receiver: write into directory ",
            "in'",
            "Read-only file system",
        ])
        .lines(1);
    site.push(&[], site.contents(), "new").expect(3).says(&[
        "zmove: receiver: ",
        "new",
        "Read-only file system",
    ]);
    assert!(names(&site.target().join("in")).is_empty());
    remount("remount,rw");
    site.push(&["--json"], site.contents(), "in").done();
    assert_same(&site.source(), &site.target().join("in"));
}

mod few_inodes {
    use super::{FEW_INODES, a_disk_without_inodes};

    crate::support::harness::both_ways_within!(FEW_INODES, a_disk_without_inodes);
}

fn a_disk_without_inodes(site: &Site) {
    for number in 0..400 {
        paint(site.source().join(format!("small/{number}")), 10);
    }
    let outcome = site.push(&[], site.contents(), "in").expect(23);
    let failures = outcome.stderr.lines().filter(|line| line.contains(" '"));
    let cause = "': No space left on device (os error 28): no inodes are free";
    for line in failures {
        assert!(line.ends_with(cause) || line.contains("df -i"), "{line}");
    }
    outcome.says(&["receiver: The file system has free space, but no free inodes"]);
    assert_part_of(&site.source(), &site.target().join("in"));
    site.push(&["--json"], site.contents(), "new")
        .expect(3)
        .says(&["receiver: ", "new", &cause[3..]]);
}

#[test]
fn a_quota_fails_only_files_without_room() {
    if !has_program("btrfs") {
        return skip("quotas need btrfs");
    }
    let Some(site) = Site::within(|target| Namespace::with_image(target, &BTRFS)) else {
        return;
    };
    paint_all(&site);
    let (place, target) = (site.path("target"), site.path("target").join("in"));
    let btrfs = |words: &str, path: &Path| {
        let words = words.split(' ').map(OsStr::new);
        let command: Vec<_> = [OsStr::new("btrfs")].into_iter().chain(words).collect();
        assert!(
            site.namespace()
                .run(&[&command[..], &[path.as_os_str()]].concat()),
            "{command:?}"
        );
    };
    btrfs("quota enable", &place);
    btrfs("subvolume create", &target);
    btrfs("qgroup limit 12M", &target);
    let outcome = site.push(&["--json"], site.contents(), "in").expect(23);
    assert_all_told(&outcome, "quota exceeded");
    assert_part_of(&site.source(), &site.target().join("in"));
    site.push(&[], site.contents(), "in")
        .expect(23)
        .says(&["receiver: A quota of the user, group or directory is used up"]);
    btrfs("qgroup limit 100M", &target);
    site.push(&["--json"], site.contents(), "in").done();
    assert_same(&site.source(), &site.target().join("in"));
}

/// Asserts that each line names the side, the operation, a path and the cause.
#[track_caller]
fn assert_all_told(outcome: &Outcome, cause: &str) {
    assert!(!outcome.stderr.is_empty());
    for line in outcome.stderr.lines() {
        let operation = line
            .strip_prefix("zmove: receiver: ")
            .and_then(|rest| rest.split_once(" '"));
        assert!(
            operation.is_some_and(|(words, _)| !words.is_empty()),
            "{line}"
        );
        assert!(line.contains(cause), "{line}");
    }
}

/// Returns the regular files of a directory with their inode numbers.
fn inodes(directory: &Path) -> BTreeMap<PathBuf, u64> {
    let paths = picture(directory).into_keys().map(|path| {
        let path = <OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&path);
        directory.join(path)
    });
    let files = paths.filter(|path| path.is_file());
    files
        .map(|path| (path.clone(), path.metadata().unwrap().ino()))
        .collect()
}
