//! The counters of a transfer at a daemon: what it has moved, and what it is doing.
//!
//! **Invariant:** a thread that moves data takes no lock to count: each transfer counts into a meter of its own, by
//! relaxed atomics beside the data. The daemon adds them up when somebody asks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use zmove_types::{Event, Lock, RelPath, StageClock, StageTimes};
use zmove_wire::{FaultCode, FoundSoFar, Operation};

use crate::grant::Stored;

/// The counters of one transfer.
#[derive(Debug, Default)]
pub struct TransferMeter {
    bytes: AtomicU64,
    files: AtomicU64,
    /// The sum of the sizes of these.
    named_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    sent_files: AtomicU64,
    /// Files and bytes that the scan has found, as far as this side knows.
    found_files: AtomicU64,
    found_bytes: AtomicU64,
    /// Bytes that were equal at the target.
    skipped_bytes: AtomicU64,
    found_all: AtomicBool,
    /// Whether the sender's scan is on this side, or it tells what that finds.
    is_told: AtomicBool,
    lanes: AtomicUsize,
    queued: AtomicUsize,
    target: OnceLock<Vec<u8>>,
    failures: Lock<Vec<Failures>>,
    /// Bytes of filler; set for a probe only.
    probed: OnceLock<AtomicU64>,
    pub(crate) receive: StageClock,
    pub(crate) store: StageClock,
}

/// What one transfer has moved and is doing, or several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterReading {
    /// Bytes of file contents received over lanes, whatever became of them.
    pub bytes: u64,
    /// Bytes of file contents that this side has sent and its peer has stored.
    pub sent_bytes: u64,
    /// Regular files that this side has sent and its peer has named.
    pub sent_files: u64,
    /// Bytes of filler received from probes.
    pub probed: u64,
    /// Regular files that were given their names.
    pub files: u64,
    /// Transfers that run.
    pub transfers: usize,
    /// Lanes of the running transfers.
    pub lanes: usize,
    /// Batches and groups that have come over the lanes and wait for a writer.
    pub queued: usize,
    /// How the lanes' threads spent their time.
    pub receive: StageTimes,
    /// How the writers spent their time.
    pub store: StageTimes,
}

/// The entries for which one operation has failed for one cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures {
    /// The operation.
    pub operation: Operation,
    /// The cause.
    pub code: FaultCode,
    /// The number of entries.
    pub count: u64,
    /// One of them, if its path is known.
    pub first: Option<RelPath>,
}

/// The most kinds of failures that are told apart for one transfer; further ones count with the last.
const FAILURES_MAX: usize = 64;

impl TransferMeter {
    /// Bytes of file contents received.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that have come of frames which are not whole yet; this is no total, and falls.
    #[must_use]
    pub fn coming(&self) -> u64 {
        self.receive.at_hand()
    }

    /// Regular files that were given their names.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Bytes of filler received; `None` for anything but a probe.
    #[must_use]
    pub fn probed(&self) -> Option<u64> {
        self.probed.get().map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// The target that the sender asked for; empty until then.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        self.target.get().map_or(&[], Vec::as_slice)
    }

    /// Notes what the transfer is about.
    pub fn opened(&self, target: &[u8]) {
        // A session is opened once, so nothing is there yet.
        let _first = self.target.set(target.to_vec());
    }

    /// The entries that have failed, by operation and cause.
    #[must_use]
    pub fn failures(&self) -> Vec<Failures> {
        self.failures
            .lock()
            .iter()
            .filter(|failures| failures.count > 0)
            .cloned()
            .collect()
    }

    /// Counts an entry that has failed.
    pub(crate) fn failed(&self, operation: Operation, code: FaultCode) {
        self.change_failures(operation, code, |failures| failures.count += 1);
    }

    /// Notes the path of an entry that has failed, which is counted when its sender is told.
    pub(crate) fn failed_at(
        &self,
        (operation, code): (Operation, FaultCode),
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
    pub(crate) fn probes(&self) {
        self.probed.get_or_init(AtomicU64::default);
    }

    pub(crate) fn filled(&self, bytes: u64) {
        self.probed
            .get_or_init(AtomicU64::default)
            .fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn came(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a file of so many bytes that got its name.
    pub(crate) fn stored(&self, bytes: u64) {
        self.named_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    /// The files that got their names.
    pub(crate) fn named(&self) -> Stored {
        Stored {
            files: self.files(),
            bytes: self.named_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn lanes_are(&self, lanes: usize) {
        self.lanes.store(lanes, Ordering::Relaxed);
    }

    pub(crate) fn queue(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether anything waits for a writer.
    pub(crate) fn has_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn take(&self) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts what a sender tells of its transfer.
    pub fn hear(&self, event: &Event) {
        let add = |to: &AtomicU64, amount: u64| {
            to.fetch_add(amount, Ordering::Relaxed);
        };
        match event {
            Event::Found { files, bytes } => {
                self.is_told.store(true, Ordering::Relaxed);
                add(&self.found_files, *files);
                add(&self.found_bytes, *bytes);
            }
            Event::ScanEnded => self.found_all.store(true, Ordering::Relaxed),
            Event::Stored { files, bytes } => {
                add(&self.sent_files, *files);
                add(&self.sent_bytes, *bytes);
            }
            Event::Skipped { bytes, .. } => add(&self.skipped_bytes, *bytes),
            Event::LaneUp { lanes } => self.lanes_are(*lanes),
            _ => {}
        }
    }

    /// Takes what a sender on the other side has found.
    pub(crate) fn told(&self, found: &FoundSoFar) {
        self.found_files.store(found.files, Ordering::Relaxed);
        self.found_bytes.store(found.bytes, Ordering::Relaxed);
        self.skipped_bytes
            .store(found.skipped_bytes, Ordering::Relaxed);
        self.found_all.store(found.all, Ordering::Relaxed);
        self.is_told.store(true, Ordering::Relaxed);
    }

    /// Whether it is known what the scan has found: by a sender on this side, or one that has told it.
    #[must_use]
    pub fn knows_found(&self) -> bool {
        self.is_told.load(Ordering::Relaxed)
    }

    /// What the scan of the sender has found, as far as that is known.
    #[must_use]
    pub fn found(&self) -> FoundSoFar {
        FoundSoFar {
            files: self.found_files.load(Ordering::Relaxed),
            bytes: self.found_bytes.load(Ordering::Relaxed),
            skipped_bytes: self.skipped_bytes.load(Ordering::Relaxed),
            all: self.found_all.load(Ordering::Relaxed),
        }
    }

    /// The counters at this moment; a total never falls.
    #[must_use]
    pub fn reading(&self) -> MeterReading {
        MeterReading {
            bytes: self.bytes(),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            sent_files: self.sent_files.load(Ordering::Relaxed),
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
    /// Both together.
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
