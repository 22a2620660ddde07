//! The journals in a directory: those in use, and those of dead writers.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::locked_file::{self, LockedFile};
use super::naming::{NameHashes, NamedJournal, entries, journals};
use super::reader::{self, Replay, replay};
use super::record::{BootId, Record};
use super::{Begin, JournalError, Unfinished};

/// A journal whose writer has ended. It is locked, so that no other process can take it over.
#[derive(Debug)]
pub struct Orphan {
    held: LockedFile,
    unfinished: Unfinished,
    modified: SystemTime,
    /// The offset at which the last valid record ends.
    end: u64,
}

/// The result of taking over a journal. The error contains the path of an unusable journal, which is left unchanged.
pub type Taken = Result<Orphan, (PathBuf, JournalError)>;

/// A journal found in a directory.
#[derive(Debug)]
pub struct FoundJournal {
    /// The journal's path.
    pub path: PathBuf,
    /// Whether another process is writing the journal or is about to take it over.
    pub in_use: bool,
    /// The size of the journal in bytes.
    pub bytes: u64,
    /// Time of the last write to the journal.
    pub modified: SystemTime,
    /// The journal's contents, or the error from reading the journal.
    pub contents: Result<Unfinished, JournalError>,
}

impl Orphan {
    /// Releases the lock, so that another process can take over the journal.
    pub(crate) fn unlock(&self) {
        locked_file::unlock(&self.held.file);
    }

    /// Takes over the journal at `path`. Returns `None` if another process holds its lock or it no longer exists.
    ///
    /// # Errors
    /// [`JournalError`]. The file is left unchanged.
    pub fn take(path: &Path) -> Result<Option<Self>, JournalError> {
        let Some(held) = LockedFile::take(path)? else {
            return Ok(None);
        };
        let replay = read(&held.file, path)?;
        Ok(Some(Self {
            modified: modified(&held.file, path)?,
            held,
            end: replay.end,
            unfinished: replay.unfinished(BootId::current()),
        }))
    }

    /// Records that a file was taken over or is no longer needed, so that later transfers do not find it in this
    /// journal. Truncates an incomplete record at the end of the journal.
    ///
    /// # Errors
    /// The system's error.
    pub fn record_end(&mut self, file: u64) -> Result<(), JournalError> {
        let record = Record::Ended { file }.encode()?;
        let journal = &self.held.file;
        // The modification time is preserved, because it shows when the parts in the journal were last written.
        let written = journal
            .set_len(self.end)
            .and_then(|()| journal.write_all_at(&record, self.end));
        written
            .and_then(|()| journal.set_modified(self.modified))
            .map_err(JournalError::io("write", &self.held.path))?;
        self.end += record.len() as u64;
        self.unfinished
            .files
            .retain(|unfinished| unfinished.file != file);
        Ok(())
    }

    /// The journal's contents.
    #[must_use]
    pub fn unfinished(&self) -> &Unfinished {
        &self.unfinished
    }

    /// The journal's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.held.path
    }

    /// Returns the time of the last write to the journal.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        self.modified
    }

    /// Removes the journal.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(self) -> Result<(), JournalError> {
        self.held.remove()
    }
}

/// Takes over all journals in `directory` whose lock no process holds. A journal that cannot be read is left unchanged,
/// and its path is returned.
///
/// # Errors
/// [`JournalError`] if the directory cannot be read. A directory that does not exist contains no journals.
pub fn orphans(directory: &Path) -> Result<Vec<Taken>, JournalError> {
    let paths = sweep(directory)?.into_iter().map(|named| named.path);
    Ok(take_all(paths, |_| true))
}

/// Takes over journals like [`orphans`], but only those with the owner and target directory of `begin`. `wanted` must
/// return true for the first record.
///
/// Other journals are not locked, so that other transfers can take them over. Journals of other owners and targets are
/// not even opened, because there may be many of them.
///
/// # Errors
/// Same as [`orphans`].
pub fn orphans_like(
    directory: &Path,
    begin: &Begin,
    wanted: impl Fn(&Begin) -> bool,
) -> Result<Vec<Taken>, JournalError> {
    let tags = NameHashes::of(begin);
    let alike = sweep(directory)?
        .into_iter()
        .filter(|named| named.tags == tags);
    Ok(take_all(alike.map(|named| named.path), wanted))
}

fn take_all(paths: impl Iterator<Item = PathBuf>, wanted: impl Fn(&Begin) -> bool) -> Vec<Taken> {
    let taken = paths.filter_map(|path| match take_if(&path, &wanted) {
        Ok(orphan) => orphan.map(Ok),
        Err(error) => Some(Err((path, error))),
    });
    taken.collect()
}

/// Returns all journals in `directory` without taking them over.
///
/// # Errors
/// [`JournalError`] if the directory cannot be read. A directory that does not exist contains no journals.
pub fn list(directory: &Path) -> Result<Vec<FoundJournal>, JournalError> {
    journals(directory)?
        .filter_map(|named| look_at(named.path).transpose())
        .collect()
}

/// Removes a journal without reading it. Returns `false` if another process holds its lock or it no longer exists.
///
/// # Errors
/// The system's error.
pub fn discard(path: &Path) -> Result<bool, JournalError> {
    LockedFile::take(path)?.map_or(Ok(false), |held| held.remove().map(|()| true))
}

/// Returns the paths and modification times of all journals in `directory`.
pub(super) fn aged(directory: &Path) -> Result<Vec<(PathBuf, SystemTime)>, JournalError> {
    let mut aged = Vec::new();
    for NamedJournal { path, .. } in journals(directory)? {
        if let Some((_bytes, modified)) = length_and_age(&path)? {
            aged.push((path, modified));
        }
    }
    Ok(aged)
}

fn take_if(path: &Path, wanted: &impl Fn(&Begin) -> bool) -> Result<Option<Orphan>, JournalError> {
    let Some(file) = locked_file::open(path)? else {
        return Ok(None);
    };
    match reader::begin(&file).map_err(JournalError::io("read", path))? {
        Ok(begin) if wanted(&begin) => Orphan::take(path),
        Ok(_of_no_interest) => Ok(None),
        Err(error) => LockedFile::take(path)?.map_or(Ok(None), |_held| Err(error)),
    }
}

/// Returns the journals of a directory. First removes incomplete journals whose writer died while creating or rewriting
/// them.
fn sweep(directory: &Path) -> Result<Vec<NamedJournal>, JournalError> {
    let mut journals = entries(directory)?;
    for left in journals.extract_if(.., |named| named.is_new) {
        discard(&left.path)?;
    }
    Ok(journals)
}

fn look_at(path: PathBuf) -> Result<Option<FoundJournal>, JournalError> {
    let Some((bytes, modified)) = length_and_age(&path)? else {
        return Ok(None);
    };
    let opened = locked_file::open(&path).and_then(|file| {
        let Some(file) = file else { return Ok(None) };
        let in_use = locked_file::is_in_use(&file).map_err(JournalError::io("lock", &path))?;
        let contents = read(&file, &path).map(|replay| replay.unfinished(BootId::current()));
        Ok(Some((in_use, contents)))
    });
    let (in_use, contents) = match opened {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(None),
        Err(error) => (false, Err(error)),
    };
    Ok(Some(FoundJournal {
        path,
        in_use,
        bytes,
        modified,
        contents,
    }))
}

/// Returns the size and modification time of a regular file, or `None` if no such file exists.
fn length_and_age(path: &Path) -> Result<Option<(u64, SystemTime)>, JournalError> {
    let looked_at = fs::symlink_metadata(path).and_then(|found| {
        let modified = found.modified()?;
        Ok(found.is_file().then_some((found.len(), modified)))
    });
    match looked_at {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map_err(JournalError::io("inspect", path)),
    }
}

fn modified(file: &File, path: &Path) -> Result<SystemTime, JournalError> {
    file.metadata()
        .and_then(|metadata| metadata.modified())
        .map_err(JournalError::io("inspect", path))
}

fn read(file: &File, path: &Path) -> Result<Replay, JournalError> {
    replay(file).map_err(JournalError::io("read", path))?
}
