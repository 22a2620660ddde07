//! Properties that all new files of a directory share. Each is read once, because each read costs a round trip on slow
//! storage.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use zmove_types::{Metadata, MetadataKinds};

use crate::metadata::entry::metadata::{MetadataFailure, WantedMetadata};
use crate::metadata::entry::proven::ProvenKinds;
use crate::metadata::entry::set_file_mtime;
use crate::metadata::entry::xattrs::{Descriptor, has_default_acl};
use crate::metadata::inheritance::Inheritance;
use crate::metadata::storable_times::is_storable_everywhere;
use crate::publishing::lease::Permit;
use crate::staging::hidden::ParentIdentity;

/// The shared properties of a directory's new files.
#[derive(Debug)]
pub struct NewFiles {
    parent: OnceLock<ParentIdentity>,
    /// Whether new files inherit an access control list from the directory.
    has_default_acl: OnceLock<bool>,
    /// The attributes that files inherit. A file that is created elsewhere must be given these attributes.
    inheritance: OnceLock<Inheritance>,
    /// A mode that `open` gives to new files without change, or `NO_MODE` if no such mode is known yet.
    exact_mode: AtomicU32,
}

/// A value that is not a valid mode.
const NO_MODE: u32 = u32::MAX;

impl Default for NewFiles {
    fn default() -> Self {
        Self {
            parent: OnceLock::new(),
            has_default_acl: OnceLock::new(),
            inheritance: OnceLock::new(),
            exact_mode: AtomicU32::new(NO_MODE),
        }
    }
}

impl NewFiles {
    /// Sets the mode and time of a file that was just created in the directory. Returns the values that could not be
    /// set. The umask and the directory restrict the mode of each file in the same way, so the resulting mode is read
    /// back only once.
    ///
    /// # Errors
    /// Returns the system's error if the storage fails.
    pub fn set_metadata(
        &self,
        permit: Permit<'_>,
        file: &File,
        metadata: &Metadata,
        proven: &ProvenKinds,
    ) -> io::Result<Vec<MetadataFailure>> {
        let has_exact_mode = self.exact_mode.load(Ordering::Relaxed) == metadata.mode;
        if has_exact_mode && is_storable_everywhere(metadata.mtime) {
            set_file_mtime(permit, file.as_fd(), metadata.mtime)?;
            return Ok(Vec::new());
        }
        let entry = Descriptor::Open(file.as_fd());
        let stat = entry.stat()?;
        let misses =
            WantedMetadata::mode_and_time(metadata).set_from(permit, entry, &stat, proven)?;
        // Later files skip these checks only if the file system is known to store times too.
        if stat.st_mode & 0o7777 == metadata.mode
            && proven.of(stat.st_dev).has_any(MetadataKinds::TIMES)
        {
            self.exact_mode.store(metadata.mode, Ordering::Relaxed);
        }
        Ok(misses)
    }

    /// Returns whether new entries inherit an access control list from the directory.
    #[must_use]
    pub fn has_default_acl(&self, directory: BorrowedFd<'_>) -> bool {
        *self
            .has_default_acl
            .get_or_init(|| has_default_acl(directory))
    }

    /// Sets the attributes that a file created elsewhere would have inherited from the directory. The caller must set
    /// the mode afterwards. Returns whether anything changed.
    ///
    /// # Errors
    /// Returns the system's error, `EPERM` if this user does not belong to the group of a setgid directory.
    pub fn apply_to(
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
        inheritance.apply_to(permit, file)
    }

    /// Returns the identity of the directory as contained in hidden names.
    pub(crate) fn parent(&self, directory: BorrowedFd<'_>) -> &ParentIdentity {
        self.parent.get_or_init(|| ParentIdentity::of(directory))
    }
}
