//! A reading of this side's clocks and counters, from which the limit of the push is found.

use std::time::Duration;

use zmove_wire::{Finished, Limit, PathReport};

use crate::account::bottleneck::{Stages, Times};
use crate::push::pipeline::Pipeline;
use crate::push::session::Session;
use crate::tune::path;

/// What this side knows at one moment about where the time went.
#[derive(Default)]
pub(super) struct Reading {
    stages: Stages,
    pub(super) path: Option<PathReport>,
    first_byte: Option<Duration>,
    handed_over: Option<Duration>,
    /// Whose rate it is that lanes have waited for.
    rate_limit: Limit,
}

impl Reading {
    /// Reads how this side's stages have spent their time, and what the path did.
    pub(super) fn take(pipeline: &Pipeline) -> Self {
        let Pipeline {
            session, lane_set, ..
        } = pipeline;
        let Session { rate, timeline, .. } = &**session;
        Self {
            stages: Stages {
                scan: pipeline.scan.times(),
                ..timeline.spent()
            },
            path: path::gather(lane_set.probes()),
            first_byte: timeline.first_byte(),
            handed_over: timeline.handed_over(),
            rate_limit: rate.limit(),
        }
    }

    /// The times of the whole push, as known at its end.
    pub(super) fn times(&self, wall: Duration, lanes: usize, finished: &Finished) -> Times {
        let path = self.path.as_ref();
        let on_the_wire = path
            .and_then(|path| path.since_data_sent)
            .map(|ago| wall.saturating_sub(ago));
        Times {
            wall,
            first_byte: self.first_byte,
            handed_over: self.handed_over,
            on_the_wire,
            round_trip: path
                .and_then(|path| path.round_trip_min)
                .unwrap_or_default(),
            flush: Duration::from_micros(finished.flush_us),
            lanes,
            stages: self.stages.with_report(finished),
            rate_limit: self.rate_limit,
        }
    }

    /// The limit of the rate in the interval that began with `before`.
    pub(super) fn limit_since(&self, before: &Self) -> &'static str {
        let stages = self.stages.since(&before.stages);
        let first_byte = self.first_byte.map(|_| Duration::ZERO);
        let path = self.path.as_ref().map(|path| {
            before
                .path
                .as_ref()
                .map_or(path.clone(), |b| path::since(path, b))
        });
        let rate_limit = self.rate_limit;
        let times = Times {
            wall: LIMIT_INTERVAL,
            first_byte,
            stages,
            rate_limit,
            ..Times::default()
        };
        times.live_limit(path.as_ref())
    }
}

/// How often the user is told what limits the rate.
pub(super) const LIMIT_INTERVAL: Duration = Duration::from_secs(1);
