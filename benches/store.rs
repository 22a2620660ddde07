//! The storage engines alone: two threads read and hash, or write and flush, one large file in groups of 4 MiB, with
//! and without the page cache. They also create small files of several sizes.
//!
//! `ZMOVE_BENCH_DIR` is the directory of the files (default `TMPDIR`), and `ZMOVE_BENCH_MIB` the amount of data
//! (default 512). A cold read drops the file from the page cache before the clock starts. The output also has the
//! processor time of this process. It excludes that of kernel threads, such as write-back or a loop device.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group,
    criterion_main,
};
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;
use zmove_chunk::GroupHasher;
use zmove_disk::{
    ContentsWriter, DataFile, Direct, FileIo, Ring, RingConfig, Staged, StorageEngine, Tree,
};
use zmove_types::{Buffer, BufferPool, GROUP_BYTES, GroupSpan, RelPath};

/// Number of threads that read or write, as on a machine with two cores.
const THREADS: usize = 2;
const BUFFER_BYTES: usize = 4 << 20;

/// The measured operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    ReadCold,
    ReadWarm,
    Write,
}

/// The large file, and a directory for others.
struct Stage {
    directory: TempDir,
    bytes: u64,
    pool: BufferPool,
}

fn engines(criterion: &mut Criterion) {
    let stage = Stage::open();
    for (name, work) in [
        ("read cold", Work::ReadCold),
        ("read warm", Work::ReadWarm),
        ("write", Work::Write),
    ] {
        let mut group = group_of(criterion, name, stage.bytes);
        for (engine, file_io) in disks() {
            for (path, direct) in [("cached", Direct::Off), ("direct", Direct::On)] {
                let (mut cpu, mut runs) = (Duration::ZERO, 0);
                group.bench_function(BenchmarkId::new(engine, path), |bencher| {
                    bencher.iter_custom(|count| {
                        (0..count)
                            .map(|_| stage.run(work, &*file_io, direct, &mut cpu, &mut runs))
                            .sum()
                    });
                });
                let gibibytes = f64::from(runs) * stage.gibibytes();
                println!(
                    "{:.2} CPU-seconds per GiB",
                    cpu.as_secs_f64() / gibibytes.max(f64::MIN_POSITIVE)
                );
            }
        }
        group.finish();
    }
}

/// Creates files that are written in one piece each, like those of a batch.
fn small_files(criterion: &mut Criterion) {
    let home = tempfile::tempdir_in(place()).expect("a directory");
    let bytes = bytes();
    let mut group = group_of(criterion, "create", bytes);
    for kibibytes in [16, 64, 128, 256, 1024] {
        let contents = Buffer::copied(&vec![7; kibibytes << 10]);
        for (path, direct) in [("cached", Direct::Off), ("direct", Direct::On)] {
            group.bench_function(
                BenchmarkId::new(format!("{kibibytes} KiB"), path),
                |bencher| {
                    bencher.iter_custom(|count| {
                        (0..count)
                            .map(|_| create(home.path(), bytes, &contents, direct))
                            .sum()
                    });
                },
            );
        }
    }
    group.finish();
}

/// Creates files with these contents, `bytes` bytes in total, and flushes them. Returns the duration.
fn create(home: &Path, bytes: u64, contents: &[u8], direct: Direct) -> Duration {
    let top = tempfile::tempdir_in(home).expect("a directory");
    let files = bytes / contents.len() as u64 / THREADS as u64;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let directory = top.path().join(thread.to_string());
            scope.spawn(move || {
                let writer = ContentsWriter::new(direct);
                std::fs::create_dir(&directory).expect("a directory");
                for number in 0..files {
                    let file =
                        File::create_new(directory.join(number.to_string())).expect("created");
                    writer.write(&file, contents).expect("written");
                }
            });
        }
    });
    rustix::fs::syncfs(File::open(home).expect("it was made")).expect("flushed");
    started.elapsed()
}

/// Creates a group of measurements that process `bytes` bytes each.
fn group_of<'a>(
    criterion: &'a mut Criterion,
    name: &str,
    bytes: u64,
) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::Bytes(bytes));
    group
}

fn place() -> PathBuf {
    std::env::var_os("ZMOVE_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from)
}

fn bytes() -> u64 {
    let mebibytes = std::env::var("ZMOVE_BENCH_MIB")
        .ok()
        .and_then(|text| text.parse().ok());
    mebibytes.unwrap_or(512_u64) << 20
}

fn disks() -> Vec<(&'static str, Arc<dyn FileIo>)> {
    let mut disks: Vec<(_, Arc<dyn FileIo>)> = vec![("threads", Arc::new(StorageEngine::Threads))];
    match Ring::start(RingConfig::default()) {
        Ok(ring) => disks.push(("uring", Arc::new(StorageEngine::Uring(ring)))),
        Err(error) => println!("without uring: {error}"),
    }
    disks
}

impl Stage {
    fn open() -> Self {
        let (bytes, pool) = (bytes(), BufferPool::new(BUFFER_BYTES, THREADS));
        let stage = Self {
            directory: tempfile::tempdir_in(place()).expect("a directory"),
            bytes,
            pool,
        };
        let mut file = File::create(stage.source()).expect("a file");
        let mut contents = vec![0; BUFFER_BYTES];
        for index in 0..GroupSpan::count(bytes).expect("a size in range") {
            blake3::Hasher::new()
                .update(&index.to_le_bytes())
                .finalize_xof()
                .fill(&mut contents);
            file.write_all(&contents).expect("written");
        }
        file.sync_all().expect("flushed");
        stage
    }

    fn source(&self) -> PathBuf {
        self.directory.path().join("source")
    }

    #[expect(clippy::cast_precision_loss, reason = "for the eye")]
    fn gibibytes(&self) -> f64 {
        self.bytes as f64 / (1u64 << 30) as f64
    }

    fn run(
        &self,
        work: Work,
        file_io: &dyn FileIo,
        direct: Direct,
        cpu: &mut Duration,
        runs: &mut u32,
    ) -> Duration {
        *runs += 1;
        if work == Work::ReadCold {
            let file = File::open(self.source()).expect("it was made");
            fadvise(&file, 0, None, Advice::DontNeed).expect("dropped");
        }
        let (before, started) = (cpu_time(), Instant::now());
        match work {
            Work::Write => self.write(file_io, direct),
            Work::ReadCold | Work::ReadWarm => self.read(&self.source(), file_io, direct),
        }
        *cpu += cpu_time() - before;
        started.elapsed()
    }

    fn read(&self, path: &Path, file_io: &dyn FileIo, direct: Direct) {
        let file =
            DataFile::for_reading(File::open(path).expect("it was made"), self.bytes, direct);
        self.for_each_group(|span| {
            let mut hasher = GroupHasher::new(span.index);
            let buffer = self.pool.take().expect("open");
            let (outcome, _buffer) = file_io.read(
                &file,
                span.offset(),
                span.len as usize,
                buffer,
                &mut |slice| hasher.update(slice),
            );
            outcome.expect("read");
            assert_ne!(hasher.finish().0, [0; 32]);
        });
    }

    fn write(&self, file_io: &dyn FileIo, direct: Direct) {
        let tree = Tree::open(self.directory.path()).expect("it was made");
        let directory = tree.open_directory(&RelPath::root()).expect("it was made");
        let mut staged = Staged::create(&directory, 0o600).expect("created");
        staged.reserve(self.bytes, None, direct).expect("reserved");
        self.for_each_group(|span| {
            let mut buffer = self.pool.take().expect("open");
            buffer.set_len(span.len as usize);
            file_io
                .write(staged.data(), span.offset(), buffer)
                .0
                .expect("written");
        });
        staged.file().sync_data().expect("flushed");
    }

    fn for_each_group(&self, work: impl Fn(GroupSpan) + Sync) {
        let next = AtomicU32::new(0);
        let run = || {
            while let Some(span) = GroupSpan::of(self.bytes, next.fetch_add(1, Ordering::Relaxed)) {
                work(span);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(run);
            }
        });
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

const _: () = assert!(BUFFER_BYTES as u64 == GROUP_BYTES);

criterion_group!(benches, engines, small_files);
criterion_main!(benches);
