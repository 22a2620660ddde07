//! The table of large files: declarations, groups, copies and commits.

use std::time::Duration;

use super::*;
use zmove_disk::Tree;
use zmove_types::{GROUP_BYTES, Metadata, RelPath, Timestamp};

fn head(bytes: u64) -> FileHead {
    let path = RelPath::from_bytes(b"f").unwrap();
    let (metadata, ctime) = (Metadata::default(), Timestamp::default());
    FileHead {
        path,
        metadata,
        bytes,
        ctime,
        inode: 0,
        data: None,
    }
}

fn no_base(_: &FileHead) -> Option<OldVersion> {
    None
}

fn no_prior(_: &FileHead) -> Option<(ResumedPart, BytesByOrigin)> {
    None
}

#[test]
fn complete_once_after_every_group() {
    let home = tempfile::tempdir().unwrap();
    let directory = Tree::open(home.path())
        .unwrap()
        .open_directory(&RelPath::root())
        .unwrap();
    let table = FileTable::new(&Quota::default(), None, Completion::AllGroups);
    table
        .declare(FileId(1), head(2 * GROUP_BYTES + 1), no_base, no_prior)
        .unwrap();
    let file = table.find(FileId(1)).unwrap().unwrap();
    let mut complete = Vec::new();
    for index in [2, 0, 0, 1] {
        let hold = file.staged(|| Staged::create(&directory, 0o600)).unwrap();
        let span = GroupSpan::of(file.head.bytes, index).unwrap();
        complete.extend(file.written(span, hold).map(|_| index));
    }
    assert_eq!(complete, [1]);
}

fn with_holes(bytes: u64, ranges: &[std::ops::Range<u64>]) -> FileHead {
    FileHead {
        data: zmove_types::DataRanges::new(bytes, ranges.to_vec()).map(Arc::new),
        ..head(bytes)
    }
}

/// A file that consists of holes is completed by one group. A further group does not complete it again.
#[test]
fn a_file_is_whole_when_its_data_is() {
    let home = tempfile::tempdir().unwrap();
    let directory = Tree::open(home.path())
        .unwrap()
        .open_directory(&RelPath::root())
        .unwrap();
    let ranges = [5..6, 3 * GROUP_BYTES..4 * GROUP_BYTES];
    let cases = [
        (&ranges[..], &[0, 3][..]),
        (&[][..], &[2][..]),
        (&ranges[..], &[0, 1, 1, 3][..]),
    ];
    for (number, (ranges, groups)) in (0..).zip(cases) {
        let table = FileTable::new(&Quota::default(), None, Completion::AllGroups);
        let (id, head) = (FileId(number), with_holes(5 * GROUP_BYTES, ranges));
        table.declare(id, head, no_base, no_prior).unwrap();
        let file = table.find(id).unwrap().unwrap();
        let span = |index| GroupSpan::of(file.head.bytes, index).unwrap();
        let mut complete = Vec::new();
        for index in groups {
            let hold = file.staged(|| Staged::create(&directory, 0o600)).unwrap();
            complete.extend(file.written(span(*index), hold).map(|_| *index));
        }
        assert_eq!(complete, groups[groups.len() - 1..], "{ranges:?}");
        for index in 0..5 {
            assert_eq!(
                file.begin(span(index), ItemId(9)),
                GroupCopy::Late,
                "{ranges:?}"
            );
        }
    }
    let prior = || ResumedPart {
        staged: Staged::create(&directory, 0o600).unwrap(),
        groups: vec![(0, Cv([1; 32])), (3, Cv([2; 32]))],
    };
    let table = FileTable::new(&Quota::default(), None, Completion::AllGroups);
    table
        .declare(
            FileId(1),
            with_holes(5 * GROUP_BYTES, &ranges),
            no_base,
            |_| Some((prior(), BytesByOrigin::default())),
        )
        .unwrap();
    let file = table.find(FileId(1)).unwrap().unwrap();
    let hold = file.staged(|| Err("made anew")).unwrap();
    assert!(
        file.written(GroupSpan::of(5 * GROUP_BYTES, 4).unwrap(), hold)
            .is_some(),
        "all data was there"
    );
}

/// A declaration of 75 bytes can claim this number of groups. If the lane's thread iterated over all groups, the
/// declaration would take minutes.
#[test]
fn a_file_of_four_thousand_million_groups_is_declared_at_once() {
    let groups = u64::from(u32::MAX);
    let bytes = groups * GROUP_BYTES;
    let table = FileTable::new(&Quota::default(), None, Completion::AllGroups);
    let began = cpu_time();
    let data = 0..bytes - 1;
    for (id, head) in (0..).zip([head(bytes), with_holes(bytes, std::slice::from_ref(&data))]) {
        table.declare(FileId(id), head, no_base, no_prior).unwrap();
        let file = table.find(FileId(id)).unwrap().unwrap();
        assert_eq!(file.state.lock().unwritten as u64, groups);
    }
    assert!(
        cpu_time() - began < Duration::from_secs(1),
        "{:?}",
        cpu_time() - began
    );
}

/// Returns the CPU time of this thread, which does not depend on the load of the machine.
pub(super) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.try_into().unwrap()
}

#[test]
fn ranges_and_attributes_of_a_file_are_booked() {
    let limits = crate::Limits {
        memory_per_identity: zmove_types::ByteCount(64 << 10),
        ..Default::default()
    };
    let quota =
        crate::rights::quota::Quotas::default().of(zmove_transport::Fingerprint([1; 32]), &limits);
    let table = FileTable::new(&quota, None, Completion::AllGroups);
    let bytes = 2 * GROUP_BYTES;
    let ranges: Vec<_> = (0..5000).map(|number| 2 * number..2 * number + 1).collect();
    let xattr = zmove_types::Xattr {
        name: b"user.a"[..].into(),
        value: [7; 65_000].into(),
    };
    let extra = zmove_types::ExtraMetadata {
        xattrs: vec![xattr],
        ..Default::default()
    };
    let metadata = Metadata {
        extra: Some(Arc::new(extra)),
        ..Metadata::default()
    };
    let with_attributes = FileHead {
        metadata,
        ..head(bytes)
    };
    for (id, head) in (0..).zip([with_holes(bytes, &ranges), with_attributes]) {
        let declared = table.declare(FileId(id), head, no_base, no_prior);
        assert!(matches!(declared, Err(Undeclarable::OverLimit(_))), "{id}");
    }
    table
        .declare(FileId(2), head(bytes), no_base, no_prior)
        .unwrap();
}

#[test]
fn groups_that_are_there_count() {
    let home = tempfile::tempdir().unwrap();
    let directory = Tree::open(home.path())
        .unwrap()
        .open_directory(&RelPath::root())
        .unwrap();
    let table = FileTable::new(&Quota::default(), None, Completion::AllGroups);
    let prior = || ResumedPart {
        staged: Staged::create(&directory, 0o600).unwrap(),
        groups: vec![(0, Cv([1; 32])), (2, Cv([2; 32]))],
    };
    table
        .declare(FileId(1), head(3 * GROUP_BYTES), no_base, |_| {
            Some((prior(), BytesByOrigin::default()))
        })
        .unwrap();
    table
        .declare(FileId(1), head(3 * GROUP_BYTES), no_base, |_| {
            panic!("asked once")
        })
        .unwrap();
    let file = table.find(FileId(1)).unwrap().unwrap();
    let span = |index| GroupSpan::of(file.head.bytes, index).unwrap();
    assert_eq!(file.begin(span(2), ItemId(1)), GroupCopy::Late);
    let hold = file.staged(|| Err("made anew")).unwrap();
    assert!(file.written(span(1), hold).is_some());
}

#[test]
fn of_two_copies_one_is_written() {
    let table = FileTable::new(&Quota::default(), None, Completion::AllGroups);
    table
        .declare(FileId(1), head(2 * GROUP_BYTES), no_base, no_prior)
        .unwrap();
    let file = table.find(FileId(1)).unwrap().unwrap();
    let home = tempfile::tempdir().unwrap();
    let directory = Tree::open(home.path())
        .unwrap()
        .open_directory(&RelPath::root())
        .unwrap();
    let span = GroupSpan::of(file.head.bytes, 0).unwrap();
    assert_eq!(file.begin(span, ItemId(1)), GroupCopy::First);
    assert_eq!(file.begin(span, ItemId(1)), GroupCopy::Waiting);
    assert_eq!(file.begin(span, ItemId(2)), GroupCopy::Waiting);
    let hold = file.staged(|| Staged::create(&directory, 0o600)).unwrap();
    assert!(file.written(span, hold).is_none());
    assert_eq!(file.begin(span, ItemId(4)), GroupCopy::Waiting);
    assert_eq!(file.end(span), [ItemId(1), ItemId(2), ItemId(4)]);
    assert_eq!(file.begin(span, ItemId(3)), GroupCopy::Late);
    assert_eq!(file.end(span), []);
}

#[test]
fn contradictions_kill_the_file() {
    let table = FileTable::new(&Quota::default(), None, Completion::AllGroups);
    assert!(
        table
            .declare(FileId(1), head(GROUP_BYTES), no_base, no_prior)
            .is_err()
    );
    table
        .declare(FileId(2), head(2 * GROUP_BYTES), no_base, no_prior)
        .unwrap();
    table
        .declare(FileId(2), head(2 * GROUP_BYTES), no_base, no_prior)
        .unwrap();
    assert!(
        table
            .declare(FileId(2), head(3 * GROUP_BYTES), no_base, no_prior)
            .is_err()
    );
    assert!(table.find(FileId(2)).unwrap().is_none());
    assert!(table.find(FileId(3)).is_err());
    assert!(table.retire(FileId(2)).is_none());
}

#[test]
fn a_file_that_is_closing_is_found_until_it_is_closed() {
    let table = FileTable::new(&Quota::default(), None, Completion::AllGroups);
    table
        .declare(FileId(1), head(2 * GROUP_BYTES), no_base, no_prior)
        .unwrap();
    assert!(table.close(FileId(1)));
    assert!(table.retire(FileId(1)).is_none() && !table.close(FileId(1)));
    table
        .declare(FileId(1), head(2 * GROUP_BYTES), no_base, no_prior)
        .unwrap();
    assert!(table.find(FileId(1)).unwrap().is_some());
    table.closed(FileId(1));
    assert!(table.find(FileId(1)).unwrap().is_none());
}

#[test]
fn files_that_are_given_up_and_never_declared_are_not_without_number() {
    let table = FileTable::new(&Quota::default(), None, Completion::AllGroups);
    for id in 0..FILES_UNFINISHED_MAX {
        table.register_abandoned(FileId(id as u64)).unwrap();
    }
    let one_more = FileId(FILES_UNFINISHED_MAX as u64);
    table.register_abandoned(FileId(0)).unwrap();
    assert!(table.register_abandoned(one_more).is_err());
    table
        .declare(FileId(0), head(2 * GROUP_BYTES), no_base, no_prior)
        .unwrap();
    assert!(
        table.find(FileId(0)).unwrap().is_none(),
        "its declaration came late"
    );
    table.register_abandoned(one_more).unwrap();
}

#[test]
fn files_that_are_under_way_are_not_without_number() {
    let table = FileTable::new(&Quota::default(), None, Completion::AllGroups);
    let declare =
        |id: usize| table.declare(FileId(id as u64), head(2 * GROUP_BYTES), no_base, no_prior);
    for id in 0..FILES_UNFINISHED_MAX {
        declare(id).unwrap();
    }
    let one_more = FILES_UNFINISHED_MAX;
    let is_one_too_many = |declared| {
        let limit = WireError::OverLimit {
            what: "number of unfinished large files",
            value: FILES_UNFINISHED_MAX as u64 + 1,
            limit: FILES_UNFINISHED_MAX as u64,
        };
        matches!(declared, Err(Undeclarable::OverLimit(error)) if error == limit)
    };
    assert!(is_one_too_many(declare(one_more)));
    declare(0).unwrap();
    assert!(
        table
            .declare(FileId(1), head(3 * GROUP_BYTES), no_base, no_prior)
            .is_err()
    );
    assert!(table.retire(FileId(2)).is_some() && table.retire(FileId(2)).is_none());
    declare(one_more).unwrap();
    declare(one_more + 1).unwrap();
    assert!(is_one_too_many(declare(one_more + 2)));
    assert_eq!(table.retire_all().len(), FILES_UNFINISHED_MAX);
}
