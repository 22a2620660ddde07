//! Opens the roots of one walk. Thousands of sources in one directory share one descriptor of that directory.
//!
//! **Invariant:** one descriptor per directory that contains roots stays open, and a few further descriptors of roots.
//! All of them are closed when the roots are dropped.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Result;
use zmove_disk::open_beneath;
use zmove_types::{Lock, RelPath};

use crate::config::ScanRoot;
use crate::directory::{Extent, SourceRoot};

/// The directories that contain roots of one walk. Each is open while one of its roots is in use.
#[derive(Debug, Default)]
pub(crate) struct SharedParents {
    open: Lock<HashMap<PathBuf, Weak<OwnedFd>>>,
    /// Number of roots that were opened as directories.
    roots: AtomicUsize,
}

/// Number of roots that stay open. Each further root is opened again whenever it is used, which costs three system
/// calls.
const ROOTS_OPEN_MAX: usize = 16;

impl SharedParents {
    /// Opens a root like [`ScanRoot::open`].
    pub(crate) fn open(&self, root: &ScanRoot, flags: Option<OFlags>) -> Result<SourceRoot> {
        let Some((parent, name)) = root.parent_and_name() else {
            return root.open(flags);
        };
        let is_followed = flags.is_some_and(|flags| !flags.contains(OFlags::NOFOLLOW));
        let (above, below) = match &root.beneath {
            Some((above, below)) => (Arc::clone(above), below.clone()),
            // The path ends in a symbolic link to follow, or in `..`.
            None if is_followed => return root.open(flags),
            None => match RelPath::from_bytes(name.as_encoded_bytes()) {
                Ok(below) => (self.parent(&parent)?, below),
                Err(_) => return root.open(flags),
            },
        };
        if flags.is_none() {
            return if root.beneath.is_some() {
                root.open(flags)
            } else {
                SourceRoot::at(above, &parent, &root.prefix, Extent::SingleEntry)
            };
        }
        let opened = open_beneath(above.as_fd(), &below, DIRECTORY)?;
        let opened = SourceRoot::at(Arc::new(opened), &root.source, &root.prefix, Extent::Tree)?;
        let stays_open = self.roots.fetch_add(1, Ordering::Relaxed) < ROOTS_OPEN_MAX;
        Ok(if stays_open {
            opened
        } else {
            opened.within(above, below)
        })
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
