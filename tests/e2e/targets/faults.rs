//! Faults in storage requests: each request in turn fails, is short, or is the last one of its process. The push
//! completes or reports the failure, no partial file has a final name, and the same push without faults completes.
//!
//! Faults in reads and writes of large files are injected in a layer around the engine. All other faults and kills are
//! injected into the system calls of the unchanged program with `strace`.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use zmove_disk::{Direct, FaultAt, Faulty, FileIo, InjectedFault, RequestKind};
use zmove_receiver::ReceiverConfig;
use zmove_sender::SenderConfig;
use zmove_types::GROUP_BYTES;

use crate::support::command::{Outcome, ZMOVE, Zmove, finish};
use crate::support::harness::{Site, has_program, skip};
use crate::support::hooks::HookedDisk;
use crate::support::inprocess::InProcess;
use crate::support::namespace::Namespace;
use crate::support::tree::{
    assert_part_of, assert_same, names, paint, picture, set_mode, set_mtime,
};
use crate::targets::inplace::wait_until;

/// Creates small files in two directories, enough for a staging directory each, and one file of two groups.
fn paint_mixture(source: &Path) {
    for number in 0..24 {
        paint(
            source.join(format!("d{}/small{number}", number % 2)),
            100 * number,
        );
    }
    paint(source.join("large"), GROUP_BYTES + 5);
}

/// Like [`paint_mixture`], with three groups in the large file.
fn paint_mixture_of_three_groups(source: &Path) {
    paint_mixture(source);
    paint(source.join("large"), 2 * GROUP_BYTES + 5);
}

const CASES: [FaultCase; 5] = [
    FaultCase {
        request: RequestKind::Read,
        fault: InjectedFault::Fails(EIO),
        words: &["sender: read", "Input/output error"],
    },
    FaultCase {
        request: RequestKind::Write,
        fault: InjectedFault::Fails(EROFS),
        words: &["receiver: write", "Read-only file system"],
    },
    FaultCase {
        request: RequestKind::Read,
        fault: InjectedFault::IsShort,
        words: &[],
    },
    FaultCase {
        request: RequestKind::Write,
        fault: InjectedFault::IsShort,
        words: &[],
    },
    // Replacing files may free space, so the write is retried once.
    FaultCase {
        request: RequestKind::Write,
        fault: InjectedFault::Fails(ENOSPC),
        words: &[],
    },
];

const EIO: i32 = 5;
const EROFS: i32 = 30;
const ENOSPC: i32 = 28;

/// A fault for each request of one kind in turn, and the expected words of the error message.
struct FaultCase {
    request: RequestKind,
    fault: InjectedFault,
    words: &'static [&'static str],
}

#[test]
fn a_failed_or_short_request_of_a_large_file_is_named_or_repeated() {
    for case in CASES {
        let struck = (0..).take_while(|number| case.strike(*number)).count();
        assert!(struck >= 3, "only {struck} requests for three groups");
    }
}

impl FaultCase {
    /// Pushes with a fault at request `number`. Returns `false` if there are fewer requests.
    fn strike(&self, number: u64) -> bool {
        let site = Site::local();
        paint_mixture_of_three_groups(&site.source());
        let at = FaultAt {
            request: self.request,
            number,
            fault: self.fault,
        };
        let file_io = Arc::new(Faulty::new([at]));
        let pushed = push_by(Arc::clone(&file_io) as Arc<dyn FileIo>, self.request)
            .push(&site.source(), &site.target());
        assert_nothing_half_written(&site);
        if file_io.requests(self.request) <= number {
            assert_eq!(pushed.failed(), [""; 0]);
            return false;
        }
        if self.words.is_empty() {
            assert_eq!(pushed.failed(), [""; 0], "request {number}");
            assert_same(&site.source(), &site.target());
        } else {
            let [said] = pushed.failed()[..] else {
                panic!("request {number}: {:?}", pushed.failed())
            };
            assert!(
                self.words.iter().all(|word| said.contains(word)) && said.contains("large'"),
                "{said}"
            );
            assert!(!site.target().join("large").exists());
        }
        InProcess::default()
            .push(&site.source(), &site.target())
            .summary();
        assert_same(&site.source(), &site.target());
        true
    }
}

/// A push in which one side uses this storage.
fn push_by(file_io: Arc<dyn FileIo>, request: RequestKind) -> InProcess {
    let mut config = SenderConfig {
        direct: Direct::Off,
        ..SenderConfig::default()
    };
    let mut receiver = ReceiverConfig {
        direct: Direct::Off,
        ..ReceiverConfig::default()
    };
    match request {
        RequestKind::Read => config.file_io = file_io,
        RequestKind::Write => receiver.file_io = file_io,
    }
    InProcess {
        config,
        receiver,
        ..InProcess::default()
    }
}

#[track_caller]
fn assert_nothing_half_written(site: &Site) {
    assert_part_of(&site.source(), &site.target());
    assert_eq!(hidden_names(site), 0, "a temporary file is left");
}

fn hidden_names(site: &Site) -> usize {
    let hidden = |path: &&Vec<u8>| {
        path.split(|&byte| byte == b'/')
            .any(|name| name.starts_with(b".zmove"))
    };
    picture(&site.target()).keys().filter(hidden).count()
}

/// Environment variable with the number of the request at which a subprocess of this test stops, its source and its
/// target.
const STOP_AT: &str = "ZMOVE_TEST_STOP_AT";

#[test]
fn after_an_end_at_one_of_the_first_writes_the_same_push_completes() {
    for number in 0..3 {
        let site = Site::local();
        paint_mixture_of_three_groups(&site.source());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "targets::faults::ends_in_a_write", "--ignored"])
            .current_dir(site.path(""));
        let ended = Zmove(command_with(command, &number.to_string())).outcome();
        assert_eq!(ended.code, None, "aborted: {}", ended.stderr);
        assert_part_of(&site.source(), &site.target());
        site.push_contents();
        assert_same(&site.source(), &site.target());
        assert_eq!(hidden_names(&site), 0);
    }
}

fn command_with(mut command: Command, number: &str) -> Command {
    command.env(STOP_AT, number);
    command
}

#[test]
#[ignore = "ends its own process: a part of after_an_end_at_one_of_the_first_writes_the_same_push_completes"]
fn ends_in_a_write() {
    let number = std::env::var(STOP_AT)
        .expect("only for the other test")
        .parse()
        .unwrap();
    let at = FaultAt {
        request: RequestKind::Write,
        number,
        fault: InjectedFault::StopsTheProcess,
    };
    let file_io = Arc::new(Faulty::new([at]));
    push_by(file_io, RequestKind::Write).push(Path::new("source"), Path::new("target"));
}

/// A system call, the error that it returns, and the text of that error.
type Failing = (&'static str, &'static str, &'static str);

const FAILING_AT_THE_TARGET: [Failing; 8] = [
    ("mkdirat", "ENOSPC", "No space left on device"),
    ("renameat", "EIO", "Input/output error"),
    ("pwrite64", "ENOSPC", "No space left on device"),
    ("ftruncate", "EFBIG", "File too large"),
    ("fallocate", "ENOSPC", "No space left on device"),
    ("utimensat", "EROFS", "Read-only file system"),
    ("fdatasync", "EIO", "Input/output error"),
    ("syncfs", "EIO", "Input/output error"),
];
const FAILING_AT_THE_SOURCE: [Failing; 2] = [
    ("pread64", "EIO", "Input/output error"),
    ("getdents64", "EIO", "Input/output error"),
];
/// System calls in which a process may be killed.
const LAST_CALLS: [&str; 8] = [
    "mkdirat",
    "write",
    "pwrite64",
    "ftruncate",
    "renameat",
    "utimensat",
    "fdatasync",
    "syncfs",
];
/// Maximum number of calls per thread that are made to fail, one in each run. Later calls behave like the first ones.
const CALLS_MAX: usize = 4;

#[test]
fn calls_that_fail_at_the_target_are_named_and_nothing_is_lost() {
    assert_calls_that_fail_are_named(&FAILING_AT_THE_TARGET, &[]);
}

#[test]
fn calls_that_fail_at_the_source_are_named_and_nothing_is_lost() {
    // The loader of the program also calls `read`.
    assert_calls_that_fail_are_named(
        &FAILING_AT_THE_SOURCE,
        &["source", "source/d0", "source/d1", "source/large"],
    );
}

#[track_caller]
fn assert_calls_that_fail_are_named(calls: &[Failing], paths: &[&str]) {
    if !can_inject() {
        return skip("strace cannot run here: nothing makes a system call fail");
    }
    for (call, errno, words) in calls {
        for number in 1..=CALLS_MAX {
            let site = Site::local();
            paint_mixture(&site.source());
            let (outcome, struck) =
                push_under(&site, call, &format!("error={errno}:when={number}"), paths);
            if !struck {
                // Only some file systems reserve space.
                assert!(number > 1 || *call == "fallocate", "{call} was never made");
                break;
            }
            let shown = format!("{call} {number}: {:?}\n{}", outcome.code, outcome.stderr);
            assert!(
                matches!(outcome.code, Some(0 | 3 | 11 | 12 | 23)),
                "{shown}"
            );
            assert!(!outcome.stderr.contains("panicked"), "{shown}");
            assert_eq!(
                outcome.code == Some(0),
                outcome.stderr.is_empty(),
                "{shown}"
            );
            let blames = |line: &str| line.starts_with("zmove: ") && line.contains(words);
            assert!(outcome.stderr.lines().all(blames), "{shown}");
            assert_nothing_half_written(&site);
            site.push_contents();
            assert_same(&site.source(), &site.target());
        }
    }
}

#[test]
fn after_a_kill_in_a_call_the_same_push_completes() {
    if !can_inject() {
        return skip("strace cannot run here: nothing ends a process in a system call");
    }
    for call in LAST_CALLS {
        for number in 1..=CALLS_MAX {
            let site = Site::local();
            paint_mixture(&site.source());
            let (outcome, struck) =
                push_under(&site, call, &format!("signal=KILL:when={number}"), &[]);
            if !struck {
                assert!(number > 1, "{call} was never made");
                break;
            }
            assert_ne!(outcome.code, Some(0), "{call} {number}");
            assert_part_of(&site.source(), &site.target());
            site.push_contents();
            assert_same(&site.source(), &site.target());
            assert_eq!(hidden_names(&site), 0, "{call} {number}");
        }
    }
}

/// Pushes locally with a fault in a call that uses one of the paths, or in any such call if there are no paths. Also
/// returns whether the fault was injected.
fn push_under(site: &Site, call: &str, inject: &str, paths: &[&str]) -> (Outcome, bool) {
    push_under_with("--quiet", site, (call, inject), paths)
}

fn push_under_with(
    option: &str,
    site: &Site,
    (call, inject): (&str, &str),
    paths: &[&str],
) -> (Outcome, bool) {
    let log = site.path("strace.log");
    let mut command = Command::new("strace");
    command
        .args(["-f", "--seccomp-bpf", "-qq", "-e", &format!("trace={call}")])
        .arg("-o")
        .arg(&log);
    for path in paths {
        command.arg("-P").arg(site.path(path));
    }
    command
        .arg("-e")
        .arg(format!("inject={call}:{inject}"))
        .env("ZMOVE_HOME", site.path("client"));
    command
        .arg(ZMOVE)
        .args(["push", option])
        .arg(site.contents())
        .arg(site.target());
    let outcome = Zmove(command).outcome();
    let traced = std::fs::read_to_string(log).unwrap();
    (
        outcome,
        traced.contains("INJECTED") || traced.contains("killed by SIGKILL"),
    )
}

pub(crate) fn can_inject() -> bool {
    let mut command = Command::new("strace");
    command.args([
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "inject=syncfs:error=EIO",
        "true",
    ]);
    has_program("strace") && Zmove(command).outcome().code == Some(0)
}

/// Some file systems in user space do not report their type, and some sandboxes do not allow `fstatfs`.
#[test]
fn a_target_of_unknown_type_gets_everything() {
    if !can_inject() {
        return skip("strace cannot run here: nothing makes a system call fail");
    }
    for error in ["ENOSYS", "EPERM"] {
        let site = Site::local();
        paint_mixture(&site.source());
        for _push in 0..2 {
            let inject = format!("error={error}");
            let (outcome, struck) = push_under(&site, "statfs,fstatfs", &inject, &[]);
            assert!(struck);
            outcome.done();
            assert_same(&site.source(), &site.target());
        }
    }
}

/// Some file systems in user space refuse to rename over an existing file. A file that stays old must not count as
/// equal.
#[test]
fn a_rename_that_does_not_replace_is_named_and_counts_nothing_as_equal() {
    if !can_inject() {
        return skip("strace cannot run here: nothing makes a system call fail");
    }
    let site = Site::local();
    paint_mixture(&site.source());
    symlink("there", site.source().join("link")).unwrap();
    for when in ["nothing is there", "old contents are there"] {
        let (outcome, struck) = push_under(&site, "renameat", "error=EEXIST", &[]);
        assert!(struck, "{when}");
        let outcome = outcome.expect(23);
        let blames = |line: &str| line.starts_with("zmove: ") && line.contains("File exists");
        assert!(
            outcome.stderr.lines().all(blames),
            "{when}: {}",
            outcome.stderr
        );
        site.push_contents();
        assert_same(&site.source(), &site.target());
        for name in ["d0/small2", "d1/small3", "large"] {
            paint(site.source().join(name), 2 * GROUP_BYTES - 7);
        }
        std::fs::remove_file(site.source().join("link")).unwrap();
        symlink("elsewhere", site.source().join("link")).unwrap();
    }
}

/// The failed flush may concern another process's data on the same file system. A file is renamed into place if it is
/// intact when it is read back past the page cache.
#[test]
fn a_flush_that_fails_for_others_costs_nothing() {
    if !can_inject() {
        return skip("strace cannot run here: nothing makes a system call fail");
    }
    let site = Site::local();
    paint_mixture(&site.source());
    let (outcome, struck) = push_under(&site, "syncfs", "error=EIO:when=1", &[]);
    assert!(
        struck && outcome.code == Some(0),
        "{:?}: {}",
        outcome.code,
        outcome.stderr
    );
    assert_same(&site.source(), &site.target());
}

/// The failed flush may concern files that compared equal, for instance those of a push with `--durability none`.
#[test]
fn a_flush_that_fails_ends_a_push_that_relies_on_equal_files() {
    if !can_inject() {
        return skip("strace cannot run here: nothing makes a system call fail");
    }
    let site = Site::local();
    paint_mixture(&site.source());
    site.push_contents();
    for option in ["--quiet", "--checksum"] {
        let inject = ("syncfs", "error=ENOSPC:when=1");
        let (outcome, struck) = push_under_with(option, &site, inject, &[]);
        assert!(struck, "{option}");
        outcome
            .expect(11)
            .says(&["flush the target", "No space left on device"]);
    }
}

/// The last flush is for names, so there is no data to read back.
#[test]
fn a_flush_that_fails_each_time_ends_the_push() {
    if !can_inject() {
        return skip("strace cannot run here: nothing makes a system call fail");
    }
    let site = Site::local();
    paint_mixture(&site.source());
    let (outcome, struck) = push_under(&site, "syncfs", "error=EIO", &[]);
    assert!(
        struck && outcome.code == Some(11),
        "{:?}: {}",
        outcome.code,
        outcome.stderr
    );
    assert!(
        outcome.stderr.contains("Input/output error"),
        "{}",
        outcome.stderr
    );
}

/// If the file system as a whole cannot be flushed, each change is flushed individually, including the last one and
/// pushes without directories.
#[test]
fn each_change_is_flushed_where_nothing_is_flushed_as_a_whole() {
    if !can_inject() {
        return skip("strace cannot run here: nobody sees what is flushed");
    }
    let room = tempfile::tempdir().unwrap();
    let overlaid = Site::within(|target| {
        paint(target.join("changed"), 30_001);
        paint(target.join("same"), 10);
        set_mode(target.join("same"), 0o600);
        Namespace::with_overlay(target, room.path())
    });
    let Some(site) = overlaid else { return };
    paint(site.source().join("changed"), 30_000);
    paint(site.source().join("same"), 10);
    set_mode(site.source().join("same"), 0o640);
    symlink("same", site.source().join("link")).unwrap();
    let cases = [
        ("--inplace", "changed", "utimensat(", "/changed>)"),
        ("--quiet", "link", "utimensat(", "/target>)"),
        ("-c", "same", "fchmod(", "/same>)"),
    ];
    for (option, name, last_change, flushed) in cases {
        let log = site.path("strace");
        let [program, rest @ ..] = site.namespace().enter();
        let mut command = Command::new(program);
        command
            .args(rest)
            .args(["strace", "-f", "-y", "--seccomp-bpf", "-qq", "-o"])
            .arg(&log);
        command.args([
            "-e",
            "trace=ftruncate,utimensat,fchmod,renameat,symlinkat,fsync,syncfs",
            "--",
            ZMOVE,
        ]);
        command
            .args(["push", option])
            .arg(site.source().join(name))
            .arg(site.path("target"));
        let outcome = Zmove(command).outcome();
        assert_eq!(outcome.code, Some(0), "{name}: {}", outcome.stderr);
        let traced = std::fs::read_to_string(&log).unwrap();
        let lines: Vec<_> = traced.lines().collect();
        let end = lines
            .iter()
            .rposition(|line| line.contains("syncfs("))
            .expect("all is flushed at the end");
        let change = lines[..end]
            .iter()
            .rposition(|line| line.contains(last_change));
        let change = change.unwrap_or_else(|| panic!("{name} is changed: {traced}"));
        let is_flush = |line: &&str| line.contains("fsync(") && line.contains(flushed);
        assert!(lines[change..end].iter().any(is_flush), "{name}: {traced}");
    }
}

/// Overwritten blocks are not ordered before length and time, so length and time are set after the data has been
/// flushed. A file that already has its final length and time is extended and flushed before its first byte is changed.
#[test]
fn a_file_that_is_changed_in_its_place_looks_finished_only_when_its_data_is_flushed() {
    if !can_inject() {
        return skip("strace cannot run here: nobody sees what is flushed");
    }
    for bytes in [3000, 2 * GROUP_BYTES + 5] {
        let site = Site::local();
        paint(site.source().join("f"), bytes);
        std::fs::write(
            site.target().join("f"),
            vec![7; usize::try_from(bytes).unwrap()],
        )
        .unwrap();
        for place in [site.source(), site.target()] {
            set_mtime(
                place.join("f"),
                SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000),
            );
        }
        let log = site.path("strace");
        let mut command = Command::new("strace");
        command
            .args(["-f", "-y", "--seccomp-bpf", "-qq", "-o"])
            .arg(&log);
        command.args([
            "-e",
            "trace=ftruncate,write,pwrite64,fsync,fdatasync",
            "--",
            ZMOVE,
            "push",
            "--inplace",
            "-c",
        ]);
        command
            .args(["--io-engine", "threads"])
            .arg(site.contents())
            .arg(site.target());
        command.env("ZMOVE_HOME", site.path("client"));
        let outcome = Zmove(command).outcome();
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        assert_same(&site.source(), &site.target());
        let traced = std::fs::read_to_string(&log).unwrap();
        let call = |line: &str| {
            let call = line.split_whitespace().nth(1)?.split_once('(')?;
            let name = if call.0 == "pwrite64" {
                "write"
            } else {
                call.0
            };
            call.1.contains("/target/f>").then(|| name.to_owned())
        };
        let mut calls: Vec<_> = traced.lines().filter_map(call).collect();
        calls.dedup();
        assert_eq!(
            calls,
            ["ftruncate", "fsync", "write", "fdatasync", "ftruncate"],
            "{bytes}: {traced}"
        );
    }
}

/// A flush that failed for another process may have lost renames of this push. The journal of the file system is
/// aborted, and `syncfs` reports success.
#[test]
fn names_that_were_lost_with_a_journal_are_reported() {
    let room = tempfile::tempdir().unwrap();
    let Some(site) = Site::within(|target| Namespace::with_thin_disk(target, room.path())) else {
        return;
    };
    paint(site.source().join("f"), 5000);
    let list = site.path("list");
    rustix::fs::mknodat(CWD, &list, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, site.target(), WatchFlags::MOVED_TO).unwrap();
    let options = ["--files-from", list.to_str().unwrap()];
    let pushing = site
        .push_command(&options, &[site.source().as_os_str()], "")
        .start();
    let mut list = File::options().write(true).open(list).unwrap();
    writeln!(list, "f").unwrap();
    wait_until(&watch, || site.target().join("f").exists());
    let filler = site.namespace().outside(&room.path().join("filler"));
    let full =
        std::io::copy(&mut std::io::repeat(0), &mut File::create(&filler).unwrap()).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    let other = site.target().join("other");
    std::fs::create_dir(&other).unwrap();
    let told = (0..10_000).find_map(|number| {
        let made = std::fs::create_dir(other.join(number.to_string()));
        made.and_then(|()| File::open(&other)?.sync_all()).err()
    });
    assert!(told.is_some(), "the journal still has room");
    std::fs::remove_file(filler).unwrap();
    drop(list);
    finish(pushing)
        .expect(11)
        .says(&["zmove: receiver: flush the target: Read-only file system"]);
}

/// File systems such as vfat refuse a name only when an entry gets it. The file fails alone. A large file fails when it
/// is created, and not after all its data was sent.
#[test]
fn a_name_that_the_target_refuses_fails_alone_and_before_its_data_is_sent() {
    if !can_inject() {
        return skip("strace cannot run here: nothing makes a system call fail");
    }
    let mut site = Site::local();
    site.run_by_script(&format!(
        "exec strace -D -f --seccomp-bpf -qq -o /dev/null -P a:b -e trace=openat,renameat,renameat2 \
         -e inject=openat,renameat,renameat2:error=EINVAL {ZMOVE} \"$@\""
    ));
    site.start_daemon();
    site.run_by(ZMOVE.into());
    for (name, bytes) in [("a:b", 10), ("plain", 10), ("d/a:b", 3 * GROUP_BYTES)] {
        paint(site.source().join(name), bytes);
    }
    paint(site.source().join("d/plain"), 3 * GROUP_BYTES);
    let outcome = site.push(&[], site.contents(), "").expect(23);
    outcome
        .says(&["zmove: receiver: rename the finished file to 'a:b': Invalid argument"])
        .says(&["zmove: receiver: create 'd/a:b': Invalid argument"])
        .lines(2);
    assert_eq!(names(&site.target()), ["d", "plain"]);
    assert_eq!(names(&site.target().join("d")), ["plain"]);
    assert_part_of(&site.source(), &site.target());
}

/// The walk reads attributes by name, which also fails if `/proc` is not mounted. The attributes of a file that is sent
/// are read again by its descriptor.
#[test]
fn attributes_that_cannot_be_read_are_never_taken_for_none() {
    if !can_inject() {
        return skip("strace cannot run here: nothing makes a system call fail");
    }
    let site = Site::local();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    // One file already exists at the target and is equal.
    for path in [
        site.source().join("f"),
        site.target().join("f"),
        site.source().join("new"),
    ] {
        paint(&path, 10);
        if rustix::fs::setxattr(&path, "user.a", b"x", XattrFlags::empty()).is_err() {
            return skip("no extended attributes on this file system");
        }
        set_mtime(&path, time);
    }
    let push = |calls| push_under_with("--strict-metadata", &site, (calls, "error=EIO"), &[]);
    let (outcome, struck) = push("lgetxattr");
    assert!(
        struck && outcome.code == Some(0),
        "{:?}: {}",
        outcome.code,
        outcome.stderr
    );
    for name in ["f", "new"] {
        let read = rustix::fs::getxattr(site.target().join(name), "user.a", &mut [0; 8][..]);
        assert_eq!(read, Ok(1), "{name}");
    }
    std::fs::remove_file(site.target().join("new")).unwrap();
    let (outcome, struck) = push("lgetxattr,fgetxattr");
    assert!(
        struck && outcome.code == Some(23),
        "{:?}: {}",
        outcome.code,
        outcome.stdout
    );
}

/// Tests a panic in a writer, and one in the task that reads an old version for an offer that waits for its answer.
#[test]
fn a_receiver_that_panics_says_so_and_ends_the_push() {
    let writes = HookedDisk::before_write(|| panic!("by a fault"));
    let reads = HookedDisk::before_read(|| panic!("by a fault"));
    for (file_io, delta) in [(writes, false), (reads, true)] {
        let site = Site::local();
        paint(site.source().join("large"), 3 * GROUP_BYTES);
        paint(site.target().join("large"), 2 * GROUP_BYTES);
        let receiver = ReceiverConfig {
            file_io,
            ..ReceiverConfig::default()
        };
        let pushed = InProcess {
            receiver,
            delta,
            ..InProcess::default()
        }
        .push(&site.source(), &site.target());
        let error = pushed.ended.unwrap_err().to_string();
        assert!(
            error.contains("a thread of the receiver panicked"),
            "{error}"
        );
        assert_eq!(
            std::fs::metadata(site.target().join("large"))
                .unwrap()
                .len(),
            2 * GROUP_BYTES
        );
    }
}
