//! Tunes the number of lanes and their reaction to loss.
//!
//! ```text
//!            reason to grow                       reason to shrink, for a while
//!  settled ─────────────────► trying more  settled ─────────────────► trying fewer
//!     ▲    ◄── gain: keep ────────┤           ▲    ◄── no loss: keep ─────┤
//!     └────── no gain: back ──────┘           └────── rate fell: back ────┘
//! ```
//!
//! The number grows if the path has room that lanes do not get. Lanes then wait for the path, and the round-trip time
//! shows no queue. There are three such reasons:
//!
//! - Data is retransmitted in tick after tick ([`loss`](super::loss)). Loss, and not a full path, then limits the rate.
//!   The tuner tries a congestion control that ignores loss (`bbr`), if the kernel has it and the administrator allows
//!   it. Otherwise it tries twice the lanes, or as many as are needed for the best rate so far if each carries the rate
//!   that this loss allows. `bbr` begins by sending too much, so it is measured for longer. Once rejected, it is not
//!   tried again. If nothing has been lost for some seconds, the usual control is tried, and kept if it is not slower.
//! - The lanes' windows are full, either the peer's or the kernel's, and cores are idle. The tuner tries twice the
//!   lanes.
//! - On a long path, the congestion windows are fully used, nothing was ever retransmitted, no other window is full,
//!   and cores are idle. A slow start has then ended too early. The tuner tries four times the lanes.
//!
//! The number shrinks if a queue lasts for some seconds, or if the storage at the target is slower than the lanes. Slow
//! storage shows as bytes at the receiver that are not stored, beyond the partial groups that lanes hold. The tuner
//! tries a quarter fewer lanes, down to the minimum for this round-trip time.
//!
//! More lanes are kept if the rate gains and the loss does not rise much. However, lanes that still profit from their
//! slow start leave nothing to gain. If steady loss will leave much less than the present rate (RFC 9438, §5), a change
//! is made immediately, and kept if it holds most of that rate. A queue that overflows now and then does not count as
//! such loss.
//!
//! **Slow starts that end too early.** HyStart in Linux's CUBIC (`tcp_cubic.c`; RFC 9406 describes its successor)
//! interprets round trips that are longer by an eighth, or by 16 ms if that is less, as a queue, and ends the slow
//! start. It also does so on an unsteady host or path. CUBIC without any loss then grows its window by a twentieth per
//! round trip. At a round trip of 260 ms, it needs ten seconds or more for the growth that slow start would have
//! achieved in one. Until more lanes are measured, that growth alone is a gain of 1.7 to 1.9, so these lanes are kept
//! only if the rate has doubled.

use std::time::Duration;

use zmove_types::{ByteCount, ByteRate, GROUP_BYTES};

use super::attempt::{AttemptBackoff, KnobAttempt, RecentRates};
use super::loss::LossWatch;
use super::{Congestion, Knob, Knobs, PathTick, Tick, TunedSettings};

/// The part of the controller that decides on lanes and congestion control.
#[derive(Debug, Default)]
pub(super) struct LaneTuner {
    knob: Knob,
    /// Whether the loss-tolerant congestion control may be tried.
    loss_tolerant_allowed: bool,
    /// Whether the usual congestion control may be tried again.
    usual_allowed: bool,
    pub(super) wanted: usize,
    pub(super) congestion: Congestion,
    trial: Option<Trial>,
    rest: AttemptBackoff,
    recent: RecentRates,
    loss: LossWatch,
    /// Best rate so far, averaged over a few ticks, in bytes per second.
    best: f64,
    windows_full_ticks: u32,
    /// Number of consecutive ticks in which the congestion windows were fully used and grew only slowly.
    slow_growth_ticks: u32,
    /// Whether any data was ever retransmitted. If so, loss has ended the slow starts of the lanes.
    has_lost: bool,
    /// Time in which there was a reason to reduce the number of lanes, minus the time in which there was no reason.
    crowded: Duration,
}

#[derive(Debug)]
struct Trial {
    change: LaneChange,
    attempt: KnobAttempt,
    /// Whether some of the lanes requested by this change are still being dialed.
    dialling: bool,
    loss_before: LossWatch,
}

#[derive(Clone, Copy, Debug)]
enum LaneChange {
    More { before: usize, gain_min: f64 },
    Fewer { before: usize },
    LossTolerant { gain_min: f64 },
    Usual,
}

impl LaneTuner {
    pub(super) fn new(limits: &Knobs) -> Self {
        let &Knobs {
            lanes: knob,
            congestion,
            congestion_replaceable,
            ..
        } = limits;
        Self {
            knob,
            loss_tolerant_allowed: congestion_replaceable,
            usual_allowed: congestion_replaceable,
            wanted: knob.start.clamp(knob.least, knob.most),
            congestion,
            ..Self::default()
        }
    }

    /// Returns the wanted settings. If a change is still being tried, its setting is replaced by the value from before
    /// the change.
    pub(super) fn proven(&self, wanted: TunedSettings) -> TunedSettings {
        match self.trial.as_ref().map(|trial| trial.change) {
            Some(LaneChange::More { before, .. } | LaneChange::Fewer { before }) => TunedSettings {
                lanes: before,
                ..wanted
            },
            Some(LaneChange::LossTolerant { .. }) => TunedSettings {
                congestion: Congestion::AsSet,
                ..wanted
            },
            Some(LaneChange::Usual) => TunedSettings {
                congestion: Congestion::LossTolerant,
                ..wanted
            },
            None => wanted,
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.trial.is_none()
    }

    pub(super) fn tick(&mut self, tick: &Tick) {
        let rate = ByteRate::new(tick.bytes_carried, tick.elapsed).0;
        self.recent.tick(rate);
        self.rest.tick(tick.elapsed);
        self.best = self.best.max(self.recent.mean());
        self.observe(tick);
        match self.trial.take() {
            Some(trial) => self.continue_trial(trial, tick, rate),
            None if self.rest.is_over() && self.recent.is_baseline() => self.decide(tick),
            None => {}
        }
    }

    fn observe(&mut self, tick: &Tick) {
        let Some(path) = &tick.path else { return };
        let waiting = lanes_wait(tick);
        self.loss.tick(path, waiting, tick.bytes_carried);
        let able = waiting && tick.cores_idle >= CORES_IDLE_MIN;
        let full = able && path.has_full_windows();
        self.windows_full_ticks = if full { self.windows_full_ticks + 1 } else { 0 };
        self.has_lost |= path.segments_retransmitted > 0;
        let slow = able && !self.has_lost && self.congestion == Congestion::AsSet;
        let slow = slow && path.has_full_congestion_windows(self.recent.mean());
        self.slow_growth_ticks = if slow { self.slow_growth_ticks + 1 } else { 0 };
        let crowded = waiting && (path.has_long_queue() || tick.is_storage_behind());
        self.crowded = if crowded {
            self.crowded + tick.elapsed
        } else {
            self.crowded.saturating_sub(tick.elapsed)
        };
    }

    /// Starts an attempt if there is a reason for one.
    fn decide(&mut self, tick: &Tick) {
        let Some(path) = &tick.path else { return };
        if self.crowded >= CROWDED_MIN && self.wanted > self.knob.least {
            let before = self.wanted;
            self.wanted = (before * 3 / 4).max(self.knob.least);
            return self.start(LaneChange::Fewer { before }, path);
        }
        if tick.is_storage_behind() {
            return;
        }
        let lossy = self.lossy_gain_min(tick, path);
        if let Some(gain_min) = lossy.filter(|_| self.loss_tolerant_allowed) {
            self.congestion = Congestion::LossTolerant;
            return self.start(LaneChange::LossTolerant { gain_min }, path);
        }
        if self.congestion == Congestion::LossTolerant && self.usual_allowed && self.loss.is_none()
        {
            // The usual control is tried only once. If data is lost again afterwards, the loss is a reason to try the
            // loss-tolerant control.
            (self.congestion, self.usual_allowed) = (Congestion::AsSet, false);
            return self.start(LaneChange::Usual, path);
        }
        let may_grow = self.wanted < self.knob.most && tick.lanes_up >= self.wanted;
        let windows = self.windows_full_ticks >= WINDOWS_FULL_TICKS_MIN;
        if let Some(gain_min) = lossy.filter(|_| may_grow) {
            let enough = self
                .loss
                .lane_rate(path)
                .map_or(0, |rate| lanes_for(self.best, rate));
            self.grow(enough.max(self.wanted * 2), gain_min, path);
        } else if may_grow && windows {
            self.grow(self.wanted * 2, GAIN_MIN, path);
        } else if may_grow && self.slow_growth_ticks >= SLOW_GROWTH_TICKS_MIN {
            self.grow(self.wanted * SLOW_GROWTH_TIMES, SLOW_GROWTH_GAIN_MIN, path);
        }
    }

    /// Returns the minimum gain that a change must bring to be kept. Returns `None` if loss is no reason for a change.
    fn lossy_gain_min(&self, tick: &Tick, path: &PathTick) -> Option<f64> {
        if !self.loss.is_reason() || self.congestion != Congestion::AsSet {
            return None;
        }
        let falls = self.will_fall(tick, path);
        if falls && self.loss.is_steady() {
            return Some(HELD_MIN);
        }
        let fallen = self.recent.mean() < self.best * FALLEN_MAX;
        let lasts = !falls && self.recent.is_steady() && self.loss.is_long();
        (fallen || lasts).then_some(GAIN_MIN)
    }

    fn grow(&mut self, lanes: usize, gain_min: f64, path: &PathTick) {
        let before = self.wanted;
        self.wanted = lanes.min(self.knob.most);
        self.start(LaneChange::More { before, gain_min }, path);
    }

    /// Returns whether the rate will fall because of loss. Lanes may still send faster than the loss allows in the long
    /// run, because of their slow start. A change that is made in this situation is kept without a gain.
    fn will_fall(&self, tick: &Tick, path: &PathTick) -> bool {
        let lanes = f64::from(u32::try_from(tick.lanes_up).unwrap_or(u32::MAX));
        self.loss
            .lane_rate(path)
            .is_some_and(|rate| rate * lanes < self.recent.mean() * SUSTAINED_MIN)
    }

    fn start(&mut self, change: LaneChange, path: &PathTick) {
        let attempt =
            KnobAttempt::new(self.recent.mean(), path.round_trip.max(path.round_trip_min));
        // A loss-tolerant control sends too much while it probes for the rate, and must retransmit much of that data.
        let patient = matches!(change, LaneChange::LossTolerant { .. });
        let attempt = if patient {
            attempt.with_more_time()
        } else {
            attempt
        };
        let dialling = matches!(change, LaneChange::More { .. });
        let loss_before = std::mem::take(&mut self.loss);
        self.trial = Some(Trial {
            change,
            attempt,
            dialling,
            loss_before,
        });
        self.crowded = Duration::ZERO;
        self.windows_full_ticks = 0;
        self.slow_growth_ticks = 0;
    }

    fn continue_trial(&mut self, mut trial: Trial, tick: &Tick, rate: f64) {
        if trial.dialling {
            // Lanes that fail to connect do not delay the trial.
            trial.attempt.lower_baseline(rate);
            trial.dialling = tick.lanes_up < self.wanted;
        }
        let Some(ratio) = trial.attempt.tick(tick.elapsed, rate) else {
            self.trial = Some(trial);
            return;
        };
        match trial.change {
            LaneChange::More { before, gain_min }
                if ratio < gain_min || self.loss.has_risen_since(&trial.loss_before) =>
            {
                self.revert_lanes(before);
            }
            LaneChange::Fewer { before } if ratio < KEPT_MIN => self.revert_lanes(before),
            LaneChange::Usual if ratio < KEPT_MIN => {
                self.congestion = Congestion::LossTolerant;
                self.rest.refused();
            }
            LaneChange::LossTolerant { gain_min } if ratio < gain_min => {
                self.congestion = Congestion::AsSet;
                self.loss_tolerant_allowed = false;
            }
            LaneChange::More { .. }
            | LaneChange::Fewer { .. }
            | LaneChange::LossTolerant { .. }
            | LaneChange::Usual => {}
        }
        // Lanes that failed to connect are not requested again immediately, so they no longer count as wanted.
        self.wanted = self.wanted.min(tick.lanes_up.max(self.knob.least));
    }

    fn revert_lanes(&mut self, before: usize) {
        self.wanted = before;
        self.rest.refused();
        self.loss = LossWatch::default();
    }
}

impl PathTick {
    pub(super) fn has_queue(&self) -> bool {
        self.round_trip > self.round_trip_min.mul_f64(QUEUE_RATIO) + QUEUE_NOISE
    }

    fn has_long_queue(&self) -> bool {
        self.round_trip > self.round_trip_min.mul_f64(LONG_QUEUE_RATIO) + QUEUE_NOISE
    }

    fn has_full_windows(&self) -> bool {
        let limited = self.receive_window_limited.max(self.send_buffer_limited);
        !self.has_queue() && limited > self.busy.mul_f64(WINDOW_SHARE_MIN)
    }

    /// Returns whether the congestion windows are fully used at this rate (in bytes per second) and nothing else limits
    /// the rate. Returns `false` if the path has a queue, or if the path is so short that the windows grow within a few
    /// seconds.
    fn has_full_congestion_windows(&self, rate: f64) -> bool {
        let allowed = ByteCount(self.congestion_window_bytes).as_f64();
        let on_its_way = rate * self.round_trip.as_secs_f64();
        let others = self.receive_window_limited.max(self.send_buffer_limited);
        self.round_trip_min >= LONG_PATH
            && !self.has_queue()
            && others < self.busy.mul_f64(OTHERS_SHARE_MAX)
            && allowed > 0.0
            && on_its_way > allowed * IN_USE_MIN
    }
}

impl Tick {
    /// Returns whether the target stores data more slowly than the path carries it. This is the case if more bytes are
    /// unstored than lanes can hold in partial groups.
    fn is_storage_behind(&self) -> bool {
        let lanes = u64::try_from(self.lanes_up).unwrap_or(u64::MAX);
        self.bytes_unstored > lanes.saturating_mul(GROUP_BYTES / 2) + UNSTORED_BYTES_MAX
    }
}

/// Returns the number of lanes needed to reach `rate` if each lane has the rate `lane_rate`.
fn lanes_for(rate: f64, lane_rate: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 1024"
    )]
    let lanes = (rate / lane_rate.max(1.0)).ceil().clamp(0.0, 1024.0) as usize;
    lanes
}

/// Returns whether the lanes spend most of their time waiting for the path.
fn lanes_wait(tick: &Tick) -> bool {
    tick.lane.share(tick.lane.blocked) > 0.5
}

/// Minimum factor by which the rate must rise for more lanes to be kept.
const GAIN_MIN: f64 = 1.1;
/// Minimum share of the rate that must remain after a change that was made because the rate would fall.
const HELD_MIN: f64 = 0.85;
/// Share of the best rate so far. If the rate is below this share, it counts as fallen.
const FALLEN_MAX: f64 = 0.85;
/// Minimum share of the present rate that loss must leave in the long run. The estimate is accurate to a factor of two.
const SUSTAINED_MIN: f64 = 0.6;
/// Minimum share of the rate that must remain with fewer lanes for them to be kept.
const KEPT_MIN: f64 = 0.97;
const WINDOWS_FULL_TICKS_MIN: u32 = 4;
const WINDOW_SHARE_MIN: f64 = 0.5;
const SLOW_GROWTH_TICKS_MIN: u32 = 2;
/// Factor for more lanes. The slow start of a new lane may also end too early, and each step is measured for many round
/// trips.
const SLOW_GROWTH_TIMES: usize = 4;
/// Minimum factor by which the rate must rise. Until the rate is measured, the windows grow on their own by a factor of
/// 1.05^11, which is 1.7.
const SLOW_GROWTH_GAIN_MIN: f64 = 2.0;
/// Share of the congestion windows from which they count as fully used. The share is below 1 because a mean over three
/// ticks lags behind.
const IN_USE_MIN: f64 = 0.6;
/// Maximum share of the time in which the receive window or the send buffer may be the limit.
const OTHERS_SHARE_MAX: f64 = 0.1;
/// Minimum round trip of a long path. Linux CUBIC without any loss grows its window by a twentieth per round trip, so
/// at this length it takes at least 3 s to double it.
const LONG_PATH: Duration = Duration::from_millis(200);
/// Minimum share of idle cores. On a busy host, the CPU may be the reason for a low rate.
const CORES_IDLE_MIN: f64 = 0.15;
const QUEUE_RATIO: f64 = 1.2;
const LONG_QUEUE_RATIO: f64 = 1.5;
/// Time that a busy host adds to a round trip.
const QUEUE_NOISE: Duration = Duration::from_micros(500);
/// Minimum time for which there must be a reason to reduce the number of lanes before the number is reduced.
const CROWDED_MIN: Duration = Duration::from_secs(8);
/// Number of unstored bytes that a receiver may hold in addition to partial groups.
const UNSTORED_BYTES_MAX: u64 = 64 << 20;
