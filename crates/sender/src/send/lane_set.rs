//! The lanes of one push. They are added and ended while it runs, and watched for lost connections.
//!
//! The loss of a single lane does not end the session, but the loss of the last lane does. A lane's thread notices a
//! loss when it sends. A lane may also have nothing left to send while its last data has not arrived. The session
//! therefore checks each connection several times a second, with the report of the kernel (`TCP_INFO`) or of QUIC. A
//! lane also counts as lost if its peer has not acknowledged sent data for `SILENCE_MAX`.
//!
//! The sender knows which items no other lane has taken (`in_flight/record.rs`) and informs the receiver, which reports
//! the items that have not arrived. From then on they are treated like damaged data, under new item numbers. Each item
//! is accepted once (`wire/session/arrivals.rs`), so nothing is stored twice, even if the old connection still delivers
//! data. The tuner dials a replacement lane, because the number of lanes that it wants is unchanged.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use zmove_transport::{LaneBreaker, LaneError, LaneSink, PathProbe, TcpInfo};

use crate::push::threads::{PushThreads, WorkerFailure};
use crate::send::lane::{self, LaneContext};
use crate::tune::path::{on_the_way, unacked};

/// All lanes of one push, including those that have ended.
pub(crate) struct LaneSet {
    context: Arc<LaneContext>,
    lanes: Vec<WatchedLane>,
    /// Largest number of lanes that were up at the same time.
    pub(crate) lanes_peak: usize,
    broken: UnboundedSender<WorkerFailure>,
    /// The error of the last lane that failed to connect.
    pub(crate) last_error: Option<LaneError>,
}

/// One lane. Ended lanes are kept too.
struct WatchedLane {
    breaker: LaneBreaker,
    probe: PathProbe,
    state: LaneState,
    /// Set when the lane's thread has ended or is about to end.
    ended: Arc<AtomicBool>,
    pace: LaneThroughput,
}

/// The state of a lane.
///
/// ```text
///                 surplus               thread ended, all arrived
///       Up ───────────────────► LetGo ────────────────────────────► Closed
///       │ connection gone,       │ silent, or doubted                 ▲  ▲
///       │ or doubted             ├── thread at work ──► Cut           │  │
///       ├───────────────► Cut    └── thread ended ───► Lost           │  │
///       │                  │ ── thread ended, all arrived ────────────┘  │
///       │ thread reports   │ thread reports                              │
///       └────────► Lost ◄──┘                                             │
///                   └─────────────────── thread ended ───────────────────┘
/// ```
enum LaneState {
    /// The lane takes frames until this sender is dropped.
    Up(#[expect(dead_code, reason = "only its drop counts")] crossbeam_channel::Sender<()>),
    /// The lane takes no more frames. The frames that it took earlier are still being sent or in transit.
    Draining,
    /// This side has broken the lane's connection while its thread was at work. The thread will report the loss.
    Cut,
    /// The lane's connection is lost. Data that the lane has not delivered will not arrive.
    Lost,
    /// The lane's connection is closed, and only its totals are kept.
    Closed,
}

/// The recent throughput of a lane. The weight of earlier bytes halves at each observation.
#[derive(Clone, Copy, Debug, Default)]
struct LaneThroughput {
    lately: u64,
    in_all: u64,
}

impl LaneThroughput {
    fn note(&mut self, in_all: u64) {
        self.lately = self.lately / 2 + in_all.saturating_sub(self.in_all);
        self.in_all = in_all;
    }
}

impl WatchedLane {
    fn is_up(&self) -> bool {
        matches!(self.state, LaneState::Up(_))
    }

    /// Checks the lane. Gives up the lane if its connection is lost, and closes the lane if all of its data has
    /// arrived. Returns whether the lane is lost and its thread will not report the loss.
    fn tidy(&mut self) -> bool {
        let last = self.probe.read().unwrap_or_default();
        self.pace.note(last.bytes_acked.unwrap_or(0));
        let gone = match self.state {
            LaneState::Up(_) => is_gone(&last),
            LaneState::Draining => is_silent(&last),
            LaneState::Cut | LaneState::Lost | LaneState::Closed => false,
        };
        let lost = gone && self.give_up(&last);
        if !lost {
            self.close_if_arrived(last);
        }
        lost
    }

    /// Breaks the connection of a lane whose data has not all arrived. Returns whether the lane is lost and its thread
    /// will not report the loss.
    fn give_up(&mut self, last: &TcpInfo) -> bool {
        let ended = self.ended.load(Ordering::Acquire);
        let state = match self.state {
            // The thread may be waiting for work or for buffer space, and would not notice the loss.
            LaneState::Up(_) => LaneState::Cut,
            // A thread that waits for space in the connection's send buffer reports the loss. A thread that has ended
            // does not.
            LaneState::Draining if !ended => LaneState::Cut,
            LaneState::Draining if unacked(last) > 0 => LaneState::Lost,
            LaneState::Draining | LaneState::Cut | LaneState::Lost | LaneState::Closed => {
                return false;
            }
        };
        // Trip the breaker before dropping the holder in `Up`. A thread without a holder ends gracefully while its
        // connection works, and would then not report that its sent data is lost.
        self.breaker.trip();
        self.state = state;
        matches!(self.state, LaneState::Lost)
    }

    /// Marks the lane as lost after its thread has reported the loss.
    fn lose(&mut self) {
        if !matches!(self.state, LaneState::Closed) {
            self.state = LaneState::Lost;
            self.breaker.trip();
        }
    }

    /// Closes a lane and keeps its totals, if its thread has ended and no more of its data can arrive.
    fn close_if_arrived(&mut self, last: TcpInfo) {
        let arrived = match self.state {
            LaneState::Up(_) | LaneState::Closed => return,
            LaneState::Draining | LaneState::Cut => unacked(&last) == 0,
            LaneState::Lost => true,
        };
        if !self.ended.load(Ordering::Acquire) {
            return;
        }
        if arrived {
            self.state = LaneState::Closed;
        }
        // The thread of a broken connection may report the loss much later, if the push has entered a queue.
        if arrived || matches!(self.state, LaneState::Cut) {
            self.drop_connection(last);
        }
    }

    fn drop_connection(&mut self, last: TcpInfo) {
        self.breaker = LaneBreaker::new(|| ());
        if self.probe.read().is_some() {
            // The time since data was last sent grows, so the saved value would soon be wrong.
            let last = TcpInfo {
                since_data_sent: None,
                ..last
            };
            self.probe = PathProbe::telling(move || last);
        }
    }
}

/// Returns whether a connection has ended or has had unacknowledged data for too long. A receiver that has stopped
/// accepting lane data has acknowledged everything that was sent, so its connections do not count as ended.
fn is_gone(info: &TcpInfo) -> bool {
    info.established == Some(false) || is_silent(info)
}

fn is_silent(info: &TcpInfo) -> bool {
    info.since_ack_received
        .is_some_and(|time| time > SILENCE_MAX)
        && on_the_way(info) > 0
}

/// Maximum time without an acknowledgment for sent data. The control connection uses the same limit.
const SILENCE_MAX: Duration = Duration::from_secs(60);

impl LaneSet {
    /// Creates an empty set. Each lane that breaks is reported to `broken`, unless the push is being stopped.
    pub(crate) fn new(context: LaneContext, broken: UnboundedSender<WorkerFailure>) -> Self {
        let context = Arc::new(context);
        Self {
            context,
            lanes: Vec::new(),
            lanes_peak: 0,
            broken,
            last_error: None,
        }
    }

    /// Starts a lane. If its thread cannot be started, the lane is closed gracefully and counts as a lane that could
    /// not be connected.
    pub(crate) fn add(&mut self, mut sink: Box<dyn LaneSink>, threads: &mut PushThreads) {
        sink.set_rate(self.context.session.rate.shared.clone());
        let (hold, drain_signal) = crossbeam_channel::bounded(0);
        let ended = Arc::new(AtomicBool::new(false));
        let lane = WatchedLane {
            breaker: sink.breaker(),
            probe: sink.path(),
            state: LaneState::Up(hold),
            ended: Arc::clone(&ended),
            pace: LaneThroughput::default(),
        };
        let number = self.lanes.len();
        let context = Arc::clone(&self.context);
        let broken = self.broken.clone();
        let (sink_in, sinks) = crossbeam_channel::bounded(1);
        let started = threads.spawn(format!("zmove-lane-{number}"), move || {
            let Ok(sink) = sinks.recv() else { return };
            if let Err(error) = lane::run_lane(&context, number, sink, &drain_signal)
                && !context.session.in_flight.is_stopping()
            {
                let _session_over = broken.send(WorkerFailure {
                    lane: Some(number),
                    error,
                });
            }
            ended.store(true, Ordering::Release);
        });
        if let Err(source) = started {
            end_unused(sink);
            self.last_error = Some(LaneError::Io { source });
            return;
        }
        sink_in
            .send(sink)
            .expect("the thread that has just been started takes it");
        self.lanes.push(lane);
        self.lanes_peak = self.lanes_peak.max(self.lanes_up());
    }

    /// Drops connections that have ended. Also measures the throughput of each lane, so it must be called at regular
    /// intervals.
    pub(crate) fn tidy(&mut self) {
        for number in 0..self.lanes.len() {
            if self.lanes[number].tidy() {
                self.report_lost(number);
            }
        }
    }

    /// Gives up a lane whose data has not all arrived.
    pub(crate) fn give_up_lane(&mut self, number: usize) {
        if let Some(lane) = self.lanes.get_mut(number) {
            let last = lane.probe.read().unwrap_or_default();
            if lane.give_up(&last) {
                self.report_lost(number);
            }
        }
    }

    /// Gives up all lanes.
    pub(crate) fn give_up_lanes(&mut self) {
        (0..self.lanes.len()).for_each(|number| self.give_up_lane(number));
    }

    fn report_lost(&self, number: usize) {
        // The channel is closed only when the session is over.
        let _over = self.broken.send(WorkerFailure {
            lane: Some(number),
            error: LaneError::Closed,
        });
    }

    /// Marks a lane as lost after its thread has ended.
    pub(crate) fn lose_lane(&mut self, number: usize) {
        if let Some(lane) = self.lanes.get_mut(number) {
            lane.lose();
        }
    }

    /// Lets the slowest lanes end until `wanted` lanes are left. Each of these lanes ends gracefully after its current
    /// frame.
    pub(crate) fn keep_lanes(&mut self, wanted: usize) {
        drain_slowest(&mut self.lanes, wanted);
    }

    /// Sets the congestion control of all lanes that are up. If the kernel refuses the change for a lane, that lane
    /// keeps its current congestion control.
    pub(crate) fn set_congestion(&self, name: &str) {
        let up = self.lanes.iter().filter(|lane| lane.is_up());
        up.for_each(|lane| {
            let _refused = lane.probe.set_congestion(name);
        });
    }

    /// Returns the number of lanes that take frames.
    pub(crate) fn lanes_up(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.is_up()).count()
    }

    /// Returns the number of frames that wait for a lane.
    pub(crate) fn frames_waiting(&self) -> usize {
        self.context.frames.len()
    }

    pub(crate) fn breakers(&self) -> Vec<LaneBreaker> {
        self.lanes.iter().map(|lane| lane.breaker.clone()).collect()
    }

    /// Breaks the lanes with these numbers.
    pub(crate) fn break_lanes(&self, numbers: &HashSet<usize>) {
        let chosen = self
            .lanes
            .iter()
            .enumerate()
            .filter(|(number, _)| numbers.contains(number));
        chosen.for_each(|(_, lane)| lane.breaker.trip());
    }

    /// Returns whether data sent by a lane is known to be unacknowledged.
    pub(crate) fn is_stuck(&self, number: usize) -> bool {
        let info = self.lanes.get(number).and_then(|lane| lane.probe.read());
        info.is_some_and(|info| unacked(&info) > 0)
    }

    /// Returns the path probes of all lanes, including those that have ended.
    pub(crate) fn probes(&self) -> impl Iterator<Item = &PathProbe> {
        self.lanes.iter().map(|lane| &lane.probe)
    }

    /// Returns the path probes of the lanes that are up.
    pub(crate) fn probes_up(&self) -> impl Iterator<Item = &PathProbe> {
        self.lanes
            .iter()
            .filter(|lane| lane.is_up())
            .map(|lane| &lane.probe)
    }

    /// Stops adding lanes, and returns a value that holds the lanes. Lanes that are up end once the queued frames have
    /// been sent, or when this value is dropped.
    pub(crate) fn close(self) -> impl Sized {
        self.lanes
    }
}

/// Lets the slowest lanes end. Among equally slow lanes, the youngest end first.
fn drain_slowest(lanes: &mut [WatchedLane], wanted: usize) {
    let mut up: Vec<_> = lanes.iter_mut().rev().filter(|lane| lane.is_up()).collect();
    up.sort_by_key(|lane| lane.pace.lately);
    let surplus = up.len().saturating_sub(wanted);
    up.into_iter()
        .take(surplus)
        .for_each(|lane| lane.state = LaneState::Draining);
}

/// Ends a lane on which only the greeting has been sent. Such a lane has room to send its end. If the lane were dropped
/// instead, the receiver would see a broken lane.
pub(crate) fn end_unused(mut sink: Box<dyn LaneSink>) {
    let _gone_already = sink.finish();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a lane in this state. The connection is closed when nothing else holds the returned value.
    fn lane(state: LaneState, unacked: u32) -> (WatchedLane, Arc<()>) {
        let connection = Arc::new(());
        let breaks = Arc::clone(&connection);
        let tells = Arc::clone(&connection);
        let lane = WatchedLane {
            breaker: LaneBreaker::new(move || drop(Arc::clone(&breaks))),
            probe: PathProbe::telling(move || {
                let _open = &tells;
                TcpInfo {
                    bytes_acked: Some(7),
                    bytes_unsent: Some(unacked),
                    ..TcpInfo::default()
                }
            }),
            state,
            ended: Arc::new(AtomicBool::new(false)),
            pace: LaneThroughput::default(),
        };
        (lane, connection)
    }

    #[test]
    fn a_lane_that_has_ended_keeps_its_account_but_no_connection() {
        for (state, unacked) in [(LaneState::Draining, 0), (LaneState::Cut, 5)] {
            let (mut lane, connection) = lane(state, unacked);
            lane.tidy();
            assert_eq!(Arc::strong_count(&connection), 3, "its thread is at work");
            lane.ended.store(true, Ordering::Relaxed);
            lane.tidy();
            assert_eq!(Arc::strong_count(&connection), 1);
            assert_eq!(lane.probe.read().and_then(|info| info.bytes_acked), Some(7));
            assert_eq!(matches!(lane.state, LaneState::Cut), unacked > 0);
        }
    }

    #[test]
    fn a_lane_that_was_let_go_and_falls_silent_is_lost() {
        let silent = TcpInfo {
            bytes_sent: Some(9),
            bytes_acked: Some(1),
            since_ack_received: Some(Duration::from_secs(61)),
            ..TcpInfo::default()
        };
        let tripped = Arc::new(AtomicBool::new(false));
        for ended in [false, true] {
            let trips = Arc::clone(&tripped);
            let mut lane = WatchedLane {
                breaker: LaneBreaker::new(move || trips.store(true, Ordering::Relaxed)),
                probe: PathProbe::telling(move || silent),
                state: LaneState::Draining,
                ended: Arc::new(AtomicBool::new(ended)),
                pace: LaneThroughput::default(),
            };
            // A thread that is still at work reports the loss itself.
            assert_eq!(lane.tidy(), ended);
            assert_eq!(matches!(lane.state, LaneState::Lost), ended);
            assert!(tripped.swap(false, Ordering::Relaxed));
            lane.ended.store(true, Ordering::Relaxed);
            assert!(!lane.tidy(), "it is told once");
        }
    }

    /// If the lane were let go first, its thread could end gracefully before the connection breaks. The loss of the
    /// data sent on the lane would then not be reported.
    #[test]
    fn a_lane_is_broken_before_it_is_let_go() {
        let (hold, drain_signal) = crossbeam_channel::bounded(0);
        let broken_first = Arc::new(AtomicBool::new(false));
        let (seen, told) = (Arc::clone(&broken_first), drain_signal.clone());
        let is_held = move || told.try_recv() == Err(crossbeam_channel::TryRecvError::Empty);
        let mut lane = WatchedLane {
            breaker: LaneBreaker::new(move || seen.store(is_held(), Ordering::Relaxed)),
            probe: PathProbe::telling(TcpInfo::default),
            state: LaneState::Up(hold),
            ended: Arc::new(AtomicBool::new(false)),
            pace: LaneThroughput::default(),
        };
        assert!(!lane.give_up(&TcpInfo::default()));
        assert!(broken_first.load(Ordering::Relaxed));
        assert_eq!(
            drain_signal.try_recv(),
            Err(crossbeam_channel::TryRecvError::Disconnected)
        );
    }

    #[test]
    fn a_connection_is_gone_when_it_is_closed_or_silent() {
        let (short, long) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(61)));
        let at_work = TcpInfo {
            established: Some(true),
            bytes_sent: Some(9),
            bytes_acked: Some(1),
            since_ack_received: short,
            ..TcpInfo::default()
        };
        let silent = TcpInfo {
            since_ack_received: long,
            ..at_work
        };
        let gone = [
            at_work,
            silent,
            TcpInfo {
                bytes_acked: Some(9),
                bytes_unsent: Some(99),
                ..silent
            },
            TcpInfo {
                established: Some(false),
                ..at_work
            },
            TcpInfo::default(),
        ];
        assert_eq!(
            gone.map(|info| is_gone(&info)),
            [false, true, false, true, false]
        );
    }

    #[test]
    fn the_slowest_lanes_go_first() {
        // The first lane has carried the most bytes in total, but hardly any recently.
        let carried: [&[u64]; 4] = [
            &[900, 901, 902],
            &[0, 300, 600],
            &[0, 0, 250],
            &[0, 300, 600],
        ];
        let lane = |in_all: &[u64]| {
            let mut pace = LaneThroughput::default();
            in_all.iter().for_each(|bytes| pace.note(*bytes));
            WatchedLane {
                breaker: LaneBreaker::new(|| ()),
                probe: PathProbe::default(),
                state: LaneState::Up(crossbeam_channel::bounded(0).0),
                ended: Arc::default(),
                pace,
            }
        };
        let mut lanes = carried.map(lane);
        let mut left = |wanted| {
            drain_slowest(&mut lanes, wanted);
            (0..4)
                .filter(|number| lanes[*number].is_up())
                .collect::<Vec<usize>>()
        };
        assert_eq!(
            (left(4), left(3), left(2), left(1)),
            (vec![0, 1, 2, 3], vec![1, 2, 3], vec![1, 3], vec![1])
        );
    }
}
