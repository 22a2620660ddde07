//! The journals of all sessions of a job, in its directory: one file each, `journal-EPOCH-PROCESS-TRANSFER`, by one
//! writer.
//!
//! They are read by whoever needs them, while others write: a count reads those of all epochs, and the commit of a
//! large file all those of its own, from the beginning. One that ends in the middle of a record is read up to there.
//! **Invariant:** no more is read than [`JOURNALS_MAX`] files and [`BYTES_MAX`] bytes, and what is kept of them is
//! booked on the key.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use zmove_disk::own_process;
use zmove_types::{Name, RelPath, TransferId};
use zmove_wire::WorkEnd;

use crate::resume::journal::{SourceVersion, UnfinishedFile, read_shared_job};

const PREFIX: &str = "journal-";
/// The most journals of one job.
const JOURNALS_MAX: usize = 1 << 16;
/// The most bytes of all of them.
const BYTES_MAX: u64 = 4 << 30;

/// The name of a session's journal.
pub(super) fn name_of(epoch: u64, transfer: TransferId) -> Name {
    let text = format!("{PREFIX}{epoch}-{}-{transfer}", own_process());
    Name::from_bytes(text.as_bytes()).expect("numbers alone are short")
}

/// The epoch of a journal, by its name.
fn epoch_of(name: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
    text.split_once('-')?.0.parse().ok()
}

/// Reads the journals of these epochs one after the other: the large files in them that are wanted, and the ends of
/// work one by one.
///
/// # Errors
/// The system's error; `EFBIG` where there is more than may be read, and any error of `ended`.
pub(super) fn read(
    directory: &OwnedFd,
    epochs: impl Fn(u64) -> bool,
    wanted: impl Fn(&RelPath, &SourceVersion) -> bool,
    mut ended: impl FnMut(WorkEnd) -> io::Result<()>,
    mut take: impl FnMut(Vec<UnfinishedFile>) -> io::Result<()>,
) -> io::Result<()> {
    let (mut files, mut bytes) = (0, 0);
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !epoch_of(entry.file_name().to_bytes()).is_some_and(&epochs) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(directory, entry.file_name(), flags, Mode::empty()) {
            // the job has ended
            Err(Errno::NOENT) => continue,
            opened => opened?,
        };
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            continue;
        }
        files += 1;
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        bytes += length;
        if files > JOURNALS_MAX || bytes > BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        let mut failed = Ok(());
        let source = io::Read::take(File::from(file), length);
        let journal = read_shared_job(source, &wanted, |end| {
            if failed.is_ok() {
                failed = ended(end);
            }
        })?;
        failed?;
        take(journal)?;
    }
    Ok(())
}
