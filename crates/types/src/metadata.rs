//! A file's properties beside its bytes: mode, times, identity.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment to the nanosecond, before or after 1970, as `stat` gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds since the epoch; negative before it.
    pub seconds: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nanos: u32,
}

/// Mode and modification time of one entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// Permission bits with setuid, setgid and sticky (`& 0o7777`).
    pub mode: u32,
    /// When the contents last changed.
    pub mtime: Timestamp,
}

/// The identity of a file among all that this host can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileNumber {
    /// The number of the device that the file is stored on.
    pub device: u64,
    /// The file's inode number on that device.
    pub inode: u64,
}

impl Timestamp {
    /// The system time, or `None` where it cannot be represented.
    #[must_use]
    pub fn to_system_time(self) -> Option<SystemTime> {
        let nanos = Duration::from_nanos(u64::from(self.nanos));
        let seconds = Duration::from_secs(self.seconds.unsigned_abs());
        let whole =
            if self.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
        whole?.checked_add(nanos)
    }
}
