//! Failures at the target, and how they are reported to the sender.

use std::io;

use rustix::io::Errno;
use zmove_disk::{JOB_ENDED, Tree};
use zmove_types::{FileId, RelPath};
use zmove_wire::{EntryFault, Fault, FaultCode, FileDone, Operation};

/// A failed operation and its error.
pub(crate) type Failure = (Operation, io::Error);

/// The cause of a fault, as the sender receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FaultCause {
    pub(crate) operation: Operation,
    pub(crate) code: FaultCode,
}

impl FaultCause {
    pub(crate) const fn new(operation: Operation, code: FaultCode) -> Self {
        Self { operation, code }
    }

    /// The fault of the entry at this path.
    pub(crate) fn at(self, path: RelPath) -> Fault {
        let Self { operation, code } = self;
        Fault {
            path,
            operation,
            code,
        }
    }

    /// The fault of the entry with this number.
    pub(crate) fn of_entry(self, entry: u32) -> EntryFault {
        let Self { operation, code } = self;
        EntryFault {
            entry,
            operation,
            code,
        }
    }

    /// The report of a large file that has failed.
    pub(crate) fn of_file(self, id: FileId) -> FileDone {
        FileDone {
            file: id.0,
            fault: Some((self.operation, self.code)),
        }
    }
}

/// Adds the operation to an error.
pub(crate) fn failed_to(operation: Operation) -> impl Fn(io::Error) -> Failure + Copy {
    move |error| (operation, error)
}

/// Adds the operation to the error of opening a directory, or of making it where it did not exist.
pub(crate) fn failed_to_enter(tree: &Tree, path: &RelPath) -> impl Fn(io::Error) -> Failure {
    |error| (entering(tree, path, &error), error)
}

/// The operation that has failed when a directory was opened, or made where it did not exist. Only a lack of permission
/// does not show which of the two it was.
pub(crate) fn entering(tree: &Tree, path: &RelPath, error: &io::Error) -> Operation {
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

/// The fault of a file that need not have been sent.
pub(crate) const ALREADY_THERE: FaultCause =
    FaultCause::new(Operation::Create, FaultCode::AlreadyThere);

/// The error of a directory in the way that a rule protects, or in which a rule protects something. No file system
/// returns this error or the two below.
pub(crate) const PROTECTED: Errno = Errno::KEYREJECTED;
/// The error of a directory in the way that holds a reserved name.
pub(crate) const RESERVED: Errno = Errno::KEYREVOKED;
/// The error of a directory in the way that holds more than may still be removed.
pub(crate) const REMOVED_ENOUGH: Errno = Errno::KEYEXPIRED;

/// Whether there is no room, or no room within a quota.
pub(crate) fn is_no_room((_, error): &Failure) -> bool {
    error
        .raw_os_error()
        .is_some_and(|errno| FaultCode::Os(errno).is_no_room())
}

/// A failure as it is reported to the sender, with a code where that is clearer than an error number.
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

/// A copy of an error.
pub(crate) fn again(error: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}
