//! What a device does to the requests of a round, and what it has seen of them.

use std::ops::Range;
use std::time::Duration;

use crate::torture::dice::Dice;

/// When something happens, counted from the beginning of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// When so many writes have come.
    Write(u64),
    /// When so many flushes have come.
    Flush(u64),
    /// So many flushes after so many writes of data have come: what has committed meanwhile may speak of data
    /// that has not reached the medium.
    Data { writes: u64, flushes: u64 },
}

/// What a device has seen since a push began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) writes: u64,
    pub(crate) data_writes: u64,
    pub(crate) flushes: u64,
    pub(crate) failed: u64,
    /// Writes that could be lost at the cut.
    pub(crate) pending: u64,
}

/// All faults of a round, mostly none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Data is acknowledged late, as by a disk that puts other writes first.
    late: Option<Late>,
    /// Which writes of data fail.
    failing_data: Range<u64>,
    /// The write of data in which a bit is another, which nobody is told.
    flipped_data: Option<u64>,
    /// Which flushes fail.
    failing_flushes: Range<u64>,
    /// How long flushes take at most.
    flush_millis_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Late {
    one_in: u64,
    millis_max: u64,
}

impl Moment {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        match dice.within(0..=5) {
            0 => Self::Flush(dice.scaled_within(1..=12)),
            1 => Self::Write(dice.scaled_within(1..=600)),
            _ => Self::Data {
                writes: dice.scaled_within(1..=60),
                flushes: dice.within(0..=3),
            },
        }
    }

    /// The same, once the data has come.
    pub(super) fn at_data(self, counts: Counts) -> Self {
        match self {
            Self::Data { writes, flushes: 0 } if writes == counts.data_writes => {
                Self::Write(counts.writes)
            }
            Self::Data { writes, flushes } if writes == counts.data_writes => {
                Self::Flush(counts.flushes + flushes)
            }
            other => other,
        }
    }
}

impl Faults {
    /// Nothing fails; data may be late, flushes slow.
    pub(crate) fn draw_delays(dice: &mut Dice) -> Self {
        let late = Late {
            one_in: dice.within(1..=4),
            millis_max: dice.scaled_within(20..=400),
        };
        let flush_millis_max = if dice.one_in(4) {
            dice.scaled_within(2..=300)
        } else {
            0
        };
        Self {
            late: (!dice.one_in(4)).then_some(late),
            flush_millis_max,
            ..Self::default()
        }
    }

    /// A burst of writes of data that fail.
    pub(crate) fn draw_failing_data(dice: &mut Dice) -> Self {
        let first = dice.scaled_within(1..=100);
        Self {
            failing_data: first..first + dice.scaled_within(1..=200),
            ..Self::default()
        }
    }

    /// A few flushes that fail.
    pub(crate) fn draw_failing_flushes(dice: &mut Dice) -> Self {
        let first = dice.scaled_within(1..=6);
        Self {
            failing_flushes: first..first + dice.within(1..=2),
            ..Self::default()
        }
    }

    /// A bit flips while it is written.
    pub(crate) fn draw_flip(dice: &mut Dice) -> Self {
        Self {
            flipped_data: Some(dice.scaled_within(1..=100)),
            ..Self::default()
        }
    }

    /// Whether nothing fails that anybody is told.
    pub(crate) fn are_silent(&self) -> bool {
        self.flipped_data.is_some()
    }

    /// Whether a bit flips in the data write of this number.
    pub(super) fn data_flips(&self, number: u64) -> bool {
        self.flipped_data == Some(number)
    }

    /// Whether the data write of this number fails.
    pub(super) fn data_fails(&self, number: u64) -> bool {
        self.failing_data.contains(&number)
    }

    /// Whether the flush of this number fails.
    pub(super) fn flush_fails(&self, number: u64) -> bool {
        self.failing_flushes.contains(&number)
    }

    /// How long the answer to a write of data takes.
    pub(super) fn data_delay(&self, dice: &mut Dice) -> Option<Duration> {
        let late = self.late.filter(|late| dice.one_in(late.one_in))?;
        Some(Duration::from_millis(dice.within(1..=late.millis_max)))
    }

    /// How long the answer to a flush takes.
    pub(super) fn flush_delay(&self, dice: &mut Dice) -> Option<Duration> {
        let slow = self.flush_millis_max > 0;
        slow.then(|| Duration::from_millis(dice.within(0..=self.flush_millis_max)))
    }
}
