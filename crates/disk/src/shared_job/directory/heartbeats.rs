//! Heartbeat files in the directory of a job. They show other receivers that the head of the job (the node that leads
//! it) is alive.
//!
//! Each receiver that is connected to the head has its own file, and writes a heartbeat to it once per second. A
//! heartbeat holds a number and the age of the newest ping that the head has echoed. A session that finds the directory
//! of another job reads these files ([`WatchedJob`]) until it knows whether that job is alive. A network file system
//! may show outdated directories and attributes for a minute, but it reads a newly opened file from the server. So each
//! heartbeat is written and read through a new descriptor, and file times are ignored.
//!
//! **Proof that a head is alive.** Heartbeats from the last seconds of a dead head may become visible late on slow
//! storage. So a changed file alone proves nothing. A receiver writes its heartbeats one after another, so each was
//! written after the previous one had become visible. That time minus the echo age in the heartbeat is a lower bound
//! for the time at which the echoed ping was sent. If this bound is later than the first check of the directory, the
//! head was alive after that check. The clocks of two hosts are never compared.
//!
//! **End of the wait.** A heartbeat is ignored if it has no echo age or if the age exceeds the duration of a lease. So
//! once a lease duration has passed since the first check, each file can change at most once more before it proves that
//! the head is alive. For a job of this user, the wait is therefore short. Other users can write anything into their
//! own directories, so the wait for the jobs of other users ends after [`FOREIGN_WAIT_MAX`].

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zmove_types::{Name, SharedJobId};

use super::{SharedJobDirectory, SharedJobError, name_of, own_name, short_name};
use crate::opening::by_name::{READ, list_directory, open_at, stat_at, unlink_at};
use crate::opening::tree::DIRECTORY;
use crate::publishing::lease::LEASE_MAX;
use crate::shared_job::names::job_of;

/// The heartbeat file that one session writes.
#[derive(Debug)]
pub struct Heartbeat {
    directory: Arc<OwnedFd>,
    name: Name,
    beats: u64,
}

/// The liveness of another run's job, as far as this session knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The state is not known yet.
    Unclear,
    /// The head of the job was alive after the first check.
    Alive,
    /// No heartbeat has changed for [`DEAD_AFTER`].
    Dead,
    /// The directory does not exist, or the entry is not a directory.
    Gone,
    /// This session neither waits for the directory nor removes it. Either this user owns the directory but it was not
    /// created for the job, or another user owns the directory and the maximum wait has passed.
    Foreign,
}

/// A job of another run whose heartbeats this session reads.
#[derive(Debug)]
pub struct WatchedJob {
    job: SharedJobId,
    /// The newest heartbeat of each file, by the file's name.
    seen: HashMap<Name, SeenBeat>,
    /// The time of the first check.
    first_check: Option<Instant>,
    /// The time of the newest check.
    last_check: Option<Instant>,
    /// The total time for which no heartbeat has changed.
    silent: Duration,
    /// The time at which the wait for a directory of another user ends.
    foreign_until: Instant,
}

/// A heartbeat, with the time of the check that preceded it.
#[derive(Clone, Copy, Debug)]
struct SeenBeat {
    beat: Beat,
    /// The time of the last check before this heartbeat was found. `None` if the first check found it.
    made_after: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Beat {
    number: u64,
    /// The age of the newest echoed ping when the heartbeat was written.
    echo_age: Duration,
}

/// If no heartbeat has changed for this time, the job counts as dead. The time is five seconds longer than a receiver
/// runs without the head.
pub const DEAD_AFTER: Duration = Duration::from_secs(25);
/// The maximum time, from the start of the session, for which a session waits for directories of other users. Other
/// users can forge heartbeats, so the wait must be bounded. If the head of a job died before the session started, the
/// receivers of that job have stopped publishing by then.
const FOREIGN_WAIT_MAX: Duration = Duration::from_secs(2 * DEAD_AFTER.as_secs());
/// The maximum echo age in a heartbeat that counts as proof, rounded up. Only the first heartbeat of a session has no
/// echo age.
const PROOF_AGE_MAX: Duration = LEASE_MAX.saturating_add(Duration::from_millis(1));
/// Maximum part of the interval between two checks that counts as time without a heartbeat.
const SILENCE_MAX: Duration = Duration::from_secs(1);
pub(super) const HEARTBEAT_PREFIX: &str = "heartbeat-";
/// The maximum number of heartbeat files to read in one directory. A head connects to fewer receivers than this.
const BEATS_MAX: usize = 256;

impl SharedJobDirectory {
    /// Returns a session's heartbeat file, which is created by the first [`beat`](Heartbeat::beat). No other session
    /// may ever have used the identifier `own`, which must be short.
    #[must_use]
    pub fn heartbeat(&self, own: &str) -> Heartbeat {
        Heartbeat {
            directory: Arc::clone(&self.directory),
            name: short_name(&format!("{HEARTBEAT_PREFIX}{}", own_name(own))),
            beats: 0,
        }
    }
}

impl Heartbeat {
    /// Writes the next heartbeat. `echo_age` is the age of the newest ping that the head has echoed, or `None` if the
    /// head has echoed none. Only the first call creates the file, so that the file does not reappear after the job has
    /// ended.
    ///
    /// # Errors
    /// Returns the system's error, `ENOENT` if the job has ended.
    pub fn beat(&mut self, echo_age: Option<Duration>) -> io::Result<()> {
        let usual = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = if self.beats == 0 {
            usual | OFlags::CREATE
        } else {
            usual
        };
        self.beats += 1;
        // Rounds up, because a greater age proves less. The maximum value stands for "no echo" and proves nothing.
        let age = echo_age.and_then(|age| u64::try_from(age.as_millis() + 1).ok());
        let beat = [self.beats, age.unwrap_or(u64::MAX)].map(u64::to_le_bytes);
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.directory, self.name.as_os_str(), flags, mode)?;
        std::fs::File::from(file).write_all(beat.as_flattened())
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        let _gone_with_the_job = unlink_at(&self.directory, &self.name);
    }
}

/// Lists the directory and returns the jobs whose directories are in it.
///
/// # Errors
/// Returns the system's error.
pub fn list_shared_jobs(directory: BorrowedFd<'_>) -> io::Result<Vec<SharedJobId>> {
    let mut jobs = Vec::new();
    for entry in list_directory(directory)? {
        jobs.extend(job_of(entry?.file_name().to_bytes()));
    }
    Ok(jobs)
}

impl WatchedJob {
    /// Starts to watch a job, for a session that began at `since`. Returns `None` if the job's directory belongs to
    /// another user and everyone can create entries in `parent`, as in `/tmp`. In that case, any user could have
    /// created a directory with the name of a job, so the session does not wait for it.
    #[must_use]
    pub fn begin(parent: BorrowedFd<'_>, job: SharedJobId, since: Instant) -> Option<Self> {
        let is_sticky = rustix::fs::fstat(parent)
            .is_ok_and(|parent| Mode::from_raw_mode(parent.st_mode).contains(Mode::SVTX));
        (!is_sticky || is_own(parent, job)).then(|| Self {
            job,
            seen: HashMap::new(),
            first_check: None,
            last_check: None,
            silent: Duration::ZERO,
            foreign_until: since + FOREIGN_WAIT_MAX,
        })
    }

    /// Returns the job.
    #[must_use]
    pub const fn job(&self) -> SharedJobId {
        self.job
    }

    /// Reads the heartbeats again. The caller must call this function several times per second. At most one second
    /// between two calls counts as time without a heartbeat. For the rest, the process may have been suspended or
    /// blocked by storage.
    ///
    /// # Errors
    /// Returns the system's error. The state of the job is unknown in that case.
    pub fn check(&mut self, parent: BorrowedFd<'_>) -> io::Result<Liveness> {
        let now = Instant::now();
        let is_of_another = match SharedJobDirectory::open_with_proof(parent, self.job) {
            Err(SharedJobError::Foreign) => return Ok(Liveness::Foreign),
            opened => matches!(opened, Err(SharedJobError::OfAnotherUser)),
        };
        let found = match read_heartbeats(parent, self.job) {
            Ok(found) => found,
            Err(error) if is_no_job(&error) => return Ok(Liveness::Gone),
            // A directory of another user that cannot be read counts as one without heartbeats.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(match self.evaluate(now, found) {
            Liveness::Unclear if is_of_another && now >= self.foreign_until => Liveness::Foreign,
            sign => sign,
        })
    }

    /// Returns the state of the job after the check that began at `now` and found these heartbeats.
    fn evaluate(&mut self, now: Instant, found: Vec<(Name, Beat)>) -> Liveness {
        let first = *self.first_check.get_or_insert(now);
        let last = self.last_check.replace(now);
        let mut has_changed = false;
        let mut is_alive = false;
        let mut seen = HashMap::with_capacity(found.len());
        let can_be_real = |(_, beat): &(Name, Beat)| beat.echo_age <= PROOF_AGE_MAX;
        for (name, beat) in found.into_iter().filter(can_be_real) {
            let newest = match self.seen.get(&name) {
                Some(before) if before.beat == beat => *before,
                before => {
                    has_changed = true;
                    is_alive |= before.is_some_and(|before| before.proves(&beat, first));
                    SeenBeat {
                        beat,
                        made_after: last,
                    }
                }
            };
            seen.insert(name, newest);
        }
        self.seen = seen;
        self.silent = match last {
            Some(last) if !has_changed => self.silent + now.duration_since(last).min(SILENCE_MAX),
            _ => Duration::ZERO,
        };
        match self.silent {
            _ if is_alive => Liveness::Alive,
            silent if silent >= DEAD_AFTER => Liveness::Dead,
            _ => Liveness::Unclear,
        }
    }
}

impl SeenBeat {
    /// Returns whether `next`, the heartbeat that followed this one, proves that the head was alive at or after
    /// `moment`.
    fn proves(&self, next: &Beat, moment: Instant) -> bool {
        let made_after = self
            .made_after
            .and_then(|look| look.checked_sub(next.echo_age));
        made_after.is_some_and(|alive| alive >= moment)
    }
}

/// Returns whether an error means that the job has no directory: either it was removed, or its name belongs to an entry
/// of another kind, which another user has created.
fn is_no_job(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
    )
}

/// Returns whether the directory of a job belongs to the user of this process.
fn is_own(parent: BorrowedFd<'_>, job: SharedJobId) -> bool {
    stat_at(parent, name_of(job)).is_ok_and(|found| super::is_own(&found))
}

/// Opens the directory of a job and reads the heartbeats in it.
fn read_heartbeats(parent: BorrowedFd<'_>, job: SharedJobId) -> io::Result<Vec<(Name, Beat)>> {
    let directory = open_at(parent, name_of(job), DIRECTORY)?;
    let mut found = Vec::new();
    for entry in list_directory(&directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(HEARTBEAT_PREFIX.as_bytes())
            && found.len() < BEATS_MAX
            && let Ok(name) = Name::from_bytes(name)
            && let Ok(beat) = read(&directory, &name)
        {
            found.push((name, beat));
        }
    }
    Ok(found)
}

/// Reads a heartbeat. All heartbeats have the same size, so a reader never sees a truncated number. Anyone with write
/// access to the file can write other contents.
fn read(directory: &OwnedFd, name: &Name) -> io::Result<Beat> {
    // With these flags, the open does not block on a FIFO and does not follow a link.
    let file = open_at(directory, name, READ)?;
    let mut beat = [[0; 8]; 2];
    std::fs::File::from(file).read_exact(beat.as_flattened_mut())?;
    let [number, age] = beat.map(u64::from_le_bytes);
    Ok(Beat {
        number,
        echo_age: Duration::from_millis(age),
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

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
        WatchedJob::begin(root.as_fd(), JOB, Instant::now()).unwrap()
    }

    fn check(watched: &mut WatchedJob, root: &Arc<OwnedFd>) -> Liveness {
        watched.check(root.as_fd()).unwrap()
    }

    const MILLI: Duration = Duration::from_millis(1);

    /// Returns the liveness after each check. A check consists of the time since the first check, the number of the
    /// heartbeat, and its echo age. Times are in milliseconds.
    fn states(checks: &[(u32, u64, u64)]) -> Vec<Liveness> {
        let (_home, root, _job) = place();
        let mut watched = watch(&root);
        let first = Instant::now();
        let look = |&(at, number, age): &(u32, u64, u64)| {
            let beat = Beat {
                number,
                echo_age: Duration::from_millis(age),
            };
            let name = Name::from_bytes(b"heartbeat-a").unwrap();
            watched.evaluate(first + MILLI * at, vec![(name, beat)])
        };
        checks.iter().map(look).collect()
    }

    #[test]
    fn a_head_is_alive_if_it_has_echoed_a_ping_since_the_first_look() {
        use Liveness::{Alive, Unclear};
        let beats = [(0, 1), (250, 2), (1000, 2), (1250, 3), (2000, 3), (2250, 4)];
        let found = beats.map(|(at, number)| (at, number, 900));
        assert_eq!(states(&found)[3..], [Unclear, Unclear, Alive]);
    }

    /// After the head dies, its receivers continue for two seconds, and slow storage shows their last heartbeats late.
    #[test]
    fn what_a_head_that_died_before_the_first_look_has_left_is_no_sign_of_life() {
        use Liveness::Unclear;
        let found = [(0, 1, 100), (250, 2, 800), (1000, 3, 1800), (9000, 4, 1900)];
        assert_eq!(states(&found), [Unclear; 4]);
        // The last heartbeat before the death of the head becomes visible seven seconds late.
        let found = [(0, 1, 100), (7000, 2, 100), (7250, 2, 100), (8000, 3, 1100)];
        assert_eq!(states(&found)[..3], [Unclear; 3]);
    }

    /// A real receiver does not keep writing such heartbeats.
    #[test]
    fn changing_beats_without_a_proof_are_silence() {
        for age in [10_002, 99_999_999] {
            let found: Vec<_> = (0..=25).map(|n| (n * 1000, u64::from(n), age)).collect();
            assert_eq!(states(&found)[24..], [Liveness::Unclear, Liveness::Dead]);
        }
    }

    /// Another user can write arbitrary heartbeats.
    #[test]
    fn the_wait_for_a_directory_of_another_user_ends_whatever_is_in_it() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: only root can give a directory to another user");
        }
        let (home, root, job) = place();
        let path = home.path().join(name_of(JOB).as_os_str());
        std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
        let mut watched = watch(&root);
        let mut hearts = (0..5).map(|number| job.heartbeat(&number.to_string()));
        let mut look_at_new = |watched: &mut WatchedJob| {
            let mut heart = hearts.next().unwrap();
            heart.beat(Some(MILLI)).unwrap();
            check(watched, &root)
        };
        assert_eq!(look_at_new(&mut watched), Liveness::Unclear);
        watched.foreign_until = Instant::now();
        assert_eq!(look_at_new(&mut watched), Liveness::Foreign);
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        assert_eq!(look_at_new(&mut watched), Liveness::Unclear, "of this user");
    }

    #[test]
    fn a_job_is_dead_after_long_silence_and_gone_with_its_directory() {
        let (home, root, job) = place();
        let mut heart = job.heartbeat("a");
        heart.beat(Some(MILLI)).unwrap();
        let mut watched = watch(&root);
        assert_eq!(check(&mut watched, &root), Liveness::Unclear);
        watched.silent = DEAD_AFTER;
        heart.beat(Some(MILLI)).unwrap();
        assert_eq!(
            check(&mut watched, &root),
            Liveness::Unclear,
            "it has changed"
        );
        watched.silent = DEAD_AFTER;
        assert_eq!(check(&mut watched, &root), Liveness::Dead);
        drop(heart);
        std::fs::remove_dir_all(home.path().join(name_of(JOB).as_os_str())).unwrap();
        assert_eq!(check(&mut watch(&root), &root), Liveness::Gone);
        std::fs::create_dir(home.path().join(name_of(JOB).as_os_str())).unwrap();
        assert_eq!(check(&mut watch(&root), &root), Liveness::Foreign);
    }

    /// A user with write access to the target must not be able to block all pushes to it.
    #[test]
    fn what_is_no_directory_is_no_job() {
        let (home, root, _job) = place();
        let at = home.path().join(name_of(JOB).as_os_str());
        std::fs::remove_dir_all(&at).unwrap();
        std::fs::write(&at, "x").unwrap();
        assert_eq!(check(&mut watch(&root), &root), Liveness::Gone);
        for target in ["nowhere", "."] {
            std::fs::remove_file(&at).unwrap();
            std::os::unix::fs::symlink(target, &at).unwrap();
            assert_eq!(check(&mut watch(&root), &root), Liveness::Gone, "{target}");
        }
        std::fs::remove_file(&at).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &at, fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(check(&mut watch(&root), &root), Liveness::Gone);
    }

    /// A process may have been suspended for an hour, between two checks or during the first one. It has not observed
    /// an hour without heartbeats.
    #[test]
    fn a_time_in_which_nobody_could_look_is_no_silence() {
        let found = [(0, 1, 100), (3_600_000, 1, 100), (7_200_000, 1, 100)];
        assert_eq!(states(&found), [Liveness::Unclear; 3]);
        let found: Vec<_> = (0..=25).map(|second| (second * 1000, 1, 100)).collect();
        assert_eq!(states(&found)[24..], [Liveness::Unclear, Liveness::Dead]);
    }

    /// The end of a job removes its directory, and the heartbeat must not reappear in it.
    #[test]
    fn a_heartbeat_is_made_once() {
        let (_home, _root, job) = place();
        let mut heart = job.heartbeat("a");
        heart.beat(None).unwrap();
        heart.beat(None).unwrap();
        unlink_at(job.fd(), &heart.name).unwrap();
        let failed = heart.beat(None).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::NotFound);
    }

    /// If everyone may create entries in the parent directory, a session waits only for jobs of this user.
    #[test]
    fn a_directory_of_another_user_is_ignored_where_everybody_may_write() {
        use std::os::unix::fs::PermissionsExt;

        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: only root can give a directory to another user");
        }
        let (home, root, _job) = place();
        let set = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(home.path(), mode).unwrap();
        };
        set(0o1777);
        assert!(WatchedJob::begin(root.as_fd(), JOB, Instant::now()).is_some());
        let path = home.path().join(name_of(JOB).as_os_str());
        std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
        assert!(WatchedJob::begin(root.as_fd(), JOB, Instant::now()).is_none());
        set(0o777);
        assert!(WatchedJob::begin(root.as_fd(), JOB, Instant::now()).is_some());
        let ended = SharedJobDirectory::end_dead(&crate::Lease::constant(), &root, JOB);
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
        assert_eq!(check(&mut watched, &root), Liveness::Unclear);
        assert!(watched.seen.is_empty());
    }
}
