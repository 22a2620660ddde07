//! A job that several receivers, on different hosts, write into one directory of a shared file system: the opening says
//! which, and orders on control say what becomes of its work.
//!
//! A work item ends when all that belongs to it is flushed and has its names; who has ended what stands in journals
//! beside the data. Large files come in groups over several sessions, and get their names by an order of their own.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use zmove_types::{Beginning, Counters, SharedJobId, WorkId};

use super::{EntryFault, FaultCode, NotKept, Operation, bytes, list};
use crate::limits::{
    BATCH_ENTRIES_MAX, FRAME_HEAD_BYTES_MAX, MISSED_MAX, MISSING_RANGES_MAX, NODE_BYTES_MAX,
};

/// The part that a session has in a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedJobOpening {
    /// The job.
    #[serde(with = "SentJobId")]
    pub job: SharedJobId,
    /// The epoch of the job: no receiver of an older one changes anything once a session of this one has begun. The
    /// largest number stands for a job that has ended.
    #[serde(deserialize_with = "epoch")]
    pub epoch: u64,
    /// Whether the job may begin with this session.
    #[serde(with = "SentBeginning")]
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

fn epoch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match u64::deserialize(deserializer)? {
        u64::MAX => Err(D::Error::custom("the epoch of a job that has ended")),
        epoch => Ok(epoch),
    }
}

/// A [`SharedJobId`] as it travels.
#[derive(Serialize, Deserialize)]
#[serde(remote = "SharedJobId")]
struct SentJobId([u8; 16]);

/// A [`Beginning`] as it travels: whether the job may begin.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Beginning")]
enum SentBeginning {
    UnderWay,
    Allowed,
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
    /// To flush, name and record all that belongs to this work, of which each item has been reported as stored.
    End {
        /// The end of the work.
        end: WorkEnd,
        /// What the sender could not carry of entries since the order before, by kind and reason.
        #[serde(deserialize_with = "list::at_most::<{ MISSED_MAX }, _, _>")]
        not_kept: Vec<NotKept>,
    },
    /// To give a large file its name, all groups of which have been recorded by receivers of this epoch.
    Commit {
        /// The file's declaration, as on a lane.
        #[serde(
            serialize_with = "bytes::serialize",
            deserialize_with = "bytes::at_most::<FRAME_HEAD_BYTES_MAX, _>"
        )]
        head: Vec<u8>,
        /// The file's root, where that is known.
        root: Option<[u8; 32]>,
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
    /// To tell how far the job is, by the journals of all receivers.
    Count,
    /// To end the job: nothing is left of it but what has its name.
    Close,
    /// To answer at once, whatever the storage does.
    Ping,
    /// To tell directories that have come, by the journals of all receivers: the next that this session has not told.
    ListDirectories,
}

/// The end of a work item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkEnd {
    /// The work.
    #[serde(with = "SentWorkId")]
    pub work: WorkId,
    /// The work that has announced it; that with which the job begins has announced itself.
    #[serde(with = "SentWorkId")]
    pub parent: WorkId,
    /// The pass of the job that it belongs to. Each pass goes through all work, with ids of its own.
    pub pass: u32,
    /// How many work items it has announced.
    pub children: u64,
    /// The sum of their ids ([`WorkId::number`]), modulo 2^128.
    pub children_sum: u128,
    /// The counts of it.
    pub counts: WorkCounts,
}

/// The counts of work of a job. A receiver keeps them for each item, so these are not all report counters.
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
        }
    }
}

/// The report counters of a job that has these counts.
impl From<WorkCounts> for Counters {
    fn from(counts: WorkCounts) -> Self {
        Self {
            files: counts.files.saturating_sub(counts.skipped),
            bytes: counts.bytes.saturating_sub(counts.skipped_bytes),
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
    /// The order is done. What *end*, *commit* and *set directories* do is on stable storage when they are answered.
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
    /// How far the job is.
    Counted(Box<SharedJobCount>),
    /// Directories as they have come, some perhaps several times.
    Directories {
        /// The head of a batch that holds nothing else; no bytes where all have been told.
        #[serde(
            serialize_with = "bytes::serialize",
            deserialize_with = "bytes::at_most::<FRAME_HEAD_BYTES_MAX, _>"
        )]
        head: Vec<u8>,
    },
}

/// How far the newest pass of a job is, by the journals of its receivers. A work item that has ended twice counts once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedJobCount {
    /// The newest pass of which something has ended.
    pub pass: u32,
    /// The work items that have ended.
    pub work_ended: u64,
    /// The work items that these have announced.
    pub work_announced: u64,
    /// The ended work items whose parent has not ended.
    pub work_without_parent: u64,
    /// The sum of the ids that have been announced less that of those that have ended, without the first work item's
    /// own, modulo 2^128.
    pub missing_sum: u128,
    /// The counts of those that have ended. Files that were at the target count as skipped if they were there before
    /// the job; of a job of several passes perhaps fewer.
    pub counts: WorkCounts,
    /// How often a work item has ended that had ended before, in all passes.
    pub repeats: u64,
    /// How many of the newest pass's repeats announce other work than the end before.
    pub contradictions: u64,
    /// What was not kept of entries, in all passes, by kind and reason. Of work that was done twice it counts twice.
    #[serde(deserialize_with = "list::at_most::<{ MISSED_MAX }, _, _>")]
    pub not_kept: Vec<NotKept>,
}

impl SharedJobCount {
    /// Whether all work has ended: the first work item, and each that another has announced. The right number alone is
    /// not enough: a work item may end before its parent; and where the sources have changed between two times that an
    /// item was done, other work may have ended than what the end that counts has announced. Ids are hashes, so two
    /// sets of as many that differ have other sums, but for odds of 2^-128.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.work_ended > 0
            && self.work_without_parent == 0
            && self.missing_work() == 0
            && !self.is_contradictory()
    }

    /// How many work items have been announced and have not ended, at least.
    #[must_use]
    pub const fn missing_work(&self) -> u64 {
        self.work_announced
            .saturating_sub(self.work_ended.saturating_sub(1))
    }

    /// Whether something has ended that none of the ends which count has announced, or an item has announced other work
    /// each time that it was done: the sources have changed meanwhile, and no walk makes these ends agree any more.
    /// Where the end of a parent is missing as yet, its children say nothing.
    #[must_use]
    pub const fn is_contradictory(&self) -> bool {
        let ended = self.work_ended.saturating_sub(1);
        let has_strangers = ended > self.work_announced
            || ended == self.work_announced && self.work_ended > 0 && self.missing_sum != 0;
        self.contradictions > 0 || self.work_without_parent == 0 && has_strangers
    }
}

/// A [`WorkId`] as it travels.
#[derive(Serialize, Deserialize)]
#[serde(remote = "WorkId")]
struct SentWorkId([u8; 16]);

#[cfg(test)]
mod tests {
    use zmove_types::Kinds;

    use super::*;
    use crate::message::{Lack, ToReceiver, ToSender, decode_message, encode_message};

    fn part() -> SharedJobOpening {
        let node = NodeName::new("dtn-1.example").unwrap();
        SharedJobOpening {
            job: SharedJobId([7; 16]),
            epoch: 258,
            beginning: Beginning::Allowed,
            leads: true,
            node,
        }
    }

    #[test]
    fn a_part_that_makes_no_sense_is_refused() {
        let bytes = encode_message(&part())[4..].to_vec();
        assert_eq!(
            bytes[16..21],
            [0x82, 2, 1, 1, 13],
            "epoch, beginning, lead, name"
        );
        assert_eq!(decode_message(&bytes), Ok(part()));
        let is_refused = |epoch: &[u8], beginning: u8, node: &[u8]| {
            let length = u8::try_from(node.len()).unwrap();
            let bytes = [&[7; 16], epoch, &[beginning, 0, length], node].concat();
            decode_message::<SharedJobOpening>(&bytes).is_err()
        };
        assert!(!is_refused(&[1], 0, b"n"));
        for node in [&b""[..], b"a/b", b"\xff", &[b'n'; 65]] {
            assert!(is_refused(&[1], 0, node), "{node:?}");
        }
        let last = [&[255; 9][..], &[1]].concat();
        assert!(is_refused(&[1], 2, b"n") && is_refused(&last, 0, b"n"));
    }

    #[test]
    #[expect(
        clippy::too_many_lines,
        reason = "a table of the bytes of each message"
    )]
    fn orders_and_answers_are_pinned() {
        let order = |number, order| {
            encode_message(&ToReceiver::SharedJob(SharedJobRequest { number, order }))[4..].to_vec()
        };
        let work = WorkId([5; 16]);
        let parent = WorkId([6; 16]);
        let end = WorkEnd {
            work,
            parent,
            pass: 3,
            children: 300,
            children_sum: 7,
            counts: WorkCounts {
                files: 2,
                bytes: 1,
                failed: 4,
                skipped: 5,
                skipped_bytes: 6,
                specials: 7,
                left_out: 8,
            },
        };
        let not_kept = vec![NotKept::new(Kinds::OWNER, Lack::NotPermitted, 2)];
        let ended = order(300, SharedJobOrder::End { end, not_kept });
        assert_eq!(
            ended,
            [
                &[13, 0xAC, 2, 0][..],
                &[5; 16],
                &[6; 16],
                &[3, 0xAC, 2, 7, 2, 1, 4, 5, 6, 7, 8],
                &[1, 4, 0, 2]
            ]
            .concat()
        );
        let commit = SharedJobOrder::Commit {
            head: b"h".to_vec(),
            root: Some([9; 32]),
        };
        assert_eq!(
            order(1, commit),
            [&[13, 1, 1, 1, b'h', 1][..], &[9; 32]].concat()
        );
        assert_eq!(
            order(
                1,
                SharedJobOrder::SetDirectories {
                    head: b"h".to_vec()
                }
            ),
            [13, 1, 2, 1, b'h']
        );
        assert_eq!(order(1, SharedJobOrder::Count), [13, 1, 3]);
        assert_eq!(order(1, SharedJobOrder::Close), [13, 1, 4]);
        assert_eq!(order(1, SharedJobOrder::Ping), [13, 1, 5]);
        assert_eq!(order(1, SharedJobOrder::ListDirectories), [13, 1, 6]);
        let answer = |result| {
            encode_message(&ToSender::SharedJob(SharedJobAnswer {
                number: 300,
                result,
            }))[4..]
                .to_vec()
        };
        assert_eq!(answer(SharedJobResult::Done), [15, 0xAC, 2, 0]);
        let failed = SharedJobResult::Failed(Operation::Rename, FaultCode::Fenced);
        assert_eq!(answer(failed), [15, 0xAC, 2, 1, 5, 13]);
        assert_eq!(
            answer(SharedJobResult::Committed { inode: 300 }),
            [15, 0xAC, 2, 2, 0xAC, 2]
        );
        assert_eq!(
            answer(SharedJobResult::Missing(vec![GroupRange::new(300, 2)])),
            [15, 0xAC, 2, 3, 1, 0xAC, 2, 2]
        );
        let fault = EntryFault {
            entry: 3,
            operation: Operation::SetMetadata,
            code: FaultCode::Os(1),
        };
        assert_eq!(
            answer(SharedJobResult::DirectoriesSet(vec![fault])),
            [15, 0xAC, 2, 4, 1, 3, 7, 0, 2]
        );
        let count = SharedJobCount {
            pass: 11,
            work_ended: 1,
            work_announced: 2,
            work_without_parent: 3,
            missing_sum: 300,
            counts: WorkCounts {
                files: 4,
                bytes: 5,
                failed: 6,
                skipped: 7,
                skipped_bytes: 8,
                specials: 9,
                left_out: 10,
            },
            repeats: 11,
            contradictions: 12,
            not_kept: vec![NotKept::new(Kinds::MODE, Lack::Unsupported, 3)],
        };
        assert_eq!(
            answer(SharedJobResult::Counted(Box::new(count))),
            [
                15, 0xAC, 2, 5, 11, 1, 2, 3, 0xAC, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 1, 2, 3
            ]
        );
        let directories = SharedJobResult::Directories {
            head: b"h".to_vec(),
        };
        assert_eq!(answer(directories), [15, 0xAC, 2, 6, 1, b'h']);
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

    /// A child may end before its parent: one has ended, and none is announced.
    #[test]
    fn a_job_is_finished_when_all_that_was_announced_has_ended_and_not_by_a_number() {
        let count = |work_ended, work_announced, work_without_parent| {
            let count = SharedJobCount {
                work_ended,
                work_announced,
                work_without_parent,
                ..SharedJobCount::default()
            };
            count.is_finished()
        };
        assert!(count(1, 0, 0) && count(4, 3, 0));
        assert!(!count(0, 0, 0) && !count(1, 0, 1) && !count(3, 3, 0) && !count(1, u64::MAX, 0));
    }
}
