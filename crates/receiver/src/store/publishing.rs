//! One publishing cycle: flush the file systems, check files if the flush has failed, rename files into place, and
//! report the results. The thread `zmove-publish` also flushes between cycles, so that little data is left to flush at
//! the end.
//!
//! After a failed flush, each file of the current generation is flushed individually and read back, bypassing the page
//! cache. The same applies to the next generation, which was being written during the flush. Files that are not on the
//! storage are removed and reported as failed. All other files are renamed into place. So a bad block affects only the
//! files that use it.
//!
//! If a flush takes too long, files are also checked individually until it ends. It may take long because `syncfs` also
//! writes data of other processes. Files are not checked individually from the start. On storage that needs seconds for
//! a flush, one flush for all files is faster than one flush per file.
//!
//! `--update` and `--ignore-existing` are checked again before a file is renamed into place. With `--ignore-existing`,
//! the rename also uses `RENAME_NOREPLACE`.

mod lost;
pub(crate) mod publisher;
mod staging;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zmove_disk::{
    FileIdentity, NameAt, Staged, StoredFile, Turn, open_despite_mode, publish_file, unlink_at,
};
use zmove_types::{FileId, Name, RelPath};
use zmove_wire::{Durability, FileDone, FileEntry, Operation};

use crate::store::failure::{Failure, FaultCause, KEPT_EXISTING, failure, with_operation};
use crate::store::proving::differs_from_received;
use crate::store::publishing::lost::LostEntries;
use crate::store::publishing::publisher::{
    ExpectedState, Generation, HiddenFile, PendingBatch, SmallFile, WAIT_LATE_MAX, WAIT_MAX,
    WakeReason, WholeFile,
};
use crate::store::publishing::staging::publish_staging;
use crate::store::reports::ThreadReport;
use crate::store::target::file_systems::{Flushing, Unflushed};
use crate::store::target::metadata_policy::EntryLocation;
use crate::store::target::open_directories::OpenDirectories;
use crate::store::target::tree::TargetTree;
use crate::store::transfer::Transfer;
use crate::sync::run_on_several;
use zmove_types::Lock;

/// Runs the publishing thread until it is [stopped](crate::store::publishing::publisher::Publisher::stop). If there is
/// nothing to publish, the thread flushes written data early, so that little is left to flush at the end. These flushes
/// take at most four fifths of the thread's time.
pub(crate) fn run(transfer: &Transfer) {
    let mut pause = FLUSH_PAUSE;
    let mut bytes_flushed = 0;
    loop {
        let publish = match transfer.publisher.next(pause) {
            WakeReason::Stopped => return,
            WakeReason::Requested => true,
            WakeReason::Time => {
                let late = transfer.quota.has_slow_writes();
                transfer
                    .publisher
                    .is_due(if late { WAIT_LATE_MAX } else { WAIT_MAX })
            }
        };
        let started = Instant::now();
        let bytes = transfer.meter.bytes();
        if publish {
            publish_all(transfer);
        } else if bytes > bytes_flushed {
            flush_ahead(transfer);
            bytes_flushed = bytes;
        }
        pause = (started.elapsed() / 4).max(FLUSH_PAUSE);
    }
}

/// Minimum pause between two flushes.
const FLUSH_PAUSE: Duration = Duration::from_millis(50);
/// Number of threads that read files back after a failed flush.
const READERS: usize = 8;

/// Flushes all written data, and then renames all pending files into place.
pub(crate) fn publish_all(transfer: &Transfer) {
    publish_in_turn(transfer, &transfer.publisher.lock_cycle());
}

/// Removes all small files that are queued for publishing. Complete large files keep their hidden names for a later
/// transfer.
pub(crate) fn discard_all(transfer: &Transfer) {
    let _one_at_a_time = transfer.publisher.lock_cycle();
    let generation = transfer.publisher.take_generation();
    for WholeFile { id, staged, .. } in generation.large {
        leave_large(transfer, id, &staged);
    }
    discard_each(transfer, by_directory(generation.files), |files, turn| {
        let mut directories = OpenDirectories::new(transfer);
        for file in files {
            turn.is_over();
            remove_hidden(&transfer.target, &mut directories, &file);
        }
    });
    // Staging directories may be nested, so the deepest are removed first.
    let mut by_depth: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (path, filling) in generation.staging {
        by_depth
            .entry(Reverse(path.depth()))
            .or_default()
            .push((path, filling));
    }
    for staging in by_depth.into_values() {
        discard_each(transfer, staging, |(path, filling), turn| {
            turn.is_over();
            // A staging directory and its contents are removed when the last reference to it is dropped.
            transfer.publisher.note_staging_published(&path);
            drop(filling);
        });
    }
}

/// Discards the queued entries. Uses several threads if several threads have written because of high storage latency.
fn discard_each<T: Send>(
    transfer: &Transfer,
    waiting: Vec<T>,
    discard: impl Fn(T, &Turn<'_>) + Sync,
) {
    let waiting = Lock::new(waiting.into_iter());
    let next = || waiting.lock().next();
    transfer.quota.discard_side_by_side(|turn| {
        for discarded in std::iter::from_fn(next) {
            if waiting.lock().len() > 0 {
                turn.start_helper();
            }
            discard(discarded, turn);
        }
    });
}

/// Publishes pending files to free the space of the old files that they replace. If another thread is publishing, waits
/// until it has finished.
pub(crate) fn make_room(transfer: &Transfer) {
    let turn = transfer.publisher.lock_cycle();
    if transfer.publisher.has_unpublished() {
        publish_in_turn(transfer, &turn);
    }
}

fn publish_in_turn(transfer: &Transfer, _turn: &MutexGuard<'_, ()>) {
    let mut generation = transfer.publisher.take_generation();
    let beside = match flush(transfer) {
        Ok(()) => None,
        Err(Unflushed::Failed) => {
            // The failed flush may have covered data that was written during the flush, so the next generation is
            // marked as suspect too.
            transfer.publisher.suspect();
            generation.suspect = true;
            None
        }
        Err(Unflushed::Late(beside)) => {
            let only_late = !std::mem::replace(&mut generation.suspect, true);
            beside.filter(|_| only_late)
        }
    };
    // These batches are reported before the lock is released. The next cycle may be the last one, whose thread reports
    // the end of the session.
    generation
        .publish(transfer, beside.as_ref())
        .into_iter()
        .filter_map(PendingBatch::release)
        .for_each(|told| transfer.reports.report(told));
}

fn flush_ahead(transfer: &Transfer) {
    let _one_at_a_time = transfer.publisher.lock_cycle();
    if !transfer.publisher.is_stopped()
        && let Err(Unflushed::Failed) = flush(transfer)
    {
        transfer.publisher.suspect();
    }
}

/// Flushes the file systems, unless durability is `none`.
fn flush(transfer: &Transfer) -> Result<(), Unflushed> {
    if !transfer.target.view.policy.rules.flushes() {
        return Ok(());
    }
    let mark = transfer.parts.mark();
    let lease = transfer.target.tree.lease();
    let flushed = lease.watch_slow_call(|| transfer.target.file_systems.flush());
    match flushed {
        Ok(()) => mark
            .into_iter()
            .for_each(|mark| transfer.parts.flushed(mark)),
        Err(Unflushed::Failed) => transfer.parts.flush_failed(),
        Err(Unflushed::Late(_)) => {}
    }
    flushed
}

impl Generation {
    /// Renames all entries of this generation into place. Returns the batches for which this generation has no more
    /// work. If files must be checked only because a flush takes too long, `beside` is that flush.
    pub(crate) fn publish(
        mut self,
        transfer: &Transfer,
        beside: Option<&Flushing>,
    ) -> Vec<Arc<PendingBatch>> {
        let mut directories = OpenDirectories::new(transfer);
        if self.suspect || transfer.reads_back() {
            self.drop_unstored(transfer, &mut directories, beside);
        }
        let mut batches = self.batches;
        let flushes_directories = transfer.target.view.policy.rules.durability == Durability::File
            || transfer.target.file_systems.has_per_file_flush();
        let mut changed = self.renamed_in;
        let mut named = PublishedFiles::default();
        let waiting = Lock::new(by_directory(self.files).into_iter());
        for (directory, files, failed) in rename_hidden_files(transfer, &waiting) {
            if flushes_directories {
                changed.insert(directory.as_ref().clone());
            }
            named.files.extend(files);
            batches.extend(failed);
        }
        let turn = transfer.quota.naming_turn();
        for mut file in self.large {
            turn.is_over();
            changed.extend(file.path.parent());
            if let Some(published) = publish_large(transfer, &mut directories, &mut file) {
                named.large.push((file, published.err()));
            }
        }
        // The deepest directories are published first. If a directory cannot be renamed into place, the published
        // directories below it are lost with it.
        let mut staging: Vec<_> = self.staging.into_iter().collect();
        staging.sort_by_key(|(path, _)| Reverse(path.depth()));
        let mut lost = LostEntries::default();
        for (path, filling) in staging {
            turn.is_over();
            changed.extend(path.parent());
            changed.insert(path.clone());
            let filled =
                publish_staging(transfer, &mut directories, &path, filling, &mut lost, &turn);
            named.staged.push((path, filled));
        }
        batches.extend(named.report(transfer, lost, &turn));
        if flushes_directories {
            flush_directories(transfer, &mut directories, &changed, &turn);
        }
        batches
    }

    /// Checks each file after a failed flush, and removes files that are not on the storage. The kernel reports the
    /// failure only once and then treats the unwritten pages as clean. Also checks files while a flush takes too long,
    /// until it ends. With `--verify media`, always checks files.
    fn drop_unstored(
        &mut self,
        transfer: &Transfer,
        directories: &mut OpenDirectories<'_>,
        beside: Option<&Flushing>,
    ) {
        let operation = if transfer.reads_back() {
            Operation::Verify
        } else {
            Operation::Flush
        };
        let mut suspects = Vec::new();
        for file in self.files.drain(..) {
            match directories.open_existing(&file.directory) {
                Ok(directory) => {
                    let staging_parent = Arc::clone(transfer.target.staging_parent(&directory));
                    suspects.push((staging_parent, UnverifiedFile::Hidden(file)));
                }
                Err(error) => file.small.fail(failure(operation, &error)),
            }
        }
        for (path, filling) in &mut self.staging {
            let directory = filling.staging.directory();
            let path = Arc::new(path.clone());
            let staged = filling
                .filled
                .drain(..)
                .map(|file| UnverifiedFile::Staged(Arc::clone(&path), file));
            suspects.extend(staged.map(|suspect| (Arc::clone(directory), suspect)));
        }
        let flushed = if self.suspect {
            beside.map_or(Flushed::NotAll, Flushed::Beside)
        } else {
            Flushed::All
        };
        for (suspect, found) in verify_all(transfer, suspects, flushed) {
            let fault = found.err().map(|error| failure(operation, &error));
            match (suspect, fault) {
                (UnverifiedFile::Hidden(file), None) => self.files.push(file),
                (UnverifiedFile::Hidden(file), Some(fault)) => {
                    file.small.fail(fault);
                    remove_hidden(&transfer.target, directories, &file);
                }
                (UnverifiedFile::Staged(path, file), fault) => {
                    let Some(filling) = self.staging.get_mut(&*path) else {
                        continue;
                    };
                    let Some(fault) = fault else {
                        filling.filled.push(file);
                        continue;
                    };
                    file.fail(fault);
                    filling.spoiled.push(file.file.name);
                }
            }
        }
    }
}

/// A small file whose data may not have reached the storage.
enum UnverifiedFile {
    Hidden(HiddenFile),
    /// A file in the staging directory with this path.
    Staged(Arc<RelPath>, SmallFile),
}

impl UnverifiedFile {
    /// Returns the current name of the file, and the batch entry with its expected size and hash.
    const fn file(&self) -> (&Name, &FileEntry) {
        match self {
            Self::Hidden(HiddenFile { hidden, small, .. }) => (hidden, &small.file),
            Self::Staged(_, small) => (&small.file.name, &small.file),
        }
    }
}

type VerifiedFile = (UnverifiedFile, io::Result<()>);

/// The files that were already flushed when they are checked.
#[derive(Clone, Copy)]
enum Flushed<'a> {
    All,
    /// The files that are checked after the end of this late flush.
    Beside(&'a Flushing),
    NotAll,
}

/// Checks several files in parallel. A file that has not been flushed is flushed individually and then read back.
fn verify_all(
    transfer: &Transfer,
    suspects: Vec<(Arc<OwnedFd>, UnverifiedFile)>,
    flushed: Flushed<'_>,
) -> Vec<VerifiedFile> {
    let waiting = Lock::new(suspects.into_iter());
    let next = || waiting.lock().next();
    let look = || {
        let turn = transfer.quota.naming_turn();
        let look = |(directory, suspect): (Arc<OwnedFd>, UnverifiedFile)| {
            turn.is_over();
            let is_flushed = match flushed {
                Flushed::All => true,
                Flushed::Beside(flush) => flush.is_done(),
                Flushed::NotAll => false,
            };
            let found = if is_flushed && !transfer.reads_back() {
                Ok(())
            } else {
                verify_stored(transfer, &directory, &suspect, is_flushed)
            };
            (suspect, found)
        };
        std::iter::from_fn(next).map(look).collect()
    };
    run_on_several("zmove-look", 1..READERS, look)
}

/// Returns an error unless the stored file has the expected size and hash. Bypasses the page cache.
fn verify_stored(
    transfer: &Transfer,
    directory: &OwnedFd,
    suspect: &UnverifiedFile,
    is_flushed: bool,
) -> io::Result<()> {
    let (name, wanted) = suspect.file();
    let opened = open_despite_mode(transfer.target.tree.lease(), directory.as_fd(), name)?;
    if !is_flushed {
        opened.sync_all()?;
    }
    let stored = StoredFile::new(opened)?;
    let bytes = u64::from(wanted.bytes);
    let is_right =
        stored.bytes() == bytes && transfer.storage.root_of(&stored, bytes)? == wanted.root;
    match is_right {
        true => Ok(()),
        false if transfer.reads_back() => Err(differs_from_received()),
        false => Err(Errno::IO.into()),
    }
}

/// Files that were renamed to their final names. Their directory may be a staging directory that still has a hidden
/// name.
#[derive(Default)]
struct PublishedFiles {
    files: Vec<HiddenFile>,
    /// Each large file, with the reason if it could not be renamed into place.
    large: Vec<(WholeFile, Option<FaultCause>)>,
    staged: Vec<(RelPath, Vec<SmallFile>)>,
}

impl PublishedFiles {
    /// Reports the large files. For each lost small file, adds a fault to its batch. Returns the batches of the small
    /// files.
    fn report(
        self,
        transfer: &Transfer,
        mut lost: LostEntries,
        turn: &Turn<'_>,
    ) -> Vec<Arc<PendingBatch>> {
        for (file, fault) in self.large {
            let WholeFile {
                id,
                bytes,
                origins,
                root,
                staged,
                path,
                ..
            } = file;
            turn.is_over();
            // The file is closed before it is reported.
            drop(staged);
            let fault = fault.or_else(|| lost.take(&path));
            if fault.is_none() {
                let (at_source, root) = root.unzip();
                let counters = origins.of_file();
                transfer.stored(bytes, &counters, || at_source.or(Some(path.clone())), root);
            }
            end_large(transfer, id, &path, fault);
        }
        // Each directory is looked up only once, because hashing all parents of a deep directory takes a tenth of a
        // second.
        for files in self
            .files
            .chunk_by(|one, other| one.directory == other.directory)
        {
            turn.is_over();
            count_or_fault(
                transfer,
                &mut lost,
                &files[0].directory,
                files.iter().map(|file| &file.small),
            );
        }
        for (directory, filled) in &self.staged {
            turn.is_over();
            count_or_fault(transfer, &mut lost, directory, filled.iter());
        }
        lost.rest()
            .for_each(|fault| transfer.reports.report(ThreadReport::Fault(fault)));
        let staged = self.staged.into_iter().flat_map(|(_, filled)| filled);
        self.files
            .into_iter()
            .map(|file| file.small)
            .chain(staged)
            .map(|small| small.batch)
            .collect()
    }
}

/// For each small file in a directory, adds a fault to its batch if the file is lost. Otherwise, counts the file as
/// stored.
fn count_or_fault<'a>(
    transfer: &Transfer,
    lost: &mut LostEntries,
    directory: &RelPath,
    files: impl Iterator<Item = &'a SmallFile>,
) {
    let mut lost = lost.in_directory(directory);
    for small in files {
        let name = transfer.target.view.name(directory, &small.file.name);
        match lost.take(name) {
            Some(fault) => {
                transfer.failed_at(fault, || directory.join(name).ok());
                small.fail(fault);
            }
            None => {
                let file = &small.file;
                transfer.stored_small(file, || directory.join(&file.name).ok());
            }
        }
    }
}

/// Groups files under hidden names by directory, so that each directory is opened only once.
fn by_directory(mut files: Vec<HiddenFile>) -> Vec<Vec<HiddenFile>> {
    files.sort_by(|one, other| one.directory.cmp(&other.directory));
    let mut groups: Vec<Vec<HiddenFile>> = Vec::new();
    for file in files {
        match groups.last_mut() {
            Some(group) if group[0].directory == file.directory => group.push(file),
            _ => groups.push(vec![file]),
        }
    }
    groups
}

/// A directory, the files that were renamed into place in it, and the batches of the files that could not be renamed.
type RenamedFiles = (Arc<RelPath>, Vec<HiddenFile>, Vec<Arc<PendingBatch>>);

/// Renames files under hidden names into place. One thread handles each directory, because the kernel serializes
/// renames in a directory.
fn rename_hidden_files(
    transfer: &Transfer,
    waiting: &Lock<std::vec::IntoIter<Vec<HiddenFile>>>,
) -> Vec<RenamedFiles> {
    let name = |turn: &Turn<'_>| {
        let mut directories = OpenDirectories::new(transfer);
        let mut done = Vec::new();
        let next = || waiting.lock().next();
        for files in std::iter::from_fn(next) {
            let directory = Arc::clone(&files[0].directory);
            let mut named = Vec::with_capacity(files.len());
            let mut failed = Vec::new();
            for file in files {
                turn.is_over();
                if waiting.lock().len() > 0 {
                    turn.start_helper();
                }
                match publish_hidden(&transfer.target, &mut directories, &file) {
                    Ok(()) => named.push(file),
                    Err(fault) => {
                        remove_hidden(&transfer.target, &mut directories, &file);
                        file.small.fail(fault);
                        failed.push(file.small.batch);
                    }
                }
            }
            done.push((directory, named, failed));
        }
        done
    };
    let done = transfer.quota.name_side_by_side(name);
    done.into_iter().flatten().collect()
}

fn publish_hidden(
    target: &TargetTree,
    directories: &mut OpenDirectories<'_>,
    HiddenFile {
        directory: path,
        hidden,
        small,
    }: &HiddenFile,
) -> Result<(), FaultCause> {
    let directory = rename_result(target, directories.open_existing(path))?;
    let name = target.view.name(path, &small.file.name);
    if is_kept(
        target,
        NameAt::new(target.staging_parent(&directory), hidden),
        NameAt::new(&directory, name),
        small,
    ) {
        return Err(KEPT_EXISTING);
    }
    rename_fault(
        target,
        target.place_over_directory(EntryLocation(path, Some(name)), || {
            let place = NameAt::new(&directory, name);
            let lease = target.tree.lease();
            let replace = target.view.policy.rules.replaces();
            let published = match target.job() {
                Some(job) => job.publish(lease, NameAt::new(job.own(), hidden), place, replace),
                None => publish_file(lease, &directory, hidden, name, replace),
            };
            published.map_err(with_operation(Operation::Rename))
        }),
    )
}

/// Returns whether an existing entry must be kept instead of a small file. `whole` is the current name of the complete
/// small file.
fn is_kept(
    target: &TargetTree,
    whole: NameAt<'_>,
    place @ NameAt { directory, name }: NameAt<'_>,
    small: &SmallFile,
) -> bool {
    target.may_not_be_replaced(directory, name, small.file.metadata.mtime)
        || small.batch.known == ExpectedState::Unknown && target.looks_like(place, whole)
}

/// Converts an I/O error to the fault of a file that could not be renamed into place.
fn rename_result<T>(target: &TargetTree, done: io::Result<T>) -> Result<T, FaultCause> {
    rename_fault(target, done.map_err(with_operation(Operation::Rename)))
}

/// Converts a failure to the fault of a file that could not be renamed into place.
fn rename_fault<T>(target: &TargetTree, done: Result<T, Failure>) -> Result<T, FaultCause> {
    let replace = target.view.policy.rules.replaces();
    done.map_err(|(operation, error)| {
        if operation == Operation::Rename && replace.has_refused(&error) {
            KEPT_EXISTING
        } else {
            failure(operation, &error)
        }
    })
}

fn remove_hidden(target: &TargetTree, directories: &mut OpenDirectories<'_>, file: &HiddenFile) {
    if let Ok(directory) = directories.open_existing(&file.directory) {
        let staging_parent = target.staging_parent(&directory);
        // If the removal fails, the next transfer to this directory removes the file.
        let _best_effort = unlink_at(staging_parent, &file.hidden);
    }
}

/// Renames a complete large file into place. Returns `None` if the session has ended. In that case, the file's part
/// (temporary file) is kept for a later transfer.
fn publish_large(
    transfer: &Transfer,
    directories: &mut OpenDirectories<'_>,
    file: &mut WholeFile,
) -> Option<Result<(), FaultCause>> {
    let named = rename_large_file(&transfer.target, directories, file);
    let WholeFile { id, staged, .. } = file;
    if named.is_err() && transfer.target.tree.lease().has_ended() {
        leave_large(transfer, *id, staged);
        return None;
    }
    if named.is_err() {
        staged.discard();
        transfer.parts.remove(*id, staged);
    }
    Some(named)
}

/// Records the identity of a complete file in the journal, so that the next transfer does not have to read the file
/// back.
fn leave_large(transfer: &Transfer, id: FileId, staged: &Staged) {
    if let Ok(there) = FileIdentity::of(staged.file()) {
        transfer.parts.left(id, &there);
    }
}

fn rename_large_file(
    target: &TargetTree,
    directories: &mut OpenDirectories<'_>,
    WholeFile {
        staged,
        path,
        metadata,
        ..
    }: &mut WholeFile,
) -> Result<(), FaultCause> {
    let name = path.file_name().expect("a declared file has a name");
    let parent = path.directory();
    let directory = rename_result(target, directories.open_existing(&parent))?;
    if target.may_not_be_replaced(&directory, &name, metadata.mtime) {
        return Err(KEPT_EXISTING);
    }
    staged.move_to(directory);
    rename_fault(
        target,
        target.place_over_directory(EntryLocation(&parent, Some(&name)), || {
            let named = staged.publish(
                target.tree.lease(),
                &name,
                target.view.policy.rules.replaces(),
            );
            named.map_err(with_operation(Operation::Rename))
        }),
    )
}

/// Ends a large file after its rename has succeeded or failed, and reports the result.
pub(crate) fn end_large(
    transfer: &Transfer,
    id: FileId,
    path: &RelPath,
    fault: Option<FaultCause>,
) {
    if let Some(cause) = fault {
        transfer.failed_at(cause, || Some(path.clone()));
    }
    transfer.parts.ended(id);
    let whole = FileDone {
        file: id.0,
        fault: None,
    };
    let done = fault.map_or(whole, |cause| cause.of_file(id));
    transfer.reports.report(ThreadReport::File(done));
    transfer.files.closed(id);
}

/// Flushes directories. This is necessary because `--durability file` requires a durable name before the file is
/// reported, and because some file systems cannot be flushed as a whole.
fn flush_directories(
    transfer: &Transfer,
    directories: &mut OpenDirectories<'_>,
    changed: &HashSet<RelPath>,
    turn: &Turn<'_>,
) {
    for path in changed {
        turn.is_over();
        let flushed = directories
            .open_existing(path)
            .and_then(|directory| transfer.target.file_systems.flush_entry(directory));
        if let Err(error) = flushed {
            let fault = failure(Operation::Flush, &error).at(path.clone());
            transfer.reports.report(ThreadReport::Fault(fault));
        }
    }
}
