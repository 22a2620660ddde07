//! A push that only tells what it would do: asks the receiver about everything that the scan finds.
//!
//! **Invariant:** no data leaves, and no message that would change anything at the target. A preview whose connections are lost
//! ends: another session would tell all of it again.

mod survey;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use zmove_transport::{ControlReader, LaneError, LaneSink};
use zmove_types::Observer;
use zmove_wire::{Finished, Greeting, Open, Role};

use self::survey::Survey;
use crate::account::summary::{Preview, Summary};
use crate::control::replies::{self, Replies};
use crate::control::{self, Account, Link};
use crate::error::SessionError;
use crate::push::run::Run;
use crate::push::{GOODBYE_TIMEOUT, Push};
use crate::send::lane_set::end_unused;
use crate::shared::Shared;

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
    let shared = Arc::new(Shared::new(push.config.clone(), version, observer, outgoing_in, push.started));
    let (reply_sender, replies) = replies::channel();
    let account = Account::new(Arc::clone(&shared), reply_sender);
    let writer = tokio::spawn(control::write_all(writer, outgoing));
    let scan = push.scan.clone();
    let mut conversation = Conversation { lanes, account, patience: run.patience, surveyor: None };
    let ended = tokio::select! {
        ended = conversation.hold(reader, push, replies) => ended,
        () = stop => Err(SessionError::Interrupted),
    };
    shared.stop();
    if ended.is_err() {
        writer.abort();
    }
    let elapsed = shared.started.elapsed();
    conversation.end().await;
    let finished = ended?;
    let summary = Summary { left_out: scan.left_out(), ..summary(&shared, elapsed, &finished) };
    drop(shared);
    let _goodbye = tokio::time::timeout(GOODBYE_TIMEOUT, writer).await;
    Ok(summary)
}

struct Conversation {
    lanes: Lanes,
    account: Account,
    patience: Duration,
    surveyor: Option<std::thread::JoinHandle<()>>,
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
        let version = self.account.shared.version;
        let leave = control::leave(reader, version, self.patience, waits_in);
        let waiting = async {
            while let Some(waiting) = waits.recv().await {
                control::tell_waiting(&*self.account.shared.observer, &waiting);
            }
        };
        // the waits end when leave has come, or will not
        let (left, ()) = tokio::join!(leave, waiting);
        let (mut inbox, opened) = left?;
        let single_name = opened.single_name.map(|name| name.0);
        let shared = Arc::clone(&self.account.shared);
        shared.counters.scan_errors.store(push.sources_missing, Ordering::Relaxed);
        let survey = Survey::new(shared, push.open.compare, single_name);
        let thread = std::thread::Builder::new().name("zmove-plan".into());
        let (scan, mirror) = (push.scan, push.mirror);
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
                    if let Some(finished) = self.account.take(message?)? {
                        return Ok(finished);
                    }
                }
            }
        }
    }

    async fn end(self) {
        drop((self.account, self.lanes));
        if let Some(surveyor) = self.surveyor {
            let joined = tokio::task::spawn_blocking(move || surveyor.join()).await;
            if let Ok(Err(panic)) = joined {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

fn summary(shared: &Shared, elapsed: Duration, finished: &Finished) -> Summary {
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &shared.counters;
    let preview = Preview { added: count(&counters.added), changed: count(&counters.changed) };
    Summary {
        files: count(&counters.files),
        bytes: count(&counters.bytes),
        skipped: count(&counters.skipped),
        specials: count(&counters.specials),
        failed: count(&counters.failed),
        vanished: count(&counters.vanished),
        removed: count(&counters.removed),
        spared: count(&counters.spared),
        kept_by_change: count(&counters.kept_by_change),
        elapsed,
        receiver_cpu: Duration::from_micros(finished.cpu_us),
        preview: Some(preview),
        ..Summary::default()
    }
}
