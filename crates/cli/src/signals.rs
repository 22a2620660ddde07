//! SIGINT, SIGTERM and the SIGHUP of a terminal that is closed, which ask a program to end, and SIGXFSZ, which must not
//! end it.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listeners for SIGINT and SIGTERM, and perhaps SIGHUP, which then no longer end the process by themselves.
#[derive(Debug)]
pub(crate) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` where SIGHUP is ignored or means something else.
    hangup: Option<Signal>,
}

impl EndSignals {
    /// Listens for the signals from now on.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn listen() -> io::Result<Self> {
        // With a handler, once set, SIGXFSZ no longer ends the process: a write beyond the limit for files fails
        // instead.
        drop(signal(SignalKind::from_raw(
            rustix::process::Signal::XFSZ.as_raw(),
        ))?);
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self {
            interrupt,
            terminate: signal(SignalKind::terminate())?,
            hangup: None,
        })
    }

    /// Listens for the signals from now on, and for the end of the terminal, unless that is ignored, as below `nohup`.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn listen_at_terminal() -> io::Result<Self> {
        let signals = Self::listen()?;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = if ignores_hangup(&status) {
            None
        } else {
            Some(signal(SignalKind::hangup())?)
        };
        Ok(Self { hangup, ..signals })
    }

    /// Waits for one more signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            Some(()) = async { self.hangup.as_mut()?.recv().await } => {}
        }
    }
}

/// Listeners for the signals that a process passes on to a child in another session, and that then no longer end the
/// process itself.
#[derive(Debug)]
pub(crate) struct PassedSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl PassedSignals {
    /// Listens for the signals from now on.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one more signal, and returns it.
    pub(crate) async fn next(&mut self) -> rustix::process::Signal {
        tokio::select! {
            _ = self.interrupt.recv() => rustix::process::Signal::INT,
            _ = self.terminate.recv() => rustix::process::Signal::TERM,
            _ = self.hangup.recv() => rustix::process::Signal::HUP,
        }
    }
}

/// Whether a process with this `/proc/PID/status` ignores SIGHUP, as its parent has arranged.
fn ignores_hangup(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    ignored >> (rustix::process::Signal::HUP.as_raw() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hangup_is_ignored_below_nohup() {
        let status =
            |ignored: &str| format!("SigBlk:\t0000000000000001\nSigIgn:\t{ignored}\nSigCgt:\t1\n");
        assert!(ignores_hangup(&status("0000000000000001")));
        assert!(ignores_hangup(&status("0000000000001001")));
        assert!(!ignores_hangup(&status("0000000000001000")));
        assert!(!ignores_hangup(""));
    }
}
