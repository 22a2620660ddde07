//! The default congestion control of QUIC lanes: CUBIC that does not treat single lost packets as congestion.
//!
//! On a long path, CUBIC reaches the full window only if thousands of consecutive packets arrive. A loss rate of one in
//! ten thousand keeps the window at a few percent. Unlike random losses, a queue increases the round-trip time. This is
//! the criterion of TCP Veno. So a loss counts as congestion only in four cases: packets are queued on the path, the
//! loss rate exceeds a few percent (the limit in later BBR versions), the network marks packets, or all packets of some
//! period were lost. **Invariant:** losses that count are passed to CUBIC unchanged, so a path with a queue of normal
//! size is shared as with CUBIC.
//!
//! On a short path without a rate limit, packets are lost only if a host is slow. CUBIC would then fill the receiver's
//! buffer until it overflows, and a buffer of that size does not fit into any CPU cache. So the window also has a limit
//! that depends on the round-trip time.
//!
//! If the path is known, [`resume`](super::resume) controls the window for two round trips.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, Cubic, CubicConfig};
use quinn_proto::RttEstimator;

use super::resume::{PathState, Resume, Start, WindowAllowance};

/// Creates the congestion control of each connection.
#[derive(Debug)]
pub(super) struct TolerantConfig {
    pub(super) cubic: CubicConfig,
    pub(super) first_flight_bytes: u64,
    /// The known properties of the path, and the counters of this connection.
    pub(super) account: Arc<PathAccount>,
}

/// The known properties of a connection's path, and the counters of the connection.
#[derive(Debug, Default)]
pub(super) struct PathAccount {
    /// The window that was found on the path earlier.
    pub(super) allowance: Option<Arc<WindowAllowance>>,
    /// Bytes of acknowledged packets. Other congestion controls do not update it.
    pub(super) acked: AtomicU64,
}

#[derive(Clone, Debug)]
struct Tolerant {
    config: Arc<TolerantConfig>,
    cubic: Cubic,
    resume: Resume,
    /// The window at which slow start ends. `None` means that it ends at the next congestion.
    threshold: Option<u64>,
    datagram: u16,
    round_trip: Duration,
    round_trip_min: Duration,
    round: LossRound,
    last_round: LossRound,
    round_started: Instant,
}

/// Bytes acknowledged and lost in about one round trip.
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

    /// Returns whether packets are queued on the path, or were queued until recently.
    fn has_queue(&self) -> bool {
        let slack = (self.round_trip_min / QUEUE_SHARE).max(QUEUE_MIN);
        self.round_trip > self.round_trip_min + slack
    }

    /// Returns whether the number of lost bytes is too high for random losses.
    fn loses_much(&self) -> bool {
        let lost = self.round.bytes_lost + self.last_round.bytes_lost;
        let sent = lost + self.round.bytes_acked + self.last_round.bytes_acked;
        lost > NOISE_BYTES_MIN.max(sent / NOISE_SHARE)
    }

    /// Returns the maximum useful number of bytes in flight. It is the number of bytes that the fastest connection
    /// carries in one round trip, plus slack for slow hosts.
    fn window_max(&self) -> u64 {
        let microseconds = u64::try_from(self.round_trip_min.as_micros()).unwrap_or(u64::MAX);
        WINDOW_SLACK_BYTES.saturating_add(microseconds.saturating_mul(BYTES_PER_MICROSECOND_MAX))
    }

    /// Returns the current state for [`Resume`]. Assumes that there is more data to send.
    fn path_state(&self, now: Instant, in_flight: u64) -> PathState {
        PathState {
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

    /// Restarts CUBIC from a window, in slow start.
    fn restart_from(&mut self, now: Instant, start: Start) {
        self.cubic = self.cubic_at(start.window, now);
        self.threshold = start.threshold;
        self.end_slow_start(now);
    }

    fn cubic_at(&self, window: u64, now: Instant) -> Cubic {
        let config = self.config.cubic.clone().initial_window(window).clone();
        Cubic::new(Arc::new(config), now, self.datagram)
    }

    /// Ends slow start at its threshold. CUBIC has no setting for the threshold, so this function triggers a congestion
    /// event, which reduces the window.
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

    fn start_round(&mut self, now: Instant) {
        if now.saturating_duration_since(self.round_started) > self.round_trip {
            self.last_round = std::mem::take(&mut self.round);
            self.round_started = now;
        }
    }
}

/// Share of the window, in tenths, that CUBIC keeps after congestion (RFC 9438).
const LEFT_TENTHS: u64 = 7;
/// quinn's initial guess of the round-trip time (RFC 9002). quinn reports it as the minimum if all measured times are
/// longer.
const ROUND_TRIP_GUESS: Duration = Duration::from_millis(333);

/// Divisor of the round-trip time for the minimum delay that counts as a queue. The delay must also exceed
/// [`QUEUE_MIN`], because a busy host can cause short delays without a queue.
const QUEUE_SHARE: u32 = 8;
const QUEUE_MIN: Duration = Duration::from_millis(4);
/// Divisor for the loss rate that counts as random: one byte out of this number may be lost.
const NOISE_SHARE: u64 = 50;
/// Minimum number of lost bytes for evaluating the loss rate.
const NOISE_BYTES_MIN: u64 = 16 << 10;

/// The slack in the maximum number of bytes in flight. It also limits the data that arrives on each connection while a
/// receiver waits a few milliseconds for a CPU.
const WINDOW_SLACK_BYTES: u64 = 1 << 20;
/// The assumed maximum rate: 10 Gbit/s, more than one quinn connection reaches.
const BYTES_PER_MICROSECOND_MAX: u64 = 1_250;

impl Controller for Tolerant {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        let path_state = self.path_state(now, self.resume.in_flight());
        self.resume.on_sent(bytes, &path_state);
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
        self.start_round(now);
        self.round.bytes_acked += bytes;
        // A window that grows without being used would not shrink in time after a loss, so it does not grow.
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
        let path_state = PathState {
            more_waits: !app_limited,
            ..self.path_state(now, in_flight)
        };
        if let Some(start) = self.resume.finish_ack(&path_state) {
            self.restart_from(now, start);
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        persistent: bool,
        lost_bytes: u64,
    ) {
        self.start_round(now);
        self.round.bytes_lost += lost_bytes;
        let marked = lost_bytes == 0;
        let counts = persistent || marked || self.has_queue() || self.loses_much();
        if counts && !self.resume.on_congestion(persistent, self.datagram.into()) {
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

    /// Returns whether the window shrinks after `packets` consecutive losses.
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
        tolerant.restart_from(
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
        tolerant.restart_from(
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

    /// During a jump, a loss that would not count as congestion otherwise does not count either.
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

    /// A window that fills a path of 90 ms at more than 1 Gbit/s.
    const FULL: u64 = 16 << 20;
}
