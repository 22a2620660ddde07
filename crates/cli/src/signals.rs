//! The signals that ask a program to end, and one that must not.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM, which no longer end the process by themselves.
#[derive(Debug)]
pub(crate) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Listens from now on.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn listen() -> io::Result<Self> {
        // a file beyond the limit for files (setrlimit) fails by itself; who listens once is never ended by it again
        drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?);
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for one more signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
