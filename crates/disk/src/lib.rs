//! File system access for transfers: positional I/O, paths that stay beneath their root, and a commit that renames a
//! file to its final name only when the file is complete.
//!
//! ```no_run
//! use zmove_disk::{Lease, Permit, Replace, Staged, Tree, set_file_mtime};
//! use zmove_types::{Name, RelPath, Timestamp};
//! let tree = Tree::open(std::path::Path::new("/data"))?;
//! let directory = tree.ensure_directory(&RelPath::from_bytes(b"run7").unwrap())?;
//! let staged = Staged::create(&directory, 0o644)?;
//! std::io::Write::write_all(&mut staged.file(), b"...")?;
//! set_file_mtime(Permit::for_hidden(), staged.file(), Timestamp::default())?;
//! let lease = Lease::constant();
//! staged.commit(&lease, &Name::from_bytes(b"events.h5").unwrap(), Replace::Existing)?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod cache_file;
mod metadata;
mod opening;
mod publishing;
mod replace_file;
mod shared_job;
mod staging;
mod storage;

pub use cache_file::{CacheFile, CacheValue, today};
pub use metadata::attributes::renew_times;
pub use metadata::entry::metadata::{MetadataFailure, WantedMetadata};
pub use metadata::entry::open_despite_mode::{hold_new, open_despite_mode};
pub use metadata::entry::proven::ProvenKinds;
pub use metadata::entry::xattrs::{Descriptor, EntryXattrs, HasXattrs, NameAt, mode_without_acl};
pub use metadata::entry::{
    FileIdentity, is_foreign_owner, is_foreign_owner_failure, is_same_file, number_at, number_of,
    set_file_mtime, set_metadata_if_unchanged,
};
pub use metadata::storable_times::{is_out_of_range, is_storable_everywhere};
pub use metadata::time_resolutions::TimeResolutions;
pub use opening::by_name::{
    READ, create_at, is_listable, list_directory, open_at, remove_directory_at, stat_at, unlink_at,
};
pub use opening::dead_mount::{PathCause, is_file_system_gone};
pub use opening::proc::{Mount, boot_id, is_mount_point, mounts, unescape_mountinfo};
pub use opening::region::Region;
pub use opening::tree::roots::{OwnPaths, RootGuard, Roots, SilentRoots};
pub use opening::tree::trusted_path::path_parts;
pub use opening::tree::{DirectoryModes, Tree, open_beneath};
pub use opening::unanswered::{Unanswered, access_path};
pub use publishing::lease::{Clock, LEASE_MAX, Lease, Permit, SUSPENSION_MAX, boot_clock};
pub use publishing::link::{Linked, NonRegular, place_link, place_link_to_non_regular};
pub use publishing::publish::{Replace, place_symlink, publish_file, publish_from};
pub use publishing::remove::{
    RemovalBudget, refuse_mount, remove_entries, remove_entries_within, remove_open_directory,
};
pub use publishing::special::{is_special_at, place_special};
pub use replace_file::replace_file;
pub use shared_job::directory::{
    DEAD_AFTER, Heartbeat, JOB_ENDED, JOURNAL_PREFIX, JobSession, Liveness, NewEntryGroup,
    PART_GONE, PartState, RETRY_INTERVAL, SharedJobDirectory, SharedJobError, VISIBILITY_TIMEOUT,
    WatchedJob, list_shared_jobs,
};
pub use shared_job::names::is_shared_job_name;
pub use staging::abandoned::{remove_abandoned, remove_leftover};
pub use staging::hidden::{
    HiddenEntries, LastingNames, has_process_ended, is_hidden, is_part, is_temporary, list_hidden,
    make_hidden, own_process,
};
pub use staging::name_check::check_name;
pub use staging::new_files::NewFiles;
pub use staging::staged::Staged;
pub use staging::staged::existing::{Change, Existing};
pub use staging::staging_directory::{MergeCallbacks, StagingDirectory, set_default_mode};
pub use storage::file_io::contents::ContentsWriter;
pub use storage::file_io::data_file::{DataFile, Direct, free_bytes, lacks_inodes};
pub use storage::file_io::fault::{FaultAt, Faulty, InjectedFault, RequestKind};
pub use storage::file_io::storage_engine::StorageEngine;
pub use storage::file_io::storage_reader::{
    BUFFER_BYTES, StorageReader, StoredFile, value_or_zeros,
};
pub use storage::file_io::{FileIo, IoMode, IoResult, SliceCallback};
pub use storage::holes::{find_data, find_nonzero_data, next_data, next_data_offset, write_data};
pub use storage::storage_threads::memory::{FileSystemThreadCounts, StorageWork, ThreadCountCache};
pub use storage::storage_threads::{StorageThreads, Task, Turn, cores};
pub use zmove_uring::{Ring, RingConfig, Span, Unavailable, cached_bytes, close};
