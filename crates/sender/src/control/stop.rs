//! Whether a push is being stopped, for all its threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is raised once. Clones are the same flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Raises the flag. Threads that wait for something are woken by
    /// [`InFlight::stop`](crate::send::in_flight::InFlight::stop), which calls this.
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
