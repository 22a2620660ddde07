//! Transfers inside this process: sender and receiver run the whole pipeline over the memory transport, without a
//! network.

mod overlap;

use std::future::{Future, pending};
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use zmove_receiver::{
    OwnerPermission, ReceiverConfig, Rights, SenderLocation, Session,
    SessionError as ReceiverError, SessionReport, run_session,
};
use zmove_sender::{CleanEvent, Link, NoQuota, SessionError, clean};
use zmove_transport::{memory_control, memory_lane};
use zmove_types::Observer;
use zmove_wire::{Cipher, Open};

use crate::connecting::dial::Transferred;
use crate::error::{ConnectError, PullError, PushError};
use crate::push::StartedPush;
use crate::random::fresh_transfer;

pub use overlap::OverlapCheck;

/// Pushes to a target on this host. Returns when the push is complete or `stop` resolves.
///
/// # Errors
/// The sender or the receiver failed. Failed files are not an error: the summary counts them.
///
/// # Panics
/// Panics if called outside of a tokio runtime.
pub async fn push_locally(
    push: StartedPush,
    receiver: ReceiverConfig,
    observer: Arc<dyn Observer>,
    stop: impl Future<Output = ()>,
) -> Result<Transferred, PushError> {
    let (link, receiving) = connect_within_process(receiver)?;
    let pushed = push.push_over(link, observer, stop).await;
    outcome(pushed, receiving).await.map(Transferred::from)
}

/// Cleans a target on this host. Returns when the cleanup is complete or `stop` resolves.
///
/// # Errors
/// The sender or the receiver failed.
///
/// # Panics
/// Panics if called outside of a tokio runtime.
pub async fn clean_locally(
    open: Open,
    receiver: ReceiverConfig,
    tell: &mut (dyn FnMut(CleanEvent) + Send),
    stop: impl Future<Output = ()>,
) -> Result<(), PushError> {
    let (link, receiving) = connect_within_process(receiver)?;
    let cleaned = clean(open, link, tell, stop).await;
    outcome(cleaned, receiving).await
}

/// The task of a receiver in this process.
type ReceiverTask = JoinHandle<Result<SessionReport, ReceiverError>>;

/// Starts a receiver and connects to it.
fn connect_within_process(receiver: ReceiverConfig) -> Result<(Link, ReceiverTask), PushError> {
    let transfer = fresh_transfer().map_err(ConnectError::TransferId)?;
    let (near, (mut far_reader, far_writer)) = memory_control();
    let (sinks_in, sinks) = mpsc::channel(usize::from(LANES));
    let (sources_in, sources) = mpsc::channel(usize::from(LANES));
    for _ in 0..LANES {
        let (sink, source) = memory_lane();
        let room = "the queues hold all lanes";
        sinks_in.try_send(Ok(sink)).expect(room);
        sources_in.try_send(source).expect(room);
    }
    drop((sinks_in, sources_in));
    let receiving = tokio::spawn(async move {
        far_reader.greeting().await?;
        let control = (far_reader, far_writer);
        let session = Session {
            config: ReceiverConfig {
                // The receiver runs as the user, so the permissions of the kernel are sufficient.
                rights: Rights {
                    owning: OwnerPermission::Allowed,
                    ..Rights::default()
                },
                ..receiver
            },
            sender: SenderLocation::SameProcess,
            ..Session::new(transfer, control, sources)
        };
        run_session(session, pending()).await
    });
    let link = Link {
        transfer,
        cipher: Cipher::default(),
        control: near,
        lanes: sinks,
        supply: None,
        relay: None,
        quota: Arc::new(NoQuota),
    };
    Ok((link, receiving))
}

/// Combines the results of the sender and the receiver into the result of the session.
async fn outcome<T>(
    sent: Result<T, SessionError>,
    receiving: ReceiverTask,
) -> Result<T, PushError> {
    let received = receiving.await.map_err(PushError::Role)?;
    match (sent, received) {
        // Inside one process, a connection is lost only as a consequence of an error at the receiver.
        (Err(SessionError::Control(_) | SessionError::Lane(_)), Err(error))
            if !matches!(error, ReceiverError::Control(_)) =>
        {
            Err(PullError::Receiver(error).into())
        }
        (sent, _) => Ok(sent?),
    }
}

/// Number of lanes for a transfer inside one process, regardless of the number of cores.
const LANES: u16 = 2;
