//! The directories of the target that one thread has open, wherever they are now: under their names, or in a staging
//! directory.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use zmove_disk::{NewFiles, Tree, is_same_file};
use zmove_types::RelPath;

use crate::store::publishing::publisher::{Publisher, covers};
use crate::store::target::file_systems::Flush;
use crate::store::target::tree::TargetTree;

/// The directories that one thread has open; see the module.
#[derive(Debug)]
pub(crate) struct OpenDirectories<'a> {
    target: &'a TargetTree,
    publisher: &'a Publisher,
    open: HashMap<RelPath, Opened>,
}

/// An open directory of the target.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) flush: Flush,
    pub(crate) new_files: Arc<NewFiles>,
}

/// The most directories that one thread keeps open.
const OPENED_MAX: usize = 64;

impl<'a> OpenDirectories<'a> {
    pub(crate) fn new(target: &'a TargetTree, publisher: &'a Publisher) -> Self {
        Self { target, publisher, open: HashMap::new() }
    }

    /// The directory at `path`, if it is open here.
    pub(crate) fn get(&self, path: &RelPath) -> Option<Opened> {
        self.open.get(path).cloned()
    }

    /// Opens an existing directory of the target, perhaps in a staging directory.
    pub(crate) fn as_it_is(&mut self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        if let Some(opened) = self.open.get(path) {
            return Ok(Arc::clone(&opened.directory));
        }
        let directory = self.open(path)?;
        Ok(self.remember(path, directory)?.directory)
    }

    /// Closes a directory and those below it, since others may have their paths now.
    pub(crate) fn let_go_below(&mut self, path: &RelPath) {
        self.open.retain(|open, _| !covers(path, open));
    }

    /// The directory that has the name under which a staging directory was to be published.
    pub(crate) fn under_its_name(&mut self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return self.as_it_is(path);
        };
        let parent = self.as_it_is(&parent)?;
        let name = RelPath::root().join(&name).map_err(|_too_long| Errno::NAMETOOLONG)?;
        Tree::at(parent).ensure_directory(&name)
    }

    /// Keeps a directory open.
    pub(crate) fn remember(&mut self, path: &RelPath, directory: Arc<OwnedFd>) -> io::Result<Opened> {
        let flush = self.target.file_systems.note(&directory)?;
        self.make_room();
        let opened = Opened { directory, flush, new_files: Arc::default() };
        self.open.insert(path.clone(), opened.clone());
        Ok(opened)
    }

    /// Keeps a directory open that another thread has opened.
    pub(crate) fn adopt(&mut self, path: &RelPath, opened: Opened) {
        if !self.open.contains_key(path) {
            self.make_room();
            self.open.insert(path.clone(), opened);
        }
    }

    fn make_room(&mut self) {
        if self.open.len() >= self.target.directories_each.clamp(1, OPENED_MAX) {
            self.open.clear();
        }
    }

    /// Opens an existing directory again.
    pub(crate) fn open(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.publisher.staged_above(path) {
            Some((above, rest)) => Tree::at(above).open_directory(&rest),
            None => self.target.tree.open_directory(path),
        }
    }

    /// Opens a directory, and makes it where it does not exist.
    pub(crate) fn open_or_make(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.publisher.staged_above(path) {
            Some((above, rest)) => Tree::at(above).ensure_directory(&rest),
            None => self.target.tree.ensure_directory(path),
        }
    }

    /// Closes a directory if its path now leads to another, or to none; returns whether it did.
    pub(crate) fn let_go_if_replaced(&mut self, path: &RelPath) -> bool {
        let Some(held) = self.open.get(path) else { return false };
        let same = self.open(path).is_ok_and(|there| is_same_file(there, &held.directory));
        if !same {
            self.open.remove(path);
        }
        !same
    }
}
