//! The remembered properties of a network path.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zmove_disk::{CacheValue, today};
use zmove_sender::BestRate;
use zmove_transport::{PathEnds, Transport};
use zmove_types::unix_now;

/// The remembered properties of a network path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRecord {
    /// Number of TCP lanes that suited the path.
    pub lanes: u16,
    /// Whether a congestion control that ignores loss suited the path.
    pub loss_tolerant: bool,
    /// Round trip time when the properties were measured. If the current round trip time is very different, the path is
    /// a different one.
    pub round_trip: Duration,
    /// Rate of the last push, in bytes per second.
    pub bytes_per_second: u64,
    /// Day of the last push over TCP, counted from 1970. If no push used TCP, the day of the last push.
    pub(crate) day: u64,
    /// Best rate of each transport.
    pub rates: Rates,
    /// Bytes that the path recently carried within one round trip.
    pub window: Option<Window>,
}

/// The best rate of each transport over one round trip, in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Rate over TCP, or `None` if TCP was not used.
    pub tcp: Option<u64>,
    /// Rate over QUIC. `None` if QUIC was not used, and zero if it failed to connect.
    pub quic: Option<u64>,
}

/// The amount of data that a path carried within one round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Bytes acknowledged within the shortest round trip on all lanes together, at most [`Window::BYTES_MAX`].
    pub bytes: u64,
    /// Shortest round trip time.
    pub round_trip: Duration,
    /// Addresses of the path's ends.
    pub ends: PathEnds,
    /// Time of the measurement, in seconds since 1970.
    pub(crate) at: u64,
}

/// The measurements of a push. All of them were made on this side, not by a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathMeasurement {
    pub(crate) transport: Transport,
    /// Best rate. `None` if a rate limit was set, because the path and the hosts may then allow a higher rate, or if no
    /// rate was measured.
    pub(crate) at_best: Option<BestRate>,
    pub(crate) ends: Option<PathEnds>,
    /// Whether the path lost data, so that the earlier measurements are too high.
    pub(crate) has_lost: bool,
}

impl PathRecord {
    /// Creates the properties that a push measured today.
    #[must_use]
    pub fn new(
        lanes: u16,
        loss_tolerant: bool,
        round_trip: Duration,
        bytes_per_second: u64,
    ) -> Self {
        Self {
            lanes,
            loss_tolerant,
            round_trip,
            bytes_per_second,
            day: today(),
            rates: Rates::default(),
            window: None,
        }
    }

    /// Returns whether a path with this round trip time can be the same path.
    #[must_use]
    pub fn matches_rtt(&self, round_trip: Duration) -> bool {
        matches_rtt(self.round_trip, round_trip)
    }

    /// Returns these properties, updated with the measurements of a push. `self` contains the rates and the window of
    /// earlier pushes. If an earlier value is higher and no loss occurred, it is kept, because the new push may have
    /// had little to send.
    pub(crate) fn updated_with(self, found: &PathMeasurement) -> Self {
        let PathMeasurement {
            transport,
            has_lost,
            ..
        } = *found;
        let Some(at_best) = found.at_best else {
            return self;
        };
        let best = |before: Option<u64>| {
            before
                .filter(|_| !has_lost)
                .max(Some(at_best.bytes_per_second))
        };
        let Rates { tcp, quic } = self.rates;
        let rates = match transport {
            Transport::Tcp => Rates {
                tcp: best(tcp),
                quic,
            },
            Transport::Quic => Rates {
                tcp,
                quic: best(quic),
            },
            Transport::Ssh => self.rates,
        };
        let window = found.ends.map(|ends| Window::new(at_best, ends));
        let before = self
            .window
            .filter(|before| !has_lost && window.is_none_or(|now| before.is_above(&now)));
        Self {
            rates,
            window: before
                .or(window)
                .filter(|window| window.bytes >= WINDOW_MIN),
            ..self
        }
    }

    /// Returns a copy without a window that is too old to be used.
    pub(super) fn without_old_window(self) -> Self {
        Self {
            window: self.window.filter(|window| window.is_fresh(now())),
            ..self
        }
    }
}

impl Window {
    /// Maximum window of all QUIC lanes together, in bytes. A larger value could not be used.
    pub const BYTES_MAX: u64 = 64 << 20;

    fn new(at_best: BestRate, ends: PathEnds) -> Self {
        let bytes = at_best.bytes_per_round_trip().min(Self::BYTES_MAX);
        Self {
            bytes,
            round_trip: at_best.round_trip,
            ends,
            at: now(),
        }
    }

    /// Returns whether this window is larger than another window of the same path.
    fn is_above(&self, other: &Self) -> bool {
        self.bytes > other.bytes
            && self.ends == other.ends
            && matches_rtt(self.round_trip, other.round_trip)
    }

    /// Returns whether the window is plausible.
    fn is_plausible(self) -> bool {
        (WINDOW_MIN..=Self::BYTES_MAX).contains(&self.bytes)
            && !self.round_trip.is_zero()
            && self.round_trip <= ROUND_TRIP_MAX
    }

    /// Returns whether the window is recent enough to be used. A window from the future is not: the clock was set back,
    /// so the age of the window is unknown.
    fn is_fresh(&self, now: u64) -> bool {
        now.checked_sub(self.at)
            .is_some_and(|age| age <= WINDOW_AGE_MAX)
    }
}

fn matches_rtt(known: Duration, round_trip: Duration) -> bool {
    let near = |one: Duration, other: Duration| one <= other * 2 + ROUND_TRIP_NOISE;
    near(round_trip, known) && near(known, round_trip)
}

impl CacheValue for PathRecord {
    fn is_plausible(&self) -> bool {
        (1..=LANES_MAX).contains(&self.lanes) && self.window.is_none_or(Window::is_plausible)
    }
}

fn now() -> u64 {
    unix_now().as_secs()
}

const LANES_MAX: u16 = zmove_wire::limits::LANES_MAX;
/// Jitter that a busy host adds to a round trip.
const ROUND_TRIP_NOISE: Duration = Duration::from_millis(1);
/// Minimum useful window, in bytes. With a smaller window, a few connections would send as much in their first flights.
const WINDOW_MIN: u64 = 1 << 20;
/// Maximum age of a window, in seconds: one day.
pub(super) const WINDOW_AGE_MAX: u64 = 24 * 60 * 60;
/// Maximum plausible round trip time.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: Duration = Duration::from_millis(90);

    fn ends(there: u8) -> PathEnds {
        PathEnds {
            here: [192, 0, 2, 1].into(),
            there: [192, 0, 2, there].into(),
        }
    }

    fn bare() -> PathRecord {
        PathRecord::new(12, false, TRIP, 118_000_000)
    }

    fn found(bytes_per_second: u64) -> PathMeasurement {
        let at_best = Some(BestRate {
            bytes_per_second,
            round_trip: TRIP,
        });
        PathMeasurement {
            transport: Transport::Tcp,
            at_best,
            ends: Some(ends(9)),
            has_lost: false,
        }
    }

    fn read(text: &str) -> Option<PathRecord> {
        serde_json::from_str(text)
            .ok()
            .filter(PathRecord::is_plausible)
    }

    fn window_of(known: PathRecord) -> Option<u64> {
        known.window.map(|window| window.bytes)
    }

    #[test]
    fn what_is_written_can_be_read() {
        let whole = bare().updated_with(&found(100_000_000));
        let by_quic = whole.updated_with(&PathMeasurement {
            transport: Transport::Quic,
            ..found(50_000_000)
        });
        for known in [bare(), whole, by_quic] {
            let text = serde_json::to_string(&known).unwrap();
            assert_eq!(read(&text), Some(known), "{text}");
        }
        assert_eq!(window_of(by_quic), Some(9_000_000));
        assert_eq!(
            by_quic.rates,
            Rates {
                tcp: Some(100_000_000),
                quic: Some(50_000_000)
            }
        );
    }

    #[test]
    fn a_window_that_cannot_be_is_refused() {
        let text = serde_json::to_string(&bare().updated_with(&found(100_000_000))).unwrap();
        assert!(read(&text).is_some(), "{text}");
        let trip = r#""round_trip":{"secs":0,"nanos":90000000},"ends""#;
        for (right, wrong) in [
            (r#""bytes":9000000"#, r#""bytes":67108865"#),
            (r#""bytes":9000000"#, r#""bytes":1000"#),
            (r#""bytes":9000000"#, r#""bytes":-1"#),
            (r#""bytes":9000000"#, r#""bytes":99999999999999999999"#),
            (trip, r#""round_trip":{"secs":0,"nanos":0},"ends""#),
            (trip, r#""round_trip":{"secs":10,"nanos":1000},"ends""#),
            (r#""here":"192.0.2.1""#, r#""here":"nowhere""#),
            (r#""there":"192.0.2.9""#, r#""there":"""#),
            (r#""at":"#, r#""when":"#),
            (r#""tcp":100000000"#, r#""tcp":"fast""#),
        ] {
            let changed = text.replace(right, wrong);
            assert_ne!(changed, text, "{right}");
            assert_eq!(read(&changed), None, "{wrong}");
        }
    }

    #[test]
    fn a_window_is_bounded_whatever_was_found() {
        assert_eq!(
            window_of(bare().updated_with(&found(u64::MAX))),
            Some(Window::BYTES_MAX)
        );
        assert_eq!(
            window_of(bare().updated_with(&found(5_000_000))),
            None,
            "too little for a jump"
        );
    }

    #[test]
    fn more_is_kept_until_something_is_lost() {
        let known = bare().updated_with(&found(100_000_000));
        let less = found(20_000_000);
        assert_eq!(
            known.updated_with(&less),
            known,
            "it may have had less to send"
        );
        let lost = known.updated_with(&PathMeasurement {
            has_lost: true,
            ..less
        });
        assert_eq!(
            (window_of(lost), lost.rates.tcp),
            (Some(1_800_000), Some(20_000_000))
        );
        let more = known.updated_with(&found(200_000_000));
        assert_eq!(
            (window_of(more), more.rates.tcp),
            (Some(18_000_000), Some(200_000_000))
        );
        assert_eq!(
            known.updated_with(&PathMeasurement {
                at_best: None,
                ..less
            }),
            known
        );
    }

    #[test]
    fn another_path_has_another_window() {
        let known = bare().updated_with(&found(100_000_000));
        assert_eq!(
            window_of(known.updated_with(&PathMeasurement {
                ends: Some(ends(8)),
                ..found(20_000_000)
            })),
            Some(1_800_000)
        );
        let at_best = Some(BestRate {
            bytes_per_second: 20_000_000,
            round_trip: TRIP * 3,
        });
        assert_eq!(
            window_of(known.updated_with(&PathMeasurement {
                at_best,
                ..found(0)
            })),
            Some(5_400_000)
        );
    }

    #[test]
    fn a_window_is_forgotten_in_a_day_and_when_the_clock_is_set_back() {
        let known = bare().updated_with(&found(100_000_000));
        let aged = |at| PathRecord {
            window: known.window.map(|window| Window { at, ..window }),
            ..known
        };
        let now = now();
        assert!(
            aged(now - WINDOW_AGE_MAX + 60)
                .without_old_window()
                .window
                .is_some()
        );
        assert!(
            aged(now - WINDOW_AGE_MAX - 1)
                .without_old_window()
                .window
                .is_none()
        );
        assert!(aged(now + 60).without_old_window().window.is_none());
    }
}
