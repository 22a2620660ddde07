//! By what a later walk of the same roots is known to find what the first one found: the roots themselves, and what is mounted
//! below them.
//!
//! **Invariant:** a root that is known stays open as long as this lives, so that no other directory gets its number; and what
//! is known of it is never replaced.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::FileNumber;
use crate::directory::{Directory, SourceRoot, Status};

/// What the first walk of some roots has found, for the walks that follow it.
#[derive(Debug, Default)]
pub struct SourceIdentity {
    roots: Mutex<HashMap<PathBuf, Arc<SourceRoot>>>,
    mounts: Mutex<Mounts>,
}

/// What is mounted below the roots, and where.
pub(crate) type Mounts = HashMap<FileNumber, PathBuf>;

impl SourceIdentity {
    /// A walk has opened a root that is a directory.
    pub(crate) fn note_root(&self, root: &Arc<SourceRoot>) {
        lock(&self.roots).entry(root.path().to_owned()).or_insert_with(|| Arc::clone(root));
    }

    /// A walk has opened a directory below a root.
    pub(crate) fn note_mount(&self, directory: &Directory, status: &Status) {
        if let Some(mount) = status.mount(directory.root()) {
            lock(&self.mounts).entry(mount).or_insert_with(|| directory.full_path());
        }
    }

    /// Whether an earlier walk has opened another directory at this path; `None` stands for what is no directory.
    pub(crate) fn is_other(&self, path: &Path, root: Option<&SourceRoot>) -> bool {
        let roots = lock(&self.roots);
        roots.get(path).is_some_and(|known| Some(known.number()) != root.map(SourceRoot::number))
    }

    /// What has been met that is mounted below the roots.
    pub(crate) fn mounts(&self) -> Mounts {
        lock(&self.mounts).clone()
    }
}

fn lock<T>(known: &Mutex<T>) -> MutexGuard<'_, T> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}
