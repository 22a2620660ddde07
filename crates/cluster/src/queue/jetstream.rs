//! The queue of a job whose movers run on several hosts, implemented as a stream of NATS JetStream.
//!
//! ```text
//!  stream zmove, a work queue of all jobs    buckets
//!    zmove.JOB ──► consumer JOB-XXXX           zmove-ended: a record for each job that is over
//!                                              zmove-notices: see `notices.rs`
//! ```
//!
//! - **Replicas.** A broker with three servers keeps three copies. A single server keeps one copy, in a file that it
//!   does not flush before it answers.
//! - **Losses.** The queue may lose items. It reports how often that may have happened ([`WorkQueue::losses`]). A
//!   single server keeps consumers in memory, so a missing consumer shows that it was restarted. The items that it had
//!   written to disk by then are unknown.
//! - **Silence.** A server with truncated files may count items that no consumer delivers, not even a new one. If the
//!   head of a job detects this, it deletes the stream. Every job with items in the stream then detects a loss. A
//!   server without these files refuses all items. A head whose first item is refused for a while deletes the stream,
//!   if it is empty.
//! - **Limits.** A subject accepts a limited number of items and refuses further ones. `put` returns the refused items.
//!   If it waited for space instead, all movers might wait forever.
//! - **Leases** are managed by the consumers (`ack_wait`), with an unlimited number of deliveries.
//! - **Messages reveal nothing** (`seal.rs`). A body that cannot be decrypted is never processed.
//!
//! **The end.** A missing stream or consumer does not prove the end of a job, because a broker that has lost its files
//! comes back without them. The head therefore records the end of the job, sealed with the job's key, before it removes
//! the consumer. A taker that finds no consumer looks for this record. If it exists, the job is over. Otherwise, the
//! taker waits for the head to create the consumer again.
//!
//! Only features of nats-server 2.9 are used.

mod access;
mod answers;
mod broker;
mod connection;
mod local;
mod notices;
mod seal;
mod take;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::jetstream::message::Acker;
use async_nats::jetstream::stream::Stream;
use futures_util::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};
use zmove_types::{Lock, SharedJobId};

use crate::error::WorkError;
use crate::job::NodeRole;
use crate::queue::{Announced, LEASE, Taken, WorkItem, WorkQueue};
use answers::BrokerError;
use broker::{Losses, Put, Refusals, STREAM, Silence};
use connection::Connection;
use seal::Seal;
use take::Taker;

pub use access::Access;
pub use connection::BrokerState;
pub use local::{ARGUMENTS, LocalBroker, LocalServer, program};
pub use notices::{
    GrantNotice, JobNotice, NODES_MAX, NOTICE_INTERVAL, NodeFailure, NodeNotice, NodePart,
    NodeState, Notice, NoticeBoard, NumberedNode, Reader, SourceMark, SourceNotice,
};
pub use seal::JobKey;

/// A queue at a broker.
#[derive(Debug)]
pub struct JetStream {
    connection: Connection,
    seal: Seal,
    settings: Settings,
    stream: Stream<()>,
    /// Whether this process has created the consumer before. Locked while the process creates it.
    has_made: Mutex<bool>,
    /// The highest sequence number that the broker is known to have acknowledged.
    stored: AtomicU64,
    losses: Lock<Losses>,
    silence: Lock<Silence>,
    refusals: Lock<Refusals>,
    began: Instant,
    taker: Mutex<Taker>,
    /// Each lease holds a receiver of this channel until the broker has confirmed that the delivery has ended. The
    /// queue can thus wait for all leases.
    leases: watch::Sender<()>,
    /// Whether this process has closed the job. The process then does not need the broker's record of the end, which
    /// the broker may lose.
    closed: watch::Sender<bool>,
}

/// The job of a queue, and the queue's limits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The job.
    pub job: SharedJobId,
    /// Key that all nodes of the job share.
    pub key: JobKey,
    /// Role of this node.
    pub role: NodeRole,
    /// How long an item is leased. Default: [`LEASE`]. If the lease is shorter, slow items are delivered twice. If it
    /// is longer, the items of a dead mover are delayed longer. All nodes use the value of the head.
    pub lease: Duration,
    /// Maximum number of items in the queue. Default: 65,536. A broker keeps the value of the first head that used it.
    pub items_max: i64,
    /// How long each call except `take` retries if the broker does not answer. Default: 60 s. With a longer time, a job
    /// survives a longer outage of the broker. With a shorter time, callers get the error sooner.
    pub patience: Duration,
    /// How long waiting items may remain untaken before the head looks for the reason. Default: 10 s. With a longer
    /// time, a job waits longer for items that a damaged broker does not deliver. With a shorter time, idle nodes are
    /// reported more often. All nodes use the value of the head.
    pub silence: Duration,
}

/// A delivery of an item. The broker delivers the item again if the lease is not renewed in time. It does so
/// immediately if this lease is dropped before the item is done.
pub struct Lease {
    /// `None` once the broker has confirmed the end of the delivery.
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
                // If the broker does not receive this message, the lease expires.
                let _best_effort = delivery.double_ack_with(AckKind::Nak(None)).await;
                drop(held);
            });
        }
    }
}

impl Settings {
    /// Returns the default settings for a job.
    #[must_use]
    pub const fn new(role: NodeRole, job: SharedJobId, key: JobKey) -> Self {
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
    /// Connects to the broker. The head creates the queue. Items of the job that the broker still has are kept.
    ///
    /// # Errors
    /// The broker cannot be reached or refuses this node.
    pub async fn open(access: &Access, settings: Settings) -> Result<Self, WorkError> {
        let connection = Connection::open(access).await?;
        let stream = connection.context.get_stream_no_info(STREAM).await;
        let queue = Self {
            seal: Seal::new(&settings.key, settings.job),
            settings,
            stream: stream.expect("the name fits, and nobody is asked"),
            connection,
            has_made: Mutex::default(),
            stored: AtomicU64::default(),
            losses: Lock::default(),
            silence: Lock::default(),
            refusals: Lock::default(),
            began: Instant::now(),
            taker: Mutex::default(),
            leases: watch::Sender::new(()),
            closed: watch::Sender::new(false),
        };
        if queue.settings.role == NodeRole::Head {
            let make = || queue.make();
            queue.ask("create the queue of the job", make).await?;
        }
        Ok(queue)
    }

    /// Returns the highest sequence number that the broker has acknowledged to this process.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// Records a sequence number that the broker has acknowledged to another node. If the last sequence number of the
    /// stream is lower than that, the broker has lost items.
    pub fn note_stored(&self, sequence: u64) {
        self.stored.fetch_max(sequence, Ordering::Relaxed);
    }

    /// Waits until all leases have been dropped and the broker has confirmed it. Called before this process exits.
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

    /// Returns a receiver for the state of the broker, which is notified of changes.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<BrokerState> {
        self.connection.state()
    }

    /// Recreates missing objects at the broker, if this is the head and the job is not over.
    async fn restore(&self) -> Result<(), BrokerError> {
        match self.settings.role {
            _ if *self.closed.borrow() => Err(BrokerError::Over),
            NodeRole::Head => self.make().await,
            NodeRole::Follower if self.has_ended().await? => Err(BrokerError::Over),
            NodeRole::Follower => Err(BrokerError::Missing),
        }
    }

    /// Repeats a request until the broker answers or the patience is exhausted.
    async fn ask<T, F>(&self, operation: &'static str, ask: impl Fn() -> F) -> Result<T, WorkError>
    where
        F: Future<Output = Result<T, BrokerError>>,
    {
        let patience = self.settings.patience;
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
        let connection = &self.connection;
        let since = Instant::now();
        loop {
            let asked = async {
                connection.check()?;
                ask().await
            };
            let error = match asked.await {
                Ok(answer) => return Ok(answer),
                Err(BrokerError::Missing) => match self.restore().await {
                    Ok(()) if since.elapsed() < patience => {
                        sleep(RESTORED_PAUSE).await;
                        continue;
                    }
                    Ok(()) => BrokerError::Missing,
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
                BrokerError::Unusable(why) => {
                    let source = why.into();
                    return Err(WorkError::Queue { operation, source });
                }
                BrokerError::Missing => "the broker does not have the job".into(),
                // A server reports permission errors separately from its answers.
                BrokerError::Unanswered(error) => connection.refusal().map_or(error, Into::into),
            };
            let away = since.elapsed();
            if away >= patience {
                let broker = &connection.status.broker;
                let seconds = away.as_secs();
                let source =
                    format!("the broker {broker} has been unreachable for {seconds} s: {source}");
                let source = source.into();
                return Err(WorkError::Queue { operation, source });
            }
            connection.pause(patience - away).await;
        }
    }

    async fn put_one(&self, item: &WorkItem) -> Result<Put, WorkError> {
        let tries = AtomicU32::new(0);
        let put = || {
            tries.fetch_add(1, Ordering::Relaxed);
            self.put_item(item)
        };
        let answer = self.ask("add work to the queue", put).await?;
        // An earlier attempt may have stored the item although its answer was lost.
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
            let acknowledged = delivery.double_ack_with(answer).await;
            // If the consumer is missing, there are no leases to wait for. This is not an error.
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
        if announced.put > 0 {
            self.refusals.lock().clear();
        } else if !announced.refused.is_empty() && self.settings.role == NodeRole::Head {
            let repair = || self.delete_if_damaged();
            self.ask("query the amount of work in the queue", repair)
                .await?;
        }
        Ok(announced)
    }

    async fn renew(&self, taken: &Taken<Lease>) -> Result<(), WorkError> {
        let lease = &taken.delivery;
        self.acknowledge("renew the lease of work", lease, AckKind::Progress)
            .await
    }

    async fn done(&self, mut taken: Taken<Lease>) -> Result<bool, WorkError> {
        let lease = &mut taken.delivery;
        self.acknowledge("remove work from the queue", lease, AckKind::Ack)
            .await?;
        lease.delivery = None;
        Ok(true)
    }

    async fn waiting(&self) -> Result<u64, WorkError> {
        let count = || self.left();
        self.ask("query the amount of work in the queue", count)
            .await
    }

    async fn losses(&self) -> Result<u64, WorkError> {
        let count = || self.count_losses();
        self.ask("query the losses of the queue", count).await
    }

    async fn close(&self) -> Result<(), WorkError> {
        self.closed.send_replace(true);
        let end = || self.end();
        self.ask("close the queue of the job", end).await
    }
}

/// Limits the rate of requests to a consumer that exists but refuses every request.
const RESTORED_PAUSE: Duration = Duration::from_millis(50);
