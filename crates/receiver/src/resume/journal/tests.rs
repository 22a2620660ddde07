//! Tests of whole journals: a reader returns the records that were written, and nothing from a damaged part.

use super::locked_file::{self, LockedFile};
use super::naming::{SUFFIX, path_with};
use super::reader::replay;
use super::record::{BootId, Record};
use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

mod cleaning;
mod model;

fn begin(transfer: u8) -> Begin {
    Begin {
        transfer: TransferId([transfer; 16]),
        owner: b"SHA256:x".to_vec(),
        target: b"/data/run7".to_vec(),
        device: 5,
        inode: 6,
        begun: 1_700_000_000,
    }
}

/// Returns the name of a file's part.
fn part_name(name: &str) -> String {
    format!(".zmove-{}-0", &blake3::hash(name.as_bytes()).to_hex()[..12])
}

/// Returns the part of a file with `groups` groups. The last group is short.
fn part(name: &str, groups: u64) -> PartFile {
    let bytes = groups * zmove_types::GROUP_BYTES - 1;
    let mtime = Timestamp {
        seconds: 1_600_000_000,
        nanos: 5,
    };
    PartFile {
        path: RelPath::from_bytes(format!("sub/{name}").as_bytes()).unwrap(),
        part: Name::from_bytes(part_name(name).as_bytes()).unwrap(),
        source: SourceVersion {
            bytes,
            mtime,
            ctime: mtime,
            inode: 77,
        },
        inode: 99,
        born: Timestamp {
            seconds: 1_600_000_001,
            nanos: 6,
        },
    }
}

fn path_of(directory: &Path, begin: &Begin) -> PathBuf {
    path_with(directory, begin, SUFFIX)
}

fn cvs(from: u8, count: u8) -> Vec<Cv> {
    (from..from + count).map(|byte| Cv([byte; 32])).collect()
}

fn home() -> (tempfile::TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("journal");
    (home, directory)
}

/// Takes over the only orphaned journal.
fn the_only(directory: &Path) -> Orphan {
    let mut taken = orphans(directory).unwrap();
    assert_eq!(taken.len(), 1);
    taken.remove(0).unwrap()
}

fn read(bytes: &[u8]) -> Result<Unfinished, JournalError> {
    replay(bytes)
        .unwrap()
        .map(|replay| replay.unfinished(BootId::current()))
}

/// Returns a journal with every type of record, and the end offset of each record.
fn sample() -> (Vec<u8>, Vec<usize>) {
    let records = [
        Record::Begin(begin(1), BootId::current()),
        Record::Part(1, part("one", 9)),
        Record::Groups {
            file: 1,
            first: 0,
            cvs: cvs(1, 2),
            flushed: false,
        },
        Record::Groups {
            file: 1,
            first: 7,
            cvs: cvs(8, 1),
            flushed: true,
        },
        Record::Part(2, part("two", 4)),
        Record::Groups {
            file: 2,
            first: 3,
            cvs: cvs(20, 1),
            flushed: false,
        },
        Record::Flushed { upto: 0 },
        Record::Groups {
            file: 1,
            first: 3,
            cvs: cvs(4, 3),
            flushed: false,
        },
        Record::Ended { file: 2 },
        Record::Flushed { upto: 0 },
        Record::Left {
            file: 1,
            ctime: Timestamp {
                seconds: 1_600_000_002,
                nanos: 7,
            },
        },
    ];
    let (mut bytes, mut ends) = (Vec::new(), Vec::new());
    for record in records {
        let upto = bytes.len() as u64;
        let record = if let Record::Flushed { .. } = record {
            Record::Flushed { upto }
        } else {
            record
        };
        bytes.extend(record.encode().unwrap());
        ends.push(bytes.len());
    }
    (bytes, ends)
}

#[test]
fn a_journal_torn_anywhere_says_what_its_whole_records_say() {
    let (bytes, ends) = sample();
    for len in 0..=bytes.len() {
        let torn = read(&bytes[..len]);
        match ends.iter().rev().find(|&&end| end <= len) {
            Some(&end) => assert_eq!(torn.unwrap(), read(&bytes[..end]).unwrap(), "{len}"),
            None => assert!(matches!(torn, Err(JournalError::Damaged)), "{len}"),
        }
    }
    let counts = |end: &usize| {
        read(&bytes[..*end])
            .unwrap()
            .files
            .iter()
            .map(|file| file.groups.len())
            .sum()
    };
    let grown: Vec<usize> = ends.iter().map(counts).collect();
    assert_eq!(
        grown,
        [0, 0, 2, 3, 3, 4, 4, 7, 6, 6, 6],
        "each record counts"
    );
    let left = Some(Timestamp {
        seconds: 1_600_000_002,
        nanos: 7,
    });
    assert_eq!(read(&bytes).unwrap().files[0].left, left);
}

#[test]
fn a_journal_damaged_anywhere_says_what_stands_before() {
    let (mut bytes, ends) = sample();
    for position in 0..bytes.len() {
        let before = ends.iter().rev().find(|&&end| end <= position).copied();
        let expected = before.map(|end| read(&bytes[..end]).unwrap());
        for flipped in [
            0x01,
            0x02,
            0x04,
            0x08,
            0x10,
            0x20,
            0x40,
            0x80,
            0xff,
            bytes[position],
        ] {
            bytes[position] ^= flipped;
            match (&expected, read(&bytes)) {
                (Some(expected), found) if flipped != 0 => {
                    assert_eq!(&found.unwrap(), expected, "{position}")
                }
                (None, found) if flipped != 0 => {
                    assert!(
                        matches!(found, Err(JournalError::Damaged)),
                        "{position} {found:?}"
                    );
                }
                (_, unchanged) => assert!(unchanged.is_ok()),
            }
            bytes[position] ^= flipped;
        }
    }
}

#[test]
fn a_flush_speaks_only_of_what_was_told_before_its_mark() {
    let (_home, directory) = home();
    let journal = Journal::create(&directory, &begin(1)).unwrap();
    journal.record_part(4, &part("x", 9)).unwrap();
    journal.record_groups(4, 0, &cvs(1, 2)).unwrap();
    let mark = journal.mark();
    journal.record_groups(4, 5, &cvs(6, 1)).unwrap();
    journal.record_flushed(mark).unwrap();
    journal.record_groups(4, 0, &cvs(1, 1)).unwrap();
    journal.record_groups(4, 1, &cvs(9, 1)).unwrap();
    drop(journal);
    let orphan = the_only(&directory);
    let groups: Vec<_> = orphan.unfinished().files[0]
        .groups
        .iter()
        .map(|(i, group)| (*i, *group))
        .collect();
    let expected = [
        (0, (Cv([1; 32]), true)), // the same group again
        (1, (Cv([9; 32]), false)),
        (5, (Cv([6; 32]), false)),
    ];
    assert_eq!(groups, expected);
    assert!(orphan.unfinished().same_boot);
}

#[test]
fn groups_that_a_file_cannot_have_are_left_out() {
    let bytes: Vec<u8> = [
        Record::Begin(begin(1), BootId::current()),
        Record::Part(1, part("x", 3)),
        Record::Groups {
            file: 1,
            first: 2,
            cvs: cvs(1, 2),
            flushed: false,
        },
        Record::Groups {
            file: 1,
            first: u32::MAX,
            cvs: cvs(1, 2),
            flushed: false,
        },
        Record::Groups {
            file: 9,
            first: 0,
            cvs: cvs(1, 2),
            flushed: false,
        },
        Record::Ended { file: 9 },
    ]
    .iter()
    .flat_map(|record| record.encode().unwrap())
    .collect();
    let unfinished = read(&bytes).unwrap();
    assert_eq!(unfinished.files.len(), 1);
    assert_eq!(
        unfinished.files[0].groups,
        BTreeMap::from([(2, (Cv([1; 32]), false))])
    );
}

#[test]
fn replay_stops_at_a_record_that_no_writer_makes() {
    let (bytes, ends) = sample();
    let expected = read(&bytes).unwrap();
    let of_the_future = Record::Flushed {
        upto: *ends.last().unwrap() as u64 + 1,
    };
    for wrong in [of_the_future, Record::Begin(begin(2), BootId::current())] {
        let then = Record::Part(9, part("after", 2));
        let tail = [wrong.encode().unwrap(), then.encode().unwrap()].concat();
        assert_eq!(
            read(&[&bytes[..], &tail].concat()).unwrap(),
            expected,
            "{wrong:?}"
        );
    }
}

#[test]
fn another_boot_and_an_unknown_one_are_not_this_one() {
    for (then, now, same) in [
        ([1; 16], [1; 16], true),
        ([1; 16], [2; 16], false),
        ([0; 16], [0; 16], false),
    ] {
        let bytes = Record::Begin(begin(1), BootId(then)).encode().unwrap();
        let unfinished = replay(&bytes[..]).unwrap().unwrap().unfinished(BootId(now));
        assert_eq!(unfinished.same_boot, same);
    }
}

#[test]
fn a_journal_of_another_version_is_told_and_left_alone() {
    let (_home, directory) = home();
    drop(Journal::create(&directory, &begin(1)).unwrap());
    let path = path_of(&directory, &begin(1));
    let mut bytes = fs::read(&path).unwrap();
    let body = bytes.len() - 4;
    bytes[12] = 2;
    let checksum = crc32c::crc32c(&bytes[..body]).to_le_bytes();
    bytes[body..].copy_from_slice(&checksum);
    fs::write(&path, &bytes).unwrap();
    let taken = orphans(&directory).unwrap();
    let [Err((told, JournalError::OtherVersion { found: 2 }))] = &taken[..] else {
        panic!("{taken:?}")
    };
    assert_eq!(told, &path);
    let listed = list(&directory).unwrap();
    let text = listed[0].contents.as_ref().unwrap_err().to_string();
    assert_eq!(
        text,
        "it has format version 2, and this zmove reads 1: use the release that wrote it"
    );
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_journal_has_one_holder() {
    let (_home, directory) = home();
    let journal = Journal::create(&directory, &begin(1)).unwrap();
    let again = Journal::create(&directory, &begin(1)).unwrap_err();
    let JournalError::Io { source, .. } = again else {
        panic!("{again:?}")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::AlreadyExists);
    assert!(orphans(&directory).unwrap().is_empty());
    assert!(list(&directory).unwrap()[0].in_use);
    drop(journal);
    assert!(!list(&directory).unwrap()[0].in_use);
    let orphan = the_only(&directory);
    assert!(orphans(&directory).unwrap().is_empty());
    assert!(!discard(orphan.path()).unwrap());
    orphan.remove().unwrap();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn who_comes_to_a_lock_late_finds_nothing() {
    let (_home, directory) = home();
    drop(Journal::create(&directory, &begin(1)).unwrap());
    let orphan = the_only(&directory);
    let opened_before = locked_file::open(orphan.path()).unwrap().unwrap();
    orphan.remove().unwrap();
    assert!(!locked_file::lock(&opened_before).unwrap());
}

/// A child process has a copy of the descriptor until it executes its program.
#[test]
fn a_lock_ends_with_its_file_although_a_copy_of_the_descriptor_is_open() {
    let (home, _directory) = home();
    let path = home.path().join("f");
    let held = LockedFile::create(&path).unwrap();
    let _copy = held.file.try_clone().unwrap();
    assert!(LockedFile::take(&path).unwrap().is_none());
    drop(held);
    assert!(LockedFile::take(&path).unwrap().is_some());
}

#[test]
fn only_what_is_wanted_is_taken() {
    let (_home, directory) = home();
    for transfer in [1, 2] {
        drop(Journal::create(&directory, &begin(transfer)).unwrap());
    }
    let wanted = |begin: &Begin| begin.transfer == TransferId([2; 16]);
    let taken = orphans_like(&directory, &begin(1), wanted).unwrap();
    assert_eq!(taken.len(), 1);
    let free: Vec<_> = list(&directory)
        .unwrap()
        .iter()
        .map(|listed| !listed.in_use)
        .collect();
    assert_eq!(free, [true, false]);
}

/// There may be many journals of other owners, so they must be skipped by name. In this test, opening one would fail,
/// because it is damaged.
#[test]
fn journals_of_others_and_of_other_places_are_not_opened() {
    let (_home, directory) = home();
    drop(Journal::create(&directory, &begin(1)).unwrap());
    let others = [
        Begin {
            owner: b"SHA256:y".to_vec(),
            ..begin(2)
        },
        Begin {
            inode: 7,
            ..begin(3)
        },
    ];
    for other in &others {
        fs::write(path_of(&directory, other), "damaged").unwrap();
    }
    let taken = orphans_like(&directory, &begin(1), |_| true).unwrap();
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert!(taken[0].is_ok());
    drop(taken);
    assert_eq!(list(&directory).unwrap().len(), 3);
    assert_eq!(
        orphans(&directory)
            .unwrap()
            .iter()
            .filter(|taken| taken.is_err())
            .count(),
        2
    );
}

#[test]
fn an_owner_has_no_more_journals_than_there_is_room_for() {
    let (_home, directory) = home();
    let room = JournalLimits {
        journals: 2,
        bytes: 4000,
    };
    let create = |begin: &Begin| Journal::create_within(&directory, begin, room);
    let stranger = |transfer| Begin {
        owner: b"SHA256:y".to_vec(),
        ..begin(transfer)
    };
    let first = create(&begin(1)).unwrap();
    drop(create(&begin(2)).unwrap());
    assert!(matches!(
        create(&begin(3)),
        Err(JournalError::NoRoom { limit: 2, .. })
    ));
    drop(create(&stranger(3)).unwrap());
    first.record_part(1, &part("a", 500)).unwrap();
    let mut told = 0;
    while first.record_groups(1, told, &cvs(0, 1)).is_ok() {
        told += 1;
    }
    assert!(
        (10..25).contains(&told),
        "{told} groups in a quarter of 4000 bytes"
    );
    let full = first.record_groups(1, told, &cvs(0, 1)).unwrap_err();
    let expected = format!(
        "the journal '{}' has reached 1000 bytes, a quarter of limits.journal_bytes_per_identity: ",
        path_of(&directory, &begin(1)).display()
    );
    assert!(full.to_string().starts_with(&expected), "{full}");
    first.record_end(1).unwrap();
    assert!(create(&stranger(4)).is_ok());
    first.remove().unwrap();
    fs::write(path_of(&directory, &begin(2)), [0; 4000]).unwrap();
    assert!(matches!(
        create(&begin(3)),
        Err(JournalError::NoRoom { limit: 4000, .. })
    ));
}

#[test]
fn only_the_owner_may_read_a_journal() {
    let (_home, directory) = home();
    let _journal = Journal::create(&directory, &begin(1)).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    let names: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(names, [path_of(&directory, &begin(1))]);
    assert_eq!(mode(&names[0]), 0o600);
}

#[test]
fn what_a_writer_left_half_made_is_swept_and_other_files_are_not() {
    let (_home, directory) = home();
    fs::create_dir(&directory).unwrap();
    let named = |transfer, end| {
        let path = path_of(&directory, &begin(transfer));
        path.with_extension(end)
    };
    let left = named(1, "journal.new");
    fs::write(&left, "").unwrap();
    fs::write(directory.join("notes.journal"), "").unwrap();
    fs::create_dir(named(2, "journal")).unwrap();
    let being_made = named(3, "journal.new");
    let _held = LockedFile::create(&being_made).unwrap();
    assert!(orphans(&directory).unwrap().is_empty() && list(&directory).unwrap().is_empty());
    assert!(!left.exists() && being_made.exists() && directory.join("notes.journal").exists());
    let nowhere = directory.join("nowhere");
    assert!(orphans(&nowhere).unwrap().is_empty() && list(&nowhere).unwrap().is_empty());
}

#[test]
fn what_is_adopted_keeps_what_was_flushed() {
    let (_home, directory) = home();
    let groups = BTreeMap::from_iter((0..9).map(|index| (index, (Cv([7; 32]), index % 3 != 1))));
    let left = Some(Timestamp {
        seconds: 1,
        nanos: 2,
    });
    let old = UnfinishedFile {
        file: 3,
        part: part("x", 9),
        groups,
        left,
    };
    let journal = Journal::create(&directory, &begin(2)).unwrap();
    journal.record_part(5, &part("other", 2)).unwrap();
    journal.record_groups(5, 0, &cvs(1, 1)).unwrap();
    journal.adopt(8, &old).unwrap();
    drop(journal);
    let files = the_only(&directory).unfinished().files.clone();
    assert_eq!(
        files[1],
        UnfinishedFile {
            file: 8,
            left: None,
            ..old
        },
        "it is written to again"
    );
    assert_eq!(
        files[0].groups,
        BTreeMap::from([(0, (Cv([1; 32]), false))]),
        "no flush was told"
    );
}

/// Another program may have written to the part between the two records.
#[test]
fn what_is_told_of_a_part_after_it_was_left_counts_more() {
    let (_home, directory) = home();
    let journal = Journal::create(&directory, &begin(1)).unwrap();
    let ctime = Timestamp {
        seconds: 3,
        nanos: 4,
    };
    for file in [1, 2] {
        journal.record_part(file, &part("x", 9)).unwrap();
        journal.record_left(file, ctime).unwrap();
    }
    journal.record_left(3, ctime).unwrap();
    journal.write_anew();
    journal.record_groups(2, 0, &cvs(1, 1)).unwrap();
    drop(journal);
    let left: Vec<_> = the_only(&directory)
        .unfinished()
        .files
        .iter()
        .map(|file| file.left)
        .collect();
    assert_eq!(left, [Some(ctime), None]);
}

#[test]
fn a_file_that_has_ended_in_an_orphan_is_not_listed_again() {
    let (_home, directory) = home();
    let journal = Journal::create(&directory, &begin(1)).unwrap();
    assert!(journal.is_idle());
    for file in [1, 2] {
        journal.record_part(file, &part("x", 2)).unwrap();
    }
    assert!(!journal.is_idle());
    drop(journal);
    let path = list(&directory).unwrap().remove(0).path;
    let torn = [&fs::read(&path).unwrap()[..], b"torn"].concat();
    fs::write(&path, torn).unwrap();
    let before = the_only(&directory);
    let written = before.modified();
    let mut orphan = before;
    orphan.record_end(1).unwrap();
    let files = orphan.unfinished().files.clone();
    assert_eq!(files.iter().map(|file| file.file).collect::<Vec<_>>(), [2]);
    drop(orphan);
    let orphan = the_only(&directory);
    assert_eq!(
        (&orphan.unfinished().files, orphan.modified()),
        (&files, written)
    );
}

#[test]
fn a_mark_is_worth_nothing_when_the_journal_has_been_written_anew() {
    let (_home, directory) = home();
    let journal = Journal::create(&directory, &begin(1)).unwrap();
    journal.record_part(1, &part("stays", 9)).unwrap();
    journal.record_part(2, &part("goes", 200)).unwrap();
    journal.record_groups(2, 0, &cvs(1, 200)).unwrap();
    journal.record_end(2).unwrap();
    let mark = journal.mark();
    journal.write_anew();
    journal.record_groups(1, 0, &cvs(1, 1)).unwrap();
    journal.record_flushed(mark).unwrap();
    drop(journal);
    let groups = the_only(&directory).unfinished().files[0].groups.clone();
    assert_eq!(groups, BTreeMap::from([(0, (Cv([1; 32]), false))]));
}

#[test]
fn nothing_follows_a_record_that_could_not_be_taken_back() {
    let (_home, directory) = home();
    let journal = Journal::create(&directory, &begin(1)).unwrap();
    journal.record_part(1, &part("x", 9)).unwrap();
    journal.make_read_only();
    let first = journal.record_groups(1, 0, &cvs(1, 1)).unwrap_err();
    assert!(
        matches!(
            first,
            JournalError::Io {
                operation: "write",
                ..
            }
        ),
        "{first:?}"
    );
    let then = journal.record_groups(1, 1, &cvs(2, 1)).unwrap_err();
    assert!(matches!(then, JournalError::Broken), "{then:?}");
}

#[test]
fn more_files_than_a_journal_holds_are_refused() {
    let (_home, directory) = home();
    let journal = Journal::create(&directory, &begin(1)).unwrap();
    let files = u64::try_from(FILES_MAX).unwrap();
    (0..files).for_each(|file| journal.record_part(file, &part("x", 2)).unwrap());
    let refused = journal.record_part(files, &part("x", 2)).unwrap_err();
    assert!(
        matches!(refused, JournalError::TooManyFiles { .. }),
        "{refused:?}"
    );
    journal.record_end(0).unwrap();
    journal.record_part(files, &part("x", 2)).unwrap();
    drop(journal);
    assert_eq!(the_only(&directory).unfinished().files.len(), FILES_MAX);
}

#[test]
fn a_journal_does_not_grow_with_the_files_that_have_ended() {
    let (_home, directory) = home();
    let journal = Journal::create(&directory, &begin(1)).unwrap();
    journal.record_part(0, &part("stays", 3)).unwrap();
    journal.record_groups(0, 1, &cvs(1, 1)).unwrap();
    let bytes = || list(&directory).unwrap()[0].bytes;
    let all: Vec<_> = cvs(0, 255).into_iter().cycle().take(60_000).collect();
    for file in 1..20 {
        journal.record_part(file, &part("goes", 60_000)).unwrap();
        journal.record_groups(file, 0, &all).unwrap();
        journal.record_end(file).unwrap();
    }
    assert!(bytes() < 12 << 20, "{}", bytes());
    assert!(list(&directory).unwrap()[0].in_use && orphans(&directory).unwrap().is_empty());
    let mark = journal.mark();
    journal.record_groups(0, 2, &cvs(2, 1)).unwrap();
    journal.record_flushed(mark).unwrap();
    drop(journal);
    let files = the_only(&directory).unfinished().files.clone();
    let groups = BTreeMap::from([(1, (Cv([1; 32]), true)), (2, (Cv([2; 32]), false))]);
    assert_eq!(
        files,
        [UnfinishedFile {
            file: 0,
            part: part("stays", 3),
            groups,
            left: None
        }]
    );
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
}

/// Makes an unlocked journal look as if it was written before a reboot.
pub(crate) fn pretend_reboot(path: &Path) {
    use std::os::unix::fs::FileExt;
    let journal = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let begin = reader::begin(&journal).unwrap().unwrap();
    let first = Record::Begin(begin, BootId([9; 16])).encode().unwrap();
    journal.write_all_at(&first, 0).unwrap();
}
