//! What a file system does not hold is told, and all else arrives: a mount without attributes and devices, beneath the
//! zmove that lies beside the lab's program.

use std::path::Path;
use std::process::Command;

use crate::{LAB, skip};

/// Makes the tree that the tests of the whole program push, too.
const TREE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/e2e/metadata/tree.sh"
);

#[test]
#[expect(clippy::too_many_lines, reason = "one tree, checked step by step")]
fn what_a_mount_does_not_hold_is_counted_and_all_else_arrives() {
    let zmove = Path::new(LAB).with_file_name("zmove");
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    for name in ["source", "over"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    let can_mount = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    let grown = can_mount && run(Command::new("sh").arg(TREE).arg(at("source")).arg("1500"));
    for (here, missing) in [
        (zmove.is_file(), "zmove beside the lab"),
        (grown, "root, FUSE or attributes"),
    ] {
        if !here {
            return skip(&format!("there is no {missing}"));
        }
    }
    // The mount does not carry times before 1970.
    assert!(run(Command::new("touch")
        .args(["-d", "2001-02-03"])
        .arg(at("source/owners/f7"))));
    let push = format!(
        "{} push -a --json source/ $ZMOVE_LAB_LATE/",
        zmove.display()
    );
    for there in [false, true] {
        let mut command = Command::new(LAB);
        command.args([
            "late", "--delay", "0", "--over", "over", "--", "sh", "-c", &push,
        ]);
        let output = command
            .current_dir(&home)
            .env("HOME", home.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let said = String::from_utf8_lossy(&output.stdout);
        let summary: serde_json::Value =
            serde_json::from_str(said.lines().last().unwrap()).unwrap();
        assert_eq!(
            (&summary["failed"], summary["files"] == 0),
            (&0.into(), there),
            "{summary}"
        );
        let lacks = summary["not_kept"].as_array().unwrap().iter();
        let lacks: Vec<_> = lacks
            .map(|lack| {
                let text = |key: &str| lack[key].as_str().unwrap();
                (text("what"), text("why"), lack["entries"].as_u64().unwrap())
            })
            .collect();
        let counts = [
            ("xattr", 7),
            ("acl", 7),
            ("privileged xattr", 5),
            ("device", 6),
        ];
        let expected = counts.map(|(what, count)| (what, "not supported there", count));
        assert_eq!(lacks, expected, "{summary}");
    }
    // A file that has lost its list gives its group no more than the list, so that modes of those differ.
    let mut rsync = Command::new("rsync");
    rsync.args(["-naHSi", "--numeric-ids", "--checksum", "--delete"]);
    let others = [
        "null", "disk", "far", "large", "lists", "/tied/f5", "a5", "b5", "tied5",
    ];
    rsync.args(others.map(|name| format!("--exclude={name}")));
    rsync.arg(at("source/")).arg(at("over/"));
    let left = rsync.output().unwrap();
    assert!(
        left.status.success(),
        "{}",
        String::from_utf8_lossy(&left.stderr)
    );
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}

fn run(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}
