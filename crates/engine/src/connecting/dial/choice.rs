//! Which transport goes first, where the user leaves it open and the path is known.
//!
//! TCP costs less CPU and carries more; QUIC may jump to half the window that the path has carried lately, where TCP
//! doubles its first windows once in a round trip. So QUIC goes first where the round trips that this saves are
//! longer than what its lower rate costs for all that is to be sent:
//!
//! ```text
//! round trip × log2(window ÷ TCP's first windows)  >  bytes ÷ rate of QUIC − bytes ÷ rate of TCP
//! ```
//!
//! and where all that is to be sent is no more than some windows. The rates are the best that were seen on this path;
//! QUIC that was not used yet is taken to be as much slower as on hosts that have no cores to spare. All that is to be
//! sent must be known for it, so the scan is waited for, for a part of the round trip; TCP goes first where it has not
//! ended by then.

use std::time::Duration;

use zmove_sender::Need;
use zmove_transport::{QuicCongestion, TransportChoice};
use zmove_wire::Cipher;

use super::machine::{LANES_AT_ONCE, LOCAL_RTT};
use crate::connecting::path_memory::{Known, Rates, Window};
use crate::connecting::settings::DialSettings;

/// For how long TCP waits for QUIC, if QUIC goes first.
pub(super) async fn quic_head_start(
    settings: &DialSettings,
    known: Option<Known>,
    need: Option<&Need>,
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

/// The most that QUIC is likely to bring sooner than TCP; none where there is nothing that it would.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
fn bytes_max(known: &Known) -> Option<u64> {
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

/// A first window of TCP with packets of 9,000 bytes; with those of Ethernet QUIC gains more.
const FIRST_WINDOW_BYTES: f64 = 90_000.0;
/// QUIC's rate as a part of TCP's where the cores are the limit.
const QUIC_SHARE: f64 = 0.6;
/// The most windows in all: a rate that was seen while TCP began may be far below the rate of a longer push.
const WINDOWS_MAX: f64 = 8.0;
/// The part of a round trip for which the dial waits for the scan.
const SCAN_SHARE: u32 = 3;
/// With one more for a receiver that asks back, and one for a packet that is late.
const HANDSHAKE_ROUND_TRIPS: u32 = 3;
const LATE_HOST: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use zmove_sender::AtBest;
    use zmove_transport::{PathEnds, Transport};

    use super::*;
    use crate::connecting::path_memory::Found;

    /// What is known of a path of 90 ms after pushes at these rates.
    fn known(tcp: u64, quic: Option<u64>) -> Known {
        let round_trip = Duration::from_millis(90);
        let ends = PathEnds {
            here: [192, 0, 2, 1].into(),
            there: [192, 0, 2, 9].into(),
        };
        let found = |transport, bytes_per_second| Found {
            transport,
            at_best: Some(AtBest {
                bytes_per_second,
                round_trip,
            }),
            ends: Some(ends),
            has_lost: false,
        };
        let known = Known::new(12, false, round_trip, tcp).after(&found(Transport::Tcp, tcp));
        quic.map_or(known, |quic| known.after(&found(Transport::Quic, quic)))
    }

    fn mebibytes_max(known: &Known) -> Option<u64> {
        bytes_max(known).map(|bytes| bytes >> 20)
    }

    #[test]
    fn quic_is_for_what_is_sent_while_tcp_begins() {
        // half a second saved, against 0.3 of TCP's rate
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
            bytes_max(&Known {
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
            bytes_max(&Known {
                rates: blocked,
                ..fast
            }),
            None,
            "QUIC did not get through"
        );
        assert_eq!(
            bytes_max(&Known {
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
            bytes_max(&Known {
                window: fast.window.map(near),
                ..fast
            }),
            None
        );
    }
}
