//! A session that inspects: a push that only reports what it would do, or a verification. The planner takes what the
//! scan finds, as in any push, and gives it to a [`Listing`](listing::Listing), which asks the receiver about all of
//! it.
//!
//! **Invariant:** no data leaves, since no thread is started that reads for a lane or sends on one. The receiver knows
//! from the intent of the opening that nothing may change. An inspection whose connections are lost ends: another
//! session would print all of it again.

pub(crate) mod hashing;
pub(crate) mod listing;
mod verification;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use zmove_transport::blocking;
use zmove_types::{Counters, Observer};
use zmove_wire::{Open, Summary};

use crate::account::receipts::Receipts;
use crate::control::link::Link;
use crate::control::replies::Replies;
use crate::control::{self, Speaker};
use crate::error::SessionError;
use crate::inspect::hashing::Hashing;
use crate::plan::planner::inspect_all;
use crate::push::job::Push;
use crate::push::run::Run;
use crate::push::session::Session;
use crate::push::threads::PushThreads;
use crate::read::extras::Extras;
use crate::send::lane_set::end_unused;

/// Asks about everything over `link`, and reports to `observer` what would be done.
pub(crate) async fn run(
    push: Push,
    run: &mut Run,
    mut link: Link,
    observer: Arc<dyn Observer>,
    stop: impl Future<Output = ()>,
) -> Result<Summary, SessionError> {
    let open = Open {
        run: run.id(link.transfer),
        ..push.open.clone()
    };
    link.ask(open, push.config.silence_max).await?;
    let Link {
        control: (reader, writer),
        mut lanes,
        relay,
        quota,
        ..
    } = link;
    let extras = Extras::new(push.open.keeping, &push.config);
    let (mut receipts, replies, outgoing) =
        Receipts::begin(observer, extras, push.started, quota.clone());
    let session = Arc::clone(&receipts.session);
    let mut speaker = Speaker::start(writer, outgoing, relay);
    let (broken_in, mut broken) = mpsc::unbounded_channel();
    let mut threads = PushThreads::new(broken_in);
    let conversation = async {
        let greeted = control::greeted(reader, speaker.dialled_by(), quota);
        // There is no rate to keep, and what changes nothing is not held up.
        let hear = |said: &_| control::tell_if_waiting(&*session.account.observer, said);
        let (mut inbox, opened) = control::permission(greeted, run.standing.patience, hear).await?;
        run.note_inspection();
        session.account.inspects(opened, push.sources_missing);
        start_planner(&push, &session, replies, &mut threads).map_err(SessionError::Thread)?;
        loop {
            tokio::select! {
                // A lane that did not come up does not matter, since nothing was to go over it.
                Some(lane) = lanes.recv() => lane.into_iter().for_each(end_unused),
                Some(broken) = broken.recv() => return Err(broken.error.into()),
                Some(error) = speaker.unsayable.recv() => {
                    return control::explained(receipts.take_rest(&mut inbox), error.into()).await;
                }
                message = control::receive(&mut inbox) => {
                    if let Some(finished) = receipts.take(message?)? {
                        return Ok(finished);
                    }
                }
            }
        }
    };
    let ended = tokio::select! {
        ended = conversation => ended,
        () = stop => Err(SessionError::Interrupted),
    };
    session.in_flight.stop();
    if let Err(error) = &ended {
        speaker.end(Err(error)).await;
    }
    let elapsed = push.started.elapsed();
    // From here on the planner waits for no more replies.
    drop(receipts);
    blocking(move || threads.join()).await;
    let finished = ended?;
    let totals = &session.account.totals;
    let summary = Summary {
        elapsed,
        receiver_cpu: Duration::from_micros(finished.cpu_us),
        is_preview: true,
        counters: Counters {
            left_out: push.scan.left_out(),
            ..totals.counters.read()
        },
        ..totals.summary()
    };
    drop(session);
    speaker.end(Ok(&summary)).await;
    Ok(summary)
}

/// Starts the thread that asks about what the scan finds, and those that hash for a verification.
fn start_planner(
    push: &Push,
    session: &Arc<Session>,
    replies: Replies,
    threads: &mut PushThreads,
) -> io::Result<()> {
    let task = push.task.clone();
    let hashing = if push.open.verify {
        Some(Hashing::start(session, &push.config, threads)?)
    } else {
        None
    };
    let session = Arc::clone(session);
    let scan = push.scan.clone();
    let plan = move || inspect_all(&session, &scan, &replies, &task, hashing);
    threads.spawn("zmove-plan".into(), plan)
}
