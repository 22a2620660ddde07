//! The work in flight, which is issued by readers, taken by lanes and settled by receipts. One lock protects all of it.
//!
//! **Invariant:** a receiver that settles nothing cannot make the record grow without bound, because
//! [`InFlight::issue`] waits.

mod record;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use zmove_types::{BytesByOrigin, Event, FileId, GroupSpan, ItemId, Lock, Observer};
use zmove_wire::limits::FILES_BEGUN_MAX;
use zmove_wire::session::ItemReceipt;
use zmove_wire::{EntryFault, ToReceiver, WireError};

use self::record::{GroupId, Mismatch, Record};
use crate::account::file_ledger::FileLedger;
use crate::account::report_limits::SentCounts;
use crate::plan::links::LinkOutcome;
use crate::read::source::LargeSource;
use crate::send::sent::Sent;

/// The items in flight in one session, and the large files that have not ended.
pub(crate) struct InFlight {
    observer: Arc<dyn Observer>,
    /// Queue of outgoing control messages. When this queue is dropped, the writer ends the connection.
    outgoing: UnboundedSender<ToReceiver>,
    stopping: AtomicBool,
    state: Lock<InFlightState>,
    /// Notified when an item settles, when a large file ends, and when no planned work is left.
    settled: Condvar,
    /// Number of lanes that have nothing to do.
    lanes_idle: AtomicUsize,
    /// Counts of sent work, which bound the receiver's reports.
    pub(crate) sent_counts: SentCounts,
}

#[derive(Default)]
struct InFlightState {
    record: Record<Sent>,
    /// Large files that have neither completed nor failed.
    large: HashMap<FileId, Arc<LargeSource>>,
    /// Large files of which some data has been sent.
    begun: HashSet<FileId>,
    /// Whether a message that everything has been sent may have reached the receiver.
    has_announced: bool,
}

/// The result of applying a receipt.
#[derive(Debug, Default)]
pub(crate) struct SettledWork {
    /// The work that the receipt completes, or `None` if the work needs another receipt.
    pub(crate) work: Option<Sent>,
    /// Payload bytes that the receipt confirms.
    pub(crate) data_bytes: u64,
    /// Stored bytes of a batch whose files are not yet renamed into place.
    pub(crate) unpublished_bytes: Option<u64>,
    /// The outcomes for files with several names that follow from the receipt.
    pub(crate) link_outcomes: Vec<LinkOutcome>,
}

impl InFlight {
    /// Creates an empty record. Messages to the receiver are sent through `outgoing`.
    pub(crate) fn new(observer: Arc<dyn Observer>, outgoing: UnboundedSender<ToReceiver>) -> Self {
        Self {
            observer,
            outgoing,
            stopping: AtomicBool::new(false),
            state: Lock::default(),
            settled: Condvar::new(),
            lanes_idle: AtomicUsize::new(0),
            sent_counts: SentCounts::default(),
        }
    }

    /// Records that `pieces` pieces of work are planned. Must be called before readers can take these pieces.
    pub(crate) fn begin(&self, pieces: u64) {
        self.lock().record.transfer.begin(pieces);
    }

    /// Records that a large file is planned, as `pieces` pieces of work.
    pub(crate) fn begin_file(&self, file: Arc<LargeSource>, pieces: u64) {
        self.sent_counts.files.add(1);
        let above = file.target.directory();
        self.sent_counts.entries(1, &above);
        let mut state = self.lock();
        state.large.insert(file.id, file);
        state.record.transfer.begin(pieces);
    }

    /// Records that all items of one piece of planned work have been issued. Informs the receiver if this was the last
    /// piece.
    pub(crate) fn end_work(&self) {
        let mut state = self.lock();
        state.record.transfer.end();
        self.announce(&mut state);
        if state.record.transfer.is_settled() {
            self.settled.notify_all();
        }
    }

    /// Marks pieces of planned work as done although they were not sent. Must be called while another piece is still
    /// being worked on.
    pub(crate) fn skip_work(&self, pieces: u32) {
        let mut state = self.lock();
        (0..pieces).for_each(|_| state.record.transfer.end());
    }

    /// Records that no more work will be planned. Work may still be sent again.
    pub(crate) fn end_plan(&self) {
        let mut state = self.lock();
        state.record.transfer.plan_ended();
        self.announce(&mut state);
    }

    /// Records an item as in flight. Waits while too many items are in flight or too many entries are not yet renamed
    /// into place. If the item is the first of a large file, also waits while too many large files have begun. Returns
    /// `None` if the push is being stopped.
    pub(crate) fn issue(&self, work: Sent, tries: u8) -> Option<ItemId> {
        let group = match &work {
            Sent::Group(file, span, _) => Some(GroupId {
                file: file.id,
                index: span.index,
            }),
            Sent::Batch(_) => None,
        };
        let large = group.map(|group| group.file);
        let full = |state: &mut InFlightState| state.is_full(large) && !self.is_stopping();
        let mut state = self
            .settled
            .wait_while(self.lock(), full)
            .unwrap_or_else(PoisonError::into_inner);
        let begins = large.filter(|file| state.begins(*file));
        state.begun.extend(begins);
        if let Sent::Batch(batch) = &work {
            for group in &batch.pack.groups {
                self.sent_counts
                    .entries(group.entries.len() as u64, group.directory.target_path());
            }
        }
        let last_word = work.completing_report();
        (!self.is_stopping()).then(|| state.record.issue(work, group, tries, last_word))
    }

    /// Records that a lane has taken an item. Returns whether the item is still in flight.
    pub(crate) fn note_taken(&self, item: ItemId, lane: usize) -> bool {
        self.lock().record.note_taken(item, lane, Instant::now())
    }

    /// Records that a lane has passed a chunk to its kernel. The kernel may still hold the chunk.
    pub(crate) fn note_handed_on(&self, item: ItemId, lane: usize) {
        self.lock().record.note_handed_on(item, lane);
    }

    /// Calls `wait`, and counts the lane as idle during the call.
    pub(crate) fn while_idle<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.lanes_idle.fetch_add(1, Ordering::Relaxed);
        let waited = wait();
        self.lanes_idle.fetch_sub(1, Ordering::Relaxed);
        waited
    }

    /// Settles an item that the receiver has stored, except for the entries in `faults`.
    pub(crate) fn stored(
        &self,
        item: ItemId,
        faults: &[EntryFault],
    ) -> Result<SettledWork, WireError> {
        self.apply_receipt(|record| {
            Ok(match record.stored(item, Instant::now())? {
                ItemReceipt::Settled(item) => SettledWork {
                    data_bytes: item.work.data_bytes(),
                    work: Some(item.work),
                    ..SettledWork::default()
                },
                ItemReceipt::Unpublished(item) => SettledWork {
                    unpublished_bytes: item.work.store(faults),
                    data_bytes: item.work.data_bytes(),
                    link_outcomes: item.work.link_outcomes(),
                    work: None,
                },
            })
        })
    }

    /// Settles a batch after the receiver has renamed its files into place, except for files that failed. Returns the
    /// work.
    pub(crate) fn published(&self, item: ItemId) -> Result<Sent, WireError> {
        self.apply_receipt(|record| Ok(record.transfer.published(item)?.work))
    }

    /// Settles an item that the receiver found damaged, or reported as lost with its lane.
    pub(crate) fn mismatch(&self, item: ItemId) -> Result<Mismatch<Sent>, WireError> {
        self.apply_receipt(|record| record.mismatch(item, Instant::now()))
    }

    /// Applies a receipt and wakes the threads that wait for one.
    fn apply_receipt<T>(
        &self,
        book: impl FnOnce(&mut Record<Sent>) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let booked = book(&mut self.lock().record);
        self.settled.notify_all();
        booked
    }

    /// Ends a large file. Returns the file to the first caller only, and that caller reports the result of the file.
    pub(crate) fn end_large(&self, id: FileId) -> Option<Arc<LargeSource>> {
        let mut state = self.lock();
        let ended = state.large.remove(&id)?;
        state.begun.remove(&id);
        drop(state);
        self.settled.notify_all();
        Some(ended)
    }

    /// Fails a large file on this side and informs the receiver. Returns the bytes counted for the file, or `None` if
    /// the file had already ended.
    pub(crate) fn abandon_large(&self, id: FileId) -> Option<BytesByOrigin> {
        let counted = self.end_large(id)?.fail();
        self.send(ToReceiver::Abandon { file: id.0 });
        Some(counted)
    }

    /// Removes and returns all large files that have not ended.
    pub(crate) fn take_large(&self) -> HashMap<FileId, Arc<LargeSource>> {
        std::mem::take(&mut self.lock().large)
    }

    /// Records that a lane is lost. Returns the items that no other lane has taken.
    pub(crate) fn lose_lane(&self, lane: usize) -> Vec<ItemId> {
        self.lock().record.lose_lane(lane)
    }

    /// Records that lanes send as fast as the rate limit allows. Work that the rate limit delays is neither late nor
    /// lost.
    pub(crate) fn note_progress(&self, now: Instant) {
        self.lock().record.note_progress(now);
    }

    /// Returns a lane whose frames may be lost, because no item has settled for a long time.
    pub(crate) fn doubtful_lane(&self, now: Instant) -> Option<usize> {
        self.lock().record.doubtful(now)
    }

    /// Chooses the late chunks that idle lanes should send again once all work has been issued. The chunk that has been
    /// late for longest is first. `stuck` returns whether data sent by a lane has not arrived.
    pub(crate) fn choose_late(
        &self,
        stuck: impl Fn(usize) -> bool,
    ) -> Vec<(Arc<LargeSource>, GroupSpan)> {
        let idle = self.lanes_idle.load(Ordering::Relaxed);
        if idle == 0 {
            return Vec::new();
        }
        let state = self.lock();
        if !state.record.transfer.is_all_issued() {
            return Vec::new();
        }
        let late = state.record.late(Instant::now());
        drop(state);
        // `stuck` queries the kernel, so it is called without holding the lock.
        let late = late
            .into_iter()
            .filter(|(_, first)| !first.handed_on || stuck(first.lane))
            .take(idle);
        let repeat = |item| match self.lock().record.repeat(item)? {
            Sent::Group(file, span, _) => Some((Arc::clone(file), *span)),
            Sent::Batch(_) => None,
        };
        late.filter_map(|(item, _)| repeat(item)).collect()
    }

    /// Returns the item under which this group is to be read again. Each planned repetition is returned once.
    pub(crate) fn item_to_repeat(&self, file: FileId, span: GroupSpan) -> Option<ItemId> {
        self.lock().record.item_to_repeat(GroupId {
            file,
            index: span.index,
        })
    }

    /// Returns whether an item is in flight, that is, has no receipt yet.
    pub(crate) fn has(&self, item: ItemId) -> bool {
        self.lock().record.transfer.is_outstanding(item)
    }

    /// Returns the lanes that have taken a chunk which another lane has taken as well.
    pub(crate) fn lanes_with_copies(&self) -> HashSet<usize> {
        self.lock().record.lanes_with_copies()
    }

    /// Returns the number of items in flight.
    pub(crate) fn item_count(&self) -> usize {
        self.lock().record.transfer.outstanding()
    }

    /// Returns whether all planned work has been issued as items, some of which may still be in flight.
    pub(crate) fn is_all_issued(&self) -> bool {
        self.lock().record.transfer.is_all_issued()
    }

    /// Returns whether everything sent has settled and no more work is planned.
    pub(crate) fn is_settled(&self) -> bool {
        self.lock().record.transfer.is_settled()
    }

    /// Returns whether all work planned so far has settled and every large file has ended.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.record.transfer.is_idle() && state.large.is_empty()
    }

    /// Waits until all planned work has settled, or the push is being stopped. Must be called before `release_end`.
    pub(crate) fn wait_until_settled(&self) {
        let open =
            |state: &mut InFlightState| !state.record.transfer.is_settled() && !self.is_stopping();
        drop(
            self.settled
                .wait_while(self.lock(), open)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Withholds the end of the transfer, so that the receiver does not finish. Called if more must be done after
    /// everything has settled.
    pub(crate) fn withhold_end(&self) {
        self.lock().record.transfer.withhold();
    }

    /// Releases the end of the transfer after [`withhold_end`](Self::withhold_end).
    pub(crate) fn release_end(&self) {
        let mut state = self.lock();
        state.record.transfer.release();
        self.announce(&mut state);
    }

    /// Announces the total amount of work to the receiver if all work has been issued.
    pub(crate) fn announce_if_all(&self) {
        self.announce(&mut self.lock());
    }

    /// Records in the file ledger everything that the receiver has not settled at the end of the session.
    pub(crate) fn remember_open(&self, files: &mut FileLedger) {
        let state = self.lock();
        let mut groups = HashMap::<FileId, BTreeMap<u32, BytesByOrigin>>::new();
        for item in state.record.transfer.unsettled() {
            files.remember_open(&item.work);
            if let Sent::Group(file, span, kind) = &item.work {
                let origin = files.origin_by(*kind, &file.target, span.index);
                let bytes = BytesByOrigin::of(origin, file.data_bytes_within(*span));
                groups.entry(file.id).or_default().insert(span.index, bytes);
            }
        }
        for (id, file) in &state.large {
            let mut unsettled = BytesByOrigin::default();
            let groups = groups.get(id).into_iter().flat_map(BTreeMap::values);
            groups.for_each(|bytes| unsettled += *bytes);
            files.remember_open_large(file, unsettled);
        }
    }

    /// Sends a control message.
    pub(crate) fn send(&self, message: ToReceiver) {
        // The queue is closed only when the session is over.
        let _session_over = self.outgoing.send(message);
    }

    /// Sends a control message unless all work has been announced. After that announcement the receiver may close its
    /// side, and a message that it has not read would turn the close into a reset.
    pub(crate) fn send_before_end(&self, message: ToReceiver) {
        let state = self.lock();
        if !state.has_announced {
            self.send(message);
        }
    }

    /// Returns the flag that is set when the push is being stopped.
    pub(crate) fn stopping(&self) -> &AtomicBool {
        &self.stopping
    }

    /// Returns whether the push is being stopped, so that all its threads must end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Makes all threads stop soon, and wakes the threads that wait for a receipt.
    pub(crate) fn stop(&self) {
        let state = self.lock();
        self.stopping.store(true, Ordering::Release);
        drop(state);
        self.settled.notify_all();
    }

    fn announce(&self, state: &mut InFlightState) {
        if let Some(message) = state.record.transfer.announcement() {
            self.observer.on(&Event::Flushing);
            state.has_announced = true;
            self.send(message);
        }
    }

    fn lock(&self) -> MutexGuard<'_, InFlightState> {
        self.state.lock()
    }
}

impl InFlightState {
    /// Returns whether no item may be issued. If `large` is given, also returns `true` if this file would begin while
    /// too many large files have begun.
    fn is_full(&self, large: Option<FileId>) -> bool {
        let begins = large.is_some_and(|file| self.begins(file));
        self.record.transfer.is_full() || begins && self.begun.len() as u64 >= FILES_BEGUN_MAX
    }

    /// Returns whether `file` is a large file that has not ended and of which nothing has been sent yet.
    fn begins(&self, file: FileId) -> bool {
        self.large.contains_key(&file) && !self.begun.contains(&file)
    }
}

#[cfg(test)]
pub(crate) mod tests;
