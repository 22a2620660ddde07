//! Tracks how long the receiver of an interrupted session may still publish.
//!
//! A receiver publishes for ten seconds after it has sent a ping that the sender echoed. It may not notice that its
//! connection has broken. The next session may reach another process on the same storage, which cannot end the earlier
//! session. That process waits for the time given in the opening of the next session.
//!
//! **Invariant:** no ping of a session is echoed after the session has ended.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use zmove_disk::LEASE_MAX;
use zmove_types::Lock;
use zmove_wire::EarlierSession;

/// The pings that one session echoes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echoes(Arc<Lock<EchoState>>);

#[derive(Debug, Default)]
struct EchoState {
    /// Time at which the last echoed ping was received. The ping was sent earlier than that.
    last: Option<Instant>,
    is_over: bool,
}

/// An interrupted session whose end the receiver has not confirmed.
#[derive(Clone, Debug)]
pub(crate) struct UnendedSession {
    /// The receiver's process, or an empty string if unknown.
    process: String,
    last_echo: Instant,
}

impl Echoes {
    /// Records a ping. Returns whether to echo it.
    pub(crate) fn note(&self) -> bool {
        let mut state = self.0.lock();
        if !state.is_over {
            state.last = Some(Instant::now());
        }
        !state.is_over
    }

    /// Stops echoing. Returns the time at which the last echoed ping was received.
    pub(crate) fn end(&self) -> Option<Instant> {
        let mut state = self.0.lock();
        state.is_over = true;
        state.last
    }
}

impl UnendedSession {
    /// Creates a record of a session. `process` is the receiver's process, if the receiver reported it.
    pub(crate) fn new(process: Option<String>, last_echo: Instant) -> Self {
        Self {
            process: process.unwrap_or_default(),
            last_echo,
        }
    }

    /// Returns the description of this session for an opening that is sent now. Returns `None` if the receiver of this
    /// session can no longer publish.
    pub(crate) fn in_opening(&self) -> Option<EarlierSession> {
        let left = LEASE_MAX.saturating_sub(self.last_echo.elapsed());
        // Round up to whole milliseconds.
        let left_ms = left.as_nanos().div_ceil(NANOS_PER_MILLISECOND);
        (left > Duration::ZERO).then(|| EarlierSession {
            process: self.process.clone(),
            lease_left_ms: u16::try_from(left_ms).unwrap_or(u16::MAX),
        })
    }
}

const NANOS_PER_MILLISECOND: u128 = 1_000_000;
const _: () = assert!(LEASE_MAX.as_millis() <= u16::MAX as u128);
