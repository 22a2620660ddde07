//! Snapshots of this side's clocks and counters, from which the limit of the push is determined.

use std::time::Duration;

use zmove_wire::{Finished, PathReport};

use crate::account::bottleneck::{Stages, Times};
use crate::push::pipeline::Pipeline;
use crate::push::session::Session;
use crate::tune::path;

/// A snapshot of how the stages have spent their time so far.
#[derive(Default)]
pub(super) struct StageSnapshot {
    times: Times,
    pub(super) path: Option<PathReport>,
}

impl StageSnapshot {
    /// Takes a snapshot of the stages' times and of the measurements of the path.
    pub(super) fn take(pipeline: &Pipeline) -> Self {
        let Pipeline {
            session, lane_set, ..
        } = pipeline;
        let Session { rate, timeline, .. } = &**session;
        Self {
            times: Times {
                stages: Stages {
                    scan: pipeline.scan.times(),
                    ..timeline.spent()
                },
                first_byte: timeline.first_byte(),
                handed_over: timeline.handed_over(),
                rate_limit: rate.limit(),
                ..Times::default()
            },
            path: path::gather(lane_set.probes()),
        }
    }

    /// Returns the times of the whole push. Called at its end.
    pub(super) fn times(&self, wall: Duration, lanes: usize, finished: &Finished) -> Times {
        let path = self.path.as_ref();
        let on_the_wire = path
            .and_then(|path| path.since_data_sent)
            .map(|ago| wall.saturating_sub(ago));
        Times {
            wall,
            on_the_wire,
            round_trip: path
                .and_then(|path| path.round_trip_min)
                .unwrap_or_default(),
            flush: Duration::from_micros(finished.flush_us),
            lanes,
            stages: self.times.stages.with_report(finished),
            ..self.times
        }
    }

    /// Returns the name of the stage that has limited the rate since the snapshot `before`.
    pub(super) fn limit_since(&self, before: &Self) -> &'static str {
        let path = self.path.as_ref().map(|path| {
            before
                .path
                .as_ref()
                .map_or(path.clone(), |b| path::since(path, b))
        });
        let times = Times {
            wall: LIMIT_INTERVAL,
            first_byte: self.times.first_byte.map(|_| Duration::ZERO),
            handed_over: None,
            stages: self.times.stages.since(&before.times.stages),
            ..self.times
        };
        times.live_limit(path.as_ref())
    }
}

/// Interval at which the limit of the rate is reported to the user.
pub(super) const LIMIT_INTERVAL: Duration = Duration::from_secs(1);
