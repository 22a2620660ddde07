//! The counters of a transfer at a daemon: what it has moved, and what it is doing.
//!
//! **Invariant:** a thread that moves data takes no lock to count: each transfer counts into a meter of its own, by
//! relaxed atomics beside the data. The daemon adds them up when somebody asks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use zmove_types::{AtomicCounter, Event, Lock, RelPath, StageClock, StageTimes};
use zmove_wire::{FaultCode, FoundSoFar, Operation};

use crate::rights::grant::Stored;

/// The counters of one transfer.
#[derive(Debug, Default)]
pub struct TransferMeter {
    bytes: AtomicCounter,
    files: AtomicCounter,
    /// The sum of the sizes of these.
    named_bytes: AtomicCounter,
    sent_bytes: AtomicCounter,
    sent_files: AtomicCounter,
    /// What the scan has found, where it is on this side or its sender tells that.
    found: Lock<Option<FoundSoFar>>,
    lanes: AtomicUsize,
    queued: AtomicUsize,
    target: OnceLock<Vec<u8>>,
    failures: Lock<Vec<Failures>>,
    /// Bytes of filler; set for a probe only.
    probed: OnceLock<AtomicCounter>,
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
        self.bytes.get()
    }

    /// Bytes that have come of frames which are not whole yet; this is no total, and falls.
    #[must_use]
    pub fn coming(&self) -> u64 {
        self.receive.at_hand()
    }

    /// Regular files that were given their names.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.get()
    }

    /// Bytes of filler received; `None` for anything but a probe.
    #[must_use]
    pub fn probed(&self) -> Option<u64> {
        self.probed.get().map(AtomicCounter::get)
    }

    /// The target that the sender asked for; `None` until then.
    #[must_use]
    pub fn target(&self) -> Option<&[u8]> {
        self.target.get().map(Vec::as_slice)
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
    pub(crate) fn probes(&self) {
        self.probed.get_or_init(AtomicCounter::default);
    }

    pub(crate) fn filled(&self, bytes: u64) {
        self.probed.get_or_init(AtomicCounter::default).add(bytes);
    }

    pub(crate) fn came(&self, bytes: usize) {
        self.bytes.add(bytes as u64);
    }

    /// Counts a file of so many bytes that got its name.
    pub(crate) fn stored(&self, bytes: u64) {
        self.named_bytes.add(bytes);
        self.files.add(1);
    }

    /// The files that got their names.
    pub(crate) fn named(&self) -> Stored {
        Stored {
            files: self.files(),
            bytes: self.named_bytes.get(),
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
            Event::LaneUp { lanes } => self.lanes_are(*lanes),
            _ => {}
        }
    }

    fn change_found(&self, change: impl FnOnce(&mut FoundSoFar)) {
        if let Some(found) = self.found.lock().as_mut() {
            change(found);
        }
    }

    /// Takes what a sender on the other side has found.
    pub(crate) fn told(&self, found: FoundSoFar) {
        *self.found.lock() = Some(found);
    }

    /// What the scan has found: known from a sender on this side, or from one that has told it.
    #[must_use]
    pub fn found(&self) -> Option<FoundSoFar> {
        *self.found.lock()
    }

    /// The counters at this moment; a total never falls.
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
