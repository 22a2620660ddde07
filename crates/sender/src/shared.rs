//! What all threads of one push share: the plan, the ledger, the counters, and the ways to tell.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use zmove_chunk::{Plan, Work};
use zmove_scan::ScanError;
use zmove_types::{
    BufferPool, Cv, Event, FileId, GroupSpan, ItemId, Observer, RelPath, Root, StageClock, StageTimes,
};
use zmove_wire::limits::FILES_BEGUN_MAX;
use zmove_wire::session::{LastWord, Load, Receipt, Resend, SenderTransfer};
use zmove_wire::{EntryFault, FrameKind, ToReceiver, Version, WireError};

use crate::error::FileError;
use crate::plan::pack::{Basis, Pack, Parcel};
use crate::push::config::SenderConfig;
use crate::push::run::{Book, Look};
use crate::read::read_ahead::ReadAhead;
use crate::read::source::LargeSource;
use crate::send::lane::ChunkCopy;
use crate::send::lane_items::LaneItems;
use crate::send::stragglers::Stragglers;

/// Work on its way, well enough described to do it again.
#[derive(Debug)]
pub(crate) enum Sent {
    Batch(SentBatch),
    Group(Arc<LargeSource>, GroupSpan, Travels),
}

/// Whether the bytes of a group travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Travels {
    /// They do.
    Whole,
    /// The target has them, and is told so.
    ByName,
}

impl Travels {
    pub(crate) fn of(kind: FrameKind) -> Self {
        if kind == FrameKind::Same { Self::ByName } else { Self::Whole }
    }
}

/// A batch on its way.
#[derive(Debug)]
pub(crate) struct SentBatch {
    pub(crate) pack: Pack,
    pub(crate) files: Vec<SentFile>,
    /// What could not be stored of it, where that is not its end.
    pub(crate) faults: Vec<EntryFault>,
}

/// A small file on its way.
#[derive(Debug)]
pub(crate) struct SentFile {
    pub(crate) path: RelPath,
    pub(crate) root: Root,
    pub(crate) look: Look,
    /// It was there already and only its metadata travels.
    pub(crate) retouched: bool,
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) plan: Plan<Parcel, Arc<LargeSource>>,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) pool: BufferPool,
    pub(crate) config: SenderConfig,
    /// What the receiver speaks.
    pub(crate) version: Version,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) outgoing: UnboundedSender<ToReceiver>,
    pub(crate) large: Mutex<HashMap<FileId, Arc<LargeSource>>>,
    /// How many of them have begun to be sent; changed under the ledger's lock.
    large_begun: AtomicU64,
    pub(crate) read_clock: StageClock,
    pub(crate) lane_clock: StageClock,
    pub(crate) counters: Counters,
    pub(crate) started: Instant,
    pub(crate) readers: Headcount,
    pub(crate) stragglers: Stragglers<Arc<LargeSource>>,
    pub(crate) lane_items: LaneItems,
    book: Mutex<Book>,
    ledger: Mutex<SenderTransfer<Sent>>,
    settled: Condvar,
    all_settled: Condvar,
    stopping: AtomicBool,
    first_byte_us: AtomicU64,
    handed_over_us: AtomicU64,
    before_first_byte: OnceLock<(StageTimes, StageTimes)>,
    next_file: AtomicU64,
}

/// How many readers there should be; those with the highest numbers go first.
#[derive(Debug, Default)]
pub(crate) struct Headcount(Mutex<Readers>);

#[derive(Debug, Default)]
struct Readers {
    wanted: usize,
    /// Readers run with all numbers below this.
    running: usize,
}

impl Headcount {
    /// Wants so many; returns how many run, so that the caller starts the rest.
    pub(crate) fn want(&self, wanted: usize) -> usize {
        let mut readers = self.lock();
        readers.wanted = wanted;
        let running = readers.running;
        readers.running = running.max(wanted);
        running
    }

    /// The reader of this number could not be started, nor are those after it.
    pub(crate) fn stop_before(&self, number: usize) {
        let mut readers = self.lock();
        readers.running = readers.running.min(number);
        readers.wanted = readers.wanted.min(number);
    }

    /// Whether this reader is one too many; it must go then.
    pub(crate) fn may_go(&self, number: usize) -> bool {
        let mut readers = self.lock();
        let goes = number >= readers.wanted && number + 1 == readers.running;
        readers.running -= usize::from(goes);
        goes
    }

    fn lock(&self) -> MutexGuard<'_, Readers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an item was lost with its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    WithLane,
    No,
}

/// What a receipt is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Files that have become whole.
    pub(crate) files: u64,
    /// All their bytes.
    pub(crate) whole_bytes: u64,
    /// The bytes of any file that were not counted before.
    pub(crate) bytes: u64,
    /// Those of them that were shown to the user before.
    pub(crate) shown: u64,
}

/// What the summary will say.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Regular files that the scan has found; each ends as moved, skipped or failed.
    pub(crate) found: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// With the bytes of files that are stored and have no names yet.
    pub(crate) bytes_stored: AtomicU64,
    /// The bytes of the files that are whole.
    pub(crate) whole_bytes: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_handed_over: AtomicU64,
    /// Of these, what the receiver has settled, well or badly.
    pub(crate) bytes_settled: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) matched: AtomicU64,
    pub(crate) specials: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) vanished: AtomicU64,
    pub(crate) resent: AtomicU64,
    pub(crate) repeated: AtomicU64,
    pub(crate) added: AtomicU64,
    pub(crate) changed: AtomicU64,
    pub(crate) removed: AtomicU64,
    /// What was asked to be removed in this run, with all below it where that counts.
    pub(crate) doomed: AtomicU64,
    /// What is at the target alone and stays because enough has gone.
    pub(crate) spared: AtomicU64,
    /// What is at the target alone and stays because the source has changed since the first walk began.
    pub(crate) kept_by_change: AtomicU64,
    /// Parts of the source that could not be seen.
    pub(crate) scan_errors: AtomicU64,
    /// Files and links that the scan has found and that could not be read.
    pub(crate) unread: AtomicU64,
    /// What was to be at the target, and of which not all is.
    pub(crate) unplaced: AtomicU64,
}

impl Counters {
    /// How much of the source is not known.
    pub(crate) fn source_errors(&self) -> u64 {
        self.scan_errors.load(Ordering::Relaxed) + self.unread.load(Ordering::Relaxed)
    }

    /// Whether it is known of each file that it is at the target, or that one is not.
    pub(crate) fn are_files_told(&self) -> bool {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let lost = self.source_errors() + count(&self.unplaced);
        lost > 0 || count(&self.found) <= count(&self.files) + count(&self.skipped)
    }

    /// At the good end of a session: files that nothing was told of. Where something has failed these may be it.
    pub(crate) fn unaccounted(&self) -> u64 {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        match count(&self.failed) {
            0 => count(&self.found).saturating_sub(count(&self.files) + count(&self.skipped)),
            _ => 0,
        }
    }
}

impl Sent {
    /// How much payload it is.
    fn data_bytes(&self) -> u64 {
        match self {
            Self::Batch(batch) => {
                batch.files.iter().filter(|file| !file.retouched).map(|file| file.look.bytes).sum()
            }
            Self::Group(_, span, Travels::Whole) => u64::from(span.len),
            Self::Group(_, _, Travels::ByName) => 0,
        }
    }

    /// The large file that it is of.
    fn large(&self) -> Option<Arc<LargeSource>> {
        match self {
            Self::Group(file, ..) => Some(Arc::clone(file)),
            Self::Batch(_) => None,
        }
    }

    /// With which word of a receiver that speaks `version` it is done.
    fn last_word(&self, version: Version) -> LastWord {
        match self {
            Self::Batch(SentBatch { pack, .. }) if version >= Version::V4 => LastWord::Published(Load {
                entries: pack.entry_count() as u64,
                name_bytes: pack.name_bytes(),
            }),
            _ => LastWord::Stored,
        }
    }
}

impl SentBatch {
    /// The bytes of the files that travelled, without those that have failed.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let failed: HashSet<_> = self.failed().collect();
        let files = self.files.iter().filter(|file| !file.retouched && !failed.contains(&file.path));
        files.map(|file| file.look.bytes).sum()
    }

    /// The paths that could not be stored.
    pub(crate) fn failed(&self) -> impl Iterator<Item = RelPath> {
        self.faults.iter().filter_map(|fault| self.pack.target_path(fault.entry))
    }
}

impl Shared {
    pub(crate) fn new(
        config: SenderConfig,
        version: Version,
        observer: Arc<dyn Observer>,
        outgoing: UnboundedSender<ToReceiver>,
        started: Instant,
    ) -> Self {
        Self {
            plan: Plan::new(ENTRIES_WAITING_MAX, FILES_WAITING_MAX),
            read_ahead: ReadAhead::new(),
            pool: BufferPool::new(crate::push::config::BUFFER_BYTES, config.buffers_max),
            config,
            version,
            observer,
            outgoing,
            large: Mutex::default(),
            large_begun: AtomicU64::new(0),
            read_clock: StageClock::default(),
            lane_clock: StageClock::default(),
            counters: Counters::default(),
            started,
            readers: Headcount::default(),
            stragglers: Stragglers::default(),
            lane_items: LaneItems::default(),
            book: Mutex::default(),
            ledger: Mutex::default(),
            settled: Condvar::new(),
            all_settled: Condvar::new(),
            stopping: AtomicBool::new(false),
            first_byte_us: AtomicU64::new(0),
            handed_over_us: AtomicU64::new(0),
            before_first_byte: OnceLock::new(),
            next_file: AtomicU64::new(0),
        }
    }

    /// The account of what is on its way.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, SenderTransfer<Sent>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of files for longer than this session.
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Books an item as on its way; waits while too many are, or too much has no name yet, so that a receiver that settles
    /// nothing cannot make the account grow without end. A large file is not begun while too many have no end. `None` when the
    /// push is being stopped.
    pub(crate) fn issue(&self, work: Sent, tries: u8) -> Option<ItemId> {
        let large = work.large();
        let full =
            |ledger: &mut SenderTransfer<Sent>| self.is_full(ledger, large.as_deref()) && !self.is_stopping();
        let mut ledger = self.settled.wait_while(self.ledger(), full).unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = large.filter(|file| !file.has_begun()) {
            self.begin_large(&file);
        }
        let last_word = work.last_word(self.version);
        (!self.is_stopping()).then(|| ledger.issue(work, tries, last_word))
    }

    /// Whether no item may be issued, or none of `large` because it would be one large file too many.
    fn is_full(&self, ledger: &SenderTransfer<Sent>, large: Option<&LargeSource>) -> bool {
        let begins = large.is_some_and(|file| !file.has_begun());
        ledger.is_full() || begins && self.large_begun.load(Ordering::Relaxed) >= FILES_BEGUN_MAX
    }

    /// Counts a file as begun until [`end_large`](Self::end_large), unless that has been. For who holds the ledger.
    fn begin_large(&self, file: &LargeSource) {
        if self.large.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&file.id) {
            file.begin();
            self.large_begun.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The receiver has stored an item, but for `faults`; returns what it was if nothing more is to be said of it.
    pub(crate) fn stored(&self, item: ItemId, faults: &[EntryFault]) -> Result<Option<Sent>, WireError> {
        let mut ledger = self.ledger();
        let (settled, bytes) = match ledger.stored(item)? {
            Receipt::Settled(work) => (Some(work), 0),
            Receipt::Unpublished(work) => (None, self.keep_until_published(work, faults)),
        };
        let data_bytes = settled.as_ref().map_or(bytes, Sent::data_bytes);
        self.note_settled(&ledger);
        drop(ledger);
        self.settled.notify_all();
        self.stragglers.settled(item, Instant::now());
        self.lane_items.settled(item, Instant::now());
        self.counters.bytes_settled.fetch_add(data_bytes, Ordering::Relaxed);
        Ok(settled)
    }

    /// Shows what of a batch is stored; returns how much payload it was.
    fn keep_until_published(&self, work: &mut Sent, faults: &[EntryFault]) -> u64 {
        let data_bytes = work.data_bytes();
        if let Sent::Batch(batch) = work {
            batch.faults = faults.to_vec();
            self.show(0, batch.stored_bytes());
        }
        data_bytes
    }

    /// The receiver has given a batch its names, as far as that could be; returns what it was.
    pub(crate) fn published(&self, item: ItemId) -> Result<Sent, WireError> {
        let mut ledger = self.ledger();
        let work = ledger.published(item)?;
        self.note_settled(&ledger);
        drop(ledger);
        self.settled.notify_all();
        Ok(work)
    }

    /// The receiver found an item damaged, or says that it was lost with its lane.
    pub(crate) fn mismatch(&self, item: ItemId, lost: Lost) -> Result<Resend<Sent>, WireError> {
        let mut ledger = self.ledger();
        let settled = match lost {
            Lost::WithLane => ledger.lost(item)?,
            Lost::No => ledger.mismatch(item)?,
        };
        self.note_settled(&ledger);
        drop(ledger);
        self.settled.notify_all();
        self.stragglers.settled(item, Instant::now());
        let (Resend::Again { work, .. } | Resend::GiveUp(work)) = &settled;
        self.counters.bytes_settled.fetch_add(work.data_bytes(), Ordering::Relaxed);
        Ok(settled)
    }

    /// Adds a pack to the plan; waits while it is full.
    pub(crate) fn plan_pack(&self, mut pack: Pack) {
        if self.plan.packs_waiting() > PACKS_OPEN_MAX {
            pack.put_off();
        }
        self.ledger().begin(1);
        let entries = pack.entry_count();
        if self.plan.push_pack(Parcel::Unread(pack), entries).is_err() {
            self.end_work();
        }
    }

    /// Adds a large file to the plan; waits while it is full unless `again`.
    pub(crate) fn plan_file(&self, file: Arc<LargeSource>, when: When) {
        let (bytes, groups) = (file.entry.size, file.groups());
        self.large.lock().unwrap_or_else(PoisonError::into_inner).insert(file.id, Arc::clone(&file));
        self.ledger().begin(u64::from(groups.count(bytes)));
        match when {
            When::Room => drop(self.plan.push_file(file, bytes, groups)),
            When::Now => self.plan.push_file_again(file, bytes),
        }
    }

    /// Adds a pack without waiting: something turned out to be needed after all.
    pub(crate) fn plan_now(&self, parcel: Parcel) {
        self.ledger().begin(1);
        self.plan.push_again(Work::Pack(parcel));
    }

    /// Takes the packs back that were to be read ahead and have not been.
    pub(crate) fn take_back_read_ahead(&self) -> Vec<Pack> {
        let ahead =
            |parcel: &Parcel| matches!(parcel, Parcel::Unread(pack) if pack.basis == Basis::ReadAhead);
        let taken = self.plan.take_back(ahead);
        taken.iter().for_each(|_parcel| self.end_work());
        let packs = taken.into_iter().filter_map(|parcel| match parcel {
            Parcel::Unread(pack) => Some(pack),
            Parcel::Read(_) => None,
        });
        packs.collect()
    }

    /// One piece of planned work has produced what it will; tells the receiver if that was all.
    pub(crate) fn end_work(&self) {
        let mut ledger = self.ledger();
        ledger.end();
        self.note_settled(&ledger);
        self.announce(&mut ledger);
    }

    fn note_settled(&self, ledger: &SenderTransfer<Sent>) {
        if ledger.is_settled() {
            self.all_settled.notify_all();
        }
    }

    /// Waits until all that was planned is settled, or the push is being stopped. For who withholds the end.
    pub(crate) fn wait_until_settled(&self) {
        let open = |ledger: &mut SenderTransfer<Sent>| !ledger.is_settled() && !self.is_stopping();
        drop(self.all_settled.wait_while(self.ledger(), open).unwrap_or_else(PoisonError::into_inner));
    }

    /// There is something to do when all is settled, before the receiver may finish.
    pub(crate) fn withhold_end(&self) {
        self.ledger().withhold();
    }

    /// That has been done.
    pub(crate) fn release_end(&self) {
        let mut ledger = self.ledger();
        ledger.release();
        self.announce(&mut ledger);
    }

    /// The scan and the offers are through.
    pub(crate) fn end_plan(&self) {
        self.plan.end();
        let mut ledger = self.ledger();
        ledger.plan_ended();
        self.announce(&mut ledger);
    }

    /// Tells the receiver when everything is on its way.
    pub(crate) fn announce(&self, ledger: &mut SenderTransfer<Sent>) {
        if let Some(message) = ledger.announcement() {
            self.observer.on(&Event::Flushing);
            self.send(message);
        }
    }

    /// When all work has been handed out: has what is late on a lane that is `stuck` read and sent again, for lanes that
    /// are idle.
    pub(crate) fn send_late_again(&self, stuck: impl Fn(usize) -> bool) {
        if !self.ledger().is_all_issued() {
            return;
        }
        for chunk in self.stragglers.late(Instant::now(), stuck) {
            // nothing begins by that: the push may end while it is being read
            self.counters.repeated.fetch_add(1, Ordering::Relaxed);
            self.plan.push_again(Work::Group(chunk.file, chunk.span));
        }
    }

    /// Puts a control message on its way.
    pub(crate) fn send(&self, message: ToReceiver) {
        // the queue is closed only when the session is over
        let _session_over = self.outgoing.send(message);
    }

    /// A file was at the target already; it counts as moved if an earlier session has brought it.
    pub(crate) fn skipped(&self, path: &RelPath, look: Look) {
        let bytes = look.bytes;
        if self.book().confirm_earlier(path, look) {
            return self.moved(&Moved { files: 1, whole_bytes: bytes, bytes, shown: 0 });
        }
        self.counters.skipped.fetch_add(1, Ordering::Relaxed);
        self.observer.on(&Event::Skipped { files: 1, bytes });
    }

    /// Groups of a file of `bytes` came in an earlier transfer.
    pub(crate) fn resumed(&self, held: &[Option<Cv>], bytes: u64) {
        let there = (0..).zip(held).filter(|(_, cv)| cv.is_some());
        let spans = there.filter_map(|(index, _)| GroupSpan::of(bytes, index));
        let bytes = spans.map(|span| u64::from(span.len)).sum();
        self.counters.resumed.fetch_add(bytes, Ordering::Relaxed);
        self.observer.on(&Event::Skipped { files: 0, bytes });
    }

    /// The receiver has said that something is at the target.
    pub(crate) fn moved(&self, moved: &Moved) {
        let Moved { files, whole_bytes, bytes, shown } = *moved;
        self.counters.files.fetch_add(files, Ordering::Relaxed);
        self.counters.whole_bytes.fetch_add(whole_bytes, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.show(files, bytes.saturating_sub(shown));
    }

    /// Tells the user what is at the target, whether it has its name or not.
    fn show(&self, files: u64, bytes: u64) {
        self.counters.bytes_stored.fetch_add(bytes, Ordering::Relaxed);
        self.observer.on(&Event::Stored { files, bytes });
    }

    /// A group of another version at the target is the same.
    pub(crate) fn matched(&self, bytes: u64) {
        self.counters.matched.fetch_add(bytes, Ordering::Relaxed);
        self.observer.on(&Event::Skipped { files: 0, bytes });
    }

    /// One file or directory failed; the rest goes on.
    pub(crate) fn fail(&self, error: &FileError) {
        self.counters.failed.fetch_add(1, Ordering::Relaxed);
        self.counters.unread.fetch_add(u64::from(error.is_unread()), Ordering::Relaxed);
        self.counters.unplaced.fetch_add(u64::from(error.is_unplaced()), Ordering::Relaxed);
        let message = error.to_string();
        if self.book().tell(&message) {
            self.observer.on(&Event::Failed { message });
        }
    }

    /// Something of the source could not be seen.
    pub(crate) fn fail_scan(&self, error: ScanError) {
        if matches!(error, ScanError::Vanished { .. }) {
            self.counters.vanished.fetch_add(1, Ordering::Relaxed);
        }
        self.counters.scan_errors.fetch_add(1, Ordering::Relaxed);
        self.fail(&FileError::Scan(error));
    }

    /// A large file failed on this side: nothing of it may appear at the target.
    /// One that has come to its end stays as it was told.
    pub(crate) fn fail_large(&self, id: FileId, error: &FileError) {
        if let Some(file) = self.end_large(id) {
            file.kill();
            self.fail(error);
            self.send(ToReceiver::Abandon { file: id.0 });
        }
    }

    /// A large file has come to its end. It comes to one only: who is given the file tells what became of it.
    pub(crate) fn end_large(&self, id: FileId) -> Option<Arc<LargeSource>> {
        let ended = self.large.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)?;
        let ledger = self.ledger();
        if ended.has_begun() {
            self.large_begun.fetch_sub(1, Ordering::Relaxed);
        }
        drop(ledger);
        self.settled.notify_all();
        Some(ended)
    }

    /// Books the moment of the first data byte.
    pub(crate) fn note_first_byte(&self) {
        if self.first_byte_us.load(Ordering::Relaxed) > 0 {
            return;
        }
        let elapsed = self.started.elapsed();
        let micros = micros(elapsed).max(1);
        if self.first_byte_us.compare_exchange(0, micros, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // set once, by the one who was first
            let _set = self.before_first_byte.set((self.read_clock.times(), self.lane_clock.times()));
            self.observer.on(&Event::FirstByte(elapsed));
        }
    }

    /// Books the moment at which a lane had taken all that it was given.
    pub(crate) fn note_handed_over(&self, bytes: u32, copy: ChunkCopy) {
        self.counters.bytes_handed_over.fetch_add(u64::from(bytes), Ordering::Relaxed);
        if copy == ChunkCopy::First {
            self.handed_over_us.fetch_max(micros(self.started.elapsed()), Ordering::Relaxed);
        }
    }

    /// When a lane last took data that was not on its way already, after the start.
    pub(crate) fn handed_over(&self) -> Option<Duration> {
        let micros = self.handed_over_us.load(Ordering::Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// What readers and lanes have booked since the first data byte: before, they waited for the dial.
    pub(crate) fn stage_times(&self) -> (StageTimes, StageTimes) {
        let (read, lane) = self.before_first_byte.get().copied().unwrap_or_default();
        (self.read_clock.times().since(&read), self.lane_clock.times().since(&lane))
    }

    /// When the first data byte was handed to a lane, after the start.
    pub(crate) fn first_byte(&self) -> Option<Duration> {
        let micros = self.first_byte_us.load(Ordering::Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// An id for another large file.
    pub(crate) fn fresh_file_id(&self) -> FileId {
        FileId(self.next_file.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes all threads stop soon.
    pub(crate) fn stop(&self) {
        let ledger = self.ledger();
        self.stopping.store(true, Ordering::Release);
        drop(ledger);
        self.settled.notify_all();
        self.all_settled.notify_all();
        self.plan.abandon();
        self.pool.close();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Whether to wait for room in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Wait: the scan can pause.
    Room,
    /// Do not: a reader must never wait for readers.
    Now,
}

/// Small entries that wait to be read: so far the scan may run ahead, to bridge its pauses and to tell the user how much
/// there is. Memory at worst: about 200 bytes and the name each.
pub(crate) const ENTRIES_WAITING_MAX: usize = 262_144;
/// Packs that wait with their directories open.
const PACKS_OPEN_MAX: usize = 16;
/// Large files that wait: enough to find the largest early, few enough to be no burden.
pub(crate) const FILES_WAITING_MAX: usize = 65_536;

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use tokio::sync::mpsc::unbounded_channel;
    use zmove_scan::{ScanConfig, ScanItem, ScanRoot, scan};
    use zmove_types::{GROUP_BYTES, NoObserver};

    use super::*;
    use crate::plan::planner::large_source;
    use crate::read::source::SourceDirectory;

    #[test]
    fn readers_go_from_the_last_and_come_back_once() {
        let readers = Headcount::default();
        assert_eq!(readers.want(4), 0);
        assert_eq!(readers.want(2), 4);
        assert!(!readers.may_go(2), "the last goes first");
        assert!(readers.may_go(3) && !readers.may_go(1));
        assert_eq!(readers.want(4), 3);
        assert!(!readers.may_go(3) && !readers.may_go(2));
    }

    #[test]
    fn readers_that_cannot_be_started_do_not_count() {
        let readers = Headcount::default();
        assert_eq!(readers.want(2), 0);
        assert_eq!(readers.want(5), 2);
        readers.stop_before(3);
        assert!(!readers.may_go(2), "as many as there are are wanted");
        assert_eq!(readers.want(5), 3, "they are tried again");
    }

    #[test]
    fn a_file_that_nothing_was_told_of_is_missed() {
        let counters =
            Counters { found: 7.into(), files: 4.into(), skipped: 2.into(), ..Counters::default() };
        assert_eq!(counters.unaccounted(), 1);
        counters.files.fetch_add(1, Ordering::Relaxed);
        assert_eq!(counters.unaccounted(), 0);
        let failed = Counters { found: 1.into(), failed: 1.into(), ..Counters::default() };
        assert_eq!(failed.unaccounted(), 0, "the exit code tells already");
    }

    /// A large file of the scan that is not there any more, `count` times over.
    pub(crate) fn vanished(shared: &Shared, count: usize) -> Vec<Arc<LargeSource>> {
        let home = tempfile::tempdir().unwrap();
        std::fs::File::create(home.path().join("f")).unwrap().set_len(3 * GROUP_BYTES).unwrap();
        let root = ScanRoot { source: home.path().to_owned(), prefix: RelPath::root() };
        let items: Vec<_> = scan(vec![root], &ScanConfig::default()).receiver().iter().collect();
        let batch = items.iter().find_map(|item| match item {
            ScanItem::Batch(batch) => Some(batch),
            _ => None,
        });
        let batch = batch.expect("there is a file");
        let directory = SourceDirectory::held_open(&batch.directory);
        let fresh = || Arc::new(large_source(shared.fresh_file_id(), &directory, batch.entries[0].clone()));
        std::iter::repeat_with(fresh).take(count).collect()
    }

    /// Two readers find out at once, each at its group, that the file has gone.
    #[test]
    fn a_large_file_that_fails_at_two_groups_at_once_is_told_once() {
        let (outgoing, mut messages) = unbounded_channel();
        let shared = Shared::new(
            SenderConfig::default(),
            Version::NEWEST,
            Arc::new(NoObserver),
            outgoing,
            Instant::now(),
        );
        let files = vanished(&shared, FILES);
        files.iter().for_each(|file| shared.plan_file(Arc::clone(file), When::Now));
        let arrived = AtomicUsize::new(0);
        let fail_all = || {
            for (round, file) in files.iter().enumerate() {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < 2 * (round + 1) {
                    std::hint::spin_loop();
                }
                shared.fail_large(file.id, &file.open(shared.config.direct).unwrap_err());
            }
        };
        thread::scope(|scope| [scope.spawn(fail_all), scope.spawn(fail_all)].map(drop));
        assert_eq!(shared.counters.failed.load(Ordering::Relaxed), FILES as u64);
        assert!(files.iter().all(|file| file.is_dead()));
        let abandoned = std::iter::from_fn(|| messages.try_recv().ok());
        let abandoned: HashSet<_> = abandoned.map(|message| format!("{message:?}")).collect();
        assert_eq!(abandoned.len(), FILES);
    }

    const FILES: usize = 2000;

    /// They may wait for a flush at the target: each is remembered here and open there.
    #[test]
    fn no_large_file_is_begun_while_too_many_have_no_end() {
        let (outgoing, _messages) = unbounded_channel();
        let config = SenderConfig::default();
        let shared = Shared::new(config, Version::NEWEST, Arc::new(NoObserver), outgoing, Instant::now());
        let count = usize::try_from(FILES_BEGUN_MAX).unwrap();
        let files = vanished(&shared, count + 1);
        files.iter().for_each(|file| shared.plan_file(Arc::clone(file), When::Now));
        let (last, begun) = files.split_last().unwrap();
        for file in begun {
            assert!(!shared.is_full(&shared.ledger(), Some(file)));
            let span = GroupSpan::of(file.entry.size, 0).unwrap();
            let item = shared.issue(Sent::Group(Arc::clone(file), span, Travels::Whole), 0).unwrap();
            assert!(matches!(shared.stored(item, &[]), Ok(Some(_))));
        }
        let full = |file| shared.is_full(&shared.ledger(), file);
        assert_eq!([Some(&**last), Some(&*begun[0]), None].map(full), [true, false, false]);
        shared.end_large(begun[0].id).unwrap();
        assert!(!full(Some(last)));
        // one that has failed meanwhile takes no place
        shared.end_large(last.id).unwrap();
        let span = GroupSpan::of(last.entry.size, 0).unwrap();
        shared.issue(Sent::Group(Arc::clone(last), span, Travels::Whole), 0).unwrap();
        assert_eq!(shared.large_begun.load(Ordering::Relaxed), FILES_BEGUN_MAX - 1);
    }
}
