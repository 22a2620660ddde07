//! The directories of the target that one thread has open. A directory may be open under its final name or inside a
//! staging directory.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zmove_disk::{NewFiles, Tree, is_same_file};
use zmove_types::RelPath;

use crate::rights::quota::Charge;
use crate::store::publishing::publisher::covers;
use crate::store::target::file_systems::Flush;
use crate::store::transfer::Transfer;

/// The directories that one thread has open. See the module documentation.
#[derive(Debug)]
pub(crate) struct OpenDirectories<'a> {
    transfer: &'a Transfer,
    open: HashMap<RelPath, Kept>,
}

/// A directory that is kept open.
#[derive(Debug)]
struct Kept {
    opened: Opened,
    /// Charge for the memory of the path against the key's quota.
    _path: Charge,
}

/// An open directory of the target.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) flush: Flush,
    pub(crate) new_files: Arc<NewFiles>,
}

/// Maximum number of directories that one thread keeps open.
const OPENED_MAX: usize = 64;

impl<'a> OpenDirectories<'a> {
    pub(crate) fn new(transfer: &'a Transfer) -> Self {
        Self {
            transfer,
            open: HashMap::new(),
        }
    }

    /// Returns the directory at `path` if this thread has it open.
    pub(crate) fn get(&self, path: &RelPath) -> Option<Opened> {
        self.open.get(path).map(|kept| kept.opened.clone())
    }

    /// Returns an existing directory of the target. Opens it if this thread does not have it open. The directory may
    /// still be inside a staging directory.
    pub(crate) fn open_existing(&mut self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        if let Some(Kept { opened, .. }) = self.open.get(path) {
            return Ok(Arc::clone(&opened.directory));
        }
        let directory = self.open(path)?;
        Ok(self.remember(path, directory)?.directory)
    }

    /// Closes a directory and all directories below it, because their paths may now lead to different directories.
    pub(crate) fn close_below(&mut self, path: &RelPath) {
        self.open.retain(|open, _| !covers(path, open));
    }

    /// Opens the directory at the final path of a staging directory.
    pub(crate) fn open_published(&mut self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        let Some((parent, name)) = path.split() else {
            return self.open_existing(path);
        };
        let parent = self.open_existing(&parent)?;
        let tree = &self.transfer.target.tree;
        tree.with_root(parent)
            .ensure_directory(&RelPath::from(&name))
    }

    /// Keeps a directory open for later calls, if the key's quota has enough memory for its path.
    pub(crate) fn remember(
        &mut self,
        path: &RelPath,
        directory: Arc<OwnedFd>,
    ) -> io::Result<Opened> {
        if let Some(job) = self.transfer.target.job() {
            job.check_device(&directory)?;
        }
        let flush = self.transfer.target.file_systems.note(&directory)?;
        let opened = Opened {
            directory,
            flush,
            new_files: Arc::default(),
        };
        self.keep(path, opened.clone());
        Ok(opened)
    }

    /// Keeps open a directory that another thread has opened.
    pub(crate) fn adopt(&mut self, path: &RelPath, opened: Opened) {
        if !self.open.contains_key(path) {
            self.keep(path, opened);
        }
    }

    fn keep(&mut self, path: &RelPath, opened: Opened) {
        if self.open.len() >= self.transfer.target.directories_each.clamp(1, OPENED_MAX) {
            self.open.clear();
        }
        if let Ok(held) = self.transfer.quota.charge_memory(path.as_bytes().len()) {
            self.open.insert(
                path.clone(),
                Kept {
                    opened,
                    _path: held,
                },
            );
        }
    }

    /// Opens an existing directory, even if this thread already has it open.
    pub(crate) fn open(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.transfer.publisher.staged_above(path) {
            Some((above, rest)) => Tree::at(above).open_directory(&rest),
            // Another host may have just created the directory, and this host may not see it yet. An attempt to create
            // the directory makes it visible.
            None if self.transfer.target.shared_job.is_some() => self.open_or_make(path),
            None => self.transfer.target.tree.open_directory(path),
        }
    }

    /// Opens a directory, and creates it if it does not exist.
    pub(crate) fn open_or_make(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.transfer.publisher.staged_above(path) {
            Some((above, rest)) => {
                let tree = &self.transfer.target.tree;
                tree.with_root(above).ensure_directory(&rest)
            }
            None => self.transfer.target.tree.ensure_directory(path),
        }
    }

    /// Closes a directory if its path no longer leads to it. Returns whether the path may have changed. If this thread
    /// does not have the directory open, the path cannot be compared, so the result is `true`.
    pub(crate) fn close_if_replaced(&mut self, path: &RelPath) -> bool {
        let Some(Kept { opened, .. }) = self.open.get(path) else {
            return true;
        };
        let same = self
            .open(path)
            .is_ok_and(|there| is_same_file(there, &opened.directory));
        if !same {
            self.open.remove(path);
        }
        !same
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::placer::tests::transfer_of_key;
    use zmove_types::{ByteCount, Name};

    #[test]
    fn paths_are_booked_and_a_directory_for_which_there_is_no_memory_is_not_kept() {
        let home = tempfile::tempdir().unwrap();
        let limits = crate::Limits {
            memory_per_identity: ByteCount(100_000),
            ..Default::default()
        };
        let quota = crate::rights::quota::Quotas::default()
            .of(zmove_transport::Fingerprint([1; 32]), &limits);
        let transfer = transfer_of_key(&quota, 1, home.path(), None);
        let mut directories = OpenDirectories::new(&transfer);
        let deep = RelPath::from_bytes(&["d"; 5_000].join("/").into_bytes()).unwrap();
        let path = |number: usize| {
            deep.join(&Name::from_bytes(number.to_string().as_bytes()).unwrap())
                .unwrap()
        };
        let root = transfer
            .target
            .tree
            .open_directory(&RelPath::root())
            .unwrap();
        for number in 0..40 {
            directories
                .remember(&path(number), Arc::clone(&root))
                .unwrap();
        }
        let kept = (0..40)
            .filter(|number| directories.get(&path(*number)).is_some())
            .count();
        assert_eq!(
            (kept, quota.memory_held()),
            (9, 9 * deep.as_bytes().len() + 9 * 2)
        );
        assert!(directories.close_if_replaced(&path(30)), "nobody knows");
        directories.close_below(&path(3));
        assert_eq!(quota.memory_held(), 8 * (deep.as_bytes().len() + 2));
        drop(directories);
        assert_eq!(quota.memory_held(), 0);
    }
}
