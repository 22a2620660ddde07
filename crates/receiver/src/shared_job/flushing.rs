//! Flushes all data that a session of a job has written, except for the parts of large files.

use std::io;

use crate::store::transfer::Transfer;

/// Flushes all data that this host has written to the target. The kernel reports a failed write-back only once. After a
/// failed flush, files written earlier are therefore checked before they are renamed into place, and groups written
/// earlier no longer count as received.
pub(crate) fn flush_file_systems(transfer: &Transfer) -> io::Result<()> {
    let flushed = transfer.target.file_systems.flush_without_timeout();
    Ok(flushed.inspect_err(|_told_once| {
        transfer.publisher.suspect();
        transfer.parts.flush_failed();
    })?)
}
