//! Failures at the target, and how they are reported to the sender.

use std::io;

use rustix::io::Errno;
use zmove_disk::FENCED;
use zmove_wire::{FaultCode, Operation};

/// A failed operation and its error.
pub(crate) type Failure = (Operation, io::Error);

/// Adds the operation to an error.
pub(crate) fn failed_to(operation: Operation) -> impl Fn(io::Error) -> Failure + Copy {
    move |error| (operation, error)
}

/// The fault of a file that need not have been sent.
pub(crate) const ALREADY_THERE: (Operation, FaultCode) =
    (Operation::Create, FaultCode::AlreadyThere);

/// Whether there is no room, or no room within a quota.
pub(crate) fn is_no_room((_, error): &Failure) -> bool {
    error
        .raw_os_error()
        .is_some_and(|errno| FaultCode::Os(errno).is_no_room())
}

/// A failure as it is reported to the sender, with a code where that is clearer than an error number.
pub(crate) fn failure(operation: Operation, error: &io::Error) -> (Operation, FaultCode) {
    match (operation, Errno::from_io_error(error)) {
        (_, Some(FENCED)) => (operation, FaultCode::Fenced),
        (Operation::MakeDirectory, Some(Errno::XDEV)) => (operation, FaultCode::Mounted),
        (Operation::Rename | Operation::Symlink, Some(Errno::ISDIR)) => {
            (operation, FaultCode::DirectoryInTheWay)
        }
        (Operation::OpenInPlace, Some(Errno::WOULDBLOCK)) => (operation, FaultCode::Locked),
        (Operation::Verify | Operation::Link, Some(Errno::STALE)) => {
            (operation, FaultCode::Replaced)
        }
        (Operation::Verify, Some(Errno::BUSY)) => (operation, FaultCode::Changed),
        (Operation::Verify, Some(Errno::BADMSG)) => (operation, FaultCode::NotOnMedia),
        _ => (operation, FaultCode::os(error)),
    }
}

/// A copy of an error.
pub(crate) fn again(error: &io::Error) -> io::Error {
    io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}
