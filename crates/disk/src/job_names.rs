//! The names of the directories of [jobs](crate::JobDirectory) that several hosts write, and when one counts as left.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, Mode};
use zmove_types::{Name, from_hex};

use crate::tree::DIRECTORY;

/// The beginning of the name; the job's id follows.
pub(crate) const JOB_PREFIX: &str = ".zmove-job-";
/// The age from which a job in whose directory nothing has been written counts as abandoned.
const ABANDONED_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Whether a name is that of a job's directory.
#[must_use]
pub fn is_job_directory(name: &[u8]) -> bool {
    name.strip_prefix(JOB_PREFIX.as_bytes()).and_then(from_hex::<16>).is_some()
}

/// Whether nothing has been written to the directory of a job for so long that nobody works at it any more.
pub(crate) fn is_abandoned_job(parent: BorrowedFd<'_>, name: &Name) -> bool {
    is_job_directory(name.as_bytes()) && is_unchanged_for(parent, name, ABANDONED_AGE)
}

pub(crate) fn is_unchanged_for(parent: BorrowedFd<'_>, name: &Name, least: Duration) -> bool {
    let look = || -> io::Result<bool> {
        let directory = rustix::fs::openat(parent, name.as_os_str(), DIRECTORY, Mode::empty())?;
        let mut newest = rustix::fs::fstat(&directory)?.st_ctime;
        for entry in Dir::read_from(&directory)? {
            let stat = rustix::fs::statat(&directory, entry?.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            newest = newest.max(stat.st_ctime);
        }
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(newest).unwrap_or(0));
        Ok(SystemTime::now().duration_since(changed).is_ok_and(|age| age > least))
    };
    look().unwrap_or(false)
}
