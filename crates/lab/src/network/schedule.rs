//! Computes when a packet leaves the emulated path: bottleneck, queue, loss and delay.
//!
//! The computation uses virtual times and has no side effects. The reading thread of each direction in `path.rs` calls
//! it. **Invariant:** due times never decrease, so a direction is a first-in, first-out queue.

use std::time::Duration;

use crate::units::{LossShare, Rate};

/// The properties of one direction of the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkShape {
    /// The bottleneck rate. `None` if the rate is not limited.
    pub(crate) rate: Option<Rate>,
    /// Maximum number of bytes in the queue before the bottleneck. Without a rate limit: maximum number of bytes in
    /// flight.
    pub(crate) queue_bytes_max: u64,
    /// Time from the bottleneck to the far end.
    pub(crate) delay: Duration,
    /// Fraction of packets that are lost.
    pub(crate) loss: LossShare,
}

/// The fate of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The packet arrives at this time.
    Due(Duration),
    /// The packet is lost.
    Dropped,
}

/// The state of one direction.
#[derive(Debug)]
pub(crate) struct Schedule {
    shape: LinkShape,
    free_at: Duration,
    dice: Dice,
}

impl Schedule {
    pub(crate) fn new(shape: LinkShape, seed: u64) -> Self {
        Self {
            shape,
            free_at: Duration::ZERO,
            dice: Dice::new(seed),
        }
    }

    /// Decides the fate of a packet of `wire_bytes` that enters the path at `now`.
    pub(crate) fn admit(&mut self, now: Duration, wire_bytes: u64) -> Fate {
        if self.shape.loss.0 > 0.0 && self.dice.roll() < self.shape.loss.0 {
            return Fate::Dropped;
        }
        let Some(rate) = self.shape.rate else {
            return Fate::Due(now + self.shape.delay);
        };
        let waiting = self.free_at.saturating_sub(now);
        if rate.bytes_in(waiting) + wire_bytes > self.shape.queue_bytes_max.max(wire_bytes) {
            return Fate::Dropped;
        }
        self.free_at = self.free_at.max(now) + rate.duration_of(wire_bytes);
        Fate::Due(self.free_at + self.shape.delay)
    }
}

/// A small random number generator (xorshift64*) with a uniform distribution and a fixed seed.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Returns a random number in the range from 0 (inclusive) to 1 (exclusive).
    fn roll(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = u32::try_from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32)
            .expect("32 bits are left");
        f64::from(high) / (f64::from(u32::MAX) + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn shape(rate: Option<Rate>) -> LinkShape {
        LinkShape {
            rate,
            queue_bytes_max: 250_000,
            delay: 45 * MILLISECOND,
            loss: LossShare(0.0),
        }
    }

    #[test]
    fn without_a_rate_only_the_delay_counts() {
        let mut schedule = Schedule::new(shape(None), 1);
        assert_eq!(
            schedule.admit(MILLISECOND, 64_000),
            Fate::Due(46 * MILLISECOND)
        );
        assert_eq!(
            schedule.admit(MILLISECOND, 64_000),
            Fate::Due(46 * MILLISECOND)
        );
    }

    #[test]
    fn packets_follow_each_other_at_the_rate() {
        let mut schedule = Schedule::new(shape(Some(Rate(1_000_000_000))), 1);
        assert_eq!(
            schedule.admit(Duration::ZERO, 125_000),
            Fate::Due(46 * MILLISECOND)
        );
        assert_eq!(
            schedule.admit(Duration::ZERO, 125_000),
            Fate::Due(47 * MILLISECOND)
        );
        assert_eq!(
            schedule.admit(10 * MILLISECOND, 125_000),
            Fate::Due(56 * MILLISECOND)
        );
    }

    #[test]
    fn a_full_queue_drops_and_drains_again() {
        let mut schedule = Schedule::new(shape(Some(Rate(1_000_000_000))), 1);
        assert_eq!(
            schedule.admit(Duration::ZERO, 125_000),
            Fate::Due(46 * MILLISECOND)
        );
        assert_eq!(
            schedule.admit(Duration::ZERO, 125_000),
            Fate::Due(47 * MILLISECOND)
        );
        assert_eq!(schedule.admit(Duration::ZERO, 125_000), Fate::Dropped);
        assert_eq!(
            schedule.admit(MILLISECOND, 125_000),
            Fate::Due(48 * MILLISECOND)
        );
    }

    #[test]
    fn loss_comes_near_the_share_asked() {
        let lossy = LinkShape {
            loss: LossShare(0.1),
            ..shape(None)
        };
        let mut schedule = Schedule::new(lossy, 7);
        let lost = (0..10_000)
            .filter(|_| schedule.admit(Duration::ZERO, 1_500) == Fate::Dropped)
            .count();
        assert!((850..1_150).contains(&lost), "{lost} of 10000 lost");
    }
}
