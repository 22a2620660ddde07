//! The queue of a job whose movers run on several hosts: streams of NATS JetStream.
//!
//! ```text
//!  stream zmove-JOB-EPOCH, a work queue            stream zmove-ended, of all jobs
//!    zmove.JOB.EPOCH.data ──► consumer data-XXXX     zmove.JOB.ended: up to which epoch
//!    zmove.JOB.EPOCH.walk ──► consumer walk-XXXX                      the job is over
//! ```
//!
//! What the broker knows may vanish at any moment, so nothing is kept there for the job's sake: one copy, in files
//! that a server does not flush before it answers. The reasons for the rest:
//!
//! - **Bounds.** A stream takes so many items and bytes and then refuses, and `put` hands the refused ones back. Who
//!   waited for room would wait for those who wait.
//! - **Nobody waits at the broker** with a request: one cannot be taken back, and an item that is sent to one that
//!   nobody wants any more waits for the end of its lease. A taker asks for data, then for walks, and then waits until
//!   somebody tells on `zmove.JOB.EPOCH.news` that there is something, or asks again after a second. One of a process
//!   asks at a time.
//! - **One take in eight asks for walks first**, so that data does not run out on all nodes at once.
//! - **Silence.** A request that is not answered at once is followed by the question which consumers there are. Where
//!   that is not answered either, twice, the connection is made anew.
//! - **Leases** are the consumers' (`ack_wait`), without an end of deliveries: how many there were is told with the
//!   item, and from the second one on it counts as a repeat (`mover.rs`). Every delivery by a consumer that replaced
//!   another one counts as a repeat too.
//! - **Messages say nothing** (`seal.rs`): a body that does not open is counted and never acted upon. The head takes it
//!   out of the queue, a mover gives it back: the wrong key may be its own.
//!
//! **The end.** That a stream is not there says nothing: a broker that has lost its files comes back without one. So
//! an end is a record of its own, sealed with the job's key, which the head writes, and knows to be stored, before it
//! removes the stream. A taker that finds no stream looks for the record: with it, the job is over; without it the
//! taker waits for the head, which makes the stream again as soon as it looks. A record is for epochs up to one, and
//! never goes back (by compare and set): a head first ends the epochs before its own, so movers of those stop even if
//! they wake up late, and none of them takes an item of a later epoch, since its stream has another name. Where
//! the broker loses the record too, movers get no false end but an error, after [`Settings::empty_max`].
//!
//! **What a killed server forgets.** Acknowledgements reach its files late: what was done comes again.
//!
//! Only features of nats-server 2.9 are used.

mod access;
mod broker;
mod connection;
mod local;
mod notices;
mod pull;
mod seal;
mod take;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::AckKind;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use zmove_types::SharedJobId;

use crate::error::WorkError;
use crate::work::WorkItem;
use crate::work_queue::{Done, LEASE, Taken, Waiting, WorkQueue};
use broker::{Broker, Counted, Outgoing};
use connection::{BrokerError, Connection};
use take::Taker;

pub use access::Access;
pub use connection::BrokerState;
pub use local::{ARGUMENTS, LocalBroker, LocalServer, program};
pub use notices::{
    GrantNotice, InsteadNotice, JobNotice, NODES_MAX, NodeFailure, NodeNotice, NodePart, NodeState,
    Notice, Notices, Numbered, Reader, SourceMark, SourceNotice, TELL_EVERY,
};
pub use seal::JobKey;

/// A queue at a broker.
#[derive(Debug)]
pub struct JetStream {
    broker: Arc<Broker>,
    settings: Settings,
    taker: Mutex<Taker>,
    dropped: UnboundedSender<Dropped>,
    /// Each lease has a receiver of this until the broker knows what becomes of it, so that its end can be waited for.
    leases: watch::Sender<()>,
    unreadable: AtomicU64,
    /// Whether this process has ended the job: then it needs no record of that, which the broker may lose.
    closed: watch::Sender<bool>,
}

/// A queue at the broker that is of another job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherQueue {
    /// The job.
    pub job: SharedJobId,
    /// The name of its stream.
    stream: String,
}

/// Which queue, and how it is kept.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The job.
    pub job: SharedJobId,
    /// The epoch of the job, from 1.
    pub epoch: u64,
    /// The key that all nodes of the job have.
    pub key: JobKey,
    /// What this process does.
    pub role: Role,
    /// How long an item is leased, [`LEASE`] if not told otherwise. Shorter, and an item that takes long is handed out
    /// twice; longer, and that of a dead mover waits longer. The head's counts.
    pub lease: Duration,
    /// The most items that the broker holds, 65,536 if not told otherwise. The head's counts.
    pub items_max: u32,
    /// The most bytes that the broker holds in files, 1 GiB if not told otherwise. The head's counts.
    pub bytes_max: u64,
    /// The most items of each line that are taken at once, 4096 if not told otherwise: more than all movers take, and
    /// what none could read and waits for its time. The head's counts.
    pub taken_max: u32,
    /// How long anything but `take` goes on to try when the broker does not answer, 60 s if not told otherwise. Longer,
    /// and a job outlives a longer outage; shorter, and whoever waits is told sooner.
    pub patience: Duration,
    /// How long `take` waits at a broker that knows nothing of the job, ten minutes if not told otherwise: as long as
    /// a head may take to look after its broker, or to be started again.
    pub empty_max: Duration,
    /// How long `take` waits for news of work before it asks the broker again, one second by default. Nobody reports
    /// an item whose lease has ended. Longer, and such an item waits longer; shorter, and the broker has
    /// more to answer.
    pub ask_again_after: Duration,
}

/// What a process does at a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The process makes the queue, makes it again where the broker has lost it, and ends it. One process of an epoch.
    Head,
    /// The process takes work and puts in more.
    Mover,
}

/// One delivery. The item comes again when it is not renewed, and at once when this is dropped before it is done.
#[derive(Debug)]
pub struct Lease {
    /// `None` once the broker is told what becomes of it.
    delivery: Option<Subject>,
    dropped: UnboundedSender<Dropped>,
    held: watch::Receiver<()>,
}

/// A lease that was dropped, of which the broker is to be told.
#[derive(Debug)]
struct Dropped {
    delivery: Subject,
    _held: watch::Receiver<()>,
}

impl Lease {
    /// The broker has been told something else than that this was dropped.
    fn settle(mut self) {
        self.delivery = None;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(delivery) = self.delivery.take() {
            // where nobody listens any more the lease ends by itself
            let _best_effort = self.dropped.send(Dropped {
                delivery,
                _held: self.held.clone(),
            });
        }
    }
}

/// Gives back what was dropped, so that others need not wait for the end of its lease.
async fn give_back_dropped(broker: Arc<Broker>, mut all: UnboundedReceiver<Dropped>) {
    while let Some(dropped) = all.recv().await {
        let _leased_for_a_while_then = broker
            .acknowledge(&dropped.delivery, AckKind::Nak(None))
            .await;
        broker.tell().await;
    }
}

impl Settings {
    /// What is usual, for a job's epoch.
    #[must_use]
    pub const fn new(role: Role, job: SharedJobId, epoch: u64, key: JobKey) -> Self {
        Self {
            job,
            epoch,
            key,
            role,
            lease: LEASE,
            items_max: 65_536,
            bytes_max: 1 << 30,
            taken_max: 4096,
            patience: Duration::from_secs(60),
            empty_max: Duration::from_secs(600),
            ask_again_after: Duration::from_secs(1),
        }
    }
}

impl JetStream {
    /// Connects to the broker. The head ends the epochs before its own and makes the queue; what the broker still has
    /// of its epoch stays.
    ///
    /// # Errors
    /// The broker cannot be reached, or does not let this node in; or this epoch is over.
    pub async fn open(access: &Access, settings: Settings) -> Result<Self, WorkError> {
        let queue = Self::connect(access, settings).await?;
        if queue.settings.role == Role::Head {
            let mut patience = queue.patience("make the queue of the job");
            while let Err(error) = queue.begin().await {
                patience.endure(error).await?;
            }
        }
        Ok(queue)
    }

    /// The queues at the broker that belong to other jobs of a cluster with this key than that of these settings.
    ///
    /// # Errors
    /// The broker cannot be reached, or does not let this node in.
    pub async fn other_queues(
        access: &Access,
        settings: Settings,
        cluster: &JobKey,
    ) -> Result<Vec<OtherQueue>, WorkError> {
        let queue = Self::connect(access, settings).await?;
        let mut patience = queue.patience("list the queues of other jobs");
        loop {
            match queue.broker.others(cluster).await {
                Ok(others) => return Ok(others),
                Err(error) => patience.endure(error).await?,
            }
        }
    }

    /// Removes these queues from the broker.
    ///
    /// # Errors
    /// The broker cannot be reached, or does not let this node do so.
    pub async fn remove_queues(
        access: &Access,
        settings: Settings,
        queues: &[OtherQueue],
    ) -> Result<(), WorkError> {
        let queue = Self::connect(access, settings).await?;
        let mut patience = queue.patience("remove the queue of another job");
        for OtherQueue { stream, .. } in queues {
            while let Err(error) = queue.broker.remove_stream(stream).await {
                patience.endure(error).await?;
            }
        }
        Ok(())
    }

    async fn connect(access: &Access, settings: Settings) -> Result<Self, WorkError> {
        let connection = Connection::open(access).await?;
        let broker = Arc::new(Broker::new(connection, &settings));
        let (unreadable, closed) = (AtomicU64::new(0), watch::Sender::new(false));
        let (dropped, to_be_told) = unbounded_channel();
        tokio::spawn(give_back_dropped(Arc::clone(&broker), to_be_told));
        let (taker, leases) = (Mutex::default(), watch::Sender::new(()));
        Ok(Self {
            broker,
            settings,
            taker,
            dropped,
            leases,
            unreadable,
            closed,
        })
    }

    async fn begin(&self) -> Result<(), BrokerError> {
        if let Some(before) = self.settings.epoch.checked_sub(1) {
            self.broker.end(before).await?;
        }
        self.check_is_on().await?;
        self.broker.remove_others().await?;
        self.broker.make().await
    }

    /// Returns when all leases have been dropped, and the broker knows of it: this process is about to end.
    pub async fn flush_dropped(&self) {
        self.leases.closed().await;
    }

    fn lease(&self, delivery: Option<Subject>) -> Lease {
        Lease {
            delivery,
            dropped: self.dropped.clone(),
            held: self.leases.subscribe(),
        }
    }

    /// Whether the broker is there, and has the job; a change is notified.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<BrokerState> {
        self.broker.connection.state()
    }

    /// The number of messages that have come here and that no node of this job has sealed, or not for this queue.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    async fn check_is_on(&self) -> Result<(), BrokerError> {
        let is_over =
            *self.closed.borrow() || self.broker.ended().await? >= Some(self.settings.epoch);
        if is_over {
            Err(BrokerError::Over)
        } else {
            Ok(())
        }
    }

    /// Makes what is missing at the broker, if this is the head and the epoch is not over.
    async fn restore(&self) -> Result<(), BrokerError> {
        self.check_is_on().await?;
        match self.settings.role {
            Role::Head => self.broker.make().await,
            Role::Mover => {
                self.broker.connection.tell(BrokerState::Empty);
                Err(BrokerError::Missing)
            }
        }
    }

    /// Returns how much work the queue holds.
    ///
    /// If only taken items are left after a restart of the server, the server may have lost them. The head then has all
    /// items delivered again.
    async fn count_waiting(&self) -> Result<Waiting, BrokerError> {
        let counted = self.broker.waiting().await?;
        let left = |counted: &Counted| Waiting {
            left: counted.waiting + counted.taken,
        };
        let may_be_lost = counted.waiting == 0 && counted.taken > 0;
        if may_be_lost && self.settings.role == Role::Head && self.broker.is_another_server().await
        {
            self.restore().await?;
            return Ok(left(&self.broker.waiting().await?));
        }
        Ok(left(&counted))
    }

    fn patience(&self, operation: &'static str) -> Patience<'_> {
        Patience {
            queue: self,
            operation,
            since: Instant::now(),
        }
    }

    async fn acknowledge(
        &self,
        operation: &'static str,
        lease: &Lease,
        what: AckKind,
    ) -> Result<(), WorkError> {
        let Some(delivery) = &lease.delivery else {
            return Ok(());
        };
        let mut patience = self.patience(operation);
        while let Err(error) = self.broker.acknowledge(delivery, what).await {
            patience.endure(error).await?;
        }
        Ok(())
    }
}

impl WorkQueue for JetStream {
    type Delivery = Lease;

    async fn take(&self) -> Result<Option<Taken<Lease>>, WorkError> {
        let mut closed = self.closed.subscribe();
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => Ok(None),
            taken = async { self.taker.lock().await.take(self).await } => taken,
        }
    }

    async fn put(&self, items: Vec<WorkItem>) -> Result<Vec<WorkItem>, WorkError> {
        let mut patience = self.patience("put work into the queue");
        let mut refused = Vec::new();
        let mut outgoing: VecDeque<Outgoing> = items
            .into_iter()
            .map(|item| self.broker.outgoing(item))
            .collect();
        while let Err(error) = self.broker.publish(&mut outgoing, &mut refused).await {
            patience.endure(error).await?;
        }
        Ok(refused)
    }

    async fn renew(&self, taken: &Taken<Lease>) -> Result<(), WorkError> {
        self.acknowledge(
            "renew the lease of work",
            &taken.delivery,
            AckKind::Progress,
        )
        .await
    }

    async fn done(&self, taken: Taken<Lease>) -> Result<Done, WorkError> {
        self.acknowledge("take work out of the queue", &taken.delivery, AckKind::Ack)
            .await?;
        taken.delivery.settle();
        Ok(if taken.deliveries > 1 {
            Done::Unknown
        } else {
            Done::First
        })
    }

    async fn waiting(&self) -> Result<Waiting, WorkError> {
        let mut patience = self.patience("ask how much work there is");
        loop {
            match self.count_waiting().await {
                Ok(waiting) => return Ok(waiting),
                Err(error) => patience.endure(error).await?,
            }
        }
    }

    async fn losses(&self) -> Result<u64, WorkError> {
        Ok(0)
    }

    async fn close(&self) -> Result<(), WorkError> {
        self.closed.send_replace(true);
        let mut patience = self.patience("end the queue of the job");
        loop {
            let closed = async {
                let recorded = self.broker.end(self.settings.epoch).await;
                self.broker.remove().await?;
                if recorded.is_err() {
                    // where queues had taken all the room there was none for the record before one had gone
                    self.broker.end(self.settings.epoch).await?;
                }
                self.broker.tell().await;
                Ok(())
            };
            match closed.await {
                Ok(()) => return Ok(()),
                Err(error) => patience.endure(error).await?,
            }
        }
    }
}

/// How long one operation goes on to try.
struct Patience<'q> {
    queue: &'q JetStream,
    operation: &'static str,
    since: Instant,
}

impl Patience<'_> {
    /// Returns when it is worth while to try again; what was missing has been made if this is the head.
    async fn endure(&mut self, error: BrokerError) -> Result<(), WorkError> {
        let error = match error {
            BrokerError::Missing => match self.queue.restore().await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            },
            error => error,
        };
        let connection = &self.queue.broker.connection;
        let source = match error {
            BrokerError::Over => return Err(WorkError::Over),
            BrokerError::Refused(error) => return Err(self.failed(error.into())),
            BrokerError::Missing => NOT_THERE.into(),
            // what a server does not allow it does not answer, but tells beside
            BrokerError::Unanswered(error) => connection.refusal().map_or(error, Into::into),
        };
        let (away, patience) = (self.since.elapsed(), self.queue.settings.patience);
        if away >= patience {
            let (operation, broker) = (self.operation, connection.broker.clone());
            return Err(WorkError::Away {
                operation,
                broker,
                away,
                source,
            });
        }
        connection.pause(patience - away).await;
        Ok(())
    }

    fn failed(&self, source: Box<dyn std::error::Error + Send + Sync>) -> WorkError {
        WorkError::Queue {
            operation: self.operation,
            source,
        }
    }
}

const NOT_THERE: &str = "the broker knows nothing of the job";

/// How often walks are asked for before data.
const WALKS_FIRST_EVERY: u64 = 8;
