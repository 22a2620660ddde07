//! SIGINT, SIGTERM and the SIGHUP of a terminal that is closed, which ask a program to end, and SIGXFSZ, which must not
//! end it.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listeners for SIGINT and SIGTERM, and perhaps SIGHUP, which then no longer end the process by themselves. One that
/// the parent has arranged to be ignored stays so: SIGHUP below `nohup`, SIGINT where a script runs something in its
/// background.
#[derive(Debug)]
pub(crate) struct EndSignals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    /// `None` also where SIGHUP means something else.
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
        Ok(Self {
            interrupt: unless_ignored(SignalKind::interrupt())?,
            terminate: unless_ignored(SignalKind::terminate())?,
            hangup: None,
        })
    }

    /// Listens for the signals from now on, and for the end of the terminal.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn listen_at_terminal() -> io::Result<Self> {
        Ok(Self {
            hangup: unless_ignored(SignalKind::hangup())?,
            ..Self::listen()?
        })
    }

    /// Waits for one more signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            () = one_of(&mut self.interrupt) => {}
            () = one_of(&mut self.terminate) => {}
            () = one_of(&mut self.hangup) => {}
        }
    }
}

/// Listeners for the signals that a process passes on to a child in another session, and that then no longer end the
/// process itself. The child ignores those, too, that the parent of this process has arranged to be ignored.
#[derive(Debug)]
pub(crate) struct PassedSignals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Signal,
}

impl PassedSignals {
    /// Listens for the signals from now on.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: unless_ignored(SignalKind::interrupt())?,
            terminate: unless_ignored(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one more signal, and returns it.
    pub(crate) async fn next(&mut self) -> rustix::process::Signal {
        tokio::select! {
            () = one_of(&mut self.interrupt) => rustix::process::Signal::INT,
            () = one_of(&mut self.terminate) => rustix::process::Signal::TERM,
            _ = self.hangup.recv() => rustix::process::Signal::HUP,
        }
    }
}

/// Waits for the next signal, for ever where there is none.
async fn one_of(signals: &mut Option<Signal>) {
    match signals {
        Some(signals) => {
            signals.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Listens for a signal, unless it is ignored.
fn unless_ignored(kind: SignalKind) -> io::Result<Option<Signal>> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if ignores(&status, kind) {
        return Ok(None);
    }
    signal(kind).map(Some)
}

/// Whether a process with this `/proc/PID/status` ignores a signal.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    ignored >> (kind.as_raw_value() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_ignored_as_the_parent_has_arranged() {
        let status =
            |ignored: &str| format!("SigBlk:\t0000000000000001\nSigIgn:\t{ignored}\nSigCgt:\t1\n");
        let hangup = |text: &str| ignores(text, SignalKind::hangup());
        assert!(hangup(&status("0000000000000001")));
        assert!(hangup(&status("0000000000001001")));
        assert!(!hangup(&status("0000000000001000")));
        assert!(!hangup(""));
        // below a background job of a script
        let background = status("0000000000000006");
        assert!(ignores(&background, SignalKind::interrupt()));
        assert!(!ignores(&background, SignalKind::terminate()));
    }
}
