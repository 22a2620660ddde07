//! Storage that reports lost data only when a file is closed. Uses the zmove next to the lab's program.

use std::process::Command;

use crate::{on_mount, zmove_and_mounts};

/// The ways of storing a file: a name, the number of files and their size in bytes, and the options of the push.
const WAYS: [(&str, usize, usize, &str); 5] = [
    ("under a hidden name", 1, 100_000, ""),
    ("in a staging directory", 20, 1000, ""),
    ("as a large file", 1, 9 << 20, ""),
    ("past the page cache", 1, 9 << 20, "--direct on"),
    ("in place", 1, 9 << 20, "--inplace"),
];

/// NFS reports `ENOSPC` and `EDQUOT` in this way. Without a flush, no other call reports them.
#[test]
fn what_is_lost_at_the_close_of_a_file_is_reported_without_a_flush() {
    let Some(zmove) = zmove_and_mounts() else {
        return;
    };
    for (way, files, bytes, options) in WAYS {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("source/d")).unwrap();
        let over = home.path().join("over/d");
        std::fs::create_dir_all(over.parent().unwrap()).unwrap();
        for number in 0..files {
            let lap: Vec<u8> = (0..251).collect();
            let data = &lap.repeat(bytes.div_ceil(251))[..bytes];
            let file = format!("d/{number}");
            std::fs::write(home.path().join("source").join(&file), data).unwrap();
            if options == "--inplace" {
                std::fs::create_dir(&over).unwrap();
                std::fs::write(over.join(number.to_string()), "old").unwrap();
            }
        }
        let push = format!(
            "{} push --durability none --json {options} source/ $ZMOVE_LAB_LATE/",
            zmove.display()
        );
        let full = on_mount(
            home.path(),
            "over",
            &["--delay", "0", "--room", "0B"],
            &push,
        );
        let said = String::from_utf8_lossy(&full.stderr);
        assert_eq!(full.status.code(), Some(23), "{way}: {said}");
        assert_eq!(
            said.matches("No space left on device").count(),
            files,
            "{way}: {said}"
        );
        let found = std::fs::read_dir(&over).unwrap();
        let found: Vec<_> = found.map(|entry| entry.unwrap().path()).collect();
        match options {
            // The file that is updated in place looks unfinished.
            "--inplace" => assert_eq!(found[0].metadata().unwrap().len(), bytes as u64 + 1),
            _ => assert!(found.is_empty(), "{way}: {found:?}"),
        }
        let done = on_mount(home.path(), "over", &["--delay", "0"], &push);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(0), "{way}: {said}");
        let diff = Command::new("diff")
            .args(["-r", "source", "over"])
            .current_dir(&home)
            .status();
        assert!(diff.unwrap().success(), "{way}");
    }
}
