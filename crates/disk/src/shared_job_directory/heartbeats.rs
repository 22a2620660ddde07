//! The files in the directory of a job by which others see that its head is alive.
//!
//! Each receiver that the head talks to writes a number into a file of its own there, another one each second. Whoever
//! finds the directory of a job that is not its own looks at these numbers ([`WatchedJob`]) until it knows whether the
//! job is alive. A network file system may show old directories and attributes for a minute, but what is opened anew is
//! read anew. So a number is written and read through a new descriptor each time, and times of files count nowhere.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use zmove_types::{Name, SharedJobId};

use super::{SharedJobDirectory, name_of, own_name};
use crate::shared_job_names::job_of;
use crate::tree::DIRECTORY;

/// The heartbeat that one session writes.
#[derive(Debug)]
pub struct Heartbeat {
    directory: Arc<OwnedFd>,
    name: Name,
    beats: u64,
}

/// What is known of a job that another run leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Not enough yet.
    Unclear,
    /// Two looks have found that heartbeats have changed.
    Alive,
    /// No heartbeat has changed for [`DEAD_AFTER`].
    Dead,
    /// The directory of the job has gone.
    Gone,
}

/// A job of another run, whose heartbeats are looked at.
#[derive(Debug)]
pub struct WatchedJob {
    job: SharedJobId,
    /// What each heartbeat said when it was looked at last.
    beats: HashMap<Name, Vec<u8>>,
    /// When it was looked at last.
    looked: Option<Instant>,
    /// How many looks have found a change.
    changes: u32,
    /// How long no look has found a change.
    silent: Duration,
}

/// How long no heartbeat of a dead job has changed: five seconds longer than any receiver goes on without its head.
pub const DEAD_AFTER: Duration = Duration::from_secs(25);
/// The most of the time between two looks that counts as silence.
const SILENCE_MAX: Duration = Duration::from_secs(1);
const HEARTBEAT_PREFIX: &str = "heartbeat-";
/// The most of a heartbeat that is read. Whoever may write here may write anything.
const BEAT_BYTES_MAX: u64 = 32;
/// The most heartbeats that are looked at in one directory.
const BEATS_MAX: usize = 4096;

impl SharedJobDirectory {
    /// The heartbeat of a session, which has none yet. `own` tells the session apart from all others that there are.
    ///
    /// # Errors
    /// The name is too long.
    pub fn heartbeat(&self, own: &str) -> io::Result<Heartbeat> {
        let name = format!("{HEARTBEAT_PREFIX}{}", own_name(own));
        Ok(Heartbeat {
            directory: Arc::clone(&self.directory),
            name: Name::from_bytes(name.as_bytes()).map_err(|_too_long| Errno::NAMETOOLONG)?,
            beats: 0,
        })
    }
}

impl Heartbeat {
    /// Writes the next number. Only the first one makes the file: whoever ends the job removes it for good.
    ///
    /// # Errors
    /// The system's error; `ENOENT` once the job has ended.
    pub fn beat(&mut self) -> io::Result<()> {
        let usual = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = if self.beats == 0 {
            usual | OFlags::CREATE
        } else {
            usual
        };
        self.beats += 1;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.directory, self.name.as_os_str(), flags, mode)?;
        // always as long, so that no reader finds a part of a number
        std::fs::File::from(file).write_all(format!("{:020}", self.beats).as_bytes())
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        let _gone_with_the_job =
            rustix::fs::unlinkat(&self.directory, self.name.as_os_str(), AtFlags::empty());
    }
}

/// The jobs whose directories are in this one, by a new listing.
///
/// # Errors
/// The system's error.
pub fn jobs_in(directory: BorrowedFd<'_>) -> io::Result<Vec<SharedJobId>> {
    let mut jobs = Vec::new();
    for entry in Dir::read_from(directory)? {
        jobs.extend(job_of(entry?.file_name().to_bytes()));
    }
    Ok(jobs)
}

impl WatchedJob {
    /// A job that is looked at from now on; `None` where nobody has to wait for it: in a directory that everybody may
    /// write in, as `/tmp`, whoever likes makes such a name.
    #[must_use]
    pub fn begin(parent: BorrowedFd<'_>, job: SharedJobId) -> Option<Self> {
        let is_sticky = rustix::fs::fstat(parent)
            .is_ok_and(|parent| Mode::from_raw_mode(parent.st_mode).contains(Mode::SVTX));
        (!is_sticky || is_own(parent, job)).then(|| Self {
            job,
            beats: HashMap::new(),
            looked: None,
            changes: 0,
            silent: Duration::ZERO,
        })
    }

    /// The job.
    #[must_use]
    pub const fn job(&self) -> SharedJobId {
        self.job
    }

    /// Looks again. To be called several times a second: of a longer time between two looks no more than a second
    /// counts as silence, since whoever was stopped, or waited for the storage, has seen nothing.
    ///
    /// # Errors
    /// The system's error: nothing can be said of the job.
    pub fn look(&mut self, parent: BorrowedFd<'_>) -> io::Result<Sign> {
        let found = match read_all(parent, self.job) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Sign::Gone),
            // what another user lets nobody see is no sign of life
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => HashMap::new(),
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let has_changed = |(name, beat): (&Name, &Vec<u8>)| self.beats.get(name) != Some(beat);
        if let Some(looked) = self.looked {
            if found.iter().any(has_changed) {
                self.changes += 1;
                self.silent = Duration::ZERO;
            } else {
                self.silent += now.duration_since(looked).min(SILENCE_MAX);
            }
        }
        self.looked = Some(now);
        self.beats = found;
        Ok(match self.changes {
            2.. => Sign::Alive,
            _ if self.silent >= DEAD_AFTER => Sign::Dead,
            _ => Sign::Unclear,
        })
    }
}

/// Whether the directory of a job belongs to the user of this process.
fn is_own(parent: BorrowedFd<'_>, job: SharedJobId) -> bool {
    let found = rustix::fs::statat(parent, name_of(job).as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| found.st_uid == rustix::process::geteuid().as_raw())
}

/// The heartbeats in the directory of a job, which is opened anew.
fn read_all(parent: BorrowedFd<'_>, job: SharedJobId) -> io::Result<HashMap<Name, Vec<u8>>> {
    let directory = rustix::fs::openat(parent, name_of(job).as_os_str(), DIRECTORY, Mode::empty())?;
    let mut found = HashMap::new();
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(HEARTBEAT_PREFIX.as_bytes())
            && found.len() < BEATS_MAX
            && let Ok(name) = Name::from_bytes(name)
            && let Ok(beat) = read(&directory, &name)
        {
            found.insert(name, beat);
        }
    }
    Ok(found)
}

fn read(directory: &OwnedFd, name: &Name) -> io::Result<Vec<u8>> {
    // a FIFO or a link is not waited for, or followed
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory.as_fd(), name.as_os_str(), flags, Mode::empty())?;
    let mut beat = Vec::new();
    std::fs::File::from(file)
        .take(BEAT_BYTES_MAX)
        .read_to_end(&mut beat)?;
    Ok(beat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::Beginning;

    const JOB: SharedJobId = SharedJobId([7; 16]);

    fn place() -> (tempfile::TempDir, Arc<OwnedFd>, SharedJobDirectory) {
        let home = tempfile::tempdir().unwrap();
        let root = rustix::fs::open(home.path(), DIRECTORY, Mode::empty()).unwrap();
        let root = Arc::new(root);
        let job = SharedJobDirectory::open(&root, JOB, Beginning::Allowed).unwrap();
        (home, root, job)
    }

    fn watch(root: &Arc<OwnedFd>) -> WatchedJob {
        WatchedJob::begin(root.as_fd(), JOB).unwrap()
    }

    fn look(watched: &mut WatchedJob, root: &Arc<OwnedFd>) -> Sign {
        watched.look(root.as_fd()).unwrap()
    }

    #[test]
    fn a_job_is_alive_when_two_looks_have_found_a_change() {
        let (_home, root, job) = place();
        let mut heart = job.heartbeat("a").unwrap();
        let mut silent = job.heartbeat("b").unwrap();
        silent.beat().unwrap();
        heart.beat().unwrap();
        let mut watched = watch(&root);
        let mut signs = Vec::new();
        for _ in 0..3 {
            signs.push(look(&mut watched, &root));
            heart.beat().unwrap();
        }
        assert_eq!(signs, [Sign::Unclear, Sign::Unclear, Sign::Alive]);
    }

    #[test]
    fn a_job_is_dead_after_long_silence_and_gone_with_its_directory() {
        let (home, root, job) = place();
        let mut heart = job.heartbeat("a").unwrap();
        heart.beat().unwrap();
        let almost_dead = || WatchedJob {
            silent: DEAD_AFTER,
            ..watch(&root)
        };
        let mut watched = watch(&root);
        assert_eq!(look(&mut watched, &root), Sign::Unclear);
        watched.silent = DEAD_AFTER;
        heart.beat().unwrap();
        assert_eq!(look(&mut watched, &root), Sign::Unclear, "it has changed");
        watched.silent = DEAD_AFTER;
        assert_eq!(look(&mut watched, &root), Sign::Dead);
        drop(heart);
        std::fs::remove_dir(home.path().join(name_of(JOB).as_os_str())).unwrap();
        assert_eq!(look(&mut almost_dead(), &root), Sign::Gone);
    }

    /// Whoever was stopped for an hour between two looks, or whose first look took so long, has seen no silence.
    #[test]
    fn a_time_in_which_nobody_could_look_is_no_silence() {
        let (_home, root, _job) = place();
        let mut watched = watch(&root);
        assert_eq!(look(&mut watched, &root), Sign::Unclear);
        watched.looked = Instant::now().checked_sub(Duration::from_secs(3600));
        assert_eq!(look(&mut watched, &root), Sign::Unclear);
        assert_eq!(watched.silent, SILENCE_MAX);
    }

    /// Whoever ends a job removes its directory, and nothing comes into that again.
    #[test]
    fn a_heartbeat_is_made_once() {
        let (_home, _root, job) = place();
        let mut heart = job.heartbeat("a").unwrap();
        heart.beat().unwrap();
        heart.beat().unwrap();
        rustix::fs::unlinkat(job.fd(), heart.name.as_os_str(), AtFlags::empty()).unwrap();
        let failed = heart.beat().unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::NotFound);
    }

    /// Only a job of this user is waited for in a directory in which everybody may make names.
    #[test]
    fn a_directory_of_another_user_is_ignored_where_everybody_may_write() {
        use std::os::unix::fs::PermissionsExt;

        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (home, root, _job) = place();
        let set = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(home.path(), mode).unwrap();
        };
        set(0o1777);
        assert!(WatchedJob::begin(root.as_fd(), JOB).is_some());
        let path = home.path().join(name_of(JOB).as_os_str());
        std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
        assert!(WatchedJob::begin(root.as_fd(), JOB).is_none());
        set(0o777);
        assert!(WatchedJob::begin(root.as_fd(), JOB).is_some());
        let ended = SharedJobDirectory::end_dead(
            &crate::Lease::constant(),
            &root,
            JOB,
            Duration::from_secs(1),
        );
        assert!(ended.is_err() && path.exists());
    }

    #[test]
    fn what_is_no_heartbeat_is_not_waited_for() {
        let (home, root, _job) = place();
        let at = home.path().join(name_of(JOB).as_os_str());
        let fifo = at.join("heartbeat-fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        std::os::unix::fs::symlink("/dev/zero", at.join("heartbeat-link")).unwrap();
        let mut watched = watch(&root);
        assert_eq!(look(&mut watched, &root), Sign::Unclear);
        assert!(
            !watched
                .beats
                .keys()
                .any(|name| name.as_bytes() == b"heartbeat-link")
        );
    }
}
