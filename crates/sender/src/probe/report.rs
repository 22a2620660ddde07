//! What a probe has found.

use std::time::Duration;

use zmove_wire::{Sampled, Swept};

use crate::tune::path::PathReport;

/// What a probe has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbeReport {
    /// Round trips of control messages while nothing else was under way.
    pub round_trips: RoundTrips,
    /// From [`ProbeConfig::started`](crate::ProbeConfig::started) until the first frame of data was whole at the
    /// receiver, by its clock; this side's tells when that was, but for half of what a round trip may differ in its
    /// two directions.
    pub first_byte: Duration,
    /// The most lanes that the receiver takes.
    pub lanes_max: u16,
    /// One for each number of lanes.
    pub rounds: Vec<Round>,
    /// What the storage at the target gives, where that was asked.
    pub swept: Option<Swept>,
}

/// One round of a probe: what a number of lanes has carried.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The number of lanes.
    pub lanes: u16,
    /// What came at first, while the windows grew.
    pub ramp: Carried,
    /// What came after that: the figure of this round.
    pub steady: Carried,
    /// Round trips of control messages meanwhile: beyond those without data, the time spent in queues.
    pub round_trips: RoundTrips,
    /// The mean of the lanes' round trips at the end, as the kernel or QUIC estimates them.
    pub smoothed: Option<Duration>,
    /// The connections of the lanes, from their first byte to their last.
    pub path: Option<PathReport>,
    /// The congestion control of the lanes, by its kernel name.
    pub congestion: Option<String>,
    /// The CPU time of this process while [`steady`](Self::steady) was measured.
    pub sender_cpu: Duration,
    /// CPU time of the receiver's process.
    pub receiver_cpu: Duration,
}

/// Bytes that came in a time, both by the receiver's count and clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Of the frames' data.
    pub bytes: u64,
    /// In so long.
    pub time: Duration,
}

/// Round trips that were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// The number of lanes.
    pub count: u32,
    /// The shortest; zero without any.
    pub min: Duration,
    sum: Duration,
}

impl Carried {
    /// The bytes and the time between two samples.
    pub(crate) fn between(before: &Sampled, after: &Sampled) -> Self {
        Self {
            bytes: after.bytes.saturating_sub(before.bytes),
            time: Duration::from_micros(after.clock_us.saturating_sub(before.clock_us)),
        }
    }

    /// The rate, in bytes per second; 0 where no time has passed.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        zmove_types::ByteRate::new(self.bytes, self.time).0
    }
}

impl RoundTrips {
    /// Those that were seen.
    #[must_use]
    pub fn of(seen: &[Duration]) -> Self {
        let mut all = Self::default();
        seen.iter().for_each(|one| all.add(*one));
        all
    }

    pub(crate) fn add(&mut self, one: Duration) {
        self.min = if self.count == 0 { one } else { self.min.min(one) };
        self.count += 1;
        self.sum += one;
    }

    /// The mean; zero without any.
    #[must_use]
    pub fn mean(&self) -> Duration {
        self.sum / self.count.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_have_a_least_and_a_mean() {
        let none = RoundTrips::default();
        assert_eq!((none.min, none.mean()), (Duration::ZERO, Duration::ZERO));
        let seen = RoundTrips::of(&[30, 10, 20].map(Duration::from_millis));
        let expected = (3, Duration::from_millis(10), Duration::from_millis(20));
        assert_eq!((seen.count, seen.min, seen.mean()), expected);
    }

    #[test]
    fn a_rate_is_what_came_by_the_receivers_clock() {
        let sampled = |clock_us, bytes| Sampled { clock_us, bytes, ..Sampled::default() };
        let carried = Carried::between(&sampled(1_000_000, 500), &sampled(3_000_000, 4_500));
        assert_eq!(carried, Carried { bytes: 4_000, time: Duration::from_secs(2) });
        assert!((carried.bytes_per_second() - 2_000.0).abs() < 1e-9);
        assert!(Carried::default().bytes_per_second().abs() < 1e-9);
    }
}
