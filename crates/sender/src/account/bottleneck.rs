//! Determines the limit of a push by dividing the wall-clock time among everything that can limit it.
//!
//! Each thread of a stage records its time as busy, starved, blocked or paced ([`StageTimes`]), and the receiver sends
//! its totals at the end. These times alone do not show the limit. A thread records nothing while it waits for
//! something that never arrives, and queues hide a slow stage while they fill. For example, 50,000 files of 1 KiB are
//! buffered within a second, during which the lanes only wait for the readers. After that, the target creates files for
//! many more seconds. This pure function therefore divides the wall-clock time instead of the threads' time. The
//! function divides the push into these intervals:
//!
//! - From the start to the first data on a lane. This interval counts as start-up.
//! - From then to the last data handed to a lane. This interval is divided by how the lanes spent their time. Busy time
//!   counts as the sender's CPU. Paced time counts as the rate limit set here, or as the allowed rate if that is lower.
//!   Blocked time counts as downstream. Starved time is divided by how the readers spent their time. Busy readers count
//!   as source reads. Starved readers count as the scan if the scan was busy, and as waiting for replies otherwise.
//!   Blocked readers (without a buffer, or with too much data without a receipt) count as downstream.
//! - From then to the last data on the wire (`TCP_INFO`). This interval counts as downstream.
//! - From then to the receiver's last message. The receiver's flush counts as target writes, and one round trip counts
//!   as waiting for replies. The rest is divided among the receiver's CPU, target writes and the allowed rate, by how
//!   the receiver's lanes and writers were busy or paced.
//!
//! *Downstream* time counts as target writes if all writers are busy most of the time. Otherwise it is divided by how
//! the receiving lanes spent their time. Blocked time counts as target writes, busy time as the receiver's CPU, and
//! paced time as the rate that the receiver allows the key. Starved time counts as the path, as far as there was data
//! to wait for.
//!
//! The account of the writers extends to the end of the transfer. Time that no writer has recorded by then counts as
//! waiting. While directories get their metadata and storage is flushed, the stage counts as busy.
//!
//! A stage that waits as much as it works gets half of the time, although a faster stage might gain nothing. The totals
//! cannot distinguish a run with two different halves from an even mixture. A scan that is slow to find its first file
//! counts as start-up.
//!
//! **Invariant:** all time is counted exactly once, so the shares add up to the whole.

use std::time::Duration;

use zmove_types::{StageTimes, percent};
use zmove_wire::{Bottleneck, Finished, Limit, PathReport, StageReport};

/// The times of all stages of one push, summed over their threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stages {
    pub(crate) scan: StageTimes,
    pub(crate) read: StageTimes,
    pub(crate) lane: StageTimes,
    pub(crate) receive: StageTimes,
    pub(crate) store: StageTimes,
}

/// The times from which the limit of a push is determined. Points in time are relative to the start of the push.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// Time from the start to the end of the push.
    pub(crate) wall: Duration,
    /// Time at which the first data was handed to a lane.
    pub(crate) first_byte: Option<Duration>,
    /// Time at which the last data was handed to a lane, or `None` while more data is expected.
    pub(crate) handed_over: Option<Duration>,
    /// Time at which the last data was on the wire, if the kernel reports it.
    pub(crate) on_the_wire: Option<Duration>,
    /// Round-trip time of the path, or zero if the kernel does not report it.
    pub(crate) round_trip: Duration,
    /// Duration of the receiver's last flush.
    pub(crate) flush: Duration,
    /// Number of lanes.
    pub(crate) lanes: usize,
    /// Times of the stages' threads.
    pub(crate) stages: Stages,
    /// Origin of the rate limit that delayed lanes on this side.
    pub(crate) rate_limit: Limit,
}

impl Stages {
    /// Returns the times of all stages. The times of the receiver's stages are taken from the receiver's report.
    pub(crate) fn with_report(self, finished: &Finished) -> Self {
        Self {
            receive: times(finished.receive),
            store: times(finished.store),
            ..self
        }
    }

    /// Returns the times recorded after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            scan: self.scan.since(&before.scan),
            read: self.read.since(&before.read),
            lane: self.lane.since(&before.lane),
            receive: self.receive.since(&before.receive),
            store: self.store.since(&before.store),
        }
    }
}

impl Times {
    /// Divides the wall-clock time among the limits. Returns the limit with the largest share, and the shares of all
    /// limits.
    pub(crate) fn bottleneck(&self) -> Bottleneck {
        let seconds = self.share_out();
        let whole: f64 = seconds.0.iter().sum();
        if whole <= 0.0 {
            return Bottleneck::default();
        }
        let shares = seconds.0.map(|part| percent(part / whole));
        let largest = Limit::ALL
            .into_iter()
            .max_by(|a, b| seconds.of(*a).total_cmp(&seconds.of(*b)));
        let limit = largest.unwrap_or_default();
        Bottleneck {
            limit,
            percent: shares[limit as usize],
            shares,
        }
    }

    /// Returns the limit in one interval of a running push. The receiver has not sent its report yet. `path` describes
    /// the same interval.
    pub(crate) fn live_limit(&self, path: Option<&PathReport>) -> &'static str {
        if self.first_byte.is_none() {
            return "waiting for replies";
        }
        match self.bottleneck().limit {
            Limit::Scan => "source scan",
            Limit::SourceReads => "source reads",
            Limit::SenderCpu => "sender CPU",
            Limit::StartUp if !self.stages.lane.total().is_zero() => "waiting for replies",
            Limit::OwnRate | Limit::AllowedRate => "rate limit",
            _ => match path {
                None => "path or target",
                Some(path) if path.receive_window_limited * 2 >= path.busy => "target",
                Some(_) => "path",
            },
        }
    }

    fn share_out(&self) -> Seconds {
        let mut seconds = Seconds::default();
        let first = self.first_byte.unwrap_or(self.wall).min(self.wall);
        let handed_over = self
            .handed_over
            .unwrap_or(self.wall)
            .clamp(first, self.wall);
        let on_the_wire = self
            .on_the_wire
            .unwrap_or(handed_over)
            .clamp(handed_over, self.wall);
        seconds.add(Limit::StartUp, first.as_secs_f64());
        let rest = (self.wall - on_the_wire).as_secs_f64();
        let streaming = (handed_over - first).as_secs_f64();
        let (upstream_idle, held_up) = self.share_sending(streaming, &mut seconds);
        let downstream = held_up + (on_the_wire - handed_over).as_secs_f64();
        self.share_downstream(downstream, upstream_idle + rest, &mut seconds);
        self.share_rest(rest, &mut seconds);
        seconds
    }

    /// Divides the time from the first data to the last among the limits of the sender. Returns two durations that
    /// belong to the lanes' waiting time: the time lost to the stages before the lanes, and the time lost to the stages
    /// after the lanes.
    fn share_sending(&self, streaming: f64, seconds: &mut Seconds) -> (f64, f64) {
        let Stages {
            scan, read, lane, ..
        } = &self.stages;
        if lane.total().is_zero() {
            seconds.add(Limit::StartUp, streaming);
            return (streaming, 0.0);
        }
        seconds.add(Limit::SenderCpu, streaming * lane.share(lane.busy));
        seconds.add(self.rate_limit, streaming * lane.share(lane.paced));
        let starved = streaming * lane.share(lane.starved);
        if read.total().is_zero() {
            seconds.add(Limit::StartUp, starved);
            return (starved, streaming * lane.share(lane.blocked));
        }
        seconds.add(Limit::SourceReads, starved * read.share(read.busy));
        // A scan that is mostly not busy finds entries faster than the planner takes them. The planner then waits for
        // the receiver's answers.
        let unfed = if scan.share(scan.busy) > 0.5 {
            Limit::Scan
        } else {
            Limit::StartUp
        };
        seconds.add(unfed, starved * read.share(read.starved));
        // Blocked readers wait for a receipt or a free buffer, and therefore for the stages after the lanes.
        let held_up = starved * read.share(read.blocked);
        (
            starved - held_up,
            held_up + streaming * lane.share(lane.blocked),
        )
    }

    /// Divides the time in which the lanes waited for the path or the receiver. The time is divided in proportion to
    /// how the receiving lanes spent their time. `no_fault` is the time in which a faster path would not have helped.
    fn share_downstream(&self, downstream: f64, no_fault: f64, seconds: &mut Seconds) {
        let Stages { receive, store, .. } = &self.stages;
        if store.share(store.busy) > SATURATED {
            return seconds.add(Limit::TargetWrites, downstream);
        }
        let each = |time| self.per_lane(time).as_secs_f64();
        let busy = each(receive.busy);
        let blocked = each(receive.blocked);
        let paced = each(receive.paced);
        let starved = (each(receive.starved) - no_fault).max(0.0);
        let whole = busy + blocked + paced + starved;
        if whole <= 0.0 {
            return seconds.add(Limit::Path, downstream);
        }
        seconds.add(Limit::ReceiverCpu, downstream * busy / whole);
        seconds.add(Limit::TargetWrites, downstream * blocked / whole);
        seconds.add(Limit::AllowedRate, downstream * paced / whole);
        seconds.add(Limit::Path, downstream * starved / whole);
    }

    /// Divides the time after the last data was on the wire. During that time only the receiver works, except for one
    /// round trip until its receipt arrives.
    fn share_rest(&self, rest: f64, seconds: &mut Seconds) {
        let flush = self.flush.as_secs_f64().min(rest);
        let reply = self.round_trip.as_secs_f64().min(rest - flush);
        let rest = rest - flush - reply;
        seconds.add(Limit::TargetWrites, flush);
        seconds.add(Limit::StartUp, reply);
        let Stages { receive, store, .. } = &self.stages;
        // All lanes wait for the rate limit at the same time.
        let paced = self.per_lane(receive.paced);
        let whole = (store.busy + receive.busy + paced).as_secs_f64();
        if whole <= 0.0 {
            return seconds.add(Limit::TargetWrites, rest);
        }
        let mut add = |limit, time: Duration| seconds.add(limit, rest * time.as_secs_f64() / whole);
        add(Limit::TargetWrites, store.busy);
        add(Limit::ReceiverCpu, receive.busy);
        add(Limit::AllowedRate, paced);
    }

    fn per_lane(&self, time: Duration) -> Duration {
        time / u32::try_from(self.lanes.max(1)).unwrap_or(u32::MAX)
    }
}

/// The writers count as the limit if they are busy for at least this share of the time, regardless of how the lanes
/// spend theirs.
const SATURATED: f64 = 0.8;

/// Wall-clock time by limit.
#[derive(Default)]
struct Seconds([f64; Limit::ALL.len()]);

impl Seconds {
    fn add(&mut self, limit: Limit, seconds: f64) {
        self.0[limit as usize] += seconds;
    }

    fn of(&self, limit: Limit) -> f64 {
        self.0[limit as usize]
    }
}

fn times(report: StageReport) -> StageTimes {
    StageTimes {
        busy: Duration::from_micros(report.busy_us),
        starved: Duration::from_micros(report.starved_us),
        blocked: Duration::from_micros(report.blocked_us),
        paced: Duration::from_micros(report.paced_us),
    }
}

#[cfg(test)]
mod tests;
