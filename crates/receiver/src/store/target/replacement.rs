//! Decides whether a directory gives way, which means that it is replaced by an entry of the same name that is not a
//! directory. An empty directory gives way unless the opening forbids all replacement. A directory with entries gives
//! way, together with its entries, only if the opening allows that.
//!
//! **Invariant:** before anything in a directory is removed, all of its contents have been listed. The directory is
//! left unchanged in each of these cases:
//!
//! - A rule protects the directory or an entry in it.
//! - Another file system is mounted in it.
//! - It contains a reserved name.
//! - It cannot be listed.
//! - It contains more entries than this transfer may still remove.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{DirEntry, FileType};
use rustix::io::Errno;
use zmove_disk::{
    RemovalBudget, Tree, is_hidden, list_directory, refuse_mount, remove_entries_within, stat_at,
};
use zmove_scan::{PathKind, Selection};
use zmove_types::{Name, RelPath};
use zmove_wire::{DirectoryReplacement, Open};

use crate::comparison::selection::selection;
use crate::store::failure::{PROTECTED, REMOVED_ENOUGH, RESERVED};

/// The rules that decide whether a directory may be replaced by another kind of entry.
#[derive(Debug)]
pub(crate) struct ReplacementRules {
    in_the_way: DirectoryReplacement,
    /// The selection rules. Any entry that they exclude is protected.
    rules: Option<Selection>,
    budget: Arc<RemovalBudget>,
}

/// Maximum number of directories in the queue of directories to inspect.
const WAITING_MAX: usize = 1 << 16;

impl ReplacementRules {
    /// Creates the rules from an opening. `budget` limits the number of removed entries.
    pub(crate) fn of(open: &Open, budget: Arc<RemovalBudget>) -> Self {
        let (in_the_way, rules) = match selection(&open.protected, 0..=u64::MAX) {
            Ok(rules) => (open.in_the_way, rules),
            // If the rules cannot be parsed, keep every directory, because the rules may protect any entry.
            Err(_unreadable) => (DirectoryReplacement::Stays, None),
        };
        Self {
            in_the_way,
            rules,
            budget,
        }
    }

    /// Returns whether a directory may be replaced. Inspects all of its contents and changes nothing.
    ///
    /// # Errors
    /// Returns the reason why the directory must be kept although the opening allows its replacement.
    pub(crate) fn may_replace(&self, tree: &Tree, path: &RelPath) -> io::Result<bool> {
        if self.in_the_way == DirectoryReplacement::Stays {
            return Ok(false);
        }
        let above = open_unchanged(tree, &path.directory())?;
        self.admit(path, PathKind::Directory)?;
        let mut entries = 1;
        let mut waiting = vec![path.clone()];
        while let Some(path) = waiting.pop() {
            let directory = open_unchanged(tree, &path)?;
            refuse_mount(above.as_fd(), directory.as_fd())?;
            for entry in list_directory(&directory)? {
                let entry = entry?;
                if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                    continue;
                }
                if self.in_the_way == DirectoryReplacement::EmptyGoes {
                    return Ok(false);
                }
                entries += 1;
                let (below, kind) = inspect_entry(&directory, &path, &entry)?;
                self.admit(&below, kind)?;
                if kind == PathKind::Directory {
                    waiting.push(below);
                }
                if waiting.len() > WAITING_MAX {
                    return Err(Errno::NOBUFS.into());
                }
                if entries > self.budget.left() {
                    return Err(REMOVED_ENOUGH.into());
                }
            }
        }
        if entries > self.budget.left() {
            return Err(REMOVED_ENOUGH.into());
        }
        Ok(true)
    }

    fn admit(&self, path: &RelPath, kind: PathKind) -> io::Result<()> {
        match &self.rules {
            Some(rules) if !rules.admits(path, kind) => Err(PROTECTED.into()),
            _ => Ok(()),
        }
    }

    /// Removes a directory with everything in it. Returns the number of removed entries.
    pub(crate) fn remove(&self, tree: &Tree, directory: &RelPath, name: &Name) -> io::Result<u64> {
        let mut error = None;
        let removed = remove_entries_within(
            &self.budget,
            || false,
            tree,
            directory,
            std::iter::once(name),
            |_path, why| error = error.take().or(Some(why)),
        );
        self.budget.note_replaced(removed);
        error.map_or(Ok(removed), Err)
    }
}

/// Returns the budget for the number of entries that the opening allows this transfer to remove.
pub(crate) fn removals_of(open: &Open) -> Arc<RemovalBudget> {
    Arc::new(RemovalBudget::new(open.removals_max.unwrap_or(u64::MAX)))
}

/// Opens a directory without changing its mode, because a preview must change nothing.
fn open_unchanged(tree: &Tree, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
    tree.open_for_inspection(path)?
        .ok_or_else(|| Errno::ACCESS.into())
}

/// Returns the path and kind of an entry that may be removed.
fn inspect_entry(
    directory: &OwnedFd,
    path: &RelPath,
    entry: &DirEntry,
) -> io::Result<(RelPath, PathKind)> {
    let bytes = entry.file_name().to_bytes();
    if is_hidden(bytes) {
        return Err(RESERVED.into());
    }
    let name = Name::from_bytes(bytes).map_err(|_too_long| Errno::NAMETOOLONG)?;
    let below = path.join(&name).map_err(|_too_long| Errno::NAMETOOLONG)?;
    let file_type = match entry.file_type() {
        FileType::Unknown => {
            let stat = stat_at(directory, &name)?;
            FileType::from_raw_mode(stat.st_mode)
        }
        known => known,
    };
    let kind = if file_type == FileType::Directory {
        PathKind::Directory
    } else {
        PathKind::Other
    };
    Ok((below, kind))
}
