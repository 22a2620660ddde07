//! The faults of a device in a round, and its counts of requests.

use std::ops::Range;
use std::time::Duration;

use crate::torture::dice::Dice;

/// A point in time, counted from the start of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// After this number of writes.
    Write(u64),
    /// After this number of flushes.
    Flush(u64),
    /// After `flushes` flushes that follow `writes` writes of data. Metadata committed by these flushes may refer to
    /// data that has not reached the medium.
    Data { writes: u64, flushes: u64 },
}

/// The requests that a device has received since a push started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) writes: u64,
    pub(crate) data_writes: u64,
    pub(crate) flushes: u64,
    pub(crate) failed: u64,
    /// Writes that could be lost at the power cut.
    pub(crate) pending: u64,
}

/// All faults of a round. In most rounds there are few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Data is acknowledged late, as by a disk that reorders writes.
    late: Option<Late>,
    /// The range of data writes that fail.
    failing_data: Range<u64>,
    /// The data write in which a bit is flipped without an error.
    flipped_data: Option<u64>,
    /// The range of flushes that fail.
    failing_flushes: Range<u64>,
    /// Maximum duration of a flush, in milliseconds.
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

    /// Converts the time to a count of writes or flushes when the data write to which it refers arrives.
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
    /// Draws delays only: data may be late and flushes slow, but nothing fails.
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

    /// Draws a burst of data writes that fail.
    pub(crate) fn draw_failing_data(dice: &mut Dice) -> Self {
        let first = dice.scaled_within(1..=100);
        Self {
            failing_data: first..first + dice.scaled_within(1..=200),
            ..Self::default()
        }
    }

    /// Draws a few flushes that fail.
    pub(crate) fn draw_failing_flushes(dice: &mut Dice) -> Self {
        let first = dice.scaled_within(1..=6);
        Self {
            failing_flushes: first..first + dice.within(1..=2),
            ..Self::default()
        }
    }

    /// Draws a data write in which a bit is flipped.
    pub(crate) fn draw_flip(dice: &mut Dice) -> Self {
        Self {
            flipped_data: Some(dice.scaled_within(1..=100)),
            ..Self::default()
        }
    }

    /// Returns whether the faults include one that causes no error: a flipped bit.
    pub(crate) fn are_silent(&self) -> bool {
        self.flipped_data.is_some()
    }

    /// Returns whether a bit is flipped in the data write with this number.
    pub(super) fn data_flips(&self, number: u64) -> bool {
        self.flipped_data == Some(number)
    }

    /// Returns whether the data write with this number fails.
    pub(super) fn data_fails(&self, number: u64) -> bool {
        self.failing_data.contains(&number)
    }

    /// Returns whether the flush with this number fails.
    pub(super) fn flush_fails(&self, number: u64) -> bool {
        self.failing_flushes.contains(&number)
    }

    /// Draws the delay of the answer to a data write.
    pub(super) fn data_delay(&self, dice: &mut Dice) -> Option<Duration> {
        let late = self.late.filter(|late| dice.one_in(late.one_in))?;
        Some(Duration::from_millis(dice.within(1..=late.millis_max)))
    }

    /// Draws the delay of the answer to a flush.
    pub(super) fn flush_delay(&self, dice: &mut Dice) -> Option<Duration> {
        let slow = self.flush_millis_max > 0;
        slow.then(|| Duration::from_millis(dice.within(0..=self.flush_millis_max)))
    }
}
