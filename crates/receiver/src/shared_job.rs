//! The part that a session has in a job which several receivers, on different hosts, write into one directory of a
//! shared file system.
//!
//! | what may go wrong between hosts | what holds it |
//! |---|---|
//! | a receiver that was stopped goes on later | its lease has ended; after the job, nothing hidden is left |
//! | a flush covers one client alone | each receiver flushes what it wrote before it says that it is done |
//! | nobody knows who has written which groups | a journal for each session in the job's directory, read by all |
//! | two give a large file its name | both give it to one inode, and a mark in the place of the part tells of it |
//!
//! **Invariant:** what a journal says is true whatever becomes of its writer later: a group counts when it has been
//! flushed by who wrote it, and a file is committed when all of its groups count. A journal that ends anywhere tells
//! less, and nothing that is wrong.
//!
//! What could not be held so is refused: to change or remove what is there (`--inplace`, `--delete`, metadata alone),
//! to go on with old versions or to read files back.

mod commit;
mod flushing;
mod groups;
mod journals;
pub(crate) mod other_jobs;
pub(crate) mod session;
mod takeover;

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use zmove_disk::JOB_ENDED;
use zmove_types::{Metadata, RelPath};
use zmove_wire::{
    Batch, BatchEntry, FileHead, NotKept, Operation, SharedJobOrder, SharedJobResult, WireError,
};

use crate::shared_job::flushing::flush_file_systems;
use crate::shared_job::other_jobs::PATIENCE;
use crate::shared_job::session::SharedJobSession;
use crate::store::failure::{Failure, FaultCause, failed_to, failure};
use crate::store::publishing::publish_all;
use crate::store::target::keeper::At;
use crate::store::transfer::Transfer;

impl SharedJobSession {
    /// Does what the sender orders.
    ///
    /// # Errors
    /// The order makes no sense.
    pub(crate) fn obey(
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
                // an order that takes long may outlive its session, and the job
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

    /// Names and flushes all that has been reported as stored. Returns what was not kept since the last time.
    fn settle(&self, transfer: &Transfer) -> Result<Vec<NotKept>, Failure> {
        let flushed = self.flush(transfer);
        // Something may have failed for that reason alone, and will be done by others.
        self.check(Operation::Rename)?;
        flushed?;
        Ok(transfer.target.view.keeper.take_counts())
    }

    /// Fails where the job has ended.
    fn check(&self, operation: Operation) -> Result<(), Failure> {
        if self.session.has_ended() {
            Err((operation, JOB_ENDED.into()))
        } else {
            Ok(())
        }
    }

    /// Names and flushes what has come. One flush does for all who wait for it.
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
        // an order sets them at the end of the job
        drop(transfer.target.directories.take());
        flush_file_systems(transfer).map_err(failed_to(Operation::Flush))?;
        *covered = asked;
        Ok(())
    }

    /// Flushes what has been written to parts of large files, which counts from then on.
    fn flush_parts(&self, transfer: &Transfer) -> Result<(), Failure> {
        let Some(shared) = &transfer.parts.shared else {
            return Ok(());
        };
        let flushed = transfer.parts.flush_shared(shared);
        let flushed = flushed.inspect_err(|_told_once| transfer.parts.flush_failed());
        flushed.map_err(failed_to(Operation::Flush))
    }

    fn close(&self, transfer: &Transfer) -> Result<(), Failure> {
        // the mark of the end needs some room, and this may be all that there is
        transfer.parts.give_back_room();
        if let Some(heart) = &self.heart {
            heart.stop();
        }
        let cannot = failed_to(Operation::Delete);
        let tree = &transfer.target.tree;
        let root = tree.open_directory(&RelPath::root()).map_err(&cannot)?;
        self.directory
            .close(tree.lease(), &root, self.job, PATIENCE)
            .map_err(cannot)
    }
}

/// A directory that gets mode and time.
struct DirectoryToSet {
    /// The number of its entry.
    entry: u32,
    path: RelPath,
    metadata: Metadata,
}

/// Sets mode and time of directories, the deepest first. Checks before each whether it may.
fn set_directories(
    transfer: &Transfer,
    mut directories: Vec<DirectoryToSet>,
    check: impl Fn() -> Result<(), Failure>,
) -> Result<SharedJobResult, Failure> {
    directories.sort_by_key(|directory| Reverse(directory.path.depth()));
    let target = &transfer.target;
    let mut faults = Vec::new();
    for DirectoryToSet {
        entry,
        path,
        metadata,
    } in &directories
    {
        check()?;
        let directory = target.tree.open_own_directory(path);
        let set = directory.and_then(|directory| {
            target.set_directory(&directory, metadata, At(path, None))?;
            target.flush_if_each(&directory)
        });
        if let Err(error) = set {
            faults.push(failure(Operation::SetMetadata, &error).of_entry(*entry));
        }
    }
    flush_file_systems(transfer).map_err(failed_to(Operation::Flush))?;
    Ok(SharedJobResult::DirectoriesSet(faults))
}

/// The directories of a batch that holds nothing else.
fn directories(batch: Batch) -> Result<Vec<DirectoryToSet>, WireError> {
    let mut directories = Vec::new();
    for group in batch.groups {
        for entry in group.entries {
            let BatchEntry::Itself(metadata) = entry else {
                return Err(WireError::OutOfOrder {
                    what: "an entry beside directories",
                });
            };
            let entry = u32::try_from(directories.len()).unwrap_or(u32::MAX);
            directories.push(DirectoryToSet {
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
