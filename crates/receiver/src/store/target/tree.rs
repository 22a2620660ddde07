//! The directory that a transfer writes to, and the rules for that: what is there, and what is changed there at once.
//!
//! Equal means: a regular file of the same size and, by default, the time that the target's file system makes
//! of the source's modification time. With `--update` and `--ignore-existing` a file may stay whatever it
//! holds.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zmove_chunk::read_root;
use zmove_disk::{
    FileIdentity, KeptTimes, LastingNames, Tree, is_beyond_range, is_held_everywhere, open_beneath, retouch,
    set_new_file_metadata,
};
use zmove_types::{Metadata, Name, RelPath, Timestamp, TransferId};
use zmove_wire::{FileHead, Operation, Overwrite, TargetState};

use crate::quota::Quota;
use crate::store::failure::{Failure, failed_to};
use crate::store::rules::Rules;
use crate::store::target::directories::Directories;
use crate::store::target::file_systems::{FileSystems, Flush};
use crate::store::target::judged::Judged;
use crate::store::target::{Target, renamed};

/// The opened target of one transfer, shared by its threads.
#[derive(Debug)]
pub(crate) struct TargetTree {
    pub(crate) rules: Rules,
    /// The directory that paths are relative to.
    pub(crate) tree: Tree,
    /// For a single entry: its name at the source and the name it gets.
    rename: Option<(Name, Name)>,
    /// Whether anything that will be written existed already.
    pub(crate) state: TargetState,
    /// Whether the directory was made here for its owner only: its mode is still to come.
    pub(crate) is_closed: bool,
    pub(crate) part_names: LastingNames,
    pub(crate) times: KeptTimes,
    /// The files that were compared by their contents.
    pub(crate) judged: Judged,
    /// The number of files that got another time than the source's, which their file system cannot store.
    pub(crate) times_beyond_range: AtomicU64,
    pub(crate) file_systems: FileSystems,
    /// The directories that get their mode and time at the end.
    pub(crate) directories: Directories,
    /// The most directories that each writer may keep open.
    pub(crate) directories_each: usize,
}

impl TargetTree {
    pub(crate) fn new(
        target: Target,
        rules: Rules,
        transfer: TransferId,
        quota: &Quota,
        writers: usize,
    ) -> Self {
        let Target { tree, rename, state, is_closed } = target;
        let tag = &transfer.to_string()[..12];
        Self {
            rules,
            tree,
            rename,
            state,
            is_closed,
            part_names: LastingNames::new(tag),
            times: KeptTimes::default(),
            judged: Judged::new(quota),
            times_beyond_range: AtomicU64::new(0),
            file_systems: FileSystems::default(),
            directories: Directories::new(quota),
            directories_each: quota.directories_each(writers),
        }
    }

    /// The name that an entry gets.
    pub(crate) fn name<'a>(&'a self, directory: &RelPath, name: &'a Name) -> &'a Name {
        renamed(self.rename.as_ref(), directory, name)
    }

    /// The final path of a large file.
    pub(crate) fn final_path(&self, head: &FileHead) -> RelPath {
        let parent = head.path.parent().unwrap_or_else(RelPath::root);
        let Some(name) = head.path.file_name() else { return head.path.clone() };
        parent.join(self.name(&parent, &name)).unwrap_or_else(|_| head.path.clone())
    }

    /// Sets mode and time of a new file, before it gets its name.
    pub(crate) fn set_metadata(&self, file: &File, metadata: &Metadata) -> Result<(), Failure> {
        set_new_file_metadata(file, metadata).map_err(failed_to(Operation::SetMetadata))?;
        self.count_beyond_range(metadata.mtime, || FileIdentity::of(file));
        Ok(())
    }

    /// Sets mode and time of a file whose contents were found equal.
    pub(crate) fn retouch(
        &self,
        directory: &OwnedFd,
        name: &Name,
        metadata: &Metadata,
    ) -> Result<(), Failure> {
        let cannot = failed_to(Operation::SetMetadata);
        let there = FileIdentity::at(directory, name).map_err(cannot)?;
        let is_as_judged = self.judged.is_as_judged(directory, name, &there);
        let set = if is_as_judged {
            self.touch(directory, name, &there, (metadata.mode, Some(metadata.mtime)))
        } else {
            Err(Errno::BUSY.into())
        };
        set.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::BUSY) => (Operation::Verify, error),
            _ => (Operation::SetMetadata, error),
        })?;
        self.judged.is_done(directory, name).map_err(cannot)
    }

    /// Sets the mode of an existing file, and its time where one is given.
    fn touch(
        &self,
        directory: &OwnedFd,
        name: &Name,
        judged: &FileIdentity,
        wanted: (u32, Option<Timestamp>),
    ) -> io::Result<()> {
        self.file_systems.note(directory)?;
        retouch(directory.as_fd(), name, judged, wanted)?;
        if self.flushes_each(directory)? {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            flush(rustix::fs::openat(directory, name.as_os_str(), flags, Mode::empty())?)?;
        }
        Ok(())
    }

    /// Flushes a file or directory that was changed under its final name, where the end of the transfer flushes nothing
    /// as a whole.
    pub(crate) fn flush_if_each(&self, changed: impl AsFd) -> io::Result<()> {
        if self.flushes_each(&changed)? { flush(changed) } else { Ok(()) }
    }

    fn flushes_each(&self, changed: impl AsFd) -> io::Result<bool> {
        Ok(self.rules.flushes() && self.file_systems.note(changed)? == Flush::Each)
    }

    /// Whether an existing entry stays, because it may not be replaced or is a file of that size and time.
    pub(crate) fn is_kept(&self, directory: &OwnedFd, name: &Name, bytes: u64, metadata: &Metadata) -> bool {
        FileIdentity::at(directory, name).is_ok_and(|there| {
            self.spares(directory, &there, metadata.mtime)
                || there.regular && there.bytes == bytes && self.keep(directory, name, &there, metadata)
        })
    }

    /// Whether an existing file has that time and so stays; its mode is put right. Where that fails, the file is sent
    /// again, and the error is reported then.
    pub(crate) fn keep(
        &self,
        directory: &OwnedFd,
        name: &Name,
        there: &FileIdentity,
        metadata: &Metadata,
    ) -> bool {
        let kept = self.times.is_kept(directory, there.mtime, metadata.mtime)
            && (there.mode == metadata.mode
                || self.touch(directory, name, there, (metadata.mode, None)).is_ok());
        if kept {
            self.count_beyond_range(metadata.mtime, || Ok(*there));
        }
        kept
    }

    /// Whether an existing entry may not be replaced by a file with that time at the source.
    pub(crate) fn spares(&self, directory: &OwnedFd, there: &FileIdentity, mtime: Timestamp) -> bool {
        self.rules.spare(there, || self.times.kept(directory, mtime))
    }

    /// Whether there is an entry that `--update` or `--ignore-existing` keeps. It may have come since the sender was
    /// answered.
    pub(crate) fn may_not_be_replaced(&self, directory: &OwnedFd, name: &Name, mtime: Timestamp) -> bool {
        self.rules.overwrite != Overwrite::Differing
            && FileIdentity::at(directory, name).is_ok_and(|there| self.spares(directory, &there, mtime))
    }

    /// Counts a file whose time its file system cannot store. To be called when the file has got its time.
    pub(crate) fn count_beyond_range(
        &self,
        wanted: Timestamp,
        there: impl FnOnce() -> io::Result<FileIdentity>,
    ) {
        if !is_held_everywhere(wanted) && there().is_ok_and(|there| is_beyond_range(there.mtime, wanted)) {
            self.times_beyond_range.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn flush(changed: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::retry_on_intr(|| rustix::fs::fsync(&changed))?)
}

/// Flushes a file's data, if `now` is set.
pub(crate) fn flush_now(file: &File, now: bool) -> Result<(), Failure> {
    if now {
        file.sync_data().map_err(failed_to(Operation::Flush))?;
    }
    Ok(())
}

/// Opens the entry that has the name of a file to come. It need not be a regular file: a link is not followed, and
/// opening does not block.
///
/// # Errors
/// The system's error, `ELOOP` for a symbolic link.
pub(crate) fn open_old(directory: BorrowedFd<'_>, name: &Name) -> io::Result<File> {
    let path = RelPath::root().join(name).map_err(|error| io::Error::other(error.to_string()))?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(open_beneath(directory, &path, flags)?.into())
}

/// The root of an existing file; `None` where it cannot be read, or reading it was stopped.
pub(crate) fn contents_root(
    directory: BorrowedFd<'_>,
    name: &Name,
    stop: impl Fn() -> bool,
) -> Option<[u8; 32]> {
    let root = read_root(&open_old(directory, name).ok()?, stop).ok()??;
    Some(root.0)
}
