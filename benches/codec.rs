//! Encoding and decoding of lane and control data: a batch of small files, a request, and the header of a frame.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use zmove_types::{FileId, ItemId, Metadata, Name, RelPath, Root, Timestamp};
use zmove_wire::{
    Batch, BatchEntry, DirectoryGroup, EntryGroup, FileEntry, FrameHeader, FrameKind, Question,
    Request, SourceEntry, SourceKind, SourceMetadata, ToReceiver, decode_message, encode_message,
};

/// Number of files in a batch, the maximum that a sender packs.
const FILES: u32 = 1024;
const FILE_BYTES: u32 = 1024;

fn batches(criterion: &mut Criterion) {
    let batch = batch();
    let encoded = batch.encode();
    let decode =
        |encoded: &[u8]| Batch::decode(encoded, FILES * FILE_BYTES).expect("it was just written");
    assert_eq!(decode(&encoded), batch);
    let mut group = criterion.benchmark_group("batch");
    group.throughput(Throughput::Elements(u64::from(FILES)));
    group.bench_function("encode", |bencher| {
        bencher.iter(|| black_box(&batch).encode())
    });
    group.bench_function("decode", |bencher| {
        bencher.iter(|| decode(black_box(&encoded)))
    });
    group.finish();
}

fn requests(criterion: &mut Criterion) {
    let request = ToReceiver::Request(request());
    let encoded = encode_message(&request);
    // Skips the length prefix.
    let decode =
        |encoded: &[u8]| decode_message::<ToReceiver>(&encoded[4..]).expect("it was just written");
    assert_eq!(decode(&encoded), request);
    let mut group = criterion.benchmark_group("request");
    group.throughput(Throughput::Elements(u64::from(FILES)));
    group.bench_function("encode", |bencher| {
        bencher.iter(|| encode_message(black_box(&request)))
    });
    group.bench_function("decode", |bencher| {
        bencher.iter(|| decode(black_box(&encoded)))
    });
    group.finish();
}

fn headers(criterion: &mut Criterion) {
    let header = FrameHeader {
        kind: FrameKind::Chunk,
        data_bytes: 4 << 20,
        group: 7,
        item: ItemId(70_000),
        file: FileId(3),
        digest: [9; 32],
        ..FrameHeader::default()
    };
    let encoded = header.encode();
    let mut group = criterion.benchmark_group("frame header");
    group.throughput(Throughput::Elements(1));
    group.bench_function("encode", |bencher| {
        bencher.iter(|| black_box(&header).encode())
    });
    group.bench_function("decode", |bencher| {
        bencher.iter(|| FrameHeader::decode(black_box(&encoded)))
    });
    group.finish();
}

fn batch() -> Batch {
    let entries = (0..FILES).map(|number| {
        let root = Root([number.to_le_bytes()[0]; 32]);
        BatchEntry::File(FileEntry {
            name: name(number),
            metadata: metadata(),
            bytes: FILE_BYTES,
            root,
            data: None,
        })
    });
    let groups = vec![DirectoryGroup {
        directory: directory(),
        entries: entries.collect(),
    }];
    Batch { groups }
}

fn request() -> Request {
    let file = |number| SourceEntry {
        name: name(number),
        kind: SourceKind::File {
            bytes: u64::from(FILE_BYTES),
            mark: None,
        },
        metadata: SourceMetadata {
            metadata: metadata(),
            xattrs: None,
        },
    };
    let group = EntryGroup {
        directory: directory(),
        itself: None,
        entries: (0..FILES).map(file).collect(),
    };
    Request {
        number: 5,
        question: Question::Send(vec![group]),
    }
}

fn metadata() -> Metadata {
    Metadata::new(
        0o644,
        Timestamp {
            seconds: 1_790_000_000,
            nanos: 123_456_789,
        },
    )
}

fn directory() -> RelPath {
    RelPath::from_bytes(b"run7/detector/events").expect("a path")
}

fn name(number: u32) -> Name {
    Name::from_bytes(format!("event-{number:08}.h5").as_bytes()).expect("a name")
}

criterion_group!(benches, batches, requests, headers);
criterion_main!(benches);
