//! Code shared by all kinds of sessions: the connections to the peer, the end of a session, and its report.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;
use zmove_disk::own_process;
use zmove_transport::{ControlError, ControlWriter, LaneSource};
use zmove_wire::{Extensions, Opened, Refusal, RefusalCode, TargetState, ToSender, encode_message};

use crate::error::SessionError;
use crate::rights::quota::messages::Messages;

/// The result of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionReport {
    /// Number of items stored. For a cleanup, the number of leftovers found.
    pub items: u64,
    /// Number of entries that failed.
    pub faults: u64,
    /// The reason why the journal failed, if it did. Without a journal, an interrupted transfer cannot resume its large
    /// files.
    pub journal_trouble: Option<String>,
    /// The purpose of the session. `None` if the session stores data.
    pub looked: Option<InspectionKind>,
}

/// The purpose of a session that stores nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InspectionKind {
    /// To report the changes that a transfer would make.
    Preview,
    /// To compare the target with the source.
    Verification,
    /// To remove the leftovers of ended sessions, or to list them.
    Cleaning,
}

/// The connections between a session and its peer.
pub(crate) struct Connections {
    pub(crate) writer: ControlWriter,
    pub(crate) inbox: Messages,
    pub(crate) lanes: mpsc::Receiver<Box<dyn LaneSource>>,
    /// If this side has dialed: a notification for each lane that could not be established.
    pub(crate) failed_lanes: Option<mpsc::UnboundedReceiver<()>>,
    /// Texts for the sender's user that state the reason why the session is waiting.
    pub(crate) wait_notices: Option<mpsc::UnboundedReceiver<String>>,
}

/// Time limit for a peer to close its end of the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Receives the next value from a channel. Returns `None` if `said` is `None` or the channel is closed.
pub(crate) async fn next<T>(said: &mut Option<mpsc::UnboundedReceiver<T>>) -> Option<T> {
    said.as_mut()?.recv().await
}

impl Connections {
    pub(crate) async fn send(&mut self, message: &ToSender) -> Result<(), ControlError> {
        self.writer.send(&encode_message(message)).await
    }

    /// Inspects the target of a session that stores nothing, and then permits the peer to begin. Refuses the peer if
    /// the inspection fails or `stop` resolves first.
    pub(crate) async fn open_after<T: Send + 'static>(
        mut self,
        stop: impl Future<Output = SessionError>,
        look_at: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
        opened: impl FnOnce(&T) -> Opened,
    ) -> Result<(Self, T), SessionError> {
        let looked_at = async {
            let seen = look(look_at).await.map_err(SessionError::Refused)?;
            self.open(opened(&seen)).await?;
            Ok(seen)
        };
        match unless_stopped(stop, looked_at).await.unwrap_or_else(Err) {
            Ok(seen) => Ok((self, seen)),
            Err(error) => Err(self.refuse(error).await),
        }
    }

    /// Permits the peer to begin.
    pub(crate) async fn open(&mut self, opened: Opened) -> Result<(), SessionError> {
        Ok(self.send(&ToSender::Opened(opened)).await?)
    }

    /// Sends the last message of the session.
    pub(crate) async fn send_last(&mut self, message: &ToSender) -> Result<(), ControlError> {
        self.send(message).await?;
        self.writer.finish().await
    }

    /// Informs the peer why its transfer does not begin, and returns that error.
    pub(crate) async fn refuse(mut self, error: SessionError) -> SessionError {
        let said = async {
            self.send_last(&ToSender::Refused(refusal_of(&error)))
                .await?;
            // The remaining messages of the peer are read and discarded. Closing a connection with unread data could
            // destroy the refusal in transit.
            while self.inbox.recv().await.is_some() {}
            Ok::<_, ControlError>(())
        };
        let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, said).await;
        error
    }

    /// Ends the conversation. After an error, sends the reason to the peer. After success, waits until the peer has
    /// closed its end, so that all its data is read.
    pub(crate) async fn end_session(&mut self, ended: &Result<(), SessionError>) {
        let said = async {
            if let Err(error) = ended {
                return self.send_last(&ToSender::Refused(refusal_of(error))).await;
            }
            while let Some(Ok(_)) = self.inbox.recv().await {}
            Ok(())
        };
        let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, said).await;
    }
}

/// Runs one step of a session that has no threads yet, unless `stop` resolves first. So a peer that does not read
/// cannot prevent the end of the session.
///
/// # Errors
/// The output of `stop`.
pub async fn unless_stopped<T, S>(
    stop: impl Future<Output = S>,
    step: impl Future<Output = T>,
) -> Result<T, S> {
    tokio::select! {
        done = step => Ok(done),
        stopped = stop => Err(stopped),
    }
}

/// Inspects the target on a blocking thread.
pub(crate) async fn look<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let looked = tokio::task::spawn_blocking(look).await;
    looked.unwrap_or_else(|_panic| Err(refusal_of(&SessionError::Panicked)))
}

/// Returns an `Opened` message that contains only a state and a limit on lanes.
pub(crate) fn opened(state: TargetState, lanes_max: u16) -> Opened {
    Opened {
        state,
        lanes_max,
        single_name: None,
        free_bytes: None,
        process: own_process().to_owned(),
        extensions: Extensions::NONE,
    }
}

/// Returns the refusal that informs the peer of an error on this side.
pub(crate) fn refusal_of(error: &SessionError) -> Refusal {
    if let SessionError::CutOff(refusal) | SessionError::Refused(refusal) = error {
        return refusal.clone();
    }
    let code = match error {
        SessionError::Stopping | SessionError::Superseded => RefusalCode::Stopping,
        SessionError::Lane(error) if error.is_lost() => RefusalCode::Broken,
        SessionError::Control(error) if error.is_lost() => RefusalCode::Broken,
        SessionError::Lane(_) | SessionError::Control(_) | SessionError::PeerMisbehaved(_) => {
            RefusalCode::Protocol
        }
        SessionError::ProbeTooLong | SessionError::ProbeTooLarge => RefusalCode::Denied,
        _ => RefusalCode::Failed,
    };
    Refusal::new(code, error.to_string())
}

/// Converts a time to microseconds, the unit of reports.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// CPU time used by this process so far.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
