//! The parts of a job that several receivers write: each lies in a directory of the job, under a name that all find,
//! and gets the name of its file by an order ([`commit`](crate::shared_job)).

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

/// The parts that a session writes in a job.
#[derive(Debug)]
pub(crate) struct SharedParts {
    lease: Lease,
    pub(crate) session: Arc<JobSession>,
    pub(super) written: Lock<HashMap<FileId, SharedPart>>,
    /// Held while parts are flushed: they count as clean before they are.
    flushing: Lock<()>,
    flush_failed: AtomicBool,
    /// Whether parts have been opened since their names were flushed last.
    are_new: AtomicBool,
}

/// A part that this session writes to.
#[derive(Clone, Debug)]
pub(super) struct SharedPart {
    name: Name,
    file: Arc<File>,
    mtime: Timestamp,
    /// Whether groups have been written to it since it was flushed last.
    pub(super) is_dirty: bool,
    /// Whether it is about to be let go: what is still written to it does not count.
    pub(super) is_closing: bool,
}

impl PartStore {
    /// The parts of a session in a job, with its journal.
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

    /// The part of a large file of a job, made if no receiver has begun it.
    pub(crate) fn open_shared(
        &self,
        shared: &SharedParts,
        id: FileId,
        path: &RelPath,
        head: &FileHead,
        direct: Direct,
    ) -> io::Result<Staged> {
        let descriptors = self.quota.book_file()?;
        let source = source_of(head);
        let name = shared_name(path, &source);
        let mut staged = shared
            .session
            .open_part(&self.lease, &name, head.bytes, direct)?;
        staged.attach(descriptors);
        if Flush::of(staged.file()) == Flush::Each {
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
        self.record_work(|journal| journal.part(id.0, &part))?;
        shared.begin(id, part.part, staged.file(), source.mtime)?;
        Ok(staged)
    }

    /// Flushes what this session has written of a job's parts, and records that.
    ///
    /// # Errors
    /// The system's error, of this flush or an earlier one.
    pub(crate) fn flush_shared(&self, shared: &SharedParts) -> io::Result<()> {
        let mark = self.mark().ok_or(Errno::IO)?;
        shared.flush()?;
        self.record_work(|journal| journal.flushed(mark))
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

    /// Lets go of a part to which this session writes no more: it would stay open until the next flush.
    pub(super) fn ended(&self, id: FileId) {
        let part = self.written.lock().get_mut(&id).map(|part| {
            part.is_closing = true;
            part.clone()
        });
        // one that fails stays, and with it nothing more counts
        if part.is_some_and(|part| self.flush_part(&part).is_ok()) {
            self.written.lock().remove(&id);
        }
    }

    /// Gives up a part for which there is no room: what it takes is of use to other files.
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

    /// Flushes each part that has been written to by itself: another host flushes nothing of it. After one that fails
    /// all later ones do, so it does not matter that the part counts as clean.
    pub(super) fn flush(&self) -> io::Result<()> {
        let _alone = self.flushing.lock();
        let mut parts = self.written.lock();
        let take = |part: &mut SharedPart| std::mem::take(&mut part.is_dirty).then(|| part.clone());
        let dirty: Vec<_> = parts.values_mut().filter_map(take).collect();
        drop(parts);
        dirty.iter().try_for_each(|part| self.flush_part(part))?;
        // A part whose name is lost in a crash would be made once more, and have what is recorded of the first.
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

    /// Whether another receiver has given a part its name, or has given it up: nothing is to be written to it.
    ///
    /// # Errors
    /// The job has ended.
    pub(crate) fn is_gone(&self, staged: &Staged) -> io::Result<bool> {
        let Some(name) = staged.hidden_name() else {
            return Ok(false);
        };
        Ok(!self.session.has_part(name, staged.file())?)
    }

    /// Looks after a part to which this session has just written: if it has got its name meanwhile, it gets the time of
    /// its source once more.
    ///
    /// # Errors
    /// The job has ended, or the system's error.
    pub(crate) fn has_written(&self, id: FileId) -> io::Result<()> {
        let part = self.written.lock().get(&id).cloned();
        part.map_or(Ok(()), |part| self.keep_time(&part))
    }

    /// Work that is handed out twice is written twice, with the same bytes, but each write sets the time.
    fn keep_time(&self, part: &SharedPart) -> io::Result<()> {
        if self.session.has_part(&part.name, &part.file)? {
            Ok(())
        } else {
            set_file_mtime(self.lease.permit()?, &*part.file, part.mtime)
        }
    }
}

/// The name of a part among those of its job, the same for all receivers.
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
    /// Whether a part is kept open.
    pub(crate) fn holds(&self, id: FileId) -> bool {
        self.written.lock().contains_key(&id)
    }

    /// Has each flush of a part fail from now on.
    pub(crate) fn spoil(&self, id: FileId) {
        let (pipe, _other_end) = io::pipe().unwrap();
        let pipe = File::from(OwnedFd::from(pipe));
        self.written.lock().get_mut(&id).unwrap().file = Arc::new(pipe);
    }
}
