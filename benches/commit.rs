//! Measures how fast one thread publishes small files in three ways. The files are stored in a staging directory that
//! is renamed, under hidden names that are then renamed one by one, or without names until they are linked. zmove does
//! not use the last way. Each file gets its mode and time.
//!
//! The files are in `ZMOVE_BENCH_DIR`, by default in the temporary directory.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use rustix::fs::{AtFlags, Mode, OFlags, linkat, openat};
use zmove_disk::{
    Descriptor, DirectoryModes, Lease, Permit, ProvenKinds, Replace, Staged, StagingDirectory,
    WantedMetadata, publish_file,
};
use zmove_types::{Metadata, Name, Timestamp};

const FILES: u32 = 2_000;
const CONTENTS: [u8; 1024] = [7; 1024];
const METADATA: Metadata = Metadata::new(
    0o644,
    Timestamp {
        seconds: 1_700_000_000,
        nanos: 5,
    },
);

fn commits(criterion: &mut Criterion) {
    let place = std::env::var_os("ZMOVE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let mut group = criterion.benchmark_group("commit 1 KiB");
    group
        .sampling_mode(SamplingMode::Flat)
        .sample_size(10)
        .throughput(Throughput::Elements(FILES.into()));
    for (name, style) in [
        (
            "in a staging directory",
            staged_together as fn(&Arc<OwnedFd>),
        ),
        ("under hidden names, then renamed", renamed),
        ("without names, then linked", linked),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| (0..count).map(|_| timed(&place, style)).sum());
        });
    }
    group.finish();
}

fn timed(place: &Path, style: fn(&Arc<OwnedFd>)) -> Duration {
    let home = tempfile::tempdir_in(place).expect("a directory");
    let directory = Arc::new(OwnedFd::from(File::open(home.path()).expect("it was made")));
    let started = Instant::now();
    style(&directory);
    started.elapsed()
}

fn staged_together(parent: &Arc<OwnedFd>) {
    let staging =
        StagingDirectory::begin(parent, &name(0), DirectoryModes::default()).expect("begun");
    let proven = ProvenKinds::default();
    for number in 0..FILES {
        let mut file = staging
            .create(&name(number), METADATA.mode)
            .expect("created");
        file.write_all(&CONTENTS).expect("written");
        staging
            .new_files()
            .set_metadata(Permit::for_hidden(), &file, &METADATA, &proven)
            .expect("set");
    }
    staging
        .publish(&Lease::constant(), Replace::Existing)
        .expect("nothing is in the way");
}

fn renamed(directory: &Arc<OwnedFd>) {
    let proven = ProvenKinds::default();
    let hidden = (0..FILES).map(|_| {
        let staged = Staged::create(directory, METADATA.mode).expect("created");
        fill(staged.file(), &proven);
        staged.into_hidden_name().expect("it is new")
    });
    let hidden: Vec<_> = hidden.collect();
    for (number, hidden) in (0..).zip(&hidden) {
        publish_file(
            &Lease::constant(),
            directory,
            hidden,
            &name(number),
            Replace::Existing,
        )
        .expect("nothing is in the way");
    }
}

fn linked(directory: &Arc<OwnedFd>) {
    let proven = ProvenKinds::default();
    for number in 0..FILES {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file =
            File::from(openat(directory, c".", flags, Mode::RUSR | Mode::WUSR).expect("created"));
        fill(&file, &proven);
        linkat(
            &file,
            c"",
            directory,
            name(number).as_os_str(),
            AtFlags::EMPTY_PATH,
        )
        .expect("root may");
    }
}

fn fill(mut file: &File, proven: &ProvenKinds) {
    file.write_all(&CONTENTS).expect("written");
    WantedMetadata::mode_and_time(&METADATA)
        .set(Permit::for_hidden(), Descriptor::Open(file.as_fd()), proven)
        .expect("set");
}

fn name(number: u32) -> Name {
    Name::from_bytes(format!("f{number}").as_bytes()).expect("a name")
}

criterion_group!(benches, commits);
criterion_main!(benches);
