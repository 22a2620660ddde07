//! Decides whether QUIC is tried before TCP, if the user has not chosen a transport and the path is known.
//!
//! TCP needs less CPU and is faster. QUIC can start with half of the window that the path carried recently, while TCP
//! doubles its initial windows once per round trip. QUIC is therefore tried first if the round trips that it saves take
//! longer than its lower rate costs for the whole push:
//!
//! ```text
//! round trip × log2(window ÷ TCP's first windows)  >  bytes ÷ rate of QUIC − bytes ÷ rate of TCP
//! ```
//!
//! In addition, the push must not be larger than a few windows. The rates are the best that were measured on this path.
//! If QUIC was not used yet, its rate is estimated from hosts without spare cores. The comparison needs the total size
//! of the push, so the dial waits for the scan for a fraction of the round trip. TCP is tried first if the scan takes
//! longer.

use std::time::Duration;

use zmove_sender::LaneDemand;
use zmove_transport::{QuicCongestion, TransportChoice};
use zmove_wire::Cipher;

use super::machine::{LANES_AT_ONCE, LOCAL_RTT};
use crate::connecting::path_memory::{PathRecord, Rates, Window};
use crate::connecting::settings::DialSettings;

/// Returns how long QUIC is tried alone before TCP is dialed, or `None` if QUIC is not tried first.
pub(super) async fn quic_head_start(
    settings: &DialSettings,
    known: Option<PathRecord>,
    need: Option<&LaneDemand>,
) -> Option<Duration> {
    let free = settings.reach.transport == TransportChoice::Auto
        && settings.reach.quic_congestion == QuicCongestion::default()
        && settings.reach.socket.congestion.is_none()
        && settings.cipher == Cipher::Tls
        && settings.limit.is_none();
    let known = known.filter(|_| free)?;
    let need = need?;
    let most = bytes_max(&known)?;
    let round_trip = known.window?.round_trip;
    let until = tokio::time::Instant::now() + round_trip / SCAN_SHARE;
    while need.lanes().is_none() && need.bytes() <= most && tokio::time::Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let soon = need.lanes().is_some() && need.bytes() <= most;
    soon.then_some(round_trip * HANDSHAKE_ROUND_TRIPS + LATE_HOST)
}

/// Returns the largest push, in bytes, that QUIC is likely to complete before TCP, or `None` if there is none.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
fn bytes_max(known: &PathRecord) -> Option<u64> {
    let Window {
        bytes, round_trip, ..
    } = known
        .window
        .filter(|window| window.round_trip >= LOCAL_RTT)?;
    let first = f64::from(LANES_AT_ONCE) * FIRST_WINDOW_BYTES;
    let saved = round_trip.as_secs_f64() * (bytes as f64 / first).log2();
    let at_most = Window::BYTES_MAX as f64 / round_trip.as_secs_f64();
    let (tcp, quic) = match known.rates {
        Rates { quic: Some(0), .. }
        | Rates {
            tcp: None,
            quic: None,
        } => return None,
        Rates {
            tcp: Some(tcp),
            quic: Some(quic),
        } => (tcp as f64, quic as f64),
        Rates {
            tcp: Some(tcp),
            quic: None,
        } => (tcp as f64, (tcp as f64 * QUIC_SHARE).min(at_most)),
        Rates {
            tcp: None,
            quic: Some(quic),
        } => (quic as f64 / QUIC_SHARE, quic as f64),
    };
    let costs_by_byte = (1.0 / quic - 1.0 / tcp).max(f64::MIN_POSITIVE);
    let bytes_max = (saved / costs_by_byte).min(bytes as f64 * WINDOWS_MAX);
    (saved > 0.0).then_some(bytes_max as u64)
}

/// Initial window of TCP with packets of 9,000 bytes. With the smaller packets of Ethernet, QUIC gains more.
const FIRST_WINDOW_BYTES: f64 = 90_000.0;
/// QUIC's rate relative to TCP's if the CPU is the limit.
const QUIC_SHARE: f64 = 0.6;
/// Maximum size of the push, as a multiple of the window. A rate that was measured while TCP was starting may be far
/// below the rate of a longer push.
const WINDOWS_MAX: f64 = 8.0;
/// The dial waits for the scan for the round trip time divided by this number.
const SCAN_SHARE: u32 = 3;
/// Number of round trips that a QUIC handshake may take. One is for a receiver that validates the address (Retry), and
/// one for a delayed packet.
const HANDSHAKE_ROUND_TRIPS: u32 = 3;
const LATE_HOST: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use zmove_sender::BestRate;
    use zmove_transport::{PathEnds, Transport};

    use super::*;
    use crate::connecting::path_memory::PathMeasurement;

    /// Returns the properties of a path with a round trip of 90 ms after pushes at these rates.
    fn known(tcp: u64, quic: Option<u64>) -> PathRecord {
        let round_trip = Duration::from_millis(90);
        let ends = PathEnds {
            here: [192, 0, 2, 1].into(),
            there: [192, 0, 2, 9].into(),
        };
        let found = |transport, bytes_per_second| PathMeasurement {
            transport,
            at_best: Some(BestRate {
                bytes_per_second,
                round_trip,
            }),
            ends: Some(ends),
            has_lost: false,
        };
        let known =
            PathRecord::new(12, false, round_trip, tcp).updated_with(&found(Transport::Tcp, tcp));
        quic.map_or(known, |quic| {
            known.updated_with(&found(Transport::Quic, quic))
        })
    }

    fn mebibytes_max(known: &PathRecord) -> Option<u64> {
        bytes_max(known).map(|bytes| bytes >> 20)
    }

    #[test]
    fn quic_is_for_what_is_sent_while_tcp_begins() {
        // QUIC saves half a second, and reaches 0.3 of TCP's rate.
        assert_eq!(
            mebibytes_max(&known(1_000_000_000, Some(300_000_000))),
            Some(219)
        );
    }

    #[test]
    fn as_fast_as_tcp_it_is_still_for_short_pushes() {
        assert_eq!(
            mebibytes_max(&known(1_000_000_000, Some(1_000_000_000))),
            Some(8 * 64)
        );
        assert_eq!(
            bytes_max(&known(100_000_000, Some(100_000_000))),
            Some(8 * 9_000_000)
        );
    }

    #[test]
    fn tcp_goes_first_where_little_is_known_or_nothing_is_gained() {
        let fast = known(1_000_000_000, None);
        assert_eq!(
            bytes_max(&PathRecord {
                window: None,
                ..fast
            }),
            None
        );
        let blocked = Rates {
            quic: Some(0),
            ..fast.rates
        };
        assert_eq!(
            bytes_max(&PathRecord {
                rates: blocked,
                ..fast
            }),
            None,
            "QUIC did not get through"
        );
        assert_eq!(
            bytes_max(&PathRecord {
                rates: Rates::default(),
                ..fast
            }),
            None
        );
        assert_eq!(
            bytes_max(&known(11_700_000, None)),
            None,
            "TCP's first windows hold as much"
        );
        let near = |window: Window| Window {
            round_trip: Duration::from_millis(1),
            ..window
        };
        assert_eq!(
            bytes_max(&PathRecord {
                window: fast.window.map(near),
                ..fast
            }),
            None
        );
    }
}
