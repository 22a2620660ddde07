//! The events that disturb a transfer, and their times.

use std::time::Duration;

use super::dice::Dice;
use super::options::Carrier;

/// An event and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    pub(crate) when: When,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventKind {
    /// `kill -9` of the client.
    KillClient,
    /// `kill -9` of a daemon, which is started again, or of the process that ssh has started.
    KillDaemon,
    /// SIGTERM to the client.
    StopClient,
    /// SIGTERM to a daemon, which ends normally and is started again, or to the process that ssh has started.
    StopDaemon,
    /// All connections are closed.
    CutAll,
    /// All connections are reset.
    ResetAll,
    /// One connection is closed.
    CutOne,
    /// No data passes for a while, then all connections are closed.
    StallAndCut,
    /// No data passes for a while.
    Stall,
    /// A bit on the way to the receiver is flipped.
    FlipUp,
    /// A bit on the way to the sender is flipped.
    FlipDown,
    /// Bytes on the way to the receiver are duplicated.
    DoubleUp,
    /// Bytes on the way to the sender are duplicated.
    DoubleDown,
    /// One connection is closed towards the receiver. Further data of the sender is discarded.
    HalfCloseUp,
    /// One connection is closed towards the sender. Further data of the receiver is discarded.
    HalfCloseDown,
}

/// The time of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// After exactly this number of bytes of the attempt has passed the relay to the receiver.
    Bytes(u64),
    /// This time after the previous event, or after the start.
    After(Duration),
}

impl EventKind {
    /// Returns whether the event changes bytes in transit.
    pub(crate) fn harms(self) -> bool {
        matches!(
            self,
            Self::FlipUp | Self::FlipDown | Self::DoubleUp | Self::DoubleDown
        )
    }

    /// Returns the word for the event in the summary.
    pub(crate) fn word(self) -> &'static str {
        WORDS
            .iter()
            .find(|(kind, _, _)| *kind == self)
            .map_or("?", |(_, word, _)| word)
    }
}

/// Draws the events of one attempt, in chronological order.
pub(crate) fn draw(dice: &mut Dice, carrier: Carrier, bytes: u64) -> Vec<Event> {
    let count = 1 + dice.weighted([6, 2, 1].into_iter());
    let mut events: Vec<Event> = (0..count).map(|_| draw_one(dice, carrier, bytes)).collect();
    events.sort_by_key(|event| match event.when {
        When::Bytes(bytes) => bytes,
        When::After(_) => 0,
    });
    events
}

fn draw_one(dice: &mut Dice, carrier: Carrier, bytes: u64) -> Event {
    let weight = |relayed: u64, kind: EventKind| match carrier {
        Carrier::Relay => relayed,
        Carrier::Straight | Carrier::Ssh if kind <= EventKind::StopDaemon => relayed,
        Carrier::Straight | Carrier::Ssh => 0,
    };
    let weights = WORDS
        .iter()
        .map(|(kind, _, relayed)| weight(*relayed, *kind));
    let kind = WORDS[dice.weighted(weights)].0;
    let when = match carrier {
        Carrier::Relay if !dice.one_in(4) => When::Bytes(draw_place(dice, bytes)),
        _ => When::After(Duration::from_micros(
            dice.scaled_within(1_000..=AFTER_MICROS_MAX),
        )),
    };
    Event { kind, when }
}

/// Draws a position anywhere in the data, or near its start: in the handshakes or the first responses.
fn draw_place(dice: &mut Dice, bytes: u64) -> u64 {
    let all = bytes + HANDSHAKE_BYTES;
    if dice.one_in(3) {
        dice.scaled_within(1..=all)
    } else {
        dice.within(1..=all)
    }
}

const WORDS: [(EventKind, &str, u64); 15] = [
    (EventKind::KillClient, "kill-client", 4),
    (EventKind::KillDaemon, "kill-daemon", 5),
    (EventKind::StopClient, "stop-client", 1),
    (EventKind::StopDaemon, "stop-daemon", 2),
    (EventKind::CutAll, "cut-all", 2),
    (EventKind::ResetAll, "reset-all", 2),
    (EventKind::CutOne, "cut-one", 3),
    (EventKind::StallAndCut, "stall-and-cut", 1),
    (EventKind::Stall, "stall", 1),
    (EventKind::FlipUp, "flip-up", 3),
    (EventKind::FlipDown, "flip-down", 1),
    (EventKind::DoubleUp, "double-up", 2),
    (EventKind::DoubleDown, "double-down", 1),
    (EventKind::HalfCloseUp, "half-close-up", 1),
    (EventKind::HalfCloseDown, "half-close-down", 1),
];

const AFTER_MICROS_MAX: u64 = 700_000;
/// Approximate number of bytes that connections transfer before the data of the tree.
const HANDSHAKE_BYTES: u64 = 16 << 10;
