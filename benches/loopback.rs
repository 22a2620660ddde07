//! Complete copies by real processes on one machine: `zmove push` and `rsync -a`, each to a local directory and to a
//! daemon on loopback. There is a data set for each class of sizes: lots of small files (LOSF) of 1 and of 64 KiB,
//! medium ones of 4 MiB, and one large file.
//!
//! The sources are incompressible and cached, every copy goes to a new directory, and the clock stops when the target
//! is flushed. zmove flushes it itself. After rsync, the benchmark syncs the file system. Before the measurement, each
//! method makes one copy, which is compared with the source. The data is in the temporary directory (`TMPDIR`).
//! `ZMOVE_BENCH_MIB` sets the size of the large file (default 1024), and the other sets keep their proportion to it.
//! Runs as any user. The lab (`crates/lab`) measures paths with a round trip.

use std::fs::{File, create_dir, create_dir_all, read};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use tempfile::TempDir;

/// Files of one size.
struct DataSet {
    class: &'static str,
    files: usize,
    file_bytes: usize,
}

/// The directories, and the daemons that serve them.
struct Stage {
    top: TempDir,
    zmove: ZmoveDaemon,
    rsync: Option<RsyncDaemon>,
}

/// A way to copy the contents of one directory into another.
struct Way {
    name: &'static str,
    command: fn(&Stage, &Path, &Path) -> Command,
    flush: Flush,
}

/// The program that flushes the target before the clock stops.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    /// The tool itself.
    Tool,
    /// This program, after the tool.
    Bench,
}

fn copies(criterion: &mut Criterion) {
    let stage = Stage::open();
    for set in data_sets() {
        let source = stage.top.path().join("source");
        set.build(&source);
        let mut group = criterion.benchmark_group(set.class);
        group.sampling_mode(SamplingMode::Flat).sample_size(10);
        group
            .warm_up_time(Duration::from_millis(500))
            .measurement_time(Duration::from_secs(4));
        group.throughput(set.throughput());
        for way in stage.ways() {
            let target = stage.copy(way, &source, stage.new_target());
            set.check(&source, target.path());
            drop(target);
            bench(&mut group, &stage, way, &source);
        }
        group.finish();
        std::fs::remove_dir_all(&source).expect("the source can go");
    }
}

/// Measures a way to copy. Creating and removing the target is not timed.
fn bench(group: &mut BenchmarkGroup<'_, WallTime>, stage: &Stage, way: &Way, source: &Path) {
    group.bench_function(way.name, |bencher| {
        let copy = |target| stage.copy(way, source, target);
        bencher.iter_batched(|| stage.new_target(), copy, BatchSize::PerIteration);
    });
}

impl DataSet {
    /// Returns the measured units. For small files these include the number of files.
    fn throughput(&self) -> Throughput {
        let (elements, bytes) = (self.files as u64, (self.files * self.file_bytes) as u64);
        if self.file_bytes < MEDIUM_BYTES {
            Throughput::ElementsAndBytes { elements, bytes }
        } else {
            Throughput::Bytes(bytes)
        }
    }

    fn path(&self, top: &Path, number: usize) -> PathBuf {
        let directory = top.join(format!("run{:03}", number / FILES_PER_DIRECTORY));
        directory.join(format!("events_{number:06}.dat"))
    }

    /// Writes the files, each with different contents.
    fn build(&self, top: &Path) {
        let mut contents = vec![0; self.file_bytes];
        for number in 0..self.files {
            let path = self.path(top, number);
            create_dir_all(path.parent().expect("it has a directory")).expect("a directory");
            blake3::Hasher::new()
                .update(&number.to_le_bytes())
                .finalize_xof()
                .fill(&mut contents);
            File::create(path)
                .and_then(|mut file| file.write_all(&contents))
                .expect("a file");
        }
    }

    fn check(&self, source: &Path, target: &Path) {
        for number in 0..self.files {
            let (from, to) = (self.path(source, number), self.path(target, number));
            assert!(
                read(&from).expect("it was made") == read(&to).expect("it was copied"),
                "{}",
                to.display()
            );
        }
    }
}

impl Stage {
    fn open() -> Self {
        let top = tempfile::tempdir().expect("a directory for the data");
        let targets = top.path().join(TARGETS);
        create_dir(&targets).expect("a directory for the targets");
        let zmove = ZmoveDaemon::start(top.path(), &targets);
        let rsync = RsyncDaemon::start(top.path(), &targets);
        Self { top, zmove, rsync }
    }

    fn ways(&self) -> &'static [Way] {
        if self.rsync.is_some() {
            &WAYS
        } else {
            &WAYS[..WAYS_WITHOUT_RSYNC]
        }
    }

    fn new_target(&self) -> TempDir {
        tempfile::tempdir_in(self.top.path().join(TARGETS)).expect("a new target")
    }

    fn copy(&self, way: &Way, source: &Path, target: TempDir) -> TempDir {
        let mut command = (way.command)(self, source, target.path());
        let status = command.stdout(Stdio::null()).status().expect("it starts");
        assert!(status.success(), "{command:?}: {status}");
        if way.flush == Flush::Bench {
            let directory = File::open(target.path()).expect("the target is there");
            rustix::fs::syncfs(directory).expect("the target can be flushed");
        }
        target
    }
}

fn zmove_local(stage: &Stage, source: &Path, target: &Path) -> Command {
    let mut command = stage.zmove.push(source);
    command.arg(target);
    command
}

fn zmove_daemon(stage: &Stage, source: &Path, target: &Path) -> Command {
    let mut command = stage.zmove.push(source);
    command.arg(format!(
        "zmove://{}{}",
        stage.zmove.address,
        target.display()
    ));
    command
}

fn rsync_local(_stage: &Stage, source: &Path, target: &Path) -> Command {
    let mut command = rsync(source);
    command.arg(target);
    command
}

fn rsync_daemon(stage: &Stage, source: &Path, target: &Path) -> Command {
    let port = stage.rsync.as_ref().expect("rsync is there").port;
    let name = target.file_name().expect("a target has a name").display();
    let mut command = rsync(source);
    command.arg("--whole-file");
    command.arg(format!("rsync://127.0.0.1:{port}/{TARGETS}/{name}/"));
    command
}

fn rsync(source: &Path) -> Command {
    let mut command = Command::new("rsync");
    command.arg("-a").arg(contents_of(source));
    command
}

/// Returns the path with a trailing slash. For both tools it then stands for the contents of the directory.
fn contents_of(source: &Path) -> PathBuf {
    source.join("")
}

/// A running `zmove serve` that knows this benchmark's key.
struct ZmoveDaemon {
    process: Child,
    address: String,
    client_home: PathBuf,
}

impl ZmoveDaemon {
    fn start(top: &Path, targets: &Path) -> Self {
        let (client_home, daemon_home) = (top.join("client"), top.join("daemon"));
        let shown = zmove(&client_home)
            .args(["key", "show"])
            .output()
            .expect("zmove starts");
        let fingerprint = String::from_utf8(shown.stdout).expect("a fingerprint");
        let mut allow = zmove(&daemon_home);
        allow
            .args([
                "allow",
                fingerprint.trim(),
                "--name",
                "bench",
                "--write",
                "--root",
            ])
            .arg(targets);
        assert!(
            allow
                .stdout(Stdio::null())
                .status()
                .expect("zmove starts")
                .success(),
            "{allow:?}"
        );
        let mut serve = zmove(&daemon_home);
        let serve = serve
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped());
        let mut process = serve.stderr(Stdio::null()).spawn().expect("zmove starts");
        let address = address_in(&mut process).expect("zmove serve says where it listens");
        Self {
            process,
            address,
            client_home,
        }
    }

    fn push(&self, source: &Path) -> Command {
        let mut command = zmove(&self.client_home);
        command
            .args(["push", "--quiet", "--accept-new"])
            .arg(contents_of(source))
            .stderr(Stdio::null());
        command
    }
}

fn zmove(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zmove"));
    command.env("ZMOVE_HOME", home);
    command
}

/// Returns the address in the ready line of `zmove serve`.
fn address_in(process: &mut Child) -> Option<String> {
    let mut line = String::new();
    BufReader::new(process.stdout.take()?)
        .read_line(&mut line)
        .ok()?;
    line.split([' ', ','])
        .find(|word| word.starts_with("127.0.0.1:"))
        .map(str::to_owned)
}

/// A running rsync daemon.
struct RsyncDaemon {
    process: Child,
    port: u16,
}

impl RsyncDaemon {
    /// Starts the daemon. Returns `None` and prints the reason if rsync is missing.
    fn start(top: &Path, targets: &Path) -> Option<Self> {
        if Command::new("rsync")
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_err()
        {
            println!("rsync is skipped: it is not installed");
            return None;
        }
        let port = free_port();
        let config = top.join("rsyncd.conf");
        std::fs::write(&config, rsync_config(port, targets)).expect("a file");
        let mut command = Command::new("rsync");
        let command = command
            .args(["--daemon", "--no-detach", "--config"])
            .arg(config);
        let process = command.stdin(Stdio::null()).spawn().expect("rsync starts");
        let daemon = Self { process, port };
        if is_answered(port) {
            return Some(daemon);
        }
        println!("rsync is skipped: its daemon does not answer");
        None
    }
}

fn rsync_config(port: u16, targets: &Path) -> String {
    // As root, rsync would otherwise write as nobody.
    let user = if rustix::process::geteuid().is_root() {
        "uid = 0\ngid = 0\n"
    } else {
        ""
    };
    format!(
        "address = 127.0.0.1\nport = {port}\nuse chroot = no\nlog file = /dev/null\n\
         [{TARGETS}]\npath = {}\nread only = no\n{user}",
        targets.display()
    )
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

fn is_answered(port: u16) -> bool {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(10) {
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return true;
        }
        sleep(Duration::from_millis(10));
    }
    false
}

impl Drop for ZmoveDaemon {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

impl Drop for RsyncDaemon {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

fn end(process: &mut Child) {
    process
        .kill()
        .and_then(|()| process.wait())
        .expect("a child can be ended");
}

fn data_sets() -> [DataSet; 4] {
    let mebibytes =
        std::env::var("ZMOVE_BENCH_MIB").map_or(1024, |text| text.parse().expect("a whole number"));
    [
        DataSet {
            class: "LOSF 1 KiB",
            files: mebibytes * 10,
            file_bytes: 1 << 10,
        },
        DataSet {
            class: "LOSF 64 KiB",
            files: mebibytes * 4,
            file_bytes: 64 << 10,
        },
        DataSet {
            class: "medium 4 MiB",
            files: mebibytes.div_ceil(8),
            file_bytes: 4 << 20,
        },
        DataSet {
            class: "large",
            files: 1,
            file_bytes: mebibytes << 20,
        },
    ]
}

/// Files below this size count as small.
const MEDIUM_BYTES: usize = 1 << 20;
const FILES_PER_DIRECTORY: usize = 500;
/// Name of the directory of the targets and of the rsync daemon's module.
const TARGETS: &str = "targets";

static WAYS: [Way; 4] = [
    Way {
        name: "zmove local",
        command: zmove_local,
        flush: Flush::Tool,
    },
    Way {
        name: "zmove daemon",
        command: zmove_daemon,
        flush: Flush::Tool,
    },
    Way {
        name: "rsync local",
        command: rsync_local,
        flush: Flush::Bench,
    },
    Way {
        name: "rsync daemon",
        command: rsync_daemon,
        flush: Flush::Bench,
    },
];
const WAYS_WITHOUT_RSYNC: usize = 2;

criterion_group!(benches, copies);
criterion_main!(benches);
