//! The planner: one thread that turns what the scan finds into work, asking the receiver first where files may be there.
//!
//! An empty target needs everything, so entries go straight to the plan. Otherwise regular files are offered by the
//! thousand, many offers at once; directories and links are always sent, because placing one that is there is no work.
//! Until the target is known a little is sent as a guess, which saves a round trip where it is right.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, never, select};
use zmove_scan::{Entry, EntryBatch, EntryKind, Scan, ScanItem};
use zmove_types::{Cv, Event, FileId, GROUP_BYTES, GroupSpan, RelPath, Root};
use zmove_wire::limits::{GUESSED_BYTES_MAX, GUESSED_ENTRIES_MAX, SYMLINK_BYTES_MAX};
use zmove_wire::{Compare, TargetState, ToReceiver};

use crate::control::replies::{QueuedReply, Replies, Reply};
use crate::error::FileError;
use crate::mirror::{self, Mirror};
use crate::plan::offers::{Answered, Offering};
use crate::plan::pack::{Basis, Pack, PackEntry, PackGroup, Packer, Parcel};
use crate::push::run::Look;
use crate::read::read_ahead::Unread;
use crate::read::source::{LargeSource, SourceDirectory};
use crate::shared::{Shared, When};

/// What the planner is to do.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) compare: Compare,
    /// Set where the target becomes a mirror.
    pub(crate) mirror: Option<Mirror>,
}

/// Plans until the scan has ended and every offer is answered; then makes a mirror, if that is asked for.
pub(crate) fn plan_all(shared: &Shared, scan: &Scan, replies: &Replies, task: &Task) {
    let (unread_in, unread) = crossbeam_channel::unbounded();
    let mut planner = Planner {
        shared,
        packer: Packer::new(shared.config.batch_files_max),
        guess: Some(Guess::new(task.compare, unread_in)),
        offering: None,
    };
    planner.take_scan(scan, replies);
    planner.take_unread(&unread);
    planner.take_last_replies(&replies.offers);
    planner.flush_pack();
    // where nothing was there nothing is there alone
    let mirror = task.mirror.as_ref().filter(|_| planner.offering.is_some());
    mirror.inspect(|_| shared.withhold_end());
    shared.end_plan();
    if let Some(mirror) = mirror {
        shared.wait_until_settled();
        mirror::run(shared, &replies.mirror, mirror);
        shared.release_end();
    }
}

/// How long a pack that is not full waits for more while the scan finds nothing.
const PACK_PATIENCE: Duration = Duration::from_millis(20);

struct Planner<'a> {
    shared: &'a Shared,
    packer: Packer,
    /// Set while the target is not known.
    guess: Option<Guess>,
    /// Set while files have to be offered.
    offering: Option<Offering>,
}

/// What is planned before the target is known, and what waits for that.
struct Guess {
    /// Of what is planned now.
    basis: Basis,
    /// What may still be sent.
    sent: Allowance,
    /// What may still be read.
    read: Allowance,
    held: Vec<(SourceDirectory, Entry)>,
    /// Where readers put what they cannot read of what is planned now.
    unread: Sender<Unread>,
}

#[derive(Clone, Copy, Default)]
struct Allowance {
    entries: usize,
    bytes: u64,
}

impl Planner<'_> {
    fn take_scan(&mut self, scan: &Scan, replies: &Replies) {
        let (items, nothing, known) = (scan.receiver(), never(), never());
        let mut ended = false;
        while !self.shared.is_stopping() && (!ended || self.guess.is_some()) {
            let items = if ended || self.is_full() { &nothing } else { items };
            let state = if self.guess.is_some() { &replies.state } else { &known };
            select! {
                recv(items) -> item => match item {
                    Ok(item) => self.take_item(item),
                    Err(_) => ended = true,
                },
                recv(state) -> state => match state {
                    Ok(state) => self.learn(state),
                    Err(_) => break,
                },
                recv(replies.offers) -> reply => match reply {
                    Ok(reply) => self.take_reply(reply.take()),
                    Err(_) => break,
                },
                default(PACK_PATIENCE) => {
                    self.flush_pack();
                    self.flush_offers();
                }
            }
        }
        self.shared.observer.on(&Event::ScanEnded);
    }

    /// Whether the scan has to wait.
    fn is_full(&self) -> bool {
        self.offering.as_ref().is_some_and(|offering| !offering.may_offer())
            || self.guess.as_ref().is_some_and(|guess| !guess.held.is_empty())
    }

    /// The target is known now: what was held goes its way.
    fn learn(&mut self, state: TargetState) {
        self.flush_pack();
        let held = self.guess.take().map(|guess| guess.held);
        self.offering = (state == TargetState::Populated).then(Offering::default);
        for read in self.shared.read_ahead.close() {
            match self.offering {
                None => self.shared.plan_now(Parcel::Read(Box::new(read))),
                Some(_) => self.plan_anew(read.pack),
            }
        }
        if self.offering.is_some() {
            self.shared.take_back_read_ahead().into_iter().for_each(|pack| self.plan_anew(pack));
        }
        for (directory, entry) in held.unwrap_or_default() {
            self.take_entry(&directory, entry);
        }
    }

    /// Takes the entries of a pack as if they came from the scan.
    fn plan_anew(&mut self, pack: Pack) {
        for PackGroup { directory, entries } in pack.groups {
            for entry in entries {
                match entry {
                    PackEntry::File(entry) => self.take_entry(&directory, entry),
                    entry => self.pack(&directory, entry),
                }
            }
        }
    }

    /// Files that could not be read before it was known whether they are needed: now they are asked about, or needed.
    fn take_unread(&mut self, unread: &Receiver<Unread>) {
        // the sending ends go with the last pack that was planned on a guess
        while !self.shared.is_stopping() {
            match unread.recv_timeout(PACK_PATIENCE) {
                Ok((directory, entry)) => self.take_entry(&directory, entry),
                Err(RecvTimeoutError::Timeout) => {
                    self.flush_pack();
                    self.flush_offers();
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take_last_replies(&mut self, offers: &Receiver<QueuedReply>) {
        self.flush_offers();
        while !self.shared.is_stopping() && self.offering.as_ref().is_some_and(|o| !o.is_done()) {
            match offers.recv_timeout(PACK_PATIENCE) {
                Ok(reply) => {
                    self.take_reply(reply.take());
                    self.flush_offers();
                }
                Err(RecvTimeoutError::Timeout) => self.flush_pack(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    fn take_item(&mut self, item: ScanItem) {
        match item {
            ScanItem::Root { directory, metadata } => {
                self.pack(&SourceDirectory::held_open(&directory), PackEntry::Itself(metadata));
            }
            ScanItem::Batch(batch) => self.take_batch(batch),
            ScanItem::Error(error) => self.shared.fail_scan(error),
        }
    }

    fn take_batch(&mut self, batch: EntryBatch) {
        let directory = SourceDirectory::held_open(&batch.directory);
        let regular = batch.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File));
        let (files, bytes) = regular.fold((0, 0), |(files, bytes), entry| (files + 1, bytes + entry.size));
        self.shared.counters.found.fetch_add(files, Ordering::Relaxed);
        self.shared.observer.on(&Event::Found { files, bytes });
        for entry in batch.entries {
            self.take_entry(&directory, entry);
        }
    }

    fn take_entry(&mut self, directory: &SourceDirectory, entry: Entry) {
        match &entry.kind {
            EntryKind::Special => {
                self.shared.counters.specials.fetch_add(1, Ordering::Relaxed);
            }
            EntryKind::Symlink(target) if target.is_empty() || target.len() > SYMLINK_BYTES_MAX => {
                self.shared.fail(&FileError::LinkTarget { path: directory.display(&entry.name) });
            }
            EntryKind::File if GroupSpan::count(entry.size).is_none() => {
                self.shared.fail(&FileError::TooLarge { path: directory.display(&entry.name) });
            }
            EntryKind::File if self.offering.is_some() => self.offer(directory, entry),
            EntryKind::File => {
                if let Some(entry) = self.admit(directory, entry) {
                    self.need(directory, entry);
                }
            }
            _ => self.need(directory, entry),
        }
    }

    /// Gives a file back that is to be sent or read; while the target is not known, others are kept for later.
    fn admit(&mut self, directory: &SourceDirectory, entry: Entry) -> Option<Entry> {
        let Some(guess) = &self.guess else { return Some(entry) };
        let (before, basis) = (guess.basis, guess.basis_for(entry.size));
        if basis.is_some_and(|basis| basis != before) {
            self.flush_pack();
        }
        self.guess.as_mut()?.admit(basis, directory, entry)
    }

    /// Puts an entry that must move into the plan.
    fn need(&mut self, directory: &SourceDirectory, entry: Entry) {
        if matches!(entry.kind, EntryKind::File) && entry.size > GROUP_BYTES {
            let id = self.shared.fresh_file_id();
            self.shared.plan_file(Arc::new(large_source(id, directory, entry)), When::Room);
        } else if let Some(entry) = PackEntry::from_scan(entry) {
            self.pack(directory, entry);
        }
    }

    fn pack(&mut self, directory: &SourceDirectory, entry: PackEntry) {
        if let Some(pack) = self.packer.add(directory, entry) {
            self.plan(pack);
        }
    }

    fn flush_pack(&mut self) {
        if let Some(pack) = self.packer.take() {
            self.plan(pack);
        }
    }

    fn plan(&self, pack: Pack) {
        let pack = match &self.guess {
            Some(guess) => Pack { basis: guess.basis, unread: Some(guess.unread.clone()), ..pack },
            None => pack,
        };
        self.shared.plan_pack(pack);
    }

    fn offer(&mut self, directory: &SourceDirectory, entry: Entry) {
        let Some(offering) = &mut self.offering else { return };
        offering.add(directory, entry);
        if offering.is_full() {
            self.flush_offers();
        }
    }

    /// Offers what has been gathered, as far as offers may be outstanding.
    fn flush_offers(&mut self) {
        let Some(offering) = &mut self.offering else { return };
        while let Some(offer) = offering.next_offer() {
            self.shared.send(ToReceiver::Offer(offer));
        }
    }

    fn skipped(&self, directory: &SourceDirectory, entry: &Entry) {
        let path = directory.target_path().join(&entry.name).unwrap_or_else(|_| RelPath::root());
        self.shared.skipped(&path, Look::of(entry));
    }

    fn take_reply(&mut self, reply: Reply) {
        let Some(offering) = &mut self.offering else { return };
        let answered = match reply {
            Reply::Held(held) => offering.take_held(&held).into_iter().collect(),
            Reply::Answer(answer) => offering.take_answer(answer),
        };
        for (directory, entry, answered) in answered {
            match answered {
                Answered::Need => self.need(&directory, entry),
                Answered::Compare(root) => self.pack(&directory, PackEntry::Compare(entry, Root(root))),
                Answered::Resume(held) => self.go_on(&directory, entry, held, Vec::new()),
                Answered::Delta { held, there } => self.go_on(&directory, entry, held, there),
                Answered::Skip => self.skipped(&directory, &entry),
            }
        }
    }

    /// Plans the groups of a large file that have not come before; those that another version has `there` are named.
    fn go_on(
        &self,
        directory: &SourceDirectory,
        entry: Entry,
        held: Vec<Option<Cv>>,
        there: Vec<Option<Cv>>,
    ) {
        let mut source = large_source(self.shared.fresh_file_id(), directory, entry);
        if !held.is_empty() {
            self.shared.resumed(&held, source.entry.size);
            source = source.resuming(held);
        }
        self.shared.plan_file(Arc::new(source.comparing(there)), When::Room);
    }
}

impl Guess {
    /// Contents would have to be read for a comparison by them, so nothing is guessed then.
    fn new(compare: Compare, unread: Sender<Unread>) -> Self {
        let (sent, read) = match compare {
            Compare::Quick => (
                Allowance { entries: GUESSED_ENTRIES_MAX, bytes: GUESSED_BYTES_MAX },
                Allowance { entries: READ_AHEAD_ENTRIES_MAX, bytes: READ_AHEAD_BYTES_MAX },
            ),
            Compare::Checksum => Default::default(),
        };
        Self { basis: Basis::Guessed, sent, read, held: Vec::new(), unread }
    }

    /// What becomes of a file of this size; `None`: it is kept. What follows a kept one is kept as well.
    fn basis_for(&self, bytes: u64) -> Option<Basis> {
        if !self.held.is_empty() {
            None
        } else if self.basis == Basis::Guessed && self.sent.has_room(bytes) {
            Some(Basis::Guessed)
        } else {
            (bytes <= GROUP_BYTES && self.read.has_room(bytes)).then_some(Basis::ReadAhead)
        }
    }

    fn admit(&mut self, basis: Option<Basis>, directory: &SourceDirectory, entry: Entry) -> Option<Entry> {
        let Some(basis) = basis else {
            let mut directory = directory.clone();
            directory.put_off();
            self.held.push((directory, entry));
            return None;
        };
        self.basis = basis;
        let allowance = if basis == Basis::Guessed { &mut self.sent } else { &mut self.read };
        allowance.entries -= 1;
        allowance.bytes -= entry.size;
        Some(entry)
    }
}

impl Allowance {
    fn has_room(&self, bytes: u64) -> bool {
        self.entries > 0 && self.bytes >= bytes
    }
}

/// What is read before the target is known: as much as a core reads in a long round trip. Memory at worst: these bytes
/// and the entries' names.
const READ_AHEAD_ENTRIES_MAX: usize = 24_576;
/// See [`READ_AHEAD_ENTRIES_MAX`].
const READ_AHEAD_BYTES_MAX: u64 = 32 << 20;

/// A large file as the reader will want it.
pub(crate) fn large_source(id: FileId, directory: &SourceDirectory, entry: Entry) -> LargeSource {
    let target = directory.target_path().join(&entry.name).unwrap_or_else(|_| RelPath::root());
    let mut directory = directory.clone();
    directory.put_off();
    LargeSource::new(id, directory, entry, target)
}
