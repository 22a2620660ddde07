//! The file systems that a transfer writes to: there may be several below one target.
//!
//! | `--durability` | small file | large file | before names are given | at the end |
//! |---|---|---|---|---|
//! | `none` | – | – | – | – |
//! | `end` (default) | – | `fdatasync` | `syncfs` of each file system | `syncfs`, for the names |
//! | `file` | `fdatasync` | `fdatasync` | the same, then `fsync` of each directory | the same |
//!
//! A large file is flushed by itself as soon as it is whole, since its descriptor has seen every error since it was
//! opened.
//!
//! Some file systems report success of `syncfs` without flushing, or whatever the one below them does: there each file
//! and each directory is flushed by itself ([`Flush::Each`]), and no group of a part counts as flushed.
//!
//! **Invariant:** on each file system a descriptor is open from before the first write to it: the kernel reports to a
//! descriptor only errors that came after it was opened.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use rustix::fs::{Access, AtFlags, Dev, Mode, OFlags};
use rustix::io::Errno;
use zmove_disk::{Lease, renew_times};
use zmove_types::Lock;

/// One open directory of each file system.
#[derive(Debug)]
pub(crate) struct FileSystems {
    known: Lock<HashMap<Dev, FileSystem>>,
    lease: Lease,
    /// How long a flush may take before it is late.
    patience: Duration,
    /// The flush that was late and may still be under way.
    late: Lock<Option<Flushing>>,
    /// The thread that flushes, started with the first flush; `None` where no more threads can be started.
    flusher: OnceLock<Option<Sender<Work>>>,
}

/// The file systems to flush, and the flush that waits for them.
type Work = (Vec<FileSystem>, Flushing);

#[derive(Clone, Debug)]
struct FileSystem {
    directory: Arc<OwnedFd>,
    flush: Flush,
    /// What lets a flush change the times of the directory.
    lease: Lease,
    /// Whether the file system took changes when it was seen first.
    first_seen: Writable,
}

/// Whether a directory's file system takes changes there: a mount may be read-only, and so may a subvolume of Btrfs.
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

/// How data is flushed to the storage below a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// One call flushes the whole file system.
    Whole,
    /// Each file and each directory is flushed by itself.
    Each,
}

impl Flush {
    /// How files of this file system are flushed. One that does not say what it is could be any: `fstatfs` fails on
    /// some file systems in user space and in some sandboxes.
    pub(crate) fn of(file: impl AsFd) -> Self {
        let kind = rustix::fs::fstatfs(file).map(|stat| stat.f_type);
        if kind.is_ok_and(|kind| !EACH.contains(&kind)) {
            Self::Whole
        } else {
            Self::Each
        }
    }
}

/// The `f_type` of FUSE, which reports success of `syncfs` without asking its server; of those above another file
/// system, overlayfs and eCryptfs: `syncfs` flushes what is below, and an error of that is reported to `fsync` of the
/// file alone; and of those whose `syncfs` does not ask the disk or the server to empty its cache: FAT, exFAT, SMB (1
/// and 2), 9p.
const EACH: [i64; 8] = [
    0x6573_5546,
    0x794c_7630,
    0xf15f,
    0x4d44,
    0x2011_bab0,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
];

/// A flush under way on a thread of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flushing(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    ended: Lock<Option<Result<(), Errno>>>,
    changed: Condvar,
}

/// Why a flush has not covered everything.
#[derive(Debug)]
pub(crate) enum Unflushed {
    Failed,
    /// The flush takes long, as where somebody else has written much to the same file system. Holds the flush that will
    /// cover all that was written until now, if one has begun.
    Late(Option<Flushing>),
}

/// How long a flush may take: longer than storage takes to write what one transfer has in the page cache, and shorter
/// than it may take for all others.
const PATIENCE: Duration = Duration::from_secs(20);

impl FileSystems {
    /// None yet, for a transfer that changes its target under this lease.
    pub(crate) fn under(lease: Lease) -> Self {
        Self {
            known: Lock::default(),
            lease,
            patience: PATIENCE,
            late: Lock::default(),
            flusher: OnceLock::new(),
        }
    }
}

fn start_flusher() -> Option<Sender<Work>> {
    let (flusher, work) = unbounded();
    let flush = move || work.into_iter().for_each(flush_all);
    thread::Builder::new()
        .name("zmove-flush".to_owned())
        .spawn(flush)
        .ok()?;
    Some(flusher)
}

fn flush_all((file_systems, flushing): Work) {
    // Flush each of them, even if one fails: an error is reported once.
    let results: Vec<_> = file_systems.iter().map(flush_one).collect();
    flushing.end(results.into_iter().collect());
}

fn flush_one(file_system: &FileSystem) -> Result<(), Errno> {
    let FileSystem {
        directory,
        first_seen,
        lease,
        ..
    } = file_system;
    rustix::fs::syncfs(directory)?;
    // A file system that has been read-only all the time holds nothing of ours.
    let stayed_read_only = [*first_seen, Writable::now(directory)] == [Writable::No; 2];
    if stayed_read_only {
        Ok(())
    } else {
        take_change(lease, directory)
    }
}

/// Makes a change, to learn whether the file system still takes any. One that has given up its journal reports success
/// of `syncfs`, and of `fsync` of what has not changed since; it reports the names that are lost with the journal to
/// nobody, or only to the program that happened to flush when the journal failed.
fn take_change(lease: &Lease, directory: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = rustix::fs::openat(directory, ".", flags, Mode::RUSR | Mode::WUSR).map(drop);
    // The fallback where there are no files without a name, or none may be made in this directory.
    let changed = made.or_else(|error| {
        if has_given_up(error) {
            Err(error)
        } else {
            change_times(lease, directory)
        }
    });
    // A directory of somebody else's takes no change from us, which shows nothing about its file system.
    changed.or_else(|error| {
        if has_given_up(error) {
            Err(error)
        } else {
            Ok(())
        }
    })
}

/// Sets a directory's times to what they are and flushes it: a change that leaves no trace.
fn change_times(lease: &Lease, directory: &OwnedFd) -> Result<(), Errno> {
    renew_times(lease.permit()?, directory)?;
    rustix::fs::fsync(directory)
}

const fn has_given_up(error: Errno) -> bool {
    matches!(
        error,
        Errno::ROFS | Errno::IO | Errno::UCLEAN | Errno::SHUTDOWN
    )
}

impl Flushing {
    /// The result, as soon as the flush has ended; `None` where that takes longer.
    fn wait(&self, patience: Duration) -> Option<Result<(), Errno>> {
        let Progress { ended, changed } = &*self.0;
        let ended = ended.lock();
        let waited = changed.wait_timeout_while(ended, patience, |ended| ended.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether all has been flushed by now.
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
    /// Notes the file system of a directory. To be called before anything is written to it.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn note(&self, directory: impl AsFd) -> io::Result<Flush> {
        let directory = directory.as_fd();
        let device = rustix::fs::fstat(directory)?.st_dev;
        if let Some(known) = self.known.lock().get(&device) {
            return Ok(known.flush);
        }
        let flush = Flush::of(directory);
        let file_system = FileSystem {
            directory: Arc::new(directory.try_clone_to_owned()?),
            flush,
            lease: self.lease.clone(),
            first_seen: Writable::now(&directory),
        };
        // The first thread's descriptor is kept, since it has seen more errors.
        Ok(self.known.lock().entry(device).or_insert(file_system).flush)
    }

    /// Flushes the file systems that can be flushed as a whole, or begins to.
    ///
    /// # Errors
    /// The flush, or an earlier late one, failed or is late.
    pub(crate) fn flush(&self) -> Result<(), Unflushed> {
        let mut late = self.late.lock();
        if let Some(before) = late.take() {
            match before.wait(self.patience) {
                None => {
                    *late = Some(before);
                    return Err(Unflushed::Late(None));
                }
                Some(ended) => ended.map_err(|_told_by_each_file| Unflushed::Failed)?,
            }
        }
        let flushing = self.begin_flush();
        match flushing.wait(self.patience) {
            None => {
                *late = Some(flushing.clone());
                Err(Unflushed::Late(Some(flushing)))
            }
            Some(ended) => ended.map_err(|_told_by_each_file| Unflushed::Failed),
        }
    }

    /// Flushes all file systems, however long it takes.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn flush_to_the_end(&self) -> Result<(), Errno> {
        let mut late = self.late.lock();
        for flushing in late
            .take()
            .into_iter()
            .chain(std::iter::once_with(|| self.begin_flush()))
        {
            while flushing
                .wait(self.patience)
                .map_or(Ok(true), |ended| ended.map(|()| false))?
            {}
        }
        self.known(Flush::Each).iter().try_for_each(flush_one)
    }

    fn begin_flush(&self) -> Flushing {
        let flushing = Flushing::default();
        let work = (self.known(Flush::Whole), flushing.clone());
        match self.flusher.get_or_init(start_flusher) {
            Some(flusher) => flusher.send(work).expect("it ends with this"),
            None => flush_all(work),
        }
        flushing
    }

    /// The file systems that are flushed in this way.
    fn known(&self, flush: Flush) -> Vec<FileSystem> {
        self.known
            .lock()
            .values()
            .filter(|known| known.flush == flush)
            .cloned()
            .collect()
    }

    /// Whether some are flushed file by file.
    pub(crate) fn any_each(&self) -> bool {
        self.known
            .lock()
            .values()
            .any(|known| known.flush == Flush::Each)
    }
}

#[cfg(test)]
impl FileSystems {
    /// Whether a flush would flush anything.
    pub(crate) fn knows_any(&self) -> bool {
        !self.known.lock().is_empty()
    }

    /// File systems with a flush that never ends, and no patience.
    pub(crate) fn that_are_late() -> Self {
        Self {
            patience: Duration::ZERO,
            late: Lock::new(Some(Flushing::default())),
            ..Self::under(Lease::constant())
        }
    }

    /// File systems whose flushes are calls of `flush`, on a thread of its own.
    pub(crate) fn flushed_by(flush: impl Fn() -> Result<(), Errno> + Send + 'static) -> Self {
        let (flusher, work) = unbounded::<Work>();
        thread::spawn(move || {
            work.into_iter()
                .for_each(|(_, flushing)| flushing.end(flush()))
        });
        let patience = Duration::from_secs(600);
        Self {
            patience,
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

    /// A file system that has become read-only since something was written to it does not report that by itself.
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
        assert_eq!(file_systems.flush_to_the_end(), Ok(()));
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert!(is_ready(&mut child));
        assert_eq!(file_systems.flush_to_the_end(), Err(Errno::ROFS));
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
        assert!(matches!(file_systems.flush_to_the_end(), Ok(())));
    }
}
