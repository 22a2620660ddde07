//! The metadata of a file that changes with its contents.

use std::fs::Metadata;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

/// A version of a file, identified by its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    version: FileVersion,
    /// The change time (ctime), which programs cannot set.
    changed: (i64, i64),
}

/// The metadata that a transfer compares. Two versions of a file may have the same values of this metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileVersion {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    /// Returns the stamp of a regular file or a symbolic link, and `None` for any other type.
    pub(crate) fn of(metadata: &Metadata) -> Option<Self> {
        let kind = metadata.file_type();
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        (kind.is_file() || kind.is_symlink()).then(|| Self {
            version: FileVersion {
                inode: metadata.ino(),
                bytes: metadata.size(),
                modified,
            },
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Returns a number for this version. The hash key differs between processes, so two versions that collide in one
    /// process do not collide in another.
    pub(crate) fn number(&self, state: &RandomState) -> u64 {
        state.hash_one(self)
    }

    /// Returns a number that is the same for all versions for which a transfer would compare the same metadata.
    pub(crate) fn version_number(&self, state: &RandomState) -> u64 {
        state.hash_one(self.version)
    }
}

/// Returns the time since the file last changed, by the system clock. Changes of the name count too, because a rename
/// updates the ctime.
pub(crate) fn age(metadata: &Metadata) -> Duration {
    let seconds = metadata.mtime().max(metadata.ctime());
    let changed =
        u64::try_from(seconds).map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let age = changed
        .ok()
        .and_then(|changed| changed.elapsed().ok())
        .unwrap_or_default();
    // The timestamps were truncated to whole seconds, so the age may be up to one second too high.
    age.saturating_sub(Duration::from_secs(1))
}
