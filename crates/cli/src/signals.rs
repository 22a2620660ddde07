//! SIGINT and SIGTERM, which ask a program to end, and SIGXFSZ, which must not end it.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listeners for SIGINT and SIGTERM, which then no longer end the process by themselves.
#[derive(Debug)]
pub(crate) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Listens for the signals from now on.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn listen() -> io::Result<Self> {
        // With a handler, once set, SIGXFSZ no longer ends the process: a write beyond the limit for files fails
        // instead.
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
