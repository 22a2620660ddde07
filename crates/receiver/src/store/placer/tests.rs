//! Placing batches and publishing them.

mod late;
mod staging;

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
