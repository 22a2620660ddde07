//! The fuzz targets of this crate, run by `crates/fuzz`. Each function accepts arbitrary bytes and panics if a decoder
//! violates its contract.
//!
//! The program never calls these functions, so they are not part of its binary.

use std::future::Future;
use std::io::{Cursor, Read};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use zmove_types::{BufferPool, StageClock};
use zmove_wire::limits::{FRAME_DATA_BYTES_MAX, MESSAGE_BYTES_MAX};
use zmove_wire::{Greeting, ToReceiver, decode_message};

use crate::control::ControlError;
use crate::control::frames::{ControlFrame, body, next_frame};
use crate::lane::{Frame, LaneError};

pub use crate::record::fuzzing::records;
pub use crate::trust::authorized_keys_fuzzing::authorized_keys;
pub use crate::trust::identity_fuzzing::{identity, new_identity};
pub use crate::trust::known_hosts_fuzzing::known_hosts;

/// Reads arbitrary bytes as a lane, from its first frame to its end.
///
/// # Panics
/// Panics if a frame does not match its header, or does not contain the bytes from which it was read.
pub fn frames(bytes: &[u8]) {
    let pool = BufferPool::new(FRAME_DATA_BYTES_MAX, 1);
    let clock = StageClock::default();
    let mut rest = bytes;
    let mut fill = |out: &mut [u8]| -> Result<usize, LaneError> {
        let mut part = rest.take(out.len() as u64);
        let filled = part.read(out)?;
        rest = &rest[filled..];
        Ok(filled)
    };
    let mut read = 0;
    while let Ok(Some(frame)) = Frame::receive_next(&pool, &mut clock.start(), |out, _| fill(out)) {
        assert_eq!(frame.head.len(), frame.header.head_bytes as usize);
        assert_eq!(frame.data.len(), frame.header.data_bytes as usize);
        read += zmove_wire::FrameHeader::BYTES;
        for part in [&frame.head[..], &frame.data] {
            assert_eq!(part, &bytes[read..][..part.len()]);
            read += part.len();
        }
    }
}

/// Reads arbitrary bytes as a control connection at the receiver: a greeting followed by messages.
///
/// # Panics
/// Panics if a message exceeds the maximum length, or if the connection waits for bytes that cannot arrive.
pub fn control(bytes: &[u8]) {
    let Some((greeting, rest)) = bytes.split_first_chunk() else {
        return;
    };
    let Ok(greeting) = Greeting::decode(greeting) else {
        return;
    };
    assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
    let mut stream = Cursor::new(rest.to_vec());
    loop {
        match at_once(next_frame(&mut stream)) {
            Ok(Some(ControlFrame::Message(length))) => {
                assert!(length <= MESSAGE_BYTES_MAX);
                match at_once(body(&mut stream, length)) {
                    Ok(message) => drop(decode_message::<ToReceiver>(&message)),
                    Err(ControlError::Closed) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            Ok(Some(ControlFrame::Ping(_) | ControlFrame::Pong(_))) => {}
            Ok(None) | Err(ControlError::Closed | ControlError::Wire(_)) => break,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the result of a future that is ready at the first poll.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("all bytes are there, and it waits"),
    }
}
