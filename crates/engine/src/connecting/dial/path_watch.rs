//! Watches a session's path for a black hole.
//!
//! Lanes that are stuck in a black hole time out only after minutes, and so would the lanes of the next session. The
//! watch ends the session as soon as the dialer detects the black hole. **Invariant:** the session ends by losing its
//! control connection, so that another session can follow with small segments.

use std::sync::{Arc, OnceLock};

use tokio::task::AbortHandle;
use zmove_transport::{BlackHole, ChannelDialer, PathProbe};

/// A watch on a path. It stops when it is dropped.
#[derive(Debug)]
pub(super) struct PathWatch {
    found: Arc<OnceLock<BlackHole>>,
    task: AbortHandle,
}

impl PathWatch {
    /// Starts to watch the lanes of a dialer, for the session with this control connection.
    pub(super) fn start(dialer: ChannelDialer, control: PathProbe) -> Self {
        let found = Arc::<OnceLock<_>>::default();
        let finding = Arc::clone(&found);
        let task = tokio::spawn(async move {
            let black_hole = dialer.await_black_hole().await;
            finding.get_or_init(|| black_hole);
            control.break_off();
        });
        Self {
            found,
            task: task.abort_handle(),
        }
    }

    /// Returns the black hole that ended the session, if any.
    pub(super) fn found(&self) -> Option<&BlackHole> {
        self.found.get()
    }

    /// Stops the watch and releases its handle to the control connection.
    pub(super) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for PathWatch {
    fn drop(&mut self) {
        self.stop();
    }
}
