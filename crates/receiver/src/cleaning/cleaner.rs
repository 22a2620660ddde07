//! The cleanup of a tree: scans the tree for leftovers, and watches the shared jobs that it finds.
//!
//! Like a push, the scan enters all directories of the tree except hidden ones, crosses mount points, and recognizes
//! the hidden names of leftovers. After the scan, all jobs are watched at the same time.
//!
//! **Invariant:** a cleanup removes only entries whose creator has ended, parts whose retention period is over, and
//! directories of dead jobs of this user. It follows no links. Each removal takes a permit.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, DirEntry, FileType, Statx, StatxFlags};
use rustix::io::Errno;
use tokio::sync::mpsc::Sender;
use zmove_disk::{
    DEAD_AFTER, Liveness, SharedJobDirectory, SharedJobError, Task, Tree, Turn, WatchedJob,
    list_directory, list_hidden, remove_leftover,
};
use zmove_types::{Lock, Name, RelPath, SharedJobId, Timestamp, unix_now};
use zmove_wire::{Fault, FaultCode, Leftover, LeftoverFate, LeftoverKind, Operation, ToSender};

use crate::config::ReceiverConfig;
use crate::resume::journal::{CleanMode, birth, parts_in_use};
use crate::rights::quota::{Charge, Quota};
use crate::shared_job::other_jobs::CHECK_INTERVAL;

/// A running cleanup of one tree.
#[derive(Debug)]
pub(super) struct Cleaner {
    tree: Tree,
    mode: CleanMode,
    journals: Option<PathBuf>,
    parts_kept: Duration,
    quota: Quota,
    stopping: Arc<AtomicBool>,
    messages: Sender<ToSender>,
    /// Directories that the scan has not entered yet. The newest directory is entered first, which keeps the list
    /// short.
    pending: Lock<Vec<(RelPath, Charge)>>,
    /// The jobs that were found, with the directories that contain them.
    jobs: Lock<Vec<(RelPath, SharedJobId, Charge)>>,
    /// Parts that running transfers use. They are read from the journals when the scan finds the first part.
    in_use: OnceLock<PartsInUse>,
}

/// The inodes and birth times of the parts that running transfers use, or `None` if the journals cannot be read.
type PartsInUse = Option<HashSet<(u64, Timestamp)>>;

/// Memory for each path in these lists, in addition to its bytes.
const KEPT_BYTES: usize = 128;
/// Maximum number of directories below a leftover that are queued for measuring. Further directories are not measured.
const MEASURED_MAX: usize = 65_536;
/// The unit of `stx_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;

impl Cleaner {
    pub(super) fn new(
        tree: Tree,
        mode: CleanMode,
        config: &ReceiverConfig,
        stopping: Arc<AtomicBool>,
        messages: Sender<ToSender>,
    ) -> Self {
        Self {
            tree,
            mode,
            journals: config.journals.clone(),
            parts_kept: config.parts_kept,
            quota: config.quota.clone(),
            stopping,
            messages,
            pending: Lock::default(),
            jobs: Lock::default(),
            in_use: OnceLock::new(),
        }
    }

    /// Cleans the whole tree. Blocks until the cleanup is complete.
    pub(super) fn clean(self) {
        self.enter_later(RelPath::root());
        let stopping = &self.stopping;
        self.quota
            .run_parallel(Task::Read, "zmove-clean", stopping, |turn| self.walk(turn));
        self.clean_jobs();
    }

    fn walk(&self, turn: &Turn<'_>) {
        while !turn.is_over() {
            let next = self.pending.lock().pop();
            let Some((path, _booked)) = next else { return };
            if !self.pending.lock().is_empty() {
                turn.start_helper();
            }
            self.clean_directory(&path);
        }
    }

    fn enter_later(&self, path: RelPath) {
        match self.quota.charge_memory(KEPT_BYTES + path.as_bytes().len()) {
            Ok(booked) => self.pending.lock().push((path, booked)),
            Err(_no_room) => self.failed(path, Operation::List, &Errno::NOMEM.into()),
        }
    }

    fn clean_directory(&self, path: &RelPath) {
        let directory = match self.tree.open_directory(path) {
            Ok(directory) => directory,
            Err(error) if is_gone(&error) => return,
            Err(error) => return self.failed(path.clone(), Operation::OpenDirectory, &error),
        };
        let mut below = Vec::new();
        let hidden = list_hidden(directory.as_fd(), |entry| {
            below.extend(subdirectory(directory.as_fd(), entry));
        });
        let hidden = match hidden {
            Ok(hidden) => hidden,
            Err(error) => return self.failed(path.clone(), Operation::List, &error),
        };
        for name in &hidden.left {
            self.clean_left(path, directory.as_fd(), name);
        }
        for name in &hidden.parts {
            self.clean_part(path, directory.as_fd(), name);
        }
        for job in hidden.jobs {
            match self.quota.charge_memory(KEPT_BYTES + path.as_bytes().len()) {
                Ok(booked) => self.jobs.lock().push((path.clone(), job, booked)),
                Err(_no_room) => self.failed(path.clone(), Operation::List, &Errno::NOMEM.into()),
            }
        }
        // Subdirectories whose path would exceed the length limit are skipped.
        let below = below.iter().filter_map(|name| path.join(name).ok());
        below.for_each(|below| self.enter_later(below));
    }

    /// Removes an entry left behind by a process that has ended.
    fn clean_left(&self, directory: &RelPath, parent: BorrowedFd<'_>, name: &Name) {
        let Some((path, stat)) = find(directory, parent, name) else {
            return;
        };
        let kind = match form(&stat) {
            FileType::Directory => LeftoverKind::Directory,
            _ => LeftoverKind::Unfinished,
        };
        let bytes = self.bytes_of(&path, &stat);
        self.remove(directory, name, kind, bytes);
    }

    /// Reports a part from which a transfer may resume. Removes a part if its retention period is over.
    fn clean_part(&self, directory: &RelPath, parent: BorrowedFd<'_>, name: &Name) {
        let Some((path, stat)) = find(directory, parent, name) else {
            return;
        };
        if form(&stat) != FileType::RegularFile {
            return;
        }
        let changed = u64::try_from(stat.stx_ctime.tv_sec).unwrap_or(0);
        let until = Duration::from_secs(changed).saturating_add(self.parts_kept);
        let is_kept = unix_now() < until;
        // A transfer may have just taken over this old part, so the journals are read again.
        let anew = (!is_kept).then(|| self.find_parts_in_use());
        let in_use = anew
            .as_ref()
            .unwrap_or_else(|| self.in_use.get_or_init(|| self.find_parts_in_use()));
        let bytes = stat.stx_blocks * BLOCK_BYTES;
        match in_use {
            Some(in_use) if in_use.contains(&(stat.stx_ino, birth(&stat))) => {}
            Some(_) if !is_kept => self.remove(directory, name, LeftoverKind::Part, bytes),
            _ => {
                let seconds = until.as_secs();
                let fate = LeftoverFate::StaysUntil { seconds };
                self.report(path, LeftoverKind::Part, bytes, fate);
            }
        }
    }

    fn find_parts_in_use(&self) -> PartsInUse {
        let journals = self.journals.as_deref();
        journals.map_or_else(
            || Some(HashSet::new()),
            |journals| parts_in_use(journals).ok(),
        )
    }

    /// Removes an entry and reports the removal. In a preview, only reports the entry. Does not report entries that no
    /// longer exist.
    fn remove(&self, directory: &RelPath, name: &Name, kind: LeftoverKind, bytes: u64) {
        let Ok(path) = directory.join(name) else {
            return;
        };
        if self.mode == CleanMode::Remove {
            let mut has_failed = false;
            let failed = |path, error: io::Error| {
                has_failed = true;
                self.failed(path, Operation::Delete, &error);
            };
            match remove_leftover(&self.tree, directory, name, failed) {
                Err(error) => return self.failed(path, Operation::Delete, &error),
                Ok(removed) if removed == 0 || has_failed => return,
                Ok(_) => {}
            }
        }
        self.report(path, kind, bytes, LeftoverFate::Goes);
    }

    fn report(&self, path: RelPath, kind: LeftoverKind, bytes: u64, fate: LeftoverFate) {
        self.send(ToSender::Leftover(Leftover {
            path,
            kind,
            bytes,
            fate,
        }));
    }

    /// Waits until each job is known to be alive or dead, and then removes the directories of dead jobs.
    fn clean_jobs(&self) {
        let began = Instant::now();
        let mut watched = Vec::new();
        for (path, job, booked) in std::mem::take(&mut *self.jobs.lock()) {
            // If the parent directory no longer exists, the job does not exist either.
            let parent = self.tree.open_directory(&path);
            let job = parent
                .ok()
                .and_then(|parent| WatchedJob::begin(parent.as_fd(), job, began));
            watched.extend(job.map(|job| (path, job, booked)));
        }
        let mut has_notified = false;
        loop {
            watched.retain_mut(|(path, job, _)| self.is_unclear(path, job));
            if watched.is_empty() || self.stopping.load(Ordering::Relaxed) {
                return;
            }
            if !has_notified {
                has_notified = true;
                self.send(ToSender::HeldUp {
                    text: wait_notice(watched.len()),
                });
            }
            self.tree
                .lease()
                .watch_slow_call(|| std::thread::sleep(CHECK_INTERVAL));
        }
    }

    /// Checks a job again. Returns whether its state is still unknown.
    fn is_unclear(&self, directory: &RelPath, job: &mut WatchedJob) -> bool {
        if self.stopping.load(Ordering::Relaxed) {
            return true;
        }
        let looked = self.tree.open_directory(directory).and_then(|parent| {
            let sign = job.check(parent.as_fd())?;
            Ok((sign, parent))
        });
        match looked {
            Ok((Liveness::Unclear, _)) => return true,
            Ok((sign @ (Liveness::Dead | Liveness::Foreign), parent)) => {
                self.clean_job(directory, &parent, job.job(), sign);
            }
            Ok((Liveness::Alive | Liveness::Gone, _)) => {}
            // The parent directory no longer exists.
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                let name = SharedJobDirectory::name(job.job());
                let path = directory.join(&name).unwrap_or_else(|_| directory.clone());
                self.failed(path, Operation::List, &error);
            }
        }
        false
    }

    /// Removes the directory of a dead job. A foreign directory is removed only if it belongs to this user and is
    /// empty.
    fn clean_job(
        &self,
        directory: &RelPath,
        parent: &Arc<OwnedFd>,
        job: SharedJobId,
        sign: Liveness,
    ) {
        let name = SharedJobDirectory::name(job);
        let Some((path, stat)) = find(directory, parent.as_fd(), &name) else {
            return;
        };
        let bytes = self.bytes_of(&path, &stat);
        let lease = self.tree.lease();
        let goes = match (self.mode, sign) {
            (CleanMode::Remove, Liveness::Dead) => {
                match SharedJobDirectory::end_dead(lease, parent, job) {
                    Err(SharedJobError::Io(error)) => {
                        return self.failed(path, Operation::Delete, &error);
                    }
                    ended => ended.is_ok(),
                }
            }
            (CleanMode::Remove, _) => SharedJobDirectory::remove_empty(lease, parent, job),
            (CleanMode::DryRun, Liveness::Dead) => {
                SharedJobDirectory::open_with_proof(parent, job).is_ok()
            }
            (CleanMode::DryRun, _) => false,
        };
        let fate = if goes {
            LeftoverFate::Goes
        } else {
            LeftoverFate::Foreign
        };
        self.report(path, LeftoverKind::SharedJob, bytes, fate);
    }

    /// Returns the storage used by an entry and everything below it, in bytes.
    fn bytes_of(&self, path: &RelPath, stat: &Statx) -> u64 {
        let mut blocks = stat.stx_blocks;
        let mut pending = Vec::new();
        if form(stat) == FileType::Directory {
            pending.push(path.clone());
        }
        while let Some(path) = pending.pop()
            && !self.stopping.load(Ordering::Relaxed)
        {
            let opened = self.tree.open_directory(&path);
            let entries = opened.and_then(|opened| Ok((list_directory(&opened)?, opened)));
            // Entries whose metadata cannot be read are not counted.
            let Ok((entries, directory)) = entries else {
                continue;
            };
            for entry in entries.map_while(Result::ok) {
                let Some(name) = name_of(&entry) else {
                    continue;
                };
                let Ok(stat) = stat_entry(directory.as_fd(), &name) else {
                    continue;
                };
                blocks += stat.stx_blocks;
                if form(&stat) == FileType::Directory && pending.len() < MEASURED_MAX {
                    pending.extend(path.join(&name));
                }
            }
        }
        blocks * BLOCK_BYTES
    }

    fn failed(&self, path: RelPath, operation: Operation, error: &io::Error) {
        let code = match error.kind() {
            io::ErrorKind::CrossesDevices => FaultCode::Mounted,
            _ => FaultCode::os(error),
        };
        self.send(ToSender::Fault(Fault {
            path,
            operation,
            code,
        }));
    }

    fn send(&self, message: ToSender) {
        if self.messages.blocking_send(message).is_err() {
            self.stopping.store(true, Ordering::Relaxed);
        }
    }
}

/// Returns whether an error means that a directory no longer exists, or that its name belongs to another kind of entry.
fn is_gone(error: &io::Error) -> bool {
    let is_other = [Errno::LOOP, Errno::NOTDIR].map(Some);
    error.kind() == io::ErrorKind::NotFound || is_other.contains(&Errno::from_io_error(error))
}

/// Returns the path and status of an entry, if it still exists.
fn find(path: &RelPath, directory: BorrowedFd<'_>, name: &Name) -> Option<(RelPath, Statx)> {
    path.join(name).ok().zip(stat_entry(directory, name).ok())
}

fn stat_entry(directory: BorrowedFd<'_>, name: &Name) -> rustix::io::Result<Statx> {
    let asked = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(
        directory,
        name.as_os_str(),
        AtFlags::SYMLINK_NOFOLLOW,
        asked,
    )
}

fn form(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

/// Returns the name of an entry, or `None` for `.` and `..`.
fn name_of(entry: &DirEntry) -> Option<Name> {
    Name::from_bytes(entry.file_name().to_bytes()).ok()
}

/// Returns the name of an entry if it is a directory.
fn subdirectory(directory: BorrowedFd<'_>, entry: &DirEntry) -> Option<Name> {
    let is_directory = |name: &Name| match entry.file_type() {
        FileType::Unknown => {
            stat_entry(directory, name).is_ok_and(|stat| form(&stat) == FileType::Directory)
        }
        known => known == FileType::Directory,
    };
    name_of(entry).filter(is_directory)
}

fn wait_notice(jobs: usize) -> String {
    let seconds = DEAD_AFTER.as_secs();
    if jobs == 1 {
        format!(
            "a push to several receivers uses a directory there; the receiver checks for up to {seconds} s whether \
             that push is running"
        )
    } else {
        format!(
            "{jobs} pushes to several receivers use directories there; the receiver checks for up to {seconds} s \
             which of them are running"
        )
    }
}
