//! Stalled lanes and duplicate chunks: the push completes with the same result as without them.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use zmove_sender::{Limit, SenderConfig};
use zmove_transport::{Frame, LaneBreaker, LaneError, LaneSink};
use zmove_types::{Buffer, BufferPool, Event, GROUP_BYTES, Stopwatch};

use crate::support::harness::{PATIENCE, Site};
use crate::support::hooks::{HookedDisk, HookedSink};
use crate::support::inprocess::{InProcess, Pushed};
use crate::support::quiet_machine::quiet_machine;
use crate::support::tree::{assert_same, paint};

const GROUPS: u64 = 12;

/// Pushes one large file over two lanes. `wrap` wraps each lane.
fn push(
    site: &Site,
    wrap: impl Fn(usize, Box<dyn LaneSink>) -> Box<dyn LaneSink> + 'static,
) -> Pushed {
    paint(site.source().join("large"), GROUPS * GROUP_BYTES - 1);
    let next = AtomicUsize::new(0);
    let wrap = Box::new(move |sink| wrap(next.fetch_add(1, Ordering::Relaxed), sink));
    let config = SenderConfig {
        readers: 2,
        ..SenderConfig::default()
    };
    let push = InProcess {
        wrap,
        config,
        ..InProcess::default()
    };
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
fn data_of_a_stalled_lane_goes_over_another() {
    let _quiet = quiet_machine();
    let site = Site::local();
    let pushed = push(&site, |number, inner| match number {
        0 => Box::new(StrangledSink {
            inner,
            broken: Arc::default(),
        }),
        _ => inner,
    });
    let summary = pushed.summary();
    assert_eq!(
        (
            summary.counters.files,
            summary.counters.repeated,
            summary.counters.resent
        ),
        (1, 1, 0)
    );
    assert_ne!(
        summary.bottleneck.limit,
        Limit::Scan,
        "nobody waited for it: {:?}",
        summary.bottleneck
    );
    assert_eq!(
        (summary.counters.bytes, bytes_stored(&pushed)),
        (GROUPS * GROUP_BYTES - 1, summary.counters.bytes)
    );
    assert_same(&site.source(), &site.target());
}

#[test]
fn chunks_that_come_twice_count_once() {
    let site = Site::local();
    let pushed = push(&site, |_, inner| {
        Box::new(DoublingSink {
            inner,
            pool: pool(),
        })
    });
    let summary = pushed.summary();
    assert_eq!(
        (
            summary.counters.files,
            summary.counters.resent,
            summary.counters.failed
        ),
        (1, 0, 0)
    );
    assert_eq!(
        (summary.counters.bytes, bytes_stored(&pushed)),
        (GROUPS * GROUP_BYTES - 1, summary.counters.bytes)
    );
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_push_may_end_while_a_late_chunk_is_being_read_again() {
    let site = Site::local();
    let (again, ended) = (Arc::new(Flag::default()), Arc::new(Flag::default()));
    let file_io = late_disk({
        let (again, ended) = (Arc::clone(&again), Arc::clone(&ended));
        move || {
            again.raise();
            ended.wait();
        }
    });
    let samples = AtomicUsize::new(0);
    let pushed = push_late(&site, file_io, again, move |event| {
        // The sender reports one sample at the start and one after the receiver's last message.
        if matches!(event, Event::Sampled(_)) && samples.fetch_add(1, Ordering::Relaxed) == 1 {
            ended.raise();
        }
    });
    let summary = pushed.summary();
    assert_eq!(
        (
            summary.counters.files,
            summary.counters.repeated,
            summary.counters.failed
        ),
        (1, 1, 0)
    );
    assert_same(&site.source(), &site.target());
}

#[test]
fn a_file_that_changes_while_a_chunk_is_late_was_read_before() {
    let site = Site::local();
    let source = site.source().join("large");
    let again = Arc::new(Flag::default());
    let before = Arc::new(Mutex::new(Vec::new()));
    let file_io = late_disk({
        let (again, before) = (Arc::clone(&again), Arc::clone(&before));
        move || {
            change(&source, &mut before.lock().unwrap());
            again.raise();
        }
    });
    let pushed = push_late(&site, file_io, again, |_| ());
    let summary = pushed.summary();
    assert_eq!(
        (
            summary.counters.files,
            summary.counters.repeated,
            summary.counters.failed
        ),
        (1, 1, 0),
        "{:?}",
        pushed.failed()
    );
    assert!(std::fs::read(site.target().join("large")).unwrap() == *before.lock().unwrap());
}

/// Replaces the contents of each group and returns the old contents.
fn change(source: &Path, before: &mut Vec<u8>) {
    *before = std::fs::read(source).unwrap();
    let file = OpenOptions::new().write(true).open(source).unwrap();
    (0..GROUPS).for_each(|group| file.write_all_at(b"changed", group * GROUP_BYTES).unwrap());
}

/// Pushes one large file over two lanes. The first lane delivers its first data when `again` is raised.
fn push_late(
    site: &Site,
    file_io: Arc<HookedDisk>,
    again: Arc<Flag>,
    on_event: impl Fn(&Event) + Send + Sync + 'static,
) -> Pushed {
    paint(site.source().join("large"), GROUPS * GROUP_BYTES - 1);
    let next = AtomicUsize::new(0);
    let wrap = Box::new(move |inner| -> Box<dyn LaneSink> {
        match next.fetch_add(1, Ordering::Relaxed) {
            0 => {
                let again = Arc::clone(&again);
                Box::new(HookedSink {
                    inner,
                    before_data: move |_: &mut Stopwatch<'_>| again.wait(),
                })
            }
            _ => inner,
        }
    });
    let sample_interval = Some(Duration::from_secs(3600));
    let config = SenderConfig {
        readers: 2,
        file_io,
        sample_interval,
        ..SenderConfig::default()
    };
    let push = InProcess {
        wrap,
        config,
        on_event: Box::new(on_event),
        ..InProcess::default()
    };
    push.push(&site.source(), &site.target())
}

/// A flag that is raised once and can be waited for.
#[derive(Debug, Default)]
struct Flag(Mutex<bool>, Condvar);

impl Flag {
    fn raise(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        let waited = self
            .1
            .wait_timeout_while(self.0.lock().unwrap(), PATIENCE, |raised| !*raised);
        drop(waited.unwrap());
    }
}

/// A disk that calls `then` before a group is read again.
fn late_disk(then: impl Fn() + Send + Sync + 'static) -> Arc<HookedDisk> {
    let reads = AtomicUsize::new(0);
    HookedDisk::before_read(move || {
        if reads.fetch_add(1, Ordering::Relaxed) as u64 == GROUPS {
            then();
        }
    })
}

/// A sending end that accepts its first data and never delivers it.
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
        let (broken, _) = changed
            .wait_timeout_while(broken.lock().unwrap(), PATIENCE, |broken| !*broken)
            .unwrap();
        Err(if *broken {
            LaneError::Stopped
        } else {
            LaneError::Closed
        })
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

/// A sending end that sends each chunk twice.
struct DoublingSink {
    inner: Box<dyn LaneSink>,
    pool: BufferPool,
}

fn pool() -> BufferPool {
    BufferPool::new(usize::try_from(GROUP_BYTES).unwrap(), 64)
}

impl LaneSink for DoublingSink {
    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        let mut copy = Frame {
            header: frame.header,
            head: frame.head.clone(),
            data: Buffer::empty(),
        };
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
