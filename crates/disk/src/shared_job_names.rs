//! The names of the directories of [jobs](crate::SharedJobDirectory) that several hosts write.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType};
use zmove_types::{Name, from_hex};

/// The beginning of the name; the job's id follows.
pub(crate) const JOB_PREFIX: &str = ".zmove-job-";

/// Whether an entry is a job's directory, as far as its name and kind tell.
#[must_use]
pub fn is_shared_job_directory(parent: BorrowedFd<'_>, name: &[u8]) -> bool {
    // The name first: most are others, and need no look.
    let is_named = name.strip_prefix(JOB_PREFIX.as_bytes()).and_then(from_hex::<16>).is_some();
    let stat = |name: Name| rustix::fs::statat(parent, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW).ok();
    let kind = || Some(FileType::from_raw_mode(stat(Name::from_bytes(name).ok()?)?.st_mode));
    is_named && kind() == Some(FileType::Directory)
}
