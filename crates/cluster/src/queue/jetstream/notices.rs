//! Notices that the nodes of a cluster exchange in addition to work items. They report that a job is running or that a
//! node is available.
//!
//! Notices are entries of a bucket that keeps each entry for a few seconds. Nodes and heads repeat their notices every
//! second. The broker may therefore lose the bucket, and a node that joins late still receives all current notices. A
//! watch of the bucket does not report that an entry was removed, so readers use their own clock to detect that a node
//! no longer sends notices.
//!
//! **Invariant:** a notice can be decrypted only with the key of the cluster. If a broker replays an old notice, it
//! refers to a job that has ended, which the receivers know.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::kv::{self, Watch};
use async_nats::jetstream::stream::StorageType;
use aws_lc_rs::aead::RandomizedNonceKey;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};
use zmove_sender::FallbackAttributes;
use zmove_types::{Hex, SharedJobId};
use zmove_wire::{FileTotal, GreetingError, PROTOCOL_VERSION, TransferProgress, check_version};

use super::access::Access;
use super::answers::BrokerError;
use super::connection::{BrokerState, Connection};
use super::seal::{JobKey, aes_of, open, seal};
use crate::error::{BrokerMismatch, WorkError};
use crate::job::Tally;

/// The notices of a cluster.
pub struct NoticeBoard {
    connection: Connection,
    key: RandomizedNonceKey,
    /// Prefix of this process's keys in the bucket.
    prefix: String,
    events: AtomicU64,
    bucket_watch: Mutex<BucketWatch>,
}

/// The state of reading the bucket.
struct BucketWatch {
    state: watch::Receiver<BrokerState>,
    /// `None` after the connection was lost, because the broker may have lost the bucket.
    watch: Option<Watch>,
}

impl fmt::Debug for NoticeBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoticeBoard").finish_non_exhaustive()
    }
}

/// A notice to the other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A job is running.
    Job(JobNotice),
    /// A node is available.
    Node(Box<NodeNotice>),
    /// Part of a job failed at a node.
    Failed(NodeFailure),
    /// A node does not take part in a job, for this reason.
    Absent(NodeFailure),
    /// The head of a job grants a node access to the receivers.
    Grant(GrantNotice),
    /// A problem at a node that does not end its job, such as a lost receiver.
    Warned(NodeFailure),
}

/// A failure or problem at a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFailure {
    /// The job.
    pub job: SharedJobId,
    /// Name of the node.
    pub node: String,
    /// The problem and its cause.
    pub message: String,
}

/// A grant for one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantNotice {
    /// The job.
    pub job: SharedJobId,
    /// Key of the node.
    pub key: [u8; 32],
    /// The encoded [grant](zmove_wire::SignedJobGrant).
    pub grant: Vec<u8>,
}

/// A running job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobNotice {
    /// The job.
    pub job: SharedJobId,
    /// Command line that was typed at the head.
    pub words: Vec<Vec<u8>>,
    /// The sources, to which work items refer by number. Nodes use these paths instead of the paths in `words`.
    pub sources: Vec<SourceNotice>,
    /// File systems that are mounted below the sources.
    pub mounts: Vec<SourceNotice>,
    /// The participating nodes, by name.
    pub nodes: BTreeMap<String, NumberedNode>,
    /// Whether the job has started at the target. Until then, only the head may open the target.
    pub begun: bool,
    /// Permissions with which the head reads the sources.
    pub reader: Reader,
    /// Replacements for metadata that cannot be preserved. All senders of the job use the same replacements.
    pub instead: FallbackAttributes,
    /// The queue, the nodes and the receivers from the head's point of view: `nodes` in `docs/schema/job.json`.
    pub shown: String,
}

/// A node that participates in a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedNode {
    /// Number of the node. The node uses it to choose its first receiver. The head has number 0.
    pub number: u32,
    /// The newest ping that the head has received from the node. The node renews its lease when it finds its ping here.
    pub ping: u64,
}

/// The permissions with which a node reads the sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reader {
    /// User id.
    pub user: u32,
    /// Group ids of the user.
    pub groups: BTreeSet<u32>,
    /// Whether the reader ignores file modes, like root.
    pub reads_all: bool,
}

impl JobNotice {
    /// Returns the name of the head.
    #[must_use]
    pub fn head(&self) -> Option<&str> {
        self.nodes
            .iter()
            .find(|(_, node)| node.number == 0)
            .map(|(name, _)| name.as_str())
    }

    /// Answers the newest ping of a node. Assigns a number to a node that has none. Returns `false` if no number can be
    /// assigned, because there are too many nodes or their names are too long.
    pub fn answer(&mut self, node: &str, ping: u64) -> bool {
        if let Some(known) = self.nodes.get_mut(node) {
            known.ping = ping;
            return true;
        }
        let number = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let new = NumberedNode { number, ping };
        self.nodes.insert(node.to_owned(), new);
        let has_room = self.nodes.len() <= NODES_MAX && self.fits();
        if !has_room {
            self.nodes.remove(node);
        }
        has_room
    }

    /// Returns whether the notice is short enough for any broker, even if more file systems are mounted later.
    #[must_use]
    pub fn fits(&self) -> bool {
        postcard::to_stdvec(self).is_ok_and(|bytes| bytes.len() <= JOB_BYTES_MAX)
    }
}

/// Maximum number of nodes in a job, counted by name. The limit is needed because each node chooses its own name, and a
/// malicious node may use many names.
pub const NODES_MAX: usize = 1024;
/// Maximum length of a job notice, in bytes: half of a broker's default message size limit.
const JOB_BYTES_MAX: usize = 512 << 10;

/// A source, or a directory below it, as the head sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceNotice {
    /// Path of the directory.
    pub path: Vec<u8>,
    /// Some of the names in the directory. If a node finds none of these names, it has a different directory at the
    /// path, or an empty mount point.
    pub names: Vec<Vec<u8>>,
    /// Identity of the source.
    pub mark: Option<SourceMark>,
}

/// The properties by which two hosts recognize the same source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceMark {
    /// Inode number, which is the same on all hosts of a shared file system.
    pub inode: u64,
    /// Boot id of the host and device number, for a file system that cannot be shared between hosts.
    pub local: Option<(u128, u64)>,
}

/// An available node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeNotice {
    /// Name of the node.
    pub node: String,
    /// Key of the node, by which receivers recognize it.
    pub key: [u8; 32],
    /// The part that the node has, or would have, in a job.
    pub part: Option<NodePart>,
    /// The highest sequence number that the broker has acknowledged to the node, or 0. The head uses it to detect a
    /// loss.
    pub stored: u64,
}

/// The part of a node in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePart {
    /// The job.
    pub job: SharedJobId,
    /// State of the node.
    pub state: NodeState,
    /// Files and bytes that the node has found and moved.
    pub moved: TransferProgress,
    /// Work that the node has completed.
    pub tally: Tally,
    /// When the node's grant expires, in seconds since 1970, or `None` if it has none.
    pub granted_until: Option<u64>,
    /// The ping that the head answers ([`NumberedNode::ping`]).
    pub ping: u64,
    /// Files and bytes that the node has stored at each receiver since it started, by receiver number.
    pub receivers: BTreeMap<usize, FileTotal>,
}

/// The state of a node's part in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeState {
    /// The node offers to take part.
    Offers,
    /// The node takes part.
    Works,
    /// The job is over, and all sessions of the node have ended properly.
    HasEnded,
    /// The node's user has stopped it. Its items are left to others, and all its sessions have ended properly.
    Stopped,
    /// The job is over for the node. One of its sessions was lost, and may still be active at its receiver.
    HasLostSessions,
}

impl NoticeBoard {
    /// Connects to the broker of the cluster with this key and starts to listen.
    ///
    /// # Errors
    /// The broker cannot be reached or refuses this node.
    pub async fn open(access: &Access, key: &JobKey) -> Result<Self, WorkError> {
        let connection = Connection::open(access).await?;
        let mut random = [0; 8];
        aws_lc_rs::rand::fill(&mut random).expect("the kernel has random numbers");
        let mut bucket_watch = BucketWatch {
            state: connection.state(),
            watch: None,
        };
        // If the broker cannot create the bucket now, `hear` tries again.
        let _best_effort = bucket_watch.begin(&connection).await;
        Ok(Self {
            prefix: Hex(&random).to_string(),
            connection,
            key: aes_of(key, "zmove 2026-11-26 notices of the nodes of a cluster"),
            events: AtomicU64::default(),
            bucket_watch: Mutex::new(bucket_watch),
        })
    }

    /// Returns the reason why the server at the broker's address cannot be used, if the connection is lost and a server
    /// was reached.
    #[must_use]
    pub fn server_mismatch(&self) -> Option<BrokerMismatch> {
        self.connection.server_mismatch()
    }

    /// Returns whether the broker is connected. Without a connection, notices that are not repeated must wait.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !self.connection.is_lost()
    }

    /// Sends a notice to all nodes if the broker is connected. Without a connection, the notice is dropped: it would
    /// wait in a bounded queue and arrive late. A notice that is too long for the broker is dropped too, and work
    /// continues without it.
    pub async fn tell(&self, notice: &Notice) {
        if self.connection.is_lost() {
            return;
        }
        let body = seal(
            &self.key,
            ASSOCIATED_DATA,
            postcard::to_stdvec(&(PROTOCOL_VERSION, notice)).expect("a vector grows"),
        );
        let key = self.key_of(notice);
        let _repeated_later = self.connection.client.publish(key, body.into()).await;
    }

    /// Returns the subject of a notice. The newest state of a job or node replaces the previous one. Each event is kept
    /// for a while.
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

    /// Sends all pending notices. Called before this process exits.
    pub async fn flush(&self) {
        if !self.connection.is_lost() {
            let _heard_by_nobody_then = self.connection.client.flush().await;
        }
    }

    /// Returns the next notice of any node, including this node. Waits if the broker cannot be reached.
    ///
    /// # Errors
    /// The sender of the notice uses another version of the protocol.
    pub async fn hear(&self) -> Result<Notice, GreetingError> {
        let mut bucket_watch = self.bucket_watch.lock().await;
        loop {
            let entry = bucket_watch.next(&self.connection).await;
            let opened = open(&self.key, ASSOCIATED_DATA, &entry.value);
            // Ignore notices of other clusters and invalid ones.
            if let Some(notice) = opened.and_then(|body| read(&body)) {
                return notice;
            }
        }
    }
}

impl BucketWatch {
    /// Starts to watch the bucket. Creates the bucket if the broker does not have it.
    async fn begin(&mut self, connection: &Connection) -> Result<(), BrokerError> {
        self.state.mark_unchanged();
        let bucket = connection.bucket(BUCKET, KEPT_FOR, StorageType::Memory);
        self.watch = Some(bucket.await?.watch_with_history(">").await?);
        Ok(())
    }

    /// Returns the next entry, waiting for the broker if necessary.
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

/// Parses the protocol version and the notice after it. Returns `None` if the bytes are not a notice.
fn read(body: &[u8]) -> Option<Result<Notice, GreetingError>> {
    let (version, notice) = postcard::take_from_bytes(body).ok()?;
    match check_version(version) {
        Ok(()) => postcard::from_bytes(notice).ok().map(Ok),
        Err(other) => Some(Err(other)),
    }
}

/// Name of the bucket with the notices.
const BUCKET: &str = "zmove-notices";
/// How long the broker keeps a notice. With a longer time, a new reader would see nodes that have left. With a shorter
/// time, a reader may miss notices.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// Interval at which a reader checks whether the broker is back.
const AWAY_PAUSE: Duration = Duration::from_secs(1);
/// Interval at which nodes and heads send their notices.
pub const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
const ASSOCIATED_DATA: &[u8] = b"notice";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_names_itself_by_thousands_of_names_does_not_make_the_notice_too_long() {
        let nodes = BTreeMap::from([("head".into(), NumberedNode::default())]);
        let mut job = JobNotice {
            nodes,
            ..JobNotice::default()
        };
        assert!(["a", "a", "head"].iter().all(|node| job.answer(node, 7)));
        let node_a = NumberedNode { number: 1, ping: 7 };
        assert_eq!((job.nodes.len(), job.nodes["a"]), (2, node_a));
        let long = "x".repeat(JOB_BYTES_MAX);
        assert!(!job.answer(&long, 1));
        let answered = (0..5000).filter(|name| job.answer(&name.to_string(), u64::MAX));
        assert_eq!(answered.count(), NODES_MAX - 2);
        assert_eq!(job.nodes.len(), NODES_MAX);
        assert!(job.answer("a", 8) && job.nodes["a"].ping == 8 && job.fits());
    }

    /// The version is read even if the rest of the format has changed.
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
}
