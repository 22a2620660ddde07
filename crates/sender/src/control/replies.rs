//! The receiver's replies, on their way from the control conversation to the thread that plans.
//!
//! **Invariant:** the replies that wait here are bounded, whatever the receiver sends: no more answers than questions
//! may be open, and no more values of groups than any target has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, unbounded};
use zmove_wire::limits::{
    HASHES_OUTSTANDING_MAX, LISTINGS_OUTSTANDING_MAX, REMOVES_OUTSTANDING_MAX,
};
use zmove_wire::{
    Answer, ExtraneousNames, GroupHashes, Held, Reply, TargetState, Verdict, WireError,
    out_of_order,
};

use crate::control::relay::{Held as Booked, PeerQuota};
use crate::plan::links::Word;

/// The end at which replies are taken.
#[derive(Debug)]
pub(crate) struct Replies {
    pub(crate) entries: Receiver<QueuedReply>,
    pub(crate) counted: Receiver<CountedReply>,
}

/// A reply about entries and links; they come in the receiver's order.
#[derive(Debug)]
pub(crate) enum EntryReply {
    /// The state of the target: sent once, before any answer.
    State(TargetState),
    /// Groups that the receiver holds of one file.
    Held(Held),
    /// The verdicts on all entries of the request with that number.
    Verdicts(u64, Vec<Verdict>),
    /// The outcome of a name of a file that has several.
    Link(Box<Word>),
}

/// A reply of which only a few may be awaited: about hashes, or names that the target alone has.
#[derive(Debug)]
pub(crate) enum CountedReply {
    /// Hashes of groups, for the request with that number.
    Hashes(u64, GroupHashes),
    /// Names, for the request with that number.
    Extraneous(u64, ExtraneousNames),
    /// So many entries have been removed.
    Removed(u64),
}

/// A reply that has not been taken yet.
#[derive(Debug)]
pub(crate) struct QueuedReply {
    reply: EntryReply,
    weight: usize,
    all: Arc<AtomicUsize>,
    held: Booked,
}

/// The end at which replies are put in.
#[derive(Debug)]
pub(crate) struct ReplySender {
    entries: Sender<QueuedReply>,
    /// The number of values and verdicts that wait.
    waiting: Arc<AtomicUsize>,
    /// The quota on which the memory for what the receiver says is booked.
    quota: Arc<dyn PeerQuota>,
    counted: Sender<CountedReply>,
}

/// The most values and verdicts that wait, half a gigabyte: values of the groups of 64 TiB.
const WAITING_MAX: usize = 16 << 20;

/// The most counted replies that may be awaited.
const COUNTED_MAX: usize =
    HASHES_OUTSTANDING_MAX + LISTINGS_OUTSTANDING_MAX + REMOVES_OUTSTANDING_MAX;

/// The memory of one value or verdict.
const REPLY_BYTES: usize = 40;

/// The memory of the values of one message beside that: those at its ends stand in blocks for more of them, and what is
/// booked takes some itself.
const VALUES_BYTES: usize = 1280;

/// The two ends of the channel from the control conversation to the planner.
pub(crate) fn channel(quota: Arc<dyn PeerQuota>) -> (ReplySender, Replies) {
    let (entries_in, entries) = unbounded();
    let (counted_in, counted) = bounded(COUNTED_MAX);
    let sender = ReplySender {
        entries: entries_in,
        waiting: Arc::default(),
        quota,
        counted: counted_in,
    };
    (sender, Replies { entries, counted })
}

impl ReplySender {
    /// Passes on a reply about entries.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when far more is sent than there can be.
    pub(crate) fn entry_reply(&self, reply: EntryReply) -> Result<(), WireError> {
        let weight = 1 + match &reply {
            EntryReply::Held(held) => held.cvs.len(),
            EntryReply::Verdicts(_, verdicts) => verdicts.len(),
            EntryReply::State(_) | EntryReply::Link(_) => 0,
        };
        if self.waiting.fetch_add(weight, Ordering::Relaxed) + weight > WAITING_MAX {
            return out_of_order("more answers than there are requests");
        }
        let beside = if matches!(reply, EntryReply::Held(_)) {
            VALUES_BYTES
        } else {
            0
        };
        let bytes = weight * REPLY_BYTES + beside;
        let held = self.quota.book_memory(bytes)?;
        // The planner has gone only when the session is being stopped.
        let all = Arc::clone(&self.waiting);
        let _stopping = self.entries.send(QueuedReply {
            reply,
            weight,
            all,
            held,
        });
        Ok(())
    }

    /// Passes on the reply to a request.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when there are more answers than requests may be open.
    pub(crate) fn reply(&self, Reply { number, answer }: Reply) -> Result<(), WireError> {
        match answer {
            Answer::Verdicts(verdicts) => self.entry_reply(EntryReply::Verdicts(number, verdicts)),
            Answer::Hashes(hashes) => self.counted_reply(CountedReply::Hashes(number, hashes)),
            Answer::Extraneous(names) => {
                self.counted_reply(CountedReply::Extraneous(number, names))
            }
        }
    }

    /// Passes on a reply about hashes or names.
    ///
    /// # Errors
    /// As for [`reply`](Self::reply).
    pub(crate) fn counted_reply(&self, reply: CountedReply) -> Result<(), WireError> {
        match self.counted.try_send(reply) {
            Err(TrySendError::Full(_)) => out_of_order("an answer that nobody asked for"),
            // The thread that asks has gone only when the session is being stopped.
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
        }
    }
}

impl QueuedReply {
    /// Takes the reply out of the queue, with what is booked for it.
    pub(crate) fn take(self) -> (EntryReply, Booked) {
        self.all.fetch_sub(self.weight, Ordering::Relaxed);
        (self.reply, self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::relay::NoQuota;

    fn held(count: usize) -> EntryReply {
        EntryReply::Held(Held {
            request: 0,
            file: 0,
            first: 0,
            cvs: vec![[0; 32]; count],
            end: false,
        })
    }

    #[test]
    fn replies_that_are_taken_make_room_for_others_and_too_many_are_an_error() {
        let (sender, replies) = channel(Arc::new(NoQuota));
        for _ in 0..2 * WAITING_MAX / 65_536 {
            sender.entry_reply(held(65_535)).unwrap();
            drop(replies.entries.recv().unwrap().take());
        }
        let told = (0..)
            .take_while(|_| sender.entry_reply(held(0)).is_ok())
            .count();
        assert_eq!(told, WAITING_MAX);
    }

    #[test]
    fn answers_without_questions_are_an_error() {
        let (sender, _replies) = channel(Arc::new(NoQuota));
        let told =
            |tell: &dyn Fn() -> Result<(), WireError>| (0..).take_while(|_| tell().is_ok()).count();
        let hashes = || {
            sender.reply(Reply {
                number: 0,
                answer: Answer::Hashes(GroupHashes::default()),
            })
        };
        assert_eq!(told(&hashes), COUNTED_MAX);
        assert!(sender.counted_reply(CountedReply::Removed(0)).is_err());
    }
}
