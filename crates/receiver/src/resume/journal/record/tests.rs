//! Pins the encoding of each record, and decodes arbitrary bytes.

use super::*;
use crate::resume::journal::SourceVersion;
use proptest::prelude::{any, proptest};
use zmove_types::{Name, RelPath, TransferId};

fn time(seconds: i64, nanos: u32) -> Timestamp {
    Timestamp { seconds, nanos }
}

fn begin() -> Begin {
    let (owner, target) = (b"SHA256:abc".to_vec(), b"/data".to_vec());
    Begin {
        transfer: TransferId([0x11; 16]),
        owner,
        target,
        device: 2,
        inode: 3,
        begun: 0x6000_0000,
    }
}

fn part() -> PartFile {
    let (mtime, ctime) = (time(-1, 1), time(5, 6));
    let source = SourceVersion {
        bytes: 9 << 20,
        mtime,
        ctime,
        inode: 7,
    };
    let (path, part) = (
        RelPath::from_bytes(b"a/b").unwrap(),
        Name::from_bytes(b".p").unwrap(),
    );
    PartFile {
        path,
        part,
        source,
        inode: 4,
        born: time(9, 10),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
fn assert_bytes(record: &Record, skipped: usize, expected: &[&str]) {
    let bytes = record.encode().unwrap();
    assert_eq!(hex(&bytes), expected.concat());
    let body = &bytes[LENGTH_BYTES + skipped..bytes.len() - CRC_BYTES];
    assert_eq!(Record::decode(body).as_ref(), Some(record));
}

#[test]
fn the_bytes_of_the_beginning_are_pinned() {
    let expected = [
        "45000000",                         // length of the body
        "7a6d762d6a726e6c",                 // magic
        "01000000",                         // version
        "00",                               // kind
        "11111111111111111111111111111111", // transfer
        "0a5348413235363a616263",           // owner
        "052f64617461",                     // target
        "02",                               // device
        "03",                               // inode
        "8080808006",                       // begun
        "22222222222222222222222222222222", // boot
        "22616cf4",                         // checksum
    ];
    let record = Record::Begin(begin(), BootId([0x22; 16]));
    assert_bytes(&record, MAGIC.len() + size_of_val(&VERSION), &expected);
}

#[test]
fn the_bytes_of_a_part_are_pinned() {
    let expected = [
        "16000000", "01", "b960",     // file
        "03612f62", // path
        "022e70",   // name of the part
        "8080c004", // size of the source
        "0101",     // its mtime
        "0a06",     // its ctime
        "07",       // its inode
        "04",       // inode
        "120a",     // born
        "c5142c87",
    ];
    assert_bytes(&Record::Part(12345, part()), 0, &expected);
}

#[test]
fn the_bytes_of_groups_are_pinned() {
    let groups = |flushed| Record::Groups {
        file: 5,
        first: 6,
        cvs: vec![Cv([0xaa; 32]), Cv([0xbb; 32])],
        flushed,
    };
    let values = ["aa".repeat(32), "bb".repeat(32)].concat();
    for (flushed, shown, checksum) in [(false, "00", "70d0305e"), (true, "01", "73535bac")] {
        let expected = ["45000000", "02", "05", "06", "02", &values, shown, checksum];
        assert_bytes(&groups(flushed), 0, &expected);
    }
}

#[test]
fn the_bytes_of_other_records_are_pinned() {
    let flushed = Record::Flushed { upto: 300 };
    assert_bytes(&flushed, 0, &["03000000", "03", "ac02", "2e14f85f"]);
    let ended = Record::Ended { file: 300 };
    assert_bytes(&ended, 0, &["03000000", "04", "ac02", "4770082b"]);
    let left = Record::Left {
        file: 5,
        ctime: time(-1, 6),
    };
    assert_bytes(&left, 0, &["04000000", "05", "05", "0106", "57e2ce05"]);
}

#[test]
fn what_is_too_long_is_refused() {
    let owner = Begin {
        owner: vec![b'x'; BODY_BYTES_MAX],
        ..begin()
    };
    let refused = Record::Begin(owner, BootId::default()).encode();
    assert!(
        matches!(refused, Err(JournalError::TooLong { .. })),
        "{refused:?}"
    );
}

#[test]
fn a_boot_is_read_as_it_is_written() {
    let boot = BootId::of(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
    assert_eq!(hex(&boot.0), "00112233445566778899aabbccddeeff");
    assert_ne!(BootId::current(), BootId::default());
}

proptest! {
    #[test]
    fn any_body_decodes_or_does_not(body in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Some(record) = Record::decode(&body) {
            let bytes = record.encode().unwrap();
            let skipped = if matches!(record, Record::Begin(..)) { 12 } else { 0 };
            let again = Record::decode(&bytes[LENGTH_BYTES + skipped..bytes.len() - CRC_BYTES]);
            assert_eq!(again, Some(record));
        }
    }
}
