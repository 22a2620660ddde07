//! The limit of a push: the wall clock is shared out over everything that can limit it.
//!
//! Each thread of a stage books its time as busy, starved, blocked or paced ([`StageTimes`]), and the receiver sends
//! its totals at the end. But a thread books nothing while it waits for something that never comes, and queues hide a
//! slow stage for as long as they fill: of 50,000 files of 1 KiB everything is in buffers within a second, in which the
//! lanes have only waited for the readers, and then the target creates files for many more seconds. So this pure
//! function shares out the wall clock and not the threads' time. It goes along the pipeline by the moments that the
//! sender knows:
//!
//! - From the start to the first data on a lane: start-up.
//! - To the last data handed to a lane. Lanes busy: the sender's CPU. Lanes paced: the rate that is set here,
//!   or the allowed one where that is lower. Lanes blocked: downstream. Lanes starved: as the readers spent
//!   their time. Readers busy: source reads. Readers starved: the scan if it was busy, else replies. Readers
//!   blocked, without a buffer or with too much that has no receipt: downstream.
//! - To the last data on the wire (`TCP_INFO`): downstream.
//! - To the receiver's last message. Its flush: target writes. One round trip: replies. The rest, as its lanes and
//!   writers were busy or paced: the receiver's CPU, target writes, or the allowed rate.
//!
//! *Downstream* is target writes where all writers are busy for most of the time. Else it is shared out as
//! the receiving lanes spent theirs: blocked is target writes, busy the receiver's CPU, paced the rate that
//! the receiver allows the key, and starved the path, as far as there was something to wait for.
//!
//! The writers' account goes to the end of the transfer: time that none of them has booked by then was
//! waiting, and while directories get their metadata and storage is flushed the stage counts as busy.
//!
//! A stage that waits as much as it works gets half of the time, although a faster one might gain nothing:
//! the totals do not tell two halves of a run from a mixture. A scan that is slow to find its first file
//! counts as start-up.
//!
//! **Invariant:** every moment is booked once; the shares add up to the whole.

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

/// All that is known about how a push spent its time. Moments count from the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    /// The moment of the end.
    pub(crate) wall: Duration,
    /// The moment when the first data was handed to a lane.
    pub(crate) first_byte: Option<Duration>,
    /// The moment when the last data was handed to a lane; `None` while there is more.
    pub(crate) handed_over: Option<Duration>,
    /// The moment when the last data was on the wire, where the kernel reports it.
    pub(crate) on_the_wire: Option<Duration>,
    /// The path's round trip, where the kernel reports it.
    pub(crate) round_trip: Duration,
    /// The duration of the receiver's last flush.
    pub(crate) flush: Duration,
    /// The number of lanes.
    pub(crate) lanes: usize,
    /// The times of the stages' threads.
    pub(crate) stages: Stages,
    /// Whose rate it is that lanes on this side have waited for.
    pub(crate) rate_limit: Limit,
}

impl Stages {
    /// The times of all stages, with the receiver's from its report.
    pub(crate) fn with_report(self, finished: &Finished) -> Self {
        Self {
            receive: times(finished.receive),
            store: times(finished.store),
            ..self
        }
    }

    /// The times booked after `before`.
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
    /// Shares the wall clock out and names the largest share.
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

    /// The limit in one interval of a running push, with `path` of that interval; the receiver has not reported yet.
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

    /// Shares out the sender's own part of the time from the first data to the last. Returns for how long the stages
    /// before the lanes were the reason, and for how long what comes after them was.
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
        // A scan that itself waits has found more than is asked for: then the receiver's answers are missing.
        let unfed = if scan.share(scan.busy) > 0.5 {
            Limit::Scan
        } else {
            Limit::StartUp
        };
        seconds.add(unfed, starved * read.share(read.starved));
        // Readers that are blocked, until something is stored or a buffer is free, wait for what is behind the lanes.
        let held_up = starved * read.share(read.blocked);
        (
            starved - held_up,
            held_up + streaming * lane.share(lane.blocked),
        )
    }

    /// Shares out the time for which the lanes waited for the path or the receiver, in the proportions in which the
    /// receiving lanes spent their time. `no_fault` is the time for which a faster path would have brought these
    /// nothing.
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

    /// Shares out the time after the last data was on the wire: only the receiver works then, except for the one round
    /// trip until its receipt is here.
    fn share_rest(&self, rest: f64, seconds: &mut Seconds) {
        let flush = self.flush.as_secs_f64().min(rest);
        let reply = self.round_trip.as_secs_f64().min(rest - flush);
        let rest = rest - flush - reply;
        seconds.add(Limit::TargetWrites, flush);
        seconds.add(Limit::StartUp, reply);
        let Stages { receive, store, .. } = &self.stages;
        // All lanes wait for the rate at the same time.
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

/// The share of the writers' time from which on they are the limit, whatever the lanes before them do.
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
