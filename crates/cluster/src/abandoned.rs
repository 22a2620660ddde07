//! Jobs that nobody leads any more.

use std::sync::Arc;

use tokio::task::JoinSet;
use zmove_engine::Listener;
use zmove_types::{Beginning, Event, NoObserver, Observer};
use zmove_wire::SharedJobOrder;

use crate::error::{SessionEnd, Stop};
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
/// [`Beginning::Allowed`] it is begun for that.
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
    let events = JobEvents::new(Arc::new(NoObserver), listener, Arc::default(), Arc::default());
    let job = Arc::new(job.clone());
    let mut asked = JoinSet::new();
    for (number, receiver) in receivers.iter().cloned().enumerate() {
        let (job, session) = (Arc::clone(&job), events.within(number, &receiver));
        asked.spawn(async move {
            let ended = in_session(&receiver, &job, beginning, &session, async |feeder| {
                Orders { feeder, answers_within: ORDER_MAX }.give(SharedJobOrder::Close).await?;
                session.await_end();
                Ok(())
            });
            (ended.await, receiver)
        });
    }
    let mut is_absent_somewhere = false;
    let mut failed: Vec<(SessionEnd, Receiver)> = Vec::new();
    while let Some(ended) = asked.join_next().await {
        match ended.map_err(|_panic| Box::new(SessionEnd::from(END_PANICKED)))? {
            (Ok(()), _) => return Ok(Abandoned::Ended),
            (Err(error), _) if is_closed(&error) => return Ok(Abandoned::Ended),
            (Err(error), _) if error.is_absent() => is_absent_somewhere = true,
            (Err(error), receiver) => failed.push((error, receiver)),
        }
    }
    // one that may do so later is the reason rather than one that never does
    failed.sort_by_key(|(error, _)| !error.is_final());
    let reason = if is_absent_somewhere { None } else { failed.pop() };
    for (error, receiver) in &failed {
        observer.on(&Event::Warned { message: failure_at(receiver, error) });
    }
    match reason {
        Some((error, _)) => Err(Box::new(error)),
        None if failed.is_empty() => Ok(Abandoned::Absent),
        None => Ok(Abandoned::Unknown),
    }
}

const END_PANICKED: Stop = Stop::Panicked("the end of a job panicked");
