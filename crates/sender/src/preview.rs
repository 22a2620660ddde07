//! A push that only tells what it would do: asks the receiver about everything that the scan finds. It has a
//! path of its own on both sides, from the first message on, none of which can write; so nothing has to be
//! left out anywhere else.
//!
//! The scan runs as always. Its entries are asked about many at a time, with several inquiries under way
//! (`survey`), and lines are told as the answers come.
//!
//! **Invariant:** no data leaves, and no message that would change anything at the target. A preview whose
//! connections are lost ends: another session would tell all of it again.

mod survey;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use zmove_transport::{ControlReader, LaneError, LaneSink};
use zmove_types::Observer;
use zmove_wire::{Finished, Open, Version};

use crate::account::receipts::Receipts;
use crate::account::summary::{Preview, Summary};
use crate::control::link::Link;
use crate::control::replies::Replies;
use crate::control::{self, GOODBYE_TIMEOUT, Unsayable};
use crate::error::SessionError;
use crate::plan::planner::Task;
use crate::push::job::Push;
use crate::push::run::Run;
use crate::push::threads::{Broken, Threads};
use crate::send::lane_set::end_unused;

/// Asks about everything over `link`, and tells `observer` what would be done.
pub(crate) async fn run(
    push: Push,
    run: &mut Run,
    mut link: Link,
    observer: Arc<dyn Observer>,
    stop: impl Future<Output = ()>,
) -> Result<Summary, SessionError> {
    link.ask(Open { run: run.id(link.transfer), ..push.open.clone() }).await?;
    let Link { version, control: (reader, writer), lanes, supply: _none_needed, .. } = link;
    let (receipts, replies, outgoing) = Receipts::begin(observer, version, push.started);
    let session = Arc::clone(&receipts.session);
    let started = push.started;
    let (writer, unsayable) = control::write_all(writer, outgoing);
    let scan = push.scan.clone();
    let (broken_in, broken) = mpsc::unbounded_channel();
    let threads = Threads::new(broken_in);
    let patience = run.patience;
    let mut conversation = Conversation { lanes, receipts, version, patience, threads, broken, unsayable };
    let ended = tokio::select! {
        ended = conversation.hold(reader, push, replies) => ended,
        () = stop => Err(SessionError::Interrupted),
    };
    session.in_flight.stop();
    if ended.is_err() {
        writer.abort();
    }
    let elapsed = started.elapsed();
    let threads = conversation.threads;
    // the planner waits for replies no more
    drop(conversation.receipts);
    let joined = tokio::task::spawn_blocking(move || threads.join()).await;
    joined.expect("a preview's thread does not panic");
    let finished = ended?;
    let totals = &session.account.totals;
    let summary = Summary {
        elapsed,
        receiver_cpu: Duration::from_micros(finished.cpu_us),
        preview: Some(Preview { added: totals.added.get(), changed: totals.changed.get() }),
        left_out: scan.left_out(),
        ..totals.summary()
    };
    drop(session);
    let _goodbye = tokio::time::timeout(GOODBYE_TIMEOUT, writer).await;
    Ok(summary)
}

struct Conversation {
    lanes: mpsc::Receiver<Result<Box<dyn LaneSink>, LaneError>>,
    receipts: Receipts,
    /// The version that the receiver speaks.
    version: Version,
    patience: Duration,
    threads: Threads,
    /// Told when the thread panics.
    broken: UnboundedReceiver<Broken>,
    unsayable: Unsayable,
}

impl Conversation {
    /// Until the receiver has said its last word.
    async fn hold(
        &mut self,
        reader: ControlReader,
        push: Push,
        replies: Replies,
    ) -> Result<Finished, SessionError> {
        let (waits_in, mut waits) = mpsc::unbounded_channel();
        let leave = control::leave(control::greeted(reader, self.version), self.patience, waits_in);
        let waiting = async {
            while let Some(waiting) = waits.recv().await {
                control::tell_waiting(&*self.receipts.session.account.observer, &waiting);
            }
        };
        // the waits end when leave has come, or will not
        let (left, ()) = tokio::join!(leave, waiting);
        let (mut inbox, opened) = left?;
        let session = Arc::clone(&self.receipts.session);
        let account = &session.account;
        account.book().single_name = opened.single_name.map(|name| name.0);
        account.totals.scan_errors.set(push.sources_missing);
        let task = Task { compare: push.open.compare, mirror: push.mirror };
        let scan = push.scan;
        let survey = move || survey::run(&session, &scan, &replies, &task);
        self.threads.spawn("zmove-plan".into(), survey).map_err(SessionError::Thread)?;
        loop {
            tokio::select! {
                // nothing was to go over one that did not come up
                Some(lane) = self.lanes.recv() => lane.into_iter().for_each(end_unused),
                Some(broken) = self.broken.recv() => return Err(broken.error.into()),
                Some(error) = self.unsayable.recv() => {
                    return control::explained(self.receipts.take_rest(&mut inbox), error.into()).await;
                }
                message = control::receive(&mut inbox) => {
                    if let Some(finished) = self.receipts.take(message?)? {
                        return Ok(finished);
                    }
                }
            }
        }
    }
}
