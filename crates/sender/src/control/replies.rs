//! The receiver's replies, on their way from the control conversation to the thread that plans.
//!
//! **Invariant:** the replies that wait here are bounded, whatever the receiver sends: no more answers than questions
//! may be open, and no more values of groups than any target has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, unbounded};
use zmove_wire::limits::{
    HASH_ORDERS_OUTSTANDING_MAX, INQUIRIES_OUTSTANDING_MAX, KEEPS_OUTSTANDING_MAX,
    REMOVES_OUTSTANDING_MAX,
};
use zmove_wire::{Answer, Findings, Hashed, Held, TargetState, ToSender, WireError};

use crate::control::relay::{Held as Booked, PeerQuota};
use crate::plan::links::Word;

/// The end at which replies are taken.
#[derive(Debug)]
pub(crate) struct Replies {
    pub(crate) state: Receiver<TargetState>,
    pub(crate) offers: Receiver<QueuedReply>,
    pub(crate) findings: Receiver<Findings>,
    pub(crate) hashed: Receiver<Hashed>,
    pub(crate) mirror: Receiver<ToSender>,
}

/// A reply about offers and links; they come in the receiver's order.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Groups that the receiver holds of one file.
    Held(Held),
    /// The verdicts on all files of an offer.
    Answer(Answer),
    /// The outcome of a name of a file that has several.
    Link(Box<Word>),
}

/// A reply that has not been taken yet.
#[derive(Debug)]
pub(crate) struct QueuedReply {
    reply: Reply,
    weight: usize,
    all: Arc<AtomicUsize>,
    held: Booked,
}

/// The end at which replies are put in.
#[derive(Debug)]
pub(crate) struct ReplySender {
    /// The state of the target: sent once, before any answer.
    pub(crate) state: Sender<TargetState>,
    offers: Sender<QueuedReply>,
    /// The number of values and verdicts that wait.
    waiting: Arc<AtomicUsize>,
    /// The quota on which the memory for what the receiver says is booked.
    quota: Arc<dyn PeerQuota>,
    findings: Sender<Findings>,
    hashed: Sender<Hashed>,
    mirror: Sender<ToSender>,
}

/// The most values and verdicts that wait, half a gigabyte: values of the groups of 64 TiB.
const WAITING_MAX: usize = 16 << 20;

/// The memory of one value or verdict.
const REPLY_BYTES: usize = 40;

/// The memory of the values of one message beside that: those at its ends stand in blocks for more of them, and what is
/// booked takes some itself.
const VALUES_BYTES: usize = 1280;

/// The two ends of the channel from the control conversation to the planner.
pub(crate) fn channel(quota: Arc<dyn PeerQuota>) -> (ReplySender, Replies) {
    let (state_in, state) = bounded(1);
    let (offers_in, offers) = unbounded();
    let (findings_in, findings) = bounded(INQUIRIES_OUTSTANDING_MAX);
    let (hashed_in, hashed) = bounded(HASH_ORDERS_OUTSTANDING_MAX);
    let (mirror_in, mirror) = bounded(KEEPS_OUTSTANDING_MAX + REMOVES_OUTSTANDING_MAX);
    let waiting = Arc::default();
    let replies = Replies {
        state,
        offers,
        findings,
        hashed,
        mirror,
    };
    let sender = ReplySender {
        state: state_in,
        offers: offers_in,
        waiting,
        quota,
        findings: findings_in,
        hashed: hashed_in,
        mirror: mirror_in,
    };
    (sender, replies)
}

impl ReplySender {
    /// Passes on a reply about offers.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when far more is sent than there can be.
    pub(crate) fn reply(&self, reply: Reply) -> Result<(), WireError> {
        let weight = 1 + match &reply {
            Reply::Held(held) => held.cvs.len(),
            Reply::Answer(answer) => answer.verdicts.len(),
            Reply::Link(_) => 0,
        };
        if self.waiting.fetch_add(weight, Ordering::Relaxed) + weight > WAITING_MAX {
            return Err(WireError::OutOfOrder {
                what: "more answers than there are offers",
            });
        }
        let beside = if matches!(reply, Reply::Held(_)) {
            VALUES_BYTES
        } else {
            0
        };
        let bytes = weight * REPLY_BYTES + beside;
        let held = self.quota.book_memory(bytes)?;
        // The planner has gone only when the session is being stopped.
        let all = Arc::clone(&self.waiting);
        let _stopping = self.offers.send(QueuedReply {
            reply,
            weight,
            all,
            held,
        });
        Ok(())
    }

    /// Passes on an answer to a question of a preview or a mirror.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when there are more answers than questions may be open.
    pub(crate) fn answer(&self, answer: ToSender) -> Result<(), WireError> {
        match answer {
            ToSender::Findings(findings) => {
                queue(&self.findings, findings, "findings that nobody asked for")
            }
            ToSender::Hashed(hashed) => queue(&self.hashed, hashed, "hashes that nobody asked for"),
            answer => queue(
                &self.mirror,
                answer,
                "an answer about names that nobody asked for",
            ),
        }
    }
}

fn queue<T>(queue: &Sender<T>, answer: T, what: &'static str) -> Result<(), WireError> {
    match queue.try_send(answer) {
        Err(TrySendError::Full(_)) => Err(WireError::OutOfOrder { what }),
        // The thread that asks has gone only when the session is being stopped.
        Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
    }
}

impl QueuedReply {
    /// Takes the reply out of the queue, with what is booked for it.
    pub(crate) fn take(self) -> (Reply, Booked) {
        self.all.fetch_sub(self.weight, Ordering::Relaxed);
        (self.reply, self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::relay::NoQuota;

    fn held(count: usize) -> Reply {
        Reply::Held(Held {
            offer: 0,
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
            sender.reply(held(65_535)).unwrap();
            drop(replies.offers.recv().unwrap().take());
        }
        let told = (0..).take_while(|_| sender.reply(held(0)).is_ok()).count();
        assert_eq!(told, WAITING_MAX);
    }

    #[test]
    fn answers_without_questions_are_an_error() {
        let (sender, _replies) = channel(Arc::new(NoQuota));
        let told = |answer: &dyn Fn() -> ToSender| {
            (0..)
                .take_while(|_| sender.answer(answer()).is_ok())
                .count()
        };
        let findings = || {
            ToSender::Findings(Findings {
                inquiry: 0,
                findings: Vec::new(),
            })
        };
        assert_eq!(told(&findings), INQUIRIES_OUTSTANDING_MAX);
        let hashed = || {
            ToSender::Hashed(Hashed {
                order: 0,
                values: Vec::new(),
                fault: None,
            })
        };
        assert_eq!(told(&hashed), HASH_ORDERS_OUTSTANDING_MAX);
        let removed = || ToSender::Removed {
            remove: 0,
            entries: 0,
        };
        assert_eq!(
            told(&removed),
            KEEPS_OUTSTANDING_MAX + REMOVES_OUTSTANDING_MAX
        );
    }
}
