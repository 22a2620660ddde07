//! A job in which receivers on several hosts write into one directory of a shared file system. The opening identifies
//! the job. To complete its work, a sender sends requests (orders) on the control connection.
//!
//! [`SharedJobOrder::Settle`] requests that all stored files are flushed and renamed into place. The groups of a large
//! file arrive over several sessions, so [`SharedJobOrder::Commit`] renames such a file into place.

use serde::{Deserialize, Serialize};
use zmove_types::{Beginning, SharedJobId};

use super::{EntryFault, FaultCode, NotKept, Operation, bytes, list};
use crate::limits::{BATCH_ENTRIES_MAX, FRAME_HEAD_BYTES_MAX, MISSED_MAX, MISSING_RANGES_MAX};

/// The membership of a session in a shared job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedJobOpening {
    /// The ID of the job.
    pub job: SharedJobId,
    /// Whether the job may begin with this session.
    pub beginning: Beginning,
    /// Whether the sender leads the job. If so, the receiver writes a heartbeat file that shows other receivers that
    /// the job is alive.
    pub leads: bool,
}

/// A request about the shared job of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedJobRequest {
    /// The number of the request, which the answer repeats.
    pub number: u64,
    /// The requested operation.
    pub order: SharedJobOrder,
}

/// An operation that the sender requests from a receiver of a shared job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedJobOrder {
    /// Flushes and renames into place everything that was reported as stored. The work can then be removed from the
    /// queue.
    Settle,
    /// Renames a large file into place after receivers have recorded all its groups.
    Commit {
        /// The file's declaration, as sent on a lane.
        #[serde(
            serialize_with = "bytes::serialize",
            deserialize_with = "bytes::at_most::<FRAME_HEAD_BYTES_MAX, _>"
        )]
        head: Vec<u8>,
    },
    /// Sets the mode and time of directories to which nothing more will be written.
    SetDirectories {
        /// The encoded head of a batch. Each of its entries is a directory itself.
        #[serde(
            serialize_with = "bytes::serialize",
            deserialize_with = "bytes::at_most::<FRAME_HEAD_BYTES_MAX, _>"
        )]
        head: Vec<u8>,
    },
    /// Ends the job. All entries that were not renamed into place are removed.
    Close,
    /// Requests an immediate answer that does not wait for the storage.
    Ping,
}

/// The answer to an order of a shared job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedJobAnswer {
    /// The number of the request.
    pub number: u64,
    /// The result of the operation.
    pub result: SharedJobResult,
}

/// A range of consecutive groups of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRange {
    /// Index of the first group.
    pub first: u32,
    /// Number of groups.
    pub count: u32,
}

impl GroupRange {
    /// Creates a range of `count` groups, starting with group `first`.
    #[must_use]
    pub const fn new(first: u32, count: u32) -> Self {
        Self { first, count }
    }

    /// Returns the index after the last group, or the maximum index if the sum would overflow.
    #[must_use]
    pub const fn end(self) -> u32 {
        self.first.saturating_add(self.count)
    }
}

/// The result of a requested operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SharedJobResult {
    /// The operation is complete. The effects of *commit* and *set directories* are on stable storage before the answer
    /// is sent.
    Done,
    /// The operation failed.
    Failed(Operation, FaultCode),
    /// Groups of the file that have not been recorded. If the answer contains the maximum number of ranges, more groups
    /// may be missing.
    Missing(
        #[serde(deserialize_with = "list::at_most::<MISSING_RANGES_MAX, _, _>")] Vec<GroupRange>,
    ),
    /// The directories were processed. The list contains those whose mode or time could not be set.
    DirectoriesSet(
        #[serde(deserialize_with = "list::at_most::<BATCH_ENTRIES_MAX, _, _>")] Vec<EntryFault>,
    ),
    /// Everything that was reported as stored is on stable storage. The list contains the metadata that was not
    /// preserved since the previous *settle*, by kind and reason.
    Settled(#[serde(deserialize_with = "list::at_most::<{ MISSED_MAX }, _, _>")] Vec<NotKept>),
}

#[cfg(test)]
mod tests {
    use zmove_types::MetadataKinds;

    use super::*;
    use crate::message::{NotKeptReason, ToReceiver, ToSender, decode_message, encode_message};

    fn part() -> SharedJobOpening {
        SharedJobOpening {
            job: SharedJobId([7; 16]),
            beginning: Beginning::Allowed,
            leads: true,
        }
    }

    #[test]
    fn a_part_that_makes_no_sense_is_refused() {
        let bytes = encode_message(&part())[4..].to_vec();
        assert_eq!(bytes[16..], [1, 1], "beginning, lead");
        assert_eq!(decode_message(&bytes), Ok(part()));
        let is_refused = |beginning: u8| {
            let bytes = [&[7; 16], &[beginning, 0][..]].concat();
            decode_message::<SharedJobOpening>(&bytes).is_err()
        };
        assert!(!is_refused(0) && is_refused(2));
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
            answer(SharedJobResult::Missing(vec![GroupRange::new(300, 2)])),
            [13, 0xAC, 2, 2, 1, 0xAC, 2, 2]
        );
        let fault = EntryFault {
            entry: 3,
            operation: Operation::SetMetadata,
            code: FaultCode::Os(1),
        };
        assert_eq!(
            answer(SharedJobResult::DirectoriesSet(vec![fault])),
            [13, 0xAC, 2, 3, 1, 3, 7, 0, 2]
        );
        let not_kept = vec![NotKept::new(
            MetadataKinds::MODE,
            NotKeptReason::Unsupported,
            3,
        )];
        assert_eq!(
            answer(SharedJobResult::Settled(not_kept)),
            [13, 0xAC, 2, 4, 1, 1, 2, 3]
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
