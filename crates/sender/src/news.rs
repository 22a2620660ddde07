//! What the receiver tells those who plan, on its way from the conversation to their thread.

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use zmove_wire::{Answer, Findings, Held, TargetState, ToSender};

/// Where it is heard.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) state: Receiver<TargetState>,
    pub(crate) replies: Receiver<Reply>,
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

/// How it is told.
#[derive(Debug)]
pub(crate) struct Teller {
    /// What there is at the target: once, before any answer.
    pub(crate) state: Sender<TargetState>,
    /// What is said of offers.
    pub(crate) replies: Sender<Reply>,
    /// The answers to inquiries.
    pub(crate) findings: Sender<Findings>,
    /// What else is where names stay, and what has gone.
    pub(crate) mirror: Sender<ToSender>,
}

/// The way from the conversation to the planner. No more answers wait than questions may be open.
pub(crate) fn news() -> (Teller, News) {
    let (state_in, state) = bounded(1);
    let (replies_in, replies) = unbounded();
    let (findings_in, findings) = unbounded();
    let (mirror_in, mirror) = unbounded();
    (
        Teller { state: state_in, replies: replies_in, findings: findings_in, mirror: mirror_in },
        News { state, replies, findings, mirror },
    )
}
