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
        Self::listen_unless(&Ignored::read(), None)
    }

    fn listen_unless(ignored: &Ignored, hangup: Option<Signal>) -> io::Result<Self> {
        // With a handler, once set, SIGXFSZ no longer ends the process: a write beyond the limit for files fails
        // instead.
        drop(signal(SignalKind::from_raw(
            rustix::process::Signal::XFSZ.as_raw(),
        ))?);
        Ok(Self {
            interrupt: ignored.or_listen(SignalKind::interrupt())?,
            terminate: ignored.or_listen(SignalKind::terminate())?,
            hangup,
        })
    }

    /// Listens for the signals from now on, and for the end of the terminal.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn listen_at_terminal() -> io::Result<Self> {
        let ignored = Ignored::read();
        let hangup = ignored.or_listen(SignalKind::hangup())?;
        Self::listen_unless(&ignored, hangup)
    }

    /// Listens for the signals from now on, and for SIGHUP in any case, to pass them on to a child in another session.
    /// The child ignores those, too, that the parent of this process has arranged to be ignored.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn listen_for_child() -> io::Result<Self> {
        let hangup = signal(SignalKind::hangup())?;
        Self::listen_unless(&Ignored::read(), Some(hangup))
    }

    /// Waits for one more signal.
    pub(crate) async fn next(&mut self) {
        self.next_to_pass().await;
    }

    /// Waits for one more signal, and returns it.
    pub(crate) async fn next_to_pass(&mut self) -> rustix::process::Signal {
        tokio::select! {
            () = one_of(&mut self.interrupt) => rustix::process::Signal::INT,
            () = one_of(&mut self.terminate) => rustix::process::Signal::TERM,
            () = one_of(&mut self.hangup) => rustix::process::Signal::HUP,
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

/// The signals that this process ignores, as bits.
struct Ignored(u64);

impl Ignored {
    fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// Reads `/proc/PID/status`.
    fn parse(status: &str) -> Self {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        Self(mask.unwrap_or(0))
    }

    fn contains(&self, kind: SignalKind) -> bool {
        self.0 >> (kind.as_raw_value() - 1) & 1 == 1
    }

    /// Listens for a signal, unless it is ignored.
    fn or_listen(&self, kind: SignalKind) -> io::Result<Option<Signal>> {
        (!self.contains(kind)).then(|| signal(kind)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_ignored_as_the_parent_has_arranged() {
        let status =
            |ignored: &str| format!("SigBlk:\t0000000000000001\nSigIgn:\t{ignored}\nSigCgt:\t1\n");
        let hangup = |text: &str| Ignored::parse(text).contains(SignalKind::hangup());
        assert!(hangup(&status("0000000000000001")));
        assert!(hangup(&status("0000000000001001")));
        assert!(!hangup(&status("0000000000001000")));
        assert!(!hangup(""));
        // below a background job of a script
        let background = Ignored::parse(&status("0000000000000006"));
        assert!(background.contains(SignalKind::interrupt()));
        assert!(!background.contains(SignalKind::terminate()));
    }
}
