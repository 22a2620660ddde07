//! Whether loss keeps lanes below what the path could carry, and what it leaves each of them.

use zmove_types::ByteCount;

use super::PathTick;

/// The segments that were sent again while the path had no queue.
#[derive(Clone, Debug, Default)]
pub(super) struct LossWatch {
    /// One bit for each of the last ticks: whether something was sent again.
    lossy: u32,
    ticks: u32,
    segments: f64,
    retransmitted: f64,
    bursts: u32,
}

impl LossWatch {
    /// Takes a tick; begins anew where there is a queue, or lanes do not wait for the path.
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

    /// Whether there is loss again and again while the path has no queue: not the burst in which a slow start ends.
    pub(super) fn is_reason(&self) -> bool {
        self.ticks >= TICKS_WATCHED_MIN && self.lossy_ticks() >= LOSSY_TICKS_MIN
    }

    /// Whether so much was sent again, and so steadily, that it shows how much the path loses. A queue that overflows
    /// loses much at once, and then nothing for a while.
    pub(super) fn is_steady(&self) -> bool {
        self.retransmitted > FEW_LOSSES
            && self.lossy_ticks() * 2 >= self.ticks.max(STEADY_TICKS_MIN)
    }

    /// Whether the watch is so long that a few losses more or less change little.
    pub(super) fn is_long(&self) -> bool {
        self.ticks >= LONG_TICKS_MIN
    }

    fn lossy_ticks(&self) -> u32 {
        (self.lossy & ((1 << TICKS) - 1)).count_ones()
    }

    /// Whether nothing was sent again during the whole watch.
    pub(super) fn is_none(&self) -> bool {
        self.ticks == TICKS && self.bursts == 0 && self.lossy_ticks() == 0
    }

    /// Whether a larger share of what is sent is lost than in an earlier watch. Loss that lanes suffer stays as it is
    /// when there are more of them; loss that they cause does not.
    pub(super) fn has_risen_since(&self, before: &Self) -> bool {
        let expected =
            before.retransmitted.max(FEW_LOSSES) / before.segments.max(1.0) * self.segments;
        self.retransmitted > FEW_LOSSES && self.retransmitted > expected * RISEN_MIN
    }

    /// The rate that such loss leaves one lane in the long run, in bytes per second, by the larger of the response
    /// functions of cubic and Reno (RFC 9438, §5.1 and §5.2).
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

/// The longest watch for loss, in ticks.
const TICKS: u32 = 12;
/// The shortest watch for loss, in ticks.
const TICKS_WATCHED_MIN: u32 = 3;
/// The number of ticks of a watch in which something must have been sent again.
const LOSSY_TICKS_MIN: u32 = 2;
/// The number of ticks of a long watch.
const LONG_TICKS_MIN: u32 = 8;
/// The number of ticks it takes to distinguish steady loss from an overflow.
const STEADY_TICKS_MIN: u32 = 6;
/// A loss of this share of a tick's segments is the burst in which a slow start ends, if it lasts no longer
/// than `BURST_TICKS_MAX`.
const BURST_SHARE_MIN: f64 = 0.01;
/// The longest loss that still counts as the burst in which a slow start ends, in ticks.
const BURST_TICKS_MAX: u32 = 8;
/// The fewest lost segments that count; fewer may be chance.
const FEW_LOSSES: f64 = 4.0;
const RISEN_MIN: f64 = 3.0;
