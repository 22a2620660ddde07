//! A lane that stands still, and chunks that come twice: the push ends as if neither had been.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use zmove_sender::SenderConfig;
use zmove_transport::{Frame, LaneBreaker, LaneError, LaneSink};
use zmove_types::{Buffer, BufferPool, Event, GROUP_BYTES, Stopwatch};

use crate::harness::{PATIENCE, Site};
use crate::inprocess::{InProcess, Pushed};
use crate::tree::{assert_same, paint};

const GROUPS: u64 = 12;

/// Pushes one large file over two lanes, of which each is made by `wrap`.
fn push(site: &Site, wrap: impl Fn(usize, Box<dyn LaneSink>) -> Box<dyn LaneSink> + 'static) -> Pushed {
    paint(site.source().join("large"), GROUPS * GROUP_BYTES - 1);
    let next = AtomicUsize::new(0);
    let wrap = Box::new(move |sink| wrap(next.fetch_add(1, Ordering::Relaxed), sink));
    let config = SenderConfig { readers: 2, ..SenderConfig::default() };
    let push = InProcess { wrap, config, ..InProcess::default() };
    push.push(&site.source(), &site.target())
}

fn bytes_stored(pushed: &Pushed) -> u64 {
    let bytes = |event: &Event| match event {
        Event::Stored { bytes, .. } => *bytes,
        _ => 0,
    };
    pushed.events.iter().map(bytes).sum()
}

#[test]
fn what_a_lane_that_stands_still_has_taken_goes_over_another() {
    let site = Site::local();
    let pushed = push(&site, |number, inner| match number {
        0 => Box::new(StrangledSink { inner, broken: Arc::default() }),
        _ => inner,
    });
    let summary = pushed.summary();
    assert_eq!((summary.files, summary.repeated, summary.resent), (1, 1, 0));
    assert_eq!((summary.bytes, bytes_stored(&pushed)), (GROUPS * GROUP_BYTES - 1, summary.bytes));
    assert_same(&site.source(), &site.target());
}

#[test]
fn chunks_that_come_twice_count_once() {
    let site = Site::local();
    let pushed = push(&site, |_, inner| Box::new(DoublingSink { inner, pool: pool() }));
    let summary = pushed.summary();
    assert_eq!((summary.files, summary.resent, summary.failed), (1, 0, 0));
    assert_eq!((summary.bytes, bytes_stored(&pushed)), (GROUPS * GROUP_BYTES - 1, summary.bytes));
    assert_same(&site.source(), &site.target());
}

/// A sending end that takes its first data and never delivers it.
struct StrangledSink {
    inner: Box<dyn LaneSink>,
    broken: Arc<(Mutex<bool>, Condvar)>,
}

impl LaneSink for StrangledSink {
    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        if frame.header.data_bytes == 0 {
            return self.inner.send(frame, watch);
        }
        let (broken, changed) = &*self.broken;
        let (broken, _) =
            changed.wait_timeout_while(broken.lock().unwrap(), PATIENCE, |broken| !*broken).unwrap();
        Err(if *broken { LaneError::Stopped } else { LaneError::Closed })
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        self.inner.finish()
    }

    fn breaker(&self) -> LaneBreaker {
        let broken = Arc::clone(&self.broken);
        LaneBreaker::new(move || {
            *broken.0.lock().unwrap() = true;
            broken.1.notify_all();
        })
    }
}

/// A sending end that sends each chunk again.
struct DoublingSink {
    inner: Box<dyn LaneSink>,
    pool: BufferPool,
}

fn pool() -> BufferPool {
    BufferPool::new(usize::try_from(GROUP_BYTES).unwrap(), 64)
}

impl LaneSink for DoublingSink {
    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        let mut copy = Frame { header: frame.header, head: frame.head.clone(), data: Buffer::empty() };
        if !frame.data.is_empty() {
            copy.data = self.pool.take().unwrap();
            copy.data.room()[..frame.data.len()].copy_from_slice(&frame.data);
            copy.data.set_len(frame.data.len());
        }
        self.inner.send(frame, watch)?;
        self.inner.send(copy, watch)
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        self.inner.finish()
    }

    fn breaker(&self) -> LaneBreaker {
        self.inner.breaker()
    }
}
