//! The basic types of zmove: sizes, identifiers, relative paths, digests and events.
//!
//! All other crates use these types. This crate does no I/O, needs no async runtime and depends only on serde.
//!
//! **Invariant:** a value of one of these types is always valid. Input is parsed once, where it enters the program.
//!
//! ```
//! use zmove_types::RelPath;
//! let path = RelPath::from_bytes(b"run7/events.h5").unwrap();
//! assert_eq!(path.file_name().unwrap().as_bytes(), b"events.h5");
//! assert!(RelPath::from_bytes(b"../etc/passwd").is_err());
//! ```

mod buffer;
pub mod bytes;
mod entry;
mod escaped;
mod hash_set;
mod hex;
mod ids;
pub mod list;
mod lock;
mod rate_limit;
mod report;
mod units;

pub use buffer::{Buffer, BufferPool, MemoryId, PAGE_BYTES};
pub use entry::data_ranges::{DataRanges, DataRangesBuilder};
pub use entry::digest::{Cv, Root};
pub use entry::kinds::{MetadataKinds, NeverCopied};
pub use entry::metadata::{
    ALLOCATION_BYTES, Account, Accounts, ExtraMetadata, FileNumber, Ids, Metadata, NoAccounts,
    Special, Timestamp, Xattr, unix_now,
};
pub use entry::rel_path::{Name, PathError, RelPath};
pub use escaped::{Escaped, Printable, is_unprintable, printable};
pub use hash_set::HashOnlySet;
pub use hex::{Hex, from_hex};
pub use ids::{Beginning, FileId, ItemId, LaneId, SharedJobId, TransferId, WorkId};
pub use lock::Lock;
pub use rate_limit::{ParseRateError, RateLimit};
pub use report::counters::{
    AtomicCounter, AtomicCounters, CounterRow, CounterScope, Counters, ExitEffect, Merge, Phrase,
};
pub use report::delivery_log::{BytesByOrigin, DeliveryLog, Origin};
pub use report::event::{
    Change, ChangeKind, EntryForm, Event, LISTED_MAX, NoObserver, Observer, Sample, Side,
};
pub use report::stage::{StageClock, StageTimes, Stopwatch, ThreadState};
pub use units::{
    ByteCount, ByteRate, GROUP_BYTES, GroupSpan, ParseSizeError, SizeClass, parse_size, parse_span,
    percent,
};
