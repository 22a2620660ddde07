//! The report of a probe.

use std::time::Duration;

use zmove_wire::{PathReport, Sampled, Swept};

/// The results of a probe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbeReport {
    /// Round trips of control messages while nothing else was under way.
    pub round_trips: RoundTrips,
    /// From [`ProbeConfig::started`](crate::ProbeConfig::started) until the receiver had the whole first frame. The
    /// receiver's clock is mapped to this side's; the error is up to half of what the path's two directions differ.
    pub first_byte: Duration,
    /// The most lanes that the receiver takes.
    pub lanes_max: u16,
    /// One round for each number of lanes.
    pub rounds: Vec<Round>,
    /// The results of the sweep of the target's storage, where one was asked for.
    pub swept: Option<Swept>,
}

/// One round of a probe: what a number of lanes has carried.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The number of lanes.
    pub lanes: u16,
    /// The bytes carried at first, while the windows grew.
    pub ramp: Carried,
    /// The bytes carried after that: the result of this round.
    pub steady: Carried,
    /// Round trips of control messages during the round: what exceeds those without data is time spent in queues.
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

/// Bytes carried in a time, both by the receiver's count and clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// The bytes of the frames' data.
    pub bytes: u64,
    /// The time.
    pub time: Duration,
}

/// The round trips that were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// The number of round trips.
    pub count: u32,
    /// The shortest round trip; zero where there is none.
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
    /// A summary of these round trips.
    #[must_use]
    pub fn of(seen: &[Duration]) -> Self {
        let mut all = Self::default();
        seen.iter().for_each(|one| all.add(*one));
        all
    }

    pub(crate) fn add(&mut self, one: Duration) {
        self.min = if self.count == 0 {
            one
        } else {
            self.min.min(one)
        };
        self.count += 1;
        self.sum += one;
    }

    /// The mean; zero where there is none.
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
        let sampled = |clock_us, bytes| Sampled {
            clock_us,
            bytes,
            ..Sampled::default()
        };
        let carried = Carried::between(&sampled(1_000_000, 500), &sampled(3_000_000, 4_500));
        assert_eq!(
            carried,
            Carried {
                bytes: 4_000,
                time: Duration::from_secs(2)
            }
        );
        assert!((carried.bytes_per_second() - 2_000.0).abs() < 1e-9);
        assert!(Carried::default().bytes_per_second().abs() < 1e-9);
    }
}
