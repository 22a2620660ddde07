//! How a small file gets its name, by one thread: at once in a new hidden directory that then gets its own; unnamed first,
//! then linked; or under a temporary name, then renamed, as where a file is replaced. Each with mode and time set.
//!
//! In `ZMOVE_BENCH_DIR`, else the directory for temporary files.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use zmove_disk::{Nursery, Staged, TempNames, set_new_file_metadata};
use zmove_types::{Metadata, Name, Timestamp};

const FILES: u32 = 2_000;
const CONTENTS: [u8; 1024] = [7; 1024];
const METADATA: Metadata = Metadata { mode: 0o644, mtime: Timestamp { seconds: 1_700_000_000, nanos: 5 } };

fn commits(criterion: &mut Criterion) {
    let place = std::env::var_os("ZMOVE_BENCH_DIR").map_or_else(std::env::temp_dir, Into::into);
    let mut group = criterion.benchmark_group("commit 1 KiB");
    group.sampling_mode(SamplingMode::Flat).sample_size(10).throughput(Throughput::Elements(FILES.into()));
    for (name, style) in [
        ("in a new directory", in_nursery as fn(&Arc<OwnedFd>)),
        ("unnamed, then linked", linked),
        ("named, then renamed", renamed),
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

fn in_nursery(parent: &Arc<OwnedFd>) {
    let mut nursery = Nursery::begin(parent, &name(0)).expect("begun").expect("nobody else has one");
    for number in 0..FILES {
        let mut file = nursery.create(&name(number), METADATA.mode).expect("created");
        file.write_all(&CONTENTS).expect("written");
        nursery.set_metadata(&file, &METADATA).expect("set");
    }
    nursery.publish().expect("nothing is in the way");
}

fn linked(directory: &Arc<OwnedFd>) {
    stage(directory, Staged::create);
}

fn renamed(directory: &Arc<OwnedFd>) {
    stage(directory, Staged::create_lasting);
}

fn stage(directory: &Arc<OwnedFd>, create: fn(&Arc<OwnedFd>, u32, &TempNames) -> std::io::Result<Staged>) {
    let names = TempNames::new("bench");
    for number in 0..FILES {
        let staged = create(directory, METADATA.mode, &names).expect("created");
        let mut file = staged.file();
        file.write_all(&CONTENTS).expect("written");
        set_new_file_metadata(file, &METADATA).expect("set");
        staged.commit(&name(number), &names).expect("nothing is in the way");
    }
}

fn name(number: u32) -> Name {
    Name::from_bytes(format!("f{number}").as_bytes()).expect("a name")
}

criterion_group!(benches, commits);
criterion_main!(benches);
