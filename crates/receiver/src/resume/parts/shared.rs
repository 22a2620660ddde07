//! The parts (incomplete large files) of a shared job. Each part is stored in a directory of the job, under a name that
//! all receivers derive in the same way. When a sender orders it, a receiver renames the part into place
//! ([`commit`](crate::shared_job)).

use std::collections::HashMap;
use std::fs::File;
use std::io;
#[cfg(test)]
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use zmove_disk::{Direct, FileIdentity, JobSession, Lease, Staged, set_file_mtime};
use zmove_types::{FileId, Lock, Name, RelPath, Timestamp};
use zmove_wire::FileHead;

use super::{PartStore, PartsState, source_of};
use crate::resume::journal::{Begin, Journal, PartFile, SourceVersion, birth_of};
use crate::rights::quota::Quota;
use crate::store::target::file_systems::Flush;

/// The parts that a session writes in a shared job.
#[derive(Debug)]
pub(crate) struct SharedParts {
    lease: Lease,
    pub(crate) session: Arc<JobSession>,
    pub(super) written: Lock<HashMap<FileId, SharedPart>>,
    /// Held during a flush. A part is marked as clean before it is flushed, so a concurrent second flush could return
    /// too early.
    flushing: Lock<()>,
    flush_failed: AtomicBool,
    /// Whether parts were opened after the last flush of the parts' directory.
    are_new: AtomicBool,
}

/// A part that this session writes to.
#[derive(Clone, Debug)]
pub(super) struct SharedPart {
    name: Name,
    file: Arc<File>,
    mtime: Timestamp,
    /// Whether groups were written to the part after its last flush.
    pub(super) is_dirty: bool,
    /// Whether the part is about to be released. Groups that are written after that do not count.
    pub(super) is_closing: bool,
}

impl PartStore {
    /// Creates the part store of a session in a shared job, with its journal.
    pub(crate) fn in_job(
        lease: &Lease,
        session: Arc<JobSession>,
        journal: Journal,
        begin: Begin,
        quota: &Quota,
    ) -> Self {
        let state = PartsState {
            journal: Some(Arc::new(journal)),
            ..PartsState::default()
        };
        Self {
            shared: Some(SharedParts::new(lease, session)),
            ..Self::beginning(lease, begin, quota, state)
        }
    }

    /// Opens the part of a large file in a shared job. Creates the part if it does not exist.
    pub(crate) fn open_shared(
        &self,
        shared: &SharedParts,
        id: FileId,
        path: &RelPath,
        head: &FileHead,
        direct: Direct,
    ) -> io::Result<Staged> {
        let descriptors = self.quota.charge_file()?;
        let source = source_of(head);
        let name = shared_name(path, &source);
        let mut staged = shared
            .session
            .open_part(&self.lease, &name, head.bytes, direct)?;
        staged.attach(descriptors);
        if Flush::of(staged.file()) == Flush::PerFile {
            self.unflushed.store(true, Ordering::Relaxed);
        }
        let inode = FileIdentity::of(staged.file())?.inode;
        let part = PartFile {
            path: path.clone(),
            part: name,
            source,
            inode,
            born: birth_of(staged.file()),
        };
        self.record_work(|journal| journal.record_part(id.0, &part))?;
        shared.begin(id, part.part, staged.file(), source.mtime)?;
        Ok(staged)
    }

    /// Flushes all data that this session has written to the job's parts, and records the flush.
    ///
    /// # Errors
    /// The system's error of this flush or of an earlier one.
    pub(crate) fn flush_shared(&self, shared: &SharedParts) -> io::Result<()> {
        let mark = self.mark().ok_or(Errno::IO)?;
        shared.flush()?;
        self.record_work(|journal| journal.record_flushed(mark))
    }
}

impl SharedParts {
    fn new(lease: &Lease, session: Arc<JobSession>) -> Self {
        Self {
            lease: lease.clone(),
            session,
            written: Lock::default(),
            flushing: Lock::default(),
            flush_failed: AtomicBool::new(false),
            are_new: AtomicBool::new(false),
        }
    }

    fn begin(&self, id: FileId, name: Name, file: &File, mtime: Timestamp) -> io::Result<()> {
        let file = Arc::new(file.try_clone()?);
        let part = SharedPart {
            name,
            file,
            mtime,
            is_dirty: false,
            is_closing: false,
        };
        self.written.lock().insert(id, part);
        self.are_new.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Flushes and releases a part to which this session no longer writes, which would otherwise stay open until the
    /// next flush.
    pub(super) fn ended(&self, id: FileId) {
        let part = self.written.lock().get_mut(&id).map(|part| {
            part.is_closing = true;
            part.clone()
        });
        // If the flush fails, the part is kept, and no later flush is recorded.
        if part.is_some_and(|part| self.flush_part(&part).is_ok()) {
            self.written.lock().remove(&id);
        }
    }

    /// Gives up a part that cannot grow because the storage is full, so that other files can use the space of the part.
    pub(crate) fn give_up(&self, id: FileId, reason: Errno) {
        let part = self.written.lock().get(&id).cloned();
        if let Some(SharedPart { name, file, .. }) = part {
            let _stays_until_the_job_ends_then = self.session.give_up_part(&name, &file, reason);
        }
    }

    fn flush_part(&self, part: &SharedPart) -> io::Result<()> {
        part.file
            .sync_data()
            .inspect_err(|_told_once| self.flush_failed())?;
        self.keep_time(part)
    }

    pub(super) fn flush_failed(&self) {
        self.flush_failed.store(true, Ordering::Relaxed);
    }

    /// Flushes each part that has been written to. Each host must flush the data that it has written, because a flush
    /// on another host does not cover it. After a failed flush, all later flushes fail too, so it does not matter that
    /// the part was marked as clean.
    pub(super) fn flush(&self) -> io::Result<()> {
        let _alone = self.flushing.lock();
        let mut parts = self.written.lock();
        let take = |part: &mut SharedPart| std::mem::take(&mut part.is_dirty).then(|| part.clone());
        let dirty: Vec<_> = parts.values_mut().filter_map(take).collect();
        drop(parts);
        dirty.iter().try_for_each(|part| self.flush_part(part))?;
        // The names are flushed too. If a crash lost the name of a part, a receiver would create a new part with that
        // name. The groups recorded for the lost part would then be attributed to the new part.
        if self.are_new.swap(false, Ordering::Relaxed) {
            self.session
                .flush_part_names()
                .inspect_err(|_told_once| self.flush_failed())?;
        }
        if self.flush_failed.load(Ordering::Relaxed) {
            Err(Errno::IO.into())
        } else {
            Ok(())
        }
    }

    /// Returns whether another receiver has renamed a part into place or given it up. Such a part must not be written.
    ///
    /// # Errors
    /// The job has ended.
    pub(crate) fn is_gone(&self, staged: &Staged) -> io::Result<bool> {
        let Some(name) = staged.hidden_name() else {
            return Ok(false);
        };
        Ok(!self.session.has_part(name, staged.file())?)
    }

    /// Checks a part after this session has written to it. If the part was renamed into place in the meantime, restores
    /// its modification time to that of the source.
    ///
    /// # Errors
    /// The job has ended, or the system's error.
    pub(crate) fn has_written(&self, id: FileId) -> io::Result<()> {
        let part = self.written.lock().get(&id).cloned();
        part.map_or(Ok(()), |part| self.keep_time(&part))
    }

    /// Restores the modification time of a part that was renamed into place. If the job assigns groups twice, the
    /// second write stores the same bytes but changes the time.
    fn keep_time(&self, part: &SharedPart) -> io::Result<()> {
        if self.session.has_part(&part.name, &part.file)? {
            Ok(())
        } else {
            set_file_mtime(self.lease.permit()?, &*part.file, part.mtime)
        }
    }
}

/// Returns the name of a part in its job. The name is the same for all receivers.
pub(crate) fn shared_name(path: &RelPath, source: &SourceVersion) -> Name {
    let SourceVersion {
        bytes,
        mtime,
        ctime,
        inode,
    } = source;
    let mut hasher = blake3::Hasher::new();
    for number in [
        *bytes,
        *inode,
        u64::from(mtime.nanos),
        u64::from(ctime.nanos),
    ] {
        hasher.update(&number.to_le_bytes());
    }
    for seconds in [mtime.seconds, ctime.seconds] {
        hasher.update(&seconds.to_le_bytes());
    }
    let hash = hasher.update(path.as_bytes()).finalize().to_hex();
    Name::from_bytes(format!("part-{}", &hash[..32]).as_bytes()).expect("digits are a name")
}

#[cfg(test)]
impl SharedParts {
    /// Returns whether this session has the part of a file open.
    pub(crate) fn holds(&self, id: FileId) -> bool {
        self.written.lock().contains_key(&id)
    }

    /// Makes every later flush of a part fail.
    pub(crate) fn spoil(&self, id: FileId) {
        let (pipe, _other_end) = io::pipe().unwrap();
        let pipe = File::from(OwnedFd::from(pipe));
        self.written.lock().get_mut(&id).unwrap().file = Arc::new(pipe);
    }
}
