//! Removes old journals and the part files that they list.
//!
//! The target directory is identified by its device and inode. Device numbers may change at a reboot. After a reboot,
//! the directory is identified by its inode and the birth times of the parts.
//!
//! **Invariant:** a file is removed only if it is a part file: its directory, name, inode and birth time match the
//! journal, and no running transfer uses it. It is opened below the target directory in the journal without following
//! links.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};
use zmove_disk::{Tree, is_part, unlink_at};
use zmove_types::Timestamp;

use crate::store::failure::again;

use super::orphans::{self, Orphan, discard, list};
use super::{JournalError, PartFile, Unfinished};

/// Selects the journals to remove.
#[derive(Clone, Debug)]
pub struct CleanRule {
    /// Minimum time since a journal was last written.
    pub older_than: Duration,
    /// The treatment of journals whose target cannot be reached.
    pub unreachable: Unreachable,
    /// Whether entries are actually removed.
    pub mode: CleanMode,
    /// Directories below which part files may be removed. `None` allows all directories. The paths are absolute and
    /// contain neither `..` nor links.
    pub roots: Option<Vec<PathBuf>>,
}

/// The treatment of a journal whose target cannot be reached, for example because it is not mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// The journal is kept for a later cleanup.
    Keep,
    /// The journal is removed, and its part files are kept forever.
    Remove,
}

/// Whether entries are actually removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanMode {
    /// Everything reported as removed is actually removed.
    Remove,
    /// Nothing is removed. The report lists the journals and parts that would be removed.
    DryRun,
}

/// The result for one journal that was old enough.
#[derive(Debug)]
pub struct Cleaned {
    /// The path of the journal.
    pub path: PathBuf,
    /// Time of the last write to the journal.
    pub modified: SystemTime,
    /// The journal's contents, or the error from reading the journal.
    pub contents: Result<Unfinished, JournalError>,
    /// The result for each part file in the journal, in the same order.
    pub parts: Vec<PartFate>,
    /// Whether the journal was removed, or would be removed in a dry run.
    pub removed: Result<bool, JournalError>,
}

/// The result for one part file.
#[derive(Debug)]
pub enum PartFate {
    /// The part file was removed, or would be removed in a dry run.
    Removed,
    /// The part file no longer exists.
    Gone,
    /// A running transfer has taken over the part file.
    InUse,
    /// The journal contains a name that is not a valid name of a part file.
    Foreign,
    /// The target is outside all roots of the rule.
    Outside,
    /// Another file has the name of the part file.
    Replaced,
    /// The path of the target leads to a directory other than the one in the journal.
    Elsewhere,
    /// The part file could not be reached or removed.
    Failed(io::Error),
}

/// Removes the unlocked journals in `directory` that match `rule`, together with their part files. A journal that
/// cannot be read is removed alone, because its part files are unknown.
///
/// # Errors
/// [`JournalError`] if the directory cannot be read. The failure of a single journal is reported in its [`Cleaned`].
pub fn clean(directory: &Path, rule: &CleanRule) -> Result<Vec<Cleaned>, JournalError> {
    let now = SystemTime::now();
    // A journal with a time in the future counts as new.
    let age = |modified: SystemTime| now.duration_since(modified).unwrap_or_default();
    let old = orphans::aged(directory)?.into_iter();
    let old: Vec<_> = old
        .filter(|(_, modified)| age(*modified) >= rule.older_than)
        .collect();
    if old.is_empty() {
        return Ok(Vec::new());
    }
    let in_use = parts_in_use(directory)?;
    let cleaned = old.into_iter();
    let cleaned = cleaned.filter_map(|(path, modified)| clean_one(path, modified, rule, &in_use));
    Ok(cleaned.collect())
}

/// Returns the inode and birth time of each part file of a running transfer, according to the journals in `directory`.
///
/// # Errors
/// [`JournalError`] if the directory cannot be read.
pub(crate) fn parts_in_use(directory: &Path) -> Result<HashSet<(u64, Timestamp)>, JournalError> {
    let in_use = list(directory)?.into_iter().filter(|listed| listed.in_use);
    let files = in_use
        .filter_map(|listed| listed.contents.ok())
        .flat_map(|unfinished| unfinished.files);
    Ok(files
        .map(|file| (file.part.inode, file.part.born))
        .collect())
}

fn clean_one(
    path: PathBuf,
    modified: SystemTime,
    rule: &CleanRule,
    in_use: &HashSet<(u64, Timestamp)>,
) -> Option<Cleaned> {
    let orphan = match Orphan::take(&path) {
        Ok(orphan) => orphan?,
        Err(error) => {
            let removed = if rule.mode == CleanMode::Remove {
                discard(&path)
            } else {
                Ok(true)
            };
            return Some(Cleaned {
                path,
                modified,
                contents: Err(error),
                parts: Vec::new(),
                removed,
            });
        }
    };
    let parts = clean_parts(orphan.unfinished(), rule, in_use);
    let missed = parts.iter().any(|fate| {
        matches!(
            fate,
            PartFate::Failed(_) | PartFate::Elsewhere | PartFate::Outside
        )
    });
    let keep = missed && rule.unreachable == Unreachable::Keep;
    let contents = Ok(orphan.unfinished().clone());
    let removed = match rule.mode {
        _ if keep => Ok(false),
        CleanMode::DryRun => Ok(true),
        CleanMode::Remove => orphan.remove().map(|()| true),
    };
    Some(Cleaned {
        path,
        modified,
        contents,
        parts,
        removed,
    })
}

fn clean_parts(
    unfinished: &Unfinished,
    rule: &CleanRule,
    in_use: &HashSet<(u64, Timestamp)>,
) -> Vec<PartFate> {
    let path = Path::new(OsStr::from_bytes(&unfinished.begin.target));
    let is_inside = rule
        .roots
        .as_ref()
        .is_none_or(|roots| is_below(path, roots));
    let target = open_target(path, unfinished);
    let files = unfinished.files.iter().map(|file| match &target {
        _ if in_use.contains(&(file.part.inode, file.part.born)) => PartFate::InUse,
        _ if !is_part(file.part.part.as_bytes()) => PartFate::Foreign,
        Err(error) => PartFate::Failed(again(error)),
        Ok(_) if !is_inside => PartFate::Outside,
        Ok(Some(tree)) => clean_part(tree, &file.part, rule.mode).unwrap_or_else(PartFate::Failed),
        Ok(None) => PartFate::Elsewhere,
    });
    files.collect()
}

/// Returns whether a path without links is one of the roots or is below one.
fn is_below(path: &Path, roots: &[PathBuf]) -> bool {
    let real = path.canonicalize();
    real.is_ok_and(|real| real == path && roots.iter().any(|root| real.starts_with(root)))
}

/// Opens the target directory if its path still leads to the directory in the journal. Device numbers may change at a
/// reboot. After a reboot, the directory is accepted only if the birth times of all parts are known.
fn open_target(path: &Path, unfinished: &Unfinished) -> io::Result<Option<Tree>> {
    let begin = &unfinished.begin;
    let tree = Tree::open(path)?;
    let stat = rustix::fs::fstat(tree.fd())?;
    let births = || {
        unfinished
            .files
            .iter()
            .all(|file| file.part.born != Timestamp::default())
    };
    let same_device = stat.st_dev == begin.device || (!unfinished.same_boot && births());
    Ok((same_device && stat.st_ino == begin.inode).then_some(tree))
}

fn clean_part(tree: &Tree, part: &PartFile, mode: CleanMode) -> io::Result<PartFate> {
    let gone = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Ok(PartFate::Gone),
        io::ErrorKind::NotADirectory => Ok(PartFate::Replaced),
        _ => Err(error),
    };
    let directory = match tree.open_directory(&part.path.directory()) {
        Ok(directory) => directory,
        Err(error) => return gone(error),
    };
    let name = part.part.as_os_str();
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let asked = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::BTIME;
    let stat = match rustix::fs::statx(directory.as_fd(), name, flags, asked) {
        Ok(stat) => stat,
        Err(error) => return gone(error.into()),
    };
    let regular = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
    if !regular || !part.is_in(stat.stx_ino, birth(&stat)) {
        return Ok(PartFate::Replaced);
    }
    if mode == CleanMode::Remove {
        unlink_at(directory.as_fd(), name)?;
    }
    Ok(PartFate::Removed)
}

/// Returns the birth time of an open file in the form that a [`PartFile`] stores. Returns zero if the file system or
/// the kernel does not provide it.
#[must_use]
pub fn birth_of(file: impl AsFd) -> Timestamp {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)
        .map_or(Timestamp::default(), |stat| birth(&stat))
}

pub(crate) const fn birth(stat: &Statx) -> Timestamp {
    Timestamp {
        seconds: stat.stx_btime.tv_sec,
        nanos: stat.stx_btime.tv_nsec,
    }
}
