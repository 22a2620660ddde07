//! `--inplace`: files that are there are changed in their place, and keep inode and hard links.
//!
//! Where this says that a file is to be made anew, it is staged and gets its name at the end as always.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zmove_disk::{Change, Existing, FileIdentity, FileKey, Staged};
use zmove_types::{Metadata, Name, RelPath};
use zmove_wire::{Durability, Operation};

use crate::place::Failure;
use crate::store::Context;

/// What a transfer that changes files in their place knows of them.
///
/// **Invariant:** a file is changed under one name only, and not when it is to stay as it is under another: names of one
/// file may be several files at the source. Names that are not pushed do not count.
#[derive(Debug, Default)]
pub(crate) struct InPlace {
    /// Of files that have several names.
    shared: Mutex<HashMap<FileKey, Role>>,
}

/// What a file with several names is in this transfer.
#[derive(Debug, PartialEq, Eq)]
enum Role {
    /// To stay as it is, under this name.
    Kept(RelPath),
    /// The same, under several.
    KeptByMany,
    /// To be changed under this name.
    Changed(RelPath),
}

/// Of more files than these none that has several names is changed in its place. Memory at worst: so many names.
const SHARED_MAX: usize = 1 << 20;

impl InPlace {
    /// Whether a file may be changed under this name.
    fn takes(&self, key: FileKey, path: &RelPath) -> bool {
        let mut shared = self.lock();
        match shared.get(&key) {
            Some(Role::Kept(by)) if by != path => false,
            Some(Role::KeptByMany) => false,
            Some(Role::Changed(by)) => by == path,
            None if shared.len() >= SHARED_MAX => false,
            Some(Role::Kept(_)) | None => {
                shared.insert(key, Role::Changed(path.clone()));
                true
            }
        }
    }

    /// Whether a file that was found to be right stays as it is under this name.
    fn keeps(&self, key: FileKey, path: &RelPath) -> bool {
        let mut shared = self.lock();
        match shared.get(&key) {
            Some(Role::Changed(by)) => by == path,
            Some(Role::Kept(by)) if by != path => {
                shared.insert(key, Role::KeptByMany);
                true
            }
            None if shared.len() < SHARED_MAX => {
                shared.insert(key, Role::Kept(path.clone()));
                true
            }
            Some(Role::Kept(_) | Role::KeptByMany) | None => true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<FileKey, Role>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// Opens the file of that name to be changed in its place; `None` when it is to be made anew.
    pub(crate) fn begin_in_place(
        &self,
        directory: &Arc<OwnedFd>,
        (parent, name): (&RelPath, &Name),
        (bytes, metadata): (u64, &Metadata),
    ) -> Result<Option<Staged>, Failure> {
        let Some(in_place) = &self.in_place else { return Ok(None) };
        let cannot = |error| (Operation::OpenInPlace, error);
        let Some(existing) = Existing::open(directory, name).map_err(cannot)? else { return Ok(None) };
        if let Some(key) = existing.shared().map_err(cannot)?
            && let Ok(path) = parent.join(name)
            && !in_place.takes(key, &path)
        {
            return Ok(None);
        }
        let survives_power_cut = self.durability != Durability::None;
        let change = Change { bytes, mtime: metadata.mtime, survives_power_cut };
        existing.begin(change, self.direct).map(Some).map_err(cannot)
    }

    /// Whether a file that is right, as a look at it has shown, will stay so: not if it is changed under another name.
    pub(crate) fn stays_right(&self, directory: &OwnedFd, (parent, name): (&RelPath, &Name)) -> bool {
        let Some(in_place) = &self.in_place else { return true };
        let (Ok(Some(key)), Ok(path)) = (FileKey::shared_at(directory, name), parent.join(name)) else {
            return true;
        };
        in_place.keeps(key, &path)
    }

    /// Whether the file of that name will be changed in its place.
    pub(crate) fn is_for_change_in_place(&self, directory: &OwnedFd, name: &Name) -> bool {
        self.in_place.is_some() && FileIdentity::at(directory, name).is_ok_and(|there| there.regular)
    }

    /// The end of a file that was changed in its place. Its data is flushed before it looks finished: what was written over
    /// other data may come to the disk later than length and time do.
    pub(crate) fn finish_in_place(
        &self,
        staged: Staged,
        name: &Name,
        finish: impl FnOnce(&Staged) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.durability != Durability::None {
            staged.file().sync_data().map_err(|error| (Operation::Flush, error))?;
        }
        staged.set_final_length().map_err(|error| (Operation::Write, error))?;
        finish(&staged)?;
        staged.commit(name, &self.temp_names).map_err(|error: io::Error| (Operation::Verify, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with several names, and what a transfer knows of it.
    struct Shared(InPlace, FileKey);

    impl Shared {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            std::fs::write(home.path().join("a"), "x").unwrap();
            std::fs::hard_link(home.path().join("a"), home.path().join("b")).unwrap();
            let directory = std::fs::File::open(home.path()).unwrap();
            let key = FileKey::shared_at(&directory, &Name::from_bytes(b"a").unwrap()).unwrap();
            Self(InPlace::default(), key.unwrap())
        }

        fn takes(&self, name: &str) -> bool {
            self.0.takes(self.1, &RelPath::from_bytes(name.as_bytes()).unwrap())
        }

        fn keeps(&self, name: &str) -> bool {
            self.0.keeps(self.1, &RelPath::from_bytes(name.as_bytes()).unwrap())
        }
    }

    #[test]
    fn a_file_is_changed_under_one_name() {
        let file = Shared::new();
        assert!(file.takes("a"));
        assert!(!file.takes("b") && !file.keeps("b"));
        assert!(file.takes("a") && file.keeps("a"));
    }

    #[test]
    fn what_is_kept_under_another_name_is_not_changed() {
        let file = Shared::new();
        assert!(file.keeps("b"));
        assert!(!file.takes("a"));
        assert!(file.keeps("c"));
        assert!(!file.takes("b"));
    }

    #[test]
    fn what_was_to_be_kept_may_differ_by_its_contents() {
        let file = Shared::new();
        assert!(file.keeps("a") && file.keeps("a"));
        assert!(file.takes("a"));
    }
}
