//! Compares hashing by groups, as both sides do it, with the ordinary hash of the whole file, and measures merging the
//! root.
//!
//! One thread feeds both hashes from memory, and the results must agree. The difference is the cost of hashing groups
//! in any order.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use zmove_chunk::{GroupHasher, merge_root};
use zmove_types::{Cv, GROUP_BYTES, Root};

fn hashes(criterion: &mut Criterion) {
    let data = incompressible(WHOLE_GROUPS * GROUP);
    assert_eq!(
        root_by_groups(&data).0,
        *blake3::hash(&data).as_bytes(),
        "the roots agree"
    );
    let mut group = criterion.benchmark_group("hash");
    group
        .sample_size(20)
        .throughput(Throughput::Bytes(data.len() as u64));
    group.bench_function("whole", |bencher| {
        bencher.iter(|| blake3::hash(black_box(&data)))
    });
    group.bench_function("groups and root", |bencher| {
        bencher.iter(|| root_by_groups(black_box(&data)))
    });
    group.finish();
}

fn one_group(criterion: &mut Criterion) {
    let data = incompressible(GROUP);
    let mut group = criterion.benchmark_group("one group");
    group.throughput(Throughput::Bytes(GROUP_BYTES));
    group.bench_function("whole", |bencher| {
        bencher.iter(|| blake3::hash(black_box(&data)))
    });
    group.bench_function("slices", |bencher| {
        bencher.iter(|| cv_by_slices(7, black_box(&data)))
    });
    group.finish();
}

fn merges(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("merge");
    for count in MERGED_GROUPS {
        let cvs: Vec<_> = (0..count)
            .map(|index| cv_by_slices(index, &index.to_le_bytes()))
            .collect();
        group.throughput(Throughput::Elements(u64::from(count)));
        let file_bytes = u64::from(count) * GROUP_BYTES;
        group.bench_function(format!("{count} values"), |bencher| {
            bencher.iter(|| merge_root(file_bytes, black_box(&cvs)));
        });
    }
    group.finish();
}

fn root_by_groups(data: &[u8]) -> Root {
    let cvs: Vec<_> = (0..)
        .zip(data.chunks(GROUP))
        .map(|(index, bytes)| cv_by_slices(index, bytes))
        .collect();
    merge_root(data.len() as u64, &cvs)
}

/// Returns the chaining value of a group, hashed as a reader does it: slice by slice, while the bytes are in the cache.
fn cv_by_slices(index: u32, bytes: &[u8]) -> Cv {
    let mut hasher = GroupHasher::new(index);
    bytes
        .chunks(SLICE_BYTES)
        .for_each(|slice| hasher.update(slice));
    hasher.finish()
}

fn incompressible(len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    blake3::Hasher::new().finalize_xof().fill(&mut data);
    data
}

#[expect(clippy::cast_possible_truncation, reason = "4 MiB")]
const GROUP: usize = GROUP_BYTES as usize;
const SLICE_BYTES: usize = 256 << 10;
/// Number of groups of a whole file, which is larger than any cache.
const WHOLE_GROUPS: usize = 32;
/// Numbers of groups to merge: those of files of 4 GiB and of 1 TiB.
const MERGED_GROUPS: [u32; 2] = [1024, 262_144];

criterion_group!(benches, hashes, one_group, merges);
criterion_main!(benches);
