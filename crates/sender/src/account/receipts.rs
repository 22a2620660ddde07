//! The receiver's receipts, which are taken from the control connection and entered in the account.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::oneshot;
use zmove_scan::HardLinkedFileId;
use zmove_transport::Inbox;
use zmove_types::{
    BytesByOrigin, Counters, Event, FileId, ItemId, Observer, Origin, RelPath, Root,
};
use zmove_wire::session::Resend;
use zmove_wire::{
    EntryFault, Fault, FaultCode, FileDone, Finished, FrameKind, PublishedItem, SharedJobAnswer,
    SharedJobOrder, SharedJobRequest, SharedJobResult, SignedReceipt, Stored, StoredItem,
    ToReceiver, ToSender, WireError, out_of_order,
};

use crate::account::MovedCounts;
use crate::account::failure::FileError;
use crate::account::manifest::ProofMethod;
use crate::account::report_limits::{ReportCounts, not_empty};
use crate::control;
use crate::control::relay::{PeerQuota, ReceivedMessage};
use crate::control::replies::{self, CountedReply, EntryReply, Replies, ReplySender};
use crate::error::SessionError;
use crate::plan::links::{FirstName, LinkOutcome};
use crate::plan::pack::PackEntry;
use crate::plan::resend;
use crate::push::session::Session;
use crate::read::extras::Extras;
use crate::send::sent::{NameRole, Sent, SentBatch, SentFile};

/// Processes the receiver's messages about work in flight, and passes on the receiver's replies to requests.
pub(crate) struct Receipts {
    pub(crate) session: Arc<Session>,
    pub(crate) reply_sender: ReplySender,
    /// The receiver's counters for the report.
    pub(crate) counters: Counters,
    reported: ReportCounts,
    /// The receipt signed by a receiver that has opened the transfer because of a grant.
    pub(crate) signed: Option<Box<SignedReceipt>>,
    /// Orders that the receiver has not answered. An order is a request about a job that several senders share.
    orders: Orders,
}

/// The orders about a shared job that the receiver has not answered, by their numbers.
#[derive(Debug, Default)]
struct Orders {
    last: u64,
    open: HashMap<u64, OpenOrder>,
}

/// An order that the receiver has not answered.
#[derive(Debug)]
struct OpenOrder {
    /// Length in bytes of the file that the order renames into place. `None` if the order renames no file.
    names: Option<u64>,
    answer: oneshot::Sender<SharedJobResult>,
}

impl Receipts {
    /// Creates the receipts of a new session. The memory of the receiver's replies is charged to `quota`. Also returns
    /// the channels on which replies and outgoing messages are received.
    pub(crate) fn begin(
        observer: Arc<dyn Observer>,
        extras: Extras,
        started: Instant,
        quota: Arc<dyn PeerQuota>,
    ) -> (Self, Replies, UnboundedReceiver<ToReceiver>) {
        let (outgoing_in, outgoing) = mpsc::unbounded_channel();
        let (reply_sender, replies) = replies::channel(quota.clone());
        let session = Arc::new(Session::new(observer, extras, started, outgoing_in, quota));
        let receipts = Self {
            session,
            reply_sender,
            counters: Counters::default(),
            reported: ReportCounts::default(),
            signed: None,
            orders: Orders::default(),
        };
        (receipts, replies, outgoing)
    }

    /// Processes a message. Returns the content of `Finished`, which is the receiver's last message, and `None` for any
    /// other message.
    pub(crate) fn handle(&mut self, message: ToSender) -> Result<Option<Finished>, SessionError> {
        let session = Arc::clone(&self.session);
        let _entering = session.entering.lock();
        match message {
            ToSender::Reply(reply) => self.reply_sender.reply(reply)?,
            ToSender::Held(held) => {
                self.reported
                    .held(&self.session.in_flight.sent_counts, &held)?;
                self.reply_sender.entry_reply(EntryReply::Held(held))?;
            }
            ToSender::Removed { entries, .. } => self
                .reply_sender
                .counted_reply(CountedReply::Removed(entries))?,
            ToSender::Stored(stored) => self.handle_stored(stored)?,
            ToSender::Published { items } => {
                not_empty(!items.is_empty())?;
                items
                    .into_iter()
                    .try_for_each(|item| self.settle_published(item))?;
            }
            ToSender::Fault(fault) => {
                let removals = self.session.account.totals.extraneous.get();
                self.reported
                    .fault(&self.session.in_flight.sent_counts, &fault, removals)?;
                self.session.account.fail(&FileError::Receiver(fault));
            }
            ToSender::Refused(refusal) => return Err(SessionError::Refused(refusal)),
            ToSender::Opened(_)
            | ToSender::Waiting(_)
            | ToSender::RateMax { .. }
            | ToSender::Fetching(_)
            | ToSender::Granted(_)
            | ToSender::Copy(_)
            | ToSender::Result(_) => {
                return out_of_order("a second answer");
            }
            ToSender::SharedJob(answer) => self.handle_job_answer(answer)?,
            ToSender::Sampled(_) | ToSender::Swept(_) | ToSender::Leftover(_) => {
                return out_of_order("an answer to a probe or a cleanup");
            }
            ToSender::Counters(counters) => self.counters = counters.into(),
            ToSender::NotKept { counts } => self.session.account.not_kept(&counts),
            ToSender::Missed { entries } => {
                not_empty(!entries.is_empty())?;
                for missed in entries {
                    self.reported
                        .missed(&self.session.in_flight.sent_counts, &missed.path)?;
                    self.session.account.name_missed(&missed);
                }
            }
            // The session is over and no longer waits for lanes.
            ToSender::LaneFailed => {}
            ToSender::HeldUp { text } => {
                let held_up = Event::HeldUp { by: text };
                self.session.account.report(held_up);
            }
            ToSender::Receipt(receipt) => self.signed = Some(Box::new(receipt)),
            ToSender::Finished(finished) => return self.finish(finished).map(Some),
        }
        Ok(None)
    }

    fn handle_stored(&mut self, Stored { items, files }: Stored) -> Result<(), WireError> {
        not_empty(!items.is_empty() || !files.is_empty())?;
        // Failed files are processed first. Otherwise a failed file would seem complete when its last group settles.
        let (failed, whole): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| file.fault.is_some());
        failed
            .into_iter()
            .try_for_each(|file| self.settle_file(file))?;
        items
            .into_iter()
            .try_for_each(|item| self.settle_item(item))?;
        whole
            .into_iter()
            .try_for_each(|file| self.settle_file(file))
    }

    /// Sends an order about a shared job to the receiver.
    pub(crate) fn order(
        &mut self,
        order: SharedJobOrder,
        names: Option<u64>,
        answer: oneshot::Sender<SharedJobResult>,
    ) {
        self.orders.last += 1;
        let number = self.orders.last;
        self.orders.open.insert(number, OpenOrder { names, answer });
        self.session
            .in_flight
            .send(ToReceiver::SharedJob(SharedJobRequest { number, order }));
    }

    fn handle_job_answer(
        &mut self,
        SharedJobAnswer { number, mut result }: SharedJobAnswer,
    ) -> Result<(), WireError> {
        let unasked = WireError::OutOfOrder {
            what: "an answer to an order about a job that was not sent",
        };
        let OpenOrder { names, answer } = self.orders.open.remove(&number).ok_or(unasked)?;
        match (names, &mut result) {
            (Some(bytes), SharedJobResult::Done) => {
                self.session.account.moved(&MovedCounts {
                    files: 1,
                    whole: BytesByOrigin::of(Origin::Sent, bytes),
                    ..MovedCounts::default()
                });
            }
            (_, SharedJobResult::Settled(not_kept)) => {
                not_kept.extend(self.session.account.totals.take_not_kept());
            }
            // The caller that sent the order reports this failure.
            (Some(_), SharedJobResult::Failed(..)) => {
                self.session.account.totals.counters.failed.add(1)
            }
            _ => {}
        }
        let _nobody_waits = answer.send(result);
        Ok(())
    }

    /// Processes all remaining messages.
    pub(crate) async fn handle_rest(
        &mut self,
        inbox: &mut Inbox<ReceivedMessage>,
    ) -> Result<Finished, SessionError> {
        loop {
            if let Some(finished) = self.handle(control::receive(inbox).await?)? {
                return Ok(finished);
            }
        }
    }

    fn settle_item(&mut self, stored: StoredItem) -> Result<(), WireError> {
        let item = ItemId(stored.item);
        if stored.mismatch {
            return self.settle_mismatch(item, &stored.faults);
        }
        let settled = self.session.in_flight.stored(item, &stored.faults)?;
        if let Some(bytes) = settled.unpublished_bytes {
            self.session.account.show(0, bytes);
        }
        settled.link_outcomes.into_iter().try_for_each(|word| {
            self.reply_sender
                .entry_reply(EntryReply::Link(Box::new(word)))
        })?;
        self.session
            .account
            .totals
            .bytes_settled
            .add(settled.data_bytes);
        match settled.work {
            Some(Sent::Batch(batch)) => self.settle_batch(
                &SentBatch {
                    faults: stored.faults,
                    ..batch
                },
                0,
            )?,
            Some(Sent::Group(file, span, kind)) => {
                let account = &self.session.account;
                let bytes = file.data_bytes_within(span);
                let origin = account.files().settle_group(&file.target, span.index, kind);
                let origins = BytesByOrigin::of(origin, bytes);
                let stored = file.group_stored(origins);
                match (kind, stored.counts) {
                    (FrameKind::Same, counts) => account.count_matched(&origins, counts),
                    (_, true) => account.moved(&MovedCounts {
                        bytes,
                        ..MovedCounts::default()
                    }),
                    (_, false) => account.show(0, bytes),
                }
                if let Some(piece) = file.directory.piece() {
                    piece.note_progress();
                    if stored.is_all && stored.counts {
                        // A later order, possibly from another sender, renames the file into place.
                        piece.confirm_large(file.head());
                        self.session.in_flight.abandon_large(file.id);
                    }
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Settles a batch whose files the receiver has renamed into place. An entry may fail when it is stored and again
    /// when it is renamed. Such an entry is reported once.
    fn settle_published(
        &mut self,
        PublishedItem { item, faults }: PublishedItem,
    ) -> Result<(), WireError> {
        let Sent::Batch(mut batch) = self.session.in_flight.published(ItemId(item))? else {
            return out_of_order("a name of a group");
        };
        let shown = batch.stored_bytes();
        let known: HashSet<_> = batch.faults.iter().map(|fault| fault.entry).collect();
        batch.faults.extend(
            faults
                .into_iter()
                .filter(|fault| !known.contains(&fault.entry)),
        );
        self.settle_batch(&batch, shown)
    }

    fn settle_mismatch(&mut self, item: ItemId, faults: &[EntryFault]) -> Result<(), WireError> {
        let missed = self.session.in_flight.mismatch(item)?;
        let (Resend::Again { work, .. } | Resend::GiveUp(work)) = &missed.resend;
        self.session
            .account
            .totals
            .bytes_settled
            .add(work.data_bytes());
        match missed.resend {
            Resend::Again { work, tries } if missed.lost => {
                resend::send_lost(&self.session, work, tries);
            }
            Resend::Again { work, tries } => {
                resend::send_damaged(&self.session, work, tries, faults);
            }
            Resend::GiveUp(work) => {
                self.give_up(work);
                self.session.in_flight.announce_if_all();
            }
        }
        Ok(())
    }

    fn give_up(&self, work: Sent) {
        let times = zmove_wire::limits::RESENDS_MAX + 1;
        match work {
            Sent::Batch(SentBatch { pack, .. }) => {
                for path in (0..).map_while(|entry| pack.target_path(entry)) {
                    let path = if path.is_root() {
                        Path::new(".")
                    } else {
                        path.as_path()
                    }
                    .to_owned();
                    self.session
                        .account
                        .fail(&FileError::Damaged { path, times });
                }
            }
            Sent::Group(file, ..) => {
                let error = FileError::Damaged {
                    path: file.display(),
                    times,
                };
                self.session.fail_large(&file, &error);
            }
        }
    }

    /// Settles a batch. `shown` of its bytes have already been reported to the user.
    fn settle_batch(&mut self, batch: &SentBatch, shown: u64) -> Result<(), WireError> {
        ReportCounts::entry_faults(batch.faults.len(), batch.pack.entry_count())?;
        let account = &self.session.account;
        let mut files = 0;
        let mut bytes = 0;
        let mut holes = 0;
        batch.confirm_pieces();
        let of_entry =
            |fault: &EntryFault| Some((batch.pack.target_path(fault.entry)?, fault.code));
        let kept: HashMap<_, _> = batch.faults.iter().filter_map(of_entry).collect();
        for (what, path, number) in batch.pack.shared_non_files() {
            let is_there = kept
                .get(&path)
                .is_none_or(|code| *code == FaultCode::AlreadyThere);
            if matches!(what, PackEntry::Within(_)) && is_there {
                self.report_first_name(number, path, None)?;
            }
        }
        for file in &batch.files {
            if self.settle_batch_file(file, kept.get(&file.path).copied())? {
                files += 1;
                bytes += file.data_bytes;
                holes += file.size_and_mtime.bytes - file.data_bytes;
            }
        }
        account.found_holes(holes);
        account.moved(&MovedCounts {
            files,
            whole: BytesByOrigin::of(Origin::Sent, bytes),
            bytes,
            shown,
        });
        let failed = batch.faults.iter().filter(|fault| {
            fault.code != FaultCode::AlreadyThere && batch.outcome_of_fault(fault).is_none()
        });
        failed.for_each(|fault| account.fail(&FileError::Receiver(located(batch, *fault))));
        Ok(())
    }

    /// Reports to the planner that a file with several names is at the target.
    fn report_first_name(
        &self,
        id: HardLinkedFileId,
        path: RelPath,
        root: Option<Root>,
    ) -> Result<(), WireError> {
        let word = LinkOutcome::FirstPublished(id, FirstName { path, root });
        self.reply_sender
            .entry_reply(EntryReply::Link(Box::new(word)))
    }

    /// Settles a file of a batch. Returns whether it was moved.
    fn settle_batch_file(
        &self,
        file: &SentFile,
        fault: Option<FaultCode>,
    ) -> Result<bool, WireError> {
        let account = &self.session.account;
        if let NameRole::First(number) = file.part
            && fault.is_none_or(|code| code == FaultCode::AlreadyThere)
        {
            self.report_first_name(number, file.path.clone(), file.root)?;
        }
        match (fault, &file.part) {
            (Some(FaultCode::AlreadyThere), _) => {
                account.skipped(
                    &file.path,
                    file.size_and_mtime,
                    file.root
                        .as_ref()
                        .map(|root| (root, ProofMethod::SizeAndTime)),
                );
            }
            (Some(_), _) => {}
            (None, NameRole::Link) => {
                account.linked(file.size_and_mtime.bytes);
                account
                    .files()
                    .confirm_moved(&file.path, file.root.as_ref(), file.known);
            }
            (None, _) if file.retouched => {
                account.skipped(
                    &file.path,
                    file.size_and_mtime,
                    file.root.as_ref().map(|root| (root, file.known)),
                );
            }
            (None, _) => {
                account
                    .files()
                    .confirm_moved(&file.path, file.root.as_ref(), file.known);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn settle_file(&mut self, done: FileDone) -> Result<(), WireError> {
        self.reported.file(&self.session.in_flight.sent_counts)?;
        let Some(file) = self.session.in_flight.end_large(FileId(done.file)) else {
            return Ok(());
        };
        if done.fault.is_none() && !file.is_all_read() {
            return out_of_order("the completion of a file that was not sent completely");
        }
        file.close();
        if let Some((operation, code)) = done.fault {
            let path = match file.target.parent() {
                Some(directory) if operation.is_on_directory() => directory,
                _ => file.target.clone(),
            };
            let fault = Fault {
                path,
                operation,
                code,
            };
            self.session
                .account
                .fail_large(&file, file.fail(), &FileError::Receiver(fault));
            return Ok(());
        }
        self.session.account.moved(&MovedCounts {
            files: 1,
            whole: file.counted(),
            ..MovedCounts::default()
        });
        self.session.account.files().confirm_moved(
            &file.target,
            file.root().as_ref(),
            ProofMethod::Received,
        );
        if let Some(shared) = file.entry.shared {
            self.report_first_name(shared.id, file.target.clone(), file.root())?;
        }
        Ok(())
    }

    /// Checks the end of the session. The session succeeds only if nothing is open and a result was reported for each
    /// file found.
    fn finish(&mut self, finished: Finished) -> Result<Finished, SessionError> {
        if !self.session.in_flight.is_settled() {
            return out_of_order("the end before everything is confirmed");
        }
        let open = self.session.in_flight.take_large();
        for file in open.into_values() {
            let error = FileError::Unconfirmed {
                path: file.display(),
            };
            self.session.account.fail_large(&file, file.fail(), &error);
        }
        let files = self.session.account.totals.unaccounted();
        if files > 0 {
            self.session.account.fail(&FileError::Unaccounted { files });
        }
        Ok(finished)
    }
}

/// Adds the path at which a fault occurred.
fn located(batch: &SentBatch, fault: EntryFault) -> Fault {
    let EntryFault {
        entry,
        operation,
        code,
    } = fault;
    let path = batch
        .pack
        .entry(entry)
        .map_or_else(RelPath::root, |(directory, entry)| {
            entry.failed_path(directory, operation)
        });
    Fault {
        path,
        operation,
        code,
    }
}
