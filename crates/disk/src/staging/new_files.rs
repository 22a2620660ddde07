//! What all files made in one directory share, looked up once: each look is a round trip where storage answers late.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use zmove_types::{Kinds, Metadata};

use crate::metadata::entry::metadata::{Miss, Wanted};
use crate::metadata::entry::proven::ProvenKinds;
use crate::metadata::entry::set_file_mtime;
use crate::metadata::entry::xattrs::{Descriptor, gives_acl};
use crate::metadata::inheritance::Inheritance;
use crate::metadata::storable_times::is_held_everywhere;
use crate::publishing::lease::Permit;
use crate::staging::hidden::Parent;

/// The shared properties of a directory's new files; see the module.
#[derive(Debug)]
pub struct NewFiles {
    parent: OnceLock<Parent>,
    /// Whether new files get an access control list from the directory.
    gives_acl: OnceLock<bool>,
    /// What they get where they are made elsewhere.
    inheritance: OnceLock<Inheritance>,
    /// A mode that files get exactly as it is asked for when they are created here, if one is known.
    exact_mode: AtomicU32,
}

/// No mode of a file.
const NO_MODE: u32 = u32::MAX;

impl Default for NewFiles {
    fn default() -> Self {
        Self {
            parent: OnceLock::new(),
            gives_acl: OnceLock::new(),
            inheritance: OnceLock::new(),
            exact_mode: AtomicU32::new(NO_MODE),
        }
    }
}

impl NewFiles {
    /// Gives a file just created in the directory its mode and time, and returns what the file did not get. The part of
    /// a mode that the umask and the directory leave is the same for each file, so it is looked up once.
    ///
    /// # Errors
    /// The system's error where the storage fails.
    pub fn set_metadata(
        &self,
        permit: Permit<'_>,
        file: &File,
        metadata: &Metadata,
        proven: &ProvenKinds,
    ) -> io::Result<Vec<Miss>> {
        let has_exact_mode = self.exact_mode.load(Ordering::Relaxed) == metadata.mode;
        if has_exact_mode && is_held_everywhere(metadata.mtime) {
            set_file_mtime(permit, file.as_fd(), metadata.mtime)?;
            return Ok(Vec::new());
        }
        let entry = Descriptor::Open(file.as_fd());
        let stat = entry.stat()?;
        let misses = Wanted::mode_and_time(metadata).set_from(permit, entry, &stat, proven)?;
        // Only where times are kept too may the next files of the directory do without a look.
        if stat.st_mode & 0o7777 == metadata.mode && proven.of(stat.st_dev).has_any(Kinds::TIMES) {
            self.exact_mode.store(metadata.mode, Ordering::Relaxed);
        }
        Ok(misses)
    }

    /// Whether what is made in the directory gets an access control list from it.
    #[must_use]
    pub fn gives_acl(&self, directory: BorrowedFd<'_>) -> bool {
        *self.gives_acl.get_or_init(|| gives_acl(directory))
    }

    /// Gives a file that was made elsewhere what it would have got by being made in the directory; its mode is still to
    /// be set. Returns whether there was anything to give.
    ///
    /// # Errors
    /// The system's error, `EPERM` where this user is not of the group of a directory with the setgid bit.
    pub fn give_to(
        &self,
        permit: &Permit<'_>,
        file: &File,
        directory: BorrowedFd<'_>,
    ) -> io::Result<bool> {
        let inheritance = match self.inheritance.get() {
            Some(known) => known,
            None => {
                let found = Inheritance::of(directory)?;
                self.inheritance.get_or_init(|| found)
            }
        };
        inheritance.give_to(permit, file)
    }

    /// The directory as hidden names tell it.
    pub(crate) fn parent(&self, directory: BorrowedFd<'_>) -> &Parent {
        self.parent.get_or_init(|| Parent::of(directory))
    }
}
