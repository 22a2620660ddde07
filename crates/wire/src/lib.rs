//! The protocol of zmove, without I/O and without a clock: the encoding of messages, and the order in which they are
//! allowed.
//!
//! Control messages travel on one connection in both directions. Data travels on lanes, in frames with a
//! [`FrameHeader`], only from sender to receiver. `docs/PROTOCOL.md` has the byte tables. **Invariant:** data from a
//! peer is used only after its length was checked against a limit in [`limits`].
//!
//! ```
//! use zmove_wire::{FrameHeader, FrameKind};
//! use zmove_types::ItemId;
//! let header = FrameHeader { kind: FrameKind::Batch, item: ItemId(7), ..FrameHeader::default() };
//! assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
//! ```

mod batch;
mod control_frame;
mod error;
#[cfg(test)]
mod examples;
mod extensions;
mod frame;
mod greeting;
pub mod limits;
mod message;
mod ranges;
pub mod session;

pub use batch::{
    Batch, BatchEntry, DIRECTORY_HEAD_BYTES, DirectoryGroup, FileEntry, FileHead, LinkEntry,
    directory_batches,
};
pub use control_frame::{ControlHeader, encode_ping, encode_pong};
pub use error::{WireError, out_of_order};
pub use extensions::{Extension, Extensions};
pub use frame::{FrameHeader, FrameKind};
pub use greeting::{
    ANY_PROTOCOL_NAME, Cipher, Greeting, GreetingError, PATH_CHECK_BYTES, PATH_CHECK_NAME,
    PROTOCOL_NAME, PROTOCOL_VERSION, Role, check_version,
};
pub use message::{
    AccountMatch, AfterErrors, Answer, Begin, BestRate, Bottleneck, Compare, CopyOrder, CopyResult,
    CopyState, CounterList, Differences, DirectoryReplacement, Durability, EarlierSession,
    EmptySources, EndedCopy, EntryFault, EntryGroup, Extraneous, ExtraneousName, ExtraneousNames,
    Fault, FaultCode, Fetch, Fetching, FileDone, FileGroups, FileHash, FileTotal, Finished,
    FoundSoFar, GrantOrder, GrantToken, GroupHashes, GroupRange, Held, HostAddress, Intent,
    JobGrant, LaneOrder, LearnedSettings, Leftover, LeftoverFate, LeftoverKind, Limit, ListOrder,
    Mapping, Missed, NameRange, NotKept, NotKeptReason, Open, Opened, Operation, Overwrite,
    OwnerOrder, PathAdvice, PathReport, PreserveOptions, Proof, PublishedItem, Question, Receipt,
    Refusal, RefusalCode, Relay, RemovalOrder, Remove, RemoveGroup, Reply, Request, RuleText,
    SampleTime, Sampled, SharedJobAnswer, SharedJobOpening, SharedJobOrder, SharedJobRequest,
    SharedJobResult, SignedJobGrant, SignedReceipt, SourceEntry, SourceKind, SourceMark,
    SourceMetadata, SourcePath, StageReport, Stored, StoredItem, Summary, SweepOrder, Swept,
    SweptSize, TargetShape, TargetState, ToReceiver, ToSender, ToSource, TransferAccount,
    TransferProgress, TransportChoice, Verdict, Waiting, XattrDigest, Zeros, decode_message,
    decode_message_within, encode_message,
};
