//! The directories of a job, as they have come. Journals have them, so that those which are not at the source any more
//! when the job ends get mode and time as well.
//!
//! **Invariant:** where work has ended, all directories that it has brought are in a journal.

use rustix::io::Errno;
use zmove_types::Metadata;
use zmove_wire::limits::BATCH_ENTRIES_MAX;
use zmove_wire::{
    Batch, BatchEntry, DIRECTORY_HEAD_BYTES, DirectoryGroup, Operation, directory_batches,
};

use crate::resume::journal::Record;
use crate::shared_job::session::SharedJobSession;
use crate::store::failure::{Failure, failed_to};
use crate::store::target::directories::Remembered;
use crate::store::transfer::Transfer;

impl SharedJobSession {
    /// Journals the directories that have come since the last time. After one that cannot be recorded this session
    /// records nothing: neither do other work items end, the directories of which were among them.
    pub(super) fn journal_directories(&self, transfer: &Transfer) -> Result<(), Failure> {
        let groups = transfer.target.directories.take().into_iter().map(as_group);
        for batch in directory_batches(groups) {
            let recorded = transfer
                .parts
                .record_work(|journal| journal.directories(batch.encode()));
            recorded.map_err(failed_to(Operation::Flush))?;
        }
        Ok(())
    }

    /// The head of a batch of the next directories in the journals; no bytes where there are no more.
    pub(super) fn list_directories(&self) -> Result<Vec<u8>, Failure> {
        let mut listed = Batch::default();
        let mut bytes = 0;
        let read = self.listed.lock().read_on(
            self.directory.fd(),
            |_epoch| true,
            |(), record, _end| {
                let Record::Directories(head) = record else {
                    return Ok(());
                };
                let mut next = Batch::decode(&head, 0).map_err(|_malformed| Errno::BADMSG)?;
                let entries = listed.groups.len() + next.groups.len();
                bytes += head.len();
                if !listed.groups.is_empty()
                    && (entries > BATCH_ENTRIES_MAX || bytes > DIRECTORY_HEAD_BYTES)
                {
                    return Err(IS_FULL.into());
                }
                listed.groups.append(&mut next.groups);
                Ok(())
            },
        );
        match read {
            Err(error) if Errno::from_io_error(&error) != Some(IS_FULL) => {
                return Err(failed_to(Operation::Read)(error));
            }
            Ok(()) | Err(_) => {}
        }
        self.check(Operation::Read)?;
        Ok(if listed.groups.is_empty() {
            Vec::new()
        } else {
            listed.encode()
        })
    }
}

fn as_group(directory: Remembered) -> DirectoryGroup {
    let path = directory.path();
    let extra = directory
        .metadata
        .extra
        .filter(|extra| extra.bytes() < DIRECTORY_HEAD_BYTES);
    let metadata = Metadata {
        extra,
        ..directory.metadata
    };
    DirectoryGroup {
        directory: path,
        entries: vec![BatchEntry::Itself(metadata)],
    }
}

/// The error by which the reading of journals ends when there is enough for one answer.
const IS_FULL: Errno = Errno::AGAIN;
