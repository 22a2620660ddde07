//! The sender's half of the control conversation: from the greeting to the receiver's last word.

pub(crate) mod replies;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::{timeout, timeout_at};
use zmove_transport::{ControlError, ControlReader, ControlWriter, Inbox, LaneError, LaneSink};
use zmove_types::{Event, FileId, ItemId, Observer, TransferId};
use zmove_wire::limits::{
    EXTRA_NAMES_MAX, HELD_GROUPS_MAX, INQUIRED_ENTRIES_MAX, OFFER_FILES_MAX, STORED_ITEMS_MAX,
};
use zmove_wire::session::Resend;
use zmove_wire::{
    Cipher, EntryFault, Fault, FaultCode, FileDone, Finished, Greeting, Open, Opened, PublishedItem, Refusal,
    RefusalCode, Stored, StoredItem, ToReceiver, ToSender, Version, Waiting, WireError, decode_message,
    encode_message,
};

use crate::control::replies::{Reply, ReplySender};
use crate::error::{FileError, SessionError};
use crate::push::LEAVE_TIMEOUT;
use crate::read::reader::{resend, send_again};
use crate::shared::{Lost, Moved, Sent, SentBatch, Shared, Travels};

/// The ways to the receiver.
#[derive(Debug)]
pub struct Link {
    /// The transfer's id, as the lanes have presented it.
    pub transfer: TransferId,
    /// How the lanes go on, as they have said.
    pub cipher: Cipher,
    /// The newest version that may be spoken, as TLS has agreed on control.
    pub version: Version,
    /// The control connection, on which nothing has been said.
    pub control: (ControlReader, ControlWriter),
    /// Lanes as they come up, on which the greeting has been sent; an error is why one did not.
    pub lanes: mpsc::Receiver<Result<Box<dyn LaneSink>, LaneError>>,
    /// How there can be more of them; none where there cannot.
    pub supply: Option<LaneSupply>,
}

/// Lanes on demand.
#[derive(Debug)]
pub struct LaneSupply {
    /// Asks for so many more lanes: each comes up, or fails, as those before.
    pub more: mpsc::UnboundedSender<u16>,
    /// How many have been asked for already.
    pub asked: u16,
    /// Who says how many there shall be.
    pub number: LaneNumber,
    /// How they answer to loss.
    pub congestion: LossAnswer,
}

/// How many lanes there shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneNumber {
    /// As many as there were at first: more are dialled only in the place of those that are lost.
    Fixed,
    /// As many as help.
    Tuned {
        /// The fewest that suit the path.
        least: u16,
    },
}

/// What a lane's congestion control makes of loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossAnswer {
    /// It sends less, and nothing else is to be used.
    Fixed,
    /// It sends less; another that does not may be used instead where that gains.
    Replaceable {
        /// The one that is used, by its kernel name.
        usual: String,
        /// The other.
        tolerant: String,
    },
    /// It takes no notice, as was right before on this path; the usual one may be put back where nothing is lost.
    Replaced {
        /// The one that would be used otherwise, by its kernel name.
        usual: String,
        /// The one that is used.
        tolerant: String,
    },
    /// It takes no notice, and nothing else is to be used.
    Tolerant,
}

/// Greets and asks for leave, in the words of `version`.
pub(crate) async fn ask(
    writer: &mut ControlWriter,
    greeting: Greeting,
    open: Open,
    version: Version,
) -> Result<(), SessionError> {
    let mut opening = greeting.encode().to_vec();
    opening.extend(encode_message(&open.into_message(version)));
    Ok(writer.send(&opening).await?)
}

/// Waits until the receiver opens the transfer. `version` is what it speaks, or the newest that has no name of its own in TLS.
/// Where the transfer has to stand in line, it waits for `patience` and tells `waits`.
pub(crate) async fn leave(
    reader: ControlReader,
    version: Version,
    patience: Duration,
    waits: mpsc::UnboundedSender<Waiting>,
) -> Result<(Inbox<ToSender>, Opened), SessionError> {
    let answered = timeout(LEAVE_TIMEOUT, first_answer(reader, version)).await;
    let (mut inbox, mut answer) = answered.unwrap_or(Err(SessionError::Silent))?;
    let due = Instant::now() + patience;
    loop {
        answer = match answer {
            ToSender::Opened(opened) => return Ok((inbox, opened)),
            ToSender::Refused(refusal) => return Err(SessionError::Refused(refusal)),
            ToSender::Waiting(Waiting { text, .. }) if patience.is_zero() => {
                return Err(SessionError::Refused(Refusal { code: RefusalCode::Full, text }));
            }
            ToSender::Waiting(waiting) => {
                let reason = waiting.text.clone();
                // nobody listens only when the session is over
                let _over = waits.send(waiting);
                let next = timeout_at(due.into(), receive(&mut inbox)).await;
                next.unwrap_or(Err(SessionError::StillInLine { reason, waited: patience }))?
            }
            _ => return Err(WireError::OutOfOrder { what: "the first answer" }.into()),
        }
    }
}

async fn first_answer(
    mut reader: ControlReader,
    version: Version,
) -> Result<(Inbox<ToSender>, ToSender), SessionError> {
    reader.greeting().await?.agree_within(version)?;
    let mut inbox = reader.into_inbox(decode_message, INBOX_MESSAGES_MAX);
    let answer = receive(&mut inbox).await?;
    Ok((inbox, answer))
}

/// What the user is told of a wait.
pub(crate) fn tell_waiting(observer: &dyn Observer, Waiting { ahead, text }: &Waiting) {
    let before = match ahead {
        0 => String::new(),
        ahead => format!("; {ahead} of the same key are before this one"),
    };
    observer.on(&Event::Waiting { message: format!("{text}{before}") });
}

/// The next message; the end of the connection is an error here.
pub(crate) async fn receive(inbox: &mut Inbox<ToSender>) -> Result<ToSender, SessionError> {
    Ok(inbox.recv().await.ok_or(ControlError::Closed)??)
}

/// Writes messages until nobody can send any more, then ends the connection in an orderly way. Apart from the reading, so
/// that two peers who both have much to say never wait for each other.
pub(crate) async fn write_all(mut writer: ControlWriter, mut outgoing: mpsc::UnboundedReceiver<ToReceiver>) {
    while let Some(message) = outgoing.recv().await {
        // a connection that is gone shows where messages are received
        if writer.send(&encode_message(&message)).await.is_err() {
            return;
        }
    }
    let _goodbye = writer.finish().await;
}

/// Each entry of an inquiry may bring a directory of its own.
const FINDINGS_MAX: usize = 2 * INQUIRED_ENTRIES_MAX;
pub(crate) const INBOX_MESSAGES_MAX: usize = 8;

/// What the receiver says about work on its way.
pub(crate) struct Account {
    pub(crate) shared: Arc<Shared>,
    pub(crate) reply_sender: ReplySender,
    /// How long the receiving lanes were held to a rate, summed over them.
    pub(crate) paced: Duration,
    /// How many files have another time at the target, since it cannot hold theirs.
    pub(crate) times_beyond_range: u64,
}

impl Account {
    pub(crate) const fn new(shared: Arc<Shared>, reply_sender: ReplySender) -> Self {
        Self { shared, reply_sender, paced: Duration::ZERO, times_beyond_range: 0 }
    }

    /// Takes a message; returns the receiver's last word when it is that.
    pub(crate) fn take(&mut self, message: ToSender) -> Result<Option<Finished>, SessionError> {
        match message {
            ToSender::Answer(answer) => {
                within("verdicts", answer.verdicts.len(), OFFER_FILES_MAX)?;
                self.reply_sender.reply(Reply::Answer(answer))?;
            }
            ToSender::Held(held) => {
                within("held groups", held.cvs.len(), HELD_GROUPS_MAX)?;
                self.reply_sender.reply(Reply::Held(held))?;
            }
            ToSender::Findings(findings) => {
                within("findings", findings.findings.len(), FINDINGS_MAX)?;
                self.reply_sender.findings(findings)?;
            }
            ToSender::Extra(extra) => {
                within("names at the target alone", extra.names.len(), EXTRA_NAMES_MAX)?;
                self.reply_sender.mirror(ToSender::Extra(extra))?;
            }
            removed @ ToSender::Removed { .. } => self.reply_sender.mirror(removed)?,
            ToSender::Stored(Stored { items, files }) => {
                within("settled items", items.len().max(files.len()), STORED_ITEMS_MAX)?;
                items.into_iter().try_for_each(|item| self.take_item(item))?;
                files.into_iter().try_for_each(|file| self.take_file(file))?;
            }
            ToSender::Published { items } => {
                within("published items", items.len(), STORED_ITEMS_MAX)?;
                items.into_iter().try_for_each(|item| self.take_published(item))?;
            }
            ToSender::Fault(fault) => self.shared.fail(&FileError::Receiver(fault)),
            ToSender::Refused(refusal) => return Err(SessionError::Refused(refusal)),
            ToSender::Opened(_) | ToSender::Waiting(_) => {
                return Err(WireError::OutOfOrder { what: "a second answer" }.into());
            }
            ToSender::Sampled(_) | ToSender::Swept(_) => {
                return Err(WireError::OutOfOrder { what: "an answer of a probe" }.into());
            }
            ToSender::Paced { receive_us } => self.paced = Duration::from_micros(receive_us),
            ToSender::TimesBeyondRange { files } => self.times_beyond_range = files,
            ToSender::Finished(finished) => return self.finish(finished).map(Some),
        }
        Ok(None)
    }

    fn take_item(&mut self, stored: StoredItem) -> Result<(), WireError> {
        let item = ItemId(stored.item);
        if stored.mismatch {
            return self.take_mismatch(item, &stored.faults);
        }
        match self.shared.stored(item, &stored.faults)? {
            Some(Sent::Batch(batch)) => self.take_batch(&SentBatch { faults: stored.faults, ..batch }, 0),
            Some(Sent::Group(file, span, travels)) => {
                file.group_stored();
                self.take_group(u64::from(span.len), travels);
            }
            None => {}
        }
        Ok(())
    }

    /// What could not be stored of a batch and what could not get its name: an entry that is in both is told once.
    fn take_published(&mut self, PublishedItem { item, faults }: PublishedItem) -> Result<(), WireError> {
        let Sent::Batch(mut batch) = self.shared.published(ItemId(item))? else {
            return Err(WireError::OutOfOrder { what: "a name of a group" });
        };
        let shown = batch.stored_bytes();
        let known: HashSet<_> = batch.faults.iter().map(|fault| fault.entry).collect();
        batch.faults.extend(faults.into_iter().filter(|fault| !known.contains(&fault.entry)));
        self.take_batch(&batch, shown);
        Ok(())
    }

    fn take_group(&self, bytes: u64, travels: Travels) {
        match travels {
            Travels::Whole => self.shared.moved(&Moved { bytes, ..Moved::default() }),
            Travels::ByName => self.shared.matched(bytes),
        }
    }

    fn take_mismatch(&mut self, item: ItemId, faults: &[EntryFault]) -> Result<(), WireError> {
        let lost =
            if self.shared.lane_items.settled(item, Instant::now()) { Lost::WithLane } else { Lost::No };
        match self.shared.mismatch(item, lost)? {
            Resend::Again { work, tries } if lost == Lost::WithLane => send_again(&self.shared, work, tries),
            Resend::Again { work, tries } => resend(&self.shared, work, tries, faults),
            Resend::GiveUp(work) => {
                self.give_up(work);
                let mut ledger = self.shared.ledger();
                self.shared.announce(&mut ledger);
            }
        }
        Ok(())
    }

    fn give_up(&self, work: Sent) {
        let times = zmove_wire::limits::RESENDS_MAX + 1;
        match work {
            Sent::Batch(SentBatch { pack, .. }) => {
                for path in (0..).map_while(|entry| pack.target_path(entry)) {
                    let path = if path.is_root() { Path::new(".") } else { path.as_path() }.to_owned();
                    self.shared.fail(&FileError::Damaged { path, times });
                }
            }
            Sent::Group(file, ..) => {
                self.shared.fail_large(file.id, &FileError::Damaged { path: file.display(), times });
            }
        }
    }

    /// A batch is done; `shown` of its bytes the user has seen.
    fn take_batch(&mut self, batch: &SentBatch, shown: u64) {
        let shared = &self.shared;
        let (mut files, mut bytes) = (0, 0);
        let faults: Vec<_> = batch.faults.iter().map(|fault| located(batch, *fault)).collect();
        let kept: HashMap<_, _> = faults.iter().map(|fault| (&fault.path, fault.code)).collect();
        for file in &batch.files {
            match kept.get(&file.path) {
                Some(FaultCode::AlreadyThere) => shared.skipped(&file.path, file.look),
                Some(_) => {}
                None if file.retouched => {
                    shared.skipped(&file.path, file.look);
                    shared.book().confirm(&file.path, Some(&file.root));
                }
                None => {
                    shared.book().confirm(&file.path, Some(&file.root));
                    (files, bytes) = (files + 1, bytes + file.look.bytes);
                }
            }
        }
        shared.moved(&Moved { files, whole_bytes: bytes, bytes, shown });
        let failed = faults.into_iter().filter(|fault| fault.code != FaultCode::AlreadyThere);
        failed.for_each(|fault| shared.fail(&FileError::Receiver(fault)));
    }

    fn take_file(&mut self, done: FileDone) -> Result<(), WireError> {
        let Some(file) = self.shared.end_large(FileId(done.file)) else { return Ok(()) };
        if done.fault.is_none() && file.root().is_none() {
            return Err(WireError::OutOfOrder { what: "a whole file that has not been sent" });
        }
        file.close();
        if let Some((operation, code)) = done.fault {
            file.kill();
            let fault = Fault { path: file.target.clone(), operation, code };
            self.shared.fail(&FileError::Receiver(fault));
            return Ok(());
        }
        self.shared.moved(&Moved { files: 1, whole_bytes: file.entry.size, ..Moved::default() });
        self.shared.book().confirm(&file.target, file.root().as_ref());
        Ok(())
    }

    /// The end is good only if nothing is left open, and of each file that was found something was told.
    fn finish(&mut self, finished: Finished) -> Result<Finished, SessionError> {
        if !self.shared.ledger().is_settled() {
            return Err(WireError::OutOfOrder { what: "the end before everything is settled" }.into());
        }
        let open =
            std::mem::take(&mut *self.shared.large.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        for file in open.into_values() {
            file.kill();
            self.shared.fail(&FileError::Unconfirmed { path: file.display() });
        }
        let files = self.shared.counters.unaccounted();
        if files > 0 {
            self.shared.fail(&FileError::Unaccounted { files });
        }
        Ok(finished)
    }
}

fn within(what: &'static str, value: usize, limit: usize) -> Result<(), WireError> {
    if value <= limit {
        return Ok(());
    }
    Err(WireError::OverLimit { what, value: value as u64, limit: limit as u64 })
}

/// A fault with the path of its entry.
fn located(batch: &SentBatch, fault: EntryFault) -> Fault {
    let EntryFault { entry, operation, code } = fault;
    let path = batch.pack.target_path(entry).unwrap_or_else(zmove_types::RelPath::root);
    Fault { path, operation, code }
}
