//! The congestion control of QUIC lanes by default: CUBIC that does not take single lost packets for congestion.
//!
//! On a long path CUBIC needs thousands of packets in a row to arrive for its window to fill it; one lost in ten
//! thousand keeps it at a few per cent. A queue shows in the round trip, and noise does not (this is the criterion of
//! TCP Veno), so a loss counts where packets have queued, where more than a few per cent are lost (the bound of BBR's
//! later versions), where the network marks packets, and where all packets of some time were lost. **Invariant:**
//! losses that count go to CUBIC unchanged, so that a path with a queue of a usual size is shared as CUBIC shares it.
//!
//! On a short path without a rate limit a packet is lost only where a host is late, so CUBIC would fill the receiver's
//! buffer until that overflows, with memory that is in no cache any more. So the window also has a limit by the round
//! trip.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, Cubic, CubicConfig};
use quinn_proto::RttEstimator;

/// Makes a controller for each connection.
#[derive(Debug)]
pub(super) struct TolerantConfig(pub(super) Arc<CubicConfig>);

#[derive(Clone, Debug)]
struct Tolerant {
    cubic: Cubic,
    round_trip: Duration,
    round_trip_min: Duration,
    round: Round,
    last_round: Round,
    round_started: Instant,
}

/// The acknowledged and lost bytes of about a round trip.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    bytes_acked: u64,
    bytes_lost: u64,
}

impl Tolerant {
    /// Whether packets are queued somewhere on the path, or have been until just now.
    fn has_queue(&self) -> bool {
        let slack = (self.round_trip_min / QUEUE_SHARE).max(QUEUE_MIN);
        self.round_trip > self.round_trip_min + slack
    }

    /// Whether so much is lost that it cannot be noise.
    fn loses_much(&self) -> bool {
        let lost = self.round.bytes_lost + self.last_round.bytes_lost;
        let sent = lost + self.round.bytes_acked + self.last_round.bytes_acked;
        lost > NOISE_BYTES_MIN.max(sent / NOISE_SHARE)
    }

    /// The most bytes worth having on their way: what the fastest connection carries in a round trip, and slack for
    /// late hosts.
    fn window_max(&self) -> u64 {
        let microseconds = u64::try_from(self.round_trip_min.as_micros()).unwrap_or(u64::MAX);
        WINDOW_SLACK_BYTES.saturating_add(microseconds.saturating_mul(BYTES_PER_MICROSECOND_MAX))
    }

    fn turn_round(&mut self, now: Instant) {
        if now.saturating_duration_since(self.round_started) > self.round_trip {
            self.last_round = std::mem::take(&mut self.round);
            self.round_started = now;
        }
    }
}

/// The least queue: more than this share of the round trip, and more than a busy host adds.
const QUEUE_SHARE: u32 = 8;
const QUEUE_MIN: Duration = Duration::from_millis(4);
/// One byte in so many may be lost by noise.
const NOISE_SHARE: u64 = 50;
/// The least lost bytes from which a share can be judged.
const NOISE_BYTES_MIN: u64 = 16 << 10;

/// The slack: a receiver that waits a few milliseconds for a core finds no more than this from each connection.
const WINDOW_SLACK_BYTES: u64 = 1 << 20;
/// The fastest rate: 10 Gbit/s, more than one connection of quinn reaches.
const BYTES_PER_MICROSECOND_MAX: u64 = 1_250;

impl Controller for Tolerant {
    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.round_trip = rtt.get();
        self.round_trip_min = rtt.min();
        self.turn_round(now);
        self.round.bytes_acked += bytes;
        // A window that grows unused would not shrink in time when something is lost.
        let unused = app_limited || self.cubic.window() >= self.window_max();
        self.cubic.on_ack(now, sent, bytes, unused, rtt);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        self.turn_round(now);
        self.round.bytes_lost += lost_bytes;
        let marked = lost_bytes == 0;
        if persistent || marked || self.has_queue() || self.loses_much() {
            self.cubic.on_congestion_event(now, sent, persistent, lost_bytes);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window().min(self.window_max())
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl ControllerFactory for TolerantConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Tolerant {
            cubic: Cubic::new(Arc::clone(&self.0), now, current_mtu),
            round_trip: Duration::ZERO,
            round_trip_min: Duration::ZERO,
            round: Round::default(),
            last_round: Round::default(),
            round_started: now,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 1_400;
    const LONG: Duration = Duration::from_millis(90);

    fn controller(round_trip: Duration, acked: u64) -> (Tolerant, Instant) {
        let now = Instant::now();
        let tolerant = Tolerant {
            cubic: Cubic::new(Arc::new(CubicConfig::default()), now, 1_400),
            round_trip,
            round_trip_min: LONG,
            round: Round { bytes_acked: acked, bytes_lost: 0 },
            last_round: Round::default(),
            round_started: now,
        };
        (tolerant, now)
    }

    /// Whether the window is smaller after `packets` have been lost one after the other.
    fn gives_way(mut tolerant: Tolerant, now: Instant, packets: u32) -> bool {
        let before = tolerant.window();
        for number in 1..=packets {
            let sent = now + Duration::from_micros(number.into());
            tolerant.on_congestion_event(sent + LONG / 2, sent, false, PACKET);
        }
        tolerant.window() < before
    }

    #[test]
    fn a_packet_lost_without_a_queue_is_noise() {
        let (tolerant, now) = controller(LONG, 10_000 * PACKET);
        assert!(!gives_way(tolerant, now, 1));
    }

    #[test]
    fn a_packet_lost_with_a_queue_is_congestion() {
        let (tolerant, now) = controller(LONG * 5 / 4, 10_000 * PACKET);
        assert!(gives_way(tolerant, now, 1));
    }

    #[test]
    fn many_lost_are_congestion_whatever_the_round_trip() {
        let (tolerant, now) = controller(LONG, 1_000 * PACKET);
        assert!(!gives_way(tolerant.clone(), now, 15));
        assert!(gives_way(tolerant, now, 30));
    }

    #[test]
    fn marks_and_the_loss_of_everything_always_count() {
        for (persistent, bytes) in [(false, 0), (true, PACKET)] {
            let (mut tolerant, now) = controller(LONG, 10_000 * PACKET);
            let before = tolerant.window();
            tolerant.on_congestion_event(now + LONG, now + LONG / 2, persistent, bytes);
            assert!(tolerant.window() < before);
        }
    }

    #[test]
    fn a_short_path_bounds_the_window() {
        let window = |round_trip_min| {
            let (mut tolerant, now) = controller(round_trip_min, 0);
            tolerant.round_trip_min = round_trip_min;
            let mut config = CubicConfig::default();
            config.initial_window(FULL);
            tolerant.cubic = Cubic::new(Arc::new(config), now, 1_400);
            tolerant.window()
        };
        assert_eq!(window(Duration::from_micros(200)), (1 << 20) + 250_000);
        assert_eq!(window(Duration::from_millis(10)), (1 << 20) + 12_500_000);
        assert_eq!(window(LONG), FULL);
    }

    /// A window that fills 90 ms of more than 1 Gbit/s.
    const FULL: u64 = 16 << 20;
}
