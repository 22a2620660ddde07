//! The journals of all sessions of a job. Each journal is a file `journal-PROCESS-TRANSFER` in the job's directory with
//! a single writer.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{DirEntry, FileType};
use rustix::io::Errno;
use zmove_disk::{JOURNAL_PREFIX, READ, list_directory, open_at, own_process};
use zmove_types::{Name, TransferId};

use crate::resume::journal::{self, UnfinishedFile};

/// An open journal.
pub(crate) struct OpenedJournal {
    pub(crate) name: Name,
    pub(crate) file: File,
    pub(crate) length: u64,
}

/// Returns the name of a session's journal.
pub(crate) fn name_of(transfer: TransferId) -> Name {
    let text = format!("{JOURNAL_PREFIX}{}-{transfer}", own_process());
    Name::from_bytes(text.as_bytes()).expect("numbers alone are short")
}

/// Opens the journals in the directory of a job.
///
/// # Errors
/// Returns an I/O error if the directory cannot be read. Each item may also be an I/O error.
pub(crate) fn journals_in(
    directory: &OwnedFd,
) -> io::Result<impl Iterator<Item = io::Result<OpenedJournal>>> {
    let opened = |entry: rustix::io::Result<DirEntry>| open(directory, &entry?);
    Ok(list_directory(directory)?.filter_map(move |entry| opened(entry).transpose()))
}

/// Returns the files of all journals, with their flushed groups. Skips journals longer than `bytes_max`.
///
/// # Errors
/// Returns an I/O error if the directory or a journal cannot be read.
pub(crate) fn flushed_files(
    directory: &OwnedFd,
    bytes_max: u64,
) -> io::Result<Vec<UnfinishedFile>> {
    let mut files = Vec::new();
    for journal in journals_in(directory)? {
        let OpenedJournal { file, length, .. } = journal?;
        if length <= bytes_max {
            files.extend(journal::flushed_files(file)?);
        }
    }
    Ok(files)
}

/// Opens an entry if it is a journal. Returns `None` if its name is not that of a journal, if it was removed with its
/// job, or if it is not a regular file. Opening the file is necessary to get its current length from the server of a
/// network file system.
fn open(directory: &OwnedFd, entry: &DirEntry) -> io::Result<Option<OpenedJournal>> {
    let name = entry.file_name().to_bytes();
    let Some(name) = name
        .starts_with(JOURNAL_PREFIX.as_bytes())
        .then(|| Name::from_bytes(name).ok())
        .flatten()
    else {
        return Ok(None);
    };
    let file = match open_at(directory, &name, READ) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    let stat = rustix::fs::fstat(&file)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(is_file.then(|| OpenedJournal {
        name,
        file: file.into(),
        length: u64::try_from(stat.st_size).unwrap_or(0),
    }))
}
