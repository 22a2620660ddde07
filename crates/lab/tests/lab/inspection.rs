//! A dry run and a verification on a file system that does not support unnamed files.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::{on_mount, zmove_and_mounts};

/// Like FAT, the mount does not support unnamed files. On other file systems, the program uses them to test the
/// precision of times.
#[test]
fn an_inspection_makes_no_name_where_files_cannot_be_without_one() {
    let Some(zmove) = zmove_and_mounts() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let exact = UNIX_EPOCH + Duration::new(1_000_000_001, 987_654_321);
    let whole_second = UNIX_EPOCH + Duration::from_secs(1_000_000_001);
    for (directory, time) in [("source", exact), ("over", whole_second)] {
        std::fs::create_dir(at(directory)).unwrap();
        let file = File::create(at(directory).join("f")).unwrap();
        file.set_modified(time).unwrap();
        let directory = File::open(at(directory)).unwrap();
        directory.set_modified(whole_second).unwrap();
    }
    let before = changed_at(&at("over"));
    for command in ["push -n", "verify"] {
        let inspection = format!("{} {command} source/ $ZMOVE_LAB_LATE/", zmove.display());
        let output = on_mount(home.path(), "over", &["--delay", "0"], &inspection);
        let said = String::from_utf8_lossy(&output.stdout);
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("~ f (time)"), "{command}: {said}{complaints}");
        assert_eq!(
            changed_at(&at("over")),
            before,
            "{command}: {said}{complaints}"
        );
    }
}

/// Returns the change time of an inode, which cannot be set back.
fn changed_at(path: &Path) -> (i64, i64) {
    let there = path.metadata().unwrap();
    (there.ctime(), there.ctime_nsec())
}
