//! A reading of this side's clocks and counters, from which the limit of the push is found.

use std::time::Duration;

use zmove_types::{ByteCount, RateLimit};
use zmove_wire::Finished;

use crate::account::bottleneck::{Stages, Times};
use crate::push::pipeline::Pipeline;
use crate::push::session::Session;
use crate::tune::path::PathReport;

/// What this side knows at one moment about where the time went.
#[derive(Default)]
pub(super) struct Reading {
    stages: Stages,
    pub(super) path: Option<PathReport>,
    first_byte: Option<Duration>,
    handed_over: Option<Duration>,
    /// The bytes that lanes have taken.
    bytes_handed_over: u64,
    /// The rate that the lanes are held to.
    rate_max: Option<RateLimit>,
}

impl Reading {
    /// Reads how this side's stages have spent their time, and what the path did.
    pub(super) fn take(pipeline: &Pipeline) -> Self {
        let Pipeline { config, session, lane_set, .. } = pipeline;
        let Session { account, timeline, .. } = &**session;
        Self {
            stages: Stages { scan: pipeline.scan.times(), ..timeline.spent() },
            path: PathReport::gather(lane_set.probes()),
            first_byte: timeline.first_byte(),
            handed_over: timeline.handed_over(),
            bytes_handed_over: account.totals.bytes_handed_over.get(),
            rate_max: config.rate_max,
        }
    }

    /// The times of the whole push, as known at its end.
    pub(super) fn times(&self, wall: Duration, lanes: usize, finished: &Finished, paced: Duration) -> Times {
        let path = self.path.as_ref();
        let on_the_wire = path.and_then(|path| path.since_data_sent).map(|ago| wall.saturating_sub(ago));
        let sent = on_the_wire.max(self.handed_over).unwrap_or(wall);
        let sending = sent.saturating_sub(self.first_byte.unwrap_or_default());
        let mut stages = self.stages.with_report(finished);
        stages.receive.paced = paced;
        Times {
            wall,
            first_byte: self.first_byte,
            handed_over: self.handed_over,
            on_the_wire,
            round_trip: path.and_then(|path| path.round_trip_min).unwrap_or_default(),
            flush: Duration::from_micros(finished.flush_us),
            lanes,
            stages,
            at_own_rate: self.is_at_own_rate(self.bytes_handed_over, sending),
        }
    }

    /// The limit of the rate in the interval that began with `before`.
    pub(super) fn limit_since(&self, before: &Self) -> &'static str {
        let stages = self.stages.since(&before.stages);
        let first_byte = self.first_byte.map(|_| Duration::ZERO);
        let path =
            self.path.as_ref().map(|path| before.path.as_ref().map_or(path.clone(), |b| path.since(b)));
        let at_own_rate =
            self.is_at_own_rate(self.bytes_handed_over - before.bytes_handed_over, LIMIT_INTERVAL);
        let times = Times { wall: LIMIT_INTERVAL, first_byte, stages, at_own_rate, ..Times::default() };
        times.live_limit(path.as_ref())
    }

    /// Whether `bytes` in `time` reach the rate that the lanes are held to.
    fn is_at_own_rate(&self, bytes: u64, time: Duration) -> bool {
        let enough = |max: RateLimit| ByteCount(max.bytes_per_second()).as_f64() * AT_RATE_SHARE;
        self.rate_max.is_some_and(|max| ByteCount(bytes).as_f64() >= enough(max) * time.as_secs_f64())
    }
}

/// The share of the rate that lanes are held to from which on that rate is the limit, and not the path: lanes share it
/// evenly, so those whose work is done leave their share unused.
const AT_RATE_SHARE: f64 = 0.8;
/// How often the limit of the rate is reported to the user.
pub(super) const LIMIT_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_at_four_fifths_of_their_rate_are_held_up_by_it() {
        let held = Reading { rate_max: Some("80MB".parse().unwrap()), ..Reading::default() };
        let second = Duration::from_secs(1);
        let at = |reading: &Reading, bytes| reading.is_at_own_rate(bytes, second);
        assert_eq!([63_000_000, 64_000_000, 80_000_000].map(|bytes| at(&held, bytes)), [false, true, true]);
        assert!(!at(&Reading::default(), u64::MAX));
    }
}
