//! Tunes the number of readers.
//!
//! The number grows by half while lanes starve, readers are always busy and cores are idle, because some storage is
//! faster with more requests in flight. The additional readers are kept if the read rate rises by at least 5 %. The
//! number shrinks by a quarter if readers are hardly busy.

use std::time::Duration;

use super::attempt::{AttemptBackoff, KnobAttempt, RecentRates};
use super::{Knob, Tick};

/// The part of the controller that decides on the number of readers.
#[derive(Debug, Default)]
pub(super) struct ReaderTuner {
    knob: Knob,
    pub(super) wanted: usize,
    trial: Option<(usize, KnobAttempt)>,
    rest: AttemptBackoff,
    recent: RecentRates,
    hungry_ticks: u32,
    idle_ticks: u32,
}

impl ReaderTuner {
    pub(super) fn new(knob: Knob) -> Self {
        Self {
            knob,
            wanted: knob.start.clamp(knob.least, knob.most),
            ..Self::default()
        }
    }

    pub(super) fn tick(&mut self, tick: &Tick) {
        let rate = zmove_types::ByteRate::new(tick.bytes_read, tick.elapsed).0;
        self.recent.tick(rate);
        self.rest.tick(tick.elapsed);
        self.observe(tick);
        if let Some((before, mut attempt)) = self.trial.take() {
            match attempt.tick(tick.elapsed, rate) {
                None => self.trial = Some((before, attempt)),
                Some(ratio) if ratio < GAIN_MIN => {
                    self.wanted = before;
                    self.rest.refused();
                }
                Some(_) => {}
            }
        } else if self.rest.is_over() && self.recent.is_baseline() {
            self.decide();
        }
    }

    fn observe(&mut self, tick: &Tick) {
        let starving = tick.lane.share(tick.lane.starved) > 0.5;
        let reading = tick.read.share(tick.read.busy) > 0.8;
        let hungry = starving && reading && tick.cores_idle >= CORES_IDLE_MIN;
        self.hungry_ticks = if hungry { self.hungry_ticks + 1 } else { 0 };
        let idle = tick.read.share(tick.read.busy) < 0.1;
        self.idle_ticks = if idle { self.idle_ticks + 1 } else { 0 };
    }

    fn decide(&mut self) {
        let before = self.wanted;
        if self.hungry_ticks >= HUNGRY_TICKS_MIN && before < self.knob.most {
            self.wanted = (before + before.div_ceil(2)).min(self.knob.most);
            self.trial = Some((before, KnobAttempt::new(self.recent.mean(), Duration::ZERO)));
            self.hungry_ticks = 0;
        } else if self.idle_ticks >= IDLE_TICKS_MIN && before > self.knob.least {
            self.wanted = (before * 3 / 4).max(self.knob.least);
            self.idle_ticks = 0;
        }
    }
}

const GAIN_MIN: f64 = 1.05;
const HUNGRY_TICKS_MIN: u32 = 3;
const IDLE_TICKS_MIN: u32 = 20;
/// Minimum share of idle cores. If fewer cores are idle, an additional thread would slow down the existing threads.
const CORES_IDLE_MIN: f64 = 0.25;
