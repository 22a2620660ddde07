//! Detects whether loss keeps lanes below the capacity of the path, and estimates the rate that loss leaves each lane.

use zmove_types::ByteCount;

use super::PathTick;

/// Counts of retransmissions in the current observation, which lasts while the path has no queue.
#[derive(Clone, Debug, Default)]
pub(super) struct LossWatch {
    /// One bit for each of the last ticks. A bit is set if anything was retransmitted in its tick.
    lossy: u32,
    ticks: u32,
    segments: f64,
    retransmitted: f64,
    bursts: u32,
}

impl LossWatch {
    /// Processes a tick. Starts a new observation if the path has a queue or if lanes do not wait for the path.
    pub(super) fn tick(&mut self, path: &PathTick, waiting: bool, bytes_carried: u64) {
        if !waiting || path.has_queue() {
            *self = Self::default();
            return;
        }
        let segments = ByteCount(bytes_carried).as_f64() / f64::from(path.segment_bytes.max(1));
        let retransmitted = ByteCount(path.segments_retransmitted).as_f64();
        if retransmitted > segments * BURST_SHARE_MIN && self.bursts < BURST_TICKS_MAX {
            self.bursts += 1;
            return;
        }
        self.lossy = self.lossy << 1 | u32::from(path.segments_retransmitted > 0);
        self.ticks = (self.ticks + 1).min(TICKS);
        let kept = 1.0 - 1.0 / f64::from(TICKS);
        self.segments = self.segments * kept + segments;
        self.retransmitted = self.retransmitted * kept + retransmitted;
    }

    /// Returns whether loss recurs while the path has no queue. The burst of losses that ends a slow start does not
    /// count.
    pub(super) fn is_reason(&self) -> bool {
        self.ticks >= TICKS_WATCHED_MIN && self.lossy_ticks() >= LOSSY_TICKS_MIN
    }

    /// Returns whether retransmissions are frequent and steady enough to determine the loss rate of the path. In
    /// contrast, a queue that overflows loses much data in a short time and then no data for a while.
    pub(super) fn is_steady(&self) -> bool {
        self.retransmitted > FEW_LOSSES
            && self.lossy_ticks() * 2 >= self.ticks.max(STEADY_TICKS_MIN)
    }

    /// Returns whether the observation is so long that a few additional losses would change the loss rate only
    /// slightly.
    pub(super) fn is_long(&self) -> bool {
        self.ticks >= LONG_TICKS_MIN
    }

    fn lossy_ticks(&self) -> u32 {
        (self.lossy & ((1 << TICKS) - 1)).count_ones()
    }

    /// Returns whether the observation contains no retransmission and has its full length.
    pub(super) fn is_none(&self) -> bool {
        self.ticks == TICKS && self.bursts == 0 && self.lossy_ticks() == 0
    }

    /// Returns whether the loss rate is higher than in an earlier observation. If the lanes do not cause the loss, the
    /// rate stays the same with more lanes. If the lanes cause the loss, the rate rises.
    pub(super) fn has_risen_since(&self, before: &Self) -> bool {
        let expected =
            before.retransmitted.max(FEW_LOSSES) / before.segments.max(1.0) * self.segments;
        self.retransmitted > FEW_LOSSES && self.retransmitted > expected * RISEN_MIN
    }

    /// Returns the rate, in bytes per second, that one lane can sustain with the observed loss. The result is the
    /// larger of the rates given by the response functions of CUBIC and Reno (RFC 9438, §5.1 and §5.2).
    pub(super) fn lane_rate(&self, path: &PathTick) -> Option<f64> {
        let round_trip = path.round_trip_min.as_secs_f64();
        if path.segment_bytes == 0 || self.retransmitted <= 0.0 || round_trip <= 0.0 {
            return None;
        }
        let loss = (self.retransmitted / self.segments.max(1.0)).min(1.0);
        let segments = (1.054 * (round_trip / loss).powf(0.75)).max(1.22 / loss.sqrt());
        Some(segments * f64::from(path.segment_bytes) / round_trip)
    }
}

/// Maximum length of an observation, in ticks.
const TICKS: u32 = 12;
/// Minimum length of an observation, in ticks.
const TICKS_WATCHED_MIN: u32 = 3;
/// Minimum number of ticks with retransmissions in an observation.
const LOSSY_TICKS_MIN: u32 = 2;
/// Minimum length of a long observation, in ticks.
const LONG_TICKS_MIN: u32 = 8;
/// Minimum number of ticks after which steady loss can be distinguished from an overflow of a queue.
const STEADY_TICKS_MIN: u32 = 6;
/// Minimum share of a tick's segments that must be lost for the loss to belong to the burst that ends a slow start. The
/// burst lasts at most `BURST_TICKS_MAX`.
const BURST_SHARE_MIN: f64 = 0.01;
/// Maximum length of the burst that ends a slow start, in ticks.
const BURST_TICKS_MAX: u32 = 8;
/// Number of lost segments that must be exceeded for loss to count. A smaller number may be chance.
const FEW_LOSSES: f64 = 4.0;
const RISEN_MIN: f64 = 3.0;
