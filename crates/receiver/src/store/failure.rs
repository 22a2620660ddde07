//! Failures at the target, and how they are reported to the sender.

use std::io;

use rustix::io::Errno;
use zmove_disk::{JOB_ENDED, Tree, lacks_inodes};
use zmove_types::{FileId, RelPath};
use zmove_wire::{EntryFault, Fault, FaultCode, FileDone, Operation};

/// A failed operation and its error.
pub(crate) type Failure = (Operation, io::Error);

/// The cause of a fault, as reported to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FaultCause {
    pub(crate) operation: Operation,
    pub(crate) code: FaultCode,
}

impl FaultCause {
    pub(crate) const fn new(operation: Operation, code: FaultCode) -> Self {
        Self { operation, code }
    }

    /// Returns the report of this fault for the entry at `path`.
    pub(crate) fn at(self, path: RelPath) -> Fault {
        let Self { operation, code } = self;
        Fault {
            path,
            operation,
            code,
        }
    }

    /// Returns the report of this fault for the entry with index `entry` of a batch.
    pub(crate) fn of_entry(self, entry: u32) -> EntryFault {
        let Self { operation, code } = self;
        EntryFault {
            entry,
            operation,
            code,
        }
    }

    /// Returns the report for a large file that failed with this fault.
    pub(crate) fn of_file(self, id: FileId) -> FileDone {
        FileDone {
            file: id.0,
            fault: Some((self.operation, self.code)),
        }
    }
}

/// Returns a function that combines an error with `operation` into a [`Failure`].
pub(crate) fn with_operation(operation: Operation) -> impl Fn(io::Error) -> Failure + Copy {
    move |error| (operation, error)
}

/// Returns a function that combines an error with the operation that has failed: opening or creating a directory.
pub(crate) fn with_entry_operation(tree: &Tree, path: &RelPath) -> impl Fn(io::Error) -> Failure {
    |error| (entry_operation(tree, path, &error), error)
}

/// Returns the operation that has failed: opening a directory, or creating it. For a permission error, which both
/// operations can return, tries to open the directory again to determine the operation.
pub(crate) fn entry_operation(tree: &Tree, path: &RelPath, error: &io::Error) -> Operation {
    let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let is_closed = || {
        tree.open_directory(path)
            .is_err_and(|error| is_denied(&error))
    };
    if is_denied(error) && is_closed() {
        Operation::OpenDirectory
    } else {
        Operation::MakeDirectory
    }
}

/// The fault of a file that is not stored because the existing entry with its name must be kept.
pub(crate) const KEPT_EXISTING: FaultCause =
    FaultCause::new(Operation::Create, FaultCode::AlreadyThere);

/// The error for a directory that is not replaced because a rule protects it or one of its entries. No file system
/// returns this error, `RESERVED` or `REMOVED_ENOUGH`.
pub(crate) const PROTECTED: Errno = Errno::KEYREJECTED;
/// The error for a directory that is not replaced because it contains a reserved name.
pub(crate) const RESERVED: Errno = Errno::KEYREVOKED;
/// The error for a directory that is not replaced because it contains more entries than the transfer may remove.
pub(crate) const REMOVED_ENOUGH: Errno = Errno::KEYEXPIRED;

/// Returns whether a failure was caused by missing space or an exceeded quota.
pub(crate) fn is_no_room((_, error): &Failure) -> bool {
    error
        .raw_os_error()
        .is_some_and(|errno| FaultCode::Os(errno).is_no_room())
}

/// Returns whether a directory could not be opened because a file or link has its name.
pub(crate) fn is_in_the_way(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOTDIR | Errno::LOOP)
    )
}

/// Converts a failure to the form in which it is reported to the sender. Uses a specific fault code if that is clearer
/// than the error number.
pub(crate) fn failure(operation: Operation, error: &io::Error) -> FaultCause {
    let code = match (operation, Errno::from_io_error(error)) {
        (_, Some(JOB_ENDED)) => FaultCode::JobEnded,
        (
            Operation::MakeDirectory | Operation::OpenDirectory | Operation::Remove,
            Some(Errno::XDEV),
        ) => FaultCode::Mounted,
        (Operation::Remove, Some(PROTECTED)) => FaultCode::Protected,
        (Operation::Remove, Some(RESERVED)) => FaultCode::Reserved,
        (Operation::Remove, Some(REMOVED_ENOUGH)) => FaultCode::RemovedEnough,
        (Operation::Rename | Operation::Symlink | Operation::Create, Some(Errno::ISDIR)) => {
            FaultCode::DirectoryInTheWay
        }
        (Operation::OpenInPlace, Some(Errno::WOULDBLOCK)) => FaultCode::Locked,
        (Operation::Verify | Operation::Link, Some(Errno::STALE)) => FaultCode::Replaced,
        (Operation::Verify, Some(Errno::BUSY)) => FaultCode::Changed,
        (Operation::Verify, Some(Errno::BADMSG)) => FaultCode::NotOnMedia,
        _ => FaultCode::os(error),
    };
    FaultCause::new(operation, code)
}

/// Converts a failure like [`failure`]. Uses a specific fault code if the target's file system has free space but no
/// free inodes.
pub(crate) fn failure_in(tree: &Tree, operation: Operation, error: &io::Error) -> FaultCause {
    use Operation::{Create, MakeDirectory, Symlink};
    let is_full = Errno::from_io_error(error) == Some(Errno::NOSPC);
    let creates = matches!(operation, Create | MakeDirectory | Symlink);
    let lacks = || rustix::fs::fstatvfs(tree.fd()).is_ok_and(|stat| lacks_inodes(&stat));
    if is_full && creates && lacks() {
        return FaultCause::new(operation, FaultCode::NoInodes);
    }
    failure(operation, error)
}

/// Returns a copy of an error.
pub(crate) fn again(error: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}
