//! The time for which the receiver of a session that broke off may still publish.
//!
//! A receiver publishes for ten seconds after it has sent a ping that the sender echoed. It may not notice that its
//! connection has broken. The next session may reach another process on the same storage, which cannot end the earlier
//! one: it waits for as long as the opening of that session says.
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
    /// When the last ping was received that is echoed. It was sent before that.
    last: Option<Instant>,
    is_over: bool,
}

/// A session that broke off, and whose receiver has not confirmed the end.
#[derive(Clone, Debug)]
pub(crate) struct UnendedSession {
    /// The process of its receiver; empty if it is not known.
    process: String,
    last_echo: Instant,
}

impl Echoes {
    /// Notes a ping. Returns whether it is to be echoed.
    pub(crate) fn note(&self) -> bool {
        let mut state = self.0.lock();
        if !state.is_over {
            state.last = Some(Instant::now());
        }
        !state.is_over
    }

    /// Ends the echoes. Returns when the last ping was received that is echoed.
    pub(crate) fn end(&self) -> Option<Instant> {
        let mut state = self.0.lock();
        state.is_over = true;
        state.last
    }
}

impl UnendedSession {
    /// A session whose receiver runs in this process, if it has said so.
    pub(crate) fn new(process: Option<String>, last_echo: Instant) -> Self {
        Self {
            process: process.unwrap_or_default(),
            last_echo,
        }
    }

    /// The session in an opening that is sent now; `None` if its receiver publishes nothing any more.
    pub(crate) fn in_opening(&self) -> Option<EarlierSession> {
        let left = LEASE_MAX.saturating_sub(self.last_echo.elapsed());
        // A part of a millisecond counts as a whole one.
        let left_ms = left.as_nanos().div_ceil(NANOS_PER_MILLISECOND);
        (left > Duration::ZERO).then(|| EarlierSession {
            process: self.process.clone(),
            lease_left_ms: u16::try_from(left_ms).unwrap_or(u16::MAX),
        })
    }
}

const NANOS_PER_MILLISECOND: u128 = 1_000_000;
const _: () = assert!(LEASE_MAX.as_millis() <= u16::MAX as u128);
