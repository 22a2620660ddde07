//! What connects a session of any kind with its peer, how a session ends, and its report.

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
    /// The number of items stored; of a cleaning, the number of leftovers found.
    pub items: u64,
    /// The number of entries that failed.
    pub faults: u64,
    /// Why no journal could be kept: had the transfer broken, no later one could have resumed its large files.
    pub journal_trouble: Option<String>,
    /// What a session was for that stores nothing.
    pub looked: Option<Looked>,
}

/// The purpose of a session that stores nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// To tell what a transfer would do.
    Preview,
    /// To compare the target with the source.
    Verification,
    /// To remove the leftovers of ended sessions, or to list them.
    Cleaning,
}

/// What connects a session with its peer.
pub(crate) struct Connections {
    pub(crate) writer: ControlWriter,
    pub(crate) inbox: Messages,
    pub(crate) lanes: mpsc::Receiver<Box<dyn LaneSource>>,
    /// Where this side has dialled: a word for each lane that has not come up.
    pub(crate) failed_lanes: Option<mpsc::UnboundedReceiver<()>>,
    /// What the session waits for, as its sender is to know.
    pub(crate) held_up: Option<mpsc::UnboundedReceiver<String>>,
}

/// How long a peer may take to close its end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What is said next, if anything can be.
pub(crate) async fn next<T>(said: &mut Option<mpsc::UnboundedReceiver<T>>) -> Option<T> {
    said.as_mut()?.recv().await
}

impl Connections {
    pub(crate) async fn send(&mut self, message: &ToSender) -> Result<(), ControlError> {
        self.writer.send(&encode_message(message)).await
    }

    /// Looks at the target of a session that stores nothing, and lets the peer begin. If that fails, or `stop` resolves
    /// before, the peer is refused.
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

    /// Lets the peer begin.
    pub(crate) async fn open(&mut self, opened: Opened) -> Result<(), SessionError> {
        Ok(self.send(&ToSender::Opened(opened)).await?)
    }

    /// Sends the last message of the session.
    pub(crate) async fn send_last(&mut self, message: &ToSender) -> Result<(), ControlError> {
        self.send(message).await?;
        self.writer.finish().await
    }

    /// Sends the peer the reason why its transfer does not begin, and returns that.
    pub(crate) async fn refuse(mut self, error: SessionError) -> SessionError {
        let said = async {
            self.send_last(&ToSender::Refused(refusal_of(&error)))
                .await?;
            // Read what the peer still sends: a close with unread data could destroy the refusal on its way.
            while self.inbox.recv().await.is_some() {}
            Ok::<_, ControlError>(())
        };
        let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, said).await;
        error
    }

    /// Sends the peer the reason why this side cannot go on, if it is still there. After a good end the peer closes
    /// first, so that nothing it has sent is left unread.
    pub(crate) async fn part(&mut self, ended: &Result<(), SessionError>) {
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

/// Takes a step of a session that has no threads yet, unless `stop` resolves before: the peer, who need not read what
/// it is sent, keeps no session that is to end.
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

/// Looks at the target on a thread that may block.
pub(crate) async fn look<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let looked = tokio::task::spawn_blocking(look).await;
    looked.unwrap_or_else(|_panic| Err(refusal_of(&SessionError::Panicked)))
}

/// The answer to an opening of which nothing else is known.
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

/// The refusal that is sent to the peer for an error of this side.
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

/// A time in the unit of reports.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// CPU time of this process until now.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
