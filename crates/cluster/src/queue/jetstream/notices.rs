//! Notices that the nodes of a cluster exchange beside work: that a job is under way, and that a node is there.
//!
//! Notices are entries of a bucket that keeps each for a few seconds. Nodes and heads put theirs each second, so a
//! broker may come back empty, and a node that comes late reads all that count. A watch does not report the removal of
//! an entry: readers judge by their own clock for how long somebody has been silent.
//!
//! **Invariant:** a notice opens only with the key of the cluster. A notice that a broker repeats names a job that has
//! ended, which the receivers know.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::jetstream::kv::{self, Watch};
use async_nats::jetstream::stream::StorageType;
use aws_lc_rs::aead::RandomizedNonceKey;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};
use zmove_sender::Instead;
use zmove_types::{Hex, SharedJobId};
use zmove_wire::{FileTotal, GreetingError, PROTOCOL_VERSION, TransferProgress, check_version};

use super::access::Access;
use super::answers::BrokerError;
use super::connection::{BrokerState, Connection};
use super::seal::{JobKey, aes_of, open, seal};
use crate::error::{Hindrance, WorkError};
use crate::job::Tally;

/// The notices of a cluster.
pub struct NoticeBoard {
    connection: Connection,
    key: RandomizedNonceKey,
    /// The beginning of the keys of this process.
    prefix: String,
    events: AtomicU64,
    hearing: Mutex<Hearing>,
}

/// What is read of the bucket.
struct Hearing {
    state: watch::Receiver<BrokerState>,
    /// `None` after the connection was lost: the broker may have lost the bucket.
    watch: Option<Watch>,
}

impl fmt::Debug for NoticeBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").finish_non_exhaustive()
    }
}

/// One notice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A job is under way.
    Job(JobNotice),
    /// A node is there.
    Node(NodeNotice),
    /// Something of a job has failed at a node.
    Failed(NodeFailure),
    /// A node takes no part in a job, for this reason.
    Absent(NodeFailure),
    /// The head of a job lets a node of it in at the receivers.
    Grant(GrantNotice),
    /// Something at a node that its job outlives, as a receiver that is lost.
    Warned(NodeFailure),
}

/// What a node cannot do, or may not, or does otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFailure {
    /// The job.
    pub job: SharedJobId,
    /// The name of the node.
    pub node: String,
    /// What it is, and why.
    pub message: String,
}

/// A grant for one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantNotice {
    /// The job.
    pub job: SharedJobId,
    /// The key of the node.
    pub key: [u8; 32],
    /// The [grant](zmove_wire::SignedJobGrant), as it travels.
    pub grant: Vec<u8>,
}

/// A job that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobNotice {
    /// The job.
    pub job: SharedJobId,
    /// What was typed at the head.
    pub words: Vec<Vec<u8>>,
    /// The sources, by whose numbers work says what it is about. Nodes take these instead of those that were typed.
    pub sources: Vec<SourceNotice>,
    /// What is mounted below the sources.
    pub mounts: Vec<SourceNotice>,
    /// The nodes that take part, each with its number, by which it chooses its first receiver. The head has 0.
    pub nodes: BTreeMap<String, u32>,
    /// The newest ping of each other node, by its number: that the head has heard it keeps the node's lease.
    pub answered: BTreeMap<u32, u64>,
    /// Whether the job has begun at the target: before that no node but the head's may open it.
    pub begun: bool,
    /// What the head may read.
    pub reader: Reader,
    /// What entries get where their own is not kept: the same, whoever sends them.
    pub instead: Instead,
    /// The queue, the nodes and the receivers as the head sees them: `nodes` of `docs/schema/job.json`.
    pub shown: String,
}

/// The reader of the sources at a node, as far as that decides what may be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reader {
    /// The user.
    pub user: u32,
    /// The user's groups.
    pub groups: BTreeSet<u32>,
    /// Whether modes keep nothing from this reader, as from root.
    pub reads_all: bool,
}

impl JobNotice {
    /// The name of the node that leads.
    #[must_use]
    pub fn head(&self) -> Option<&str> {
        self.nodes
            .iter()
            .find(|(_, number)| **number == 0)
            .map(|(name, _)| name.as_str())
    }

    /// Gives a node a number.
    pub fn number(&mut self, node: &str) -> Numbered {
        if self.nodes.contains_key(node) {
            return Numbered::Before;
        }
        let number = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.nodes.insert(node.to_owned(), number);
        if self.nodes.len() > NODES_MAX || !self.fits() {
            self.nodes.remove(node);
            return Numbered::TooMany;
        }
        Numbered::Now
    }

    /// Answers the newest ping of a node that has a number.
    pub fn answer(&mut self, node: &str, ping: u64) {
        if let Some(number) = self.nodes.get(node) {
            self.answered.insert(*number, ping);
        }
    }

    /// The newest ping of a node that the head has answered.
    #[must_use]
    pub fn answer_to(&self, node: &str) -> Option<u64> {
        self.answered.get(self.nodes.get(node)?).copied()
    }

    /// Whether the notice is short enough for any broker, also where more is mounted later.
    #[must_use]
    pub fn fits(&self) -> bool {
        postcard::to_stdvec(self).is_ok_and(|bytes| bytes.len() <= JOB_BYTES_MAX)
    }
}

/// Whether a node has a number in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbered {
    /// The node has got one.
    Now,
    /// The node had one.
    Before,
    /// The node gets none: there are too many nodes, or their names are too long.
    TooMany,
}

/// The most nodes of one job, by their names: each says its own, and one that lies has as many as it likes.
pub const NODES_MAX: usize = 1024;
/// Half of what a broker takes as one message unless it is told otherwise.
const JOB_BYTES_MAX: usize = 512 << 10;

/// A source, or a directory in one, as the head sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceNotice {
    /// The path.
    pub path: Vec<u8>,
    /// Some of the names in it: a node that has none of them has another directory there, or an empty one where a file
    /// system is to be mounted.
    pub names: Vec<Vec<u8>>,
    /// What it is.
    pub mark: Option<SourceMark>,
}

/// By what a source is known to be the same on two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceMark {
    /// The inode number, which a shared file system has the same everywhere.
    pub inode: u64,
    /// The host's boot id and the device number there, of a file system that no two hosts can share.
    pub local: Option<(u128, u64)>,
}

/// A node that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNotice {
    /// The name of the node.
    pub node: String,
    /// The node's key, by which receivers know it.
    pub key: [u8; 32],
    /// The part that it has in a job, or would have.
    pub part: Option<NodePart>,
    /// The highest sequence that the broker has acknowledged to the node; 0 if none. By it a head notices a loss.
    pub stored: u64,
}

/// The part of a node in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePart {
    /// The job.
    pub job: SharedJobId,
    /// How far the node is.
    pub state: NodeState,
    /// What the node has found and moved.
    pub moved: TransferProgress,
    /// What the node has done.
    pub tally: Tally,
    /// When the grant ends by which the node is let in, in seconds since 1970; `None` where it has none.
    pub granted_until: Option<u64>,
    /// The ping to which the head answers ([`JobNotice::answered`]).
    pub ping: u64,
    /// What the node has stored at each receiver since it began, by the number of the receiver.
    pub receivers: BTreeMap<usize, FileTotal>,
}

/// How far a node is with its part in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeState {
    /// The node would take part.
    Offers,
    /// The node takes part.
    Works,
    /// The job is over, and all sessions of the node have ended as they should.
    HasEnded,
    /// The node's user has stopped it: what it had taken is for others. All sessions have ended as they should.
    Stopped,
    /// The job is over for the node, and a session of it was lost, which may still be at work at its receiver.
    HasLostSessions,
}

impl NoticeBoard {
    /// Listens at the broker of a cluster that has this key.
    ///
    /// # Errors
    /// The broker cannot be reached, or does not let this node in.
    pub async fn open(access: &Access, key: &JobKey) -> Result<Self, WorkError> {
        let connection = Connection::open(access).await?;
        let mut random = [0; 8];
        aws_lc_rs::rand::fill(&mut random).expect("the kernel has random numbers");
        let mut hearing = Hearing {
            state: connection.state(),
            watch: None,
        };
        // if the broker does not make the bucket now, `hear` asks again
        let _best_effort = hearing.begin(&connection).await;
        Ok(Self {
            prefix: Hex(&random).to_string(),
            connection,
            key: aes_of(key, "zmove 2026-11-26 notices of the nodes of a cluster"),
            events: AtomicU64::default(),
            hearing: Mutex::new(hearing),
        })
    }

    /// Why whoever listens at the broker's address is of no use, if the broker is lost and somebody does.
    #[must_use]
    pub fn hindrance(&self) -> Option<Hindrance> {
        self.connection.hindrance()
    }

    /// Tells all nodes, as far as there is a broker: what is told while there is none would wait in a queue, which is
    /// bounded, and be told late. What is longer than the broker takes is told to nobody: the work goes on without.
    ///
    /// # Errors
    /// The connection has been given up.
    pub async fn tell(&self, notice: &Notice) -> Result<(), WorkError> {
        if self.connection.is_lost() {
            return Ok(());
        }
        let body = seal(
            &self.key,
            ASSOCIATED_DATA,
            postcard::to_stdvec(&(PROTOCOL_VERSION, notice)).expect("a vector grows"),
        );
        let key = self.key_of(notice);
        let told = self.connection.client.publish(key, body.into()).await;
        match told {
            Err(error) if error.kind() != PublishErrorKind::MaxPayloadExceeded => {
                Err(WorkError::Queue {
                    operation: "tell the other nodes",
                    source: error.into(),
                })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The subject of a notice. The newest state of a job or a node replaces the one before; each event stays for a
    /// while.
    fn key_of(&self, notice: &Notice) -> String {
        let name = match notice {
            Notice::Job(job) => job.job.0,
            Notice::Node(node) => node.part.as_ref().map_or([0; 16], |part| part.job.0),
            _event => {
                let number = self.events.fetch_add(1, Ordering::Relaxed);
                u128::from(number).to_le_bytes()
            }
        };
        format!("$KV.{BUCKET}.{}.{}", self.prefix, Hex(&name))
    }

    /// Has all that was told on its way: this process is about to end.
    pub async fn flush(&self) {
        if !self.connection.is_lost() {
            let _heard_by_nobody_then = self.connection.client.flush().await;
        }
    }

    /// The next notice, one's own among them. A broker that is away is waited for.
    ///
    /// # Errors
    /// Its sender speaks another version of the protocol.
    pub async fn hear(&self) -> Result<Notice, GreetingError> {
        let mut hearing = self.hearing.lock().await;
        loop {
            let entry = hearing.next(&self.connection).await;
            let opened = open(&self.key, ASSOCIATED_DATA, &entry.value);
            // of another cluster, or of nobody's
            if let Some(notice) = opened.and_then(|body| read(&body)) {
                return notice;
            }
        }
    }
}

impl Hearing {
    /// Watches the bucket, which is made if the broker does not have it.
    async fn begin(&mut self, connection: &Connection) -> Result<(), BrokerError> {
        self.state.mark_unchanged();
        let bucket = connection.bucket(BUCKET, KEPT_FOR, StorageType::Memory);
        self.watch = Some(bucket.await?.watch_with_history(">").await?);
        Ok(())
    }

    /// The next entry, as soon as there is a broker that has one.
    async fn next(&mut self, connection: &Connection) -> kv::Entry {
        loop {
            let Some(watch) = &mut self.watch else {
                if self.begin(connection).await.is_err() {
                    connection.pause(AWAY_PAUSE).await;
                }
                continue;
            };
            tokio::select! {
                biased;
                entry = watch.next() => match entry {
                    Some(Ok(entry)) => return entry,
                    Some(Err(_)) | None => self.watch = None,
                },
                _ = self.state.changed() => self.watch = None,
            }
        }
    }
}

/// A notice behind the version of the protocol; `None` where the bytes are none.
fn read(body: &[u8]) -> Option<Result<Notice, GreetingError>> {
    let (version, notice) = postcard::take_from_bytes(body).ok()?;
    match check_version(version) {
        Ok(()) => postcard::from_bytes(notice).ok().map(Ok),
        Err(other) => Some(Err(other)),
    }
}

/// The bucket of the notices.
const BUCKET: &str = "zmove-notices";
/// How long a notice is kept. Longer, and a new reader hears nodes that have gone; shorter, and it hears less.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// How long a reader waits for a broker that is away before it looks again.
const AWAY_PAUSE: Duration = Duration::from_secs(1);
/// How often nodes and heads tell their notices.
pub const TELL_EVERY: Duration = Duration::from_secs(1);
const ASSOCIATED_DATA: &[u8] = b"notice";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_names_itself_by_thousands_of_names_does_not_make_the_notice_too_long() {
        let nodes = BTreeMap::from([("head".into(), 0)]);
        let mut job = JobNotice {
            nodes,
            ..JobNotice::default()
        };
        assert_eq!(["a", "a", "head"].map(|node| job.number(node)), NUMBERED);
        let long = "x".repeat(JOB_BYTES_MAX);
        assert_eq!(job.number(&long), Numbered::TooMany);
        let got = (0..5000)
            .filter(|name| job.number(&name.to_string()) == Numbered::Now)
            .count();
        assert_eq!((got, job.nodes.len()), (NODES_MAX - 2, NODES_MAX));
        assert_eq!(job.number("a"), Numbered::Before);
        assert!(job.fits());
    }

    /// Whatever else the other version has changed.
    #[test]
    fn a_notice_of_another_version_is_recognized() {
        let told = Notice::Job(JobNotice::default());
        let body = postcard::to_stdvec(&(PROTOCOL_VERSION, &told)).unwrap();
        assert_eq!(read(&body), Some(Ok(told)));
        assert_eq!(
            read(&[9, 255, 255]),
            Some(Err(GreetingError::OtherVersion { theirs: 9 }))
        );
        assert_eq!(read(&[1, 255, 255]), None);
    }

    const NUMBERED: [Numbered; 3] = [Numbered::Now, Numbered::Before, Numbered::Before];
}
