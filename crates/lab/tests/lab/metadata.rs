//! Metadata that a file system does not support is reported, and everything else arrives. Uses a mount without
//! attributes and devices, and the zmove next to the lab's program.

use std::path::Path;
use std::process::Command;

use crate::{LAB, on_mount, skip, zmove_and_mounts};

/// Creates the tree that the end-to-end tests also push.
const TREE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/e2e/sources/metadata/tree.sh"
);

#[test]
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
    // The mount does not support times before 1970.
    assert!(run(Command::new("touch")
        .args(["-d", "2001-02-03"])
        .arg(at("source/owners/f7"))));
    let push = format!(
        "{} push -a --json source/ $ZMOVE_LAB_LATE/",
        zmove.display()
    );
    for there in [false, true] {
        let output = on_mount(home.path(), "over", &["--delay", "0"], &push);
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
            ("trusted xattr", 3),
            ("device", 6),
            ("security xattr", 2),
        ];
        let expected = counts.map(|(what, count)| (what, "not supported there", count));
        assert_eq!(lacks, expected, "{summary}");
    }
    // A file that has lost its access control list grants its group no more than the list did, so the modes of these
    // files differ.
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

/// A tree, a mount over another directory that deviates from POSIX, and pushes to that mount.
struct Deviating {
    home: tempfile::TempDir,
    deviation: &'static str,
}

impl Deviating {
    /// Creates the tree. It has small files, one of which only its owner can read, a large file, a directory and a
    /// link, all with times in 2001.
    fn new(deviation: &'static str) -> Option<Self> {
        zmove_and_mounts()?;
        let home = tempfile::tempdir().unwrap();
        let script = "umask 022 && mkdir source over source/d && cd source && echo a > a && echo secret > d/secret && \
            head -c 17000000 /dev/zero | tr '\\0' x > large && chmod 600 d/secret large && ln -s a link && \
            chown 7:8 a && touch -h -d 2001-02-03T04:05:06Z a d/secret large link d .";
        let mut sh = Command::new("sh");
        assert!(run(sh.args(["-c", script]).current_dir(&home)));
        Some(Self { home, deviation })
    }

    /// Pushes with these options, expects the exit code, and returns the summary.
    fn push(&self, options: &str, exit: i32) -> serde_json::Value {
        self.push_beside("over", &format!("{options} source/ $ZMOVE_LAB_LATE/"), exit)
    }

    /// Pushes with these arguments while a mount over this directory exists.
    fn push_beside(&self, over: &str, words: &str, exit: i32) -> serde_json::Value {
        let zmove = Path::new(LAB).with_file_name("zmove");
        let push = format!("{} push --json {words}", zmove.display());
        let options = ["--delay", "0", "--deviation", self.deviation];
        let output = on_mount(self.home.path(), over, &options, &push);
        let said = String::from_utf8_lossy(&output.stdout);
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{said} {why}");
        serde_json::from_str(said.lines().last().unwrap()).unwrap()
    }

    /// Returns the metadata that a push with these options reports as not preserved. Attributes are excluded, because
    /// the mount does not support them.
    fn not_kept(&self, options: &str) -> Vec<(String, String, u64)> {
        let summary = self.push(&format!("{options} --no-X --no-A"), 0);
        assert_eq!(summary["failed"], 0, "{summary}");
        self.assert_contents();
        let lacks = summary["not_kept"].as_array().unwrap().iter();
        lacks
            .map(|lack| {
                let text = |key: &str| lack[key].as_str().unwrap().to_owned();
                (text("what"), text("why"), lack["entries"].as_u64().unwrap())
            })
            .collect()
    }

    /// Checks that a push with these options and `--strict-metadata` transfers all contents and fails.
    fn assert_strict(&self, options: &str) {
        self.push(&format!("{options} --no-X --no-A --strict-metadata"), 23);
        self.assert_contents();
    }

    fn assert_contents(&self) {
        let mut diff = Command::new("diff");
        diff.args(["-r", "--no-dereference", "source", "over"]);
        assert!(run(diff.current_dir(&self.home)));
    }
}

fn lacking(what: &str, why: &str, entries: u64) -> (String, String, u64) {
    (what.to_owned(), why.to_owned(), entries)
}

#[test]
fn a_file_system_that_ignores_one_time_alone_gets_both() {
    let Some(site) = Deviating::new("single-times-ignored") else {
        return;
    };
    assert_eq!(site.not_kept(""), []);
    let again = site.push("--no-X --no-A", 0);
    assert_eq!((&again["files"], &again["bytes"]), (&0.into(), &0.into()));
}

#[test]
fn times_that_a_file_system_ignores_are_counted() {
    let Some(site) = Deviating::new("times-ignored") else {
        return;
    };
    // Three files, a link and two directories.
    let expected = [lacking("times", "not supported there", 6)];
    assert_eq!(site.not_kept(""), expected);
    assert_eq!(site.not_kept(""), expected);
    site.assert_strict("");
}

#[test]
fn modes_that_a_file_system_ignores_are_counted() {
    let Some(site) = Deviating::new("modes-ignored") else {
        return;
    };
    // All entries except the link: each file and directory has mode 0777 there.
    let expected = [lacking("mode", "not supported there", 5)];
    assert_eq!(site.not_kept(""), expected);
    assert_eq!(site.not_kept("")[0].0, "mode");
    site.assert_strict("");
    std::fs::remove_dir_all(site.home.path().join("over")).unwrap();
    std::fs::create_dir(site.home.path().join("over")).unwrap();
    site.assert_strict("--inplace");
}

#[test]
fn data_arrives_where_modes_are_refused() {
    let Some(site) = Deviating::new("modes-refused") else {
        return;
    };
    let lacks = site.not_kept("");
    assert!(
        matches!(&lacks[..], [(what, why, _)] if what == "mode" && why == "not permitted to the receiver's user"),
        "{lacks:?}"
    );
    site.assert_strict("--inplace");
}

#[test]
fn owners_that_a_file_system_ignores_are_counted() {
    let Some(site) = Deviating::new("owners-ignored") else {
        return;
    };
    let expected = ["owner", "group"].map(|what| lacking(what, "not supported there", 1));
    assert_eq!(site.not_kept("-a"), expected);
    site.assert_strict("-a");
}

#[test]
fn files_whose_length_a_source_hides_arrive_with_their_contents() {
    let Some(site) = Deviating::new("lengths-hidden") else {
        return;
    };
    std::fs::write(site.home.path().join("source/empty"), "").unwrap();
    let words = "--no-X --no-A $ZMOVE_LAB_LATE/ over/";
    let summary = site.push_beside("source", words, 23);
    assert_eq!(
        summary["failed"], 1,
        "what is longer than 16 MiB: {summary}"
    );
    std::fs::remove_file(site.home.path().join("source/large")).unwrap();
    site.push_beside("source", words, 0);
    site.assert_contents();
}

fn run(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}
