//! One session of a shared job. In a shared job, several receivers on different hosts write into one directory of a
//! shared file system.
//!
//! | hazard between hosts | protection |
//! |---|---|
//! | a receiver that was stopped continues later | its lease has ended, and no hidden entries remain after the job |
//! | a flush covers one client only | each receiver flushes its own data before it reports the data as done |
//! | no host knows who has written which groups | each session has a journal in the job's directory, and all read it |
//! | two receivers rename a large file into place | both rename the same inode, and a marker replaces the hidden file |
//!
//! **Invariant:** every record of a journal stays true, regardless of the fate of its writer. A group counts as
//! received after its writer has flushed it, and a file is committed after all of its groups count. A truncated
//! journal contains fewer records, but no wrong ones.
//!
//! Options for which this cannot be guaranteed are refused: changing or removing existing entries (`--inplace`,
//! `--delete`, metadata only), using old versions, and reading files back.

mod commit;
mod groups;
mod journals;
pub(crate) mod other_jobs;
pub(crate) mod session;
mod takeover;

use std::cmp::Reverse;
use std::io;
use std::sync::atomic::Ordering;

use zmove_disk::JOB_ENDED;
use zmove_types::{Metadata, RelPath};
use zmove_wire::{
    Batch, BatchEntry, FileHead, NotKept, Operation, SharedJobOrder, SharedJobResult, WireError,
};

use crate::shared_job::session::SharedJobSession;
use crate::store::failure::{Failure, FaultCause, failure, with_operation};
use crate::store::publishing::publish_all;
use crate::store::target::metadata_policy::EntryLocation;
use crate::store::transfer::Transfer;

impl SharedJobSession {
    /// Executes an order (a request of the sender).
    ///
    /// # Errors
    /// Returns an error if the order is malformed or not allowed in this state.
    pub(crate) fn execute(
        &self,
        transfer: &Transfer,
        order: SharedJobOrder,
    ) -> Result<SharedJobResult, WireError> {
        let done = match order {
            SharedJobOrder::Settle => self.settle(transfer).map(SharedJobResult::Settled),
            SharedJobOrder::Commit { head } => {
                let head = FileHead::decode(&head)?;
                if head.path.is_root() {
                    return Err(WireError::OutOfOrder {
                        what: "a file without a name",
                    });
                }
                transfer.top_names.check(&head.path)?;
                self.commit(transfer, &head)
            }
            SharedJobOrder::SetDirectories { head } => {
                let batch = Batch::decode(&head, 0)?;
                transfer.top_names.check_batch(&batch)?;
                // The order may run longer than its session and the job, so each directory requires a check that the
                // job has not ended.
                set_directories(transfer, directories(batch)?, || {
                    self.check(Operation::SetMetadata)
                })
            }
            SharedJobOrder::Close => self.close(transfer).map(|()| SharedJobResult::Done),
            SharedJobOrder::Ping => Ok(SharedJobResult::Done),
        };
        Ok(done.unwrap_or_else(|(operation, error)| {
            let FaultCause { operation, code } = failure(operation, &error);
            SharedJobResult::Failed(operation, code)
        }))
    }

    /// Publishes and flushes every entry that was reported to the sender as stored. Returns the metadata that was not
    /// preserved since the last call.
    fn settle(&self, transfer: &Transfer) -> Result<Vec<NotKept>, Failure> {
        let flushed = self.flush(transfer);
        // If the flush has failed because the job has ended, the end of the job is reported instead. In that case,
        // other receivers have done the work.
        self.check(Operation::Rename)?;
        flushed?;
        Ok(transfer.target.view.policy.take_counts())
    }

    /// Fails if the job has ended.
    fn check(&self, operation: Operation) -> Result<(), Failure> {
        if self.session.has_ended() {
            Err((operation, JOB_ENDED.into()))
        } else {
            Ok(())
        }
    }

    /// Publishes and flushes all received entries. One flush serves all callers that were waiting when it began.
    fn flush(&self, transfer: &Transfer) -> Result<(), Failure> {
        let ticket = self.flushes.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let mut covered = self.flushes.covered.lock();
        if *covered >= ticket {
            return Ok(());
        }
        let asked = self.flushes.asked.load(Ordering::Relaxed);
        transfer.publisher.wait_until_placed();
        publish_all(transfer);
        self.flush_parts(transfer)?;
        // The directories of this session are forgotten. The sender sets the modes and times of all directories with a
        // separate order at the end of the job.
        drop(transfer.target.directories.take());
        flush_file_systems(transfer).map_err(with_operation(Operation::Flush))?;
        *covered = asked;
        Ok(())
    }

    /// Flushes the data of parts (temporary files that hold received groups of large files). After that, these groups
    /// count as received.
    fn flush_parts(&self, transfer: &Transfer) -> Result<(), Failure> {
        let Some(shared) = &transfer.parts.shared else {
            return Ok(());
        };
        let flushed = transfer.parts.flush_shared(shared);
        let flushed = flushed.inspect_err(|_told_once| transfer.parts.flush_failed());
        flushed.map_err(with_operation(Operation::Flush))
    }

    fn close(&self, transfer: &Transfer) -> Result<(), Failure> {
        // The file that marks the end of the job needs some space. On a full file system, only the journal's
        // preallocated space may be left.
        transfer.parts.release_allocation();
        if let Some(heartbeat_writer) = &self.heartbeat_writer {
            heartbeat_writer.stop();
        }
        let cannot = with_operation(Operation::Delete);
        let tree = &transfer.target.tree;
        let root = tree.open_directory(&RelPath::root()).map_err(&cannot)?;
        self.directory
            .close(tree.lease(), &root, self.job)
            .map_err(cannot)
    }
}

/// Flushes all data that this host has written to the target. The kernel reports a failed write-back only once. So
/// after a failed flush, files written earlier are checked before they are renamed into place, and groups written
/// earlier no longer count as received.
pub(crate) fn flush_file_systems(transfer: &Transfer) -> io::Result<()> {
    let flushed = transfer.target.file_systems.flush_without_timeout();
    Ok(flushed.inspect_err(|_told_once| {
        transfer.publisher.suspect();
        transfer.parts.flush_failed();
    })?)
}

/// A directory whose mode and time are to be set.
struct DirectoryMetadata {
    /// Index of the directory's entry in the batch.
    entry: u32,
    path: RelPath,
    metadata: Metadata,
}

/// Sets the mode and time of directories, the deepest first. Calls `check` before each directory and stops if `check`
/// fails.
fn set_directories(
    transfer: &Transfer,
    mut directories: Vec<DirectoryMetadata>,
    check: impl Fn() -> Result<(), Failure>,
) -> Result<SharedJobResult, Failure> {
    directories.sort_by_key(|directory| Reverse(directory.path.depth()));
    let target = &transfer.target;
    let mut faults = Vec::new();
    for DirectoryMetadata {
        entry,
        path,
        metadata,
    } in &directories
    {
        check()?;
        let directory = target.tree.open_own_directory(path);
        let set = directory.and_then(|directory| {
            target.set_directory(&directory, metadata, EntryLocation(path, None))?;
            target.flush_if_per_file(&directory)
        });
        if let Err(error) = set {
            faults.push(failure(Operation::SetMetadata, &error).of_entry(*entry));
        }
    }
    flush_file_systems(transfer).map_err(with_operation(Operation::Flush))?;
    Ok(SharedJobResult::DirectoriesSet(faults))
}

/// Returns the directories of a batch, which must not contain any other entries.
fn directories(batch: Batch) -> Result<Vec<DirectoryMetadata>, WireError> {
    let mut directories = Vec::new();
    for group in batch.groups {
        for entry in group.entries {
            let BatchEntry::Itself(metadata) = entry else {
                return Err(WireError::OutOfOrder {
                    what: "an entry that is not a directory",
                });
            };
            let entry = u32::try_from(directories.len()).unwrap_or(u32::MAX);
            directories.push(DirectoryMetadata {
                entry,
                path: group.directory.clone(),
                metadata,
            });
        }
    }
    Ok(directories)
}

#[cfg(test)]
mod tests;
