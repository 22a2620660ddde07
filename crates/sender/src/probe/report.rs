//! The report of a probe.

use std::time::Duration;

use zmove_wire::{PathReport, Sampled, Swept};

/// The results of a probe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbeReport {
    /// Round trips of control messages while nothing else was in flight.
    pub round_trips: RoundTrips,
    /// Time from [`ProbeConfig::started`](crate::ProbeConfig::started) until the receiver had the whole first frame.
    /// The receiver's clock is mapped to this side's clock. The error is at most half of the difference between the
    /// delays of the path's two directions.
    pub first_byte: Duration,
    /// Maximum number of lanes that the receiver accepts.
    pub lanes_max: u16,
    /// The rounds, one for each number of lanes.
    pub rounds: Vec<Round>,
    /// Results of the sweep of the target's storage, if one was requested.
    pub swept: Option<Swept>,
}

/// The results of one round of a probe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// Number of lanes.
    pub lanes: u16,
    /// Bytes carried at first, while the windows grew.
    pub ramp: Carried,
    /// Bytes carried after the windows had grown. This is the result of the round.
    pub steady: Carried,
    /// Round trips of control messages during the round. The excess over those without load is queueing delay.
    pub round_trips: RoundTrips,
    /// Mean of the lanes' round-trip times at the end, as estimated by the kernel or QUIC.
    pub smoothed: Option<Duration>,
    /// The path of the lanes' connections, from their first byte to their last.
    pub path: Option<PathReport>,
    /// Kernel name of the lanes' congestion control.
    pub congestion: Option<String>,
    /// CPU time of this process while [`steady`](Self::steady) was measured.
    pub sender_cpu: Duration,
    /// CPU time of the receiver's process in the same interval.
    pub receiver_cpu: Duration,
}

/// Bytes carried in an interval, as counted and timed by the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes of the frames' data.
    pub bytes: u64,
    /// Length of the interval.
    pub time: Duration,
}

/// Statistics of measured round trips.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrips {
    /// Number of round trips.
    pub count: u32,
    /// Shortest round trip, or zero if there are none.
    pub min: Duration,
    sum: Duration,
}

impl Carried {
    /// Returns the bytes and the time between two samples.
    pub(crate) fn between(before: &Sampled, after: &Sampled) -> Self {
        Self {
            bytes: after.bytes.saturating_sub(before.bytes),
            time: Duration::from_micros(after.clock_us.saturating_sub(before.clock_us)),
        }
    }

    /// Returns the rate in bytes per second, or 0 if no time has passed.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        zmove_types::ByteRate::new(self.bytes, self.time).0
    }
}

impl RoundTrips {
    /// Returns the statistics of these round trips.
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

    /// Returns the mean round trip, or zero if there are none.
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
