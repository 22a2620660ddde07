//! What could not be done at the target, and how the sender is told.

use std::io;

use rustix::io::Errno;
use zmove_wire::{FaultCode, Operation};

/// What failed, before it is known as what.
pub(crate) type Failure = (Operation, io::Error);

/// Names the operation of an error.
pub(crate) fn failed_to(operation: Operation) -> impl Fn(io::Error) -> Failure + Copy {
    move |error| (operation, error)
}

/// A file that need not have been sent.
pub(crate) const ALREADY_THERE: (Operation, FaultCode) = (Operation::Create, FaultCode::AlreadyThere);

/// Whether there is no room, or no room within a quota.
pub(crate) fn is_no_room((_, error): &Failure) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT))
}

/// A failure as the sender is told it, where that says more than an error number.
pub(crate) fn failure(operation: Operation, error: &io::Error) -> (Operation, FaultCode) {
    match (operation, Errno::from_io_error(error)) {
        (Operation::Rename | Operation::Symlink, Some(Errno::ISDIR)) => {
            (operation, FaultCode::DirectoryInTheWay)
        }
        (Operation::OpenInPlace, Some(Errno::WOULDBLOCK)) => (operation, FaultCode::Locked),
        (Operation::Verify, Some(Errno::STALE)) => (operation, FaultCode::Replaced),
        (Operation::Verify, Some(Errno::BUSY)) => (operation, FaultCode::Changed),
        _ => (operation, FaultCode::os(error)),
    }
}

/// The same error once more.
pub(crate) fn again(error: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}
