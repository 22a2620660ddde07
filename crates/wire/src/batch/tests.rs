//! Encoding and decoding batches.

use super::*;
use crate::limits::{BATCH_HEAD_BYTES_TARGET, FRAME_HEAD_BYTES_MAX};
use proptest::prelude::{Strategy, any, prop_oneof, proptest};
use zmove_types::{Account, ExtraMetadata, Xattr};

fn name(bytes: &[u8]) -> Name {
    Name::from_bytes(bytes).unwrap()
}

fn path(text: &str) -> RelPath {
    RelPath::from_bytes(text.as_bytes()).unwrap()
}

fn metadata() -> Metadata {
    Metadata::new(
        0o644,
        Timestamp {
            seconds: -2,
            nanos: 5,
        },
    )
}

/// The encoding of [`metadata`] without its last byte, which says whether extra metadata follows.
const METADATA: [u8; 4] = [0xA4, 3, 3, 5];

fn with(extra: ExtraMetadata) -> Metadata {
    Metadata {
        extra: Some(Arc::new(extra)),
        ..metadata()
    }
}

fn xattr(name: &str, value: &[u8]) -> Xattr {
    Xattr {
        name: name.as_bytes().into(),
        value: value.into(),
    }
}

fn file(bytes: u32, data: Option<DataRanges>) -> BatchEntry {
    BatchEntry::File(FileEntry {
        name: name(b"a"),
        metadata: metadata(),
        bytes,
        root: Root([7; 32]),
        data: data.map(Arc::new),
    })
}

fn batch(directory: &str, entries: Vec<BatchEntry>) -> Batch {
    let directory = path(directory);
    Batch {
        groups: vec![DirectoryGroup { directory, entries }],
    }
}

/// Returns the encoding of an entry, after checking that it decodes to the same entry.
fn sent(entry: BatchEntry) -> Vec<u8> {
    let batch = batch("", vec![entry]);
    let bytes = batch.encode();
    assert_eq!(Batch::decode(&bytes, 0), Ok(batch));
    bytes[3..].to_vec()
}

#[test]
fn batch_bytes_are_pinned() {
    let link = BatchEntry::Symlink(name(b"l"), metadata(), b"t".as_slice().into());
    let batch = batch("d", vec![file(3, None), link]);
    let expected = [
        &[1, 1, b'd', 2][..],
        &[&[3, 1, b'a'], &METADATA[..], &[0, 3], &[7; 32], &[0]].concat(),
        &[&[2, 1, b'l'], &METADATA[..], &[0, 1, b't']].concat(),
    ]
    .concat();
    assert_eq!(batch.encode(), expected);
    assert_eq!(Batch::decode(&expected, 3), Ok(batch));
}

#[test]
fn a_small_file_s_holes_are_pinned_and_its_data_alone_is_in_the_frame() {
    let data = DataRanges::new(9, Vec::from([Range { start: 4, end: 6 }]));
    let batch = batch("", vec![file(9, data)]);
    let mut bytes = batch.encode();
    assert!(bytes.ends_with(&[7, 1, 9, 1, 4, 6]));
    assert_eq!(Batch::decode(&bytes, 2), Ok(batch));
    assert!(matches!(
        Batch::decode(&bytes, 9),
        Err(WireError::OverLimit { .. })
    ));
    let bytes_of_file = bytes.len() - 4;
    for other in [8, 10] {
        bytes[bytes_of_file] = other;
        assert_eq!(Batch::decode(&bytes, 2), Err(WireError::Head));
    }
}

#[test]
fn ranges_that_make_no_sense_are_refused() {
    let plain = batch("", vec![file(9, None)]).encode();
    let decoded = |data: &[u8]| {
        let bytes = [&plain[..plain.len() - 1], &[1, 9], data].concat();
        Batch::decode(&bytes, 2)
    };
    assert!(decoded(&[1, 4, 6]).is_ok());
    for ranges in [
        &[1, 6, 4][..],
        &[1, 4, 4],
        &[1, 8, 10],
        &[2, 4, 5, 5, 6],
        &[2, 5, 6, 3, 4],
        &[1, 0, 9],
        &[0x81, 0x40],
    ] {
        assert_eq!(decoded(ranges), Err(WireError::Head), "{ranges:?}");
    }
}

#[test]
fn lengths_must_add_up() {
    let decoded = |batch: &Batch, data_bytes| Batch::decode(&batch.encode(), data_bytes);
    let error = |value, limit| {
        Err(WireError::OverLimit {
            what: "sum of the data of files",
            value,
            limit,
        })
    };
    assert_eq!(decoded(&Batch::default(), 1), error(0, 1));
    assert_eq!(decoded(&batch("", vec![file(3, None)]), 2), error(3, 2));
}

/// A file without data costs its sender only a few bytes, but the receiver must hash all of its zeros.
#[test]
fn files_of_holes_are_together_no_longer_than_a_frame() {
    let decoded = |bytes: &[u32]| {
        let hole = |bytes: &u32| file(*bytes, DataRanges::new((*bytes).into(), Vec::new()));
        Batch::decode(&batch("", bytes.iter().map(hole).collect()).encode(), 0)
    };
    let half = u32::try_from(FRAME_DATA_BYTES_MAX / 2).unwrap();
    assert!(decoded(&[half, half]).is_ok());
    let value = FRAME_DATA_BYTES_MAX as u64 + 1;
    let error = WireError::OverLimit {
        what: "sum of file lengths",
        value,
        limit: value - 1,
    };
    assert_eq!(decoded(&[half, half, 1]), Err(error));
}

#[test]
fn a_path_that_climbs_is_refused() {
    let bytes = [1, 2, b'.', b'.', 0];
    assert_eq!(Batch::decode(&bytes, 0), Err(WireError::Head));
}

#[test]
fn entries_are_bounded_over_all_groups() {
    let of = |counts: [usize; 2]| {
        let group = |count| DirectoryGroup {
            directory: RelPath::root(),
            entries: vec![BatchEntry::Itself(metadata()); count],
        };
        let groups = counts.map(group).into();
        Batch::decode(&Batch { groups }.encode(), 0).map(|_| ())
    };
    assert_eq!(of([BATCH_ENTRIES_MAX - 1, 1]), Ok(()));
    let error = WireError::OverLimit {
        what: "batch entries",
        value: 2,
        limit: 1,
    };
    assert_eq!(of([BATCH_ENTRIES_MAX - 1, 2]), Err(error));
}

#[test]
fn a_head_has_one_form() {
    let bytes = batch("", vec![BatchEntry::Itself(metadata())]).encode();
    assert_eq!(bytes, [&[1, 0, 1, 0], &METADATA[..], &[0]].concat());
    let overlong = [&[0x81, 0], &bytes[1..]].concat();
    let beyond_mode = [&bytes[..4], &[0xA4, 0x83, 1], &bytes[6..]].concat();
    let empty_extra = [&bytes[..8], &[1, 0, 0, 0, 0, 0]].concat();
    let longer = [&bytes[..], &[0]].concat();
    for other in [overlong, beyond_mode, empty_extra, longer] {
        let decoded = Batch::decode(&other, 0);
        assert_eq!(decoded, Err(WireError::OtherForm), "{other:?}");
    }
}

#[test]
fn special_entries_are_pinned() {
    let entry = |special| sent(BatchEntry::Special(name(b"s"), metadata(), special));
    let before = [&[5, 1, b's'], &METADATA[..], &[0]].concat();
    let expected = |special: &[u8]| [&before[..], special].concat();
    assert_eq!(entry(Special::Fifo), expected(&[0]));
    assert_eq!(entry(Special::Socket), expected(&[1]));
    assert_eq!(entry(Special::Character(0x0103)), expected(&[2, 0x83, 2]));
    assert_eq!(entry(Special::Block(1)), expected(&[3, 1]));
    let unknown = [&[1, 0, 1], &expected(&[4])[..]].concat();
    assert_eq!(Batch::decode(&unknown, 0), Err(WireError::Head));
}

#[test]
fn links_are_pinned_and_lead_to_a_path_below_the_target() {
    let link = |first: &str| {
        BatchEntry::Link(LinkEntry {
            name: name(b"l"),
            metadata: metadata(),
            bytes: 300,
            first: path(first),
        })
    };
    let before = [&[6, 1, b'l'], &METADATA[..], &[0, 0xAC, 2]].concat();
    let expected = [&before[..], &[3, b'd', b'/', b'f']].concat();
    assert_eq!(sent(link("d/f")), expected);
    for path in ["", "..", "../f", "d/../f", "/f", "d//f", "d/f/", "d\0f"] {
        let length = u8::try_from(path.len()).unwrap();
        let bytes = [&[1, 0, 1], &before[..], &[length], path.as_bytes()].concat();
        assert!(Batch::decode(&bytes, 0).is_err(), "{path:?}");
    }
}

#[test]
fn a_link_s_target_is_bounded() {
    let decoded = |bytes| {
        let link = BatchEntry::Symlink(name(b"l"), metadata(), vec![b't'; bytes].into());
        Batch::decode(&batch("", vec![link]).encode(), 0).is_ok()
    };
    assert!(decoded(1) && decoded(SYMLINK_BYTES_MAX));
    assert!(!decoded(0) && !decoded(SYMLINK_BYTES_MAX + 1));
}

#[test]
fn what_is_kept_beside_mode_and_time_is_pinned() {
    let account = |id, name: &str| {
        Some(Account {
            id,
            name: name.into(),
        })
    };
    let extra = ExtraMetadata {
        owner: account(1000, "ann"),
        group: account(100, ""),
        xattrs: vec![xattr("user.a", b"xy")],
        atime: Some(Timestamp {
            seconds: -2,
            nanos: 3,
        }),
        first_name: Some(path("a/b")),
    };
    let expected = [
        &[0][..],
        &METADATA,
        &[1, 1, 0xE8, 7, 3, b'a', b'n', b'n', 1, 100, 0],
        &[1, 6],
        b"user.a",
        &[2, b'x', b'y', 1, 3, 3, 3, b'a', b'/', b'b'],
    ];
    assert_eq!(sent(BatchEntry::Itself(with(extra))), expected.concat());
}

#[test]
fn entries_that_have_the_same_owner_share_it() {
    let owned = |id| {
        let owner = Some(Account {
            id,
            name: "ann".into(),
        });
        BatchEntry::Itself(with(ExtraMetadata {
            owner,
            ..ExtraMetadata::default()
        }))
    };
    let plain = BatchEntry::Itself(metadata());
    let entries = vec![owned(1), owned(1), owned(2), plain.clone(), plain];
    let decoded = Batch::decode(&batch("", entries).encode(), 0).unwrap();
    let extra = |at: usize| decoded.groups[0].entries[at].metadata().extra.as_ref();
    let is_shared = |one, other| Arc::ptr_eq(extra(one).unwrap(), extra(other).unwrap());
    assert!(is_shared(0, 1) && !is_shared(1, 2));
    assert!(extra(3).is_none() && extra(4).is_none());
}

#[test]
fn what_no_sender_says_of_an_entry_is_refused() {
    let decoded = |extra| {
        let entries = vec![BatchEntry::Itself(with(extra))];
        Batch::decode(&batch("", entries).encode(), 0).is_ok()
    };
    let attributes = |xattrs| {
        decoded(ExtraMetadata {
            xattrs,
            ..ExtraMetadata::default()
        })
    };
    assert!(attributes(vec![xattr("user.a", b""), xattr("user.b", b"")]));
    for name in ["", "user.a\0b", "security.selinux", "system.posix_acl", "a"] {
        assert!(!attributes(vec![xattr(name, b"")]), "{name:?}");
    }
    for order in [["user.b", "user.a"], ["user.a", "user.a"]] {
        assert!(!attributes(order.map(|name| xattr(name, b"")).into()));
    }
    let longest = vec![0; Xattr::VALUE_BYTES_MAX];
    assert!(attributes(vec![xattr("user.a", &longest)]));
    assert!(!attributes(vec![xattr(
        "user.a",
        &[&longest[..], &[0]].concat()
    )]));
    let many = (10..27).map(|n| xattr(&format!("user.{n}"), &longest));
    assert!(!attributes(many.collect()));
    let owner = |name: &str| {
        decoded(ExtraMetadata {
            owner: Some(Account {
                id: 1,
                name: name.into(),
            }),
            ..ExtraMetadata::default()
        })
    };
    assert!(owner(&"n".repeat(255)) && !owner(&"n".repeat(256)) && !owner("a\0b"));
}

/// A receiver reserves [`ExtraMetadata::bytes`], so that value must include the capacity of lists and the
/// allocator's overhead.
#[test]
fn many_short_attributes_take_no_more_than_is_booked() {
    let xattrs = (0..5000).map(|number| xattr(&format!("user.{number:04}"), b""));
    let itself = BatchEntry::Itself(with(ExtraMetadata {
        xattrs: xattrs.collect(),
        ..ExtraMetadata::default()
    }));
    let decoded = Batch::decode(&batch("", vec![itself]).encode(), 0).unwrap();
    let extra = decoded.groups[0].entries[0]
        .metadata()
        .extra
        .clone()
        .unwrap();
    assert_eq!(extra.xattrs.capacity(), 5000);
    let chunk = size_of::<Xattr>() + zmove_types::ALLOCATION_BYTES + "user.0000".len();
    assert!(extra.bytes() >= 5000 * chunk, "{}", extra.bytes());
}

#[test]
fn a_batch_at_its_target_fits_with_the_longest_names_of_users() {
    let account_bytes = 1 + 5 + 2 + Account::NAME_BYTES_MAX;
    let names = BATCH_ENTRIES_MAX * 2 * account_bytes;
    let last = RelPath::BYTES_MAX + Name::BYTES_MAX + SYMLINK_BYTES_MAX + 128;
    assert!(BATCH_HEAD_BYTES_TARGET + names + last <= FRAME_HEAD_BYTES_MAX);
}

fn any_entry() -> impl Strategy<Value = BatchEntry> {
    let any_name = "[a-z\u{e9}]{1,12}".prop_map(|text| name(text.as_bytes()));
    let any_metadata = (0..0o10000_u32, any::<i64>(), 0..1_000_000_000_u32)
        .prop_map(|(mode, seconds, nanos)| Metadata::new(mode, Timestamp { seconds, nanos }));
    (
        any_name,
        any_metadata,
        any::<[u8; 32]>(),
        0..1000_u32,
        0..8_u8,
    )
        .prop_map(|(name, meta, root, bytes, kind)| match kind {
            0 => BatchEntry::Itself(meta),
            1 => BatchEntry::Directory(name, meta),
            2 => BatchEntry::Symlink(name, meta, root.as_slice().into()),
            3 => BatchEntry::Retouch(name, meta),
            4 => BatchEntry::Special(name, meta, Special::Character(u64::from(bytes))),
            5 => BatchEntry::Special(name, meta, Special::Fifo),
            6 => {
                let first = RelPath::root().join(&name).unwrap();
                BatchEntry::Link(LinkEntry {
                    name,
                    metadata: meta,
                    bytes: bytes.into(),
                    first,
                })
            }
            _ => BatchEntry::File(FileEntry {
                name,
                metadata: meta,
                bytes,
                root: Root(root),
                data: None,
            }),
        })
}

#[test]
fn a_declaration_s_bytes_are_pinned() {
    let head = FileHead {
        path: path("d/f"),
        metadata: metadata(),
        bytes: 300,
        ctime: Timestamp {
            seconds: 4,
            nanos: 5,
        },
        inode: 7,
        data: DataRanges::new(300, Vec::from([Range { start: 8, end: 9 }])).map(Arc::new),
    };
    let before = [
        &[3, b'd', b'/', b'f'],
        &METADATA[..],
        &[0, 0xAC, 2, 8, 5, 7],
    ]
    .concat();
    let data = [1, 0xAC, 2, 1, 8, 9];
    let expected = [&before[..], &data].concat();
    assert_eq!(head.encode(), expected);
    assert_eq!(FileHead::decode(&expected), Ok(head.clone()));
    let without = [&before[..], &[0]].concat();
    assert_eq!(
        FileHead::decode(&without),
        Ok(FileHead { data: None, ..head })
    );
    let other_file = [&before[..], &[1, 0xAD, 2, 1, 8, 9]].concat();
    let reversed = [&before[..], &[1, 0xAC, 2, 1, 9, 8]].concat();
    for wrong in [other_file, reversed] {
        assert_eq!(FileHead::decode(&wrong), Err(WireError::Head));
    }
    let longer = [&expected[..], &[0]].concat();
    assert_eq!(FileHead::decode(&longer), Err(WireError::Head));
}

/// The file has as many attributes as Linux can list, with the maximum total size, and the maximum number of
/// ranges.
#[test]
fn the_longest_declaration_fits() {
    const LISTED_BYTES_MAX: usize = 64 << 10;
    let count = LISTED_BYTES_MAX / "user.00000\0".len();
    let share = Xattr::ENTRY_BYTES_MAX / count - "user.00000".len();
    let xattrs = (0..count).map(|number| xattr(&format!("user.{number:05}"), &vec![7; share]));
    let account = |name: char| {
        Some(Account {
            id: 1,
            name: name.to_string().repeat(255).into(),
        })
    };
    let extra = ExtraMetadata {
        owner: account('o'),
        group: account('g'),
        xattrs: xattrs.collect(),
        ..ExtraMetadata::default()
    };
    let ranges = (0..DataRanges::MAX as u64).map(|at| 2 * at..2 * at + 1);
    let data = DataRanges::new(u64::MAX, ranges.collect()).map(Arc::new);
    assert!(data.is_some());
    let path =
        RelPath::from_bytes([b"a".repeat(255), b"b".repeat(255)].join(&b'/').as_slice()).unwrap();
    let metadata = Metadata {
        extra: Some(Arc::new(extra)),
        ..metadata()
    };
    let head = FileHead {
        path,
        metadata,
        bytes: u64::MAX,
        ctime: Timestamp::default(),
        inode: 7,
        data,
    };
    let bytes = head.encode();
    assert!(bytes.len() <= FRAME_HEAD_BYTES_MAX);
    assert_eq!(FileHead::decode(&bytes), Ok(head));
}

fn any_extra() -> impl Strategy<Value = Option<ExtraMetadata>> {
    let account = || proptest::option::of((any::<u32>(), "[a-z\u{e9}]{0,6}"));
    let xattrs = proptest::collection::btree_map(
        "user\\.[a-z]{1,5}",
        proptest::collection::vec(any::<u8>(), 0..9),
        0..4,
    );
    let atime = proptest::option::of((any::<i64>(), 0..1_000_000_000_u32));
    let first = proptest::option::of("[a-z]{1,5}(/[a-z]{1,5}){0,2}");
    (account(), account(), xattrs, atime, first).prop_map(|(owner, group, xattrs, atime, first)| {
        let account = |found: Option<(u32, String)>| {
            found.map(|(id, name)| Account {
                id,
                name: name.into(),
            })
        };
        let xattrs = xattrs
            .iter()
            .map(|(name, value)| xattr(name, value))
            .collect();
        let atime = atime.map(|(seconds, nanos)| Timestamp { seconds, nanos });
        let first_name = first.map(|path| RelPath::from_bytes(path.as_bytes()).unwrap());
        let extra = ExtraMetadata {
            owner: account(owner),
            group: account(group),
            xattrs,
            atime,
            first_name,
        };
        (!extra.is_empty()).then_some(extra)
    })
}

proptest! {
    #[test]
    fn batches_survive_the_wire(
        entries in proptest::collection::vec(any_entry(), 0..20),
        split in 0..20_usize,
        extras in proptest::collection::vec(any_extra(), 20),
    ) {
        let mut entries = entries;
        for (entry, extra) in entries.iter_mut().zip(extras) {
            entry.metadata_mut().extra = extra.map(Arc::new);
        }
        let at = split.min(entries.len());
        let groups = [&entries[..at], &entries[at..]].into_iter().map(|entries| DirectoryGroup {
            directory: RelPath::from_bytes(b"some/where").unwrap(),
            entries: entries.to_vec(),
        });
        let batch = Batch { groups: groups.collect() };
        let files = entries.iter().filter_map(BatchEntry::file);
        let data: u64 = files.map(|file| file.data_bytes() as u64).sum();
        let decoded = Batch::decode(&batch.encode(), u32::try_from(data).unwrap());
        assert_eq!(decoded, Ok(batch));
    }

    #[test]
    fn any_bytes_are_refused_or_the_encoding_of_what_they_decode_to(bytes in prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300),
        proptest::collection::vec(0..8_u8, 0..300),
    ]) {
        let batch = Batch::decode(&bytes, 0).map(|batch| batch.encode());
        let head = FileHead::decode(&bytes).map(|head| head.encode());
        for encoded in [batch, head].into_iter().flatten() {
            assert_eq!(encoded, bytes);
        }
    }
}
