//! The file systems that a transfer writes to. There may be several below one target.
//!
//! | `--durability` | small file | large file | before files are renamed into place | at the end |
//! |---|---|---|---|---|
//! | `none` | – | – | – | – |
//! | `end` (default) | – | `fdatasync` | `syncfs` of each file system | `syncfs`, for the names |
//! | `file` | `fdatasync` | `fdatasync` | the same, then `fsync` of each directory | the same |
//!
//! A large file is flushed individually as soon as it is complete, because its descriptor has seen every error since it
//! was opened.
//!
//! On some file systems `syncfs` reports success without flushing anything, or returns the result of an underlying file
//! system. There, each file and each directory is flushed individually ([`Flush::PerFile`]), and no group of a part
//! counts as flushed.
//!
//! **Invariant:** on each file system, a descriptor is open from before the first write to it. The kernel reports to a
//! descriptor only errors that occurred after it was opened.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use rustix::fs::{Access, AtFlags, Dev, Mode, OFlags};
use rustix::io::Errno;
use zmove_disk::{Lease, create_at, is_listable, make_hidden, renew_times, unlink_at};
use zmove_types::{Lock, Name};

/// One open directory of each file system.
#[derive(Debug)]
pub(crate) struct FileSystems {
    known: Lock<HashMap<Dev, FileSystem>>,
    lease: Lease,
    /// Time after which a flush counts as late.
    late_after: Duration,
    /// The late flush that was in progress at the last call, if any.
    late: Lock<Option<Flushing>>,
    /// Whether the transfer relies on files that it has not written, because they are equal.
    relies_on_others: AtomicBool,
    /// The error of the first flush that failed.
    failed: OnceLock<Errno>,
    /// Queue of the thread that flushes. The thread is started with the first flush. `None` if it could not be started.
    flusher: OnceLock<Option<Sender<FlushWork>>>,
}

/// The file systems to flush, and the handle on which the result of the flush is reported.
type FlushWork = (Vec<FileSystem>, Flushing);

#[derive(Clone, Debug)]
struct FileSystem {
    /// The directory through which the file system is flushed, or a file without a name in a drop box.
    held: Arc<OwnedFd>,
    flush: Flush,
    /// The lease under which a flush may change the times of the directory.
    lease: Lease,
    /// Whether the file system was writable when it was first seen.
    first_seen: Writable,
}

/// Whether a directory's file system is writable. A mount or a Btrfs subvolume may be read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writable {
    Yes,
    No,
}

impl Writable {
    fn now(directory: &impl AsFd) -> Self {
        match rustix::fs::accessat(directory, ".", Access::WRITE_OK, AtFlags::empty()) {
            Err(Errno::ROFS) => Self::No,
            _ => Self::Yes,
        }
    }
}

/// The way in which data is flushed to the storage below a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// One call flushes the whole file system.
    PerFileSystem,
    /// Each file and each directory is flushed individually.
    PerFile,
}

impl Flush {
    /// Returns how files of this file system are flushed. If `fstatfs` fails, as on some user-space file systems and in
    /// some sandboxes, the type is unknown and each file is flushed.
    pub(crate) fn of(file: impl AsFd) -> Self {
        let kind = rustix::fs::fstatfs(file).map(|stat| stat.f_type);
        if kind.is_ok_and(|kind| !FLUSHED_PER_FILE.contains(&kind)) {
            Self::PerFileSystem
        } else {
            Self::PerFile
        }
    }
}

/// The `f_type` values of file systems whose `syncfs` is not sufficient:
///
/// - FUSE reports success without asking its server.
/// - overlayfs and eCryptfs flush the file system below, whose errors are only reported to `fsync` of the file.
/// - FAT, exFAT, SMB (1 and 2) and 9p do not ask the disk or the server to flush its cache.
const FLUSHED_PER_FILE: [i64; 8] = [
    0x6573_5546,
    0x794c_7630,
    0xf15f,
    0x4d44,
    0x2011_bab0,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
];

/// A flush in progress on a separate thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flushing(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    ended: Lock<Option<Result<(), Errno>>>,
    changed: Condvar,
}

/// The reason why a flush did not cover all written data.
#[derive(Debug)]
pub(crate) enum Unflushed {
    Failed,
    /// The flush takes long, for example because another process has written much data to the same file system. The
    /// value is the flush that will cover all data written so far, or `None` if no such flush has begun.
    Late(Option<Flushing>),
}

/// Time after which a flush counts as late. It is longer than storage needs to write the page cache of one transfer. It
/// may be shorter than storage needs to write the data of all other processes.
const LATE_AFTER: Duration = Duration::from_secs(20);

impl FileSystems {
    /// Creates an empty set. The transfer changes its target under `lease`.
    pub(crate) fn under(lease: Lease) -> Self {
        Self {
            known: Lock::default(),
            lease,
            late_after: LATE_AFTER,
            late: Lock::default(),
            relies_on_others: AtomicBool::new(false),
            failed: OnceLock::new(),
            flusher: OnceLock::new(),
        }
    }
}

fn start_flusher() -> Option<Sender<FlushWork>> {
    let (flusher, work) = unbounded();
    let flush = move || work.into_iter().for_each(flush_all);
    thread::Builder::new()
        .name("zmove-flush".to_owned())
        .spawn(flush)
        .ok()?;
    Some(flusher)
}

fn flush_all((file_systems, flushing): FlushWork) {
    // Flush every file system even if one fails, because an error is reported only once.
    let results: Vec<_> = file_systems.iter().map(flush_one).collect();
    flushing.end(results.into_iter().collect());
}

fn flush_one(file_system: &FileSystem) -> Result<(), Errno> {
    let FileSystem {
        held,
        first_seen,
        lease,
        ..
    } = file_system;
    rustix::fs::syncfs(held)?;
    // Skip the check if the file system was read-only from the start, because it then contains no data of this
    // transfer.
    let stayed_read_only = [*first_seen, Writable::now(held)] == [Writable::No; 2];
    if stayed_read_only {
        Ok(())
    } else {
        probe_writable(lease, held)
    }
}

/// Returns a descriptor for flushing the file system of a directory. In a drop box, this is a new file whose name is
/// removed at once, because the drop box itself cannot be opened for that.
fn flushable(directory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    if is_listable(directory) {
        return directory.try_clone_to_owned();
    }
    let create = |name: &Name| create_at(directory, name, Mode::RUSR | Mode::WUSR);
    let (name, file) = make_hidden(directory, create)?;
    unlink_at(directory, &name)?;
    Ok(file.into())
}

/// Checks with a small change whether the file system still accepts changes.
///
/// A file system that has aborted its journal reports success for `syncfs`, and for `fsync` of any file that has not
/// changed since. It may never report the names that were lost with the journal, or it may report them only to the
/// process that was flushing when the journal failed.
fn probe_writable(lease: &Lease, directory: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = rustix::fs::openat(directory, ".", flags, Mode::RUSR | Mode::WUSR).map(drop);
    // If an unnamed file cannot be created in this directory, change the times of the directory instead.
    let changed = made.or_else(|error| {
        if is_dead(error) {
            Err(error)
        } else {
            change_times(lease, directory)
        }
    });
    // Ignore other errors. A directory of another user may refuse the change although its file system is writable.
    changed.or_else(|error| if is_dead(error) { Err(error) } else { Ok(()) })
}

/// Sets the times of a directory to their current values and flushes the directory. This is a change that nobody can
/// see afterwards.
fn change_times(lease: &Lease, directory: &OwnedFd) -> Result<(), Errno> {
    renew_times(lease.permit()?, directory)?;
    rustix::fs::fsync(directory)
}

const fn is_dead(error: Errno) -> bool {
    matches!(
        error,
        Errno::ROFS | Errno::IO | Errno::UCLEAN | Errno::SHUTDOWN
    )
}

impl Flushing {
    /// Waits for the flush and returns its result, or `None` if it takes longer than `late_after`.
    fn wait(&self, late_after: Duration) -> Option<Result<(), Errno>> {
        let Progress { ended, changed } = &*self.0;
        let ended = ended.lock();
        let waited = changed.wait_timeout_while(ended, late_after, |ended| ended.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns whether everything has been flushed successfully.
    pub(crate) fn is_done(&self) -> bool {
        self.wait(Duration::ZERO) == Some(Ok(()))
    }

    fn end(&self, result: Result<(), Errno>) {
        let Progress { ended, changed } = &*self.0;
        *ended.lock() = Some(result);
        changed.notify_all();
    }
}

impl FileSystems {
    /// Registers the file system of a directory. Must be called before data is written to that file system.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be inspected or its descriptor cannot be duplicated.
    pub(crate) fn note(&self, directory: impl AsFd) -> io::Result<Flush> {
        let directory = directory.as_fd();
        let device = rustix::fs::fstat(directory)?.st_dev;
        if let Some(known) = self.known.lock().get(&device) {
            return Ok(known.flush);
        }
        let flush = Flush::of(directory);
        let file_system = FileSystem {
            held: Arc::new(flushable(directory)?),
            flush,
            lease: self.lease.clone(),
            first_seen: Writable::now(&directory),
        };
        // If two threads register the same file system, keep the first descriptor, because it was open earlier and
        // reports more errors.
        Ok(self.known.lock().entry(device).or_insert(file_system).flush)
    }

    /// Flushes a file or directory. In a drop box, the names can only be flushed together with the file system.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(crate) fn flush_entry(&self, changed: impl AsFd) -> io::Result<()> {
        if is_listable(&changed) {
            return Ok(rustix::io::retry_on_intr(|| rustix::fs::fsync(&changed))?);
        }
        let device = rustix::fs::fstat(&changed)?.st_dev;
        let known = self.known.lock().get(&device).cloned();
        let known = known.ok_or(Errno::BADF)?;
        Ok(rustix::fs::syncfs(&known.held)?)
    }

    /// Flushes the file systems that can be flushed as a whole. If that takes longer than `late_after`, the flush
    /// continues and counts as late.
    ///
    /// # Errors
    /// Returns an error if this flush, or an earlier late flush, has failed or is late.
    pub(crate) fn flush(&self) -> Result<(), Unflushed> {
        let mut late = self.late.lock();
        if let Some(before) = late.take() {
            match before.wait(self.late_after) {
                None => {
                    *late = Some(before);
                    return Err(Unflushed::Late(None));
                }
                Some(ended) => self.check(ended)?,
            }
        }
        let flushing = self.begin_flush();
        match flushing.wait(self.late_after) {
            None => {
                *late = Some(flushing.clone());
                Err(Unflushed::Late(Some(flushing)))
            }
            Some(ended) => self.check(ended),
        }
    }

    /// Records that the transfer relies on an equal file. If a flush fails, the contents of this file may be lost, and
    /// the file is not read back like those that the transfer has written.
    pub(crate) fn note_equal_file(&self) {
        self.relies_on_others.store(true, Ordering::Relaxed);
    }

    fn check(&self, ended: Result<(), Errno>) -> Result<(), Unflushed> {
        ended.map_err(|error| {
            self.failed.get_or_init(|| error);
            Unflushed::Failed
        })
    }

    /// Flushes all file systems and waits for the result without a timeout.
    ///
    /// # Errors
    /// Returns the error of the first flush that has failed. If the transfer relies on equal files, this includes
    /// earlier flushes. Otherwise an earlier failure has no effect: the files of the transfer have been read back, and
    /// a file system that loses names accepts no more changes.
    pub(crate) fn flush_without_timeout(&self) -> Result<(), Errno> {
        let mut late = self.late.lock();
        for flushing in late
            .take()
            .into_iter()
            .chain(std::iter::once_with(|| self.begin_flush()))
        {
            while flushing
                .wait(self.late_after)
                .map_or(Ok(true), |ended| ended.map(|()| false))?
            {}
        }
        self.known(Flush::PerFile).iter().try_for_each(flush_one)?;
        match self.failed.get() {
            Some(error) if self.relies_on_others.load(Ordering::Relaxed) => Err(*error),
            _ => Ok(()),
        }
    }

    fn begin_flush(&self) -> Flushing {
        let flushing = Flushing::default();
        let work = (self.known(Flush::PerFileSystem), flushing.clone());
        match self.flusher.get_or_init(start_flusher) {
            Some(flusher) => flusher.send(work).expect("it ends with this"),
            None => flush_all(work),
        }
        flushing
    }

    /// Returns the registered file systems that are flushed in the way `flush`.
    fn known(&self, flush: Flush) -> Vec<FileSystem> {
        self.known
            .lock()
            .values()
            .filter(|known| known.flush == flush)
            .cloned()
            .collect()
    }

    /// Returns whether the files of any registered file system are flushed individually.
    pub(crate) fn has_per_file_flush(&self) -> bool {
        self.known
            .lock()
            .values()
            .any(|known| known.flush == Flush::PerFile)
    }
}

#[cfg(test)]
impl FileSystems {
    /// Returns whether any file system has been registered.
    pub(crate) fn knows_any(&self) -> bool {
        !self.known.lock().is_empty()
    }

    /// Creates a set whose flushes never end and are immediately late.
    pub(crate) fn that_are_late() -> Self {
        Self {
            late_after: Duration::ZERO,
            late: Lock::new(Some(Flushing::default())),
            ..Self::under(Lease::constant())
        }
    }

    /// Creates a set whose flushes call `flush` on a separate thread.
    pub(crate) fn flushed_by(flush: impl Fn() -> Result<(), Errno> + Send + 'static) -> Self {
        let (flusher, work) = unbounded::<FlushWork>();
        thread::spawn(move || {
            work.into_iter()
                .for_each(|(_, flushing)| flushing.end(flush()))
        });
        let late_after = Duration::from_secs(600);
        Self {
            late_after,
            flusher: OnceLock::from(Some(flusher)),
            ..Self::under(Lease::constant())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    use zmove_disk::{FileIdentity, boot_clock};

    use super::*;

    /// A file system may have become read-only since the last write. The flush of such a file system reports no error.
    #[test]
    fn a_file_system_that_has_become_read_only_is_not_flushed() {
        let script = "mount -t tmpfs none /mnt && mkdir /mnt/d && echo ready && read -r _ &&
            mount -o remount,ro /mnt && echo ready && read -r _";
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .stderr(Stdio::null());
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok();
        let mut said = None;
        let mut is_ready = |child: &mut Child| {
            let said = said.get_or_insert_with(|| BufReader::new(child.stdout.take().unwrap()));
            said.read_line(&mut String::new()).unwrap() > 0
        };
        let Some(mut child) = child.and_then(|mut child| is_ready(&mut child).then_some(child))
        else {
            assert!(
                std::env::var_os("ZMOVE_REQUIRE_LAB").is_none(),
                "ZMOVE_REQUIRE_LAB=1, but nothing mounts"
            );
            return eprintln!("skipped: mounting needs root and unshare");
        };
        let file_systems = FileSystems::under(Lease::constant());
        let directory = File::open(format!("/proc/{}/root/mnt/d", child.id())).unwrap();
        file_systems.note(&directory).unwrap();
        assert_eq!(file_systems.flush_without_timeout(), Ok(()));
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert!(is_ready(&mut child));
        assert_eq!(file_systems.flush_without_timeout(), Err(Errno::ROFS));
        assert!(matches!(file_systems.flush(), Err(Unflushed::Failed)));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn the_times_of_a_directory_are_not_changed_once_the_sender_has_gone() {
        let home = tempfile::tempdir().unwrap();
        let directory = OwnedFd::from(File::open(home.path()).unwrap());
        let changed = || FileIdentity::of(&directory).unwrap().ctime;
        let before = changed();
        let lease = Lease::timed(boot_clock(), |_ping| {}, None);
        lease.end();
        assert_eq!(change_times(&lease, &directory), Err(Errno::CONNABORTED));
        assert_eq!(changed(), before);
        change_times(&Lease::constant(), &directory).unwrap();
        assert!(changed() > before);
    }

    #[test]
    fn what_a_late_flush_has_failed_for_is_told_by_the_next() {
        let file_systems = FileSystems::that_are_late();
        assert!(matches!(file_systems.flush(), Err(Unflushed::Late(None))));
        let late = file_systems.late.lock().clone().unwrap();
        late.end(Err(Errno::IO));
        assert!(!late.is_done());
        assert!(matches!(file_systems.flush(), Err(Unflushed::Failed)));
        assert!(matches!(file_systems.flush_without_timeout(), Ok(())));
    }

    #[test]
    fn a_flush_that_has_failed_once_ends_a_transfer_that_relies_on_equal_files() {
        let mut results = [Err(Errno::NOSPC)].into_iter();
        let results = Lock::new(move || results.next().unwrap_or(Ok(())));
        let file_systems = FileSystems::flushed_by(move || results.lock()());
        file_systems.note_equal_file();
        assert!(matches!(file_systems.flush(), Err(Unflushed::Failed)));
        assert!(matches!(file_systems.flush(), Ok(())));
        assert_eq!(file_systems.flush_without_timeout(), Err(Errno::NOSPC));
    }
}
