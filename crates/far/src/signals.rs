//! Handles SIGINT, SIGTERM and the SIGHUP of a closed terminal, which ask the program to stop. Also handles SIGXFSZ,
//! which must not stop the program.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listeners for SIGINT, SIGTERM and optionally SIGHUP. While a listener exists, its signal no longer ends the process
/// by default. If the parent process made a signal ignored, it stays ignored. Examples are SIGHUP under `nohup`, and
/// SIGINT in a background command of a script.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    /// Listener for SIGHUP. `None` if SIGHUP is ignored, or if it has another meaning in this process.
    hangup: Option<Signal>,
}

impl EndSignals {
    /// Starts listening for the signals.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn listen() -> io::Result<Self> {
        Self::listen_unless(&Ignored::read(), None)
    }

    fn listen_unless(ignored: &Ignored, hangup: Option<Signal>) -> io::Result<Self> {
        // With a handler, SIGXFSZ does not end the process. A write beyond the file size limit then returns an error
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

    /// Starts listening for the signals and for the hangup of the terminal.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn listen_at_terminal() -> io::Result<Self> {
        let ignored = Ignored::read();
        let hangup = ignored.or_listen(SignalKind::hangup())?;
        Self::listen_unless(&ignored, hangup)
    }

    /// Starts listening for the signals, in order to forward them to a child in another session. Listens for SIGHUP
    /// even if it is ignored. The child itself ignores the signals that this process inherited as ignored.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn listen_for_child() -> io::Result<Self> {
        let hangup = signal(SignalKind::hangup())?;
        Self::listen_unless(&Ignored::read(), Some(hangup))
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        self.next_to_pass().await;
    }

    /// Waits for the next signal and returns it.
    pub async fn next_to_pass(&mut self) -> rustix::process::Signal {
        tokio::select! {
            () = one_of(&mut self.interrupt) => rustix::process::Signal::INT,
            () = one_of(&mut self.terminate) => rustix::process::Signal::TERM,
            () = one_of(&mut self.hangup) => rustix::process::Signal::HUP,
        }
    }
}

/// Waits for the next signal. If there is no listener, waits forever.
async fn one_of(signals: &mut Option<Signal>) {
    match signals {
        Some(signals) => {
            signals.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// The set of signals that this process ignores, as a bit mask.
struct Ignored(u64);

impl Ignored {
    fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// Parses the text of `/proc/PID/status`.
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
        // In a background job of a script, SIGINT and SIGQUIT are ignored.
        let background = Ignored::parse(&status("0000000000000006"));
        assert!(background.contains(SignalKind::interrupt()));
        assert!(!background.contains(SignalKind::terminate()));
    }
}
