//! The limits of the protocol. Each is checked before memory is allocated.

use zmove_types::GROUP_BYTES;

use crate::error::WireError;

/// Maximum size of a control message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Maximum number of strings in all lists of one control message. A [request for extraneous
/// names](crate::Question::Extraneous) can have the most strings: its names and two more strings per range. A receiver
/// may need about 128 bytes per string in addition to the contents, which is 33 MiB for one message.
pub const MESSAGE_STRINGS_MAX: usize = LISTED_NAMES_MAX + 2 * LISTED_RANGES_MAX;
/// Maximum number of entries in one batch frame.
pub const BATCH_ENTRIES_MAX: usize = 2048;
/// Maximum size of the data in one batch or chunk frame, in bytes: one group.
#[expect(clippy::cast_possible_truncation, reason = "4 MiB fits any usize")]
pub const FRAME_DATA_BYTES_MAX: usize = GROUP_BYTES as usize;
/// Maximum size of the head of a frame, in bytes. The head is the part between the header and the data.
pub const FRAME_HEAD_BYTES_MAX: usize = 2 << 20;
/// Size of a batch head, in bytes, at which a sender closes the batch. Names of users and groups do not count toward
/// this size. The margin suffices for another entry, even if these names have their maximum length.
pub const BATCH_HEAD_BYTES_TARGET: usize = 768 << 10;
/// Maximum length of a symbolic link's target, in bytes (Linux `PATH_MAX`).
pub const SYMLINK_BYTES_MAX: usize = 4096;
/// Maximum number of items that one message acknowledges. Each item has at most [`BATCH_ENTRIES_MAX`] faults of a few
/// bytes.
pub const STORED_ITEMS_MAX: usize = 128;
/// Maximum number of items in flight: items that were sent but not acknowledged. At this limit, a sender stops reading
/// files.
pub const ITEMS_OUTSTANDING_MAX: usize = 256;
/// Maximum number of items that are in flight, or stored but not published, if the receiver reports
/// [`Published`](crate::ToSender::Published). At this limit, a sender stops reading files. A receiver publishes its
/// stored items before it holds half of this number, or after a certain time.
pub const UNPUBLISHED_ITEMS_MAX: u64 = 65_536;
/// Maximum number of entries in the items counted by [`UNPUBLISHED_ITEMS_MAX`]. A receiver holds at most half of this
/// number.
pub const UNPUBLISHED_ENTRIES_MAX: u64 = 262_144;
/// Maximum memory, in bytes, that a sender uses for unpublished entries: their names and other data kept for each
/// entry.
pub const UNPUBLISHED_NAME_BYTES_MAX: u64 = 128 << 20;
/// Maximum number of extensions of one message.
pub const EXTENSIONS_MAX: usize = 32;
/// Maximum size of an extension's value, in bytes.
pub const EXTENSION_BYTES_MAX: usize = 32 << 10;
/// Maximum number of entries that one message reports as lacking metadata. One message also has at most this number of
/// counts by kind and reason.
pub const MISSED_MAX: usize = 1024;
/// Maximum number of large files that are declared but neither complete nor abandoned. Each may keep a file open.
pub const FILES_UNFINISHED_MAX: usize = 4096;
/// Maximum number of large files that a sender has begun without having received their results. At this limit, the
/// sender begins no further files.
pub const FILES_BEGUN_MAX: u64 = 2048;
/// Maximum number of names that a transfer may declare as first components of paths in its target.
pub const TOPS_MAX: usize = 262_144;
/// Maximum number of chaining values in one message: 2 MiB in total.
pub const HELD_GROUPS_MAX: usize = 65_536;
/// Maximum number of entries in one [`Request`](crate::Request).
pub const REQUESTED_ENTRIES_MAX: usize = 4096;
/// Maximum number of bytes of paths, names and links of the entries in one [`Request`](crate::Request). The longest
/// message has space for another entry, even if all names of users and groups have their maximum length.
pub const REQUESTED_NAME_BYTES_MAX: usize = 2 << 20;
/// Maximum number of requests about entries without a reply.
pub const REQUESTS_OUTSTANDING_MAX: usize = 32;
/// Maximum number of groups to hash in one [request](crate::Question::Hash). The limit of 64 MiB lets several threads
/// share the work for one file.
pub const HASHED_GROUPS_MAX: usize = 16;
/// Maximum number of [requests for hashes](crate::Question::Hash) without a reply.
pub const HASHES_OUTSTANDING_MAX: usize = 32;
/// Maximum number of names of the source in one [request](crate::Question::Extraneous), over all its directories.
pub const LISTED_NAMES_MAX: usize = 262_144;
/// Maximum number of ranges in one [request](crate::Question::Extraneous).
pub const LISTED_RANGES_MAX: usize = 4096;
/// Maximum number of bytes of paths and names in these ranges. The longest message has space for one further path and
/// name.
pub const LISTED_NAME_BYTES_MAX: usize = 4 << 20;
/// Maximum number of [requests for extraneous names](crate::Question::Extraneous) without a reply.
pub const LISTINGS_OUTSTANDING_MAX: usize = 8;
/// Maximum number of names in one [`ExtraneousNames`](crate::ExtraneousNames).
pub const EXTRANEOUS_NAMES_MAX: usize = 65_536;
/// Maximum number of bytes of names in one [`ExtraneousNames`](crate::ExtraneousNames). The longest message has space
/// for one further name.
pub const EXTRANEOUS_NAME_BYTES_MAX: usize = 4 << 20;
/// Maximum number of names that one message removes.
pub const REMOVE_NAMES_MAX: usize = 1024;
/// Maximum number of bytes of paths and names in one [`Remove`](crate::Remove). The longest message has space for one
/// further path and name.
pub const REMOVE_NAME_BYTES_MAX: usize = 4 << 20;
/// Maximum number of [`Remove`](crate::Remove) messages without an answer.
pub const REMOVES_OUTSTANDING_MAX: usize = 8;
/// Maximum length of a process ID, in characters: four numbers of 16 digits, separated by dashes.
pub const PROCESS_CHARS_MAX: usize = 4 * 16 + 3;
/// Maximum number of lanes of one transfer.
pub const LANES_MAX: u16 = 64;
/// Maximum number of lanes that a sender uses before the receiver has announced its own limit. Every receiver accepts
/// at least this number.
pub const LANES_UNREQUESTED_MAX: u16 = 8;
/// Maximum number of entries that a sender sends before it knows whether they exist at the target.
pub const GUESSED_ENTRIES_MAX: usize = 1024;
/// Maximum number of file bytes that a sender sends before it knows whether the files exist at the target.
pub const GUESSED_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of times that the same data is resent before its file is given up.
pub const RESENDS_MAX: u8 = 3;
/// Maximum duration of a probe, in seconds.
pub const PROBE_SECONDS_MAX: u64 = 300;
/// Maximum number of bytes in one probe. A path of 100 Gbit/s carries this amount in 88 s.
pub const PROBE_BYTES_MAX: u64 = 1 << 40;
/// Maximum size of the data in one frame of filler, in bytes.
pub const FILLER_BYTES_MAX: usize = 256 << 10;
/// Maximum number of samples without an answer.
pub const SAMPLES_OUTSTANDING_MAX: usize = 8;
/// Maximum number of bytes that one probe writes to the target's storage.
pub const SWEEP_BYTES_MAX: u64 = 256 << 20;
/// Maximum time for which one probe writes to the target's storage, in milliseconds.
pub const SWEEP_MILLIS_MAX: u64 = 10_000;
/// Maximum number of file sizes in the answer to a sweep.
pub const SWEEP_SIZES_MAX: usize = 64;

/// Maximum size of a message from a receiver that has dialed, in bytes. It is large enough for a selection of the
/// maximum size.
pub const FETCH_BYTES_MAX: usize = 2 << 20;
/// Maximum number of sources of one [`Fetch`](crate::Fetch).
pub const FETCH_SOURCES_MAX: usize = 4096;
/// Maximum length of a source, in bytes (Linux `PATH_MAX`).
pub const FETCH_SOURCE_BYTES_MAX: usize = 4096;
/// Maximum number of selection rules in one [`Fetch`](crate::Fetch), and of protection rules in one
/// [`Open`](crate::Open).
pub const SELECTION_RULES_MAX: usize = 4096;
/// Maximum total size of the patterns in one selection, in bytes.
pub const SELECTION_RULE_BYTES_MAX: usize = 256 << 10;
/// Maximum number of mappings of users. Also the maximum number of mappings of groups.
pub const FETCH_MAPPINGS_MAX: usize = 1024;
/// Maximum size of the list of paths of one [`Fetch`](crate::Fetch), in bytes.
pub const FETCH_LIST_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of bytes of a list of paths in one message.
pub const FETCH_LIST_PART_BYTES_MAX: usize = 1 << 20;
/// Maximum number of names that the globs of one [`Fetch`](crate::Fetch) may match.
pub const FETCH_MATCHES_MAX: usize = 65_536;
/// Maximum size of a [`Receipt`](crate::Receipt), in bytes, with space for a target of 4096 bytes. The limit is needed
/// because the sending host stores receipts that another host has signed.
pub const RECEIPT_BYTES_MAX: usize = 8 << 10;
/// Maximum size of the certificate sent with a receipt, in bytes.
pub const CERTIFICATE_BYTES_MAX: usize = 16 << 10;
/// Maximum size of the signature of a receipt, in bytes.
pub const SIGNATURE_BYTES_MAX: usize = 1 << 10;
/// Maximum size of a [`JobGrant`](crate::JobGrant) without its signature, in bytes.
pub const JOB_GRANT_BYTES_MAX: usize = 16 << 10;
/// Maximum number of receivers of one [`JobGrant`](crate::JobGrant).
pub const JOB_GRANT_RECEIVERS_MAX: usize = 256;
/// Maximum number of certificates in a signed [`JobGrant`](crate::JobGrant). These are the certificates of the node
/// that leads the job.
pub const JOB_GRANT_CERTIFICATES_MAX: usize = 5;
/// Maximum number of events in one [`Relay`](crate::Relay).
pub const TOLD_MAX: usize = 1024;
/// Maximum length of the reason for a refusal, and of other texts of one line, in characters.
pub const REASON_CHARS_MAX: usize = 4096;
/// Maximum number of hashes in one [`Relay`](crate::Relay).
pub const HASHED_MAX: usize = 1024;

/// Maximum number of requests about a shared job, other than pings, without an answer in one session.
pub const JOB_ORDERS_OUTSTANDING_MAX: usize = 64;
/// Maximum number of ranges of missing groups in one answer.
pub const MISSING_RANGES_MAX: usize = 1024;

/// Checks a length or a count against its limit.
///
/// # Errors
/// [`WireError::OverLimit`] if the value exceeds the limit.
pub fn within<N: TryInto<u64>>(what: &'static str, value: N, limit: N) -> Result<(), WireError> {
    let [value, limit] = [value, limit].map(|number| number.try_into().unwrap_or(u64::MAX));
    if value <= limit {
        Ok(())
    } else {
        Err(WireError::OverLimit { what, value, limit })
    }
}
