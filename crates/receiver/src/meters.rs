//! Counters of a transfer at a daemon: the amount of data moved, and the current state.
//!
//! **Invariant:** a thread that moves data updates counters without a lock. Each transfer has its own meter of relaxed
//! atomics. The daemon adds up the meters when it reads them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use zmove_types::{AtomicCounter, Event, Lock, RelPath, StageClock, StageTimes};
use zmove_wire::{FaultCode, FoundSoFar, Operation};

use crate::rights::grant::Stored;

/// Counters of one transfer.
#[derive(Debug, Default)]
pub struct TransferMeter {
    bytes: AtomicCounter,
    files: AtomicCounter,
    /// Total size of the files counted in `files`.
    named_bytes: AtomicCounter,
    sent_bytes: AtomicCounter,
    sent_files: AtomicCounter,
    /// Files found by the scan so far. Set if the sender runs in this process or reports them.
    found: Lock<Option<FoundSoFar>>,
    lanes: AtomicUsize,
    queued: AtomicUsize,
    target: OnceLock<Vec<u8>>,
    failures: Lock<Vec<Failures>>,
    /// Bytes of filler. Set only for a probe.
    probed: OnceLock<AtomicCounter>,
    pub(crate) receive: StageClock,
    pub(crate) store: StageClock,
}

/// Counters of one transfer, or the sums over several transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterReading {
    /// Bytes of file contents received over lanes, including data that was later discarded.
    pub bytes: u64,
    /// Bytes of file contents that this side has sent and its peer has stored.
    pub sent_bytes: u64,
    /// Regular files that this side has sent and its peer has renamed into place.
    pub sent_files: u64,
    /// Bytes of filler received from probes.
    pub probed: u64,
    /// Regular files that were renamed into place.
    pub files: u64,
    /// Number of running transfers.
    pub transfers: usize,
    /// Number of lanes of the running transfers.
    pub lanes: usize,
    /// Batches and groups that were received over the lanes and are waiting for a writer.
    pub queued: usize,
    /// Time spent by lane threads, by state.
    pub receive: StageTimes,
    /// Time spent by writer threads, by state.
    pub store: StageTimes,
}

/// Entries for which the same operation failed with the same cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures {
    /// The operation.
    pub operation: Operation,
    /// The cause.
    pub code: FaultCode,
    /// Number of entries.
    pub count: u64,
    /// Path of one of these entries, if known.
    pub first: Option<RelPath>,
}

/// Maximum number of combinations of operation and cause that one transfer counts separately. Failures with other
/// combinations are added to the last one.
const FAILURES_MAX: usize = 64;

impl TransferMeter {
    /// Returns the bytes of file contents received.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Returns the received bytes of frames that are still incomplete. The value can increase and decrease.
    #[must_use]
    pub fn partial_frame_bytes(&self) -> u64 {
        self.receive.bytes_in_progress()
    }

    /// Returns the number of regular files that were renamed into place.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.get()
    }

    /// Returns the bytes of filler received, or `None` if the transfer is not a probe.
    #[must_use]
    pub fn probed(&self) -> Option<u64> {
        self.probed.get().map(AtomicCounter::get)
    }

    /// Returns the target that the sender requested, or `None` before its opening was read.
    #[must_use]
    pub fn target(&self) -> Option<&[u8]> {
        self.target.get().map(Vec::as_slice)
    }

    /// Records the target that the sender requested.
    pub fn set_target(&self, target: &[u8]) {
        // A session is opened only once, so the cell is empty.
        let _first = self.target.set(target.to_vec());
    }

    /// Returns the failed entries, grouped by operation and cause.
    #[must_use]
    pub fn failures(&self) -> Vec<Failures> {
        self.failures
            .lock()
            .iter()
            .filter(|failures| failures.count > 0)
            .cloned()
            .collect()
    }

    /// Counts a failed entry.
    pub(crate) fn count_failure(&self, operation: Operation, code: FaultCode) {
        self.change_failures(operation, code, |failures| failures.count += 1);
    }

    /// Records the path of a failed entry. The entry is counted later, when the sender is notified.
    pub(crate) fn failed_at(
        &self,
        operation: Operation,
        code: FaultCode,
        path: impl FnOnce() -> Option<RelPath>,
    ) {
        if code == FaultCode::AlreadyThere {
            return;
        }
        self.change_failures(operation, code, |failures| {
            if failures.first.is_none() {
                failures.first = path();
            }
        });
    }

    fn change_failures(
        &self,
        operation: Operation,
        code: FaultCode,
        change: impl FnOnce(&mut Failures),
    ) {
        let mut all = self.failures.lock();
        let is_it = |failures: &Failures| (failures.operation, failures.code) == (operation, code);
        let at = match all.iter().position(is_it) {
            Some(at) => at,
            None if all.len() >= FAILURES_MAX => FAILURES_MAX - 1,
            None => {
                all.push(Failures {
                    operation,
                    code,
                    count: 0,
                    first: None,
                });
                all.len() - 1
            }
        };
        change(&mut all[at]);
    }

    /// Marks the transfer as a probe.
    pub(crate) fn mark_as_probe(&self) {
        self.probed.get_or_init(AtomicCounter::default);
    }

    pub(crate) fn count_filler(&self, bytes: u64) {
        self.probed.get_or_init(AtomicCounter::default).add(bytes);
    }

    pub(crate) fn count_received(&self, bytes: usize) {
        self.bytes.add(bytes as u64);
    }

    /// Counts a file of `bytes` bytes that was renamed into place.
    pub(crate) fn count_stored(&self, bytes: u64) {
        self.named_bytes.add(bytes);
        self.files.add(1);
    }

    /// Returns the totals of the files that were renamed into place.
    pub(crate) fn stored_total(&self) -> Stored {
        Stored {
            files: self.files(),
            bytes: self.named_bytes.get(),
        }
    }

    pub(crate) fn set_lane_count(&self, lanes: usize) {
        self.lanes.store(lanes, Ordering::Relaxed);
    }

    pub(crate) fn count_queued(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether any work is queued for a writer.
    pub(crate) fn has_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn count_dequeued(&self) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an event of a sender in this process.
    pub fn record_event(&self, event: &Event) {
        match event {
            Event::Found { files, bytes } => {
                let mut found = self.found.lock();
                let found = found.get_or_insert_default();
                found.files += files;
                found.bytes += bytes;
            }
            Event::ScanEnded => self.change_found(|found| found.all = true),
            Event::Stored { files, bytes } => {
                self.sent_files.add(*files);
                self.sent_bytes.add(*bytes);
            }
            Event::Skipped { bytes, .. } => {
                self.change_found(|found| found.skipped_bytes += bytes);
            }
            Event::LaneUp { lanes } => self.set_lane_count(*lanes),
            _ => {}
        }
    }

    fn change_found(&self, change: impl FnOnce(&mut FoundSoFar)) {
        if let Some(found) = self.found.lock().as_mut() {
            change(found);
        }
    }

    /// Replaces the scan totals with those reported by a remote sender.
    pub(crate) fn set_found(&self, found: FoundSoFar) {
        *self.found.lock() = Some(found);
    }

    /// Returns the files found by the scan so far, or `None` if no sender has reported any.
    #[must_use]
    pub fn found(&self) -> Option<FoundSoFar> {
        *self.found.lock()
    }

    /// Returns the current counters. Totals never decrease.
    #[must_use]
    pub fn reading(&self) -> MeterReading {
        MeterReading {
            bytes: self.bytes(),
            sent_bytes: self.sent_bytes.get(),
            sent_files: self.sent_files.get(),
            probed: self.probed().unwrap_or(0),
            files: self.files(),
            transfers: 1,
            lanes: self.lanes.load(Ordering::Relaxed),
            queued: self.queued.load(Ordering::Relaxed),
            receive: self.receive.times(),
            store: self.store.times(),
        }
    }
}

impl MeterReading {
    /// Returns the sum of both readings.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            sent_files: self.sent_files + other.sent_files,
            probed: self.probed + other.probed,
            files: self.files + other.files,
            transfers: self.transfers + other.transfers,
            lanes: self.lanes + other.lanes,
            queued: self.queued + other.queued,
            receive: both(self.receive, other.receive),
            store: both(self.store, other.store),
        }
    }
}

fn both(one: StageTimes, other: StageTimes) -> StageTimes {
    StageTimes {
        busy: one.busy + other.busy,
        starved: one.starved + other.starved,
        blocked: one.blocked + other.blocked,
        paced: one.paced + other.paced,
    }
}
