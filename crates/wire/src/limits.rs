//! Every bound of the protocol, checked before anything is allocated.

use zmove_types::GROUP_BYTES;

use crate::error::WireError;

/// The longest control message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// The most strings in one control message, over all its lists: the names and two more for each range of a
/// [request](crate::Question::Extraneous), which has the most. A receiver may need some 128 bytes for each besides the
/// string's own: 33 MiB for a message.
pub const MESSAGE_STRINGS_MAX: usize = LISTED_NAMES_MAX + 2 * LISTED_RANGES_MAX;
/// The most entries in one batch frame.
pub const BATCH_ENTRIES_MAX: usize = 2048;
/// The most data in one batch or chunk frame, in bytes: one group.
#[expect(clippy::cast_possible_truncation, reason = "4 MiB fits any usize")]
pub const FRAME_DATA_BYTES_MAX: usize = GROUP_BYTES as usize;
/// The longest head (everything between a frame's header and its data), in bytes.
pub const FRAME_HEAD_BYTES_MAX: usize = 2 << 20;
/// The head bytes at which a sender closes a batch, without the names of users and groups. One more entry still fits
/// the maximum, even if all names of users and groups are as long as they may be.
pub const BATCH_HEAD_BYTES_TARGET: usize = 768 << 10;
/// The longest target of a symbolic link, in bytes (Linux `PATH_MAX`).
pub const SYMLINK_BYTES_MAX: usize = 4096;
/// The most items that one message acknowledges; each has at most [`BATCH_ENTRIES_MAX`] faults of a few bytes.
pub const STORED_ITEMS_MAX: usize = 128;
/// The most items in flight, which the receiver has not acknowledged; a sender reads no further.
pub const ITEMS_OUTSTANDING_MAX: usize = 256;
/// The most items in flight or stored without a name, where the receiver reports
/// [`Published`](crate::ToSender::Published); a sender reads no further. A receiver publishes before it holds half of
/// that, and, after a while, whatever it holds.
pub const UNPUBLISHED_ITEMS_MAX: u64 = 65_536;
/// The most entries of the items counted by [`UNPUBLISHED_ITEMS_MAX`]; a receiver holds no more than half of them.
pub const UNPUBLISHED_ENTRIES_MAX: u64 = 262_144;
/// The most bytes that a sender keeps of the names of these entries, with what it keeps beside each.
pub const UNPUBLISHED_NAME_BYTES_MAX: u64 = 128 << 20;
/// The most extensions of one message.
pub const EXTENSIONS_MAX: usize = 32;
/// The longest value of an extension, in bytes.
pub const EXTENSION_BYTES_MAX: usize = 32 << 10;
/// The most entries that one message names as lacking something, and the most kinds and reasons.
pub const MISSED_MAX: usize = 1024;
/// The most large files that are declared and neither whole nor given up; each may keep a file open.
pub const FILES_UNFINISHED_MAX: usize = 4096;
/// The most large files that a sender has begun and for which it has no final report; it begins no other.
pub const FILES_BEGUN_MAX: u64 = 2048;
/// The most names that a transfer may announce for the top of its target.
pub const TOPS_MAX: usize = 262_144;
/// The most chaining values in one message; together they take 2 MiB.
pub const HELD_GROUPS_MAX: usize = 65_536;
/// The most entries in one [`Request`](crate::Request).
pub const REQUESTED_ENTRIES_MAX: usize = 4096;
/// The most bytes of paths, names and links of the entries in one [`Request`](crate::Request). One more entry still
/// fits the longest message, even if all names of users and groups are as long as they may be.
pub const REQUESTED_NAME_BYTES_MAX: usize = 2 << 20;
/// The most requests about entries that wait for a reply.
pub const REQUESTS_OUTSTANDING_MAX: usize = 32;
/// The most groups that one [request](crate::Question::Hash) has hashed: 64 MiB, so that several threads share a file.
pub const HASHED_GROUPS_MAX: usize = 16;
/// The most [requests for hashes](crate::Question::Hash) that wait for a reply.
pub const HASHES_OUTSTANDING_MAX: usize = 32;
/// The most names of the source in one [request](crate::Question::Extraneous), over all its directories.
pub const LISTED_NAMES_MAX: usize = 262_144;
/// The most ranges in one [request](crate::Question::Extraneous).
pub const LISTED_RANGES_MAX: usize = 4096;
/// The most bytes of paths and names in these ranges; one more of each still fits the longest message.
pub const LISTED_NAME_BYTES_MAX: usize = 4 << 20;
/// The most [requests for extraneous names](crate::Question::Extraneous) that wait for a reply.
pub const LISTINGS_OUTSTANDING_MAX: usize = 8;
/// The most names in one [`ExtraneousNames`](crate::ExtraneousNames).
pub const EXTRANEOUS_NAMES_MAX: usize = 65_536;
/// The most bytes of names in one [`ExtraneousNames`](crate::ExtraneousNames); one more name still fits.
pub const EXTRANEOUS_NAME_BYTES_MAX: usize = 4 << 20;
/// The most names that one message removes.
pub const REMOVE_NAMES_MAX: usize = 1024;
/// The most bytes of paths and names in one [`Remove`](crate::Remove); one more of each still fits the longest message.
pub const REMOVE_NAME_BYTES_MAX: usize = 4 << 20;
/// The most [`Remove`](crate::Remove)s that wait for an answer.
pub const REMOVES_OUTSTANDING_MAX: usize = 8;
/// The longest text that identifies a process, in characters: four numbers of 16 digits, with dashes between them.
pub const PROCESS_CHARS_MAX: usize = 4 * 16 + 3;
/// The most lanes of one transfer.
pub const LANES_MAX: u16 = 64;
/// The most lanes that a sender uses before the receiver has announced its own limit; every receiver takes so many.
pub const LANES_UNASKED_MAX: u16 = 8;
/// The most entries that a sender sends before it knows whether they are at the target.
pub const GUESSED_ENTRIES_MAX: usize = 1024;
/// The most file bytes that a sender sends before it knows whether the files are at the target.
pub const GUESSED_BYTES_MAX: u64 = 1 << 20;
/// How often the same data is sent again before its file is given up.
pub const RESENDS_MAX: u8 = 3;
/// How long a probe may take, in seconds.
pub const PROBE_SECONDS_MAX: u64 = 300;
/// The most bytes that may come in one probe: what 100 Gbit/s carry in 88 s.
pub const PROBE_BYTES_MAX: u64 = 1 << 40;
/// The most data in one frame of filler, in bytes.
pub const FILLER_BYTES_MAX: usize = 256 << 10;
/// The most samples that wait for an answer.
pub const SAMPLES_OUTSTANDING_MAX: usize = 8;
/// The most that one probe writes to the target's storage, in bytes.
pub const SWEEP_BYTES_MAX: u64 = 256 << 20;
/// The longest time for which one probe writes to the target's storage, in milliseconds.
pub const SWEEP_MILLIS_MAX: u64 = 10_000;
/// The most file sizes in the answer to a sweep.
pub const SWEEP_SIZES_MAX: usize = 64;

/// The longest message of a receiver that has dialled, in bytes: a whole selection fits.
pub const FETCH_BYTES_MAX: usize = 2 << 20;
/// The most sources of one [`Fetch`](crate::Fetch).
pub const FETCH_SOURCES_MAX: usize = 4096;
/// The longest source, in bytes (Linux `PATH_MAX`).
pub const FETCH_SOURCE_BYTES_MAX: usize = 4096;
/// The most rules of a selection: of one [`Fetch`](crate::Fetch), or those that an [`Open`](crate::Open) protects.
pub const SELECTION_RULES_MAX: usize = 4096;
/// The most bytes of all patterns of such a selection.
pub const SELECTION_RULE_BYTES_MAX: usize = 256 << 10;
/// The most mappings of users, and of groups.
pub const FETCH_MAPPINGS_MAX: usize = 1024;
/// The longest list of paths of one [`Fetch`](crate::Fetch), in bytes.
pub const FETCH_LIST_BYTES_MAX: u64 = 64 << 20;
/// The most bytes of that list in one message.
pub const FETCH_LIST_PART_BYTES_MAX: usize = 1 << 20;
/// The most names that the globs of one [`Fetch`](crate::Fetch) may match.
pub const FETCH_MATCHES_MAX: usize = 65_536;
/// The longest [`Receipt`](crate::Receipt), in bytes, with room for a target of 4096 bytes: a host that has sent keeps
/// what another one has signed.
pub const RECEIPT_BYTES_MAX: usize = 8 << 10;
/// The longest certificate beside it, in bytes.
pub const CERTIFICATE_BYTES_MAX: usize = 16 << 10;
/// The longest signature of it, in bytes.
pub const SIGNATURE_BYTES_MAX: usize = 1 << 10;
/// The longest [`JobGrant`](crate::JobGrant), in bytes, without its signature.
pub const JOB_GRANT_BYTES_MAX: usize = 16 << 10;
/// The most receivers of one [`JobGrant`](crate::JobGrant).
pub const JOB_GRANT_RECEIVERS_MAX: usize = 256;
/// The most certificates of the head beside a [`JobGrant`](crate::JobGrant).
pub const JOB_GRANT_CERTIFICATES_MAX: usize = 5;
/// The most events in one [`Relay`](crate::Relay).
pub const TOLD_MAX: usize = 1024;
/// The longest reason of a refusal, and the longest other text of one line, in characters.
pub const REASON_CHARS_MAX: usize = 4096;
/// The most hashes in one [`Relay`](crate::Relay).
pub const HASHED_MAX: usize = 1024;

/// The most orders about a job in one session that wait for an answer, beside pings.
pub const JOB_ORDERS_OUTSTANDING_MAX: usize = 64;
/// The longest name of a node of a job, in bytes.
pub const NODE_BYTES_MAX: usize = 64;
/// The most ranges of missing groups in the answer to one order.
pub const MISSING_RANGES_MAX: usize = 1024;

/// Checks a length or a count against its limit.
///
/// # Errors
/// [`WireError::OverLimit`] when the value exceeds the limit.
pub fn within<N: TryInto<u64>>(what: &'static str, value: N, limit: N) -> Result<(), WireError> {
    let [value, limit] = [value, limit].map(|number| number.try_into().unwrap_or(u64::MAX));
    if value <= limit {
        Ok(())
    } else {
        Err(WireError::OverLimit { what, value, limit })
    }
}
