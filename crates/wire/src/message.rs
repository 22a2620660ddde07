//! The control messages. Each is encoded with postcard and preceded by its length (4 bytes, little-endian).
//!
//! A message has only one encoding. Bytes that decode to a message but differ from its encoding are refused. The
//! messages in which two peers agree on a transfer ([`Open`], [`Opened`] and [`Fetch`]) can grow by
//! [extensions](crate::extensions). All other messages are fixed, so a new field requires a message with a new tag.
//! **Invariant:** variants and fields are never changed or reordered. Tests pin their encoding. Paths and names are
//! parsed during decoding, so a decoded message contains only valid paths and names.

use std::fmt;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zmove_types::{bytes, list};

use crate::error::WireError;
use crate::extensions::take_extension_error;
use crate::limits::{MESSAGE_BYTES_MAX, REASON_CHARS_MAX, within};

mod copy;
mod counted;
mod counters;
mod entries;
mod fault;
mod fetch;
mod form;
mod job_grant;
mod leftover;
mod open;
mod probe;
mod relay;
mod shared_job;
mod summary;

pub use copy::{
    Begin, CopyOrder, CopyResult, CopyState, EndedCopy, GrantOrder, GrantToken, HostAddress,
    Receipt, SignedReceipt, TransportChoice,
};
use counted::StringCounter;
pub use counters::CounterList;
pub use entries::kept::{Missed, NotKept, NotKeptReason, PreserveOptions};
pub use entries::mirror::{Extraneous, Remove, RemoveGroup};
pub use entries::request::{
    Answer, EntryGroup, ExtraneousName, ExtraneousNames, FileGroups, GroupHashes, Held, NameRange,
    Question, Reply, Request, SourceEntry, SourceKind, SourceMark, SourceMetadata, XattrDigest,
};
pub use entries::verdict::{Differences, Verdict};
pub use fault::{Fault, FaultCode, Operation, Refusal, RefusalCode};
pub use fetch::{
    AccountMatch, AfterErrors, EmptySources, Fetch, Fetching, LaneOrder, ListOrder, Mapping,
    OwnerOrder, RemovalOrder, RuleText, SourcePath, ToSource, Zeros,
};
pub(crate) use form::check as check_form;
pub use job_grant::{JobGrant, SignedJobGrant};
pub use leftover::{Leftover, LeftoverFate, LeftoverKind};
pub use open::{
    Compare, DirectoryReplacement, Durability, EarlierSession, FoundSoFar, Intent, Open, Opened,
    Overwrite, Proof, TargetShape, TargetState,
};
pub use probe::{SampleTime, Sampled, SweepOrder, Swept, SweptSize};
pub use relay::{FileHash, FileTotal, Relay, TransferProgress};
pub use shared_job::{
    GroupRange, SharedJobAnswer, SharedJobOpening, SharedJobOrder, SharedJobRequest,
    SharedJobResult,
};
pub use summary::{
    BestRate, Bottleneck, LearnedSettings, Limit, PathAdvice, PathReport, Summary, TransferAccount,
};

/// A message from the sender to the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToReceiver {
    /// The first message: the target and the rules for writing it.
    Open(Open),
    /// A question about entries of the target.
    Request(Request),
    /// The sender has given up a large file, because the file changed or vanished while it was read. The receiver must
    /// discard the groups that it has received.
    Abandon {
        /// The ID of the large file.
        file: u64,
    },
    /// The sender has sent everything. Sent again when one of the two numbers changes.
    Announce {
        /// Total number of items issued.
        items: u64,
        /// Number of mismatch reports that the sender has handled.
        mismatches: u64,
    },
    /// The connection of a lane was lost. The receiver must report all items of the lane as mismatches, except those
    /// that it has received.
    LaneLost {
        /// Items that were sent on the lane but not acknowledged, at most
        /// [`ITEMS_OUTSTANDING_MAX`](crate::limits::ITEMS_OUTSTANDING_MAX).
        #[serde(
            deserialize_with = "list::at_most::<{ crate::limits::ITEMS_OUTSTANDING_MAX }, _, _>"
        )]
        items: Vec<u64>,
    },
    /// Names to remove.
    Remove(Remove),
    /// A request for the progress of the probe. Only for probes.
    Sample {
        /// The number of the request, which the answer repeats.
        sample: u64,
        /// The time at which the receiver takes the sample.
        when: SampleTime,
    },
    /// An order to measure the target's storage. Only for probes.
    Sweep(SweepOrder),
    /// Events and results for the user of a receiver that has dialed. They do not affect the transfer.
    Relay(Relay),
    /// Totals of the files found by the scan so far. Each message replaces the previous one. Not sent after
    /// [`Announce`](Self::Announce).
    Found(FoundSoFar),
    /// A request about the shared job to which the session belongs.
    SharedJob(SharedJobRequest),
}

/// A message from the receiver to the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSender {
    /// The transfer may begin.
    Opened(Opened),
    /// The transfer may not begin.
    Refused(Refusal),
    /// The reply to a request.
    Reply(Reply),
    /// Receipts for items that have failed, or whose data was verified and written to the kernel. Their files have not
    /// been renamed into place yet.
    Stored(Stored),
    /// A failure that does not belong to an item, such as a failure to set a directory's metadata, or to commit a file.
    Fault(Fault),
    /// Everything is committed and flushed as requested. The transfer has ended.
    Finished(Finished),
    /// Chaining values of groups that already exist at the target. All groups belong to one file of a request.
    Held(Held),
    /// The names of a [`Remove`] were removed, except for those reported as faults.
    Removed {
        /// The number of the [`Remove`] message that this message answers.
        remove: u64,
        /// Number of removed entries, including everything below them.
        entries: u64,
    },
    /// A sample of a probe.
    Sampled(Sampled),
    /// The result of measuring the target's storage.
    Swept(Swept),
    /// The report counters of the receiver. Sent before the end if any counter is above 0. A later message replaces an
    /// earlier one.
    Counters(CounterList),
    /// Batches whose files were renamed into place and flushed as requested, except for the files in `faults`. Sent
    /// once for each batch that was stored.
    Published {
        /// The batches.
        #[serde(deserialize_with = "list::at_most::<{ crate::limits::STORED_ITEMS_MAX }, _, _>")]
        items: Vec<PublishedItem>,
    },
    /// The transfer is queued. The sender must not dial lanes before [`Opened`](Self::Opened). The receiver closes
    /// lanes that were established earlier.
    Waiting(Waiting),
    /// The answer to a request about a shared job.
    SharedJob(SharedJobAnswer),
    /// Counts of metadata that was not preserved, by kind and reason. Sent before the end, if the sender has requested
    /// to preserve additional metadata.
    NotKept {
        /// The counts.
        #[serde(deserialize_with = "list::at_most::<{ crate::limits::MISSED_MAX }, _, _>")]
        counts: Vec<NotKept>,
    },
    /// Entries that lack metadata. Sent if the sender has requested their paths.
    Missed {
        /// The entries.
        #[serde(deserialize_with = "list::at_most::<{ crate::limits::MISSED_MAX }, _, _>")]
        entries: Vec<Missed>,
    },
    /// The rate limit for the sender's key, so that the sender can limit itself. Sent before [`Opened`](Self::Opened).
    RateMax {
        /// The limit for all data connections of the key together.
        bytes_per_second: u64,
    },
    /// The host accepts the request of a receiver that has dialed. After this message, the host is the sender: it sends
    /// [`ToReceiver`] messages and receives [`ToSender`] messages.
    Fetching(Fetching),
    /// The requested grant.
    Granted(GrantToken),
    /// An order for a copy was accepted. All further messages to its client are [`Relay`]s.
    Copy(CopyState),
    /// A receipt for all files that were received under the grant in the opening. Sent before the end.
    Receipt(SignedReceipt),
    /// The result of a copy.
    Result(CopyResult),
    /// The receiver could not establish a lane that it has dialed, or lost the lane before it carried any data. The
    /// sender may not know of this lane, and must stop waiting for it.
    LaneFailed,
    /// The reason why the receiver is waiting, for display to the user. Sent before or after [`Opened`](Self::Opened).
    HeldUp {
        /// The reason, in one line.
        #[serde(
            serialize_with = "bytes::cut::<REASON_CHARS_MAX, _>",
            deserialize_with = "bytes::text::<REASON_CHARS_MAX, _>"
        )]
        text: String,
    },
    /// An entry left behind by an ended session. Only for cleanups.
    Leftover(Leftover),
}

/// The position of a transfer in the queue, and the reason why the transfer is queued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Number of transfers of the same key that are ahead in the queue.
    pub ahead: u32,
    /// The reason, in one line.
    #[serde(
        serialize_with = "bytes::cut::<REASON_CHARS_MAX, _>",
        deserialize_with = "bytes::text::<REASON_CHARS_MAX, _>"
    )]
    pub text: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ahead {
            0 => f.write_str(&self.text),
            ahead => write!(f, "{ahead} of the same key before this one; {}", self.text),
        }
    }
}

/// Receipts for items, and the results of large files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// The items.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::STORED_ITEMS_MAX }, _, _>")]
    pub items: Vec<StoredItem>,
    /// Large files that are complete or have failed.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::STORED_ITEMS_MAX }, _, _>")]
    pub files: Vec<FileDone>,
}

/// The receipt for one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredItem {
    /// The ID of the item.
    pub item: u64,
    /// Whether the item, or part of it, was damaged or lost in transit. The sender must then resend the item or give it
    /// up.
    pub mismatch: bool,
    /// The entries that failed. For a mismatch, the entries whose data was damaged.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::BATCH_ENTRIES_MAX }, _, _>")]
    pub faults: Vec<EntryFault>,
}

/// The result of renaming the files of one batch into place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedItem {
    /// The item ID of the batch.
    pub item: u64,
    /// The entries that were not renamed into place. Entries that [`Stored`] has reported may be omitted.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::BATCH_ENTRIES_MAX }, _, _>")]
    pub faults: Vec<EntryFault>,
}

/// The failure of one entry of a batch. The path is omitted because the sender knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryFault {
    /// The index of the entry in its batch, counted over all groups from 0.
    pub entry: u32,
    /// The operation that failed.
    pub operation: Operation,
    /// The cause of the failure.
    pub code: FaultCode,
}

/// The result of one large file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDone {
    /// The ID of the large file.
    pub file: u64,
    /// The operation that failed and the cause, or `None` if the file is complete.
    pub fault: Option<(Operation, FaultCode)>,
}

/// The receiver's statistics at the end of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Times of the receiving lanes. Time spent waiting for data from the network counts as starved. Time spent waiting
    /// for the writers counts as blocked.
    pub receive: StageReport,
    /// Times of the writers. Until the data is complete, time spent waiting for lanes counts as starved. The final
    /// work, including the last flush, counts as busy for all writers.
    pub store: StageReport,
    /// The duration of the last flush, in microseconds.
    pub flush_us: u64,
    /// CPU time of the receiver's process since the transfer began, in microseconds.
    pub cpu_us: u64,
}

/// Time of a stage summed over all its threads, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageReport {
    /// Time spent working.
    pub busy_us: u64,
    /// Time spent waiting for input from the previous stage.
    pub starved_us: u64,
    /// Time spent waiting for the next stage to accept output.
    pub blocked_us: u64,
    /// Time spent waiting to stay below a rate limit.
    pub paced_us: u64,
}

/// Encodes a message with its length.
///
/// # Panics
/// Never for messages within the limits.
#[must_use]
pub fn encode_message<M: Serialize>(message: &M) -> Vec<u8> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).expect("plain data always serialises");
    let len = u32::try_from(bytes.len() - 4).expect("messages stay below 8 MiB");
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// Encodes a message or the head of a frame without a length. `expected_bytes` is the expected size of the encoding.
pub(crate) fn encode_head<H: Serialize>(head: &H, expected_bytes: usize) -> Vec<u8> {
    let bytes = Vec::with_capacity(expected_bytes);
    postcard::to_extend(head, bytes).expect("plain data always serialises")
}

/// Decodes a message from `bytes`, which must not contain the length.
///
/// # Errors
/// [`WireError`] if the bytes are not exactly one message.
pub fn decode_message<M: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<M, WireError> {
    decode_message_within(bytes, |_strings| Ok(()))
}

/// Decodes one message. Before the decoder allocates names and paths, it calls `room` with their number, and `room`
/// must grant the memory. All other memory for decoding is bounded by the size of the message.
///
/// # Errors
/// Same as [`decode_message`], and any error of `room`.
pub fn decode_message_within<M: Serialize + DeserializeOwned>(
    bytes: &[u8],
    room: impl FnMut(usize) -> Result<(), WireError>,
) -> Result<M, WireError> {
    within("message", bytes.len(), MESSAGE_BYTES_MAX)?;
    take_extension_error();
    let mut decoder = postcard::Deserializer::from_flavor(StringCounter::new(bytes, room));
    let message = M::deserialize(&mut decoder);
    match (message, decoder.finalize()) {
        (_, Ok((_, Some(refused)))) => Err(refused),
        (Ok(message), Ok(([], None))) => {
            check_form(&message, bytes)?;
            Ok(message)
        }
        (Ok(_), Ok((rest, None))) => Err(WireError::Trailing { left: rest.len() }),
        (Err(_), _) | (_, Err(_)) => Err(take_extension_error().unwrap_or(WireError::Message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extensions::Extensions;
    use crate::limits::{
        ITEMS_OUTSTANDING_MAX, LISTED_NAMES_MAX, LISTED_RANGES_MAX, MESSAGE_STRINGS_MAX,
        REMOVE_NAMES_MAX, STORED_ITEMS_MAX,
    };
    use proptest::prelude::{any, prop_oneof, proptest};
    use zmove_types::{Metadata, Name, RelPath, Timestamp};

    #[test]
    fn of_a_reason_without_end_no_more_is_kept_than_a_user_reads() {
        let text = "\u{e4}".repeat(1 << 18);
        let refusal = Refusal {
            code: RefusalCode::Denied,
            text: text.clone(),
        };
        for message in [
            ToSender::Refused(refusal),
            ToSender::Waiting(Waiting { ahead: 0, text }),
        ] {
            let (ToSender::Refused(Refusal { text, .. }) | ToSender::Waiting(Waiting { text, .. })) =
                decode_message(&encode_message(&message)[4..]).unwrap()
            else {
                panic!("another message")
            };
            assert_eq!(text, "\u{e4}".repeat(4096));
        }
    }

    #[test]
    #[expect(
        clippy::too_many_lines,
        reason = "a table of the bytes of each message"
    )]
    fn tags_are_pinned() {
        let tag = |message: &ToReceiver| encode_message(message)[4];
        assert_eq!(
            tag(&ToReceiver::Request(Request {
                number: 0,
                question: Question::Send(vec![])
            })),
            1
        );
        assert_eq!(tag(&ToReceiver::Abandon { file: 0 }), 2);
        assert_eq!(
            tag(&ToReceiver::Announce {
                items: 0,
                mismatches: 0
            }),
            3
        );
        assert_eq!(tag(&ToReceiver::LaneLost { items: vec![] }), 4);
        assert_eq!(
            tag(&ToReceiver::Remove(Remove {
                remove: 0,
                groups: vec![]
            })),
            5
        );
        assert_eq!(
            tag(&ToReceiver::Sample {
                sample: 0,
                when: SampleTime::Now
            }),
            6
        );
        assert_eq!(
            tag(&ToReceiver::Sweep(SweepOrder {
                bytes: 0,
                millis: 0
            })),
            7
        );
        let found = FoundSoFar {
            files: 1,
            bytes: 300,
            skipped_bytes: 2,
            all: true,
        };
        assert_eq!(
            encode_message(&ToReceiver::Found(found))[4..],
            [9, 1, 0xAC, 2, 2, 1]
        );
        let tag = |message: &ToSender| encode_message(message)[4];
        assert_eq!(
            tag(&ToSender::Opened(Opened {
                state: TargetState::Empty,
                lanes_max: 1,
                single_name: None,
                free_bytes: None,
                process: String::new(),
                extensions: Extensions::NONE,
            })),
            0
        );
        assert_eq!(
            tag(&ToSender::Refused(Refusal {
                code: RefusalCode::Denied,
                text: String::new()
            })),
            1
        );
        for (number, code) in [(8, RefusalCode::Full), (9, RefusalCode::NotUnderWay)] {
            let refusal = Refusal {
                code,
                text: String::new(),
            };
            assert_eq!(
                encode_message(&ToSender::Refused(refusal))[4..],
                [1, number, 0]
            );
        }
        assert_eq!(tag(&ToSender::LaneFailed), 22);
        assert_eq!(
            tag(&ToSender::Reply(Reply {
                number: 0,
                answer: Answer::Verdicts(vec![])
            })),
            2
        );
        assert_eq!(tag(&ToSender::Stored(Stored::default())), 3);
        assert_eq!(tag(&ToSender::Fault(fault::tests::sample())), 4);
        assert_eq!(tag(&ToSender::Finished(Finished::default())), 5);
        assert_eq!(
            tag(&ToSender::Held(Held {
                request: 0,
                file: 0,
                first: 0,
                cvs: vec![],
                end: true
            })),
            6
        );
        assert_eq!(
            tag(&ToSender::Removed {
                remove: 0,
                entries: 0
            }),
            7
        );
        assert_eq!(tag(&ToSender::Sampled(Sampled::default())), 8);
        assert_eq!(
            tag(&ToSender::Swept(Swept {
                sizes: vec![],
                complete: true,
                fault: None
            })),
            9
        );
        assert_eq!(tag(&ToSender::Counters(CounterList::default())), 10);
        assert_eq!(tag(&ToSender::Published { items: vec![] }), 11);
        assert_eq!(
            tag(&ToSender::Waiting(Waiting {
                ahead: 0,
                text: String::new()
            })),
            12
        );
        assert_eq!(
            tag(&ToSender::RateMax {
                bytes_per_second: 0
            }),
            16
        );
    }

    #[test]
    fn a_rate_is_pinned() {
        let rate = ToSender::RateMax {
            bytes_per_second: 300,
        };
        assert_eq!(encode_message(&rate), [3, 0, 0, 0, 16, 0xAC, 2]);
        assert_eq!(decode_message(&[16, 0xAC, 2]), Ok(rate));
    }

    #[test]
    fn a_wait_in_line_is_pinned() {
        let waiting = ToSender::Waiting(Waiting {
            ahead: 300,
            text: "x".to_owned(),
        });
        let expected = [5, 0, 0, 0, 12, 0xAC, 2, 1, b'x'];
        assert_eq!(encode_message(&waiting), expected);
        assert_eq!(decode_message(&expected[4..]), Ok(waiting));
    }

    #[test]
    fn what_a_receiver_waits_for_is_pinned() {
        let held_up = ToSender::HeldUp {
            text: "x".to_owned(),
        };
        assert_eq!(encode_message(&held_up), [3, 0, 0, 0, 23, 1, b'x']);
        assert_eq!(decode_message(&[23, 1, b'x']), Ok(held_up));
    }

    #[test]
    fn what_a_cleaning_says_is_pinned() {
        assert_eq!(encode_message(&Intent::Clean)[4..], [3]);
        assert_eq!(encode_message(&Intent::CleanPreview)[4..], [4]);
        let leftover = |kind, fate| {
            ToSender::Leftover(Leftover {
                path: RelPath::from_bytes(b"a").unwrap(),
                kind,
                bytes: 300,
                fate,
            })
        };
        let until = LeftoverFate::StaysUntil { seconds: 300 };
        for (kind, fate, expected) in [
            (
                LeftoverKind::Unfinished,
                LeftoverFate::Goes,
                &[0, 0xAC, 2, 0][..],
            ),
            (
                LeftoverKind::Directory,
                LeftoverFate::Goes,
                &[1, 0xAC, 2, 0],
            ),
            (LeftoverKind::Part, until, &[2, 0xAC, 2, 1, 0xAC, 2]),
            (
                LeftoverKind::SharedJob,
                LeftoverFate::Foreign,
                &[3, 0xAC, 2, 2],
            ),
        ] {
            let expected = [&[24, 1, b'a'], expected].concat();
            assert_eq!(encode_message(&leftover(kind, fate))[4..], expected);
            assert_eq!(decode_message(&expected), Ok(leftover(kind, fate)));
        }
    }

    #[test]
    fn what_is_published_is_pinned_and_bounded() {
        let fault = EntryFault {
            entry: 3,
            operation: Operation::Flush,
            code: FaultCode::Os(5),
        };
        let items = vec![
            PublishedItem {
                item: 300,
                faults: vec![fault],
            },
            PublishedItem {
                item: 2,
                faults: vec![],
            },
        ];
        let published = ToSender::Published { items };
        let expected = [12, 0, 0, 0, 11, 2, 0xAC, 2, 1, 3, 4, 0, 10, 2, 0];
        assert_eq!(encode_message(&published)[4..], expected[4..]);
        assert_eq!(decode_message(&expected[4..]), Ok(published));
        let many = |count| {
            let items = vec![
                PublishedItem {
                    item: 1,
                    faults: vec![]
                };
                count
            ];
            decode_message::<ToSender>(&encode_message(&ToSender::Published { items })[4..])
        };
        assert!(many(STORED_ITEMS_MAX).is_ok());
        assert_eq!(many(STORED_ITEMS_MAX + 1), Err(WireError::Message));
    }

    #[test]
    fn what_a_probe_says_is_pinned() {
        assert_eq!(encode_message(&Intent::Measure)[4..], [2]);
        let sample = ToReceiver::Sample {
            sample: 300,
            when: SampleTime::Ended(7),
        };
        assert_eq!(encode_message(&sample), [5, 0, 0, 0, 6, 0xAC, 2, 1, 7]);
        let sweep = ToReceiver::Sweep(SweepOrder {
            bytes: 5,
            millis: 6,
        });
        assert_eq!(encode_message(&sweep)[4..], [7, 5, 6]);
        let sampled = ToSender::Sampled(Sampled {
            sample: 1,
            clock_us: 300,
            first_us: Some(4),
            bytes: 5,
            cpu_us: 6,
        });
        assert_eq!(encode_message(&sampled)[4..], [8, 1, 0xAC, 2, 1, 4, 5, 6]);
        let size = SweptSize {
            file_bytes: 1024,
            write: Some(3),
            read: None,
        };
        let fault = Some((Operation::Write, FaultCode::Os(28)));
        let swept = ToSender::Swept(Swept {
            sizes: vec![size],
            complete: true,
            fault,
        });
        assert_eq!(
            encode_message(&swept)[4..],
            [9, 1, 0x80, 8, 1, 3, 0, 1, 1, 2, 0, 56]
        );
        assert_eq!(decode_message(&encode_message(&swept)[4..]), Ok(swept));
    }

    #[test]
    fn sizes_of_a_sweep_are_few() {
        let swept = |count| {
            let sizes = vec![
                SweptSize {
                    file_bytes: 1,
                    write: None,
                    read: None
                };
                count
            ];
            encode_message(&ToSender::Swept(Swept {
                sizes,
                complete: false,
                fault: None,
            }))
        };
        let decode = |bytes: Vec<u8>| decode_message::<ToSender>(&bytes[4..]);
        assert!(decode(swept(crate::limits::SWEEP_SIZES_MAX)).is_ok());
        assert_eq!(
            decode(swept(crate::limits::SWEEP_SIZES_MAX + 1)),
            Err(WireError::Message)
        );
    }

    #[test]
    fn held_groups_and_what_marks_a_source_are_pinned() {
        let held = ToSender::Held(Held {
            request: 1,
            file: 2,
            first: 300,
            cvs: vec![[7; 32]],
            end: true,
        });
        let mut expected = vec![39, 0, 0, 0, 6, 1, 2, 0xAC, 2, 1];
        expected.extend([7; 32]);
        expected.push(1);
        assert_eq!(encode_message(&held), expected);
        assert_eq!(decode_message(&expected[4..]), Ok(held));
        let mark = SourceMark {
            inode: 5,
            ctime: Timestamp {
                seconds: -1,
                nanos: 6,
            },
        };
        let mtime = Timestamp {
            seconds: 3,
            nanos: 4,
        };
        let file = SourceEntry {
            name: Name::from_bytes(b"f").unwrap(),
            kind: SourceKind::File {
                bytes: 1,
                mark: Some(mark),
            },
            metadata: SourceMetadata {
                metadata: Metadata::new(2, mtime),
                xattrs: None,
            },
        };
        assert_eq!(
            encode_message(&file)[4..],
            [1, b'f', 0, 1, 1, 5, 1, 6, 2, 6, 4, 0, 0]
        );
        let differences = Differences::TIME.and(Differences::MODE);
        for (verdict, bytes) in [
            (Verdict::Replace(differences), &[3, 6][..]),
            (Verdict::Set(differences), &[4, 6]),
            (Verdict::Resume, &[7]),
            (Verdict::Delta, &[8]),
        ] {
            assert_eq!(encode_message(&verdict)[4..], *bytes);
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        let lost = |count| {
            encode_message(&ToReceiver::LaneLost {
                items: vec![300; count],
            })
        };
        let decode = |bytes: Vec<u8>| decode_message::<ToReceiver>(&bytes[4..]);
        assert!(decode(lost(ITEMS_OUTSTANDING_MAX)).is_ok());
        assert_eq!(
            decode(lost(ITEMS_OUTSTANDING_MAX + 1)),
            Err(WireError::Message)
        );
        // A list with a length of 2^63 and no elements.
        assert_eq!(
            decode([&[0; 4][..], &[4], &[0xFF; 8], &[0x7F]].concat()),
            Err(WireError::Message)
        );
    }

    fn names(count: usize) -> Vec<Name> {
        vec![Name::from_bytes(b"a").unwrap(); count]
    }

    fn listing(ranges: usize, names_each: usize) -> Vec<u8> {
        let after = Some(names(1).remove(0));
        let range = NameRange {
            directory: RelPath::root(),
            after,
            names: names(names_each),
            open: true,
        };
        encode_message(&ToReceiver::Request(Request {
            number: 1,
            question: Question::Extraneous(vec![range; ranges]),
        }))
    }

    #[test]
    fn lists_in_lists_are_bounded_together() {
        let decode = |bytes: Vec<u8>| decode_message::<ToReceiver>(&bytes[4..]).map(drop);
        let per_range = LISTED_NAMES_MAX / LISTED_RANGES_MAX;
        assert_eq!(
            decode(listing(LISTED_RANGES_MAX, per_range)),
            Ok(()),
            "as many as a sender may say"
        );
        let (value, limit) = (MESSAGE_STRINGS_MAX as u64 + 1, MESSAGE_STRINGS_MAX as u64);
        let error = WireError::OverLimit {
            what: "number of names and paths in a message",
            value,
            limit,
        };
        assert_eq!(
            decode(listing(LISTED_RANGES_MAX, per_range + 1)),
            Err(error)
        );
        assert_eq!(decode(listing(2, LISTED_NAMES_MAX)), Err(error));
        let group = RemoveGroup {
            directory: RelPath::root(),
            names: names(REMOVE_NAMES_MAX),
        };
        let groups = vec![group; REMOVE_NAMES_MAX];
        assert_eq!(
            decode(encode_message(&ToReceiver::Remove(Remove {
                remove: 1,
                groups
            }))),
            Err(error)
        );
    }

    #[test]
    fn a_message_is_decoded_as_far_as_there_is_room() {
        let bytes = listing(3, 100);
        let decode = |most: usize| {
            let (mut left, none) = (most, WireError::OutOfOrder { what: "room" });
            let room = |strings| {
                left.checked_sub(strings)
                    .map(|rest| left = rest)
                    .ok_or(none)
            };
            let decoded = decode_message_within::<ToReceiver>(&bytes[4..], room);
            (decoded.map(drop), left)
        };
        assert_eq!(decode(1000), (Ok(()), 1000 - 320), "306 of them");
        assert_eq!(
            decode(200),
            (Err(WireError::OutOfOrder { what: "room" }), 8)
        );
    }

    #[test]
    fn left_over_bytes_are_refused() {
        let mut bytes = encode_message(&ToReceiver::Abandon { file: 1 });
        bytes.push(0);
        assert_eq!(
            decode_message::<ToReceiver>(&bytes[4..]),
            Err(WireError::Trailing { left: 1 })
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_the_encoding_of_what_they_decode_to(bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            proptest::collection::vec(0..40_u8, 0..20),
        ]) {
            let to_receiver = decode_message::<ToReceiver>(&bytes).map(|it| encode_message(&it));
            let to_sender = decode_message::<ToSender>(&bytes).map(|it| encode_message(&it));
            for encoded in [to_receiver, to_sender].into_iter().flatten() {
                assert_eq!(encoded[4..], bytes);
            }
        }

        #[test]
        fn stored_survives_the_wire(items in proptest::collection::vec((any::<u64>(), any::<bool>()), 0..50)) {
            let items = items.into_iter().map(|(item, mismatch)| StoredItem {
                item, mismatch, faults: vec![EntryFault { entry: 7, operation: Operation::Write, code: FaultCode::Os(28) }],
            });
            let message = ToSender::Stored(Stored { items: items.collect(), files: vec![] });
            assert_eq!(decode_message(&encode_message(&message)[4..]), Ok(message));
        }
    }
}
