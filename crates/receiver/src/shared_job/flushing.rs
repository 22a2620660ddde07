//! Flushing everything that a session in a job has written, except for its parts.

use std::io;

use crate::store::transfer::Transfer;

/// Flushes everything that this host has written to the target. The kernel reports a failed write-back only once. After
/// a failure, files written earlier are therefore checked before they are renamed into place, and earlier groups do not
/// count.
pub(crate) fn flush_file_systems(transfer: &Transfer) -> io::Result<()> {
    let flushed = transfer.target.file_systems.flush_without_timeout();
    Ok(flushed.inspect_err(|_told_once| {
        transfer.publisher.suspect();
        transfer.parts.flush_failed();
    })?)
}
