//! The journals of all sessions of a job, in its directory: one file each, `journal-PROCESS-TRANSFER`, by one writer.
//!
//! The commit of a large file reads them, while others write. Orders are repeated until all is there, so a session
//! remembers how far it has read each journal, and reads on from there. One that ends in the middle of a record is read
//! up to that.
//!
//! **Invariant:** for one order no more is read than [`JOURNALS_MAX`] files and [`BYTES_MAX`] bytes, one record after
//! the other, and what is kept of a record is booked on the key before the next one is read.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType};
use rustix::io::Errno;
use zmove_disk::{JOURNAL_PREFIX, READ, open_at, own_process};
use zmove_types::{Name, TransferId};

use crate::resume::journal::{self, Record, UnfinishedFile, read_on};
use crate::rights::quota::Booking;

/// The most journals of one job.
const JOURNALS_MAX: usize = 1 << 16;
/// Maximum number of bytes of all journals that are read for one order. They take time, in which only orders of this
/// session wait. They take no memory, which is booked for what is kept of a record. So the limit is far above the size
/// of the journals of any job.
const BYTES_MAX: u64 = 1 << 40;
/// The memory of a journal that has been read, beside what it says.
const KEPT_BYTES: usize = 256;

/// How far the journals of a job have been read, and with each of them what is to be known to read on.
#[derive(Debug)]
pub(crate) struct Journals<T> {
    read: HashMap<Name, Cursor<T>>,
    held: Booking,
}

#[derive(Debug, Default)]
struct Cursor<T> {
    position: u64,
    state: T,
}

/// The name of a session's journal.
pub(crate) fn name_of(transfer: TransferId) -> Name {
    let text = format!("{JOURNAL_PREFIX}{}-{transfer}", own_process());
    Name::from_bytes(text.as_bytes()).expect("numbers alone are short")
}

impl<T: Default> Journals<T> {
    /// None of them has been read. `held` has booked nothing yet.
    pub(crate) fn new(held: Booking) -> Self {
        Self {
            read: HashMap::new(),
            held,
        }
    }

    /// Reads on in the journals, one after the other. `take` gets the state that belongs to a journal,
    /// a record of it, and the offset at which that ends. Where it fails, the record is read again the next time.
    ///
    /// # Errors
    /// The system's error; `EFBIG` where there is more than may be read, and any error of `take`.
    pub(crate) fn read_on(
        &mut self,
        directory: &OwnedFd,
        mut take: impl FnMut(&mut T, Record, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut files = 0;
        let mut bytes = 0;
        for entry in Dir::read_from(directory)? {
            let Some(name) = journal_name(entry?.file_name().to_bytes()) else {
                continue;
            };
            // Only an open asks the server of a network file system how long the file is by now.
            let Some((mut file, length)) = open(directory, &name)? else {
                continue;
            };
            let cursor = self.cursor(name)?;
            files += 1;
            bytes += length.saturating_sub(cursor.position);
            if files > JOURNALS_MAX || bytes > BYTES_MAX {
                return Err(Errno::FBIG.into());
            }
            if length > cursor.position {
                file.seek(SeekFrom::Start(cursor.position))?;
                let unread = file.take(length - cursor.position);
                let Cursor { position, state } = cursor;
                read_on(unread, position, |record, end| take(state, record, end))?;
            }
        }
        Ok(())
    }

    fn cursor(&mut self, name: Name) -> io::Result<&mut Cursor<T>> {
        if !self.read.contains_key(&name) {
            self.held
                .grow(KEPT_BYTES)
                .map_err(|_over_limit| Errno::NOMEM)?;
        }
        Ok(self.read.entry(name).or_default())
    }
}

/// The files of all journals that have flushed groups. Journals that are longer than `bytes_max` are left out.
///
/// # Errors
/// The system's error.
pub(crate) fn flushed_files(
    directory: &OwnedFd,
    bytes_max: u64,
) -> io::Result<Vec<UnfinishedFile>> {
    let mut files = Vec::new();
    for entry in Dir::read_from(directory)? {
        if let Some(name) = journal_name(entry?.file_name().to_bytes())
            && let Some((file, length)) = open(directory, &name)?
            && length <= bytes_max
        {
            files.extend(journal::flushed_files(file)?);
        }
    }
    Ok(files)
}

/// The name, if it is that of a journal.
fn journal_name(name: &[u8]) -> Option<Name> {
    let is_one = name.starts_with(JOURNAL_PREFIX.as_bytes());
    is_one.then(|| Name::from_bytes(name).ok())?
}

/// Opens a journal, and tells its length; `None` where it has gone with its job, or is no file.
fn open(directory: &OwnedFd, name: &Name) -> io::Result<Option<(File, u64)>> {
    let file = match open_at(directory, name, READ) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    let stat = rustix::fs::fstat(&file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(is_file.then(|| (File::from(file), u64::try_from(stat.st_size).unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::quota::limits::Limits;
    use crate::rights::quota::{Quota, Quotas};
    use zmove_transport::Fingerprint;
    use zmove_types::ByteCount;

    fn read_all(directory: &tempfile::TempDir, quota: &Quota) -> io::Result<()> {
        let fd = OwnedFd::from(File::open(directory.path())?);
        Journals::<()>::new(quota.book_nothing()).read_on(&fd, |(), _, _| Ok(()))
    }

    fn error_of(read: io::Result<()>) -> Option<Errno> {
        read.err().and_then(|error| Errno::from_io_error(&error))
    }

    #[test]
    fn no_more_than_so_many_bytes_of_all_journals_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let set_length = |name: &str, bytes| {
            File::create(directory.path().join(name))
                .unwrap()
                .set_len(bytes)
                .unwrap();
        };
        set_length("journal-1-a", BYTES_MAX - 1);
        set_length("heartbeat-a", BYTES_MAX);
        set_length("journal-1-b", 1);
        assert_eq!(error_of(read_all(&directory, &Quota::default())), None);
        set_length("journal-1-b", 2);
        assert_eq!(
            error_of(read_all(&directory, &Quota::default())),
            Some(Errno::FBIG)
        );
    }

    #[test]
    fn no_more_than_so_many_journals_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let create = |number| {
            drop(File::create(directory.path().join(format!("journal-1-{number}"))).unwrap())
        };
        (0..JOURNALS_MAX).for_each(create);
        assert_eq!(error_of(read_all(&directory, &Quota::default())), None);
        create(JOURNALS_MAX);
        assert_eq!(
            error_of(read_all(&directory, &Quota::default())),
            Some(Errno::FBIG)
        );
    }

    #[test]
    fn a_journal_that_is_known_is_booked_once() {
        let directory = tempfile::tempdir().unwrap();
        let limits = Limits {
            memory_per_identity: ByteCount(2 * KEPT_BYTES as u64),
            ..Limits::default()
        };
        let quota = Quotas::default().of(Fingerprint([1; 32]), &limits);
        let fd = OwnedFd::from(File::open(directory.path()).unwrap());
        let mut journals = Journals::<()>::new(quota.book_nothing());
        let mut read_with = |name: &str| {
            std::fs::write(directory.path().join(name), "").unwrap();
            error_of(journals.read_on(&fd, |(), _, _| Ok(())))
        };
        assert_eq!(
            ["journal-1-a", "journal-2-a", "journal-2-a"].map(&mut read_with),
            [None; 3]
        );
        assert_eq!(read_with("journal-3-a"), Some(Errno::NOMEM));
    }
}
