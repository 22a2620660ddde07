//! Tests of the verification that data arrived unchanged.

use super::*;
use std::sync::atomic::AtomicBool;
use zmove_chunk::group_cv;
use zmove_disk::Task;
use zmove_types::{BufferPool, DataRanges, GROUP_BYTES, Metadata, Name, RelPath, Timestamp};
use zmove_wire::{DirectoryGroup, FileEntry, FrameHeader, FrameKind};

fn buffer(bytes: &[u8]) -> Buffer {
    let mut buffer = BufferPool::new(bytes.len(), 1).take().unwrap();
    buffer.room().copy_from_slice(bytes);
    buffer.set_len(bytes.len());
    buffer
}

fn sealed(header: FrameHeader, content: &[u8; 32]) -> FrameHeader {
    FrameHeader {
        digest: seal(&header.prefix(), content),
        ..header
    }
}

fn batch_frame(flip: Option<usize>) -> Frame {
    frame_of(8, file_root(b"contents"), None, flip)
}

/// Returns a frame with one file and eight bytes of data.
fn frame_of(bytes: u32, root: Root, data: Option<DataRanges>, flip: Option<usize>) -> Frame {
    let contents = b"contents";
    let name = Name::from_bytes(b"f").unwrap();
    let data = data.map(Arc::new);
    let file = FileEntry {
        name,
        metadata: Metadata::default(),
        bytes,
        root,
        data,
    };
    let directory = RelPath::from_bytes(b"d").unwrap();
    let batch = Batch {
        groups: vec![DirectoryGroup {
            directory,
            entries: vec![BatchEntry::File(file)],
        }],
    };
    let mut head = batch.encode();
    let content = *blake3::hash(&head).as_bytes();
    let mut data = contents.to_vec();
    if let Some(bit) = flip {
        let byte = bit / 8;
        let target = if byte < head.len() {
            &mut head[byte]
        } else {
            &mut data[byte - batch.encode().len()]
        };
        *target ^= 1 << (bit % 8);
    }
    let header = FrameHeader {
        kind: FrameKind::Batch,
        head_bytes: u32::try_from(head.len()).unwrap(),
        data_bytes: 8,
        item: ItemId(3),
        ..FrameHeader::default()
    };
    Frame {
        header: sealed(header, &content),
        head,
        data: buffer(&data),
    }
}

static RUNNING: AtomicBool = AtomicBool::new(false);
static ENDING: AtomicBool = AtomicBool::new(true);

fn check_batch(frame: Frame) -> Result<Result<VerifiedBatch, StoredItem>, WireError> {
    let quota = Quota::default();
    VerifiedBatch::check(frame, &quota, &quota.turn(Task::Read, &RUNNING))
}

fn check_chunk(frame: Frame, head: &FileHead) -> Result<VerifiedChunk, StoredItem> {
    VerifiedChunk::check(frame, head, &Quota::default().turn(Task::Read, &RUNNING))
}

/// Returns a batch with one file, `d/f`.
pub(crate) fn verified_batch() -> VerifiedBatch {
    check_batch(batch_frame(None)).unwrap().unwrap()
}

#[test]
fn what_attributes_of_a_batch_take_is_booked() {
    let name = |number| format!("user.{number:04}").into_bytes().into();
    let xattr = |number| zmove_types::Xattr {
        name: name(number),
        value: Box::default(),
    };
    let extra = zmove_types::ExtraMetadata {
        xattrs: (0..5000).map(xattr).collect(),
        ..Default::default()
    };
    let metadata = Metadata {
        extra: Some(Arc::new(extra)),
        ..Metadata::default()
    };
    let entries = vec![BatchEntry::Itself(metadata)];
    let head = Batch {
        groups: vec![DirectoryGroup {
            directory: RelPath::root(),
            entries,
        }],
    }
    .encode();
    let content = *blake3::hash(&head).as_bytes();
    let header = FrameHeader {
        kind: FrameKind::Batch,
        item: ItemId(3),
        ..FrameHeader::default()
    };
    let frame = || Frame {
        header: sealed(header, &content),
        head: head.clone(),
        data: buffer(&[]),
    };
    let limited = |bytes: usize| {
        let memory_per_identity = zmove_types::ByteCount(bytes as u64);
        let limits = crate::Limits {
            memory_per_identity,
            ..Default::default()
        };
        let quota = crate::rights::quota::Quotas::default()
            .of(zmove_transport::Fingerprint([1; 32]), &limits);
        VerifiedBatch::check(frame(), &quota, &quota.turn(Task::Read, &RUNNING))
    };
    assert!(limited(4 * head.len()).is_err());
    assert!(matches!(limited(1 << 20), Ok(Ok(_))));
}

#[test]
fn every_flipped_bit_of_a_batch_is_found() {
    assert!(matches!(check_batch(batch_frame(None)), Ok(Ok(_))));
    let bits = 8 * (batch_frame(None).head.len() + 8);
    for bit in 0..bits {
        let checked = check_batch(batch_frame(Some(bit)));
        assert!(
            matches!(checked, Ok(Err(item)) if item.item == 3),
            "bit {bit}"
        );
    }
}

#[test]
fn a_damaged_file_is_named() {
    let data_bit = 8 * batch_frame(None).head.len();
    let Ok(Err(item)) = check_batch(batch_frame(Some(data_bit))) else {
        panic!("damage")
    };
    assert_eq!(item.faults[0].entry, 0);
}

#[test]
fn a_small_file_with_holes_has_the_hash_of_its_bytes() {
    let whole = [&[0; 4096][..], b"contents", &[0; 5]].concat();
    let data = |start| {
        DataRanges::new(
            4109,
            Vec::from([Range {
                start,
                end: start + 8,
            }]),
        )
    };
    let check = |root, data| check_batch(frame_of(4109, root, data, None));
    assert!(check(file_root(&whole), data(4096)).unwrap().is_ok());
    assert!(
        check(file_root(&whole), data(4095)).unwrap().is_err(),
        "at another place"
    );
    assert!(
        check(file_root(b"contents"), data(4096)).unwrap().is_err(),
        "of the data alone"
    );
}

/// If a session has ended, only checks that need a turn fail.
#[test]
fn what_has_holes_is_hashed_in_turns() {
    let quota = Quota::default();
    let over = || quota.turn(Task::Read, &ENDING);
    let whole = [&b"contents"[..], &[0; 5]].concat();
    let data = DataRanges::new(13, Vec::from([Range { start: 0, end: 8 }]));
    let holes = frame_of(13, file_root(&whole), data.clone(), None);
    assert!(
        VerifiedBatch::check(holes, &quota, &over())
            .unwrap()
            .is_err()
    );
    assert!(
        VerifiedBatch::check(batch_frame(None), &quota, &over())
            .unwrap()
            .is_ok()
    );
    let header = FrameHeader {
        kind: FrameKind::Chunk,
        ..FrameHeader::default()
    };
    let chunk = |content: &[u8]| Frame {
        header: sealed(header, &group_cv(0, content).0),
        head: Vec::new(),
        data: buffer(b"contents"),
    };
    assert!(check_chunk(chunk(&whole), &large(13, data.clone())).is_ok());
    assert!(VerifiedChunk::check(chunk(&whole), &large(13, data), &over()).is_err());
    assert!(VerifiedChunk::check(chunk(b"contents"), &large(8, None), &over()).is_ok());
}

#[test]
fn a_group_is_named_by_the_value_that_was_told() {
    let header = FrameHeader {
        kind: FrameKind::Same,
        group: 1,
        item: ItemId(4),
        ..FrameHeader::default()
    };
    let header = sealed(header, &[7; 32]);
    let check = |told: Option<Cv>| UnchangedGroup::check(&header, 2 * GROUP_BYTES, |_| told);
    assert_eq!(check(Some(Cv([7; 32]))).unwrap().item, ItemId(4));
    assert!(check(Some(Cv([8; 32]))).is_err() && check(None).is_err());
    assert!(UnchangedGroup::check(&header, GROUP_BYTES, |_| Some(Cv([7; 32]))).is_err());
}

#[test]
fn a_chunk_in_the_wrong_place_is_found() {
    let bytes = vec![7; 1000];
    let frame = |group: u32| {
        let header = FrameHeader {
            kind: FrameKind::Chunk,
            group,
            ..FrameHeader::default()
        };
        Frame {
            header: sealed(header, &group_cv(1, &bytes).0),
            head: Vec::new(),
            data: buffer(&bytes),
        }
    };
    let file = large(GROUP_BYTES + 1000, None);
    assert!(check_chunk(frame(1), &file).is_ok());
    assert!(check_chunk(frame(0), &file).is_err());
    assert!(check_chunk(frame(9), &file).is_err());
    assert!(check_chunk(frame(1), &large(file.bytes + 1, None)).is_err());
    let mut astray = frame(1);
    astray.header.file = FileId(9);
    assert!(check_chunk(astray, &file).is_err());
}

fn large(bytes: u64, data: Option<DataRanges>) -> FileHead {
    let path = RelPath::from_bytes(b"f").unwrap();
    FileHead {
        path,
        metadata: Metadata::default(),
        bytes,
        ctime: Timestamp::default(),
        inode: 0,
        data: data.map(Arc::new),
    }
}

/// A group with holes is hashed with zeros in place of the holes.
#[test]
fn the_data_of_a_group_with_holes_is_found_only_where_it_belongs() {
    let mut whole = vec![0; 1000];
    whole[10..20].fill(3);
    whole[500..700].fill(4);
    let frame = || {
        let header = FrameHeader {
            kind: FrameKind::Chunk,
            group: 1,
            ..FrameHeader::default()
        };
        let data = buffer(&[&whole[10..20], &whole[500..700]].concat());
        Frame {
            header: sealed(header, &group_cv(1, &whole).0),
            head: Vec::new(),
            data,
        }
    };
    let check = |ranges: &[(u64, u64)]| {
        let ranges = ranges
            .iter()
            .map(|(start, end)| GROUP_BYTES + start..GROUP_BYTES + end)
            .collect();
        let data = DataRanges::new(GROUP_BYTES + 1000, ranges);
        check_chunk(frame(), &large(GROUP_BYTES + 1000, Some(data.unwrap())))
    };
    assert!(check(&[(10, 20), (500, 700)]).is_ok());
    assert!(check(&[(11, 21), (500, 700)]).is_err());
    assert!(check(&[(10, 20), (500, 701)]).is_err(), "another length");
    assert!(check(&[(0, 210)]).is_err() && check(&[]).is_err());
    assert!(check_chunk(frame(), &large(GROUP_BYTES + 1000, None)).is_err());
}
