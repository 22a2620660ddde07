//! Jobs that nobody leads any more.

use std::pin::pin;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use zmove_engine::Listener;
use zmove_types::{Beginning, Event, Observer};
use zmove_wire::SharedJobOrder;

use crate::error::SessionEnd;
use crate::head::{ORDER_MAX, is_closed};
use crate::job::SharedJob;
use crate::node::failure_at;
use crate::orders::Orders;
use crate::session::{JobEvents, Receiver, in_session};

/// What has become of a job that nobody leads any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// No session of it changes anything any more, and what it had left unfinished is removed.
    Ended,
    /// No receiver has it.
    Absent,
    /// Some receivers do not have it, and the others have not said so: not all may have the same directory.
    Unknown,
}

/// Ends a job that nobody leads any more: all receivers are asked at once, and the first that ends it is enough. With
/// [`Beginning::Allowed`] it is begun for that, at the first that lets it begin: others may have another directory.
///
/// # Errors
/// No receiver does so, or says that it does not have the job; the reason of one that may do so later, if there is one.
/// Those of the others are told.
pub async fn end_abandoned(
    job: &SharedJob,
    beginning: Beginning,
    receivers: &[Receiver],
    observer: Arc<dyn Observer>,
    listener: Arc<dyn Listener + Send + Sync>,
) -> Result<Abandoned, Box<SessionEnd>> {
    let events = JobEvents::new(
        Arc::clone(&observer),
        listener,
        Arc::default(),
        Arc::default(),
    );
    let end_at = async |number, receiver: &Receiver| {
        let session = events.within(number, receiver);
        let ended = in_session(receiver, job, beginning, &session, async |feeder| {
            Orders {
                feeder,
                answers_within: ORDER_MAX,
            }
            .give(SharedJobOrder::Close)
            .await?;
            session.await_end();
            Ok(())
        });
        (ended.await, number)
    };
    let at_once = match beginning {
        Beginning::UnderWay => receivers.len(),
        Beginning::Allowed => 1,
    };
    let ends = receivers
        .iter()
        .enumerate()
        .map(|(number, receiver)| end_at(number, receiver));
    let mut ends = pin!(stream::iter(ends).buffer_unordered(at_once.max(1)));
    let mut is_absent_somewhere = false;
    let mut failed = Vec::new();
    while let Some((ended, number)) = ends.next().await {
        match ended {
            Ok(()) => return Ok(Abandoned::Ended),
            Err(error) if is_closed(&error) => return Ok(Abandoned::Ended),
            Err(error) if error.is_absent() => is_absent_somewhere = true,
            Err(error) => failed.push((error, number)),
        }
    }
    // one that may do so later is the reason rather than one that never does
    failed.sort_by_key(|(error, _)| !error.is_final());
    let reason = if is_absent_somewhere {
        None
    } else {
        failed.pop()
    };
    for (error, number) in &failed {
        observer.on(&Event::Warned {
            message: failure_at(&receivers[*number], error),
        });
    }
    match reason {
        Some((error, _)) => Err(Box::new(error)),
        None if failed.is_empty() => Ok(Abandoned::Absent),
        None => Ok(Abandoned::Unknown),
    }
}
