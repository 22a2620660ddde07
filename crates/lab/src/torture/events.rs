//! What happens to a transfer, and when.

use std::time::Duration;

use super::dice::Dice;
use super::options::Carrier;

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) kind: EventKind,
    pub(crate) when: When,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventKind {
    /// `kill -9` of the client.
    KillClient,
    /// `kill -9` of a daemon, which is started again, or of what ssh has started.
    KillDaemon,
    /// SIGTERM to the client.
    StopClient,
    /// SIGTERM to a daemon, which ends well and is started again, or to what ssh has started.
    StopDaemon,
    /// All connections are closed.
    CutAll,
    /// All connections are reset.
    ResetAll,
    /// One connection is closed.
    CutOne,
    /// Nothing goes on for a while, then all connections are closed.
    StallAndCut,
    /// Nothing goes on for a while.
    Stall,
    /// A bit on its way to the receiver is another.
    FlipUp,
    /// A bit on its way to the sender is another.
    FlipDown,
    /// Bytes on their way to the receiver come twice.
    DoubleUp,
    /// Bytes on their way to the sender come twice.
    DoubleDown,
    /// One connection ends for the receiver; what the sender says on it goes nowhere.
    HalfCloseUp,
    /// One connection ends for the sender; what the receiver says on it goes nowhere.
    HalfCloseDown,
}

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// So many bytes of this try have passed the relay to the receiver, not one more.
    Bytes(u64),
    /// So long after the event before it, or after the start.
    After(Duration),
}

impl EventKind {
    /// Whether it changes bytes on their way.
    pub(crate) fn harms(self) -> bool {
        matches!(
            self,
            Self::FlipUp | Self::FlipDown | Self::DoubleUp | Self::DoubleDown
        )
    }

    /// The word for it in the summary.
    pub(crate) fn word(self) -> &'static str {
        WORDS
            .iter()
            .find(|(kind, _, _)| *kind == self)
            .map_or("?", |(_, word, _)| word)
    }
}

/// The events of one try, in the order in which they happen.
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

/// Anywhere in what may pass, or near its beginning: in the handshakes, in the first answers.
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
/// About what connections say before they carry a tree.
const HANDSHAKE_BYTES: u64 = 16 << 10;
