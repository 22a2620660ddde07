//! Opens the roots of one walk. A walk may have thousands of roots, so the number of open descriptors is limited. Files
//! in the same directory share one descriptor of that directory. Most roots that are directories are reopened for each
//! use.
//!
//! **Invariant:** one descriptor stays open per directory that contains single-entry roots, and a few stay open for
//! roots that are directories. All of them are closed when the roots are dropped.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Result;
use zmove_types::Lock;

use crate::config::ScanRoot;
use crate::directory::{Extent, SourceRoot};

/// The directories that contain roots of one walk. Each is open while one of its roots is in use.
#[derive(Debug, Default)]
pub(crate) struct SharedParents {
    open: Lock<HashMap<PathBuf, Weak<OwnedFd>>>,
    /// Number of roots that were opened as directories.
    roots: AtomicUsize,
}

/// Number of roots that stay open. All other roots are reopened for each use, which costs three system calls.
const ROOTS_OPEN_MAX: usize = 16;

impl SharedParents {
    /// Opens a root like [`ScanRoot::open`].
    pub(crate) fn open(&self, root: &ScanRoot, flags: Option<OFlags>) -> Result<SourceRoot> {
        let Some(flags) = flags else {
            return self.open_single(root);
        };
        let opened = root.open(Some(flags))?;
        if self.roots.fetch_add(1, Ordering::Relaxed) < ROOTS_OPEN_MAX {
            return Ok(opened);
        }
        Ok(match &root.beneath {
            Some((above, below)) => opened.within(Arc::clone(above), below.clone()),
            None => opened.by_path(flags),
        })
    }

    /// Opens the directory that contains a root that is a single entry.
    fn open_single(&self, root: &ScanRoot) -> Result<SourceRoot> {
        match root.parent_and_name() {
            Some((parent, _)) if root.beneath.is_none() => {
                let opened = self.parent(&parent)?;
                SourceRoot::at(opened, &parent, &root.prefix, Extent::SingleEntry)
            }
            _ => root.open(None),
        }
    }

    /// Opens a directory that contains roots, or returns its open descriptor.
    fn parent(&self, path: &Path) -> Result<Arc<OwnedFd>> {
        let mut open = self.open.lock();
        if let Some(opened) = open.get(path).and_then(Weak::upgrade) {
            return Ok(opened);
        }
        let flags = DIRECTORY | OFlags::CLOEXEC;
        let opened = Arc::new(openat(CWD, path, flags, Mode::empty())?);
        open.insert(path.to_owned(), Arc::downgrade(&opened));
        Ok(opened)
    }
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
