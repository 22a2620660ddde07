//! Carries out the decisions of the controller: dials and ends lanes, and starts and stops readers.
//!
//! The session calls this module a few times a second. It contains everything that the pure [`tune`](crate::tune) must
//! not touch: the kernel's report on the lanes (`TCP_INFO`), the host's idle cores, and the dialer.
//!
//! A new lane is dialed while the others run. If a lane fails to connect, or if no thread can be started for it, the
//! push continues without it and requests it again after rests that double. To reduce their number, the lanes that have
//! recently carried the fewest bytes end between two frames. A lane above the receiver's maximum ends immediately. The
//! number of writers at the receiver is not tuned.

use std::time::{Duration, Instant};

use zmove_transport::{LaneSink, PathProbe, TcpInfo};
use zmove_types::StageTimes;
use zmove_wire::{BestRate, LearnedSettings, PathReport};

use crate::control::link::{LaneCount, LaneSupply};
use crate::error::SessionError;
use crate::plan::resend;
use crate::push::config::SenderConfig;
use crate::push::pipeline::Pipeline;
use crate::push::session::Session;
use crate::tune::attempt::AttemptBackoff;
use crate::tune::congestion_controls::LOSS_TOLERANT;
use crate::tune::path::{self, unacked};
use crate::tune::round::BestRound;
use crate::tune::{Congestion, Knob, Knobs, PathTick, Tick, TunedSettings, Tuner};

/// The state of tuning one push.
pub(crate) struct Steering {
    supply: Option<LaneSupply>,
    dials: Dials,
    tuner: Option<Tuner>,
    congestion: Congestion,
    before: TotalsSnapshot,
    best: BestRound,
}

/// The lanes that are being dialed.
#[derive(Debug)]
struct Dials {
    /// Number of requested lanes that have neither connected nor failed.
    awaited: usize,
    /// Number of lanes that were wanted at the previous call of `missing`.
    wanted: usize,
    /// Pause before lanes that failed are requested again.
    rest: AttemptBackoff,
    /// Whether the first lanes were given up and replacements for them were requested.
    again: bool,
}

impl Dials {
    fn new(awaited: usize) -> Self {
        Self {
            awaited,
            wanted: awaited,
            rest: AttemptBackoff::of(REDIAL_REST_MIN),
            again: false,
        }
    }

    /// Returns the number of lanes to request if `up` of the `wanted` lanes are up. Lanes that failed are requested
    /// again after a pause, which doubles each time.
    fn missing(&mut self, wanted: usize, up: usize, elapsed: Duration) -> usize {
        let risen = wanted > self.wanted;
        self.wanted = wanted;
        let missing = wanted.saturating_sub(up + self.awaited);
        self.rest.tick(elapsed);
        if missing == 0 || risen {
            return missing;
        }
        if !self.rest.is_over() {
            return 0;
        }
        self.rest.refused();
        missing
    }
}

const REDIAL_REST_MIN: Duration = Duration::from_secs(2);

/// Totals at one point in time.
#[derive(Default)]
struct TotalsSnapshot {
    at: Option<Instant>,
    bytes_carried: u64,
    bytes_read: u64,
    read: StageTimes,
    lane: StageTimes,
    cores: Cores,
    path: PathReport,
}

/// CPU ticks of all cores of this host, in total and idle.
#[derive(Clone, Copy, Default)]
struct Cores {
    idle: u64,
    all: u64,
}

impl Steering {
    pub(crate) fn new(supply: Option<LaneSupply>) -> Self {
        let awaited = supply.as_ref().map_or(0, |supply| {
            usize::from(supply.asked) + usize::from(supply.again)
        });
        let congestion = match &supply {
            Some(supply) if supply.congestion.tolerant => Congestion::LossTolerant,
            _ => Congestion::AsSet,
        };
        Self {
            supply,
            dials: Dials::new(awaited),
            tuner: None,
            congestion,
            before: TotalsSnapshot::default(),
            best: BestRound::default(),
        }
    }

    /// Begins tuning. The receiver accepts at most `lanes_max` lanes.
    pub(crate) fn begin(&mut self, config: &SenderConfig, lanes_max: u16) {
        let readers = config.readers;
        let readers = Knob {
            start: readers,
            least: readers.min(2),
            most: config.readers_max.max(readers),
        };
        let lanes = self.lanes_knob(usize::from(lanes_max).max(1));
        self.tuner = Some(Tuner::new(&Knobs {
            lanes,
            readers,
            congestion: self.congestion,
            congestion_replaceable: self.usual_control().is_some(),
        }));
    }

    fn lanes_knob(&self, most: usize) -> Knob {
        let Some(LaneSupply { asked, number, .. }) = self.supply else {
            return Knob {
                start: most,
                least: most,
                most,
            };
        };
        let start = usize::from(asked).clamp(1, most);
        match number {
            LaneCount::Fixed => Knob {
                start,
                least: start,
                most: start,
            },
            LaneCount::Tuned { least } => Knob {
                start,
                least: usize::from(least).clamp(1, start),
                most,
            },
        }
    }

    fn is_tuned(&self) -> bool {
        matches!(
            self.supply,
            Some(LaneSupply {
                number: LaneCount::Tuned { .. },
                ..
            })
        )
    }

    /// Returns the recommended settings for the next push on this path.
    pub(crate) fn learnt(&self) -> Option<LearnedSettings> {
        let wanted = self.tuner.as_ref().filter(|_| self.is_tuned())?.proven();
        let lanes = u16::try_from(wanted.lanes).ok()?;
        Some(LearnedSettings {
            lanes,
            loss_tolerant: wanted.congestion == Congestion::LossTolerant,
        })
    }

    /// Records how many bytes have been acknowledged.
    pub(crate) fn count_acked(&mut self, pipeline: &Pipeline) {
        if let Some(report) = path::gather(pipeline.lane_set.probes()) {
            let acked = report.bytes_acked.iter().sum();
            self.best.note(Instant::now(), acked, report.round_trip_min);
        }
    }

    /// Returns the maximum rate that the path has carried over one round trip.
    pub(crate) fn at_best(&self) -> Option<BestRate> {
        self.best.found()
    }

    /// Records that one of the requested lanes has connected or failed.
    pub(crate) fn note_lane_result(&mut self) {
        self.dials.awaited = self.dials.awaited.saturating_sub(1);
    }

    /// Requests as many lanes as were dialed initially. Lanes that are still being dialed do not reduce this number,
    /// because the receiver may already have closed them.
    pub(crate) fn redial_all(&mut self) {
        let Some(supply) = &self.supply else { return };
        if supply.more.send(supply.asked).is_ok() {
            self.dials.awaited += usize::from(supply.asked);
        }
        self.dials.again = true;
    }

    /// Returns whether replacements for the first lanes are still being dialed. While they are, the session does not
    /// end if it loses all other lanes.
    pub(crate) fn is_redialing_all(&self) -> bool {
        self.dials.again && self.dials.awaited > 0
    }

    /// Returns whether more lanes may still connect. `open` states whether the channel that delivers lanes is still
    /// open.
    pub(crate) fn expects_lanes(&self, open: bool) -> bool {
        if self.supply.is_some() {
            open && self.dials.awaited > 0
        } else {
            open
        }
    }

    /// Sets the congestion control of a new lane to the one that the other lanes use.
    pub(crate) fn prepare(&self, sink: &dyn LaneSink) {
        if self.congestion == Congestion::LossTolerant && self.usual_control().is_some() {
            let _refused = sink.path().set_congestion(LOSS_TOLERANT);
        }
    }

    /// Takes measurements, makes decisions and carries them out.
    pub(crate) fn step(&mut self, pipeline: &mut Pipeline) -> Result<(), SessionError> {
        let Pipeline {
            session, lane_set, ..
        } = pipeline;
        let now = Instant::now();
        if session.rate.shared.is_spent(now) {
            // Work that waits for the rate limit is neither late nor lost.
            session.in_flight.note_progress(now);
        } else {
            resend::send_late(session, |lane| lane_set.is_stuck(lane));
            if let Some(lane) = session.in_flight.doubtful_lane(now) {
                lane_set.give_up_lane(lane);
            }
        }
        pipeline.tidy();
        let (now, tick) = self.measure(pipeline);
        let first = self.before.at.is_none();
        self.before = now;
        let Some(tuner) = self.tuner.as_mut().filter(|_| !first) else {
            return Ok(());
        };
        let wanted = tuner.tick(&tick);
        self.apply(wanted, &tick, pipeline)
    }

    fn apply(
        &mut self,
        wanted: TunedSettings,
        tick: &Tick,
        pipeline: &mut Pipeline,
    ) -> Result<(), SessionError> {
        pipeline.set_readers(wanted.readers)?;
        let Some(supply) = &self.supply else {
            return Ok(());
        };
        let lane_set = &mut pipeline.lane_set;
        let missing = self
            .dials
            .missing(wanted.lanes, lane_set.lanes_up(), tick.elapsed);
        if missing > 0 && !tick.ending {
            let more = u16::try_from(missing).unwrap_or(u16::MAX);
            // Without a dialer, the number of lanes cannot be changed.
            if supply.more.send(more).is_ok() {
                self.dials.awaited += usize::from(more);
            }
        } else if wanted.lanes < lane_set.lanes_up() {
            lane_set.keep_lanes(wanted.lanes);
        }
        if wanted.congestion != self.congestion {
            self.congestion = wanted.congestion;
            if let Some(usual) = self.usual_control() {
                let loss_tolerant = wanted.congestion == Congestion::LossTolerant;
                lane_set.set_congestion(if loss_tolerant { LOSS_TOLERANT } else { usual });
            }
        }
        Ok(())
    }

    /// Returns the name of the usual congestion control, if the push may switch between it and the loss-tolerant one.
    fn usual_control(&self) -> Option<&str> {
        self.supply.as_ref()?.congestion.usual.as_deref()
    }

    fn measure(&self, pipeline: &Pipeline) -> (TotalsSnapshot, Tick) {
        let Pipeline {
            session, lane_set, ..
        } = pipeline;
        let Session {
            account,
            in_flight,
            timeline,
            ..
        } = &**session;
        let infos: Vec<_> = lane_set.probes().filter_map(PathProbe::read).collect();
        let settled = account.totals.bytes_settled.get();
        let handed_over = account.totals.bytes_handed_over.get();
        let path = path::sum(&infos);
        // The kernel forgets old minimum round trips.
        let shortest = path
            .round_trip_min
            .into_iter()
            .chain(self.before.path.round_trip_min)
            .min();
        let path = PathReport {
            round_trip_min: shortest,
            ..path
        };
        let at = Instant::now();
        let now = TotalsSnapshot {
            at: Some(at),
            bytes_carried: Some(path.bytes_acked.iter().sum())
                .filter(|acked| *acked > 0)
                .unwrap_or(handed_over),
            bytes_read: account.totals.bytes_read.get(),
            read: timeline.read_clock.times(),
            lane: timeline.lane_clock.times(),
            cores: Cores::read(),
            path,
        };
        let before = &self.before;
        let tick = Tick {
            elapsed: before.at.map_or(Duration::ZERO, |before| at - before),
            bytes_carried: now.bytes_carried.saturating_sub(before.bytes_carried),
            bytes_read: now.bytes_read.saturating_sub(before.bytes_read),
            read: now.read.since(&before.read),
            lane: now.lane.since(&before.lane),
            lanes_up: lane_set.lanes_up(),
            bytes_unstored: handed_over
                .saturating_sub(settled + infos.iter().map(unacked).sum::<u64>()),
            ending: lane_set.frames_waiting() == 0 && in_flight.is_all_issued(),
            cores_idle: now.cores.idle_since(&before.cores),
            path: (!infos.is_empty())
                .then(|| path_tick(&path::since(&now.path, &before.path), lane_set.probes_up())),
        };
        (now, tick)
    }
}

/// Returns the state of the lanes' connections after a tick. `path` contains the increments of their counts during the
/// tick, and `up` are the connections that are currently up.
fn path_tick<'a>(path: &PathReport, up: impl Iterator<Item = &'a PathProbe>) -> PathTick {
    let infos: Vec<_> = up.filter_map(PathProbe::read).collect();
    let trips: Vec<_> = infos.iter().filter_map(|info| info.round_trip).collect();
    let count = u32::try_from(trips.len()).ok().filter(|count| *count > 0);
    let window = |info: &TcpInfo| {
        Some(u64::from(info.congestion_window_segments?) * u64::from(info.segment_bytes?))
    };
    let round_trip_min = path.round_trip_min.unwrap_or_default();
    PathTick {
        busy: path.busy,
        receive_window_limited: path.receive_window_limited,
        send_buffer_limited: path.send_buffer_limited,
        segments_retransmitted: path.segments_retransmitted,
        segment_bytes: infos
            .iter()
            .filter_map(|info| info.segment_bytes)
            .max()
            .unwrap_or(0),
        round_trip: count.map_or(round_trip_min, |count| {
            trips.iter().sum::<Duration>() / count
        }),
        round_trip_min,
        congestion_window_bytes: infos.iter().filter_map(window).sum(),
    }
}

impl Cores {
    /// Returns the kernel's counts since boot; see proc(5). Returns zeros if they cannot be read.
    fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default()).unwrap_or_default()
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text
            .lines()
            .next()?
            .strip_prefix("cpu ")?
            .split_ascii_whitespace();
        let ticks: Option<Vec<u64>> = words
            .by_ref()
            .take(8)
            .map(|word| word.parse().ok())
            .collect();
        let ticks = ticks?;
        // The fields are user, nice, system, idle, waiting for I/O, and so on.
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self {
            idle,
            all: ticks.iter().sum(),
        })
    }

    /// Returns the share of CPU ticks that were idle since `before`, or 1 if the share is unknown.
    fn idle_since(self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all);
        if all == 0 {
            return 1.0;
        }
        let as_f64 = |ticks| zmove_types::ByteCount(ticks).as_f64();
        as_f64(self.idle.saturating_sub(before.idle)) / as_f64(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_do_not_come_up_are_asked_for_ever_more_rarely() {
        let tick = Duration::from_millis(250);
        let mut dials = Dials::new(8);
        assert_eq!(dials.missing(8, 0, tick), 0, "they are coming");
        dials.awaited = 0;
        // Two lanes have failed, and the lanes requested to replace them fail too.
        let asked = (0..4 * 60)
            .filter(|_| dials.missing(8, 6, tick) > 0)
            .count();
        assert!((2..8).contains(&asked), "{asked} times in a minute");
        assert_eq!(
            dials.missing(16, 6, tick),
            10,
            "another number is another matter"
        );
        assert_eq!(dials.missing(16, 6, tick), 0);
    }

    #[test]
    fn lanes_that_are_late_take_the_place_of_none_that_are_dialled_again() {
        let (more, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let mut steering = Steering::new(Some(LaneSupply {
            more,
            asked: 3,
            again: 0,
            number: LaneCount::Fixed,
            congestion: crate::control::link::LossReaction::default(),
        }));
        steering.redial_all();
        assert_eq!(asked.try_recv(), Ok(3));
        for _late in 0..3 {
            steering.note_lane_result();
        }
        assert!(
            steering.is_redialing_all(),
            "all late lanes may be lost without an end"
        );
    }

    #[test]
    fn idle_time_is_a_share_of_all_cores() {
        let before = Cores::parse("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 1\n").unwrap();
        let now = Cores::parse("cpu  40 0 30 110 20 0 0 0 5 5\n").unwrap();
        assert!((now.idle_since(&before) - 0.5).abs() < 1e-9);
        assert!((now.idle_since(&now) - 1.0).abs() < 1e-9);
        assert!(Cores::parse("").is_none() && Cores::parse("cpu 1 2\n").is_none());
    }
}
