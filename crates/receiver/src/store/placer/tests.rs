//! Placing batches and publishing them.

use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use zmove_chunk::file_root;
use zmove_disk::{Descriptor, FileIdentity, Lease, Permit, ProvenKinds, WantedMetadata};
use zmove_types::{Account, ExtraMetadata, ItemId, MetadataKinds, Timestamp};
use zmove_wire::{EntryFault, FaultCode, Open};

use crate::config::ReceiverConfig;
use crate::rights::grant::OwnerPermission;
use crate::rights::quota::Quota;
use crate::store::failure::FaultCause;
use crate::store::large_files::Complete;
use crate::store::publishing::publisher::{Publisher, STAGING_MAX, SWEPT_MAX};
use crate::store::target::file_systems::FileSystems;
use crate::store::target::{Target, WriteAccess};
use crate::store::writer::finish_file;

pub(crate) fn transfer(home: &Path) -> Transfer {
    transfer_with_journals(home, None)
}

pub(crate) fn transfer_with_journals(home: &Path, journals: Option<PathBuf>) -> Transfer {
    transfer_of(7, home, journals)
}

/// Returns the opening of a transfer to this directory.
pub(crate) fn open_at(home: &Path) -> Open {
    Open::new(home.as_os_str().as_encoded_bytes().to_vec(), [0; 16])
}

/// Creates a transfer with this number as its ID.
pub(crate) fn transfer_of(number: u8, home: &Path, journals: Option<PathBuf>) -> Transfer {
    transfer_by(&ReceiverConfig::default(), number, home, journals)
}

/// Creates a transfer whose key allows only one running thread at a time.
pub(crate) fn transfer_with_one_place(
    number: u8,
    home: &Path,
    journals: Option<PathBuf>,
) -> Transfer {
    transfer_of_key(&Quota::with_one_place(), number, home, journals)
}

/// Creates a transfer of the key with this quota.
pub(crate) fn transfer_of_key(
    quota: &Quota,
    number: u8,
    home: &Path,
    journals: Option<PathBuf>,
) -> Transfer {
    let config = ReceiverConfig {
        quota: quota.clone(),
        ..ReceiverConfig::default()
    };
    transfer_by(&config, number, home, journals)
}

/// Returns the result of `work`. Panics if a thread waits for another thread while it holds the only turn (permission
/// to run).
#[track_caller]
pub(crate) fn without_a_standstill<T: Send>(
    transfer: &Transfer,
    work: impl FnOnce() -> T + Send,
) -> T {
    std::thread::scope(|scope| {
        let (done_in, done) = crossbeam_channel::bounded(1);
        scope.spawn(move || done_in.send(work()));
        let done = done.recv_timeout(Duration::from_secs(120));
        // Threads that wait for a turn give up.
        transfer.stopping.store(true, Ordering::Relaxed);
        done.expect("nobody waits for who waits")
    })
}

fn transfer_by(
    config: &ReceiverConfig,
    number: u8,
    home: &Path,
    journals: Option<PathBuf>,
) -> Transfer {
    let open = open_at(home);
    let target = Target::resolve(&open, &WriteAccess::Anywhere, &Lease::constant()).unwrap();
    let (outcomes, _nobody) = tokio::sync::mpsc::channel(1);
    let id = zmove_types::TransferId([number; 16]);
    let parts = crate::resume::parts::PartStore::new(
        journals,
        id,
        String::new(),
        &target.tree,
        &Quota::default(),
    );
    Transfer::new(id, &open, target, parts, config, outcomes)
}

fn name(text: &str) -> Name {
    Name::from_bytes(text.as_bytes()).unwrap()
}

fn path(text: &str) -> RelPath {
    RelPath::from_bytes(text.as_bytes()).unwrap()
}

/// Sets the mode of a file, and the modification time that is used in all metadata of these tests.
fn dress(path: &Path, mode: u32) {
    let file = File::open(path).unwrap();
    WantedMetadata::mode_and_time(&metadata(mode))
        .set(
            Permit::for_hidden(),
            Descriptor::Open(file.as_fd()),
            &ProvenKinds::default(),
        )
        .unwrap();
}

fn metadata(mode: u32) -> Metadata {
    Metadata::new(
        mode,
        Timestamp {
            seconds: 9,
            nanos: 0,
        },
    )
}

/// Returns `count` files of one byte each, whose names are the prefix and a number.
pub(crate) fn files(directory: &str, prefix: &str, count: u32) -> DirectoryGroup {
    let file = |number: u32| {
        let name = name(&format!("{prefix}{number}"));
        BatchEntry::File(FileEntry {
            name,
            metadata: metadata(0o644),
            bytes: 1,
            root: file_root(b"x"),
            data: None,
        })
    };
    DirectoryGroup {
        directory: path(directory),
        entries: (0..count).map(file).collect(),
    }
}

/// Places a group and publishes it.
fn place(placer: &mut Placer<'_>, group: DirectoryGroup) -> Vec<EntryFault> {
    let batch = begin(placer, group);
    publish_all(placer.transfer);
    batch.faults()
}

/// Places a group without publishing it.
pub(crate) fn begin(placer: &mut Placer<'_>, group: DirectoryGroup) -> Arc<PendingBatch> {
    let batch = PendingBatch::new(ItemId(1), ExpectedState::Absent, None);
    placer.place_groups(
        vec![group],
        &batch,
        &[b'x'; 64],
        &placer.transfer.turn(Task::Write),
    );
    batch
}

/// Returns the names that are not hidden.
fn visible(directory: &Path) -> Vec<String> {
    names(directory)
        .into_iter()
        .filter(|name| !name.starts_with(".zmove-"))
        .collect()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect::<Vec<_>>();
    names.sort();
    names
}

fn directory_entry(directory: &str, text: &str) -> DirectoryGroup {
    let entries = vec![BatchEntry::Directory(name(text), metadata(0o755))];
    DirectoryGroup {
        directory: path(directory),
        entries,
    }
}

/// Two threads find a file where they need a directory. Other users may rename entries of the parent, so no staging
/// directory can be created.
#[test]
fn an_entry_that_another_thread_has_replaced_by_a_directory_is_no_failure() {
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let there = home.path().join("new");
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let mut stage = || placer.stage_at(&RelPath::root(), &path("new"), &name("new"));
    std::fs::write(&there, "x").unwrap();
    stage().unwrap();
    assert!(!there.exists(), "the entry is removed at once");
    stage().unwrap();
    std::fs::create_dir(&there).unwrap();
    stage().unwrap();
    assert!(there.is_dir());
}

#[test]
fn two_transfers_that_fill_one_new_directory_both_succeed() {
    let home = tempfile::tempdir().unwrap();
    let (first, second) = (transfer(home.path()), transfer(home.path()));
    let (mut maker, mut guest) = (Placer::new(&first), Placer::new(&second));
    assert_eq!(place(&mut maker, directory_entry("", "d")), []);
    // The second placer opens the directory while the first placer may still replace it with a staging directory.
    assert_eq!(place(&mut guest, directory_entry("", "d")), []);
    assert_eq!(place(&mut maker, files("d", "f", 8)), []);
    assert_eq!(place(&mut guest, files("d", "g", 9)), []);
    assert_eq!(
        std::fs::read_dir(home.path().join("d")).unwrap().count(),
        17
    );
}

#[test]
fn no_directory_is_made_before_there_is_a_turn_for_it() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    // The session ends while a thread waits for its turn.
    transfer.stopping.store(true, Ordering::Relaxed);
    let mut placer = Placer::new(&transfer);
    begin(&mut placer, directory_entry("deep/down", "d"));
    begin(&mut placer, files("other/deep", "f", 16));
    assert_eq!(names(home.path()), [] as [String; 0]);
}

#[test]
fn a_large_file_survives_that_its_directory_is_replaced() {
    let home = tempfile::tempdir().unwrap();
    let (first, second) = (transfer(home.path()), transfer(home.path()));
    let (mut maker, mut guest) = (Placer::new(&first), Placer::new(&second));
    assert_eq!(place(&mut maker, directory_entry("", "d")), []);
    let id = zmove_types::FileId(1);
    let bytes = 2 * zmove_types::GROUP_BYTES;
    let head = zmove_wire::FileHead {
        path: path("d/large"),
        metadata: metadata(0o644),
        bytes,
        ctime: Timestamp::default(),
        inode: 1,
        data: None,
    };
    second.files.declare(id, head, |_| None, |_| None).unwrap();
    let file = second.files.find(id).unwrap().unwrap();
    let opened = guest.directory(&path("d")).unwrap().directory;
    let staged = Staged::create(&opened, 0o600).unwrap();
    assert_eq!(place(&mut maker, files("d", "f", 8)), []);
    finish_file(&second, &second.turn(Task::Write), &file, Complete(staged));
    publish_all(&second);
    assert!(home.path().join("d/large").exists());
}

#[test]
fn a_directory_opened_during_its_creation_is_not_replaced() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let start = Barrier::new(2);
    for round in 0..200 {
        let directory = format!("d{round}");
        let mut other = Placer::new(&transfer);
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| {
                start.wait();
                other.directory(&path(&directory)).unwrap();
            });
            start.wait();
            assert_eq!(
                place(&mut Placer::new(&transfer), files(&directory, "f", 8)),
                []
            );
            opener.join().unwrap();
        });
        assert_eq!(
            place(&mut other, files(&directory, "g", 1)),
            [],
            "round {round}"
        );
    }
}

#[test]
fn batches_of_one_new_directory_get_their_names_together() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let (mut first, mut second) = (Placer::new(&transfer), Placer::new(&transfer));
    let one = begin(&mut first, files("d", "f", 8));
    let other = begin(&mut second, files("d", "g", 1));
    assert_eq!(
        names(&home.path().join("d")),
        [""; 0],
        "nothing has its name"
    );
    // Each file holds a reference to its batch.
    assert_eq!(
        (Arc::strong_count(&one), Arc::strong_count(&other)),
        (9, 2),
        "nothing is settled"
    );
    publish_all(&transfer);
    assert_eq!(names(&home.path().join("d")).len(), 9);
    assert_eq!((Arc::strong_count(&one), Arc::strong_count(&other)), (1, 1));
    assert_eq!(names(home.path()), ["d"]);
}

#[test]
fn files_in_a_directory_that_was_there_have_hidden_names_until_they_are_published() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("d")).unwrap();
    std::fs::write(home.path().join("d/f3"), "old").unwrap();
    let transfer = transfer(home.path());
    let batch = begin(&mut Placer::new(&transfer), files("d", "f", 8));
    let directory = home.path().join("d");
    assert_eq!(
        (visible(&directory), names(&directory).len()),
        (vec!["f3".to_owned()], 9)
    );
    assert_eq!(std::fs::read(directory.join("f3")).unwrap(), b"old");
    publish_all(&transfer);
    assert_eq!((visible(&directory).len(), names(&directory).len()), (8, 8));
    assert_eq!(
        (std::fs::read(directory.join("f3")).unwrap(), batch.faults()),
        (b"x".to_vec(), vec![])
    );
}

#[test]
fn what_a_dead_process_left_in_a_directory_that_is_there_goes() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("d");
    std::fs::create_dir(&directory).unwrap();
    let opened = Arc::new(OwnedFd::from(File::open(&directory).unwrap()));
    let transfer = transfer(home.path());
    let own = Staged::create(&opened, 0o600)
        .unwrap()
        .into_hidden_name()
        .unwrap();
    let own = own.as_os_str().to_str().unwrap();
    // The name is changed to one of an earlier process with the same process number.
    let mut parts: Vec<_> = own.split('-').collect();
    parts[5] = "1";
    std::fs::write(directory.join(parts.join("-")), "left").unwrap();
    let mut placer = Placer::new(&transfer);
    assert_eq!(place(&mut placer, directory_entry("", "d")), []);
    assert_eq!(names(&directory), [own], "that of a live process stays");
}

/// Entries below an unpublished directory are placed without a flush.
#[test]
fn what_is_below_a_staging_directory_appears_with_it() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let (mut one, mut other) = (Placer::new(&transfer), Placer::new(&transfer));
    let mut batches = vec![begin(&mut one, files("d", "f", 8))];
    for (directory, count) in [("d/few", 2), ("d/many", 9), ("d/many/deep/est", 3)] {
        batches.push(begin(&mut other, files(directory, "g", count)));
    }
    assert_eq!(names(&home.path().join("d")), [""; 0]);
    publish_all(&transfer);
    let count = |directory: &str| names(&home.path().join(directory)).len();
    assert_eq!(
        ["d", "d/few", "d/many", "d/many/deep/est"].map(count),
        [10, 2, 10, 3]
    );
    assert!(batches.iter().all(|batch| batch.faults().is_empty()));
    assert_eq!(
        place(&mut other, files("d/few", "h", 1)),
        [],
        "the same directory as before"
    );
    assert_eq!(
        (count("d/few"), names(home.path())),
        (3, vec!["d".to_owned()])
    );
}

#[test]
fn what_comes_while_a_directory_gets_its_name_is_published_later() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let early = begin(&mut placer, files("d", "f", 8));
    let publishing = transfer.publisher.take_generation();
    let later = begin(&mut placer, files("d", "g", 8));
    publishing
        .publish(&transfer, None)
        .into_iter()
        .filter_map(PendingBatch::release)
        .for_each(|told| transfer.reports.report(told));
    assert_eq!(visible(&home.path().join("d")).len(), 8);
    publish_all(&transfer);
    assert_eq!(visible(&home.path().join("d")).len(), 16);
    assert_eq!([early.faults(), later.faults()], [vec![], vec![]]);
}

#[test]
fn a_directory_takes_the_place_of_a_file_only_when_what_is_in_it_is_published() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("a"), "old").unwrap();
    std::os::unix::fs::symlink("nowhere", home.path().join("b")).unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batches = [
        begin(&mut placer, files("a/x", "f", 2)),
        begin(&mut placer, directory_entry("", "b")),
        begin(&mut placer, files("b", "f", 9)),
    ];
    assert_eq!(std::fs::read(home.path().join("a")).unwrap(), b"old");
    assert!(home.path().join("b").is_symlink());
    publish_all(&transfer);
    assert!(batches.iter().all(|batch| batch.faults().is_empty()));
    assert_eq!(names(home.path()), ["a", "b"]);
    assert_eq!(
        (
            names(&home.path().join("a/x")).len(),
            names(&home.path().join("b")).len()
        ),
        (2, 9)
    );
}

/// After a thread has created a directory, another thread may add a file to it, directly or far below, before the first
/// thread reports the new directory.
#[test]
fn a_directory_that_is_used_is_not_fresh() {
    for below in ["d", "d/x/y/z"] {
        let home = tempfile::tempdir().unwrap();
        let transfer = transfer(home.path());
        let (mut placer, mut other) = (Placer::new(&transfer), Placer::new(&transfer));
        let mut few = None;
        let make = || {
            std::fs::create_dir(home.path().join("d"))?;
            few = Some(begin(&mut other, files(below, "f", 1)));
            Ok(true)
        };
        assert!(transfer.publisher.make(&path("d"), make).unwrap());
        let made = begin(&mut placer, directory_entry("", "e"));
        let later = begin(&mut other, files(&below.replace('d', "e"), "f", 1));
        let many = ["d", "e"].map(|directory| begin(&mut placer, files(directory, "g", 9)));
        publish_all(&transfer);
        let all = [few.unwrap(), made, later].into_iter().chain(many);
        assert!(
            all.into_iter().all(|batch| batch.faults().is_empty()),
            "{below}"
        );
    }
}

#[test]
fn files_whose_directory_was_filled_meanwhile_go_there_one_by_one() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batches = [
        begin(&mut placer, files("d", "f", 8)),
        begin(&mut placer, files("d", "g", 2)),
    ];
    let filled = home.path().join("d");
    std::fs::write(filled.join("f3"), "of somebody else").unwrap();
    std::fs::create_dir(filled.join("g1")).unwrap();
    publish_all(&transfer);
    assert_eq!(
        std::fs::read(filled.join("f3")).unwrap(),
        b"x",
        "replaced, as any file"
    );
    assert_eq!(names(&filled).len(), 10);
    assert_eq!(names(home.path()), ["d"]);
    let (operation, code) = (Operation::Rename, FaultCode::DirectoryInTheWay);
    assert_eq!(batches[0].faults(), []);
    assert_eq!(
        batches[1].faults(),
        [EntryFault {
            entry: 1,
            operation,
            code
        }]
    );
}

#[test]
fn a_guessed_file_that_is_there_by_now_stays() {
    let home = tempfile::tempdir().unwrap();
    for new in [true, false] {
        let directory = home.path().join("d");
        if !new {
            std::fs::remove_dir_all(&directory).unwrap();
            std::fs::create_dir(&directory).unwrap();
        }
        let transfer = transfer(home.path());
        let mut placer = Placer::new(&transfer);
        let batch = PendingBatch::new(ItemId(1), ExpectedState::Unknown, None);
        placer.place_groups(
            vec![files("d", "f", 8)],
            &batch,
            &[b'x'; 8],
            &placer.transfer.turn(Task::Write),
        );
        let there = directory.join("f3");
        std::fs::write(&there, "y").unwrap();
        dress(&there, 0o644);
        publish_all(&transfer);
        assert_eq!(std::fs::read(&there).unwrap(), b"y");
        let FaultCause { operation, code } = KEPT_EXISTING;
        assert_eq!(
            batch.faults(),
            [EntryFault {
                entry: 3,
                operation,
                code
            }]
        );
        assert_eq!(names(&directory).len(), 8);
    }
}

/// Two transfers may send the same tree at the same time. If the existing file already has the right metadata, it must
/// not be set again.
#[test]
fn a_guessed_file_that_is_there_by_now_keeps_its_setuid_bit_and_one_that_differs_beside_goes() {
    for (mode, stays) in [(0o4755, b"y"), (0o644, b"x")] {
        let home = tempfile::tempdir().unwrap();
        let there = home.path().join("f0");
        let mut transfer = transfer(home.path());
        transfer.target.view.policy.rules.kinds = MetadataKinds::ALL;
        transfer.target.view.policy.rules.owning = OwnerPermission::Allowed;
        let mut group = files("", "f", 1);
        let BatchEntry::File(file) = &mut group.entries[0] else {
            unreachable!()
        };
        let (owner, group_id) = (rustix::process::geteuid(), rustix::process::getegid());
        let account = |id| {
            Some(Account {
                id,
                name: "".into(),
            })
        };
        let (owner, group_id) = (account(owner.as_raw()), account(group_id.as_raw()));
        file.metadata.extra = Some(Arc::new(ExtraMetadata {
            owner,
            group: group_id,
            ..ExtraMetadata::default()
        }));
        file.metadata.mode = 0o4755;
        let mut placer = Placer::new(&transfer);
        let batch = PendingBatch::new(ItemId(1), ExpectedState::Unknown, None);
        placer.place_groups(
            vec![group],
            &batch,
            b"x",
            &placer.transfer.turn(Task::Write),
        );
        std::fs::write(&there, "y").unwrap();
        dress(&there, mode);
        publish_all(&transfer);
        let now = (
            std::fs::read(&there).unwrap(),
            there.metadata().unwrap().permissions().mode() & 0o7777,
        );
        assert_eq!(now, (stays.to_vec(), 0o4755), "{mode:o}");
        assert_eq!(names(home.path()), ["f0"]);
    }
}

#[test]
fn what_appears_while_it_comes_stays_if_nothing_is_to_be_replaced() {
    for overwrite in [Overwrite::Nothing, Overwrite::Older] {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("d")).unwrap();
        let mut transfer = transfer(home.path());
        transfer.target.view.policy.rules.overwrite = overwrite;
        let batch = begin(&mut Placer::new(&transfer), files("d", "f", 2));
        // The existing file is newer than the new one.
        std::fs::write(home.path().join("d/f1"), "y").unwrap();
        publish_all(&transfer);
        assert_eq!(std::fs::read(home.path().join("d/f1")).unwrap(), b"y");
        let FaultCause { operation, code } = KEPT_EXISTING;
        assert_eq!(
            batch.faults(),
            [EntryFault {
                entry: 1,
                operation,
                code
            }]
        );
        assert_eq!(names(&home.path().join("d")), ["f0", "f1"]);
    }
}

/// Entries below the directory already have their final names, but the directory itself cannot be renamed.
#[test]
fn what_is_below_a_directory_that_cannot_go_where_it_should_has_failed() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batches = [
        begin(&mut placer, files("d", "f", 8)),
        begin(&mut placer, files("d/few", "g", 2)),
        begin(&mut placer, files("d/many", "h", 9)),
        begin(&mut placer, files("d/many/deep", "i", 1)),
        begin(&mut placer, files("d/other", "j", 9)),
    ];
    for taken in ["few", "many"] {
        std::fs::write(home.path().join("d").join(taken), "of somebody else").unwrap();
    }
    publish_all(&transfer);
    let failed = batches.map(|batch| batch.faults().len());
    assert_eq!(failed, [0, 2, 9, 1, 0]);
    assert_eq!(names(&home.path().join("d")).len(), 8 + 3);
    assert_eq!(names(&home.path().join("d/other")).len(), 9);
}

struct ClearOnDrop<'a>(&'a AtomicBool);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A writer has the staging directory open while the directory is merged.
#[test]
fn links_and_directories_that_come_while_a_directory_is_merged_arrive() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let first = begin(&mut placer, files("d", "f", 8));
    std::fs::write(home.path().join("d/foreign"), "of somebody else").unwrap();
    let (publishing, links) = (AtomicBool::new(true), AtomicU32::new(0));
    std::thread::scope(|scope| {
        // The guard clears the flag even if an assertion fails, so that the thread ends.
        let _guard = ClearOnDrop(&publishing);
        let linking = scope.spawn(|| {
            let mut placer = Placer::new(&transfer);
            while publishing.load(Ordering::Relaxed) {
                let number = links.load(Ordering::Relaxed);
                let link = BatchEntry::Symlink(
                    name(&format!("l{number}")),
                    metadata(0o777),
                    Box::from(*b"x"),
                );
                let below = BatchEntry::Directory(name(&format!("e{number}")), metadata(0o755));
                let group = DirectoryGroup {
                    directory: path("d"),
                    entries: vec![link, below],
                };
                assert_eq!(begin(&mut placer, group).faults(), []);
                links.store(number + 1, Ordering::Relaxed);
            }
        });
        while links.load(Ordering::Relaxed) < 50 {
            assert!(!linking.is_finished());
            std::thread::yield_now();
        }
        publish_all(&transfer);
    });
    assert_eq!(first.faults(), []);
    let there = names(&home.path().join("d"));
    assert_eq!(
        there.len(),
        8 + 1 + 2 * links.into_inner() as usize,
        "{there:?}"
    );
    assert_eq!(names(home.path()), ["d"]);
}

/// The staging directory is created while its parent directory is being published and merged.
#[test]
fn a_staging_directory_below_one_that_is_merged_gets_its_name_too() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let above = begin(&mut placer, files("d", "f", 8));
    let first = transfer.publisher.take_generation();
    let batches = [
        begin(&mut placer, files("d/x", "g", 8)),
        begin(&mut placer, files("d/x/y", "h", 3)),
    ];
    std::fs::write(home.path().join("d/foreign"), "of somebody else").unwrap();
    first
        .publish(&transfer, None)
        .into_iter()
        .filter_map(PendingBatch::release)
        .for_each(|told| transfer.reports.report(told));
    publish_all(&transfer);
    assert_eq!(above.faults(), []);
    assert!(batches.iter().all(|batch| batch.faults().is_empty()));
    let there = |directory: &str| names(&home.path().join(directory)).len();
    assert_eq!(["d", "d/x", "d/x/y"].map(there), [8 + 2, 8 + 1, 3]);
}

#[test]
fn what_is_below_a_staging_directory_that_somebody_has_moved_has_failed() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batches = [
        begin(&mut placer, files("d", "f", 8)),
        begin(&mut placer, files("d/x", "g", 2)),
    ];
    let hidden = names(home.path())
        .into_iter()
        .find(|name| name.starts_with(".zmove-"))
        .unwrap();
    std::fs::rename(home.path().join(hidden), home.path().join("elsewhere")).unwrap();
    publish_all(&transfer);
    assert_eq!(batches.map(|batch| batch.faults().len()), [8, 2]);
}

#[test]
fn what_appears_below_a_new_directory_stays_if_nothing_is_to_be_replaced() {
    for overwrite in [Overwrite::Nothing, Overwrite::Older] {
        let home = tempfile::tempdir().unwrap();
        let mut transfer = transfer(home.path());
        transfer.target.view.policy.rules.overwrite = overwrite;
        let mut placer = Placer::new(&transfer);
        let batches = [
            begin(&mut placer, files("d", "f", 8)),
            begin(&mut placer, files("d/few", "g", 2)),
        ];
        std::fs::create_dir(home.path().join("d/few")).unwrap();
        // The existing file is newer than the new one.
        std::fs::write(home.path().join("d/few/g1"), "y").unwrap();
        publish_all(&transfer);
        assert_eq!(std::fs::read(home.path().join("d/few/g1")).unwrap(), b"y");
        let FaultCause { operation, code } = KEPT_EXISTING;
        assert_eq!(batches[0].faults(), []);
        assert_eq!(
            batches[1].faults(),
            [EntryFault {
                entry: 1,
                operation,
                code
            }]
        );
        assert_eq!(names(&home.path().join("d/few")), ["g0", "g1"]);
    }
}

#[test]
fn a_directory_takes_the_place_of_a_file_also_when_no_more_can_be_staged() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("a"), "old").unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let full = (0..).map(|number| begin(&mut placer, files(&format!("n{number}"), "f", 8)));
    let mut batches: Vec<_> = full.take(STAGING_MAX + 1).collect();
    let mut may_stage = false;
    let another = transfer.publisher.begin(&path("another"), || {
        may_stage = true;
        None
    });
    assert!(another.is_none() && !may_stage, "no more can be staged");
    batches.push(begin(&mut placer, files("a/x", "f", 2)));
    publish_all(&transfer);
    assert!(batches.iter().all(|batch| batch.faults().is_empty()));
    assert_eq!(names(&home.path().join("a/x")), ["f0", "f1"]);
}

#[test]
fn a_new_directory_is_not_staged_when_large_files_need_the_descriptors() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let _held: Vec<_> =
        std::iter::from_fn(|| transfer.quota.charge_spare_staging(&path("d"))).collect();
    let batch = begin(&mut placer, files("d", "f", 8));
    assert_eq!(names(home.path()), ["d"]);
    publish_all(&transfer);
    assert_eq!(
        (batch.faults(), names(&home.path().join("d")).len()),
        (Vec::new(), 8)
    );
}

#[test]
fn the_path_of_a_staging_directory_is_booked_until_that_has_its_name() {
    let home = tempfile::tempdir().unwrap();
    let quota = Quota::default();
    let transfer = transfer_of_key(&quota, 1, home.path(), None);
    let deep = ["d"; 1_000].join("/");
    let batch = begin(&mut Placer::new(&transfer), files(&deep, "f", 8));
    assert_eq!(quota.memory_held(), 2 * deep.len());
    publish_all(&transfer);
    assert_eq!((batch.faults(), quota.memory_held()), (Vec::new(), 0));
}

#[test]
fn directories_beyond_those_that_are_remembered_are_swept_too() {
    let home = tempfile::tempdir().unwrap();
    let publisher = transfer(home.path()).publisher;
    let directory = |number: usize| path(&number.to_string());
    let is_swept_now = |number| {
        let mut is_swept = false;
        let sweep = || {
            is_swept = true;
            Ok(())
        };
        publisher.sweep(&directory(number), sweep).unwrap();
        is_swept
    };
    assert!((0..=SWEPT_MAX).all(is_swept_now));
    assert!(!is_swept_now(7));
    assert!(is_swept_now(SWEPT_MAX));
}

#[test]
fn of_one_name_in_two_batches_the_last_stays() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let first = begin(&mut placer, files("d", "f", 8));
    let second = PendingBatch::new(ItemId(2), ExpectedState::Absent, None);
    placer.place_groups(
        vec![files("d", "f", 9)],
        &second,
        &[b'y'; 9],
        &placer.transfer.turn(Task::Write),
    );
    publish_all(&transfer);
    assert_eq!((first.faults(), second.faults()), (Vec::new(), Vec::new()));
    let all = names(&home.path().join("d"));
    assert_eq!(all.len(), 9);
    assert!(
        all.iter()
            .all(|name| std::fs::read(home.path().join("d").join(name)).unwrap() == b"y")
    );
}

#[test]
fn files_in_a_staging_directory_that_was_removed_fail_and_the_next_are_placed() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let lost = begin(&mut placer, files("d", "f", 8));
    let hidden = names(home.path())
        .into_iter()
        .find(|name| name != "d")
        .unwrap();
    std::fs::remove_dir_all(home.path().join(hidden)).unwrap();
    publish_all(&transfer);
    assert_eq!(lost.faults().len(), 8, "a fault for each that is gone");
    assert_eq!(place(&mut placer, files("d", "g", 9)), []);
    assert_eq!(names(&home.path().join("d")).len(), 9);
}

#[test]
fn few_files_of_a_new_directory_are_staged_where_others_are_likely_to_follow() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batch = PendingBatch::new(ItemId(1), ExpectedState::Absent, None);
    let groups = vec![files("whole", "f", 2), files("begun", "f", 2)];
    placer.place_groups(groups, &batch, b"xxxx", &transfer.turn(Task::Write));
    begin(&mut placer, files("begun", "g", 2));
    let hidden_in = |directory: &str| names(&home.path().join(directory)).len();
    assert_eq!((hidden_in("whole"), hidden_in("begun")), (2, 0));
    publish_all(&transfer);
    assert_eq!((hidden_in("whole"), hidden_in("begun")), (2, 4));
}

/// Creates a transfer on storage with high latency, to a target with a directory `d`.
fn late_transfer(home: &Path, durability: Durability) -> Transfer {
    std::fs::create_dir(home.join("d")).unwrap();
    let mut transfer = transfer(home);
    transfer.target.view.policy.rules.durability = durability;
    transfer.quota.begin_to_write_late();
    assert!(transfer.quota.has_slow_writes());
    transfer
}

#[test]
fn on_late_storage_files_that_are_flushed_by_themselves_get_their_names_at_once() {
    let home = tempfile::tempdir().unwrap();
    let transfer = late_transfer(home.path(), Durability::File);
    let batch = begin(&mut Placer::new(&transfer), files("d", "f", 40));
    let directory = home.path().join("d");
    assert_eq!(
        (visible(&directory).len(), names(&directory).len()),
        (40, 40),
        "and no side directory stays"
    );
    assert_eq!(std::fs::read(directory.join("f7")).unwrap(), b"x");
    publish_all(&transfer);
    assert_eq!((names(&directory).len(), batch.faults()), (40, vec![]));
}

#[test]
fn on_late_storage_no_file_has_its_name_before_the_flush_of_all() {
    let home = tempfile::tempdir().unwrap();
    let transfer = late_transfer(home.path(), Durability::End);
    let batch = begin(&mut Placer::new(&transfer), files("d", "f", 40));
    assert_eq!(visible(&home.path().join("d")), [""; 0]);
    publish_all(&transfer);
    assert_eq!(
        (visible(&home.path().join("d")).len(), batch.faults()),
        (40, vec![])
    );
}

#[test]
fn on_late_storage_files_that_are_there_are_replaced_or_stay_as_always() {
    for (overwrite, found) in [
        (Overwrite::Differing, b"x".to_vec()),
        (Overwrite::Nothing, b"old".to_vec()),
    ] {
        let home = tempfile::tempdir().unwrap();
        let mut transfer = late_transfer(home.path(), Durability::File);
        transfer.target.view.policy.rules.overwrite = overwrite;
        let directory = home.path().join("d");
        std::fs::write(directory.join("f3"), "old").unwrap();
        let batch = begin(&mut Placer::new(&transfer), files("d", "f", 40));
        assert_eq!(
            std::fs::read(directory.join("f3")).unwrap(),
            b"old",
            "until it is published"
        );
        publish_all(&transfer);
        assert_eq!(std::fs::read(directory.join("f3")).unwrap(), found);
        assert_eq!(names(&directory).len(), 40);
        let stays = EntryFault {
            entry: 3,
            operation: Operation::Create,
            code: FaultCode::AlreadyThere,
        };
        assert!(batch.faults().iter().all(|fault| *fault == stays));
        assert_eq!(
            batch.faults().len(),
            usize::from(overwrite == Overwrite::Nothing)
        );
    }
}

#[test]
fn what_a_writer_that_panics_was_filling_gets_no_name() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let whole = begin(&mut placer, files("d", "f", 8));
    // The guard is dropped without a call of `leave`, as if the writer had panicked.
    drop(
        placer
            .staging(
                &path("d"),
                DirectoryFiles {
                    count: 1,
                    may_continue: false,
                },
            )
            .unwrap(),
    );
    publish_all(&transfer);
    assert_eq!(names(&home.path().join("d")), [""; 0]);
    assert_eq!(whole.faults().len(), 8);
    assert_eq!(names(home.path()), ["d"]);
}

/// The kernel reports a failed flush only once and then treats the pages as clean.
#[test]
fn after_a_flush_that_failed_only_what_is_on_the_storage_gets_its_name() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("there")).unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batches = ["there", "new"].map(|directory| begin(&mut placer, files(directory, "f", 8)));
    let hidden = |directory: &str| {
        let directory = home.path().join(directory);
        let name = names(&directory)
            .into_iter()
            .find(|name| name.starts_with(".zmove-"))
            .unwrap();
        directory.join(name)
    };
    // The data is changed as if it had not reached the storage.
    std::fs::write(hidden("there"), "0").unwrap();
    std::fs::write(hidden("").join("f5"), "0").unwrap();
    transfer.publisher.suspect();
    publish_all(&transfer);
    for (batch, directory) in batches.iter().zip(["there", "new"]) {
        let faults = batch.faults();
        assert_eq!(
            (faults.len(), faults[0].operation),
            (1, Operation::Flush),
            "{directory}"
        );
        assert_eq!(names(&home.path().join(directory)).len(), 7);
    }
}

/// The flush may have failed for data of this file that was already written.
#[test]
fn a_file_that_was_written_while_a_flush_failed_gets_no_name_if_it_is_not_on_the_storage() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("there")).unwrap();
    let transfer = transfer(home.path());
    let mut placer = Placer::new(&transfer);
    let batch = begin(&mut placer, files("there", "f", 1));
    let written = transfer.publisher.take_generation().files;
    let failed_flushes = transfer.publisher.failed_flushes();
    transfer.publisher.suspect();
    // The generation is taken and dropped, as if all of its files had been checked.
    drop(transfer.publisher.take_generation());
    let hidden = names(&home.path().join("there")).remove(0);
    std::fs::write(home.path().join("there").join(hidden), "0").unwrap();
    written
        .into_iter()
        .for_each(|file| transfer.publisher.add_file(file, failed_flushes));
    publish_all(&transfer);
    let faults = batch.faults();
    assert_eq!((faults.len(), faults[0].operation), (1, Operation::Flush));
}

#[test]
fn while_a_flush_is_late_files_are_flushed_one_by_one() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("there")).unwrap();
    let file_systems = FileSystems::that_are_late();
    let mut transfer = transfer(home.path());
    transfer.target.view.policy.rules.durability = Durability::End;
    transfer.target.file_systems = file_systems;
    let mut placer = Placer::new(&transfer);
    let batches = ["there", "new"].map(|directory| begin(&mut placer, files(directory, "f", 8)));
    let hidden = names(home.path())
        .into_iter()
        .find(|name| name.starts_with(".zmove-"))
        .unwrap();
    // The data is changed as if it had not reached the storage.
    std::fs::write(home.path().join(hidden).join("f5"), "0").unwrap();
    publish_all(&transfer);
    assert_eq!(batches.map(|batch| batch.faults().len()), [0, 1]);
    assert_eq!(
        ["there", "new"].map(|directory| names(&home.path().join(directory)).len()),
        [8, 7]
    );
}

/// A file that was hashed for `--checksum` may have changed by the time the sender reports it as equal.
#[test]
fn what_has_changed_since_it_was_judged_does_not_get_the_sources_time() {
    let home = tempfile::tempdir().unwrap();
    let transfer = transfer(home.path());
    let at = |name: &str| home.path().join(name);
    for name in ["same", "changed"] {
        std::fs::write(at(name), "compared").unwrap();
        // The time is set to an old value, so that a later change is not in the same clock tick.
        dress(&at(name), 0o644);
    }
    std::fs::hard_link(at("same"), at("linked")).unwrap();
    let directory = transfer
        .target
        .tree
        .open_directory(&RelPath::root())
        .unwrap();
    for text in ["same", "changed", "linked"] {
        let there = FileIdentity::at(&directory, &name(text)).unwrap();
        // A file that changed in the last clock tick is not remembered.
        while !transfer
            .target
            .compared
            .remember(&directory, &name(text), &there)
        {
            std::thread::yield_now();
        }
    }
    std::fs::write(at("changed"), "other!").unwrap();
    let entries =
        ["same", "changed", "linked"].map(|text| BatchEntry::Retouch(name(text), metadata(0o604)));
    let group = DirectoryGroup {
        directory: RelPath::root(),
        entries: entries.into(),
    };
    let faults = place(&mut Placer::new(&transfer), group);
    let changed = EntryFault {
        entry: 1,
        operation: Operation::Verify,
        code: FaultCode::Changed,
    };
    assert_eq!(faults, [changed]);
    let is_set = |name: &str| {
        FileIdentity::of(File::open(at(name)).unwrap())
            .unwrap()
            .metadata()
            == metadata(0o604)
    };
    assert_eq!(
        ["same", "changed", "linked"].map(is_set),
        [true, false, true]
    );
}

/// The receiver compares and publishes nothing in a directory until it knows the state of each job in that directory.
#[test]
fn whoever_comes_while_a_directory_is_swept_waits() {
    let publisher = Publisher::default();
    let path = RelPath::from_bytes(b"d").unwrap();
    let failed = publisher.sweep(&path, || Err(Errno::CONNABORTED.into()));
    assert!(failed.is_err());
    let [begun, goes_on] = [0; 2].map(|_| Barrier::new(2));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            publisher.sweep(&path, || {
                begun.wait();
                goes_on.wait();
                Ok(())
            })
        });
        begun.wait();
        let second = scope.spawn(|| publisher.sweep(&path, || panic!("it is swept once")));
        goes_on.wait();
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
}
