//! The counters of a daemon's transfers: what they have moved, and what they are doing.
//!
//! **Invariant:** a thread that moves data takes no lock to count; only the begin and the end of a transfer and a
//! reader of the meters do.
//!
//! Each transfer counts into a meter of its own, by relaxed atomics beside the data. The daemon's meters are
//! those of the transfers that run and the sum of those that have ended; they are added up when somebody
//! reads `/metrics`.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use zmove_types::{StageClock, StageTimes};

use zmove_types::Lock;

/// The counters of one transfer.
#[derive(Debug, Default)]
pub struct TransferMeter {
    bytes: AtomicU64,
    files: AtomicU64,
    lanes: AtomicUsize,
    queued: AtomicUsize,
    /// What a daemon has sent that was asked to send.
    sent_bytes: AtomicU64,
    sent_files: AtomicU64,
    target: OnceLock<Vec<u8>>,
    /// Bytes of filler; set for a probe only.
    probed: OnceLock<AtomicU64>,
    pub(crate) receive: StageClock,
    pub(crate) store: StageClock,
}

/// The meters of one daemon.
#[derive(Debug, Default)]
pub struct Meters(Lock<Book>);

#[derive(Debug, Default)]
struct Book {
    running: Vec<Arc<TransferMeter>>,
    ended: MeterReading,
}

/// The totals of all transfers, and the present state of those that run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterReading {
    /// Bytes of file contents received over lanes, whatever became of them.
    pub bytes: u64,
    /// Bytes of filler received from probes.
    pub probed: u64,
    /// Regular files that were given their names.
    pub files: u64,
    /// Bytes of file contents that receivers have reported as stored, of transfers that were sent.
    pub sent_bytes: u64,
    /// Regular files that were given their names at the other end, likewise.
    pub sent_files: u64,
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

/// A transfer that is counted among those that run, until this is dropped.
#[derive(Debug)]
pub struct MeterGuard {
    meters: Arc<Meters>,
    /// The counters.
    pub meter: Arc<TransferMeter>,
}

impl TransferMeter {
    /// Bytes of file contents received.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Regular files that were given their names.
    #[must_use]
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Notes what the other end has stored of what was sent.
    pub fn sent(&self, files: u64, bytes: u64) {
        self.sent_files.fetch_add(files, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
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

    /// Marks the transfer as a probe.
    pub(crate) fn probes(&self) {
        self.probed.get_or_init(AtomicU64::default);
    }

    pub(crate) fn filled(&self, bytes: u64) {
        self.probed.get_or_init(AtomicU64::default).fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn came(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn stored(&self, files: usize) {
        self.files.fetch_add(files as u64, Ordering::Relaxed);
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

    fn reading(&self) -> MeterReading {
        MeterReading {
            bytes: self.bytes(),
            probed: self.probed().unwrap_or(0),
            files: self.files(),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            sent_files: self.sent_files.load(Ordering::Relaxed),
            transfers: 1,
            lanes: self.lanes.load(Ordering::Relaxed),
            queued: self.queued.load(Ordering::Relaxed),
            receive: self.receive.times(),
            store: self.store.times(),
        }
    }
}

impl Meters {
    /// The meters at this moment; a total never falls.
    #[must_use]
    pub fn read(&self) -> MeterReading {
        let book = self.0.lock();
        book.running.iter().fold(book.ended, |sum, meter| sum.and(&meter.reading()))
    }

    /// Begins to count another transfer.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> MeterGuard {
        let meter = Arc::<TransferMeter>::default();
        self.0.lock().running.push(Arc::clone(&meter));
        MeterGuard { meters: Arc::clone(self), meter }
    }
}

impl MeterReading {
    fn and(self, other: &Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            probed: self.probed + other.probed,
            files: self.files + other.files,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            sent_files: self.sent_files + other.sent_files,
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

impl Drop for MeterGuard {
    fn drop(&mut self) {
        let mut book = self.meters.0.lock();
        book.running.retain(|meter| !Arc::ptr_eq(meter, &self.meter));
        let last = MeterReading { transfers: 0, lanes: 0, queued: 0, ..self.meter.reading() };
        book.ended = book.ended.and(&last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_stay_when_a_transfer_ends_and_the_rest_goes() {
        let meters = Arc::<Meters>::default();
        let (one, other) = (meters.begin(), meters.begin());
        one.meter.came(7);
        one.meter.stored(2);
        one.meter.queue();
        one.meter.lanes_are(3);
        other.meter.came(1);
        let before = meters.read();
        assert_eq!((before.bytes, before.files), (8, 2));
        assert_eq!((before.transfers, before.lanes, before.queued), (2, 3, 1));
        drop(one);
        let after = meters.read();
        assert_eq!((after.bytes, after.files), (8, 2));
        assert_eq!((after.transfers, after.lanes, after.queued), (1, 0, 0));
    }
}
