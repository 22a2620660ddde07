//! The receiver's state of interrupted transfers: listed, removed by command, and removed by the daemon after a time.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use zmove_receiver::journal::{Begin, Journal, PartFile, SourceVersion};
use zmove_types::{Cv, GROUP_BYTES, Name, RelPath, Timestamp, TransferId};

use crate::support::command::{Outcome, Runner};
use crate::support::daemon::Daemon;
use crate::support::harness::Site;
use crate::support::tree::{assert_same, names};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The journals in one home.
struct Journals<'a> {
    site: &'a Site,
    home: &'static str,
}

impl<'a> Journals<'a> {
    fn of(site: &'a Site, home: &'static str) -> Self {
        Self { site, home }
    }

    fn directory(&self) -> PathBuf {
        self.site.path(self.home).join("journal")
    }

    /// Returns the path of a transfer's journal. If no journal exists, returns the path for owner and target `OTHER`.
    fn file(&self, transfer: u8) -> PathBuf {
        let transfer = TransferId([transfer; 16]).to_string();
        let found = names(&self.directory())
            .into_iter()
            .find(|name| name.starts_with(&transfer));
        self.directory()
            .join(found.unwrap_or(format!("{transfer}-{OTHER}-{OTHER}.journal")))
    }

    fn part_file(&self, transfer: u8) -> PathBuf {
        self.site
            .target()
            .join(format!("sub/{}", part_name(transfer)))
    }

    /// Begins a transfer with half of a file of three groups, whose first group is flushed.
    fn begin(&self, transfer: u8) -> Journal {
        fs::create_dir_all(self.site.target().join("sub")).unwrap();
        fs::write(self.part_file(transfer), "half").unwrap();
        let stat = self.site.target().metadata().unwrap();
        let begin = Begin {
            transfer: TransferId([transfer; 16]),
            owner: b"SHA256:abc".to_vec(),
            target: self.site.target().into_os_string().into_encoded_bytes(),
            device: stat.dev(),
            inode: stat.ino(),
            begun: 1_700_000_000,
        };
        let journal = Journal::create(&self.directory(), &begin).unwrap();
        let source = SourceVersion {
            bytes: 2 * GROUP_BYTES + 5,
            ..SourceVersion::default()
        };
        let part = PartFile {
            path: RelPath::from_bytes(format!("sub/file {transfer}\x1b").as_bytes()).unwrap(),
            part: Name::from_bytes(part_name(transfer).as_bytes()).unwrap(),
            source,
            inode: self.part_file(transfer).metadata().unwrap().ino(),
            born: Timestamp::default(),
        };
        journal.record_part(1, &part).unwrap();
        journal.record_groups(1, 0, &[Cv([1; 32])]).unwrap();
        journal.record_flushed(journal.mark()).unwrap();
        journal.record_groups(1, 2, &[Cv([3; 32])]).unwrap();
        journal
    }

    /// Leaves an interrupted transfer of this age.
    fn leave(&self, transfer: u8, age: Duration) {
        drop(self.begin(transfer));
        self.age(transfer, age);
    }

    fn age(&self, transfer: u8, age: Duration) {
        let file = File::options()
            .append(true)
            .open(self.file(transfer))
            .unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }

    fn is_left(&self, transfer: u8) -> (bool, bool) {
        (
            self.file(transfer).exists(),
            self.part_file(transfer).exists(),
        )
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        self.site
            .zmove(&[&["journal"], arguments].concat())
            .outcome()
    }

    fn listed(&self) -> Vec<Value> {
        let said = self.run(&["list", "--json"]).done().stdout;
        said.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Returns the name of a transfer's part file.
fn part_name(transfer: u8) -> String {
    format!(".zmove-{transfer:012x}-0")
}

/// A hash for the name of a journal.
const OTHER: &str = "0123456789abcdef";

const LEFT: (bool, bool) = (true, true);
const GONE: (bool, bool) = (false, false);

#[test]
fn unfinished_transfers_are_listed() {
    let site = Site::local();
    let journals = Journals::of(&site, "client");
    assert_eq!(
        journals.run(&["list"]).done().stdout,
        "no unfinished transfers\n"
    );
    assert!(journals.listed().is_empty());
    journals.leave(1, 3 * DAY);
    let _running = journals.begin(2);
    fs::write(journals.file(3), "nonsense").unwrap();
    let said = journals.run(&["list"]).done().stdout;
    let target = site.target();
    let expected = [
        format!("{} into '{}'", TransferId([1; 16]), target.display()),
        "last written 3 d ago\n".to_owned(),
        "  4.00 MiB of 8.00 MiB received; run the same command again to resume\n".to_owned(),
        "  4.00 MiB of   8.00 MiB  sub/file 1\\u{1b}\n".to_owned(),
        " s ago, in use\n".to_owned(),
        format!(
            "{} cannot be read: it is not a journal, or its beginning is damaged",
            TransferId([3; 16])
        ),
    ];
    for part in expected {
        assert!(said.contains(&part), "'{part}' in:\n{said}");
    }
    assert_eq!(
        said.matches("by key SHA256:abc, which is no longer allowed, begun ")
            .count(),
        2,
        "{said}"
    );
}

#[test]
fn the_list_as_json_has_all_fields() {
    let site = Site::local();
    let journals = Journals::of(&site, "client");
    journals.leave(1, DAY);
    fs::write(journals.file(2), "").unwrap();
    let listed = journals.listed();
    assert_eq!(listed.len(), 2);
    let whole = &listed[0];
    assert_eq!(whole["journal"], json!(journals.file(1)));
    assert_eq!(whole["transfer"], json!(TransferId([1; 16]).to_string()));
    assert_eq!(
        (&whole["owner"], &whole["target"]),
        (&json!("SHA256:abc"), &json!(site.target()))
    );
    assert_eq!(
        (&whole["in_use"], &whole["same_boot"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(
        (&whole["begun"], &whole["bytes"]),
        (
            &json!(1_700_000_000),
            &json!(journals.file(1).metadata().unwrap().len())
        )
    );
    assert!(whole["last_written_seconds_ago"].as_u64().unwrap() >= DAY.as_secs());
    let file = json!({
        "path": "sub/file 1\u{1b}",
        "part": part_name(1),
        "bytes": 2 * GROUP_BYTES + 5,
        "bytes_written": GROUP_BYTES + 5,
        "bytes_flushed": GROUP_BYTES,
    });
    assert_eq!(whole["files"], json!([file]));
    assert!(
        listed[1]["error"]
            .as_str()
            .unwrap()
            .contains("not a journal")
    );
    assert_eq!(listed[1]["files"], Value::Null);
}

#[test]
fn clean_removes_old_journals_that_are_not_in_use() {
    let site = Site::local();
    let journals = Journals::of(&site, "client");
    journals.leave(1, 8 * DAY);
    journals.leave(2, 6 * DAY);
    let _running = journals.begin(3);
    journals.age(3, 9 * DAY);
    let said = journals.run(&["clean", "--dry-run"]).done().stdout;
    let target = site.target();
    let line = format!(
        "remove journal {} into '{}', last written 8 d ago: 1 of 1 part files\n",
        TransferId([1; 16]),
        target.display()
    );
    assert_eq!(said, format!("would {line}"));
    assert_eq!(journals.is_left(1), LEFT);
    let said = journals.run(&["clean"]).done().stdout;
    assert_eq!(said, line.replacen("remove", "removed", 1));
    assert_eq!(
        [1, 2, 3].map(|transfer| journals.is_left(transfer)),
        [GONE, LEFT, LEFT]
    );
    journals.run(&["clean", "--older-than", "12h"]).done();
    assert_eq!(
        [2, 3].map(|transfer| journals.is_left(transfer)),
        [GONE, LEFT]
    );
    journals.leave(4, Duration::ZERO);
    fs::write(journals.file(5), "nonsense").unwrap();
    assert_eq!(
        journals.run(&["clean"]).done().stdout,
        "nothing to remove\n"
    );
    let said = journals.run(&["clean", "--all"]).done().stdout;
    assert!(
        said.contains("whose part files are not known: it is not a journal"),
        "{said}"
    );
    assert!(journals.is_left(4) == GONE && !journals.file(5).exists());
    journals.run(&["clean", "--older-than", "soon"]).expect(1);
    journals
        .run(&["clean", "--older-than", "1d", "--all"])
        .expect(1);
}

#[test]
fn clean_leaves_and_reports_a_file_that_has_replaced_a_part() {
    let site = Site::local();
    let journals = Journals::of(&site, "client");
    journals.leave(1, 8 * DAY);
    fs::rename(journals.part_file(1), site.target().join("kept")).unwrap();
    fs::write(journals.part_file(1), "of somebody else").unwrap();
    let outcome = journals.run(&["clean"]).expect(0);
    let part_file = journals.part_file(1);
    let outcome = outcome
        .says(&["zmove: left", part_file.to_str().unwrap(), "not the file"])
        .lines(1);
    assert!(
        outcome.stdout.contains("0 of 1 part files"),
        "{}",
        outcome.stdout
    );
    assert_eq!(fs::read(part_file).unwrap(), b"of somebody else");
    assert!(site.target().join("kept").exists() && !journals.file(1).exists());
}

#[test]
fn clean_keeps_the_journal_of_a_target_that_is_away() {
    let site = Site::local();
    let journals = Journals::of(&site, "client");
    journals.leave(1, 8 * DAY);
    fs::rename(site.target(), site.path("away")).unwrap();
    let outcome = journals.run(&["clean"]).expect(23);
    let outcome = outcome.says(&["zmove: kept journal", "clean --all"]);
    outcome
        .says(&["zmove: left", "No such file or directory"])
        .lines(2);
    fs::rename(site.path("away"), site.target()).unwrap();
    journals.run(&["clean"]).done();
    assert_eq!(journals.is_left(1), GONE);
}

#[test]
fn a_starting_daemon_removes_old_journals() {
    let site = Site::local();
    let journals = Journals::of(&site, "server");
    let start = |options: &[&str]| {
        let options = [&["--listen", "127.0.0.1:0"], options].concat();
        Daemon::start_with(&site.path("server"), &options, &Runner::default())
    };
    journals.leave(1, 8 * DAY);
    journals.leave(2, 6 * DAY);
    let daemon = start(&[]);
    daemon.wait_for_log(&format!("removed journal {}", TransferId([1; 16])));
    assert_eq!(
        [1, 2].map(|transfer| journals.is_left(transfer)),
        [GONE, LEFT]
    );
    drop(daemon);
    fs::write(journals.file(3), "nonsense").unwrap();
    journals.age(3, 2 * DAY);
    let daemon = start(&["--journal-age", "1d"]);
    daemon.wait_for_log(&format!(
        "removed journal {}, whose part files are not known",
        TransferId([3; 16])
    ));
    assert_eq!(
        [2, 3].map(|transfer| journals.is_left(transfer)),
        [GONE, GONE]
    );
}

/// A journal may use a quarter of the bytes of its key. The paths make it large, and the files have no data to send.
#[test]
fn a_journal_that_reaches_its_share_is_named_and_its_transfer_continues() {
    let mut site = Site::local();
    let settings = "[limits]\njournal_bytes_per_identity = \"1MiB\"\n";
    fs::write(site.path("server/zmove.toml"), settings).unwrap();
    site.start_daemon();
    let directory: PathBuf = std::iter::repeat_n("d".repeat(250), 8).collect();
    let directory = site.source().join(directory);
    fs::create_dir_all(&directory).unwrap();
    for number in 0..200 {
        let file = File::create(directory.join(format!("{number:0250}"))).unwrap();
        file.set_len(4 * GROUP_BYTES).unwrap();
    }
    site.push(&["--quiet"], site.contents(), "").done();
    let line = site.the_daemon().wait_for_log("its journal is missing");
    let journals = site.path("server/journal");
    let name = format!("the journal '{}/", journals.display());
    let share = "has reached 262144 bytes, a quarter of limits.journal_bytes_per_identity";
    assert!(line.contains(&name) && line.contains(share), "{line}");
    assert_same(&site.source(), &site.target());
}
