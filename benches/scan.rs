//! Compares the walk with `find` and `fd` on a tree of small files, with a warm cache by default.
//!
//! Each program reads the size, time and mode of every entry, except `fd list`, which reads only names and is shown for
//! comparison. `ZMOVE_BENCH_FILES` sets the number of files (500,000 for published figures). `ZMOVE_BENCH_COLD=1`, as
//! root, drops the machine's caches before every run.

use std::fs::{File, create_dir_all};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main,
};
use zmove_scan::{ScanConfig, ScanItem, ScanRoot, histogram, scan};
use zmove_types::RelPath;

/// A shape of tree: the number of files per directory.
struct Shape {
    name: &'static str,
    files_per_directory: usize,
}

fn walks(criterion: &mut Criterion) {
    let files =
        std::env::var("ZMOVE_BENCH_FILES").map_or(50_000, |text| text.parse().expect("a number"));
    for shape in SHAPES {
        let tree = tempfile::tempdir().expect("a directory for the tree");
        shape.build(tree.path(), files);
        let mut group = criterion.benchmark_group(format!("{} of {files}", shape.name));
        group
            .sample_size(10)
            .throughput(Throughput::Elements(files as u64));
        bench_scan(&mut group, tree.path(), files);
        bench_peers(&mut group, tree.path());
        group.finish();
    }
}

fn bench_scan(group: &mut Group<'_>, top: &Path, files: usize) {
    for threads in [1, 2, 4, 8] {
        let config = ScanConfig {
            threads,
            ..ScanConfig::default()
        };
        bench(group, &format!("scan/{threads}"), || {
            assert!(count(top, &config) > files)
        });
    }
    let counted = || {
        histogram(scan(roots(top), &ScanConfig::default()), drop)
            .files
            .files
    };
    bench(group, "histogram", || assert_eq!(counted(), files as u64));
}

fn bench_peers(group: &mut Group<'_>, top: &Path) {
    for (name, command) in PEERS {
        if is_installed(command[0]) {
            bench(group, name, || run(command, top));
        } else {
            println!("{name} is skipped: {} is not installed", command[0]);
        }
    }
}

fn bench(group: &mut Group<'_>, name: &str, run: impl Fn()) {
    group.bench_function(name, |bencher| {
        bencher.iter_batched(prepare, |()| run(), BatchSize::PerIteration);
    });
}

type Group<'a> = BenchmarkGroup<'a, WallTime>;

impl Shape {
    /// Creates `files` empty files in directories three levels deep.
    fn build(&self, top: &Path, files: usize) {
        for first in (0..files).step_by(self.files_per_directory) {
            let number = first / self.files_per_directory;
            let part = format!(
                "set{:03}/run{:02}/part{:02}",
                number / 900,
                number / 30 % 30,
                number % 30
            );
            let directory = top.join(part);
            create_dir_all(&directory).expect("a directory");
            for file in first..files.min(first + self.files_per_directory) {
                File::create(directory.join(format!("events_{file:08}.dat"))).expect("a file");
            }
        }
    }
}

fn roots(top: &Path) -> Vec<ScanRoot> {
    vec![ScanRoot::new(PathBuf::from(top), RelPath::root())]
}

fn count(top: &Path, config: &ScanConfig) -> usize {
    let entries = |item| match item {
        ScanItem::Root { .. } => 1,
        ScanItem::Batch(batch) => batch.entries.len(),
        ScanItem::Error(error) => panic!("failed to {error}"),
    };
    scan(roots(top), config).map(entries).sum()
}

fn run(command: &[&str], top: &Path) {
    let arguments = command[1..].iter().map(|&argument| match argument {
        "DIR" => top.as_os_str(),
        argument => argument.as_ref(),
    });
    let status = Command::new(command[0])
        .args(arguments)
        .stdout(Stdio::null())
        .status()
        .expect("it runs");
    assert!(status.success(), "{command:?}: {status}");
}

fn is_installed(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok()
}

/// Drops the caches if cold runs were requested.
fn prepare() {
    if std::env::var_os("ZMOVE_BENCH_COLD").is_some() {
        run(&["sync"], Path::new("/"));
        std::fs::write("/proc/sys/vm/drop_caches", "3").expect("cold runs need root");
    }
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "directories of 100",
        files_per_directory: 100,
    },
    Shape {
        name: "one directory",
        files_per_directory: usize::MAX,
    },
];

const PEERS: &[(&str, &[&str])] = &[
    ("find", &["find", "DIR", "-printf", "%s %T@ %m %p\n"]),
    (
        "fd stat",
        &["fdfind", "--unrestricted", "--size", "+0b", ".", "DIR"],
    ),
    ("fd list", &["fdfind", "--unrestricted", ".", "DIR"]),
];

criterion_group!(benches, walks);
criterion_main!(benches);
