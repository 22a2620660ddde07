//! A path that loses packets gets more lanes during the push. Lanes that fail to connect are not needed.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use zmove_receiver::ReceiverConfig;
use zmove_sender::SenderConfig;
use zmove_transport::{Frame, LaneBreaker, LaneError, LaneSink, PathProbe, TcpInfo};
use zmove_types::{GROUP_BYTES, Stopwatch, ThreadState};

use crate::support::harness::{PATIENCE, Site};
use crate::support::inprocess::InProcess;
use crate::support::quiet_machine::quiet_machine;
use crate::support::tree::{assert_same, paint};

const LANES: usize = 2;
/// Number of groups: many more than the first lanes send before further lanes are added.
const GROUPS: u64 = 60;
const SLOW: Duration = Duration::from_millis(150);

#[test]
fn a_lossy_path_gets_more_lanes() {
    let _quiet = quiet_machine();
    let site = Site::local();
    std::fs::File::create(site.source().join("large"))
        .unwrap()
        .set_len(GROUPS * GROUP_BYTES)
        .unwrap();
    let lanes = Arc::new(AtomicUsize::new(0));
    let wrap = {
        let lanes = Arc::clone(&lanes);
        Box::new(move |inner| {
            lanes.fetch_add(1, Ordering::Relaxed);
            Box::new(LossySink {
                inner,
                lanes: Arc::clone(&lanes),
            }) as Box<dyn LaneSink>
        })
    };
    let config = SenderConfig {
        readers: 2,
        ..SenderConfig::default()
    };
    let push = InProcess {
        lanes: LANES,
        wrap,
        more: true,
        config,
        ..InProcess::default()
    };
    let pushed = push.push(&site.source(), &site.target());
    let summary = pushed.summary();
    // Every second dial has failed.
    assert!(
        summary.counters.files == 1 && summary.counters.lanes > LANES as u64,
        "{} lanes",
        summary.counters.lanes
    );
    assert!(summary.learnt.is_some());
    assert_same(&site.source(), &site.target());
}

#[test]
fn lanes_that_the_receiver_does_not_take_are_finished() {
    let site = Site::local();
    paint(site.source().join("f"), 10);
    let lanes_max = zmove_wire::limits::LANES_UNREQUESTED_MAX;
    let ended = Arc::new((Mutex::new(0), Condvar::new()));
    let wrap = {
        let ended = Arc::clone(&ended);
        Box::new(move |inner| {
            Box::new(PatientSink {
                inner,
                ended: Arc::clone(&ended),
            }) as Box<dyn LaneSink>
        })
    };
    let receiver = ReceiverConfig {
        lanes_max,
        ..ReceiverConfig::default()
    };
    let lanes = usize::from(lanes_max) + SURPLUS;
    let pushed = InProcess {
        lanes,
        wrap,
        receiver,
        ..InProcess::default()
    }
    .push(&site.source(), &site.target());
    assert_eq!(
        (
            pushed.summary().counters.files,
            pushed.summary().counters.lanes
        ),
        (1, u64::from(lanes_max))
    );
    assert_eq!(*ended.0.lock().unwrap(), lanes, "a lane was dropped");
}

const SURPLUS: usize = 3;

/// A sending end that waits until other lanes have ended.
struct PatientSink {
    inner: Box<dyn LaneSink>,
    ended: Arc<(Mutex<usize>, Condvar)>,
}

impl LaneSink for PatientSink {
    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        let (ended, changed) = &*self.ended;
        drop(
            changed
                .wait_timeout_while(ended.lock().unwrap(), PATIENCE, |ended| *ended < SURPLUS)
                .unwrap(),
        );
        self.inner.send(frame, watch)
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        *self.ended.0.lock().unwrap() += 1;
        self.ended.1.notify_all();
        self.inner.finish()
    }

    fn breaker(&self) -> LaneBreaker {
        self.inner.breaker()
    }
}

/// A sending end that is slow while there are few lanes, and that reports a steady rate of lost segments.
struct LossySink {
    inner: Box<dyn LaneSink>,
    lanes: Arc<AtomicUsize>,
}

impl LaneSink for LossySink {
    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        if frame.header.data_bytes > 0 && self.lanes.load(Ordering::Relaxed) == LANES {
            sleep(SLOW);
            watch.lap(ThreadState::Blocked);
        }
        self.inner.send(frame, watch)
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        self.inner.finish()
    }

    fn breaker(&self) -> LaneBreaker {
        self.inner.breaker()
    }

    fn path(&self) -> PathProbe {
        let (lost, started) = (AtomicU32::new(0), Instant::now());
        let carried = move || u64::try_from(started.elapsed().as_micros()).unwrap();
        PathProbe::telling(move || TcpInfo {
            bytes_acked: Some(carried()),
            segments_retransmitted: Some(lost.fetch_add(1, Ordering::Relaxed)),
            round_trip: Some(Duration::from_millis(90)),
            round_trip_min: Some(Duration::from_millis(90)),
            ..TcpInfo::default()
        })
    }
}
