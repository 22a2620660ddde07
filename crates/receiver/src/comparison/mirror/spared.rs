//! Entries to which a name that stays leads under another spelling: on file systems that ignore letter case, or for
//! which two encodings of a letter are one, a file that was just sent is there under the name that an older file had.
//!
//! Such a name is not in the listing of the directory, and yet a look-up finds something. Device and inode number
//! identify that entry, so that no table of letters is needed. An earlier message may have reported it as extra
//! already.
//!
//! **Invariant:** such an entry, once found, is not removed in this session, nor is what is below it; a directory in
//! which it cannot be found counts as one that cannot be listed.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Dir, OFlags};
use rustix::io::Errno;
use zmove_disk::{Tree, number_at, number_of, open_beneath};
use zmove_types::{FileNumber, Name, RelPath};

use crate::comparison::mirror::work_budget::WorkBudget;
use crate::rights::quota::{Booking, Quota};
use zmove_types::Lock;

/// The entries that a session spares; see the module. A name that stays and its entry may come in different messages.
#[derive(Debug)]
pub(crate) struct Spared {
    state: Lock<SparedState>,
    look: Look,
}

/// How a name is looked up in a directory.
pub(super) type Look = fn(&OwnedFd, &OsStr) -> Option<FileNumber>;

#[derive(Debug)]
struct SparedState {
    inodes: HashSet<FileNumber>,
    held: Booking,
    /// Whether everything is spared, since there are more inodes than may be remembered.
    all: bool,
}

/// The memory of one inode in a hash table, with the table's spare room.
const INODE_BYTES: usize = 4 * size_of::<FileNumber>();

/// The files to which names lead that are missing from a directory's listing.
#[derive(Debug, Default)]
struct FoundNames<'a> {
    names: HashMap<&'a Name, FileNumber>,
    /// The files among these to which no listed entry of the directory leads.
    elsewhere: HashSet<FileNumber>,
}

/// The memory of one found name in its hash tables, with their spare room.
pub(super) const FOUND_BYTES: usize = 4 * size_of::<(&Name, FileNumber)>() + INODE_BYTES;

impl Spared {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self::by(look, quota)
    }

    pub(super) fn by(look: Look, quota: &Quota) -> Self {
        Self {
            state: Lock::new(SparedState {
                inodes: HashSet::new(),
                held: quota.book_nothing(),
                all: false,
            }),
            look,
        }
    }

    /// Whether nothing is spared.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.inodes.is_empty() && !state.all
    }

    /// Looks up names that stay and were not listed in a directory, and remembers the files they lead to. The memory
    /// that this takes is booked meanwhile; it depends on the names, not on the size of the directory.
    ///
    /// # Errors `ENOTUNIQ` where such a file is none of the listed entries; `ENOMEM` where there is no room;
    /// `ECANCELED` when the session has ended; else the system's error.
    pub(super) fn look_for<'a>(
        &self,
        directory: &OwnedFd,
        unlisted: impl Iterator<Item = &'a Name>,
        budget: &mut WorkBudget<'_>,
    ) -> io::Result<()> {
        let booked = budget.booked();
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
        budget.shrink_to(booked);
        Ok(())
    }

    /// Looks up the names in `unlisted`, which a directory's listing does not contain, and returns their
    /// files.
    fn find<'a>(
        &self,
        directory: &OwnedFd,
        unlisted: impl Iterator<Item = &'a Name>,
        budget: &mut WorkBudget<'_>,
    ) -> io::Result<FoundNames<'a>> {
        let mut found = FoundNames::default();
        for name in unlisted {
            budget.go_on()?;
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
        for entry in Dir::read_from(directory)? {
            budget.go_on()?;
            let entry = entry?;
            let Ok(name) = Name::from_bytes(entry.file_name().to_bytes()) else {
                continue;
            };
            if let Some(inode) = (self.look)(directory, name.as_os_str()) {
                found.elsewhere.remove(&inode);
            }
            // Another program has made this name meanwhile: it is listed in its own spelling now.
            found.names.remove(&name);
        }
        Ok(found)
    }

    /// Whether an entry of a directory stays.
    pub(crate) fn has(&self, directory: &OwnedFd, name: &Name) -> bool {
        let inode = (self.look)(directory, name.as_os_str());
        inode.is_some_and(|inode| self.has_inode(inode))
    }

    /// A function that returns whether an entry of the directory at `path` stays. All do where that is not known: one
    /// of the directories down to `path` cannot be opened, or `has_ended`, which is asked for each, returns true.
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

    /// Walks down to a directory, since to open each one above by its path would take time that grows with the square
    /// of the depth.
    ///
    /// # Errors
    /// All entries of the directory stay.
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
