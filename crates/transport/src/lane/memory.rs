//! Lanes and control connections inside one process, for embedding and for tests.
//!
//! A buffer is moved from the sink to the source. Data is hashed, but neither copied nor encrypted.

use crossbeam_channel::{Receiver, Sender, bounded};
use tokio::io::DuplexStream;
use zmove_types::{BufferPool, Stopwatch, ThreadState};

use crate::control::{ControlReader, ControlWriter, control_pair};
use crate::lane::{Frame, LaneBreaker, LaneError, LaneSink, LaneSource};

/// Returns both ends of one lane.
#[must_use]
pub fn memory_lane() -> (Box<dyn LaneSink>, Box<dyn LaneSource>) {
    let (sender, receiver) = bounded(FRAMES_QUEUED_MAX);
    (
        Box::new(MemorySink(Some(sender))),
        Box::new(MemorySource(receiver)),
    )
}

/// Returns both ends of a control connection.
#[must_use]
pub fn memory_control() -> (
    (ControlReader, ControlWriter),
    (ControlReader, ControlWriter),
) {
    let (near, far): (DuplexStream, DuplexStream) = tokio::io::duplex(CONTROL_BYTES_QUEUED_MAX);
    (control_pair(near), control_pair(far))
}

const FRAMES_QUEUED_MAX: usize = 1;
const CONTROL_BYTES_QUEUED_MAX: usize = 1 << 20;

struct MemorySink(Option<Sender<Frame>>);

struct MemorySource(Receiver<Frame>);

impl LaneSink for MemorySink {
    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        watch.lap(ThreadState::Busy);
        let sent = self.0.as_ref().ok_or(LaneError::Stopped)?.send(frame);
        watch.lap(ThreadState::Blocked);
        sent.map_err(|_| LaneError::Closed)
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        self.0 = None;
        Ok(())
    }

    fn breaker(&self) -> LaneBreaker {
        LaneBreaker::new(|| ())
    }
}

impl LaneSource for MemorySource {
    fn receive(
        &mut self,
        _pool: &BufferPool,
        watch: &mut Stopwatch<'_>,
    ) -> Result<Option<Frame>, LaneError> {
        let frame = self.0.recv().ok();
        watch.lap(ThreadState::Starved);
        Ok(frame)
    }

    fn breaker(&self) -> LaneBreaker {
        LaneBreaker::new(|| ())
    }
}
