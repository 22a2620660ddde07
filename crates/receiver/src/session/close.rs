//! The end of a session of any kind: what the peer is told, and what is reported.

use std::time::Duration;

use zmove_transport::ControlWriter;
use zmove_wire::{Refusal, RefusalCode, ToSender, encode_message};

use crate::account::messages::Messages;
use crate::error::SessionError;

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

/// How long a peer may take to close its end.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Refuses the peer, and ends the session with that.
pub(crate) async fn refuse(
    writer: &mut ControlWriter,
    mut inbox: Messages,
    refusal: Refusal,
) -> Result<SessionReport, SessionError> {
    writer.send(&encode_message(&ToSender::Refused(refusal.clone()))).await?;
    writer.finish().await?;
    // what the peer still says is read, so that the close does not destroy the refusal on its way
    let drained = async { while inbox.recv().await.is_some() {} };
    let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, drained).await;
    Err(SessionError::Refused(refusal))
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
