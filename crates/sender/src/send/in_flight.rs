//! The work in flight: issued by readers, taken by lanes, settled by receipts; all of it under one lock.
//!
//! **Invariant:** a receiver that settles nothing cannot make the record grow without end: [`InFlight::issue`] waits.

mod record;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use zmove_types::{ByteOrigins, Event, FileId, GroupSpan, ItemId, Lock, Observer};
use zmove_wire::limits::FILES_BEGUN_MAX;
use zmove_wire::session::Receipt;
use zmove_wire::{EntryFault, ToReceiver, WireError};

use self::record::{GroupId, Mismatch, Record};
use crate::account::file_ledger::FileLedger;
use crate::account::report_limits::SentCounts;
use crate::plan::links::Word;
use crate::read::source::LargeSource;
use crate::send::sent::Sent;

/// The items in flight in one session, and the large files that have not come to their end.
pub(crate) struct InFlight {
    observer: Arc<dyn Observer>,
    /// Control messages on their way out; the writer ends the connection when this is dropped.
    outgoing: UnboundedSender<ToReceiver>,
    stopping: AtomicBool,
    state: Lock<InFlightState>,
    /// Notified when an item is settled, a large file has come to its end, or nothing is planned any more.
    settled: Condvar,
    /// The number of lanes that have nothing to do.
    lanes_idle: AtomicUsize,
    /// What the receiver may report about.
    pub(crate) sent_counts: SentCounts,
}

#[derive(Default)]
struct InFlightState {
    record: Record<Sent>,
    /// Large files that have not come to their end.
    large: HashMap<FileId, Arc<LargeSource>>,
    /// The large files of which something has been sent.
    begun: HashSet<FileId>,
    /// Whether the receiver may have heard that all has been sent.
    has_announced: bool,
}

/// The work that a receipt has settled.
#[derive(Debug, Default)]
pub(crate) struct SettledWork {
    /// The work, if it is done with this receipt.
    pub(crate) work: Option<Sent>,
    /// The payload bytes that the receipt is for.
    pub(crate) data_bytes: u64,
    /// The bytes of a batch that are stored while its files have no names yet.
    pub(crate) unpublished_bytes: Option<u64>,
    /// What is known by it of names of files with several.
    pub(crate) words: Vec<Word>,
}

impl InFlight {
    /// A new record, whose messages to the receiver go by `outgoing`.
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

    /// Books so many pieces of work as planned, before they can be taken.
    pub(crate) fn begin(&self, pieces: u64) {
        self.lock().record.transfer.begin(pieces);
    }

    /// Books a large file as planned, in so many pieces of work.
    pub(crate) fn begin_file(&self, file: Arc<LargeSource>, pieces: u64) {
        self.sent_counts.files.add(1);
        let above = file.target.directory();
        self.sent_counts.entries(1, &above);
        let mut state = self.lock();
        state.large.insert(file.id, file);
        state.record.transfer.begin(pieces);
    }

    /// Books one piece of planned work as issued completely; informs the receiver if that was the last.
    pub(crate) fn end_work(&self) {
        let mut state = self.lock();
        state.record.transfer.end();
        self.announce(&mut state);
        if state.record.transfer.is_settled() {
            self.settled.notify_all();
        }
    }

    /// Ends so many pieces of planned work that need not be done, while a piece that is being done has not come to its
    /// end.
    pub(crate) fn skip_work(&self, pieces: u32) {
        let mut state = self.lock();
        (0..pieces).for_each(|_| state.record.transfer.end());
    }

    /// Notes that no more work will come, except what is sent again.
    pub(crate) fn end_plan(&self) {
        let mut state = self.lock();
        state.record.transfer.plan_ended();
        self.announce(&mut state);
    }

    /// Books an item as in flight; waits while too many are, or too many entries have no name yet. A large file is not
    /// begun while too many have no end. `None` when the push is being stopped.
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
        let last_word = work.last_word();
        (!self.is_stopping()).then(|| state.record.issue(work, group, tries, last_word))
    }

    /// Notes that a lane has taken an item; returns whether that is still in flight.
    pub(crate) fn taken(&self, item: ItemId, lane: usize) -> bool {
        self.lock().record.taken(item, lane, Instant::now())
    }

    /// Notes that a lane has passed a chunk on to its kernel, which may still hold it.
    pub(crate) fn handed_on(&self, item: ItemId, lane: usize) {
        self.lock().record.handed_on(item, lane);
    }

    /// Calls `wait` and counts the lane as idle meanwhile.
    pub(crate) fn while_idle<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.lanes_idle.fetch_add(1, Ordering::Relaxed);
        let waited = wait();
        self.lanes_idle.fetch_sub(1, Ordering::Relaxed);
        waited
    }

    /// Books an item that the receiver has stored, except for `faults`.
    pub(crate) fn stored(
        &self,
        item: ItemId,
        faults: &[EntryFault],
    ) -> Result<SettledWork, WireError> {
        self.take_word(|record| {
            Ok(match record.stored(item, Instant::now())? {
                Receipt::Settled(item) => SettledWork {
                    data_bytes: item.work.data_bytes(),
                    work: Some(item.work),
                    ..SettledWork::default()
                },
                Receipt::Unpublished(item) => SettledWork {
                    unpublished_bytes: item.work.store(faults),
                    data_bytes: item.work.data_bytes(),
                    words: item.work.words(),
                    work: None,
                },
            })
        })
    }

    /// Books a batch whose files the receiver has named, as far as possible; returns the work.
    pub(crate) fn published(&self, item: ItemId) -> Result<Sent, WireError> {
        self.take_word(|record| Ok(record.transfer.published(item)?.work))
    }

    /// Books an item that the receiver found damaged, or reports as lost with its lane.
    pub(crate) fn mismatch(&self, item: ItemId) -> Result<Mismatch<Sent>, WireError> {
        self.take_word(|record| record.mismatch(item, Instant::now()))
    }

    /// Books a receipt, and wakes those that wait for one.
    fn take_word<T>(
        &self,
        book: impl FnOnce(&mut Record<Sent>) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let booked = book(&mut self.lock().record);
        self.settled.notify_all();
        booked
    }

    /// Ends a large file, and returns it to the first caller only: that one reports its end.
    pub(crate) fn end_large(&self, id: FileId) -> Option<Arc<LargeSource>> {
        let mut state = self.lock();
        let ended = state.large.remove(&id)?;
        state.begun.remove(&id);
        drop(state);
        self.settled.notify_all();
        Some(ended)
    }

    /// Ends a large file badly on this side, and informs the receiver. Returns what has been counted of it, unless it
    /// had come to its end before.
    pub(crate) fn abandon_large(&self, id: FileId) -> Option<ByteOrigins> {
        let counted = self.end_large(id)?.kill();
        self.tell(ToReceiver::Abandon { file: id.0 });
        Some(counted)
    }

    /// Takes out all large files that have not come to their end.
    pub(crate) fn take_large(&self) -> HashMap<FileId, Arc<LargeSource>> {
        std::mem::take(&mut self.lock().large)
    }

    /// Notes that a lane is lost; returns the items that no other lane has.
    pub(crate) fn lose_lane(&self, lane: usize) -> Vec<ItemId> {
        self.lock().record.lose_lane(lane)
    }

    /// Notes that lanes send as fast as the rate allows: what waits for the rate is neither late nor lost.
    pub(crate) fn note_progress(&self, now: Instant) {
        self.lock().record.note_progress(now);
    }

    /// A lane whose frames may not all have arrived, since none of them has been settled for long.
    pub(crate) fn doubtful_lane(&self, now: Instant) -> Option<usize> {
        self.lock().record.doubtful(now)
    }

    /// Chooses the chunks that idle lanes should send again, the latest first, once all work has been issued. `stuck`
    /// returns whether something that a lane has sent has not arrived.
    pub(crate) fn take_late(
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
        // `stuck` asks the kernel, so it is called without the lock.
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

    /// The item under which this group is to be read again, once for each time that this was planned.
    pub(crate) fn item_again(&self, file: FileId, span: GroupSpan) -> Option<ItemId> {
        self.lock().record.item_again(GroupId {
            file,
            index: span.index,
        })
    }

    /// Whether an item has no receipt yet.
    pub(crate) fn has(&self, item: ItemId) -> bool {
        self.lock().record.transfer.is_outstanding(item)
    }

    /// The lanes that have had a chunk which another lane had as well.
    pub(crate) fn lanes_with_copies(&self) -> HashSet<usize> {
        self.lock().record.lanes_with_copies()
    }

    /// The number of items in flight.
    pub(crate) fn item_count(&self) -> usize {
        self.lock().record.transfer.outstanding()
    }

    /// Whether all work has become items, of which some may be in flight.
    pub(crate) fn is_all_issued(&self) -> bool {
        self.lock().record.transfer.is_all_issued()
    }

    /// Whether everything sent has been settled and nothing is planned.
    pub(crate) fn is_settled(&self) -> bool {
        self.lock().record.transfer.is_settled()
    }

    /// Whether nothing that has been planned until now is to be sent, or without an end.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.record.transfer.is_idle() && state.large.is_empty()
    }

    /// Waits until all that was planned is settled, or the push is being stopped: called before `release_end`.
    pub(crate) fn wait_until_settled(&self) {
        let open =
            |state: &mut InFlightState| !state.record.transfer.is_settled() && !self.is_stopping();
        drop(
            self.settled
                .wait_while(self.lock(), open)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }

    /// Withholds the end: something is to be done when all is settled, before the receiver may finish.
    pub(crate) fn withhold_end(&self) {
        self.lock().record.transfer.withhold();
    }

    /// Releases the end: what it was withheld for has been done.
    pub(crate) fn release_end(&self) {
        let mut state = self.lock();
        state.record.transfer.release();
        self.announce(&mut state);
    }

    /// Announces to the receiver, when all work has been issued, how much that was.
    pub(crate) fn announce_if_all(&self) {
        self.announce(&mut self.lock());
    }

    /// Leaves in the ledger of files all that the receiver has not settled when the session is over.
    pub(crate) fn leave_open(&self, files: &mut FileLedger) {
        let state = self.lock();
        let mut groups = HashMap::<FileId, BTreeMap<u32, ByteOrigins>>::new();
        for item in state.record.transfer.unsettled() {
            files.leave_open(&item.work);
            if let Sent::Group(file, span, kind) = &item.work {
                let origin = files.origin_by(*kind, &file.target, span.index);
                let bytes = ByteOrigins::of(origin, file.data_bytes_within(*span));
                groups.entry(file.id).or_default().insert(span.index, bytes);
            }
        }
        for (id, file) in &state.large {
            let mut unsettled = ByteOrigins::default();
            let groups = groups.get(id).into_iter().flat_map(BTreeMap::values);
            groups.for_each(|bytes| unsettled += *bytes);
            files.leave_large_open(file, unsettled);
        }
    }

    /// Sends a control message.
    pub(crate) fn tell(&self, message: ToReceiver) {
        // The queue is closed only when the session is over.
        let _session_over = self.outgoing.send(message);
    }

    /// Sends a control message unless all has been announced: the receiver may have come to its end then, and an
    /// unread message would make a reset of the close.
    pub(crate) fn tell_before_end(&self, message: ToReceiver) {
        let state = self.lock();
        if !state.has_announced {
            self.tell(message);
        }
    }

    /// Set when the push is being stopped.
    pub(crate) fn stopping(&self) -> &AtomicBool {
        &self.stopping
    }

    /// Whether the push is being stopped: all its threads are to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Makes all threads stop soon, and wakes those that wait for a receipt.
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
            self.tell(message);
        }
    }

    fn lock(&self) -> MutexGuard<'_, InFlightState> {
        self.state.lock()
    }
}

impl InFlightState {
    /// Whether no item may be issued, or none of `large` because it would be one large file too many.
    fn is_full(&self, large: Option<FileId>) -> bool {
        let begins = large.is_some_and(|file| self.begins(file));
        self.record.transfer.is_full() || begins && self.begun.len() as u64 >= FILES_BEGUN_MAX
    }

    /// Whether nothing of a large file has been sent; one that has come to its end does not count as begun.
    fn begins(&self, file: FileId) -> bool {
        self.large.contains_key(&file) && !self.begun.contains(&file)
    }
}

#[cfg(test)]
pub(crate) mod tests;
