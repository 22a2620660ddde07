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
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use zmove_transport::{ControlReader, LaneError, LaneSink};
use zmove_types::Observer;
use zmove_wire::{Finished, Greeting, Open, Role, Version};

use self::survey::{Survey, SurveyContext};
use crate::account::receipts::Receipts;
use crate::account::summary::{Preview, Summary};
use crate::account::totals::Totals;
use crate::control::link::Link;
use crate::control::outgoing::Outgoing;
use crate::control::replies::{self, Replies};
use crate::control::{self, GOODBYE_TIMEOUT};
use crate::error::SessionError;
use crate::push::job::Push;
use crate::push::run::Run;
use crate::send::lane_set::end_unused;

type Lanes = mpsc::Receiver<Result<Box<dyn LaneSink>, LaneError>>;

/// Asks about everything over `link`, and tells `observer` what would be done.
pub(crate) async fn run(
    push: Push,
    run: &mut Run,
    link: Link,
    observer: Arc<dyn Observer>,
    stop: impl Future<Output = ()>,
) -> Result<Summary, SessionError> {
    let Link { transfer, cipher, version, control: (reader, mut writer), lanes, supply: _none_needed } = link;
    let greeting = Greeting { cipher, ..Greeting::new(Role::Control, transfer) };
    let open = Open { run: run.id(transfer), ..push.open.clone() };
    control::ask(&mut writer, greeting, open, version).await?;
    let (outgoing_in, outgoing) = mpsc::unbounded_channel();
    let (reply_sender, replies) = replies::channel();
    let receipts = Receipts::new(observer, version, Outgoing::new(outgoing_in), reply_sender);
    let account = Arc::clone(&receipts.account);
    let in_flight = Arc::clone(&receipts.in_flight);
    let survey_context = SurveyContext {
        account: Arc::clone(&account),
        queue: Arc::clone(&receipts.queue),
        outgoing: in_flight.outgoing.clone(),
        stop: in_flight.stop.clone(),
    };
    let started = push.started;
    let writer = tokio::spawn(control::write_all(writer, outgoing));
    let scan = push.scan.clone();
    let mut conversation = Conversation { lanes, receipts, version, patience: run.patience, surveyor: None };
    let ended = tokio::select! {
        ended = conversation.hold(reader, push, survey_context, replies) => ended,
        () = stop => Err(SessionError::Interrupted),
    };
    in_flight.stop();
    if ended.is_err() {
        writer.abort();
    }
    let elapsed = started.elapsed();
    conversation.end().await;
    let finished = ended?;
    let summary = Summary { left_out: scan.left_out(), ..summary(&account.totals, elapsed, &finished) };
    drop(in_flight);
    let _goodbye = tokio::time::timeout(GOODBYE_TIMEOUT, writer).await;
    Ok(summary)
}

struct Conversation {
    lanes: Lanes,
    receipts: Receipts,
    /// The version that the receiver speaks.
    version: Version,
    patience: Duration,
    surveyor: Option<std::thread::JoinHandle<()>>,
}

impl Conversation {
    /// Until the receiver has said its last word.
    async fn hold(
        &mut self,
        reader: ControlReader,
        push: Push,
        context: SurveyContext,
        replies: Replies,
    ) -> Result<Finished, SessionError> {
        let (waits_in, mut waits) = mpsc::unbounded_channel();
        let leave = control::leave(reader, self.version, self.patience, waits_in);
        let waiting = async {
            while let Some(waiting) = waits.recv().await {
                control::tell_waiting(&*self.receipts.account.observer, &waiting);
            }
        };
        // the waits end when leave has come, or will not
        let (left, ()) = tokio::join!(leave, waiting);
        let (mut inbox, opened) = left?;
        let single_name = opened.single_name.map(|name| name.0);
        self.receipts.account.totals.scan_errors.store(push.sources_missing, Ordering::Relaxed);
        let survey = Survey::new(context, push.open.compare, single_name);
        let thread = std::thread::Builder::new().name("zmove-plan".into());
        let Push { scan, mirror, .. } = push;
        let started = thread.spawn(move || survey::run(survey, &scan, &replies, mirror.as_ref()));
        self.surveyor = Some(started.map_err(SessionError::Thread)?);
        let mut lanes_open = true;
        loop {
            tokio::select! {
                lane = self.lanes.recv(), if lanes_open => match lane {
                    Some(Ok(sink)) => end_unused(sink),
                    // nothing was to go over it
                    Some(Err(_)) => {}
                    None => lanes_open = false,
                },
                message = control::receive(&mut inbox) => {
                    if let Some(finished) = self.receipts.take(message?)? {
                        return Ok(finished);
                    }
                }
            }
        }
    }

    async fn end(self) {
        drop(self.receipts);
        drop(self.lanes);
        if let Some(surveyor) = self.surveyor {
            let joined = tokio::task::spawn_blocking(move || surveyor.join()).await;
            if let Ok(Err(panic)) = joined {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

fn summary(totals: &Totals, elapsed: Duration, finished: &Finished) -> Summary {
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let preview = Preview { added: count(&totals.added), changed: count(&totals.changed) };
    Summary {
        files: count(&totals.files),
        bytes: count(&totals.bytes),
        skipped: count(&totals.skipped),
        specials: count(&totals.specials),
        failed: count(&totals.failed),
        vanished: count(&totals.vanished),
        removed: count(&totals.removed),
        spared: count(&totals.spared),
        kept_by_change: count(&totals.kept_by_change),
        elapsed,
        receiver_cpu: Duration::from_micros(finished.cpu_us),
        preview: Some(preview),
        ..Summary::default()
    }
}
