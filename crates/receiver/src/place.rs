//! Puts the entries of a verified batch into place, one at a time, each with a fault of its own if it fails.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use zmove_disk::{DirectoryCache, Staged, place_symlink, retouch};
use zmove_types::{Metadata, Name, RelPath};
use zmove_wire::{BatchEntry, DirectoryGroup, Durability, EntryFault, FaultCode, Operation};

use crate::store::Context;

/// One writer's hands: the transfer and the directories it has open.
#[derive(Debug)]
pub(crate) struct Placer<'a> {
    context: &'a Context,
    directories: DirectoryCache<'a>,
}

/// What failed, before it is known as what.
type Failure = (Operation, io::Error);

impl<'a> Placer<'a> {
    pub(crate) fn new(context: &'a Context) -> Self {
        Self { context, directories: DirectoryCache::new(&context.target.tree) }
    }

    /// Places a group's entries, of which the first has number `first` in its batch and whose files' contents are at the
    /// front of `data`; adds what failed to `faults`.
    pub(crate) fn place_group(
        &mut self,
        group: DirectoryGroup,
        first: u32,
        data: &mut &[u8],
        faults: &mut Vec<EntryFault>,
    ) {
        let opened = self.directory(&group.directory);
        for (number, entry) in (first..).zip(group.entries) {
            let bytes = take_data(&entry, data);
            let placed = match &opened {
                Ok(directory) => self.place(directory, &group.directory, &entry, bytes),
                Err(error) => Err((Operation::MakeDirectory, again(error))),
            };
            if let Err((operation, error)) = placed {
                let (operation, code) = failure(operation, &error);
                faults.push(EntryFault { entry: number, operation, code });
            }
        }
    }

    /// A directory of the target, made if need be.
    pub(crate) fn directory(&mut self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        self.directories.ensure(path)
    }

    fn place(
        &mut self,
        directory: &Arc<OwnedFd>,
        path: &RelPath,
        entry: &BatchEntry,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let context = self.context;
        match entry {
            BatchEntry::Itself(metadata) => context.remember_directory(path.clone(), *metadata),
            BatchEntry::Directory(name, metadata) => self.place_directory(path, name, *metadata)?,
            BatchEntry::Symlink(name, metadata, target) => {
                let name = context.target.name(path, name);
                place_symlink(directory.as_fd(), name, target, metadata.mtime, &context.temp_names)
                    .map_err(|error| (Operation::Symlink, error))?;
            }
            BatchEntry::File(file) => {
                let name = context.target.name(path, &file.name);
                place_file(context, directory, name, &plain(file.metadata), bytes)?;
            }
            BatchEntry::Retouch(name, metadata) => {
                let name = context.target.name(path, name);
                retouch(directory.as_fd(), name, &plain(*metadata))
                    .map_err(|error| (Operation::SetMetadata, error))?;
            }
        }
        Ok(())
    }

    fn place_directory(&mut self, parent: &RelPath, name: &Name, metadata: Metadata) -> Result<(), Failure> {
        let path = parent.join(name).map_err(|_| (Operation::MakeDirectory, Errno::NAMETOOLONG.into()))?;
        self.directory(&path).map_err(|error| (Operation::MakeDirectory, error))?;
        self.context.remember_directory(path, metadata);
        Ok(())
    }
}

fn place_file(
    context: &Context,
    directory: &Arc<OwnedFd>,
    name: &Name,
    metadata: &Metadata,
    bytes: &[u8],
) -> Result<(), Failure> {
    let staged = Staged::create(directory, metadata.mode, &context.temp_names)
        .map_err(|error| (Operation::Create, error))?;
    staged.file().write_all(bytes).map_err(|error| (Operation::Write, error))?;
    commit(context, staged, name, metadata, context.durability == Durability::File)
}

/// Metadata, flush if asked, final name: the end of every file.
pub(crate) fn commit(
    context: &Context,
    staged: Staged,
    name: &Name,
    metadata: &Metadata,
    flush_first: bool,
) -> Result<(), Failure> {
    staged.set_metadata(metadata).map_err(|error| (Operation::SetMetadata, error))?;
    if flush_first {
        staged.file().sync_data().map_err(|error| (Operation::Flush, error))?;
    }
    staged.commit(name, &context.temp_names).map_err(|error| (Operation::Rename, error))
}

/// The metadata of a regular file without setuid and setgid: ownership is not carried over, so these bits would lend
/// the wrong user's rights.
pub(crate) fn plain(metadata: Metadata) -> Metadata {
    Metadata { mode: metadata.mode & !0o6000, ..metadata }
}

/// A failure as the sender is told it, where that says more than an error number.
pub(crate) fn failure(operation: Operation, error: &io::Error) -> (Operation, FaultCode) {
    match (operation, Errno::from_io_error(error)) {
        (Operation::Rename | Operation::Symlink, Some(Errno::ISDIR)) => {
            (operation, FaultCode::DirectoryInTheWay)
        }
        _ => (operation, FaultCode::os(error)),
    }
}

fn take_data<'d>(entry: &BatchEntry, data: &mut &'d [u8]) -> &'d [u8] {
    let BatchEntry::File(file) = entry else { return &[] };
    let (bytes, rest) = data.split_at(file.bytes as usize);
    *data = rest;
    bytes
}

fn again(error: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}
