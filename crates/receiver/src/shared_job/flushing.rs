//! The flush of what a session in a job has written, beside that of its parts.

use std::io;

use crate::store::transfer::Transfer;

/// Flushes all that this host has written to the target. The kernel tells of a failed write-back once: what was written
/// before is looked at then before it gets a name, or does not count.
pub(crate) fn flush_file_systems(transfer: &Transfer) -> io::Result<()> {
    let flushed = transfer.target.file_systems.flush_to_the_end();
    Ok(flushed.inspect_err(|_told_once| {
        transfer.publisher.suspect();
        transfer.parts.flush_failed();
    })?)
}
