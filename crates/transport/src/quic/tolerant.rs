//! The congestion control of QUIC lanes by default: CUBIC that does not take single lost packets for congestion.
//!
//! On a long path CUBIC needs thousands of packets in a row to arrive for its window to fill it; one lost in ten
//! thousand keeps it at a few per cent. A queue shows in the round trip, and noise does not (this is the criterion of
//! TCP Veno), so a loss counts where packets have queued, where more than a few per cent are lost (the bound of BBR's
//! later versions), where the network marks packets, and where all packets of some time were lost. **Invariant:**
//! losses that count go to CUBIC unchanged, so that a path with a queue of a usual size is shared as CUBIC shares it.
//!
//! On a short path without a rate limit nothing is ever lost but where a host is late, so CUBIC would fill
//! the receiver's buffer until that runs over, with memory that is in no cache any more. So the window also
//! has a bound by the round trip.
//!
//! Where the path is known, [`resume`](super::resume) takes the window over for two round trips.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, Cubic, CubicConfig};
use quinn_proto::RttEstimator;

use super::resume::{AckMoment, Resume, Start, WindowAllowance};

/// Makes one for each connection.
#[derive(Debug)]
pub(super) struct TolerantConfig {
    pub(super) cubic: CubicConfig,
    pub(super) first_flight_bytes: u64,
    /// What is known of the path, and what it brings now.
    pub(super) account: Arc<PathAccount>,
}

/// What one connection knows of its path.
#[derive(Debug, Default)]
pub(super) struct PathAccount {
    /// What was found of the path before.
    pub(super) allowance: Option<Arc<WindowAllowance>>,
    /// The bytes of the packets that were acknowledged; other congestion controls do not count them.
    pub(super) acked: AtomicU64,
}

#[derive(Clone, Debug)]
struct Tolerant {
    config: Arc<TolerantConfig>,
    cubic: Cubic,
    resume: Resume,
    /// Where slow start ends, if not at the next congestion.
    threshold: Option<u64>,
    datagram: u16,
    round_trip: Duration,
    round_trip_min: Duration,
    round: LossRound,
    last_round: LossRound,
    round_started: Instant,
}

/// The acknowledged and lost bytes of about a round trip.
#[derive(Clone, Copy, Debug, Default)]
struct LossRound {
    bytes_acked: u64,
    bytes_lost: u64,
}

impl Tolerant {
    fn new(config: Arc<TolerantConfig>, now: Instant, datagram: u16) -> Self {
        Self {
            cubic: Cubic::new(Arc::new(config.cubic.clone()), now, datagram),
            resume: Resume::new(config.account.allowance.clone()),
            threshold: None,
            datagram,
            round_trip: Duration::ZERO,
            round_trip_min: Duration::ZERO,
            round: LossRound::default(),
            last_round: LossRound::default(),
            round_started: now,
            config,
        }
    }

    /// Whether packets wait somewhere on the path, or have until just now.
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

    /// Now, for [`Resume`], with more to send.
    fn moment(&self, now: Instant, in_flight: u64) -> AckMoment {
        AckMoment {
            now,
            window: self.cubic.window(),
            window_max: self.window_max(),
            window_initial: self.initial_window(),
            in_flight,
            more_waits: true,
            round_trip: self.round_trip,
            round_trip_min: self.round_trip_min,
            datagram: self.datagram.into(),
        }
    }

    /// CUBIC from a window on, in slow start.
    fn begin_anew(&mut self, now: Instant, start: Start) {
        self.cubic = self.cubic_at(start.window, now);
        self.threshold = start.threshold;
        self.end_slow_start(now);
    }

    fn cubic_at(&self, window: u64, now: Instant) -> Cubic {
        let config = self.config.cubic.clone().initial_window(window).clone();
        Cubic::new(Arc::new(config), now, self.datagram)
    }

    /// CUBIC has no other threshold than what a congestion leaves of its window.
    fn end_slow_start(&mut self, now: Instant) {
        if let Some(threshold) = self
            .threshold
            .filter(|threshold| self.cubic.window() >= *threshold)
        {
            self.cubic = self.cubic_at(threshold * 10 / LEFT_TENTHS, now);
            self.cubic
                .on_congestion_event(now, now, false, u64::from(self.datagram));
            self.threshold = None;
        }
    }

    fn turn_round(&mut self, now: Instant) {
        if now.saturating_duration_since(self.round_started) > self.round_trip {
            self.last_round = std::mem::take(&mut self.round);
            self.round_started = now;
        }
    }
}

/// What CUBIC leaves of a window after congestion (RFC 9438).
const LEFT_TENTHS: u64 = 7;
/// quinn's first guess of a round trip (RFC 9002), which stays its shortest where all are longer.
const ROUND_TRIP_GUESS: Duration = Duration::from_millis(333);

/// A queue is one when it adds more than this share of the round trip, and more than a busy host does.
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
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        let moment = self.moment(now, self.resume.in_flight());
        self.resume.sent(bytes, &moment);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.round_trip = rtt.get();
        self.round_trip_min = if rtt.min() < ROUND_TRIP_GUESS {
            rtt.min()
        } else {
            rtt.get()
        };
        self.config
            .account
            .acked
            .fetch_add(bytes, Ordering::Relaxed);
        self.resume.acked(sent, bytes);
        self.turn_round(now);
        self.round.bytes_acked += bytes;
        // A window that grows unused would not shrink in time when something is lost.
        let unused = app_limited || self.cubic.window() >= self.window_max();
        self.cubic.on_ack(now, sent, bytes, unused, rtt);
        self.end_slow_start(now);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest: Option<u64>,
    ) {
        let moment = AckMoment {
            more_waits: !app_limited,
            ..self.moment(now, in_flight)
        };
        if let Some(start) = self.resume.turn(&moment) {
            self.begin_anew(now, start);
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        persistent: bool,
        lost_bytes: u64,
    ) {
        self.turn_round(now);
        self.round.bytes_lost += lost_bytes;
        let marked = lost_bytes == 0;
        let counts = persistent || marked || self.has_queue() || self.loses_much();
        if counts && !self.resume.congested(persistent, self.datagram.into()) {
            self.threshold = None;
            self.cubic
                .on_congestion_event(now, sent, persistent, lost_bytes);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.datagram = new_mtu;
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.resume
            .window()
            .unwrap_or_else(|| self.cubic.window())
            .min(self.window_max())
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.config.first_flight_bytes
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl ControllerFactory for TolerantConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Tolerant::new(self, now, current_mtu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::resume::{PathEnds, SavedWindow};

    const PACKET: u64 = 1_400;
    const LONG: Duration = Duration::from_millis(90);

    fn controller(round_trip: Duration, acked: u64) -> (Tolerant, Instant) {
        let now = Instant::now();
        let config = TolerantConfig {
            cubic: CubicConfig::default(),
            first_flight_bytes: 10 * PACKET,
            account: Arc::default(),
        };
        let tolerant = Tolerant {
            round_trip,
            round_trip_min: LONG,
            round: LossRound {
                bytes_acked: acked,
                bytes_lost: 0,
            },
            ..Tolerant::new(Arc::new(config), now, 1_400)
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

    #[test]
    fn slow_start_goes_on_from_a_validated_window() {
        let (mut tolerant, now) = controller(LONG, 0);
        tolerant.begin_anew(
            now,
            Start {
                window: FULL,
                threshold: None,
            },
        );
        assert_eq!(
            (tolerant.window(), tolerant.cubic.metrics().ssthresh),
            (FULL, Some(u64::MAX))
        );
    }

    #[test]
    fn slow_start_ends_at_the_threshold_of_a_retreat() {
        let (mut tolerant, now) = controller(LONG, 0);
        tolerant.begin_anew(
            now,
            Start {
                window: FULL / 4,
                threshold: Some(FULL / 2),
            },
        );
        assert_eq!(
            (tolerant.window(), tolerant.threshold),
            (FULL / 4, Some(FULL / 2))
        );
        tolerant.cubic = tolerant.cubic_at(FULL / 2 + PACKET, now);
        tolerant.end_slow_start(now);
        let window = tolerant.window();
        assert!((FULL / 2 - PACKET..=FULL / 2).contains(&window), "{window}");
        assert_eq!(
            (tolerant.cubic.metrics().ssthresh, tolerant.threshold),
            (Some(window), None)
        );
    }

    /// What is no congestion otherwise is none in a jump.
    #[test]
    fn a_retreat_answers_congestion_in_the_place_of_cubic() {
        let ends = PathEnds {
            here: [192, 0, 2, 1].into(),
            there: [192, 0, 2, 9].into(),
        };
        let saved = SavedWindow {
            bytes: FULL,
            round_trip: LONG,
            ends,
            connections: 1,
        };
        let allowance = Some(Arc::new(WindowAllowance::new(saved)));
        let (mut tolerant, now) = controller(LONG, 1_000 * PACKET);
        tolerant.resume = Resume::new(allowance);
        tolerant.resume.acked(now, 10 * PACKET);
        tolerant.on_end_acks(now, 20 * PACKET, false, None);
        assert_eq!(tolerant.window(), FULL / 2);
        tolerant.on_congestion_event(now + LONG, now, false, PACKET);
        assert_eq!(tolerant.window(), FULL / 2, "noise");
        let cubic = tolerant.cubic.window();
        tolerant.on_congestion_event(now + LONG, now, false, 0);
        assert_eq!(
            (tolerant.window(), tolerant.cubic.window()),
            (10 * PACKET, cubic)
        );
    }

    /// Fills 90 ms of more than 1 Gbit/s.
    const FULL: u64 = 16 << 20;
}
