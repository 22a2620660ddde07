//! Sessions of several receivers that write into one directory, over the memory transport.

mod commits;
mod entries;
mod mover;
mod openings;
mod orders;
mod parts;
mod torn_journal;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use zmove_chunk::{file_root, group_cv, seal};
use zmove_disk::{Direct, JobSession, Lease, NameAt, Replace, SharedJobDirectory, Staged, Tree};
use zmove_transport::{
    ControlWriter, Fingerprint, Frame, Inbox, LaneSink, memory_control, memory_lane,
};
use zmove_types::{
    Account, Beginning, Buffer, BufferPool, ByteCount, Cv, ExtraMetadata, FileId, GROUP_BYTES,
    ItemId, MetadataKinds, Name, SharedJobId, StageClock, Timestamp, TransferId,
};
use zmove_wire::{
    Compare, DirectoryGroup, Durability, Extraneous, FaultCode, FileEntry, FrameHeader, FrameKind,
    GroupRange, Intent, Open, PreserveOptions, Proof, Refusal, RefusalCode, SharedJobAnswer,
    SharedJobOpening, SharedJobRequest, ToReceiver, ToSender, decode_message, encode_message,
};

use self::mover::Mover;
use super::*;
use crate::config::ReceiverConfig;
use crate::resume::journal::{Journal, PartFile, SourceVersion};
use crate::resume::parts::shared::shared_name;
use crate::resume::parts::{PartStore, begin, source_of};
use crate::rights::quota::limits::Limits;
use crate::rights::quota::{Quota, Quotas};
use crate::session::connections::SessionReport;
use crate::shared_job::groups::{FlushedGroups, PartKey};
use crate::store::placer::Placer;
use crate::store::placer::tests::{begin as place, files};
use crate::store::target::{Target, WriteAccess};
use crate::store::writer::open_staged;
use crate::{Session, SessionError, run_session};

/// Returns the numbers below `count` in an order determined by `seed`.
fn shuffled(count: u32, mut seed: u64) -> Vec<u32> {
    let mut order: Vec<_> = (0..count).collect();
    for last in (1..order.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(last, usize::try_from(seed >> 33).unwrap() % (last + 1));
    }
    order
}

const JOB: SharedJobId = SharedJobId([3; 16]);

fn name(text: &str) -> Name {
    Name::from_bytes(text.as_bytes()).unwrap()
}

fn path(text: &str) -> RelPath {
    RelPath::from_bytes(text.as_bytes()).unwrap()
}

fn part() -> SharedJobOpening {
    SharedJobOpening {
        job: JOB,
        beginning: Beginning::Allowed,
        leads: true,
    }
}

fn open(job: Option<SharedJobOpening>) -> Open {
    Open {
        durability: Durability::End,
        shared_job: job.map(Box::new),
        ..Open::new(Vec::new(), rand_run())
    }
}

/// Returns a new run number for each session.
fn rand_run() -> [u8; 16] {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut run = [0; 16];
    run[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    run
}

fn buffer(bytes: &[u8]) -> Buffer {
    let mut buffer = BufferPool::new(bytes.len().max(1), 1).take().unwrap();
    buffer.room()[..bytes.len()].copy_from_slice(bytes);
    buffer.set_len(bytes.len());
    buffer
}

fn frame(header: FrameHeader, head: Vec<u8>, content: &[u8; 32], data: &[u8]) -> Frame {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap();
    let header = FrameHeader {
        head_bytes: length(&head),
        data_bytes: length(data),
        ..header
    };
    let digest = seal(&header.prefix(), content);
    Frame {
        header: FrameHeader { digest, ..header },
        head,
        data: buffer(data),
    }
}

fn file(text: &str, mode: u32, contents: &[u8]) -> BatchEntry {
    BatchEntry::File(FileEntry {
        name: name(text),
        metadata: Metadata::new(
            mode,
            Timestamp {
                seconds: 9,
                nanos: 0,
            },
        ),
        bytes: u32::try_from(contents.len()).unwrap(),
        root: file_root(contents),
        data: None,
    })
}

/// Returns the contents of a large file in which all groups differ.
fn contents(groups: u32, rest: usize) -> Vec<u8> {
    let bytes = usize::try_from(GROUP_BYTES).unwrap() * groups as usize + rest;
    (0..bytes)
        .map(|at| (at / 7 + (at >> 16)).to_le_bytes()[0])
        .collect()
}

fn head(to: &str, contents: &[u8]) -> FileHead {
    FileHead {
        path: path(to),
        metadata: Metadata::new(
            0o640,
            Timestamp {
                seconds: 77,
                nanos: 0,
            },
        ),
        bytes: contents.len() as u64,
        ctime: Timestamp {
            seconds: 5,
            nanos: 6,
        },
        inode: 8,
        data: None,
    }
}

/// Mode, group, time, contents and access control list of an entry. Directories have neither mode nor time.
type Shown = (u32, u32, Option<i64>, Vec<u8>, Vec<u8>);

/// Returns all entries below a directory, except those of the job itself.
fn tree(root: &Path) -> BTreeMap<PathBuf, Shown> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path
                .file_name()
                .unwrap()
                .as_encoded_bytes()
                .starts_with(b".zmove-")
            {
                continue;
            }
            let there = path.symlink_metadata().unwrap();
            let contents = if there.is_file() {
                std::fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            let mut acl = vec![0; 256];
            let length = rustix::fs::lgetxattr(&path, "system.posix_acl_access", &mut acl[..]);
            acl.truncate(length.unwrap_or(0));
            if there.is_dir() {
                directories.push(path.clone());
            }
            let mtime = (!there.is_dir()).then(|| there.mtime());
            let mode = if there.is_dir() { 0 } else { there.mode() };
            let below = path.strip_prefix(root).unwrap().to_owned();
            found.insert(below, (mode, there.gid(), mtime, contents, acl));
        }
    }
    found
}

const SETTLED: SharedJobResult = SharedJobResult::Settled(Vec::new());

fn job_directory(root: &Path) -> PathBuf {
    root.join(format!(".zmove-job-{JOB}"))
}

/// Returns the directory that contains the temporary files of large files.
fn parts_directory(root: &Path) -> PathBuf {
    let entries = std::fs::read_dir(job_directory(root)).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap();
        name.as_encoded_bytes().starts_with(b".zmove-job-")
    };
    paths.find(is_it).unwrap()
}

fn journals_of(root: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(job_directory(root))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_journal = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .as_encoded_bytes()
            .starts_with(b"journal-")
    };
    paths.filter(is_journal).collect()
}

/// Reads the journals again and returns the groups of a part that count as received.
fn flushed_groups(journals: &Path, part: PartKey) -> BTreeMap<u32, Cv> {
    let mut groups = FlushedGroups::new(&Quota::default());
    let directory = OwnedFd::from(std::fs::File::open(journals).unwrap());
    groups.try_read_new_records(&directory).unwrap();
    groups
        .of(&part)
        .iter()
        .flat_map(|came| came.values.clone())
        .collect()
}

/// One receiver dies after it has flushed half of the groups. Two other receivers get the remaining groups, and both
/// commit the file at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_of_two_receivers_is_committed_once_by_both() {
    for seed in 0..4_u64 {
        let home = tempfile::tempdir().unwrap();
        let contents = contents(6, 12_345);
        let head = head("d/e/large", &contents);
        let order = shuffled(7, seed);
        let mut lost = Mover::open(home.path()).await;
        lost.declare(5, &head);
        order[..4]
            .iter()
            .for_each(|group| lost.chunk(5, *group, &contents));
        lost.stored(4).await;
        assert_eq!(lost.settle().await, SETTLED);
        lost.die().await;
        let mut one = Mover::open(home.path()).await;
        let mut other = Mover::open(home.path()).await;
        let SharedJobResult::Missing(missing) = one.commit(&head).await else {
            panic!("committed")
        };
        let missing = missing
            .into_iter()
            .flat_map(|range| range.first..range.end());
        assert_eq!(
            missing.collect::<BTreeSet<_>>(),
            order[4..].iter().copied().collect()
        );
        assert!(!home.path().join("d/e/large").exists());
        one.declare(1, &head);
        other.declare(9, &head);
        // One received group is sent again, and one missing group is sent twice.
        order[3..6]
            .iter()
            .for_each(|group| one.chunk(1, *group, &contents));
        one.stored(3).await;
        assert_eq!(one.settle().await, SETTLED);
        order[5..]
            .iter()
            .for_each(|group| other.chunk(9, *group, &contents));
        other.stored(2).await;
        assert_eq!(other.settle().await, SETTLED);
        let committed = tokio::join!(one.commit(&head), other.commit(&head));
        let there = std::fs::metadata(home.path().join("d/e/large")).unwrap();
        let done = SharedJobResult::Done;
        assert_eq!(committed, (done.clone(), done.clone()));
        assert_eq!(other.commit(&head).await, done, "again");
        assert_eq!((there.mode() & 0o7777, there.mtime()), (0o640, 77));
        assert!(std::fs::read(home.path().join("d/e/large")).unwrap() == contents);
        one.finish().await;
        assert_is_over_once_closed(home.path(), other).await;
    }
}

/// Closes the job through its last session. Checks that all entries of the job are removed and that no session can be
/// opened.
async fn assert_is_over_once_closed(home: &Path, mut last: Mover) {
    assert_eq!(
        last.order(SharedJobOrder::Close).await,
        SharedJobResult::Done
    );
    assert_eq!(
        last.order(SharedJobOrder::Close).await,
        SharedJobResult::Done,
        "again"
    );
    assert_eq!(
        last.settle().await,
        SharedJobResult::Failed(Operation::Rename, FaultCode::JobEnded)
    );
    last.finish().await;
    assert!(!job_directory(home).exists());
    assert_eq!(tree(home).len(), 3, "the file with its directories");
    let part = SharedJobOpening {
        beginning: Beginning::UnderWay,
        ..part()
    };
    let late = Mover::try_open(home, open(Some(part))).await;
    assert_eq!(late.err().unwrap().code, RefusalCode::NotUnderWay);
}

/// A node that loses power may have recorded groups that it had not flushed.
#[tokio::test(flavor = "multi_thread")]
async fn groups_count_when_they_are_flushed() {
    let home = tempfile::tempdir().unwrap();
    let contents = contents(1, 1);
    let head = head("large", &contents);
    let mut mover = Mover::open(home.path()).await;
    mover.first_group(&head, &contents).await;
    let name = shared_name(&head.path, &source_of(&head));
    let part = parts_directory(home.path()).join(name.as_os_str());
    let written = std::fs::File::options().write(true).open(&part).unwrap();
    written
        .write_all_at(&contents[contents.len() - 1..], contents.len() as u64 - 1)
        .unwrap();
    let directory = Arc::new(OwnedFd::from(
        std::fs::File::open(job_directory(home.path())).unwrap(),
    ));
    let other = TransferId([0xEE; 16]);
    let begin = begin(other, String::new(), &Tree::open(home.path()).unwrap());
    let told =
        Journal::create_in_job(&directory, &journals::name_of(other), &begin, u64::MAX).unwrap();
    let inode = written.metadata().unwrap().ino();
    let (path, source) = (head.path.clone(), source_of(&head));
    told.record_part(
        4,
        &PartFile {
            path,
            part: name,
            source,
            inode,
            born: Timestamp::default(),
        },
    )
    .unwrap();
    told.record_groups(4, 1, &[group_cv(1, &contents[contents.len() - 1..])])
        .unwrap();
    assert_eq!(
        mover.commit(&head).await,
        SharedJobResult::Missing(vec![GroupRange::new(1, 1)])
    );
    told.record_flushed(told.mark()).unwrap();
    assert_eq!(mover.commit(&head).await, SharedJobResult::Done);
    assert!(std::fs::read(home.path().join("large")).unwrap() == contents);
    mover.finish().await;
}

/// The file is committed, a user removes it, and then it is assigned again. A new temporary file could get the inode
/// number of the first one, whose groups are recorded as received.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_that_has_been_committed_is_not_begun_again() {
    let home = tempfile::tempdir().unwrap();
    let contents = contents(1, 1);
    let head = head("large", &contents);
    let mut one = Mover::open(home.path()).await;
    one.declare(1, &head);
    (0..2).for_each(|group| one.chunk(1, group, &contents));
    one.stored(2).await;
    assert_eq!(one.settle().await, SETTLED);
    assert_eq!(one.commit(&head).await, SharedJobResult::Done);
    std::fs::remove_file(home.path().join("large")).unwrap();
    let mut late = Mover::open(home.path()).await;
    late.first_group(&head, &contents).await;
    assert_eq!(late.commit(&head).await, SharedJobResult::Done);
    let parts = std::fs::read_dir(parts_directory(home.path())).unwrap();
    let parts = parts.filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_file());
    assert_eq!((parts.count(), late.faults.len()), (0, 0));
    assert!(!home.path().join("large").exists(), "once is enough");
    one.finish().await;
    late.finish().await;
}

/// The sender orders a commit every second until all groups exist.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_been_read_of_a_journal_is_not_read_again() {
    let home = tempfile::tempdir().unwrap();
    let contents = contents(1, 1);
    let head = head("large", &contents);
    let mut mover = Mover::open(home.path()).await;
    mover.declare(1, &head);
    mover.chunk(1, 0, &contents);
    mover.stored(1).await;
    assert_eq!(mover.settle().await, SETTLED);
    assert_eq!(
        mover.commit(&head).await,
        SharedJobResult::Missing(vec![GroupRange::new(1, 1)])
    );
    let [journal] = &journals_of(home.path())[..] else {
        panic!("one session, one journal")
    };
    std::fs::File::options()
        .write(true)
        .open(journal)
        .unwrap()
        .write_all_at(&[0xFF; 100], 0)
        .unwrap();
    mover.chunk(1, 1, &contents);
    mover.stored(1).await;
    assert_eq!(mover.settle().await, SETTLED);
    assert_eq!(mover.commit(&head).await, SharedJobResult::Done);
    mover.finish().await;
}

/// Another receiver gets the same groups and commits the file. Groups that are received after the commit are ignored.
/// The flush of earlier groups restores the time of the file.
#[tokio::test(flavor = "multi_thread")]
async fn who_writes_to_a_file_that_has_been_committed_meanwhile_leaves_its_time() {
    let home = tempfile::tempdir().unwrap();
    let contents = contents(1, 1);
    let head = head("large", &contents);
    let (mut one, mut late) = (
        Mover::open(home.path()).await,
        Mover::open(home.path()).await,
    );
    late.declare(1, &head);
    late.chunk(1, 0, &contents);
    late.stored(1).await;
    one.declare(1, &head);
    (0..2).for_each(|group| one.chunk(1, group, &contents));
    one.stored(2).await;
    assert_eq!(one.settle().await, SETTLED);
    assert_eq!(one.commit(&head).await, SharedJobResult::Done);
    let there = home.path().join("large");
    let inode = there.metadata().unwrap().ino();
    // This simulates a delayed write of an earlier group.
    std::fs::File::options()
        .write(true)
        .open(&there)
        .unwrap()
        .write_all_at(&contents[..9], 0)
        .unwrap();
    late.chunk(1, 1, &contents);
    late.stored(1).await;
    assert_eq!(late.settle().await, SETTLED);
    let found = there.metadata().unwrap();
    assert_eq!((found.ino(), found.mtime()), (inode, 77));
    assert!(std::fs::read(&there).unwrap() == contents);
    assert!(late.faults.is_empty(), "{:?}", late.faults);
    one.finish().await;
    late.finish().await;
}

/// The receiver has already stored data when the job ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_goes_on_after_the_end_of_the_job_names_nothing_and_settles_nothing() {
    let home = tempfile::tempdir().unwrap();
    let mut late = Mover::open(home.path()).await;
    let contents = contents(2, 5);
    let head = head("large", &contents);
    late.declare(1, &head);
    late.chunk(1, 0, &contents);
    late.batch(
        "",
        vec![BatchEntry::Directory(name("d"), Metadata::default())],
        &[],
    );
    late.stored(2).await;
    assert_eq!(late.settle().await, SETTLED);
    let mut last = Mover::open(home.path()).await;
    assert_eq!(
        last.order(SharedJobOrder::Close).await,
        SharedJobResult::Done
    );
    let before = tree(home.path());
    late.chunk(1, 1, &contents);
    late.batch("d", vec![file("late", 0o600, b"x")], b"x");
    late.stored(2).await;
    let ended = SharedJobResult::Failed(Operation::Rename, FaultCode::JobEnded);
    assert_eq!(late.settle().await, ended);
    assert_eq!(late.commit(&head).await, ended);
    assert!(
        !late.faults.is_empty() && late.faults.iter().all(|code| *code == FaultCode::JobEnded),
        "{:?}",
        late.faults
    );
    late.finish().await;
    last.finish().await;
    assert_eq!(tree(home.path()), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_late_or_asks_for_what_a_job_has_not_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let stray = SharedJobOpening {
        beginning: Beginning::UnderWay,
        ..part()
    };
    let refused = async |open: Open| Mover::try_open(home.path(), open).await.err().unwrap();
    let told = refused(open(Some(stray))).await;
    assert!(
        told.code == RefusalCode::NotUnderWay && told.text.contains("is not under way"),
        "{told:?}"
    );
    let mover = Mover::open(home.path()).await;
    let base = || open(Some(part()));
    for asked in [
        Open {
            inplace: true,
            ..base()
        },
        Open {
            extraneous: Extraneous::Goes,
            ..base()
        },
        Open {
            delta: true,
            ..base()
        },
        Open {
            compare: Compare::Checksum,
            ..base()
        },
        Open {
            proof: Proof::Media,
            ..base()
        },
        Open {
            durability: Durability::None,
            ..base()
        },
        Open {
            intent: Intent::Inspect,
            ..base()
        },
    ] {
        let told = refused(asked).await;
        assert!(
            told.code == RefusalCode::Protocol && told.text.contains("in a job"),
            "{told:?}"
        );
    }
    mover.finish().await;
}

/// A client with write access to the job's directory could forge the records on which its receivers rely.
#[tokio::test(flavor = "multi_thread")]
async fn no_transfer_writes_into_the_directory_of_a_job() {
    let home = tempfile::tempdir().unwrap();
    let of_the_job = Mover::open(home.path()).await;
    let directory = format!(".zmove-job-{JOB}");
    for job in [None, Some(part())] {
        let mut mover = Mover::try_open(home.path(), open(job)).await.unwrap();
        mover.batch(&directory, vec![file("journal-1-x", 0o600, b"x")], b"x");
        assert_eq!(mover.broken().await, 0, "stored");
    }
    let into = Open {
        target: directory.clone().into_bytes(),
        ..open(None)
    };
    let told = Mover::try_open(home.path(), into).await.err().unwrap();
    assert!(
        told.code == RefusalCode::Denied && told.text.contains("zmove-job"),
        "{told:?}"
    );
    assert!(!home.path().join(directory).join("journal-1-x").exists());
    of_the_job.finish().await;
}

/// Two receivers create the same new directories. One of these directories is removed while a receiver has it open.
#[tokio::test(flavor = "multi_thread")]
async fn directories_that_others_make_or_remove_are_made_and_tried_again() {
    let home = tempfile::tempdir().unwrap();
    let (mut one, mut other) = (
        Mover::open(home.path()).await,
        Mover::open(home.path()).await,
    );
    for round in 0..30 {
        let directory = format!("a/b{round}/c/d");
        one.batch(&directory, vec![file("one", 0o600, b"1")], b"1");
        other.batch(&directory, vec![file("other", 0o600, b"2")], b"2");
    }
    one.stored(30).await;
    other.stored(30).await;
    assert_eq!(
        (one.settle().await, other.settle().await),
        (SETTLED, SETTLED)
    );
    assert_eq!(tree(home.path()).len(), 1 + 30 * 5);
    std::fs::remove_dir_all(home.path().join("a")).unwrap();
    one.batch("a/b29/c/d", vec![file("again", 0o600, b"3")], b"3");
    one.stored(1).await;
    assert_eq!(one.settle().await, SETTLED);
    assert_eq!(
        std::fs::read(home.path().join("a/b29/c/d/again")).unwrap(),
        b"3"
    );
    assert!(
        one.faults.is_empty() && other.faults.is_empty(),
        "{:?} {:?}",
        one.faults,
        other.faults
    );
    one.finish().await;
    other.finish().await;
}

fn root(home: &Path) -> Arc<OwnedFd> {
    Arc::new(std::fs::File::open(home).unwrap().into())
}

/// Opens the directory of the job, and creates it if it does not exist.
fn job(root: &Arc<OwnedFd>) -> SharedJobDirectory {
    SharedJobDirectory::open(root, JOB, Beginning::Allowed).unwrap()
}

/// Ends the job.
fn close(home: &Path) {
    let root = root(home);
    let closed = job(&root).close(&Lease::constant(), &root, JOB);
    closed.unwrap();
}

fn transfer(home: &Path) -> Transfer {
    transfer_within(home, &Quota::default())
}

fn transfer_within(home: &Path, quota: &Quota) -> Transfer {
    let id = TransferId([7; 16]);
    let open = Open {
        target: home.as_os_str().as_encoded_bytes().to_vec(),
        ..open(Some(part()))
    };
    let mut target = Target::resolve(&open, &WriteAccess::Anywhere, &Lease::constant()).unwrap();
    let begin = begin(id, String::new(), &target.tree);
    let (session, journal) = SharedJobSession::begin(&target.tree, &part(), &begin, quota).unwrap();
    let parts = PartStore::in_job(
        &Lease::constant(),
        Arc::clone(&session.session),
        journal,
        begin,
        &Quota::default(),
    );
    target.shared_job = Some(session);
    let (outcomes, _nobody) = mpsc::channel(1);
    Transfer::new(
        id,
        &open,
        target,
        parts,
        &ReceiverConfig::default(),
        outcomes,
    )
}

#[test]
fn what_has_no_name_when_the_job_ends_gets_none() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batch = place(&mut placer, files("d", "f", 20));
    let own = transfer.target.shared_job.as_ref().unwrap().session.own();
    let hidden = rustix::fs::Dir::read_from(&**own).unwrap().count() - 2;
    assert_eq!(hidden, 20, "all wait for their names");
    let before = tree(home.path());
    assert!(
        before.values().all(|(.., contents, _)| contents.is_empty()),
        "{before:?}"
    );
    close(home.path());
    publish_all(&transfer);
    let ended = batch
        .faults()
        .into_iter()
        .filter(|fault| fault.code == FaultCode::JobEnded);
    assert_eq!(ended.count(), 20);
    assert_eq!(tree(home.path()), before);
}
