//! Directories that give way to an entry of their name that is no directory. An empty directory is replaced unless the
//! opening forbids all replacement. Another is replaced with everything in it if the opening allows that.
//!
//! **Invariant:** before anything of a directory is removed, all of it has been listed. It stays as it is if a rule
//! protects it or an entry in it, if something is mounted in it, if a name in it is reserved, if it cannot be listed,
//! or if it holds more than may still be removed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Dir, DirEntry, FileType};
use rustix::io::Errno;
use zmove_disk::{RemovalBudget, Tree, is_hidden, refuse_mount, remove_entries_within, stat_at};
use zmove_scan::{PathKind, Selection};
use zmove_types::{Name, RelPath};
use zmove_wire::{InTheWay, Open};

use crate::comparison::selection::selection;
use crate::store::failure::{PROTECTED, REMOVED_ENOUGH, RESERVED};

/// Which directories give way.
#[derive(Debug)]
pub(crate) struct GivingWay {
    in_the_way: InTheWay,
    /// The rules that protect what they leave out.
    rules: Option<Selection>,
    budget: Arc<RemovalBudget>,
}

/// The most directories that wait to be listed while one is looked through.
const WAITING_MAX: usize = 1 << 16;

impl GivingWay {
    /// The directories that an opening allows to be replaced, within what may be removed.
    pub(crate) fn of(open: &Open, budget: Arc<RemovalBudget>) -> Self {
        let (in_the_way, rules) = match selection(&open.protected, 0..=u64::MAX) {
            Ok(rules) => (open.in_the_way, rules),
            // A rule that cannot be read may protect anything.
            Err(_unreadable) => (InTheWay::Stays, None),
        };
        Self {
            in_the_way,
            rules,
            budget,
        }
    }

    /// Whether a directory gives way. Looks at everything in it, and changes nothing.
    ///
    /// # Errors
    /// The reason why the directory stays although the opening allows its replacement.
    pub(crate) fn gives_way(&self, tree: &Tree, path: &RelPath) -> io::Result<bool> {
        if self.in_the_way == InTheWay::Stays {
            return Ok(false);
        }
        let above = look_into(tree, &path.directory())?;
        self.admit(path, PathKind::Directory)?;
        let mut entries = 1;
        let mut waiting = vec![path.clone()];
        while let Some(path) = waiting.pop() {
            let directory = look_into(tree, &path)?;
            refuse_mount(above.as_fd(), directory.as_fd())?;
            for entry in Dir::read_from(&directory)? {
                let entry = entry?;
                if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                    continue;
                }
                if self.in_the_way == InTheWay::EmptyGoes {
                    return Ok(false);
                }
                entries += 1;
                let (below, kind) = look_at(&directory, &path, &entry)?;
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

    /// Removes a directory with all that is in it; returns how many entries that were.
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

/// The entries that an opening allows to be removed.
pub(crate) fn removals_of(open: &Open) -> Arc<RemovalBudget> {
    Arc::new(RemovalBudget::new(open.removals_max.unwrap_or(u64::MAX)))
}

/// Opens a directory as it is: a preview changes nothing.
fn look_into(tree: &Tree, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
    tree.look_into(path)?.ok_or_else(|| Errno::ACCESS.into())
}

/// The path and kind of an entry that may be removed.
fn look_at(
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
