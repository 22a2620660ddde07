//! Counts and limits the unacknowledged bytes of a lane, and measures the time with unacknowledged bytes.
//!
//! A lane's thread adds bytes before it writes them. When the bytes are acknowledged, QUIC drops them on any thread.
//! Bytes are counted by whole frames, and the lane sleeps until another frame fits. A wakeup for every acknowledgment
//! would cost more than a copy of the data. This module also provides the values that TCP has in `TCP_INFO`: bytes
//! acknowledged, time with data in flight, and time for which the receiver did not read.
//!
//! **Invariant:** every added byte is settled exactly once, by its acknowledgment or by the loss of the connection.

use std::ops::Deref;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use zmove_types::Lock;

/// The number of unacknowledged bytes of one lane, and the total time during which this number was not zero.
#[derive(Debug, Default)]
pub(super) struct LaneBytes {
    state: Lock<LaneBytesState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct LaneBytesState {
    outstanding: u64,
    settled: u64,
    /// Time with unacknowledged bytes, without the current period that began at `busy_since`.
    busy: Duration,
    busy_since: Option<Instant>,
    settled_at: Option<Instant>,
    window_limited: Duration,
    lost: bool,
    /// Number of times that a lane has waited.
    #[cfg(test)]
    waits: usize,
}

/// A snapshot of [`LaneBytes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LaneByteStats {
    pub(super) settled: u64,
    pub(super) busy: Duration,
    pub(super) window_limited: Duration,
    /// Time since the last byte was acknowledged, or zero if any bytes are unacknowledged. `None` before any bytes were
    /// added.
    pub(super) idle: Option<Duration>,
}

/// The connection is lost.
#[derive(Debug)]
pub(super) struct LaneLost;

impl LaneBytes {
    /// Waits until at most `others_max` bytes are unacknowledged, so that another frame may be added.
    pub(super) fn wait(&self, others_max: u64) -> Result<(), LaneLost> {
        let mut state = self.state.lock();
        while state.outstanding > others_max && !state.lost {
            #[cfg(test)]
            {
                state.waits += 1;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if state.lost { Err(LaneLost) } else { Ok(()) }
    }

    /// Counts the bytes of `payload` as unacknowledged until the returned value is dropped.
    pub(super) fn add(
        self: &Arc<Self>,
        payload: impl Deref<Target = [u8]> + Send + 'static,
    ) -> Bytes {
        let len = payload.len() as u64;
        let unacknowledged = Unacknowledged {
            payload,
            lane_bytes: Arc::clone(self),
        };
        let mut state = self.state.lock();
        state.outstanding += len;
        state.busy_since.get_or_insert_with(Instant::now);
        drop(state);
        Bytes::from_owner(unacknowledged)
    }

    /// Records a wait for the peer's window.
    pub(super) fn note_window_limited(&self, time: Duration) {
        self.state.lock().window_limited += time;
    }

    /// Records that no more acknowledgments will be received, and wakes waiting threads.
    pub(super) fn mark_lost(&self) {
        self.state.lock().lost = true;
        self.changed.notify_all();
    }

    pub(super) fn byte_stats(&self) -> LaneByteStats {
        let state = *self.state.lock();
        LaneByteStats {
            settled: state.settled,
            busy: state.busy
                + state
                    .busy_since
                    .map_or(Duration::ZERO, |since| since.elapsed()),
            window_limited: state.window_limited,
            idle: match state.busy_since {
                Some(_) => Some(Duration::ZERO),
                None => state.settled_at.map(|at| at.elapsed()),
            },
        }
    }

    fn settle(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.outstanding -= bytes;
        state.settled += bytes;
        if state.outstanding == 0 {
            let now = Instant::now();
            let busy = state
                .busy_since
                .take()
                .map_or(Duration::ZERO, |since| now - since);
            state.busy += busy;
            state.settled_at = Some(now);
        }
        drop(state);
        self.changed.notify_one();
    }
}

/// Bytes that QUIC keeps until the peer has acknowledged them.
struct Unacknowledged<T: Deref<Target = [u8]>> {
    payload: T,
    lane_bytes: Arc<LaneBytes>,
}

impl<T: Deref<Target = [u8]>> AsRef<[u8]> for Unacknowledged<T> {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl<T: Deref<Target = [u8]>> Drop for Unacknowledged<T> {
    fn drop(&mut self) {
        self.lane_bytes.settle(self.payload.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::thread::JoinHandle;

    use super::*;

    #[test]
    fn bytes_are_settled_when_the_last_piece_goes() {
        let lane_bytes = Arc::<LaneBytes>::default();
        let mut whole = lane_bytes.add(vec![0; 10]);
        let front = whole.split_to(3);
        drop(whole);
        assert_eq!(
            (
                lane_bytes.byte_stats().settled,
                lane_bytes.byte_stats().idle
            ),
            (0, Some(Duration::ZERO))
        );
        drop(front);
        assert_eq!(lane_bytes.byte_stats().settled, 10);
        assert!(lane_bytes.wait(0).is_ok());
    }

    #[test]
    fn who_waits_goes_on_when_there_is_room_or_no_connection() {
        let lane_bytes = Arc::<LaneBytes>::default();
        let (one, other) = (lane_bytes.add(vec![0; 10]), lane_bytes.add(vec![0; 10]));
        let wait = |others_max| {
            let lane_bytes = Arc::clone(&lane_bytes);
            std::thread::spawn(move || lane_bytes.wait(others_max).is_ok())
        };
        let until_waits = |thread: &JoinHandle<bool>, count| {
            while lane_bytes.state.lock().waits < count {
                assert!(!thread.is_finished());
                std::thread::yield_now();
            }
        };
        let waiting = wait(10);
        until_waits(&waiting, 1);
        drop(one);
        assert!(waiting.join().unwrap());
        let waits = lane_bytes.state.lock().waits;
        let waiting = wait(0);
        until_waits(&waiting, waits + 1);
        lane_bytes.mark_lost();
        assert!(!waiting.join().unwrap());
        drop(other);
    }
}
