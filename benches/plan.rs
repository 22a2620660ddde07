//! The plan without storage and network: one thread packs entries, as a scan finds them, into batches or cuts them into
//! groups, and another thread takes them.
//!
//! Elements are files for small files and groups of 4 MiB for large ones. `ZMOVE_BENCH_FILES` sets the number of small
//! files (default 1,000,000). There is one large file for each hundred small files.

use std::fs::{create_dir, write};
use std::sync::Arc;

use criterion::{BatchSize, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use tempfile::TempDir;
use zmove_scan::{Directory, Entry, EntryBatch, ScanConfig, ScanItem, ScanRoot, scan};
use zmove_sender::benching;
use zmove_types::{GROUP_BYTES, Name, RelPath};

fn small_files(criterion: &mut Criterion) {
    let tree = Tree::new();
    let files = files();
    let mut group = criterion.benchmark_group("plan");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    for per_directory in [100, 1000] {
        group.throughput(Throughput::Elements(files as u64));
        group.bench_function(
            format!("{files} of 1 KiB, {per_directory} in each directory"),
            |bencher| {
                let found = || tree.found(files, per_directory, 1 << 10);
                bencher.iter_batched(found, benching::plan, BatchSize::PerIteration);
            },
        );
        let planned = benching::plan(tree.found(files, per_directory, 1 << 10));
        assert_eq!((planned.entries(), planned.groups()), (files, 0));
    }
    group.finish();
}

fn large_files(criterion: &mut Criterion) {
    let tree = Tree::new();
    let mut group = criterion.benchmark_group("plan");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    for (files, groups) in [(files().div_ceil(100), 64), (1, 262_144)] {
        let all_groups = files as u64 * groups;
        group.throughput(Throughput::Elements(all_groups));
        group.bench_function(format!("{files} of {groups} groups"), |bencher| {
            let found = || tree.found(files, files, groups * GROUP_BYTES);
            bencher.iter_batched(found, benching::plan, BatchSize::PerIteration);
        });
        let planned = benching::plan(tree.found(files, files, groups * GROUP_BYTES));
        assert_eq!((planned.entries(), planned.groups()), (0, all_groups));
    }
    group.finish();
}

fn files() -> usize {
    std::env::var("ZMOVE_BENCH_FILES").map_or(1_000_000, |text| text.parse().expect("a number"))
}

/// Directories of one file each, as a scan finds them.
struct Tree {
    _home: TempDir,
    found: Vec<(Arc<Directory>, Entry)>,
}

impl Tree {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory for the tree");
        for number in 0..DIRECTORIES {
            let directory = home.path().join(format!("run{number:03}"));
            create_dir(&directory).expect("a directory");
            write(directory.join("events"), "x").expect("a file");
        }
        let root = ScanRoot::new(home.path().to_owned(), RelPath::root());
        let scan = scan(vec![root], &ScanConfig::default());
        let batches = scan.receiver().iter().filter_map(|item| match item {
            ScanItem::Batch(batch) if batch.directory.source_path() != &RelPath::root() => {
                Some(batch)
            }
            _ => None,
        });
        let found = batches
            .map(|mut batch| (batch.directory, batch.entries.remove(0)))
            .collect::<Vec<_>>();
        assert_eq!(found.len(), DIRECTORIES);
        Self { _home: home, found }
    }

    /// Returns the batches of a scan with `files` files, `per_directory` of them in each directory in turn.
    fn found(&self, files: usize, per_directory: usize, file_bytes: u64) -> Vec<EntryBatch> {
        let directories = self.found.iter().cycle();
        let starts = (0..files).step_by(per_directory);
        starts
            .zip(directories)
            .map(|(start, (directory, like))| EntryBatch {
                directory: Arc::clone(directory),
                entries: (start..files.min(start + per_directory))
                    .map(|number| Entry {
                        name: name(number),
                        size: file_bytes,
                        ..like.clone()
                    })
                    .collect(),
            })
            .collect()
    }
}

fn name(number: usize) -> Name {
    Name::from_bytes(format!("events_{number:08}.dat").as_bytes()).expect("a name")
}

/// Number of directories that are open at the same time.
const DIRECTORIES: usize = 64;

criterion_group!(benches, small_files, large_files);
criterion_main!(benches);
