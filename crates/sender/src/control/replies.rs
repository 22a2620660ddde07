//! The channel for the receiver's replies, from the control conversation to the planner thread.
//!
//! **Invariant:** the number of waiting replies is bounded, whatever the receiver sends. There are never more answers
//! than outstanding requests, and never more group values than any target has.

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

use crate::control::relay::{PeerQuota, Reservation};
use crate::plan::links::LinkOutcome;

/// The planner's end of the channel.
#[derive(Debug)]
pub(crate) struct Replies {
    pub(crate) entries: Receiver<QueuedReply>,
    pub(crate) counted: Receiver<CountedReply>,
}

/// A reply about entries or links. Such replies are delivered in the order in which the receiver sent them.
#[derive(Debug)]
pub(crate) enum EntryReply {
    /// The state of the target. Sent once, before any answer.
    State(TargetState),
    /// Groups of one file that the receiver already holds.
    Held(Held),
    /// The verdicts on all entries of the request with this number.
    Verdicts(u64, Vec<Verdict>),
    /// The outcome for one name of a file that has several names.
    Link(Box<LinkOutcome>),
}

/// A reply to a kind of request of which only a few may be outstanding: hashes, names that exist only at the target, or
/// removals.
#[derive(Debug)]
pub(crate) enum CountedReply {
    /// Hashes of groups, for the request with this number.
    Hashes(u64, GroupHashes),
    /// Names that exist only at the target, for the request with this number.
    Extraneous(u64, ExtraneousNames),
    /// Number of entries that have been removed.
    Removed(u64),
}

/// A reply that waits in the queue.
#[derive(Debug)]
pub(crate) struct QueuedReply {
    reply: EntryReply,
    weight: usize,
    all: Arc<AtomicUsize>,
    held: Reservation,
}

/// The end of the channel at which the control conversation adds replies.
#[derive(Debug)]
pub(crate) struct ReplySender {
    entries: Sender<QueuedReply>,
    /// Number of waiting values and verdicts.
    waiting: Arc<AtomicUsize>,
    /// The quota that the memory of waiting replies is charged to.
    quota: Arc<dyn PeerQuota>,
    counted: Sender<CountedReply>,
}

/// Maximum number of waiting values and verdicts. It equals the number of groups in 64 TiB, and the values take up to
/// 640 MiB of memory.
const WAITING_MAX: usize = 16 << 20;

/// Maximum number of outstanding counted replies.
const COUNTED_MAX: usize =
    HASHES_OUTSTANDING_MAX + LISTINGS_OUTSTANDING_MAX + REMOVES_OUTSTANDING_MAX;

/// Memory that one value or one verdict takes, in bytes.
const REPLY_BYTES: usize = 40;

/// Additional memory for the values of one message, in bytes. The first and last values of a message are stored in
/// blocks with unused space, and the reservation itself takes some memory.
const VALUES_BYTES: usize = 1280;

/// Creates the channel from the control conversation to the planner.
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
    /// Queues a reply about entries.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] if far more replies wait than a receiver can have to send, or the quota's error if its
    /// limit would be exceeded.
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
        let held = self.quota.charge_memory(bytes)?;
        // The planner has ended only if the session is being stopped.
        let all = Arc::clone(&self.waiting);
        let _stopping = self.entries.send(QueuedReply {
            reply,
            weight,
            all,
            held,
        });
        Ok(())
    }

    /// Queues the reply to a request.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] if there are more answers than there can be outstanding requests.
    pub(crate) fn reply(&self, Reply { number, answer }: Reply) -> Result<(), WireError> {
        match answer {
            Answer::Verdicts(verdicts) => self.entry_reply(EntryReply::Verdicts(number, verdicts)),
            Answer::Hashes(hashes) => self.counted_reply(CountedReply::Hashes(number, hashes)),
            Answer::Extraneous(names) => {
                self.counted_reply(CountedReply::Extraneous(number, names))
            }
        }
    }

    /// Queues a reply about hashes, names or removals.
    ///
    /// # Errors
    /// Returns the same errors as [`reply`](Self::reply).
    pub(crate) fn counted_reply(&self, reply: CountedReply) -> Result<(), WireError> {
        match self.counted.try_send(reply) {
            Err(TrySendError::Full(_)) => out_of_order("an answer to a request that was not sent"),
            // The requesting thread has ended only if the session is being stopped.
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
        }
    }
}

impl QueuedReply {
    /// Takes the reply out of the queue, together with its memory reservation.
    pub(crate) fn take(self) -> (EntryReply, Reservation) {
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
