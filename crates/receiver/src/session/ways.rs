//! The ways of a session of any kind, how it says that it ends, and what is reported.

use std::time::Duration;

use tokio::sync::mpsc;
use zmove_transport::{ControlError, ControlWriter, LaneSource};
use zmove_wire::{Refusal, RefusalCode, ToSender, encode_message};

use crate::error::SessionError;
use crate::quota::messages::Messages;

/// What a session did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionReport {
    /// The target as it was asked for.
    pub target: Vec<u8>,
    /// How many items were stored.
    pub items: u64,
    /// How many entries failed.
    pub faults: u64,
    /// Why no journal could be kept: had the transfer broken, its large files could not be gone on with.
    pub journal_trouble: Option<String>,
}

/// What connects a session with its peer.
pub(crate) struct Ways {
    pub(crate) writer: ControlWriter,
    pub(crate) inbox: Messages,
    pub(crate) lanes: mpsc::Receiver<Box<dyn LaneSource>>,
}

/// How long a peer may take to close its end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl Ways {
    pub(crate) async fn send(&mut self, message: &ToSender) -> Result<(), ControlError> {
        self.writer.send(&encode_message(message)).await
    }

    /// Says the last thing that there is to say.
    pub(crate) async fn send_last(&mut self, message: &ToSender) -> Result<(), ControlError> {
        self.send(message).await?;
        self.writer.finish().await
    }

    /// Refuses the peer, and ends the session with that.
    pub(crate) async fn refuse(mut self, refusal: Refusal) -> Result<SessionReport, SessionError> {
        self.send_last(&ToSender::Refused(refusal.clone())).await?;
        // what the peer still says is read, so that the close does not destroy the refusal on its way
        let drained = async { while self.inbox.recv().await.is_some() {} };
        let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, drained).await;
        Err(SessionError::Refused(refusal))
    }

    /// Tells the peer why this side cannot go on, if it is still there; after a good end the peer closes
    /// first, so that nothing it said is left unread.
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

/// Looks at the target on a thread that may wait for it.
pub(crate) async fn look<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let looked = tokio::task::spawn_blocking(look).await;
    looked.unwrap_or_else(|_panic| Err(refusal_of(&SessionError::Panicked)))
}

/// Why this side cannot go on, for the peer.
pub(crate) fn refusal_of(error: &SessionError) -> Refusal {
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
    Refusal { code, text: error.to_string() }
}

/// A time as it is told in reports.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// CPU time of this process until now.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
