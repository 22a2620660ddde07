//! A job that several receivers, on different hosts, write into one directory of a shared file system: the opening says
//! which, and orders on control say what becomes of its work.
//!
//! Work is done when all that belongs to it is flushed and has its names, which an order asks for. Large files come in
//! groups over several sessions, and get their names by an order of their own.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use zmove_types::{Beginning, Counters, SharedJobId};

use super::{EntryFault, FaultCode, NotKept, Operation, bytes, list};
use crate::limits::{
    BATCH_ENTRIES_MAX, FRAME_HEAD_BYTES_MAX, MISSED_MAX, MISSING_RANGES_MAX, NODE_BYTES_MAX,
};

/// The part that a session has in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedJobOpening {
    /// The job.
    pub job: SharedJobId,
    /// Whether the job may begin with this session.
    pub beginning: Beginning,
    /// Whether the sender leads the job: then the receiver writes a heartbeat, by which others know that the job is
    /// alive.
    pub leads: bool,
    /// The sender's node.
    pub node: NodeName,
}

/// The name of a node: letters, digits, `.`, `-` and `_`, at most [`NODE_BYTES_MAX`] of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeName(String);

impl NodeName {
    /// The name, if it is one.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_name = (1..=NODE_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_part);
        is_name.then(|| Self(name.to_owned()))
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for NodeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <&str>::deserialize(deserializer)?;
        Self::new(name).ok_or_else(|| D::Error::custom("the name of a node"))
    }
}

/// An order about the job of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedJobRequest {
    /// The number of the order, for its answer.
    pub number: u64,
    /// The order.
    pub order: SharedJobOrder,
}

/// What a sender wants of a receiver in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedJobOrder {
    /// To name and flush all that has been reported as stored, so that the queue may forget the work.
    Settle,
    /// To give a large file its name, all groups of which have been recorded by receivers.
    Commit {
        /// The file's declaration, as on a lane.
        #[serde(
            serialize_with = "bytes::serialize",
            deserialize_with = "bytes::at_most::<FRAME_HEAD_BYTES_MAX, _>"
        )]
        head: Vec<u8>,
    },
    /// To set mode and time of directories into which nothing more is put.
    SetDirectories {
        /// The head of a batch that holds nothing but directories themselves.
        #[serde(
            serialize_with = "bytes::serialize",
            deserialize_with = "bytes::at_most::<FRAME_HEAD_BYTES_MAX, _>"
        )]
        head: Vec<u8>,
    },
    /// To end the job: nothing is left of it but what has its name.
    Close,
    /// To answer at once, whatever the storage does.
    Ping,
}

/// The counts of work of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkCounts {
    /// Files that are at the target.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Entries that are missing at the target or incomplete, and parts of the source that could not be read.
    pub failed: u64,
    /// The files that were at the target already.
    pub skipped: u64,
    /// Bytes of the files that were at the target already.
    pub skipped_bytes: u64,
    /// FIFOs, sockets and devices, which were not copied.
    pub specials: u64,
    /// Entries that the selection left out.
    pub left_out: u64,
    /// Bytes of the files that an earlier transfer had stored.
    pub resumed_bytes: u64,
}

impl WorkCounts {
    /// The counts of both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            files: self.files.saturating_add(other.files),
            bytes: self.bytes.saturating_add(other.bytes),
            failed: self.failed.saturating_add(other.failed),
            skipped: self.skipped.saturating_add(other.skipped),
            skipped_bytes: self.skipped_bytes.saturating_add(other.skipped_bytes),
            specials: self.specials.saturating_add(other.specials),
            left_out: self.left_out.saturating_add(other.left_out),
            resumed_bytes: self.resumed_bytes.saturating_add(other.resumed_bytes),
        }
    }
}

/// The report counters of a job that has these counts.
impl From<WorkCounts> for Counters {
    fn from(counts: WorkCounts) -> Self {
        Self {
            files: counts.files.saturating_sub(counts.skipped),
            bytes: counts
                .bytes
                .saturating_sub(counts.skipped_bytes)
                .saturating_sub(counts.resumed_bytes),
            bytes_resumed: counts.resumed_bytes,
            skipped: counts.skipped,
            failed: counts.failed,
            specials: counts.specials,
            left_out: counts.left_out,
            ..Self::default()
        }
    }
}

/// The answer to an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedJobAnswer {
    /// The number of the order.
    pub number: u64,
    /// What has become of it.
    pub result: SharedJobResult,
}

/// Groups of a file, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRange {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl GroupRange {
    /// So many groups from this one on.
    #[must_use]
    pub const fn new(first: u32, count: u32) -> Self {
        Self { first, count }
    }

    /// The group after the last, as far as there are numbers.
    #[must_use]
    pub const fn end(self) -> u32 {
        self.first.saturating_add(self.count)
    }
}

/// What has become of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedJobResult {
    /// The order is done. What *commit* and *set directories* do is on stable storage when they are answered.
    Done,
    /// The order is not done.
    Failed(Operation, FaultCode),
    /// The file has its name, and this inode.
    Committed {
        /// The inode.
        inode: u64,
    },
    /// Groups of the file have not been recorded. There may be more where there are as many ranges as an answer has.
    Missing(
        #[serde(deserialize_with = "list::at_most::<MISSING_RANGES_MAX, _, _>")] Vec<GroupRange>,
    ),
    /// The directories that did not get mode or time.
    DirectoriesSet(
        #[serde(deserialize_with = "list::at_most::<BATCH_ENTRIES_MAX, _, _>")] Vec<EntryFault>,
    ),
    /// All that was reported as stored is on stable storage. What entries did not get since the order before, by kind
    /// and reason.
    Settled(#[serde(deserialize_with = "list::at_most::<{ MISSED_MAX }, _, _>")] Vec<NotKept>),
}

#[cfg(test)]
mod tests {
    use zmove_types::Kinds;

    use super::*;
    use crate::message::{Lack, ToReceiver, ToSender, decode_message, encode_message};

    fn part() -> SharedJobOpening {
        let node = NodeName::new("dtn-1.example").unwrap();
        SharedJobOpening {
            job: SharedJobId([7; 16]),
            beginning: Beginning::Allowed,
            leads: true,
            node,
        }
    }

    #[test]
    fn a_part_that_makes_no_sense_is_refused() {
        let bytes = encode_message(&part())[4..].to_vec();
        assert_eq!(bytes[16..19], [1, 1, 13], "beginning, lead, name");
        assert_eq!(decode_message(&bytes), Ok(part()));
        let is_refused = |beginning: u8, node: &[u8]| {
            let length = u8::try_from(node.len()).unwrap();
            let bytes = [&[7; 16], &[beginning, 0, length][..], node].concat();
            decode_message::<SharedJobOpening>(&bytes).is_err()
        };
        assert!(!is_refused(0, b"n"));
        for node in [&b""[..], b"a/b", b"\xff", &[b'n'; 65]] {
            assert!(is_refused(0, node), "{node:?}");
        }
        assert!(is_refused(2, b"n"));
    }

    #[test]
    fn orders_and_answers_are_pinned() {
        let order = |number, order| {
            encode_message(&ToReceiver::SharedJob(SharedJobRequest { number, order }))[4..].to_vec()
        };
        assert_eq!(order(300, SharedJobOrder::Settle), [10, 0xAC, 2, 0]);
        let commit = SharedJobOrder::Commit {
            head: b"h".to_vec(),
        };
        assert_eq!(order(1, commit), [10, 1, 1, 1, b'h']);
        assert_eq!(
            order(
                1,
                SharedJobOrder::SetDirectories {
                    head: b"h".to_vec()
                }
            ),
            [10, 1, 2, 1, b'h']
        );
        assert_eq!(order(1, SharedJobOrder::Close), [10, 1, 3]);
        assert_eq!(order(1, SharedJobOrder::Ping), [10, 1, 4]);
        let answer = |result| {
            encode_message(&ToSender::SharedJob(SharedJobAnswer {
                number: 300,
                result,
            }))[4..]
                .to_vec()
        };
        assert_eq!(answer(SharedJobResult::Done), [13, 0xAC, 2, 0]);
        let failed = SharedJobResult::Failed(Operation::Rename, FaultCode::JobEnded);
        assert_eq!(answer(failed), [13, 0xAC, 2, 1, 5, 13]);
        assert_eq!(
            answer(SharedJobResult::Committed { inode: 300 }),
            [13, 0xAC, 2, 2, 0xAC, 2]
        );
        assert_eq!(
            answer(SharedJobResult::Missing(vec![GroupRange::new(300, 2)])),
            [13, 0xAC, 2, 3, 1, 0xAC, 2, 2]
        );
        let fault = EntryFault {
            entry: 3,
            operation: Operation::SetMetadata,
            code: FaultCode::Os(1),
        };
        assert_eq!(
            answer(SharedJobResult::DirectoriesSet(vec![fault])),
            [13, 0xAC, 2, 4, 1, 3, 7, 0, 2]
        );
        let not_kept = vec![NotKept::new(Kinds::MODE, Lack::Unsupported, 3)];
        assert_eq!(
            answer(SharedJobResult::Settled(not_kept)),
            [13, 0xAC, 2, 5, 1, 1, 2, 3]
        );
    }

    #[test]
    fn what_an_order_or_an_answer_holds_is_bounded() {
        let decoded = |bytes: usize| {
            let order = SharedJobOrder::SetDirectories {
                head: vec![0; bytes],
            };
            let message = encode_message(&ToReceiver::SharedJob(SharedJobRequest {
                number: 0,
                order,
            }));
            decode_message::<ToReceiver>(&message[4..]).is_ok()
        };
        assert!(decoded(FRAME_HEAD_BYTES_MAX) && !decoded(FRAME_HEAD_BYTES_MAX + 1));
        let told = |ranges: usize| {
            let result = SharedJobResult::Missing(vec![GroupRange::new(0, 1); ranges]);
            let message =
                encode_message(&ToSender::SharedJob(SharedJobAnswer { number: 0, result }));
            decode_message::<ToSender>(&message[4..]).is_ok()
        };
        assert!(told(MISSING_RANGES_MAX) && !told(MISSING_RANGES_MAX + 1));
    }
}
