//! The journals of all sessions of a job, in its directory: one file each, `journal-PROCESS-TRANSFER`, by one writer.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, DirEntry, FileType};
use rustix::io::Errno;
use zmove_disk::{JOURNAL_PREFIX, READ, open_at, own_process};
use zmove_types::{Name, TransferId};

use crate::resume::journal::{self, UnfinishedFile};

/// A journal that is open.
pub(crate) struct OpenedJournal {
    pub(crate) name: Name,
    pub(crate) file: File,
    pub(crate) length: u64,
}

/// The name of a session's journal.
pub(crate) fn name_of(transfer: TransferId) -> Name {
    let text = format!("{JOURNAL_PREFIX}{}-{transfer}", own_process());
    Name::from_bytes(text.as_bytes()).expect("numbers alone are short")
}

/// The journals in the directory of a job.
///
/// # Errors
/// The system's error.
pub(crate) fn journals_in(
    directory: &OwnedFd,
) -> io::Result<impl Iterator<Item = io::Result<OpenedJournal>>> {
    let opened = |entry: rustix::io::Result<DirEntry>| open(directory, &entry?);
    Ok(Dir::read_from(directory)?.filter_map(move |entry| opened(entry).transpose()))
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
    for journal in journals_in(directory)? {
        let OpenedJournal { file, length, .. } = journal?;
        if length <= bytes_max {
            files.extend(journal::flushed_files(file)?);
        }
    }
    Ok(files)
}

/// Opens an entry that has the name of a journal; `None` where it has another name, has gone with its job, or is no
/// file. Only an open asks the server of a network file system how long the file is by now.
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
