//! The queue of a job whose movers run on several hosts: a stream of NATS JetStream.
//!
//! ```text
//!  stream zmove, a work queue of all jobs       buckets
//!    zmove.JOB.data ──► consumer JOB-data-XXXX    zmove-ended: a record for each job that is over
//!    zmove.JOB.walk ──► consumer JOB-walk-XXXX    zmove-notices: see `notices.rs`
//! ```
//!
//! - **Replicas.** A broker of three servers keeps three copies. A single server keeps one, in a file that it does not
//!   flush before it answers.
//! - **Losses.** The queue may lose items, and reports how often it may have ([`WorkQueue::losses`]). A single server
//!   keeps consumers in memory, so consumers that are missing show that it was started again. Nobody knows which items
//!   it had written to its disk by then.
//! - **Silence.** A server whose files were cut short may count items that no consumer delivers, a new one neither. The
//!   head of the job that finds this deletes the stream. Each job that has items there notices a loss.
//! - **Limits.** A subject takes a number of items and then refuses. `put` returns the items that were refused: if it
//!   waited for room, all might wait.
//! - **Leases** belong to the consumers (`ack_wait`), without a limit of deliveries. From the second delivery on an
//!   item counts as a repeat (`mover.rs`). A consumer that replaces another one counts anew, after a loss.
//! - **Messages say nothing** (`seal.rs`). Nothing acts upon a body that does not open.
//!
//! **The end.** A missing stream or consumer says nothing, because a broker that has lost its files comes back without
//! them. So the head records the end of the job, sealed with the job's key, before it removes the consumers. A taker
//! that finds no consumer looks for the record: with it, the job is over; without it, the taker waits for the head,
//! which makes the consumers again.
//!
//! Only features of nats-server 2.9 are used.

mod access;
mod answers;
mod broker;
mod connection;
mod local;
mod notices;
mod requests;
mod seal;
mod take;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::jetstream::message::Acker;
use futures_util::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};
use zmove_types::SharedJobId;

use crate::error::WorkError;
use crate::queue::{Announced, Done, LEASE, Taken, WorkItem, WorkQueue};
use answers::BrokerError;
use broker::{Broker, Put};
use connection::Connection;
use take::Taker;

pub use access::Access;
pub use connection::BrokerState;
pub use local::{ARGUMENTS, LocalBroker, LocalServer, program};
pub use notices::{
    GrantNotice, JobNotice, NODES_MAX, NodeFailure, NodeNotice, NodePart, NodeState, Notice,
    NoticeBoard, Numbered, Reader, SourceMark, SourceNotice, TELL_EVERY,
};
pub use seal::JobKey;

/// A queue at a broker.
#[derive(Debug)]
pub struct JetStream {
    broker: Broker,
    taker: Mutex<Taker>,
    /// Each lease has a receiver of this until the broker knows its end, which can be awaited so.
    leases: watch::Sender<()>,
    /// Whether this process has ended the job. Then it needs no record of that, which the broker may lose.
    closed: watch::Sender<bool>,
}

/// The job of a queue, and its limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The job.
    pub job: SharedJobId,
    /// The key that all nodes of the job have.
    pub key: JobKey,
    /// What this process does.
    pub role: QueueRole,
    /// How long an item is leased. Default: [`LEASE`]. Shorter, and an item that takes long is delivered twice; longer,
    /// and an item of a dead mover waits longer. The head's counts.
    pub lease: Duration,
    /// The maximum number of items of each line. Default: 65,536. The first head's at a broker counts.
    pub items_max: i64,
    /// How long each call except `take` tries again if the broker does not answer. Default: 60 s. Longer, and a job
    /// outlives a longer outage; shorter, and callers get the error sooner.
    pub patience: Duration,
    /// How long items may be left of which none is taken, before the head looks for the reason. Default: 10 s. Longer,
    /// and a job waits longer for items that a damaged broker does not deliver; shorter, and idle nodes are told of
    /// more often. The head's counts.
    pub silence: Duration,
}

/// What a process does at a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRole {
    /// The process makes the queue, makes it again if the broker has lost it, and ends it. One process of a job.
    Head,
    /// The process takes work and puts in more.
    Mover,
}

/// One delivery. The item comes again when it is not renewed, and at once when this is dropped before it is done.
pub struct Lease {
    /// `None` once the broker knows the end of the delivery.
    delivery: Option<Acker>,
    runtime: Handle,
    held: watch::Receiver<()>,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").finish_non_exhaustive()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(delivery) = self.delivery.take() {
            let held = self.held.clone();
            self.runtime.spawn(async move {
                // if the broker does not receive it, the lease ends by itself
                let _best_effort = delivery.double_ack_with(AckKind::Nak(None)).await;
                drop(held);
            });
        }
    }
}

impl Settings {
    /// The default limits, for a job.
    #[must_use]
    pub const fn new(role: QueueRole, job: SharedJobId, key: JobKey) -> Self {
        Self {
            job,
            key,
            role,
            lease: LEASE,
            items_max: 65_536,
            patience: Duration::from_secs(60),
            silence: Duration::from_secs(10),
        }
    }
}

impl JetStream {
    /// Connects to the broker. The head makes the queue; items of the job that the broker still has stay.
    ///
    /// # Errors
    /// The broker cannot be reached, or does not let this node in.
    pub async fn open(access: &Access, settings: Settings) -> Result<Self, WorkError> {
        let queue = Self {
            broker: Broker::new(Connection::open(access).await?, settings).await,
            taker: Mutex::default(),
            leases: watch::Sender::new(()),
            closed: watch::Sender::new(false),
        };
        if queue.broker.settings.role == QueueRole::Head {
            let make = || queue.broker.make();
            queue.ask("make the queue of the job", make).await?;
        }
        Ok(queue)
    }

    /// The highest sequence that the broker has acknowledged to this process.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.broker.stored.load(Ordering::Relaxed)
    }

    /// The broker has acknowledged this sequence to another node. If its last one is lower, it has lost items.
    pub fn note_stored(&self, sequence: u64) {
        self.broker.stored.fetch_max(sequence, Ordering::Relaxed);
    }

    /// Returns when all leases have been dropped, and the broker knows of it: this process is about to end.
    pub async fn flush_dropped(&self) {
        self.leases.closed().await;
    }

    fn lease(&self, delivery: Option<Acker>) -> Lease {
        Lease {
            delivery,
            runtime: Handle::current(),
            held: self.leases.subscribe(),
        }
    }

    /// Whether the broker is there, and has the job; a change is notified.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<BrokerState> {
        self.broker.connection.state()
    }

    /// Makes what is missing at the broker, if this is the head and the job is not over.
    async fn restore(&self) -> Result<(), BrokerError> {
        match self.broker.settings.role {
            _ if *self.closed.borrow() => Err(BrokerError::Over),
            QueueRole::Head => self.broker.make().await,
            QueueRole::Mover if self.broker.has_ended().await? => Err(BrokerError::Over),
            QueueRole::Mover => Err(BrokerError::Missing),
        }
    }

    /// Asks the broker until it answers or patience ends.
    async fn ask<T, F>(&self, operation: &'static str, ask: impl Fn() -> F) -> Result<T, WorkError>
    where
        F: Future<Output = Result<T, BrokerError>>,
    {
        let patience = self.broker.settings.patience;
        self.ask_within(patience, operation, ask).await
    }

    async fn ask_within<T, F>(
        &self,
        patience: Duration,
        operation: &'static str,
        ask: impl Fn() -> F,
    ) -> Result<T, WorkError>
    where
        F: Future<Output = Result<T, BrokerError>>,
    {
        let connection = &self.broker.connection;
        let since = Instant::now();
        loop {
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(BrokerError::Missing) => match self.restore().await {
                    Ok(()) => {
                        sleep(RESTORED_PAUSE).await;
                        continue;
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let source = match error {
                BrokerError::Over => return Err(WorkError::Over),
                BrokerError::Refused(error) => {
                    let source = error.into();
                    return Err(WorkError::Queue { operation, source });
                }
                BrokerError::Missing => "the broker knows nothing of the job".into(),
                // a server reports apart from its answers that something is not allowed
                BrokerError::Unanswered(error) => connection.refusal().map_or(error, Into::into),
            };
            let away = since.elapsed();
            if away >= patience {
                return Err(WorkError::Away {
                    operation,
                    broker: connection.broker.clone(),
                    away,
                    source,
                });
            }
            connection.pause(patience - away).await;
        }
    }

    async fn put_one(&self, item: &WorkItem) -> Result<Put, WorkError> {
        let tries = AtomicU32::new(0);
        let put = || {
            tries.fetch_add(1, Ordering::Relaxed);
            self.broker.put(item)
        };
        let answer = self.ask("put work into the queue", put).await?;
        // The answer to an earlier try may have been lost.
        let is_own = answer == Put::Known && tries.into_inner() > 1;
        Ok(if is_own { Put::Stored } else { answer })
    }

    async fn acknowledge(
        &self,
        operation: &'static str,
        lease: &Lease,
        answer: AckKind,
    ) -> Result<(), WorkError> {
        let Some(delivery) = &lease.delivery else {
            return Ok(());
        };
        self.ask(operation, || async {
            self.broker.connection.check()?;
            let acknowledged = delivery.double_ack_with(answer).await;
            // a consumer that is missing holds no lease, and is no error
            acknowledged.map_err(BrokerError::Unanswered)
        })
        .await
    }
}

impl WorkQueue for JetStream {
    type Delivery = Lease;

    async fn take(&self) -> Result<Option<Taken<Lease>>, WorkError> {
        let mut closed = self.closed.subscribe();
        let take = || async { self.taker.lock().await.take(self).await };
        let taken = tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return Ok(None),
            taken = self.ask_within(Duration::MAX, "take work from the queue", take) => taken,
        };
        match taken {
            Err(WorkError::Over) => Ok(None),
            taken => taken.map(Some),
        }
    }

    async fn put(&self, items: Vec<WorkItem>) -> Result<Announced, WorkError> {
        let puts = items.iter().map(|item| self.put_one(item));
        let answers = try_join_all(puts).await?;
        let mut announced = Announced::default();
        for (item, answer) in items.into_iter().zip(answers) {
            match answer {
                Put::Stored => announced.put += 1,
                Put::Known => {}
                Put::NoRoom => announced.refused.push(item),
            }
        }
        Ok(announced)
    }

    async fn renew(&self, taken: &Taken<Lease>) -> Result<(), WorkError> {
        let lease = &taken.delivery;
        self.acknowledge("renew the lease of work", lease, AckKind::Progress)
            .await
    }

    async fn done(&self, mut taken: Taken<Lease>) -> Result<Done, WorkError> {
        let lease = &mut taken.delivery;
        self.acknowledge("take work out of the queue", lease, AckKind::Ack)
            .await?;
        lease.delivery = None;
        Ok(Done::First)
    }

    async fn waiting(&self) -> Result<u64, WorkError> {
        let count = || self.broker.left();
        self.ask("ask how much work there is", count).await
    }

    async fn losses(&self) -> Result<u64, WorkError> {
        let count = || self.broker.losses();
        self.ask("ask for losses of the queue", count).await
    }

    async fn close(&self) -> Result<(), WorkError> {
        self.closed.send_replace(true);
        let end = || self.broker.end();
        self.ask("end the queue of the job", end).await
    }
}

/// Keeps a consumer that exists and always refuses from being asked without a rest.
const RESTORED_PAUSE: Duration = Duration::from_millis(50);
