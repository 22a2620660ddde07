//! Runs one thread per lane, which takes frames from the queue shared by all lanes and sends them.
//!
//! Frames are not assigned to lanes in advance, so a slow lane takes fewer frames. A large file is declared on each
//! lane before its first chunk on that lane, so that no lane has to wait for another lane.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError, select};
use zmove_disk::FileIdentity;
use zmove_transport::{LaneError, LaneSink};
use zmove_types::{Buffer, Event, Stopwatch, ThreadState};
use zmove_wire::{FrameHeader, FrameKind};

use crate::push::session::Session;
use crate::read::source::LargeSource;
use crate::send::frames::{Chunk, OutgoingFrame, sealed};

/// The state shared by all lanes.
pub(crate) struct LaneContext {
    pub(crate) session: Arc<Session>,
    /// The frame queue shared by all lanes.
    pub(crate) frames: Receiver<OutgoingFrame>,
}

/// Runs one lane until the readers have ended, the lane's holder is dropped, or the lane breaks.
pub(crate) fn run_lane(
    context: &LaneContext,
    number: usize,
    mut sink: Box<dyn LaneSink>,
    drain_signal: &Receiver<()>,
) -> Result<(), LaneError> {
    let LaneContext {
        session,
        frames: queue,
    } = context;
    let Session {
        in_flight,
        account,
        timeline,
        ..
    } = &**session;
    let mut watch = timeline.lane_clock.start();
    let mut declared = HashSet::new();
    loop {
        sink.await_room()?;
        // If the queue is empty, no frame was delayed while the lane waited for the path. The time then counts as
        // starved.
        watch.lap(if queue.is_empty() {
            ThreadState::Starved
        } else {
            ThreadState::Blocked
        });
        await_turn(context, drain_signal, &mut watch);
        let Some(outgoing) = in_flight.while_idle(|| next(queue, drain_signal)) else {
            break;
        };
        let OutgoingFrame { frame, chunk } = outgoing;
        let bytes = u64::from(frame.header.data_bytes);
        let late = chunk.as_ref().is_some_and(|chunk| chunk.late);
        if late {
            watch.skip()
        } else {
            watch.lap(ThreadState::Starved)
        }
        if let Some(elapsed) = timeline.note_first_byte() {
            account.report(Event::FirstByte(elapsed));
        }
        let item = frame.header.item;
        let is_in_flight = in_flight.note_taken(item, number);
        if late && !is_in_flight {
            // The other copy of the chunk has arrived, so this copy would get no receipt.
            continue;
        }
        // Declare the file again before a repeated chunk, because a damaged declaration may be the cause of the
        // repetition.
        if let Some(Chunk {
            file,
            identity,
            tries,
            ..
        }) = &chunk
            && (declared.insert(file.id) || *tries > 0)
        {
            declare(file, identity, sink.as_mut(), &mut watch)?;
        }
        sink.send(frame, &mut watch)?;
        if chunk.is_some() {
            in_flight.note_handed_on(item, number);
        }
        account.totals.bytes_handed_over.add(bytes);
        if !late {
            timeline.note_handed_over();
        }
        // Declaring a file again is harmless. Remembering every file would take too much memory.
        if declared.len() > DECLARED_MAX {
            declared.clear();
        }
    }
    sink.finish()
}

/// Waits while other lanes use up the whole rate limit. The queued frames are left to those lanes.
fn await_turn(
    LaneContext { session, frames }: &LaneContext,
    drain_signal: &Receiver<()>,
    watch: &mut Stopwatch<'_>,
) {
    let is_needed =
        || !frames.is_empty() && !is_draining(drain_signal) && !session.in_flight.is_stopping();
    while is_needed()
        && let Some(wait) = session.rate.shared.wait_to_begin(Instant::now())
    {
        thread::sleep(wait.min(CHECK_INTERVAL));
        watch.lap(ThreadState::Paced);
    }
}

fn is_draining(drain_signal: &Receiver<()>) -> bool {
    matches!(drain_signal.try_recv(), Err(TryRecvError::Disconnected))
}

/// Maximum time until a lane that waits for the rate limit notices that it is no longer needed.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

fn next(queue: &Receiver<OutgoingFrame>, drain_signal: &Receiver<()>) -> Option<OutgoingFrame> {
    if is_draining(drain_signal) {
        return None;
    }
    select! {
        recv(queue) -> outgoing => outgoing.ok(),
        recv(drain_signal) -> _ => None,
    }
}

fn declare(
    file: &LargeSource,
    identity: &FileIdentity,
    sink: &mut dyn LaneSink,
    watch: &mut Stopwatch<'_>,
) -> Result<(), LaneError> {
    let head = file.head_as(identity).encode();
    let content = *blake3::hash(&head).as_bytes();
    let header = FrameHeader {
        kind: FrameKind::Declare,
        file: file.id,
        ..FrameHeader::default()
    };
    sink.send(sealed(&content, header, head, Buffer::empty()), watch)
}

const DECLARED_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::extras::Extras;

    use std::sync::atomic::{AtomicBool, Ordering};

    use crossbeam_channel::{Sender, bounded};
    use tokio::sync::mpsc::unbounded_channel;
    use zmove_transport::{Frame, LaneBreaker};
    use zmove_types::{NoObserver, RateLimit, StageClock};
    use zmove_wire::Limit;

    use crate::send::in_flight::tests::vanished;

    /// A sink that records whether the lane has ended gracefully. The tests send nothing on it.
    struct Unused {
        finished: Arc<AtomicBool>,
        /// The channels on which the lane asks for room in the sink and waits for the answer.
        room: Option<(Sender<()>, Receiver<()>)>,
    }

    impl LaneSink for Unused {
        fn await_room(&mut self) -> Result<(), LaneError> {
            if let Some((asked, room)) = &self.room {
                asked.send(()).unwrap();
                room.recv().map_err(|_| LaneError::Closed)?;
            }
            Ok(())
        }

        fn send(&mut self, frame: Frame, _watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
            panic!("{:?} was sent", frame.header.item)
        }

        fn finish(&mut self) -> Result<(), LaneError> {
            self.finished.store(true, Ordering::Relaxed);
            Ok(())
        }

        fn breaker(&self) -> LaneBreaker {
            LaneBreaker::new(|| ())
        }
    }

    fn context(frames: Receiver<OutgoingFrame>) -> LaneContext {
        let (outgoing, _messages) = unbounded_channel();
        let session = Session::new(
            Arc::new(NoObserver),
            Extras::default(),
            Instant::now(),
            outgoing,
            Arc::new(crate::control::relay::NoQuota),
        );
        LaneContext {
            session: Arc::new(session),
            frames,
        }
    }

    fn frame() -> Frame {
        Frame {
            header: FrameHeader::default(),
            head: Vec::new(),
            data: Buffer::empty(),
        }
    }

    fn outgoing() -> OutgoingFrame {
        OutgoingFrame {
            frame: frame(),
            chunk: None,
        }
    }

    /// Runs a lane whose holder is already dropped, with the frames in `queue`. Returns whether the lane ended
    /// gracefully.
    fn run_let_go(queue: &Receiver<OutgoingFrame>) -> bool {
        let (hold, drain_signal) = bounded(0);
        let finished = Arc::new(AtomicBool::new(false));
        let sink = Box::new(Unused {
            finished: Arc::clone(&finished),
            room: None,
        });
        drop(hold);
        run_lane(&context(queue.clone()), 0, sink, &drain_signal).unwrap();
        finished.load(Ordering::Relaxed)
    }

    #[test]
    fn a_lane_that_is_let_go_ends_in_order_and_leaves_what_waits() {
        let (frames_in, frames) = bounded(1);
        assert!(run_let_go(&frames));
        frames_in.send(outgoing()).unwrap();
        assert!(run_let_go(&frames));
        assert_eq!(frames.len(), 1);
    }

    /// The copy would get no receipt, and the lane would seem stuck.
    #[test]
    fn a_late_copy_of_what_has_arrived_is_not_sent() {
        let file = vanished(1).remove(0);
        let identity = FileIdentity::of(tempfile::tempfile().unwrap()).unwrap();
        let (frames_in, queue) = bounded(1);
        let chunk = Some(Chunk {
            file,
            identity,
            tries: 0,
            late: true,
        });
        frames_in
            .send(OutgoingFrame {
                frame: frame(),
                chunk,
            })
            .unwrap();
        drop(frames_in);
        let (_hold, drain_signal) = bounded(0);
        let sink = Box::new(Unused {
            finished: Arc::default(),
            room: None,
        });
        let context = context(queue);
        run_lane(&context, 0, sink, &drain_signal).unwrap();
        let much_later = Instant::now() + Duration::from_secs(3600);
        assert_eq!(context.session.in_flight.doubtful_lane(much_later), None);
    }

    #[test]
    fn a_lane_leaves_what_waits_to_those_that_use_all_of_the_rate() {
        let (frames_in, queue) = bounded(1);
        frames_in.send(outgoing()).unwrap();
        let context = context(queue);
        let rate = &context.session.rate;
        rate.lower(RateLimit::nearest(1000), Limit::OwnRate);
        let (hold, drain_signal) = bounded(0);
        let clock = StageClock::default();
        await_turn(&context, &drain_signal, &mut clock.start());
        assert_eq!(clock.times().paced, Duration::ZERO, "nobody uses it");
        let waiting = thread::scope(|scope| {
            let waiting = scope.spawn(|| await_turn(&context, &drain_signal, &mut clock.start()));
            while clock.times().paced.is_zero() {
                thread::yield_now();
            }
            drop(hold);
            waiting.join()
        });
        waiting.unwrap();
        assert_eq!(context.frames.len(), 1);
    }

    #[test]
    fn a_lane_that_has_no_room_takes_nothing() {
        let (frames_in, queue) = bounded(1);
        frames_in.send(outgoing()).unwrap();
        let (asked, asking) = bounded(1);
        let (room, awaited) = bounded(1);
        let finished = Arc::new(AtomicBool::new(false));
        let sink = Box::new(Unused {
            finished: Arc::clone(&finished),
            room: Some((asked, awaited)),
        });
        let (_hold, drain_signal) = bounded(0);
        let lane = thread::spawn({
            let queue = queue.clone();
            move || run_lane(&context(queue), 0, sink, &drain_signal)
        });
        asking.recv().unwrap();
        queue.try_recv().expect("others can take it");
        drop(frames_in);
        room.send(()).unwrap();
        lane.join().unwrap().unwrap();
        assert!(finished.load(Ordering::Relaxed));
    }
}
