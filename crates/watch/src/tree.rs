//! The walk of a tree, or of a part of it, which has each directory watched before it is read.

use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a walk meets.
pub(crate) trait Visitor {
    /// A directory is about to be read. An error ends the walk.
    fn directory(&mut self, path: &Path, below: &Path, metadata: &Metadata) -> Go;
    /// A file, a link or whatever else is no directory.
    fn entry(&mut self, below: PathBuf, metadata: &Metadata);
    /// Something that cannot be read.
    fn unreadable(&mut self, path: &Path, error: &io::Error);
}

/// Whether a walk goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Go {
    On,
    /// Not into this directory.
    Past,
    /// No further at all.
    Home,
}

/// Walks what is at `below` the root; returns whether it has met all that there is.
pub(crate) fn walk(root: &Path, below: &Path, visitor: &mut impl Visitor) -> bool {
    let mut left = vec![below.to_owned()];
    let mut is_whole = true;
    while let Some(below) = left.pop() {
        let path = root.join(&below);
        let looked = if below.as_os_str().is_empty() {
            path.metadata()
        } else {
            path.symlink_metadata()
        };
        let metadata = match looked {
            Ok(metadata) if metadata.is_dir() => metadata,
            // what took its place meanwhile is told by whoever told of this
            Ok(_) => continue,
            Err(error) => {
                is_whole &= pass_over(visitor, &path, &error);
                continue;
            }
        };
        match visitor.directory(&path, &below, &metadata) {
            Go::On => {}
            Go::Past => continue,
            Go::Home => return false,
        }
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) => {
                is_whole &= pass_over(visitor, &path, &error);
                continue;
            }
        };
        for entry in entries {
            let found = entry.and_then(|entry| Ok((entry.file_name(), entry.metadata()?)));
            match found {
                Ok((name, metadata)) if metadata.is_dir() => left.push(below.join(name)),
                Ok((name, metadata)) => visitor.entry(below.join(name), &metadata),
                Err(error) => is_whole &= pass_over(visitor, &path, &error),
            }
        }
    }
    is_whole
}

/// Tells what cannot be read; returns whether it is just gone.
fn pass_over(visitor: &mut impl Visitor, path: &Path, error: &io::Error) -> bool {
    let is_gone = error.kind() == ErrorKind::NotFound;
    if !is_gone {
        visitor.unreadable(path, error);
    }
    is_gone
}

/// What a directory is known by.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata()
        .ok()
        .filter(Metadata::is_dir)
        .map(|metadata| (metadata.dev(), metadata.ino()))
}
