//! The planner: one thread that turns the entries found by the scan into work, after asking the receiver about files
//! that may already exist. In an inspection it passes all entries to a [`Listing`] and plans nothing.
//!
//! An empty target needs everything, so entries go straight into the plan. Otherwise the receiver is asked about
//! regular files, thousands per request and with many requests outstanding. Directories and links are always sent,
//! because placing one that already exists costs nothing. Until the state of the target is known, a few entries are
//! sent as a guess. A correct guess saves a round trip.

mod inspecting;
mod rereading;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, never, select};
use zmove_scan::{Entry, EntryBatch, EntryKind, HardLinkedFile, HardLinkedFileId, Scan, ScanItem};
use zmove_types::{Event, GROUP_BYTES, MetadataKinds, RelPath, Root};
use zmove_wire::{
    Compare, Intent, NotKeptReason, Open, Overwrite, Question, Request, TargetState, ToReceiver,
    Verdict,
};

pub(crate) use self::inspecting::inspect_all;
use crate::control::replies::{EntryReply, QueuedReply, Replies};
use crate::inspect::listing::Listing;
use crate::mirror::{self, Mirror, SourceWalk};
use crate::plan::guess::TargetGuess;
use crate::plan::links::{FirstName, LinkFailure, LinkOutcome, Links, NamePlan};
use crate::plan::pack::{Pack, PackEntry, PackGroup, Packer, UnreadFile};
use crate::plan::queue::{Parcel, RoomWait};
use crate::plan::requests::{AnsweredFile, Requests};
use crate::push::feed::PlannerInput;
use crate::push::piece::Piece;
use crate::push::session::Session;
use crate::read::group_values::GroupValues;
use crate::read::source::{SizeAndMtime, SourceDirectory};

/// The task of the planner.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// Whether this is an inspection. An inspection sends nothing, and only asks the receiver how its entries differ
    /// from those of the source.
    pub(crate) inspects: bool,
    /// Whether an inspection compares contents.
    pub(crate) verifies: bool,
    pub(crate) compare: Compare,
    /// Whether files left unchanged at the target count as equal to their source files.
    pub(crate) unchanged_files_are_equal: bool,
    /// How to make the target a mirror of the source, if requested.
    pub(crate) mirror: Option<Mirror>,
    /// The channel of work from a feeder. If set, the sources are not walked.
    pub(crate) fed: Option<Receiver<PlannerInput>>,
    /// How to reread directories that change during the walk. Default: they are not reread.
    pub(crate) reread: Option<SourceWalk>,
}

impl Task {
    /// Returns the task that the opening `open` requests.
    pub(crate) fn of(open: &Open) -> Self {
        // If files are compared by size and time, the receiver compares a link itself when it creates the link.
        let unchanged_files_are_equal =
            open.compare == Compare::Quick || open.overwrite == Overwrite::Differing;
        Self {
            inspects: open.intent == Intent::Inspect,
            verifies: open.verify,
            compare: open.compare,
            unchanged_files_are_equal,
            mirror: None,
            fed: None,
            reread: None,
        }
    }
}

/// Plans work until the scan has ended and every request is answered. Then makes the target a mirror of the sources, if
/// requested.
pub(crate) fn plan_all(
    session: &Session,
    packer: Packer,
    scan: &Scan,
    replies: &Replies,
    task: &Task,
) {
    let (unread_in, unread) = crossbeam_channel::unbounded();
    let guess = TargetGuess::new(task.compare, unread_in);
    let mut planner = Planner {
        guess: Some(guess),
        ..Planner::new(session, task, packer)
    };
    let mut inputs = Inputs {
        replies,
        scan: Some(scan.clone()),
        unread: Some(unread),
    };
    let is_answered =
        |planner: &Planner<'_>| planner.requests.as_ref().is_none_or(Requests::is_done);
    planner.plan_until(&mut inputs, is_answered);
    planner.flush_unlisted();
    let has_links = !planner.links.is_done();
    if has_links {
        // Everything else has been planned, so late items may already be sent again.
        session.in_flight.withhold_end();
        session.in_flight.end_plan();
        // Links are sent once the first names of their files are at the target.
        planner.plan_until(&mut inputs, |planner| {
            planner.links.is_done() && is_answered(planner)
        });
        planner.flush_unlisted();
    }
    // A target that was empty has no extraneous entries.
    let mirror = task.mirror.as_ref().filter(|_| planner.requests.is_some());
    let is_known = planner.reread(&mut inputs);
    mirror.inspect(|_| session.in_flight.withhold_end());
    session.queue.end();
    if let Some(mirror) = mirror {
        session.in_flight.wait_until_settled();
        if is_known {
            mirror::run(session, &replies.counted, mirror);
        } else {
            let why = "directories of the source changed each time they were read";
            session
                .account
                .warn(format!("nothing was removed at the target: {why}"));
        }
    }
    if mirror.is_some() || has_links || planner.is_rereading {
        session.in_flight.release_end();
    }
}

/// The inputs of the planner.
struct Inputs<'a> {
    replies: &'a Replies,
    /// The walk of the sources, or `None` after the walk has ended.
    scan: Option<Scan>,
    /// Files that could not be read while it was unknown whether the target needs them. The planner asks the receiver
    /// about these files, or sends them if the target is empty. The last sender of this channel is dropped with the
    /// last pack that was planned as a guess.
    unread: Option<Receiver<UnreadFile>>,
}

impl Inputs<'_> {
    /// Returns whether the scan and the other inputs have ended, so that only replies are still expected.
    fn have_ended(&self) -> bool {
        self.scan.is_none() && self.unread.is_none()
    }
}

/// Files already at the target, gathered to be read for the manifest.
#[derive(Default)]
struct Unlisted {
    files: Vec<(SourceDirectory, Entry)>,
    bytes: u64,
}

impl Unlisted {
    /// Adds a file. Returns whether enough files have been gathered for one reader.
    fn add(&mut self, directory: &SourceDirectory, entry: &Entry) -> bool {
        self.files.push((directory.closed(), entry.clone()));
        self.bytes += entry.size;
        self.files.len() >= UNLISTED_FILES || self.bytes >= UNLISTED_BYTES
    }
}

/// Maximum number of files that a reader takes at a time. The number is large enough to make queueing cheap, and small
/// enough to occupy all readers.
const UNLISTED_FILES: usize = 128;
/// Number of bytes after which no more files are added to the work for one reader. Chosen for the same reasons as
/// [`UNLISTED_FILES`].
const UNLISTED_BYTES: u64 = 16 << 20;

/// How long a pack that is not full waits for more entries while the scan finds nothing.
const PACK_PATIENCE: Duration = Duration::from_millis(20);

struct Planner<'a> {
    session: &'a Session,
    task: &'a Task,
    packer: Packer,
    /// Set while the state of the target is unknown.
    guess: Option<TargetGuess>,
    /// Files to ask the receiver about. `None` while the receiver need not be asked.
    requests: Option<Requests>,
    /// Set in an inspection.
    listing: Option<Listing<'a>>,
    links: Links,
    unlisted: Unlisted,
    /// Size in bytes of the files to be sent, as far as it is known before the files are read.
    needed_bytes: u64,
    /// Whether directories are being reread. Most files at the target have then already been counted.
    is_rereading: bool,
}

impl<'a> Planner<'a> {
    fn new(session: &'a Session, task: &'a Task, packer: Packer) -> Self {
        Self {
            session,
            task,
            packer,
            guess: None,
            requests: None,
            listing: None,
            links: Links::default(),
            unlisted: Unlisted::default(),
            needed_bytes: 0,
            is_rereading: false,
        }
    }

    /// Plans the results of the scan and of the receiver's replies, until the inputs have ended and `is_done` returns
    /// `true`.
    fn plan_until(&mut self, inputs: &mut Inputs<'_>, is_done: impl Fn(&Self) -> bool) {
        let nothing = never();
        let not_fed = never();
        let none_unread = never();
        while !self.session.in_flight.is_stopping() {
            if inputs.have_ended() && self.guess.is_none() {
                self.flush_requests();
                if is_done(self) {
                    break;
                }
            }
            let scan = inputs.scan.as_ref().filter(|_| !self.is_full());
            let fed = self.task.fed.as_ref().filter(|_| scan.is_some());
            let unread = inputs.unread.as_ref().filter(|_| self.guess.is_none());
            let hashed = self.own_hashes();
            select! {
                recv(scan.map_or(&nothing, Scan::receiver)) -> item => match item {
                    Ok(item) => self.handle_scan_item(item, None),
                    Err(_) => self.end_scan(inputs),
                },
                recv(fed.unwrap_or(&not_fed)) -> fed => match fed {
                    Ok(fed) => self.handle_input(fed),
                    Err(_) => self.end_scan(inputs),
                },
                // The feeder may wait for these files before it sends more input.
                recv(unread.unwrap_or(&none_unread)) -> file => match file {
                    Ok(UnreadFile { directory, entry }) => self.handle_entry(&directory, entry),
                    Err(_) => inputs.unread = None,
                },
                recv(hashed) -> done => self.handle_own_hashes(done),
                recv(inputs.replies.counted) -> reply => match reply {
                    Ok(reply) => self.handle_hashes(reply),
                    Err(_) => break,
                },
                recv(inputs.replies.entries) -> reply => match reply {
                    Ok(reply) => self.handle_reply(reply),
                    Err(_) => break,
                },
                default(PACK_PATIENCE) => {
                    self.flush_pack();
                    self.flush_requests();
                    self.replace_failed_names(&inputs.replies.entries);
                }
            }
        }
        self.flush_pack();
    }

    fn end_scan(&self, inputs: &mut Inputs<'_>) {
        if let Some(scan) = inputs.scan.take()
            && !self.is_rereading
        {
            self.session.account.end_scan(&scan.parts());
        }
    }

    /// Returns whether a limit is reached, so that the scan must pause.
    fn is_full(&self) -> bool {
        let may_ask = self.listing.as_ref().is_none_or(Listing::may_ask)
            && self.requests.as_ref().is_none_or(Requests::may_ask);
        let has_held = |guess: &TargetGuess| !guess.held.is_empty();
        !may_ask || self.guess.as_ref().is_some_and(has_held) || self.links.is_full()
    }

    /// Sets the state of the target, and continues with the entries that were held back until it was known.
    fn set_target_state(&mut self, state: TargetState) {
        self.flush_pack();
        let held = self.guess.take().map(|guess| guess.held);
        self.requests = (state == TargetState::Populated).then(Requests::default);
        if self.requests.is_some() {
            // The receiver is now asked about the entries that were already planned.
            self.needed_bytes = 0;
        }
        for read in self.session.read_ahead.close() {
            match self.requests {
                None => self.session.queue.add_now(Parcel::Read(Box::new(read))),
                Some(_) => self.plan_anew(read.pack),
            }
        }
        if self.requests.is_some() {
            self.session
                .queue
                .take_back_read_ahead()
                .into_iter()
                .for_each(|pack| self.plan_anew(pack));
        }
        for (directory, entry) in held.unwrap_or_default() {
            self.handle_entry(&directory, entry);
        }
    }

    /// Handles the entries of a pack as if the scan had just found them.
    fn plan_anew(&mut self, pack: Pack) {
        for PackGroup { directory, entries } in pack.groups {
            for entry in entries {
                match entry {
                    PackEntry::Within(entry) if entry.kind == EntryKind::File => {
                        self.handle_entry(&directory, entry);
                    }
                    entry => self.pack(&directory, entry),
                }
            }
        }
    }

    /// Replaces first names that have failed with the next names of their files. If nothing is in flight, every first
    /// name for which other names still wait has failed.
    fn replace_failed_names(&mut self, entries: &Receiver<QueuedReply>) {
        let entering = self.session.entering.lock();
        let is_idle = !self.links.is_done()
            && self.requests.as_ref().is_none_or(Requests::is_done)
            && self.session.in_flight.is_idle()
            && entries.is_empty();
        drop(entering);
        if is_idle {
            self.links
                .next_first_names()
                .into_iter()
                .for_each(|(directory, entry)| self.plan_needed(&directory, entry));
            self.flush_pack();
        }
    }

    fn handle_input(&mut self, fed: PlannerInput) {
        match fed {
            PlannerInput::Items(piece, items) => items
                .into_iter()
                .for_each(|item| self.handle_scan_item(item, Some(&piece))),
            PlannerInput::Range(piece, directory, entry, groups) => {
                let directory = SourceDirectory::held_open(&directory).of_piece(Some(&piece));
                let queue = &self.session.queue;
                let source = queue.large_source(&directory, *entry).restricted_to(groups);
                queue.add_file(source, RoomWait::Wait);
            }
            PlannerInput::CommittedLarge => self.session.account.totals.found.add(1),
        }
    }

    fn handle_scan_item(&mut self, item: ScanItem, piece: Option<&Arc<Piece>>) {
        match item {
            ScanItem::Root {
                directory,
                metadata,
                properties,
            } => {
                let directory = SourceDirectory::held_open(&directory).of_piece(piece);
                self.plan_itself(&directory, PackEntry::Itself(metadata, properties));
            }
            ScanItem::Batch(batch) => self.handle_batch(batch, piece),
            // The error has already been reported.
            ScanItem::Error(_) if self.is_rereading && self.has_scan_errors() => {}
            ScanItem::Error(error) => self.session.account.fail_scan(error),
        }
    }

    fn handle_batch(&mut self, batch: EntryBatch, piece: Option<&Arc<Piece>>) {
        let directory = SourceDirectory::held_open(&batch.directory).of_piece(piece);
        let regular = batch
            .entries
            .iter()
            .filter(|entry| matches!(entry.kind, EntryKind::File));
        let (files, bytes) = regular.fold((0, 0), |(files, bytes), entry| {
            (files + 1, bytes + entry.size)
        });
        if self.listing.is_some() {
            let found = Event::Found { files, bytes };
            self.session.account.report(found);
        } else if !self.is_rereading {
            self.session.account.find(files, bytes);
        }
        for entry in batch.entries {
            match directory.measured(entry) {
                Ok(entry) => self.handle_entry(&directory, entry),
                Err(error) => self.session.account.fail(&error),
            }
        }
    }

    fn handle_entry(&mut self, directory: &SourceDirectory, entry: Entry) {
        if self.is_rereading && self.is_left_out(&entry) {
            return;
        }
        if !self
            .session
            .account
            .can_carry(&self.session.extras, directory, &entry)
        {
            // An entry that is never sent has not failed.
            let left_out = matches!(entry.kind, EntryKind::Special(_));
            directory
                .piece()
                .filter(|_| left_out)
                .into_iter()
                .for_each(|piece| piece.leave_special());
            return;
        }
        // Another sender may send the other names of the file.
        let is_alone = directory.piece().is_some();
        let shared = entry
            .shared
            .filter(|_| self.session.extras.wants_links() && !is_alone);
        if self.listing.is_some() {
            return self.list_entry(directory, entry, shared);
        }
        let is_special = matches!(entry.kind, EntryKind::Special(_));
        if let Some(guess) = self
            .guess
            .as_mut()
            .filter(|_| is_special || shared.is_some())
        {
            // Special files and files with several names are never sent as a guess.
            return guess.hold(directory, entry);
        }
        match shared {
            Some(shared) => self.plan_name(directory, entry, shared),
            None => self.plan_single(directory, entry),
        }
    }

    /// Plans a name of a file that may have other names.
    fn plan_name(&mut self, directory: &SourceDirectory, entry: Entry, shared: HardLinkedFile) {
        let bytes = entry.size;
        match self.links.take(directory, entry, shared) {
            NamePlan::File(entry) => self.plan_single(directory, entry),
            NamePlan::Copy(entry, why) => {
                self.lacks_link(directory, &entry, why);
                self.plan_single(directory, entry);
            }
            NamePlan::Link(entry, first) => {
                self.count_found_again(entry.size);
                self.pack(directory, PackEntry::Link(entry, first));
            }
            NamePlan::Waits => self.count_found_again(bytes),
        }
    }

    fn lacks_link(&self, directory: &SourceDirectory, entry: &Entry, why: NotKeptReason) {
        let path = directory.target_of(&entry.name);
        self.session.account.count_lacking(
            &self.session.extras,
            &path,
            &[(MetadataKinds::LINKS, why)],
        );
    }

    fn handle_link_outcome(&mut self, word: LinkOutcome) {
        match word {
            LinkOutcome::FirstPublished(id, first) => self.plan_links(id, first),
            LinkOutcome::LinksSettled(links) => self.links.note_links_settled(links),
            LinkOutcome::FirstChanged(directory, entry) => self.plan_needed(&directory, entry),
            LinkOutcome::LinkFailed(directory, entry, tried, code) => {
                let why = LinkFailure::of(code);
                why.lack()
                    .inspect(|why| self.lacks_link(&directory, &entry, *why));
                let id = entry.shared.map(|shared| shared.id);
                let part = match (why, id) {
                    (LinkFailure::Lost | LinkFailure::Full(_), Some(id)) => {
                        self.links.replan_unlinked(&directory, entry, id, &tried)
                    }
                    _ => NamePlan::File(Entry {
                        shared: None,
                        ..entry
                    }),
                };
                let cannot_be = why.lack().is_some();
                match part {
                    // An earlier push may have created a copy. Entries that are reread were counted when they were
                    // found.
                    NamePlan::File(entry) | NamePlan::Copy(entry, _)
                        if cannot_be && !self.is_rereading =>
                    {
                        self.plan_single(&directory, entry)
                    }
                    NamePlan::File(entry) => self.plan_needed(&directory, entry),
                    NamePlan::Copy(entry, lack) => {
                        if !cannot_be {
                            self.lacks_link(&directory, &entry, lack);
                        }
                        self.plan_needed(&directory, entry);
                    }
                    NamePlan::Link(entry, first) => {
                        self.pack(&directory, PackEntry::Link(entry, first))
                    }
                    NamePlan::Waits => {}
                }
            }
        }
    }

    /// Plans the remaining names of a file if one of its names stays unchanged at the target. If that name was not
    /// compared, its contents are unknown, and the remaining names are not linked to it.
    fn skipped_name(&mut self, id: HardLinkedFileId, path: RelPath) {
        if self.task.unchanged_files_are_equal {
            return self.plan_links(id, FirstName { path, root: None });
        }
        for (directory, entry) in self.links.forget(id) {
            self.plan_needed(
                &directory,
                Entry {
                    shared: None,
                    ..entry
                },
            );
        }
    }

    /// Plans the links to a file that is at the target.
    fn plan_links(&mut self, id: HardLinkedFileId, first: FirstName) {
        let (first, names) = self.links.note_first_published(id, first);
        for (directory, entry) in names {
            self.pack(&directory, PackEntry::Link(entry, Arc::clone(&first)));
        }
    }

    /// Plans an entry that is sent independently of others.
    fn plan_single(&mut self, directory: &SourceDirectory, entry: Entry) {
        if entry.kind != EntryKind::File {
            self.plan_needed(directory, entry);
        } else if let Some(requests) = &mut self.requests {
            requests.add(directory, entry);
            if requests.is_full() {
                self.flush_requests();
            }
        } else if let Some(entry) = self.admit(directory, entry) {
            self.plan_needed(directory, entry);
        }
    }

    /// Returns `entry` if it is to be sent or read now. While the state of the target is unknown, keeps an entry that
    /// must wait and returns `None`.
    fn admit(&mut self, directory: &SourceDirectory, entry: Entry) -> Option<Entry> {
        let Some(guess) = &mut self.guess else {
            return Some(entry);
        };
        let before = guess.basis;
        let Some(basis) = guess.admit(entry.size) else {
            guess.hold(directory, entry);
            return None;
        };
        if basis != before {
            self.flush_pack();
            self.guess.as_mut()?.basis = basis;
        }
        Some(entry)
    }

    /// Adds a needed entry to the plan.
    fn plan_needed(&mut self, directory: &SourceDirectory, entry: Entry) {
        if directory
            .piece()
            .is_some_and(|piece| piece.share_if_large(directory.source_path(), &entry))
        {
            // This file is counted by the session that renames it into place.
            return self.session.account.totals.found.take_back(1);
        }
        if entry.kind == EntryKind::File && !entry.may_have_holes {
            self.check_room(entry.size);
        }
        if matches!(entry.kind, EntryKind::File) && entry.size > GROUP_BYTES {
            let queue = &self.session.queue;
            queue.add_file(queue.large_source(directory, entry), RoomWait::Wait);
        } else {
            self.pack(directory, PackEntry::Within(entry));
        }
    }

    fn check_room(&mut self, bytes: u64) {
        self.needed_bytes += bytes;
        self.session.account.check_room(self.needed_bytes);
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
            Some(guess) => Pack {
                basis: guess.basis,
                unread: Some(guess.unread.clone()),
                ..pack
            },
            None => pack,
        };
        self.session.queue.add_pack(pack);
    }

    /// Sends the gathered requests, up to the limit of outstanding requests.
    fn flush_requests(&mut self) {
        if let Some(listing) = &mut self.listing {
            return listing.ask();
        }
        let Some(requests) = &mut self.requests else {
            return;
        };
        let Session {
            in_flight, extras, ..
        } = self.session;
        while let Some((number, groups)) = requests.next_request(extras) {
            in_flight.sent_counts.ask(&groups);
            in_flight.send(ToReceiver::Request(Request {
                number,
                question: Question::Send(groups),
            }));
        }
    }

    fn handle_reply(&mut self, queued: QueuedReply) {
        let (reply, booked) = queued.take();
        if let Some(listing) = &mut self.listing {
            if let EntryReply::Verdicts(request, verdicts) = reply {
                listing.take_verdicts(request, verdicts);
            }
            return;
        }
        let answered = match (reply, &mut self.requests) {
            (EntryReply::State(state), _) => return self.set_target_state(state),
            (EntryReply::Link(word), _) => return self.handle_link_outcome(*word),
            (EntryReply::Held(held), Some(requests)) => {
                requests.take_held(&held, booked).into_iter().collect()
            }
            (EntryReply::Verdicts(request, verdicts), Some(requests)) => {
                requests.take_answer(request, verdicts)
            }
            (_, None) => return,
        };
        for file in answered {
            self.handle_answer(file);
        }
    }

    fn handle_answer(&mut self, file: AnsweredFile) {
        let AnsweredFile {
            directory,
            entry,
            verdict,
            held,
            there,
        } = file;
        if matches!(verdict, Verdict::Same | Verdict::Stays) {
            return self.count_unchanged(&directory, &entry);
        }
        self.count_found_again(entry.size);
        match verdict {
            Verdict::Set(_) => self.pack(&directory, PackEntry::Retouch(entry)),
            Verdict::Contents(_, root) => {
                self.pack(&directory, PackEntry::Compare(entry, Root(root)))
            }
            Verdict::Resume | Verdict::Delta if entry.size > GROUP_BYTES => {
                self.resume_large(&directory, entry, held, there)
            }
            _ => self.plan_needed(&directory, entry),
        }
    }

    /// Counts a file that stays at the target unchanged.
    fn count_unchanged(&mut self, directory: &SourceDirectory, entry: &Entry) {
        let path = directory.target_of(&entry.name);
        if !self.is_rereading {
            self.count_skipped(&path, directory, entry);
        }
        if let Some(shared) = entry.shared {
            self.skipped_name(shared.id, path);
        }
        if let Some(piece) = directory.piece() {
            piece.confirm_existing(entry);
        }
    }

    fn count_skipped(&mut self, path: &RelPath, directory: &SourceDirectory, entry: &Entry) {
        let Session {
            account, extras, ..
        } = self.session;
        account.count_lacking(extras, path, &extras.lacks_of(entry));
        if account.skipped(path, SizeAndMtime::of(entry), None) {
            self.list(path, directory, entry);
        }
    }

    /// Queues a file that stays at the target, so that a reader hashes it for the manifest. Does nothing if the
    /// manifest already has a line for the file or needs none.
    fn list(&mut self, path: &RelPath, directory: &SourceDirectory, entry: &Entry) {
        let account = &self.session.account;
        let mut files = account.files();
        if !files.lists_unchanged_files() {
            return;
        }
        account.totals.listed.add(1);
        let has_listed = files.has_listed(path);
        drop(files);
        if !has_listed && self.unlisted.add(directory, entry) {
            self.flush_unlisted();
        }
    }

    fn flush_unlisted(&mut self) {
        let Unlisted { files, .. } = std::mem::take(&mut self.unlisted);
        if !files.is_empty() {
            self.session.queue.add_listed(files);
        }
    }

    /// Plans the missing groups of a large file. `there` contains the groups of another version of the file at the
    /// target. These groups are sent by reference.
    fn resume_large(
        &mut self,
        directory: &SourceDirectory,
        entry: Entry,
        held: GroupValues,
        there: GroupValues,
    ) {
        if directory.piece().is_some() {
            // If several senders share a file, none of them resumes it.
            return self.plan_needed(directory, entry);
        }
        let mut source = self.session.queue.large_source(directory, entry);
        if !source.entry.may_have_holes {
            let groups = u64::from(held.count()) + u64::from(there.count());
            self.check_room(source.entry.size.saturating_sub(groups * GROUP_BYTES));
        }
        if held.count() > 0 {
            let account = &self.session.account;
            let bytes = account.held(&source.target, &held, source.entry.size);
            source = source.resuming(held, bytes);
        }
        self.session
            .queue
            .add_file(source.comparing(there), RoomWait::Wait);
    }
}
