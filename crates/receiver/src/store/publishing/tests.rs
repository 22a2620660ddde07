//! Tests of data that is written during a flush.

use std::path::Path;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use zmove_disk::LastingNames;
use zmove_types::{Cv, GROUP_BYTES, Metadata, Timestamp};
use zmove_wire::FileHead;

use super::*;
use crate::resume::journal::list;
use crate::store::placer::Placer;
use crate::store::placer::tests::{begin, files, transfer_with_journals};
use crate::store::publishing::publisher::Publisher;
use crate::store::target::file_systems::FileSystems;

/// A flush whose end and result the test controls.
struct HeldFlush {
    began: Receiver<()>,
    ends: Sender<Result<(), Errno>>,
}

/// Creates a transfer whose flushes the test controls.
fn with_held_flushes(home: &Path, journals: &Path) -> (Transfer, HeldFlush) {
    let (begins, began) = bounded(0);
    let (ends, ended) = bounded(0);
    let mut transfer = transfer_with_journals(home, Some(journals.to_owned()));
    transfer.target.view.policy.rules.durability = Durability::End;
    transfer.target.file_systems = FileSystems::flushed_by(move || {
        // If the test has failed, it no longer controls the flushes.
        if begins.send(()).is_ok() {
            ended.recv().unwrap_or(Ok(()))
        } else {
            Ok(())
        }
    });
    (transfer, HeldFlush { began, ends })
}

impl HeldFlush {
    /// Publishes all written files. Calls `meanwhile` during the flush and then ends the flush with `result`.
    fn publish<T>(
        &self,
        transfer: &Transfer,
        result: Result<(), Errno>,
        meanwhile: impl FnOnce() -> T,
    ) -> T {
        thread::scope(|scope| {
            scope.spawn(|| publish_all(transfer));
            self.began.recv().unwrap();
            let done = meanwhile();
            self.ends.send(result).unwrap();
            done
        })
    }
}

/// A failed flush may also have failed for data of the next generation, and the kernel reports the failure only once.
#[test]
fn what_was_written_while_a_flush_failed_gets_no_name_if_it_is_not_on_the_storage() {
    let (home, journals) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let there = home.path().join("there");
    std::fs::create_dir(&there).unwrap();
    let (transfer, flush) = with_held_flushes(home.path(), journals.path());
    let mut placer = Placer::new(&transfer);
    let batch = flush.publish(&transfer, Err(Errno::IO), || {
        begin(&mut placer, files("there", "f", 1))
    });
    let hidden = std::fs::read_dir(&there)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    // The data is changed as if it had not reached the storage.
    std::fs::write(hidden, "0").unwrap();
    flush.publish(&transfer, Ok(()), || ());
    assert_eq!(batch.faults().len(), 1);
    assert_eq!(std::fs::read_dir(&there).unwrap().count(), 0);
}

#[test]
fn a_group_that_was_written_during_a_flush_does_not_count_as_flushed() {
    let (home, journals) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (transfer, flush) = with_held_flushes(home.path(), journals.path());
    let metadata = Metadata::new(
        0o600,
        Timestamp {
            seconds: 5,
            nanos: 6,
        },
    );
    let path = RelPath::from_bytes(b"large").unwrap();
    let (bytes, ctime) = (5 * GROUP_BYTES, Timestamp::default());
    let head = FileHead {
        path,
        metadata,
        bytes,
        ctime,
        inode: 7,
        data: None,
    };
    let directory = transfer
        .target
        .tree
        .open_directory(&RelPath::root())
        .unwrap();
    let names = LastingNames::new("t");
    let _part = transfer
        .parts
        .create(FileId(3), &head.path, &head, &directory, &names)
        .unwrap();
    let written = |index| {
        transfer
            .parts
            .written(FileId(3), index, Cv([7; 32]))
            .unwrap()
    };
    let flushed = || {
        let found = list(journals.path()).unwrap().remove(0).contents.unwrap();
        found.files[0]
            .groups
            .values()
            .map(|(_, flushed)| *flushed)
            .collect::<Vec<_>>()
    };
    written(0);
    flush.publish(&transfer, Ok(()), || written(1));
    assert_eq!(flushed(), [true, false]);
    flush.publish(&transfer, Ok(()), || ());
    assert_eq!(flushed(), [true, true]);
}

/// In a shared job, the sender waits until files are published.
#[test]
fn the_thread_that_publishes_wakes_soon_after_the_first_file_of_a_generation() {
    let publisher = Publisher::new(Duration::from_millis(1));
    let pause = Duration::from_secs(60);
    let began = Instant::now();
    thread::scope(|scope| {
        let woken = scope.spawn(|| publisher.next(pause));
        publisher.record_renamed_in(&RelPath::root());
        assert!(matches!(woken.join().unwrap(), WakeReason::Time));
    });
    assert!(began.elapsed() < pause && publisher.is_due(pause));
}
