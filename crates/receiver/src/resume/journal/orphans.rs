//! The journals in a directory: those in use, and those that a dead writer has left.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::locked_file::{self, LockedFile};
use super::naming::{NamedJournal, Tags, entries, journals};
use super::reader::{self, Replay, replay};
use super::record::{BootId, Record};
use super::{Begin, JournalError, Unfinished};

/// A journal that nobody writes any more, held so that nobody else takes it over.
#[derive(Debug)]
pub struct Orphan {
    held: LockedFile,
    unfinished: Unfinished,
    modified: SystemTime,
    /// The offset at which its last valid record ends.
    end: u64,
}

/// A journal that was taken, or the path of one that cannot be used and was left alone.
pub type Taken = Result<Orphan, (PathBuf, JournalError)>;

/// A journal as it is found in its directory.
#[derive(Debug)]
pub struct FoundJournal {
    /// The journal's path.
    pub path: PathBuf,
    /// Whether another process writes the journal, or is about to take it over.
    pub in_use: bool,
    /// The journal's length in bytes.
    pub bytes: u64,
    /// When the journal was last written.
    pub modified: SystemTime,
    /// The journal's contents, or why they cannot be read.
    pub contents: Result<Unfinished, JournalError>,
}

impl Orphan {
    /// Releases the lock, for another process to take the journal.
    pub(crate) fn unlock(&self) {
        locked_file::unlock(&self.held.file);
    }

    /// Takes the journal at `path`; `None` when somebody holds it, or it has gone.
    ///
    /// # Errors
    /// [`JournalError`]; the file is then left as it is.
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

    /// Records that a file has been taken over, or is of no use, so that it is not found again. A torn record is cut
    /// off.
    ///
    /// # Errors
    /// The system's error.
    pub fn ended(&mut self, file: u64) -> Result<(), JournalError> {
        let record = Record::Ended { file }.encode()?;
        let journal = &self.held.file;
        // Keep the time of the last write: since then nobody should have written to the journal's parts.
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

    /// When the journal was last written.
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

/// Takes all journals in `directory` that nobody holds. One that cannot be read is left alone, and its path returned.
///
/// # Errors
/// [`JournalError`] when the directory cannot be read; one that does not exist holds none.
pub fn orphans(directory: &Path) -> Result<Vec<Taken>, JournalError> {
    let paths = sweep(directory)?.into_iter().map(|named| named.path);
    Ok(take_all(paths, |_| true))
}

/// Like [`orphans`], but only those of the same owner and target directory as `begin` whose first record is `wanted`.
/// Others are not locked, so that their own transfers find them free; those of other owners and targets, of which there
/// may be very many, are not even opened.
///
/// # Errors
/// Like [`orphans`].
pub fn orphans_like(
    directory: &Path,
    begin: &Begin,
    wanted: impl Fn(&Begin) -> bool,
) -> Result<Vec<Taken>, JournalError> {
    let tags = Tags::of(begin);
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

/// All journals in `directory`, without taking any.
///
/// # Errors
/// [`JournalError`] when the directory cannot be read; one that does not exist holds none.
pub fn list(directory: &Path) -> Result<Vec<FoundJournal>, JournalError> {
    journals(directory)?
        .filter_map(|named| look_at(named.path).transpose())
        .collect()
}

/// Removes a journal without reading it; `false` when somebody holds it, or it has gone.
///
/// # Errors
/// The system's error.
pub fn discard(path: &Path) -> Result<bool, JournalError> {
    LockedFile::take(path)?.map_or(Ok(false), |held| held.remove().map(|()| true))
}

/// The paths of all journals in `directory`, each with the time of its last write.
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

/// The journals, after the removal of those whose writer died while it created or rewrote them.
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

/// The length of a regular file, and when it was last written; `None` where there is none.
fn length_and_age(path: &Path) -> Result<Option<(u64, SystemTime)>, JournalError> {
    let looked_at = fs::symlink_metadata(path).and_then(|found| {
        let modified = found.modified()?;
        Ok(found.is_file().then_some((found.len(), modified)))
    });
    match looked_at {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map_err(JournalError::io("look at", path)),
    }
}

fn modified(file: &File, path: &Path) -> Result<SystemTime, JournalError> {
    file.metadata()
        .and_then(|metadata| metadata.modified())
        .map_err(JournalError::io("look at", path))
}

fn read(file: &File, path: &Path) -> Result<Replay, JournalError> {
    replay(file).map_err(JournalError::io("read", path))?
}
