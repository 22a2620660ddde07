//! The lanes of one round of a probe. Each lane has a thread that sends filler frames until the round ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use zmove_transport::{Frame, LaneBreaker, LaneError, LaneSink, PathProbe};
use zmove_types::{BufferPool, StageClock};
use zmove_wire::limits::FILLER_BYTES_MAX;
use zmove_wire::{FrameHeader, FrameKind};

use crate::error::SessionError;
use crate::send::frames::sealed;

/// Lanes that are being filled. Dropping this value breaks the lanes and waits for their threads to end.
pub(super) struct Fillers {
    shared: Arc<FillerState>,
    breakers: Vec<LaneBreaker>,
    /// The path probe of each lane.
    pub(super) probes: Vec<PathProbe>,
    threads: Vec<JoinHandle<()>>,
}

struct FillerState {
    pool: BufferPool,
    clock: StageClock,
    ending: AtomicBool,
    over: AtomicBool,
}

impl Fillers {
    /// Starts to fill lanes. If a lane fails before this value is dropped, its error is sent to `broken`.
    pub(super) fn start(
        lanes: Vec<Box<dyn LaneSink>>,
        broken: &mpsc::UnboundedSender<LaneError>,
    ) -> Result<Self, SessionError> {
        let pool = BufferPool::new(FILLER_BYTES_MAX, BUFFERS_PER_LANE * lanes.len());
        let shared = FillerState {
            pool,
            clock: StageClock::default(),
            ending: AtomicBool::new(false),
            over: AtomicBool::new(false),
        };
        let mut fillers = Self {
            shared: Arc::new(shared),
            breakers: lanes.iter().map(|lane| lane.breaker()).collect(),
            probes: lanes.iter().map(|lane| lane.path()).collect(),
            threads: Vec::with_capacity(lanes.len()),
        };
        for (number, lane) in lanes.into_iter().enumerate() {
            let shared = Arc::clone(&fillers.shared);
            let broken = broken.clone();
            let run = move || {
                // Errors that the breakers cause in a thread that is still finishing do not count.
                if let Err(error) = shared.fill(lane)
                    && !shared.over.load(Ordering::SeqCst)
                {
                    let _probe_over = broken.send(error);
                }
            };
            let started = std::thread::Builder::new()
                .name(format!("zmove-lane-{number}"))
                .spawn(run);
            fillers.threads.push(started.map_err(SessionError::Thread)?);
        }
        Ok(fillers)
    }

    /// Lets each lane end gracefully after its current frame.
    pub(super) fn end(&self) {
        self.shared.ending.store(true, Ordering::Relaxed);
    }
}

impl Drop for Fillers {
    fn drop(&mut self) {
        self.end();
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.pool.close();
        self.breakers.iter().for_each(LaneBreaker::trip);
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl FillerState {
    fn fill(&self, mut lane: Box<dyn LaneSink>) -> Result<(), LaneError> {
        let mut watch = self.clock.start();
        let mut size = FrameSize::default();
        while !self.ending.load(Ordering::Relaxed) {
            let begun = Instant::now();
            lane.send(filler(&self.pool, size.0)?, &mut watch)?;
            size.took(begun.elapsed());
        }
        lane.finish()
    }
}

/// Sends one small frame and ends the lane.
pub(super) fn send_one(mut lane: Box<dyn LaneSink>) -> Result<(), LaneError> {
    let clock = StageClock::default();
    lane.send(
        filler(&BufferPool::new(FRAME_BYTES_MIN, 1), FRAME_BYTES_MIN)?,
        &mut clock.start(),
    )?;
    lane.finish()
}

/// Returns a frame with arbitrary buffer contents, hashed like data.
fn filler(pool: &BufferPool, bytes: usize) -> Result<Frame, LaneError> {
    let mut data = pool.take().ok_or(LaneError::Stopped)?;
    data.set_len(bytes);
    let header = FrameHeader {
        kind: FrameKind::Filler,
        ..FrameHeader::default()
    };
    Ok(sealed(
        blake3::hash(&data).as_bytes(),
        header,
        Vec::new(),
        data,
    ))
}

/// The size of the next frame. Large frames cost less, and small frames are counted sooner on a slow lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameSize(usize);

impl Default for FrameSize {
    fn default() -> Self {
        Self(FRAME_BYTES_MIN)
    }
}

impl FrameSize {
    fn took(&mut self, time: Duration) {
        if time < QUICK {
            self.0 = (self.0 * 2).min(FILLER_BYTES_MAX);
        } else if time > SLOW {
            self.0 = (self.0 / 2).max(FRAME_BYTES_MIN);
        }
    }
}

const BUFFERS_PER_LANE: usize = 2;
const FRAME_BYTES_MIN: usize = 16 << 10;
const QUICK: Duration = Duration::from_millis(10);
const SLOW: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    use crossbeam_channel::{Receiver, Sender, bounded};
    use zmove_types::Stopwatch;

    /// A lane that has sent its end marker and stays open until it is broken.
    struct Ending {
        broken_in: Sender<()>,
        broken: Receiver<()>,
    }

    impl LaneSink for Ending {
        fn send(&mut self, _frame: Frame, _watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
            Ok(())
        }

        fn finish(&mut self) -> Result<(), LaneError> {
            self.broken.recv().unwrap();
            Err(LaneError::Closed)
        }

        fn breaker(&self) -> LaneBreaker {
            let broken_in = self.broken_in.clone();
            LaneBreaker::new(move || {
                // The thread has already ended if it was stopped before it sent anything.
                let _stopped = broken_in.send(());
            })
        }
    }

    #[test]
    fn breaking_a_lane_that_ends_is_no_error() {
        let (broken_in, broken) = bounded(1);
        let (news_in, mut news) = mpsc::unbounded_channel();
        drop(Fillers::start(vec![Box::new(Ending { broken_in, broken })], &news_in).unwrap());
        assert!(news.try_recv().is_err());
    }

    #[test]
    fn frames_are_as_large_as_their_lane_is_fast() {
        let mut size = FrameSize::default();
        (0..20).for_each(|_| size.took(Duration::ZERO));
        assert_eq!(size.0, FILLER_BYTES_MAX);
        size.took(Duration::from_millis(20));
        assert_eq!(size.0, FILLER_BYTES_MAX);
        (0..20).for_each(|_| size.took(Duration::from_secs(1)));
        assert_eq!(size.0, FRAME_BYTES_MIN);
    }
}
