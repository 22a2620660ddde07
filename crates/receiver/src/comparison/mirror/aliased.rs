//! Entries that must not be removed because a name of the source refers to them under another spelling. Some file
//! systems ignore letter case or treat two encodings of a letter as equal. On such a file system, a file that was just
//! sent may exist under the name of an older file.
//!
//! In this case, the name of the source is missing from the listing of its directory, but a lookup of the name finds an
//! entry. The device and inode number identify that entry, so no table of equivalent letters is needed. An earlier
//! message may already have reported the entry as extra.
//!
//! **Invariant:** after such an entry was found, this session removes neither the entry nor any entry below it. If the
//! listing does not contain the entry, the directory counts as one that cannot be listed.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use zmove_disk::{Tree, list_directory, number_at, number_of, open_beneath};
use zmove_types::{FileNumber, Name, RelPath};

use crate::comparison::mirror::work_budget::WorkBudget;
use crate::rights::quota::{Charge, Quota};
use zmove_types::Lock;

/// The entries that a session must not remove. The source name and the name to remove may be in different messages.
#[derive(Debug)]
pub(crate) struct AliasedEntries {
    state: Lock<AliasedState>,
    look: LookUpName,
}

/// A function that looks up a name in a directory.
pub(super) type LookUpName = fn(&OwnedFd, &OsStr) -> Option<FileNumber>;

#[derive(Debug)]
struct AliasedState {
    inodes: HashSet<FileNumber>,
    held: Charge,
    /// Whether all entries must be kept, because there is no memory to remember more inodes.
    all: bool,
}

/// Memory used by one inode in a hash table, including the table's spare capacity.
const INODE_BYTES: usize = 4 * size_of::<FileNumber>();

/// The files that were found by names that are missing from a directory's listing.
#[derive(Debug, Default)]
struct FoundNames<'a> {
    names: HashMap<&'a Name, FileNumber>,
    /// The files among them that are not the inode of any listed entry so far.
    elsewhere: HashSet<FileNumber>,
}

/// Memory used by one name in these hash tables, including their spare capacity.
pub(super) const FOUND_BYTES: usize = 4 * size_of::<(&Name, FileNumber)>() + INODE_BYTES;

impl AliasedEntries {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self::by(look, quota)
    }

    pub(super) fn by(look: LookUpName, quota: &Quota) -> Self {
        Self {
            state: Lock::new(AliasedState {
                inodes: HashSet::new(),
                held: quota.empty_charge(),
                all: false,
            }),
            look,
        }
    }

    /// Returns whether the set is empty, so that any entry may be removed.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.inodes.is_empty() && !state.all
    }

    /// Looks up source names that are missing from a directory's listing, and remembers the files that it finds.
    ///
    /// The memory for this is reserved during the call. It depends on the number of names and not on the size of the
    /// directory.
    ///
    /// # Errors
    /// `ENOTUNIQ` if such a file is not among the listed entries, `ENOMEM` if the quota is exceeded, `ECANCELED` if the
    /// session has ended, or the system's error.
    pub(super) fn look_for<'a>(
        &self,
        directory: &OwnedFd,
        unlisted: impl Iterator<Item = &'a Name>,
        budget: &mut WorkBudget<'_>,
    ) -> io::Result<()> {
        let charged = budget.charged();
        let found = self.find(directory, unlisted, budget)?;
        found.names.values().for_each(|inode| self.remember(*inode));
        if found
            .names
            .values()
            .any(|inode| found.elsewhere.contains(inode))
        {
            number_of(directory).map(|inode| self.remember(inode))?;
            return Err(Errno::NOTUNIQ.into());
        }
        drop(found);
        budget.shrink_to(charged);
        Ok(())
    }

    /// Looks up the names in `unlisted`, which are missing from a directory's listing, and returns the files that it
    /// finds.
    fn find<'a>(
        &self,
        directory: &OwnedFd,
        unlisted: impl Iterator<Item = &'a Name>,
        budget: &mut WorkBudget<'_>,
    ) -> io::Result<FoundNames<'a>> {
        let mut found = FoundNames::default();
        for name in unlisted {
            budget.count_entry()?;
            let Some(inode) = (self.look)(directory, name.as_os_str()) else {
                continue;
            };
            budget.grow(FOUND_BYTES)?;
            found.names.insert(name, inode);
            found.elsewhere.insert(inode);
        }
        if found.names.is_empty() {
            return Ok(found);
        }
        for entry in list_directory(directory)? {
            budget.count_entry()?;
            let entry = entry?;
            let Ok(name) = Name::from_bytes(entry.file_name().to_bytes()) else {
                continue;
            };
            if let Some(inode) = (self.look)(directory, name.as_os_str()) {
                found.elsewhere.remove(&inode);
            }
            // The second listing contains this name, so another program created the entry after the first listing.
            found.names.remove(&name);
        }
        Ok(found)
    }

    /// Returns whether an entry of a directory must be kept.
    pub(crate) fn has(&self, directory: &OwnedFd, name: &Name) -> bool {
        let inode = (self.look)(directory, name.as_os_str());
        inode.is_some_and(|inode| self.has_inode(inode))
    }

    /// Returns a function that returns whether an entry of the directory at `path` must be kept. It returns true for
    /// all entries if a directory on the path cannot be opened or must be kept itself, or if `has_ended` returns true.
    pub(crate) fn among(
        &self,
        tree: &Tree,
        path: &RelPath,
        has_ended: impl Fn() -> bool,
    ) -> impl Fn(&Name) -> bool {
        let directory = if self.is_empty() {
            Ok(None)
        } else {
            self.enter(tree, path, has_ended).map(Some)
        };
        move |name| match &directory {
            Ok(directory) => directory
                .as_ref()
                .is_some_and(|directory| self.has(directory, name)),
            Err(_all_stay) => true,
        }
    }

    /// Opens a directory component by component. Opening each ancestor by its whole path would take quadratic time.
    ///
    /// # Errors
    /// Returns an error if all entries of the directory must be kept.
    fn enter(
        &self,
        tree: &Tree,
        path: &RelPath,
        has_ended: impl Fn() -> bool,
    ) -> io::Result<OwnedFd> {
        let open = |from: BorrowedFd<'_>, path: &RelPath| {
            let directory = open_beneath(from, path, OFlags::PATH | OFlags::DIRECTORY)?;
            let stays = has_ended() || self.has_inode(number_of(&directory)?);
            if stays {
                Err(Errno::CANCELED.into())
            } else {
                io::Result::Ok(directory)
            }
        };
        path.components()
            .try_fold(open(tree.fd(), &RelPath::root())?, |above, name| {
                let name = RelPath::from_bytes(name).expect("a part of a path is one");
                open(above.as_fd(), &name)
            })
    }

    fn has_inode(&self, inode: FileNumber) -> bool {
        let state = self.state.lock();
        state.all || state.inodes.contains(&inode)
    }

    fn remember(&self, inode: FileNumber) {
        let mut state = self.state.lock();
        match state.held.grow(INODE_BYTES) {
            Ok(()) => drop(state.inodes.insert(inode)),
            Err(_no_room) => state.all = true,
        }
    }
}

fn look(directory: &OwnedFd, name: &OsStr) -> Option<FileNumber> {
    number_at(directory, name).ok()
}
