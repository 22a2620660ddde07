//! The watch for a black hole on the path of a session.
//!
//! Lanes that are stuck in a black hole time out after minutes, and so do the lanes of the next session. The watch ends
//! the session as soon as the dialler has found the black hole. **Invariant:** the session ends by the loss of its
//! control connection, so that another session may follow, with small segments.

use std::sync::{Arc, OnceLock};

use tokio::task::AbortHandle;
use zmove_transport::{BlackHole, ChannelDialler, PathProbe};

/// A watch, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct PathWatch {
    found: Arc<OnceLock<BlackHole>>,
    task: AbortHandle,
}

impl PathWatch {
    /// Watches the lanes of a dialler, for the session of this control connection.
    pub(super) fn start(dialler: ChannelDialler, control: PathProbe) -> Self {
        let found = Arc::<OnceLock<_>>::default();
        let finding = Arc::clone(&found);
        let task = tokio::spawn(async move {
            let black_hole = dialler.await_black_hole().await;
            finding.get_or_init(|| black_hole);
            control.break_off();
        });
        Self {
            found,
            task: task.abort_handle(),
        }
    }

    /// The black hole that has ended the session, if one has.
    pub(super) fn found(&self) -> Option<&BlackHole> {
        self.found.get()
    }

    /// Ends the watch, and drops its handle on the control connection.
    pub(super) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for PathWatch {
    fn drop(&mut self) {
        self.stop();
    }
}
