//! Initial inputs, written by zmove's own encoders, so that the fuzzer need not discover the formats.

mod messages;

use std::ops::Range;
use std::sync::Arc;

use zmove_types::{
    Account, DataRanges, ExtraMetadata, FileId, ItemId, LaneId, Metadata, Name, RelPath, Root,
    Special, Timestamp, TransferId, Xattr,
};
use zmove_wire::{
    Batch, BatchEntry, DirectoryGroup, FileEntry, FileHead, FrameHeader, FrameKind, Greeting,
    LinkEntry, Role,
};

pub(crate) use messages::{control, job_grant, to_receiver, to_sender, to_source};

pub(crate) fn greeting() -> Vec<Vec<u8>> {
    [Role::Control, Role::Lane(LaneId(7)), Role::Fetch]
        .map(|role| greeting_of(role).encode().to_vec())
        .into()
}

fn greeting_of(role: Role) -> Greeting {
    Greeting::new(role, TransferId([9; 16]))
}

pub(crate) fn frame_header() -> Vec<Vec<u8>> {
    let head_bytes = |kind| if kind == FrameKind::Filler { 0 } else { 60 };
    KINDS
        .map(|kind| header(kind, head_bytes(kind), 3).encode().to_vec())
        .into()
}

const KINDS: [FrameKind; 6] = [
    FrameKind::Batch,
    FrameKind::Declare,
    FrameKind::Chunk,
    FrameKind::Guess,
    FrameKind::Same,
    FrameKind::Filler,
];

fn header(kind: FrameKind, head_bytes: usize, data_bytes: usize) -> FrameHeader {
    let length = |bytes| u32::try_from(bytes).expect("seeds are short");
    let (head_bytes, data_bytes) = (length(head_bytes), length(data_bytes));
    FrameHeader {
        kind,
        head_bytes,
        data_bytes,
        item: ItemId(5),
        file: FileId(6),
        ..FrameHeader::default()
    }
}

fn name(text: &str) -> Name {
    Name::from_bytes(text.as_bytes()).expect("it is a name")
}

fn path(text: &str) -> RelPath {
    RelPath::from_bytes(text.as_bytes()).expect("it is a path")
}

fn metadata() -> Metadata {
    Metadata::new(
        0o644,
        Timestamp {
            seconds: 1_700_000_000,
            nanos: 5,
        },
    )
}

/// Returns a batch with an entry of each kind. Its only file has three bytes.
fn sample_batch() -> Batch {
    let root = Root(*SAMPLE_ROOT);
    let file = FileEntry {
        name: name("a"),
        metadata: metadata(),
        bytes: 3,
        root,
        data: None,
    };
    let entries = vec![
        BatchEntry::Itself(metadata()),
        BatchEntry::Directory(name("d"), metadata()),
        BatchEntry::Symlink(name("l"), metadata(), b"t".as_slice().into()),
        BatchEntry::File(file),
        BatchEntry::Retouch(name("r"), metadata()),
        BatchEntry::Special(name("s"), metadata(), Special::Character(0x0103)),
        BatchEntry::Link(LinkEntry {
            name: name("h"),
            metadata: metadata(),
            bytes: 3,
            first: path("run/7/a"),
        }),
    ];
    Batch {
        groups: vec![DirectoryGroup {
            directory: path("run/7"),
            entries,
        }],
    }
}

/// The hash of `abc`.
const SAMPLE_ROOT: &[u8; 32] = b"\x64\x37\xb3\xac\x38\x46\x51\x33\xff\xb6\x3b\x75\x27\x3a\x8d\xb5\
    \x48\xc5\x58\x46\x5d\x79\xdb\x03\xfd\x35\x9c\x6c\xd5\xbd\x9d\x85";
const SAMPLE_DATA: &[u8; 3] = b"abc";

fn sample_file() -> FileHead {
    let ctime = Timestamp {
        seconds: 4,
        nanos: 5,
    };
    FileHead {
        path: path("d/f"),
        metadata: metadata(),
        bytes: 9 << 20,
        ctime,
        inode: 7,
        data: None,
    }
}

/// Returns metadata with every kind of attribute.
fn whole_metadata() -> Metadata {
    let account = |id, name: &str| {
        Some(Account {
            id,
            name: name.into(),
        })
    };
    let xattr = |name: &str, value: &[u8]| Xattr {
        name: name.as_bytes().into(),
        value: value.into(),
    };
    let acl = b"\x02\0\0\0\x01\0\x07\0\xFF\xFF\xFF\xFF\x04\0\x05\0\xFF\xFF\xFF\xFF";
    let xattrs = vec![
        xattr("system.posix_acl_access", acl),
        xattr("trusted.a", b""),
        xattr("user.b", b"x"),
    ];
    let atime = Some(Timestamp {
        seconds: 6,
        nanos: 7,
    });
    let extra = ExtraMetadata {
        owner: account(1000, "ann"),
        group: account(100, ""),
        xattrs,
        atime,
        first_name: None,
    };
    Metadata {
        extra: Some(Arc::new(extra)),
        ..metadata()
    }
}

/// Returns a batch whose entries have all metadata. The last entry has the same owner as the ones before it.
fn extended_batch() -> Batch {
    let owned = ExtraMetadata {
        xattrs: Vec::new(),
        ..whole_metadata()
            .extra
            .as_deref()
            .cloned()
            .unwrap_or_default()
    };
    let owned = Metadata {
        extra: Some(Arc::new(owned)),
        ..metadata()
    };
    let entries = vec![
        BatchEntry::Itself(whole_metadata()),
        BatchEntry::Directory(name("d"), whole_metadata()),
        BatchEntry::Retouch(name("r"), owned),
    ];
    Batch {
        groups: vec![DirectoryGroup {
            directory: path("run/7"),
            entries,
        }],
    }
}

/// Returns a batch with a file of 64 KiB that has three bytes of data.
fn sparse_batch() -> Batch {
    let data = DataRanges::new(
        64 << 10,
        Vec::from([Range {
            start: 4096,
            end: 4099,
        }]),
    )
    .map(Arc::new);
    let (bytes, root) = (64 << 10, Root(*SAMPLE_ROOT));
    let file = FileEntry {
        name: name("a"),
        metadata: whole_metadata(),
        bytes,
        root,
        data,
    };
    Batch {
        groups: vec![DirectoryGroup {
            directory: path("d"),
            entries: vec![BatchEntry::File(file)],
        }],
    }
}

pub(crate) fn batch() -> Vec<Vec<u8>> {
    let with_data = |batch: Batch, bytes: u32| [&bytes.to_le_bytes()[..], &batch.encode()].concat();
    vec![
        with_data(sample_batch(), 3),
        with_data(extended_batch(), 0),
        with_data(sparse_batch(), 3),
        with_data(Batch::default(), 0),
    ]
}

pub(crate) fn file_head() -> Vec<Vec<u8>> {
    let extended = FileHead {
        metadata: whole_metadata(),
        ..sample_file()
    };
    let data = DataRanges::new(sample_file().bytes, vec![0..4096, 5 << 20..6 << 20]).map(Arc::new);
    let sparse = FileHead {
        data,
        ..extended.clone()
    };
    vec![sample_file().encode(), extended.encode(), sparse.encode()]
}

/// Returns one frame of each kind: all in sequence, and each separately.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let (batch, file) = (sample_batch().encode(), sample_file().encode());
    let frame = |kind, head: &[u8], data: &[u8]| {
        [
            &header(kind, head.len(), data.len()).encode()[..],
            head,
            data,
        ]
        .concat()
    };
    let mut frames = vec![
        frame(FrameKind::Batch, &batch, SAMPLE_DATA),
        frame(FrameKind::Declare, &file, &[]),
        frame(FrameKind::Chunk, &[], &[7; 100]),
        frame(FrameKind::Guess, &batch, SAMPLE_DATA),
        frame(FrameKind::Same, &[], &[]),
        frame(FrameKind::Filler, &[], &[9; 100]),
    ];
    frames.push(frames.concat());
    frames
}

/// Returns inputs for `zmove_receiver::fuzzing::sealed_frame`.
pub(crate) fn sealed_frame() -> Vec<Vec<u8>> {
    let (batch, file) = (sample_batch().encode(), sample_file().encode());
    let frame = |kind, head: &[u8], data: &[u8], file_bytes: u64| {
        let head_bytes = u16::try_from(head.len())
            .expect("seeds are short")
            .to_le_bytes();
        [
            &header(kind, 0, 0).encode()[..],
            &file_bytes.to_le_bytes(),
            &head_bytes,
            head,
            data,
        ]
        .concat()
    };
    vec![
        frame(FrameKind::Batch, &batch, SAMPLE_DATA, 0),
        frame(FrameKind::Guess, &batch, b"abd", 0),
        frame(FrameKind::Declare, &file, &[], 0),
        frame(FrameKind::Chunk, &[], &[7; 100], 100),
        frame(FrameKind::Same, &[], &[], 9 << 20),
        frame(FrameKind::Filler, &[], &[9; 100], 0),
    ]
}

/// Returns inputs for `zmove_transport::fuzzing::records`: one step of each kind.
pub(crate) fn records() -> Vec<Vec<u8>> {
    let steps: [&[u8]; 8] = [
        &[0, 3, 1, 2, 3],
        &[1, 3, 1, 2, 3],
        &[2, 3, 1, 2, 3],
        &[3, 0],
        &[0, 3, 4, 5, 6],
        &[5, 3, 21, 2, 40],
        &[4, 0],
        &[7, 5, 23, 3, 3, 0, 20],
    ];
    vec![
        [&[1, 2], steps.concat().as_slice()].concat(),
        [&[255, 0], steps[..5].concat().as_slice()].concat(),
    ]
}

/// Returns inputs for `zmove_receiver::fuzzing::journal_records`.
pub(crate) fn journal_records() -> Vec<Vec<u8>> {
    let whole = [
        journal_begin(),
        journal_part(1),
        journal_groups(1, 0, false),
        journal_step(&(3_u32, 130_u64)),
        journal_groups(1, 2, true),
        journal_part(2),
        journal_groups(2, 1, false),
        journal_step(&(4_u32, 2_u64)),
        journal_step(&(5_u32, 1_u64, (5_i64, 6_u32))),
    ];
    vec![journal_begin(), whole.concat()]
}

fn journal_step(record: &impl serde::Serialize) -> Vec<u8> {
    with_length(postcard::to_stdvec(record).expect("a vector grows"))
}

fn with_length(body: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(body.len()).expect("seeds are short");
    [length.to_le_bytes().to_vec(), body].concat()
}

/// Returns inputs for `zmove_receiver::fuzzing::job_journal`.
pub(crate) fn job_journal() -> Vec<Vec<u8>> {
    let records = [
        journal_begin(),
        journal_part(1),
        journal_groups(1, 0, false),
        journal_step(&(3_u32, 150_u64)),
        journal_step(&(8_u32, [1_u8; 32], 2_u64)),
    ];
    vec![records.concat()]
}

fn journal_begin() -> Vec<u8> {
    let begin = ([2_u8; 16], "abc", "/data", 2_u64, 3_u64, 0x6000_0000_u64);
    let record = postcard::to_stdvec(&(0_u32, begin, [1_u8; 16])).expect("a vector grows");
    with_length([&b"zmv-jrnl\x01\0\0\0"[..], &record].concat())
}

fn journal_part(file: u64) -> Vec<u8> {
    let time = (5_i64, 6_u32);
    let source = (9_u64 << 20, time, time, 7_u64);
    journal_step(&(1_u32, file, ("a/b", ".p", source, 4_u64, time)))
}

fn journal_groups(file: u64, first: u32, flushed: bool) -> Vec<u8> {
    journal_step(&(2_u32, file, first, vec![[8_u8; 32]], flushed))
}

/// Returns the same records with checksums, as in a file.
pub(crate) fn journal() -> Vec<Vec<u8>> {
    journal_records()
        .iter()
        .map(|steps| zmove_receiver::fuzzing::framed(steps))
        .collect()
}

pub(crate) fn paths() -> Vec<Vec<u8>> {
    texts(&[
        "",
        "# zmove paths 2\nfd99::2:5870 {\"lanes\":32,\"loss_tolerant\":true,\"round_trip\":{\"secs\":0,\"nanos\":90123000},\
        \"bytes_per_second\":118000000,\"day\":20778,\"rates\":{\"tcp\":118000000,\"quic\":null},\"window\":{\"bytes\":10000000,\
        \"round_trip\":{\"secs\":0,\"nanos\":90123000},\"ends\":{\"here\":\"192.0.2.1\",\"there\":\"192.0.2.9\"},\
        \"at\":1795225600}}\none:5870 {\"lanes\":8,\"loss_tolerant\":false,\"round_trip\":{\"secs\":0,\"nanos\":1000},\
        \"bytes_per_second\":1,\"day\":1,\"rates\":{\"tcp\":null,\"quic\":null},\"window\":null}\n",
    ])
}

pub(crate) fn trace() -> Vec<Vec<u8>> {
    let line = |seconds, bytes, acked| {
        format!(
            "{{\"seconds\":{seconds},\"bytes_read\":{bytes},\"bytes_handed_over\":{bytes},\"bytes_acked\":{acked},\
             \"bytes_stored\":{bytes},\"packs_waiting\":4,\"frames_waiting\":5,\"items_outstanding\":6,\"lanes\":7,\
             \"segments_retransmitted\":{acked}}}\n"
        )
    };
    let (first, second) = (line("0.1", 3, "null"), line("0.2", 30_000_000, "null"));
    let most =
        line("1e-300", u64::MAX, "18446744073709551615").replace(":4", ":18446744073709551615");
    texts(&[
        &first,
        &(first.clone() + &second),
        &(line("0.1", 3, "2") + &line("9.5", 9, "7")),
        &(most.clone() + &most + &most.replace("1e-300", "1e10")),
    ])
}

pub(crate) fn known_hosts() -> Vec<Vec<u8>> {
    texts(&[
        &format!(
            "# hosts\ndtn.example.org:5870 {KEY}\n\n[2001:db8::1]:7 {KEY}\n[fe80::1%eth0]:9 {KEY}"
        ),
        &format!("::1:7 {KEY}"),
    ])
}

pub(crate) fn authorized_keys() -> Vec<Vec<u8>> {
    texts(&[&format!(
        "# keys\n{KEY} name=alice%20b root=/data/a root=/c%FF write\n\n"
    )])
}

const KEY: &str = "SHA256:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

pub(crate) fn identity() -> Vec<Vec<u8>> {
    vec![zmove_transport::fuzzing::new_identity()]
}

pub(crate) fn ssh_words() -> Vec<Vec<u8>> {
    let order = format!(
        "{{\"version\":1,\"key\":\"{KEY}\",\"carriers\":\"Quic\",\"ports\":[50000,50100],\"loopback\":false,\"allow_clear\":true,\"copies\":false}}\n"
    );
    let ready = format!(
        "zmove-receive {{\"version\":1,\"key\":\"{KEY}\",\"port\":50001,\"address\":\"192.0.2.7\"}}\n"
    );
    texts(&[&order, &ready, "50000-50100"])
}

pub(crate) fn config() -> Vec<Vec<u8>> {
    texts(&[
        "listen = \"[::]:5870\"\ntransport = \"both\"\nallow_clear = false\njournal_age = \"7d\"\nio_engine = \"auto\"\ndirect = \"on\"\n\
         drain = \"30s\"\n",
        "[limits]\nunproven = 64\nunproven_time = \"10s\"\nlanes_per_transfer = 64\nmemory_per_transfer = \"2GiB\"\n\
         [log]\nformat = \"json\"\n[metrics]\nlisten = \"off\"\n",
        "listen = \"here\"\ncolour = 3\n[limits]\nlanes = 7\n[log]\nformat = 'xml'\n",
        "listen = \"\"\"\n\"\"\"\nlimits.lanes = 0x8\n[[log]]\n",
    ])
}

pub(crate) fn location() -> Vec<Vec<u8>> {
    texts(&[
        "dtn:/data",
        "dtn:99:/data",
        "dtn:./2024:x",
        "[fd00::1]:7:d:e",
        "[fe80::1%eth0]:/d",
        "zmove://dtn:7/d/e",
        "zmove://[::1]:7/d",
        "user@dtn:/d",
        "./a:b",
    ])
}

pub(crate) fn quantities() -> Vec<Vec<u8>> {
    texts(&[
        "64KiB",
        "1.5GiB",
        "500Mbit",
        "2.5Gbit/s",
        "100MB",
        "90s",
        "30min",
        "2w",
    ])
}

pub(crate) fn filters() -> Vec<Vec<u8>> {
    texts(&[
        "a/b.o\n# c\n*.o\n!/a/b.o\n",
        "a/x/b\na/**/b\n**/x/\n[a-c]?{d}\\*\n",
        "run7/x\n\u{feff}[[:digit:]]\n[!0-9]x  \n\\#y\\ \n",
    ])
}

pub(crate) fn path_list() -> Vec<Vec<u8>> {
    texts(&[
        "a\n\n./b//c/.\r\n\r\n d \n#e",
        "a\nb\0c\r\0",
        "/etc\na/../b\nok\n..\nx\0y\n",
    ])
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
