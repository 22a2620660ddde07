//! What of a file changes when its contents do.

use std::fs::Metadata;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

/// A version of a file, as far as its metadata tells one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    look: FileLook,
    /// The time of the last change that nobody can set.
    changed: (i64, i64),
}

/// What a transfer compares, as far as the watched side goes: two versions of a file may look the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileLook {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl Stamp {
    /// The stamp of what is moved: regular files and links; none of anything else.
    pub(crate) fn of(metadata: &Metadata) -> Option<Self> {
        let kind = metadata.file_type();
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        (kind.is_file() || kind.is_symlink()).then(|| Self {
            look: FileLook {
                inode: metadata.ino(),
                bytes: metadata.size(),
                modified,
            },
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// The number of this version. Another process has other numbers, so two versions with the same number by chance
    /// differ there.
    pub(crate) fn number(&self, state: &RandomState) -> u64 {
        state.hash_one(self)
    }

    /// The number of all versions that look like this one.
    pub(crate) fn number_of_look(&self, state: &RandomState) -> u64 {
        state.hash_one(self.look)
    }
}

/// How long a file has been as it is, by the clock on the wall: its contents, and its name too, since a rename changes
/// the second time.
pub(crate) fn age(metadata: &Metadata) -> Duration {
    let seconds = metadata.mtime().max(metadata.ctime());
    let changed =
        u64::try_from(seconds).map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let age = changed
        .ok()
        .and_then(|changed| changed.elapsed().ok())
        .unwrap_or_default();
    // The seconds were cut off.
    age.saturating_sub(Duration::from_secs(1))
}
