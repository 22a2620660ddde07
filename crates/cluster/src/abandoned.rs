//! Jobs that nobody leads any more.

use std::sync::Arc;

use zmove_engine::Listener;
use zmove_types::{Beginning, Event, NoObserver, Observer};
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

/// Ends a job that nobody leads any more at the first receiver that has it; with [`Beginning::Allowed`] it is begun
/// for that.
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
    let mut is_absent_somewhere = false;
    let mut failed = None;
    for (number, receiver) in receivers.iter().enumerate() {
        let events = events.within(number, receiver);
        let ended = in_session(receiver, job, beginning, &events, async |feeder| {
            Orders { feeder, answers_within: ORDER_MAX }.give(SharedJobOrder::Close).await?;
            events.await_end();
            Ok(())
        })
        .await;
        match ended {
            Ok(()) => return Ok(Abandoned::Ended),
            Err(error) if is_closed(&error) => return Ok(Abandoned::Ended),
            Err(error) if error.is_absent() => is_absent_somewhere = true,
            Err(error) => {
                if let Some(next) = receivers.get(number + 1) {
                    let message = format!("{}; {} is tried next", failure_at(receiver, &error), next.remote);
                    observer.on(&Event::Warned { message });
                }
                // one that may do so later is the reason rather than one that never does
                failed = failed.filter(|before: &SessionEnd| !before.is_final()).or(Some(error));
            }
        }
    }
    match failed {
        None => Ok(Abandoned::Absent),
        Some(_) if is_absent_somewhere => Ok(Abandoned::Unknown),
        Some(error) => Err(Box::new(error)),
    }
}
