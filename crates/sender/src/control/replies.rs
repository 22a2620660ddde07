//! What the receiver tells those who plan, on its way from the conversation to their thread.
//!
//! **Invariant:** what waits here is bounded, whatever the receiver says: no more answers than questions may be open, and
//! no more values of groups than any target has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, unbounded};
use zmove_wire::limits::{INQUIRIES_OUTSTANDING_MAX, KEEPS_OUTSTANDING_MAX, REMOVES_OUTSTANDING_MAX};
use zmove_wire::{Answer, Findings, Held, TargetState, ToSender, WireError};

/// Where it is heard.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) state: Receiver<TargetState>,
    pub(crate) replies: Receiver<Waiting>,
    pub(crate) findings: Receiver<Findings>,
    pub(crate) mirror: Receiver<ToSender>,
}

/// What the receiver says of offers, in its order.
#[derive(Debug)]
pub(crate) enum Reply {
    /// What it holds of one file.
    Held(Held),
    /// What is to become of all files of an offer.
    Answer(Answer),
}

/// A reply that nobody has taken yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    reply: Reply,
    weight: usize,
    all: Arc<AtomicUsize>,
}

/// How it is told.
#[derive(Debug)]
pub(crate) struct Teller {
    /// What there is at the target: once, before any answer.
    pub(crate) state: Sender<TargetState>,
    replies: Sender<Waiting>,
    /// How much of replies waits.
    waiting: Arc<AtomicUsize>,
    findings: Sender<Findings>,
    mirror: Sender<ToSender>,
}

/// The most values and verdicts that wait, half a gigabyte: values of the groups of 64 TiB.
const WAITING_MAX: usize = 16 << 20;

/// The way from the conversation to the planner.
pub(crate) fn news() -> (Teller, News) {
    let (state_in, state) = bounded(1);
    let (replies_in, replies) = unbounded();
    let (findings_in, findings) = bounded(INQUIRIES_OUTSTANDING_MAX);
    let (mirror_in, mirror) = bounded(KEEPS_OUTSTANDING_MAX + REMOVES_OUTSTANDING_MAX);
    let waiting = Arc::default();
    (
        Teller { state: state_in, replies: replies_in, waiting, findings: findings_in, mirror: mirror_in },
        News { state, replies, findings, mirror },
    )
}

impl Teller {
    /// Tells what is said of offers.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when far more is said than there can be.
    pub(crate) fn reply(&self, reply: Reply) -> Result<(), WireError> {
        let weight = 1 + match &reply {
            Reply::Held(held) => held.cvs.len(),
            Reply::Answer(answer) => answer.verdicts.len(),
        };
        if self.waiting.fetch_add(weight, Ordering::Relaxed) + weight > WAITING_MAX {
            return Err(WireError::OutOfOrder { what: "more answers than there are offers" });
        }
        // the planner has gone only when the session is being stopped
        let _stopping = self.replies.send(Waiting { reply, weight, all: Arc::clone(&self.waiting) });
        Ok(())
    }

    /// Tells an answer to an inquiry.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when there are more answers than inquiries may be open.
    pub(crate) fn findings(&self, findings: Findings) -> Result<(), WireError> {
        answer(&self.findings, findings, "findings that nobody asked for")
    }

    /// Tells what else is where names stay, or what has gone.
    ///
    /// # Errors
    /// [`WireError::OutOfOrder`] when there are more answers than questions may be open.
    pub(crate) fn mirror(&self, message: ToSender) -> Result<(), WireError> {
        answer(&self.mirror, message, "an answer about names that nobody asked for")
    }
}

fn answer<T>(queue: &Sender<T>, answer: T, what: &'static str) -> Result<(), WireError> {
    match queue.try_send(answer) {
        Err(TrySendError::Full(_)) => Err(WireError::OutOfOrder { what }),
        // who asks has gone only when the session is being stopped
        Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
    }
}

impl Waiting {
    /// It waits no more.
    pub(crate) fn take(self) -> Reply {
        self.all.fetch_sub(self.weight, Ordering::Relaxed);
        self.reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(count: usize) -> Reply {
        Reply::Held(Held { offer: 0, file: 0, first: 0, cvs: vec![[0; 32]; count], end: false })
    }

    #[test]
    fn replies_that_are_taken_make_room_for_others_and_too_many_are_an_error() {
        let (teller, news) = news();
        for _ in 0..2 * WAITING_MAX / 65_536 {
            teller.reply(held(65_535)).unwrap();
            drop(news.replies.recv().unwrap().take());
        }
        let told = (0..).take_while(|_| teller.reply(held(0)).is_ok()).count();
        assert_eq!(told, WAITING_MAX);
    }

    #[test]
    fn answers_without_questions_are_an_error() {
        let (teller, _news) = news();
        let none = || Findings { inquiry: 0, findings: Vec::new() };
        let told = (0..).take_while(|_| teller.findings(none()).is_ok()).count();
        assert_eq!(told, INQUIRIES_OUTSTANDING_MAX);
        let removed = || ToSender::Removed { remove: 0, entries: 0 };
        let told = (0..).take_while(|_| teller.mirror(removed()).is_ok()).count();
        assert_eq!(told, KEEPS_OUTSTANDING_MAX + REMOVES_OUTSTANDING_MAX);
    }
}
