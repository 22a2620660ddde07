//! Tests that pin the bytes of each record, and that decode any bytes.

use super::*;
use proptest::prelude::{any, proptest};

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
fn assert_bytes(record: &Record, expected: &[&str]) {
    let bytes = record.encode().unwrap();
    assert_eq!(hex(&bytes), expected.concat());
    let body = &bytes[HEAD_BYTES..bytes.len() - CRC_BYTES];
    assert_eq!(Record::decode(bytes[4], body).as_ref(), Some(record));
}

#[test]
fn the_bytes_of_the_beginning_are_pinned() {
    let expected = [
        "57000000",                         // length of the body
        "01",                               // type
        "7a6d762d6a726e6c",                 // magic
        "01000000",                         // version
        "22222222222222222222222222222222", // boot
        "11111111111111111111111111111111", // transfer
        "0200000000000000",                 // device
        "0300000000000000",                 // inode
        "0000006000000000",                 // begun
        "0a005348413235363a616263",         // owner
        "05002f64617461",                   // target
        "dfb62bd5",                         // checksum
    ];
    assert_bytes(&Record::Begin(begin(), BootId([0x22; 16])), &expected);
}

#[test]
fn the_bytes_of_a_part_are_pinned() {
    let expected = [
        "4d000000",
        "02",
        "3930000000000000",         // file
        "0400000000000000",         // inode
        "09000000000000000a000000", // born
        "0000900000000000",         // size of the source
        "ffffffffffffffff01000000", // its mtime
        "050000000000000006000000", // its ctime
        "0700000000000000",         // its inode
        "0300612f62",               // path
        "02002e70",                 // name of the part
        "3ee92b3e",
    ];
    assert_bytes(&Record::Part(12345, part()), &expected);
}

#[test]
fn the_bytes_of_groups_are_pinned() {
    let cvs = vec![Cv([0xaa; 32]), Cv([0xbb; 32])];
    let (aa, bb) = ("aa".repeat(32), "bb".repeat(32));
    let fields = ["0500000000000000", "06000000", &aa, &bb];
    let groups = Record::Groups {
        file: 5,
        first: 6,
        cvs: cvs.clone(),
        flushed: false,
    };
    assert_bytes(
        &groups,
        &[&["4c000000", "03"], &fields[..], &["88c1095a"]].concat(),
    );
    let kept = Record::Groups {
        file: 5,
        first: 6,
        cvs,
        flushed: true,
    };
    assert_bytes(
        &kept,
        &[&["4c000000", "06"], &fields[..], &["2ad0d802"]].concat(),
    );
}

#[test]
fn the_bytes_of_a_flush_and_an_end_are_pinned() {
    let number = 0x0102_0304_0506_0708;
    assert_bytes(
        &Record::Flushed { upto: number },
        &["08000000", "04", "0807060504030201", "9862384b"],
    );
    assert_bytes(
        &Record::Ended { file: number },
        &["08000000", "05", "0807060504030201", "d0b406bf"],
    );
}

#[test]
fn the_bytes_of_what_was_left_are_pinned() {
    let left = Record::Left {
        file: 5,
        ctime: time(-1, 6),
    };
    assert_bytes(
        &left,
        &[
            "14000000",
            "07",
            "0500000000000000",
            "ffffffffffffffff06000000",
            "a98880e7",
        ],
    );
}

#[test]
fn what_is_too_long_is_refused() {
    let owner = Begin {
        owner: vec![b'x'; OWNER_BYTES_MAX + 1],
        ..begin()
    };
    let target = Begin {
        target: vec![b'x'; TARGET_BYTES_MAX + 1],
        ..begin()
    };
    for begin in [owner, target] {
        let refused = Record::Begin(begin, BootId::default()).encode();
        assert!(
            matches!(refused, Err(JournalError::TooLong { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn a_boot_is_read_as_it_is_written() {
    let boot = BootId::of(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
    assert_eq!(hex(&boot.0), "00112233445566778899aabbccddeeff");
    assert_ne!(BootId::current(), BootId::default());
}

proptest! {
    #[test]
    fn any_body_decodes_or_does_not(kind in 0..9_u8, body in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Some(record) = Record::decode(kind, &body) {
            let bytes = record.encode().unwrap();
            // Magic and version are checked elsewhere.
            let skipped = if kind == BEGIN { 12 } else { 0 };
            assert_eq!(bytes[HEAD_BYTES + skipped..bytes.len() - CRC_BYTES], body[skipped..]);
        }
    }
}
