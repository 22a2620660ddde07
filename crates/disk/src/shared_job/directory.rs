//! The directory of a job whose receivers on several hosts write to one file system: `.zmove-job-ID` in the target.
//!
//! | entry | written by |
//! |---|---|
//! | `.zmove-PROCESS-SESSION/`: entries without a final name | one session |
//! | `.zmove-job-PROOF/`: parts, the temporary files of large files ([`proof`]) | all sessions |
//! | `journal-…`: records which groups of the parts are flushed | one session each |
//! | `heartbeat-…`: shows that the head, the node that leads the job, is alive ([`heartbeats`]) | one session each |
//!
//! **Invariant:** no session creates or renames an entry after the end of the job. A host cannot look up the processes
//! of another host, and a file lock may be effective on one host only. So the end of the job removes its directory: on
//! every file system, a removed directory accepts no new entries, and a removed entry cannot be renamed. The lease
//! stops a session that has lost its sender.
//!
//! A part of a large file is created only once per job. Before the part is renamed to its final name, a symbolic link
//! (a mark) replaces its name here ([`JobSession::retire_part`]), so no receiver creates the part again. Otherwise, a
//! receiver's records about the part could refer to a second file, because the inode number of the first file may be
//! reused. A file with the name of a part has never had a final name, so other programs cannot have changed
//! it. Another job may therefore take over the part ([`JobSession::adopt_part`]).
//!
//! Directories of the target itself are created under their final names. It is not an error if another receiver has
//! created one first.
//!
//! All directories of a job belong to the receiver's user and deny access to other users (0700). If the head of a job
//! has died, the next session that finds the directory removes it ([`heartbeats`]). A receiver writes into a
//! directory, or removes entries from it, only if the directory has the proof that it belongs to this job ([`proof`]).

mod heartbeats;
mod job_session;
mod proof;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, Mode};
use rustix::io::Errno;
use thiserror::Error;
use zmove_types::{Beginning, Name, RelPath, SharedJobId};

use self::job_session::is_missing;
use self::proof::{create_with_proof, is_own, make, open, proof_name};
use crate::metadata::entry::xattrs::Descriptor;
use crate::metadata::entry::{FileIdentity, number_at, set_file_mtime};
use crate::opening::by_name::{list_directory, remove_directory_at, stat_at};
use crate::opening::tree::Tree;
use crate::publishing::lease::Lease;
use crate::publishing::remove::{RemovalBudget, remove_entries_within};
use crate::shared_job::names::JOB_PREFIX;
use crate::staging::hidden::{make_hidden, own_process};

pub use self::heartbeats::{DEAD_AFTER, Heartbeat, Liveness, WatchedJob, list_shared_jobs};
pub use self::job_session::{JOB_ENDED, JobSession, NewEntryGroup, PART_GONE, PartState};

/// The directory of a job.
#[derive(Debug)]
pub struct SharedJobDirectory {
    directory: Arc<OwnedFd>,
    /// The name of the subdirectory that holds the parts of large files.
    parts: Name,
}

/// The reason why a session cannot join a job.
#[derive(Debug, Error)]
pub enum SharedJobError {
    /// The job has no directory here, and this session may not create it.
    #[error(
        "the job is not under way at this target: it has ended, or this receiver has a different directory there than \
         the other receivers (is the shared storage mounted?)"
    )]
    NotUnderWay,
    /// The directory of the job belongs to another user.
    #[error(
        "the directory at the target belongs to another user: run all receivers of a push as the same user, also to \
         resume a push that was killed"
    )]
    OfAnotherUser,
    /// The directory was not created by a receiver as the directory of this job.
    #[error(
        "the directory at the target was not created for this job: another directory has its name, or this receiver's \
         host sees other inode numbers than the host that created it"
    )]
    Foreign,
    /// A system call failed.
    #[error("the directory at the target cannot be opened: {0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for SharedJobError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// The prefix of all hidden names. Recursive removal keeps hidden entries unless their directory is hidden too.
const OWN_PREFIX: &str = ".zmove-";
/// The prefix of the names of journals in the directory of a job.
pub const JOURNAL_PREFIX: &str = "journal-";
/// The maximum time until a directory that was created on another host becomes visible here.
pub const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval between two attempts to open such a directory.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// The maximum time without progress while the directory of a job is removed, and the maximum time in all for a dead
/// job. Late sessions may still create entries. It is shorter than the time for which a sender waits for an answer.
const END_TIMEOUT: Duration = Duration::from_secs(20);

fn is_absent(error: &SharedJobError) -> bool {
    matches!(error, SharedJobError::Io(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Returns the name of a session's directory.
fn own_name(own: &str) -> Name {
    short_name(&format!("{OWN_PREFIX}{}-{own}", own_process()))
}

fn name_of(job: SharedJobId) -> Name {
    short_name(&format!("{JOB_PREFIX}{job}"))
}

fn short_name(text: &str) -> Name {
    Name::from_bytes(text.as_bytes()).expect("an id is short")
}

impl SharedJobDirectory {
    /// Opens the directory of a job in a target, or creates it if `beginning` allows it. Waits up to
    /// [`VISIBILITY_TIMEOUT`] for the directory to become visible.
    ///
    /// # Errors
    /// See [`SharedJobError`].
    pub fn open(
        root: &Arc<OwnedFd>,
        job: SharedJobId,
        beginning: Beginning,
    ) -> Result<Self, SharedJobError> {
        let began = Instant::now();
        loop {
            let mut opened = Self::open_with_proof(root, job);
            if beginning == Beginning::Allowed && opened.as_ref().is_err_and(is_absent) {
                opened = create_with_proof(root, job)
                    .map_err(SharedJobError::from)
                    .and_then(|()| Self::open_with_proof(root, job));
            }
            let is_last = began.elapsed() >= VISIBILITY_TIMEOUT;
            match opened {
                Err(error) if is_absent(&error) && is_last => {
                    return Err(SharedJobError::NotUnderWay);
                }
                Err(error) if is_absent(&error) => {}
                // Another session that undoes the creation of the directory removes the proof first, so the directory
                // may have lost its proof just now.
                Err(SharedJobError::Foreign) if !is_last => {}
                opened => return opened,
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Returns the name of the directory of a job.
    #[must_use]
    pub fn name(job: SharedJobId) -> Name {
        name_of(job)
    }

    /// Returns the descriptor of the directory.
    #[must_use]
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.directory
    }

    /// Removes the entries that a session created before it failed to begin a job, so that no other session assumes
    /// that the job is running. Returns whether all entries of the job were removed. This function opens no file or
    /// directory, because opening may be the operation that failed.
    pub fn undo_begin(root: &OwnedFd, job: SharedJobId, own: &str) -> bool {
        let name = name_of(job);
        let _done = Self::try_undo_begin(root, job, own);
        stat_at(root, &name).is_err_and(|error| error == Errno::NOENT)
    }

    /// Renames the proof to a hidden name first. If the directory has entries of other sessions, undoes the rename.
    fn try_undo_begin(root: &OwnedFd, job: SharedJobId, own: &str) -> rustix::io::Result<()> {
        let name = name_of(job);
        let directory = Path::new(name.as_os_str());
        let proof = proof_name(job, stat_at(root, &name)?.st_ino);
        let proof = directory.join(proof.as_os_str());
        let remove = |made: &Path| remove_directory_at(root, made);
        let _unless_not_made = remove(&directory.join(own_name(own).as_os_str()));
        let take = |hidden: &Name| rustix::fs::renameat(root, &proof, root, hidden.as_os_str());
        let (hidden, ()) = make_hidden(root.as_fd(), take)?;
        if remove(directory).is_ok() {
            remove(hidden.as_os_str().as_ref())
        } else {
            rustix::fs::renameat(root, hidden.as_os_str(), root, &proof)
        }
    }

    /// Begins a session of the job. No other session may ever have used the identifier `own`, which must be short.
    ///
    /// # Errors
    /// See [`SharedJobError`].
    pub fn begin(&self, own: &str) -> Result<JobSession, SharedJobError> {
        JobSession::begin(&self.directory, &self.parts, own_name(own)).map_err(|error| {
            if is_missing(&error) {
                SharedJobError::NotUnderWay
            } else {
                error.into()
            }
        })
    }

    /// Ends the job and removes its directory from the target. Continues as long as entries can be removed, and gives
    /// up after no entry was removed for 20 s. The caller may repeat the call if the result of an earlier
    /// call is unknown.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn close(&self, lease: &Lease, root: &OwnedFd, job: SharedJobId) -> io::Result<()> {
        self.clear(END_TIMEOUT, || false)?;
        // The next session at this target removes any remaining entries.
        let _best_effort = self.remove(lease, root, job);
        Ok(())
    }

    /// Ends a job whose head, the node that leads the job, has died. Removes the job's directory.
    ///
    /// # Errors
    /// See [`SharedJobError`].
    pub fn end_dead(
        lease: &Lease,
        root: &Arc<OwnedFd>,
        job: SharedJobId,
    ) -> Result<(), SharedJobError> {
        Ok(Self::open_with_proof(root, job)?.remove(lease, root, job)?)
    }

    /// Removes an empty directory of this user that has the name of a job but no proof. A receiver that was interrupted
    /// while it ended the job may have left the directory. Returns whether the directory is gone.
    pub fn remove_empty(lease: &Lease, root: &OwnedFd, job: SharedJobId) -> bool {
        stat_at(root, name_of(job)).is_ok_and(|found| is_own(&found))
            && Self::try_to_remove(lease, root, job).is_ok()
    }

    /// Removes the directory of an ended job from its target, and preserves the time and mode of the target. Sessions
    /// that have not noticed the end may create entries in the directory until it is removed.
    fn remove(&self, lease: &Lease, root: &OwnedFd, job: SharedJobId) -> io::Result<()> {
        let began = Instant::now();
        let should_stop = || began.elapsed() > END_TIMEOUT;
        loop {
            self.clear(END_TIMEOUT, should_stop)?;
            match Self::try_to_remove(lease, root, job) {
                Err(error)
                    if error.kind() == io::ErrorKind::DirectoryNotEmpty && !should_stop() => {}
                removed => return removed,
            }
        }
    }

    fn try_to_remove(lease: &Lease, root: &OwnedFd, job: SharedJobId) -> io::Result<()> {
        let before = FileIdentity::of(root)?;
        // The target already has its final mode, which may deny its owner write access.
        let mode = Mode::from_raw_mode(rustix::fs::fstat(root)?.st_mode);
        let access = rustix::fs::accessat(
            root,
            ".",
            Access::WRITE_OK | Access::EXEC_OK,
            AtFlags::EACCESS,
        );
        let is_closed = access == Err(Errno::ACCESS);
        // One permit covers the whole change, so the mode is always restored.
        let permit = lease.permit()?;
        if is_closed {
            Descriptor::Open(root.as_fd()).set_mode(&permit, mode | Mode::RWXU)?;
        }
        let removed = remove_directory_at(root, name_of(job));
        if is_closed {
            Descriptor::Open(root.as_fd()).set_mode(&permit, mode)?;
        }
        drop(permit);
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let _best_effort = set_file_mtime(lease.permit()?, root, before.mtime);
        Ok(())
    }

    /// Removes the entries of the directory, the proof last. Fails once no entry was removed for `patience`, or once
    /// `should_stop` returns true.
    fn clear(&self, patience: Duration, should_stop: impl Fn() -> bool) -> io::Result<()> {
        let entries = match list_directory(&self.directory) {
            Err(Errno::NOENT | Errno::STALE) => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if let Ok(name) = Name::from_bytes(name)
                && name != self.parts
            {
                remove_with_retries(&self.directory, &name, patience, &should_stop)?;
            }
        }
        remove_with_retries(&self.directory, &self.parts, patience, &should_stop)
    }
}

/// Removes a directory recursively, and retries if entries are added in the meantime.
fn remove_with_retries(
    parent: &Arc<OwnedFd>,
    name: &Name,
    patience: Duration,
    should_stop: &impl Fn() -> bool,
) -> io::Result<()> {
    let mut last_progress = Instant::now();
    let tree = Tree::at(Arc::clone(parent));
    loop {
        let mut failed = None;
        let names = std::iter::once(name);
        let fails = |_path, error| failed = Some(error);
        let removed = remove_entries_within(
            &RemovalBudget::new(u64::MAX),
            should_stop,
            &tree,
            &RelPath::root(),
            names,
            fails,
        );
        if removed > 0 {
            last_progress = Instant::now();
        }
        match number_at(parent, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) if last_progress.elapsed() < patience && !should_stop() => {
                std::thread::sleep(RETRY_INTERVAL)
            }
            Ok(_) => return Err(failed.unwrap_or_else(|| Errno::NOTEMPTY.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::entry::xattrs::NameAt;
    use crate::metadata::entry::{FileIdentity, number_of, set_file_mtime};
    use crate::opening::by_name::unlink_at;
    use crate::opening::tree::DIRECTORY;
    use crate::publishing::publish::Replace;
    use crate::shared_job::names::is_shared_job_name;
    use crate::staging::new_files::NewFiles;
    use crate::storage::file_io::data_file::Direct;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use zmove_types::Timestamp;

    pub(crate) const JOB: SharedJobId = SharedJobId([7; 16]);

    pub(crate) fn place() -> (tempfile::TempDir, Arc<OwnedFd>) {
        let home = tempfile::tempdir().unwrap();
        let fd = rustix::fs::open(home.path(), DIRECTORY, Mode::empty()).unwrap();
        (home, Arc::new(fd))
    }

    pub(crate) fn job(root: &Arc<OwnedFd>) -> SharedJobDirectory {
        SharedJobDirectory::open(root, JOB, Beginning::Allowed).unwrap()
    }

    fn begin(root: &Arc<OwnedFd>, own: &str) -> Arc<JobSession> {
        Arc::new(job(root).begin(own).unwrap())
    }

    fn close(directory: &SharedJobDirectory, root: &OwnedFd) {
        directory.close(&Lease::constant(), root, JOB).unwrap();
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn create(session: &JobSession) -> io::Result<Name> {
        let staged = session.create_file(&NewFiles::default(), 0o600)?;
        Ok(staged.into_hidden_name().unwrap())
    }

    #[track_caller]
    fn assert_ended<T: std::fmt::Debug>(done: io::Result<T>) {
        assert_eq!(Errno::from_io_error(&done.unwrap_err()), Some(JOB_ENDED));
    }

    /// Sessions are suspended, and resume after the end of the job.
    #[test]
    fn nothing_is_made_or_named_after_the_end_of_the_job() {
        let (home, root) = place();
        let late = begin(&root, "a");
        let hidden = create(&late).unwrap();
        let lease = Lease::constant();
        let open = |part| late.open_part(&lease, &name(part), 10, Direct::Off);
        let part = open("part").unwrap();
        let time = Timestamp {
            seconds: 1_000_000_000,
            nanos: 5,
        };
        let directory = job(&root);
        set_file_mtime(crate::Permit::for_hidden(), &root, time).unwrap();
        assert!(!late.has_ended());
        close(&directory, &root);
        close(&directory, &root);
        assert!(late.has_ended());
        let from = NameAt::new(late.own(), &hidden);
        let to = name("f");
        assert_ended(late.publish(&lease, from, NameAt::new(&root, &to), Replace::Existing));
        assert_ended(create(&late));
        assert_ended(open("other"));
        assert_ended(late.has_part(&name("part"), part.file()));
        assert_ended(late.publish_part(
            &lease,
            &name("part"),
            part.file(),
            NameAt::new(&root, &to),
            Replace::Existing,
        ));
        assert_ended(late.place(
            &lease,
            NameAt::new(&root, &to),
            Replace::Existing,
            NewEntryGroup::Own,
            |NameAt { directory, name }| {
                Ok(rustix::fs::symlinkat("x", directory, name.as_os_str())?)
            },
        ));
        late.restore_time(&lease, &root, Timestamp::default());
        assert_eq!(FileIdentity::of(&root).unwrap().mtime, time);
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
        let refused = SharedJobDirectory::open(&root, JOB, Beginning::UnderWay);
        assert!(
            matches!(refused, Err(SharedJobError::NotUnderWay)),
            "{refused:?}"
        );
    }

    /// Removing many entries takes a busy host longer than the patience for a removal that makes no progress.
    #[test]
    fn a_job_is_closed_as_long_as_entries_can_be_removed() {
        let (home, root) = place();
        let session = begin(&root, "a");
        create(&session).unwrap();
        let directory = job(&root);
        directory.clear(Duration::ZERO, || false).unwrap();
        close(&directory, &root);
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_job_that_ends_when_a_session_begins_is_not_under_way() {
        let (_home, root) = place();
        let directory = job(&root);
        close(&directory, &root);
        let refused = directory.begin("late");
        assert!(
            matches!(refused, Err(SharedJobError::NotUnderWay)),
            "{refused:?}"
        );
    }

    /// If a response is lost, the client of a network file system repeats the request.
    #[test]
    fn a_name_that_was_given_although_the_call_failed_is_told_as_given() {
        let (home, root) = place();
        let session = begin(&root, "a");
        let at = |text: &str| home.path().join(text);
        let own = |hidden: &Name| format!("/proc/self/fd/{}/{hidden}", session.own().as_raw_fd());
        let look = |hidden: &Name, staged, error: Errno| {
            let from = NameAt::new(session.own(), hidden);
            session.check_failed_rename(staged, from, NameAt::new(&root, &name("f")), error.into())
        };
        let hidden = create(&session).unwrap();
        let staged = number_at(session.own(), &hidden).unwrap();
        assert!(look(&hidden, staged, Errno::NOENT).is_err(), "not yet");
        std::fs::rename(own(&hidden), at("f")).unwrap();
        look(&hidden, staged, Errno::NOENT).unwrap();
        // If renaming without replacement is not supported, a hard link is used.
        std::fs::hard_link(at("f"), own(&hidden)).unwrap();
        look(&hidden, staged, Errno::EXIST).unwrap();
        assert_eq!(at("f").metadata().unwrap().nlink(), 1);
    }

    /// A user may remove a file before it has its final name.
    #[test]
    fn a_file_that_somebody_else_has_removed_is_not_told_as_named() {
        let (home, root) = place();
        let session = begin(&root, "a");
        for replace in [Replace::Existing, Replace::Nothing] {
            let hidden = create(&session).unwrap();
            unlink_at(session.own(), &hidden).unwrap();
            let told = session
                .publish(
                    &Lease::constant(),
                    NameAt::new(session.own(), &hidden),
                    NameAt::new(&root, &name("f")),
                    replace,
                )
                .unwrap_err();
            assert_eq!(told.kind(), io::ErrorKind::NotFound);
            assert!(!home.path().join("f").exists() && !session.has_ended());
        }
    }

    #[test]
    fn directories_of_a_job_are_closed_and_give_nothing_away() {
        let (home, root) = place();
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o2777)).unwrap();
        let acl = crate::metadata::entry::xattrs::tests::acl_of_a_user();
        let has_acl = rustix::fs::fsetxattr(
            &root,
            crate::metadata::entry::xattrs::DEFAULT_NAME,
            &acl,
            rustix::fs::XattrFlags::empty(),
        );
        let session = begin(&root, "a");
        for directory in [&session.job, &session.parts, &session.own] {
            let there = File::from(directory.try_clone().unwrap())
                .metadata()
                .unwrap();
            assert_eq!(there.mode() & 0o7777, 0o700);
            if has_acl.is_ok() {
                assert_eq!(
                    crate::metadata::entry::xattrs::default_acl(directory.as_fd()).unwrap(),
                    None
                );
            }
        }
    }

    /// The job may belong to another host and run for weeks, or its directory may come from a backup.
    #[test]
    fn a_job_s_directory_is_known_by_its_name_and_stays() {
        let (home, root) = place();
        let _session = begin(&root, "a");
        let job_name = name(&format!("{JOB_PREFIX}{JOB}"));
        assert!(is_shared_job_name(job_name.as_bytes()));
        let longer = format!("{JOB_PREFIX}{JOB}07");
        for other in [".zmove-job-", ".zmove-job-7", &longer, &longer[1..44]] {
            assert!(!is_shared_job_name(other.as_bytes()), "{other}");
        }
        let jobs = crate::staging::abandoned::remove_abandoned(
            &Tree::at(Arc::clone(&root)),
            &RelPath::root(),
            root.as_fd(),
        );
        assert_eq!(jobs.unwrap(), [JOB]);
        assert_eq!(list_shared_jobs(root.as_fd()).unwrap(), [JOB]);
        assert!(home.path().join(job_name.as_os_str()).exists());
    }

    /// Files of the job cannot be renamed into such a directory.
    #[test]
    fn a_directory_on_another_file_system_than_the_job_is_refused() {
        let (_home, root) = place();
        let session = begin(&root, "a");
        session.check_device(&root).unwrap();
        let refused = session
            .check_device(File::open("/proc").unwrap())
            .unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::XDEV));
    }

    #[test]
    fn a_part_that_has_been_given_up_is_gone_and_is_not_begun_again() {
        let (home, root) = place();
        let [one, other] = ["a", "b"].map(|own| begin(&root, own));
        let part = name("p");
        let open =
            |session: &JobSession| session.open_part(&Lease::constant(), &part, 4, Direct::Off);
        let [of_one, of_other] = [&one, &other].map(|session| open(session).unwrap());
        one.give_up_part(&part, of_one.file(), Errno::NOSPC)
            .unwrap();
        assert_eq!(of_one.file().metadata().unwrap().nlink(), 0);
        assert!(!other.has_part(&part, of_other.file()).unwrap());
        assert_eq!(
            Errno::from_io_error(&open(&other).unwrap_err()),
            Some(PART_GONE)
        );
        let found = other.find_part(&part).unwrap();
        assert!(
            matches!(found, PartState::GivenUp { errno } if errno == Errno::NOSPC.raw_os_error())
        );
        // The first call determines the reason.
        other
            .give_up_part(&part, of_other.file(), Errno::DQUOT)
            .unwrap();
        let found = one.find_part(&part).unwrap();
        assert!(
            matches!(found, PartState::GivenUp { errno } if errno == Errno::NOSPC.raw_os_error())
        );
        drop(home);
    }

    /// One receiver is suspended before its rename, and another receiver commits the part. Then the work is assigned
    /// again.
    #[test]
    fn a_part_that_has_been_committed_is_not_begun_again() {
        let (home, root) = place();
        let [slow, fast, late] = ["a", "b", "c"].map(|own| begin(&root, own));
        let part = name("p");
        let open =
            |session: &JobSession| session.open_part(&Lease::constant(), &part, 4, Direct::Off);
        let [of_slow, of_fast] = [&slow, &fast].map(|session| open(session).unwrap());
        assert!(matches!(late.find_part(&part), Ok(PartState::Part(_))));
        std::os::unix::fs::FileExt::write_all_at(of_fast.file(), b"data", 0).unwrap();
        let file_name = name("f");
        let target = NameAt::new(&root, &file_name);
        fast.publish_part(
            &Lease::constant(),
            &part,
            of_fast.file(),
            target,
            Replace::Existing,
        )
        .unwrap();
        assert_eq!(
            Errno::from_io_error(&open(&late).unwrap_err()),
            Some(PART_GONE)
        );
        let there = home.path().join("f");
        let is_told =
            |session: &JobSession| matches!(session.find_part(&part), Ok(PartState::Committed));
        assert!(is_told(&late));
        slow.publish_part(
            &Lease::constant(),
            &part,
            of_slow.file(),
            target,
            Replace::Existing,
        )
        .unwrap();
        assert_eq!(std::fs::read(&there).unwrap(), b"data");
        assert_eq!(there.metadata().unwrap().nlink(), 1);
        assert!(!slow.has_part(&part, of_slow.file()).unwrap() && is_told(&slow));
        std::fs::remove_file(&there).unwrap();
        let gone = slow
            .publish_part(
                &Lease::constant(),
                &part,
                of_slow.file(),
                target,
                Replace::Existing,
            )
            .unwrap_err();
        assert!(gone.kind() == io::ErrorKind::NotFound && is_told(&slow) && !there.exists());
    }

    /// A receiver stops after each step of a commit. Then a user changes the published file and removes it.
    #[test]
    fn a_part_that_has_had_its_final_name_is_neither_taken_over_nor_found() {
        let (home, root) = place();
        let dead = begin(&root, "a");
        let part = name("p");
        let retired = job_session::retired_name(&part);
        let opened = dead
            .open_part(&Lease::constant(), &part, 4, Direct::Off)
            .unwrap();
        let inode = number_of(opened.file()).unwrap().inode;
        dead.retire_part(&part, opened.file()).unwrap();
        assert!(matches!(dead.find_part(&part), Ok(PartState::Part(_))));
        let next = SharedJobId([8; 16]);
        let next = SharedJobDirectory::open(&root, next, Beginning::Allowed).unwrap();
        let next = next.begin("b").unwrap();
        let is_taken = || next.adopt_part(&job(&root), &part, inode).unwrap();
        assert!(!is_taken());
        let target = home.path().join("f");
        rustix::fs::renameat(&dead.parts, retired.as_os_str(), rustix::fs::CWD, &target).unwrap();
        let is_committed = || matches!(dead.find_part(&part), Ok(PartState::Committed));
        assert!(!is_taken() && is_committed());
        std::fs::write(&target, "other").unwrap();
        std::fs::remove_file(&target).unwrap();
        assert!(!is_taken() && is_committed());
        let f = name("f");
        let target = NameAt::new(&root, &f);
        let lease = Lease::constant();
        let gone = dead.publish_part(&lease, &part, opened.file(), target, Replace::Existing);
        assert_eq!(gone.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(is_committed() && !home.path().join("f").exists());
    }

    #[test]
    fn a_part_of_a_dead_job_is_taken_over_by_one_job() {
        let (_home, root) = place();
        let dead = begin(&root, "a");
        let part = name("p");
        let opened = dead
            .open_part(&Lease::constant(), &part, 4, Direct::Off)
            .unwrap();
        let inode = number_of(opened.file()).unwrap().inode;
        let [first, second] = [8, 9].map(|id| {
            let next = SharedJobId([id; 16]);
            let next = SharedJobDirectory::open(&root, next, Beginning::Allowed).unwrap();
            next.begin("b").unwrap()
        });
        let take =
            |session: &JobSession, inode| session.adopt_part(&job(&root), &part, inode).unwrap();
        assert!(!take(&first, inode + 1), "another file");
        assert!(take(&first, inode) && !take(&second, inode));
        assert!(matches!(first.find_part(&part), Ok(PartState::Part(_))));
        assert_eq!(opened.file().metadata().unwrap().nlink(), 1);
    }

    #[test]
    fn a_part_is_as_long_as_its_file_whoever_opens_it_and_keeps_what_others_have_written() {
        use std::os::unix::fs::FileExt;
        let (_home, root) = place();
        let session = begin(&root, "a");
        let one = session
            .open_part(&Lease::constant(), &name("p"), 10, Direct::Off)
            .unwrap();
        one.file().write_all_at(b"x", 9).unwrap();
        let other = session
            .open_part(&Lease::constant(), &name("p"), 10, Direct::Off)
            .unwrap();
        let mut bytes = [7; 10];
        other.file().read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, *b"\0\0\0\0\0\0\0\0\0x");
        drop((one, other));
        assert!(matches!(
            session.find_part(&name("p")),
            Ok(PartState::Part(_))
        ));
        assert!(matches!(
            session.find_part(&name("q")),
            Ok(PartState::Nothing)
        ));
    }

    #[test]
    fn what_a_beginning_has_made_is_taken_back_unless_somebody_has_something_in_it() {
        let (home, root) = place();
        let has_job = || home.path().join(name_of(JOB).as_os_str()).exists();
        let made = make(job(&root).fd(), &own_name("a")).unwrap();
        assert!(SharedJobDirectory::undo_begin(&root, JOB, "a") && !has_job());
        drop(made);
        let session = begin(&root, "b");
        assert!(
            !SharedJobDirectory::undo_begin(&root, JOB, "a") && has_job(),
            "another session has begun"
        );
        drop(session);
        close(&job(&root), &root);
        assert!(!has_job());
    }
}
