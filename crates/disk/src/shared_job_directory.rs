//! The directory of a job that receivers on several hosts write to one file system, and its epochs.
//!
//! No host can look up the processes of another, a file lock may hold within one host only, and no storage writes only
//! if nobody else has taken over. What holds everywhere is that a directory which has been removed takes no new
//! entries, and that what has no name cannot be renamed. So all that has no final name yet lies below a directory of
//! its epoch, `.zmove-job-ID/.zmove-epoch-N` in the target: in a directory of each session's own, and the parts of
//! large files, which several receivers write, in that of the epoch. A session begins by removing those of all older
//! epochs with all that is in them. A receiver that was stopped meanwhile and goes on later can neither create nor
//! rename; what it has open has no name.
//!
//! ```text
//!  session of epoch N                        session of epoch M > N
//!  1  mkdir epoch-N, open it                 1  mkdir epoch-M, open it
//!  2  a newer one there? then it gives up    2  a newer one there? no
//!  3  removes all older ones                 3  removes epoch-N
//! ```
//!
//! **Invariant:** when a session of epoch M has begun, no session of an older one creates or names anything. Each makes
//! its directory before it looks (Dekker): either N's look came after M's mkdir, and N gives up; or it came before,
//! then so did N's mkdir and open, and M's look, which comes after M's mkdir, finds epoch-N and removes the very
//! directory that N has open. This asks of a shared file system that a directory which this host has just made an entry
//! in is listed with what others had made before; those that several clients may write at a time do that.
//!
//! A part of a large file is made once in an epoch. When it gets its final name, a mark takes the place of its name
//! here, so nobody begins it again, and what receivers record of it is never of two files: the inode of the first could
//! be another's by then.
//!
//! Directories of the target itself are made under their final names: another receiver that has come first is no
//! error. One that was fenced off may make an empty one late, and nothing else.
//!
//! All directories of a job belong to the receiver's user and are closed to all others (0700). The end of a job is an
//! epoch after the last one, so it fences off all; then the directory goes. If the head of a job has died, the next
//! session that finds the directory removes it ([`heartbeats`]).

mod epoch_session;
mod heartbeats;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, Dir, Mode};
use rustix::io::Errno;
use thiserror::Error;
use zmove_types::{Beginning, Name, RelPath, SharedJobId};

use self::epoch_session::{EPOCH_PREFIX, epoch_name, epochs_in, is_dead};
use self::heartbeats::HEARTBEAT_PREFIX;
use crate::entry::xattrs::Descriptor;
use crate::entry::{FileIdentity, number_at, set_file_mtime};
use crate::hidden::own_process;
use crate::inheritance::give_nothing;
use crate::lease::Lease;
use crate::remove::{RemovalBudget, remove_entries_within};
use crate::shared_job_names::JOB_PREFIX;
use crate::tree::{DIRECTORY, Tree};

pub use self::epoch_session::{EpochSession, FENCED, GroupOfNew, PART_GONE, PartFound};
pub use self::heartbeats::{DEAD_AFTER, Heartbeat, Sign, WatchedJob, jobs_in};

/// The directory of a job.
#[derive(Debug)]
pub struct SharedJobDirectory {
    directory: Arc<OwnedFd>,
}

/// Why a session cannot have a part in an epoch.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EpochError {
    /// A newer epoch has begun.
    #[error(
        "its push has ended, or a later one has taken its place (epoch {newest} of the job has begun)"
    )]
    Fenced {
        /// The newest epoch.
        newest: u64,
    },
    /// The job has ended.
    #[error("the job has ended")]
    Ended,
    /// The job has no directory here, and may not begin.
    #[error("the job is not under way")]
    NotUnderWay,
    /// The directory belongs to another user.
    #[error("the directory of the job belongs to another user")]
    OfAnotherUser,
    /// What an older epoch has made cannot be removed.
    #[error("remove what epoch {epoch} has left: {source}")]
    Older {
        /// The epoch.
        epoch: u64,
        /// The system's error.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for EpochError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Begins as all hidden names do: what hides in a directory goes only with one that is hidden itself.
const OWN_PREFIX: &str = ".zmove-";
/// The epoch that stands for the end of a job.
const END: u64 = u64::MAX;
/// How the names in the directory of a job begin: epochs, journals of receivers, heartbeats.
const PREFIXES_INSIDE: [&str; 3] = [EPOCH_PREFIX, JOURNAL_PREFIX, HEARTBEAT_PREFIX];
/// The beginning of the names of journals in the directory of a job.
pub const JOURNAL_PREFIX: &str = "journal-";
/// How long a directory that has just been made on another host may take to be seen here.
pub const UNSEEN_MAX: Duration = Duration::from_secs(2);
/// How soon one looks again for it.
pub const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

fn own_name(own: &str) -> String {
    format!("{OWN_PREFIX}{}-{own}", own_process())
}

fn name_of(job: SharedJobId) -> Name {
    Name::from_bytes(format!("{JOB_PREFIX}{job}").as_bytes()).expect("an id is short")
}

/// Makes a directory that is closed to others and gives nothing to what is made in it, or takes the one that is there;
/// opens it.
fn make(parent: &OwnedFd, name: &Name) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name.as_os_str(), Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    open(parent, name)
}

fn open(parent: &OwnedFd, name: &Name) -> io::Result<OwnedFd> {
    let directory = rustix::fs::openat(parent, name.as_os_str(), DIRECTORY, Mode::empty())?;
    // what is in it is believed
    if rustix::fs::fstat(&directory)?.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::PERM.into());
    }
    // what makes it on another host may be just about to do the same
    give_nothing(directory.as_fd())?;
    Ok(directory)
}

/// Whether this user has made a directory as that of a job. Whoever may rename in a target could give its name to
/// another directory of this user, to have that removed.
fn has_been_made_here(directory: &OwnedFd) -> io::Result<bool> {
    let found = rustix::fs::fstat(directory)?;
    let is_closed = Mode::from_raw_mode(found.st_mode)
        .difference(Mode::RWXU)
        .is_empty();
    if found.st_uid != rustix::process::geteuid().as_raw() || !is_closed {
        return Ok(false);
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let is_ours = PREFIXES_INSIDE
            .iter()
            .any(|prefix| name.starts_with(prefix.as_bytes()));
        if !is_ours && name != b"." && name != b".." {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_of_another_user(parent: &OwnedFd, name: &Name) -> bool {
    let found = rustix::fs::statat(parent, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| found.st_uid != rustix::process::geteuid().as_raw())
}

impl SharedJobDirectory {
    /// Opens the directory of a job in a target.
    ///
    /// # Errors
    /// See [`EpochError`].
    pub fn open(
        root: &Arc<OwnedFd>,
        job: SharedJobId,
        beginning: Beginning,
    ) -> Result<Self, EpochError> {
        let name = name_of(job);
        let began = Instant::now();
        let directory = loop {
            let opened = match beginning {
                Beginning::Allowed => make(root, &name),
                Beginning::UnderWay => open(root, &name),
            };
            match opened {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if began.elapsed() >= UNSEEN_MAX {
                        return Err(EpochError::NotUnderWay);
                    }
                    std::thread::sleep(LOOK_AGAIN_AFTER);
                }
                Err(error)
                    if error.kind() == io::ErrorKind::PermissionDenied
                        && is_of_another_user(root, &name) =>
                {
                    return Err(EpochError::OfAnotherUser);
                }
                opened => break opened?,
            }
        };
        Ok(Self {
            directory: Arc::new(directory),
        })
    }

    /// The name of the directory of a job.
    #[must_use]
    pub fn name(job: SharedJobId) -> Name {
        name_of(job)
    }

    /// Whether this user has made the directory of a job, so that [`end_dead`](Self::end_dead) removes it.
    #[must_use]
    pub fn is_own(root: &OwnedFd, job: SharedJobId) -> bool {
        let name = name_of(job);
        let opened = rustix::fs::openat(root, name.as_os_str(), DIRECTORY, Mode::empty());
        opened.is_ok_and(|opened| has_been_made_here(&opened).unwrap_or(false))
    }

    /// The directory.
    #[must_use]
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.directory
    }

    /// Takes back what a session has made that was to begin a job and has failed: nobody is to find that under way.
    /// Returns whether nothing is left of the job. Nothing is opened, which may be what has failed.
    pub fn take_back(root: &OwnedFd, job: SharedJobId, number: u64, own: &str) -> bool {
        let name = name_of(job);
        let epoch = Path::new(name.as_os_str()).join(epoch_name(number).as_os_str());
        for directory in [
            &epoch.join(own_name(own)),
            &epoch,
            Path::new(name.as_os_str()),
        ] {
            // what others have something in stays
            let _best_effort = rustix::fs::unlinkat(root, directory, AtFlags::REMOVEDIR);
        }
        let left = rustix::fs::statat(root, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
        left.is_err_and(|error| error == Errno::NOENT)
    }

    /// Begins a session's part in an epoch: from now on no older one changes anything. `own` tells the session apart
    /// from all others that there ever are. Gives up on what an older epoch goes on making after `patience`.
    ///
    /// # Errors
    /// See [`EpochError`].
    pub fn begin(
        &self,
        number: u64,
        own: &str,
        patience: Duration,
    ) -> Result<EpochSession, EpochError> {
        self.try_to_begin(number, own, patience)
            .map_err(|failed| self.why(failed, number))
    }

    fn try_to_begin(
        &self,
        number: u64,
        own: &str,
        patience: Duration,
    ) -> Result<EpochSession, EpochError> {
        let directory = make(&self.directory, &epoch_name(number))?;
        self.fence(number, patience)?;
        let own_name =
            Name::from_bytes(own_name(own).as_bytes()).map_err(|_too_long| Errno::NAMETOOLONG)?;
        let own = make(&directory, &own_name)?;
        Ok(EpochSession::new(
            (Arc::clone(&self.directory), number),
            directory,
            (own_name, own),
        )?)
    }

    /// Looks for newer epochs, then removes older ones. To be called when the directory of this one has been made.
    fn fence(&self, number: u64, patience: Duration) -> Result<(), EpochError> {
        let epochs = self.epochs()?;
        if let Err(over) = goes_on(number, &epochs) {
            let _of_nothing = rustix::fs::unlinkat(
                &self.directory,
                epoch_name(number).as_os_str(),
                AtFlags::REMOVEDIR,
            );
            if matches!(over, EpochError::Ended) {
                // whoever has ended it may have been killed before it had removed all
                let _best_effort = self.clear(patience);
            }
            return Err(over);
        }
        let mut older = epochs.into_iter().filter(|epoch| *epoch < number);
        older.try_for_each(|epoch| {
            remove_for_good(&self.directory, &epoch_name(epoch), patience)
                .map_err(|source| EpochError::Older { epoch, source })
        })
    }

    /// Why something in the directory failed: where that is gone, or that of the epoch, by what is there now.
    fn why(&self, failed: EpochError, number: u64) -> EpochError {
        match failed {
            EpochError::Io(error) if is_dead(&error) => match self.epochs() {
                Ok(epochs) => goes_on(number, &epochs).err().unwrap_or(EpochError::Ended),
                Err(error) if is_dead(&error) => EpochError::Ended,
                Err(error) => EpochError::Io(error),
            },
            failed => failed,
        }
    }

    /// The epochs that have begun and are not removed.
    fn epochs(&self) -> io::Result<Vec<u64>> {
        epochs_in(&self.directory)
    }

    /// Ends the job with this epoch, which is to be its newest, and removes its directory from the target. To be done
    /// again by whoever has no answer.
    ///
    /// # Errors
    /// See [`EpochError`].
    pub fn close(
        &self,
        lease: &Lease,
        root: &OwnedFd,
        job: SharedJobId,
        number: u64,
        patience: Duration,
    ) -> Result<(), EpochError> {
        let closed = || {
            let mut epochs = self.epochs()?;
            epochs.retain(|epoch| *epoch != END);
            goes_on(number, &epochs)?;
            self.end(patience)
        };
        closed().map_err(|failed| self.why(failed, number))?;
        // what is left goes with the next session that comes here
        let _best_effort = self.remove(lease, root, job, patience);
        Ok(())
    }

    /// Ends a job that nobody leads any more, and removes its directory from the target, which may take until
    /// `patience` is over.
    ///
    /// # Errors
    /// See [`EpochError`].
    pub fn end_dead(
        lease: &Lease,
        root: &Arc<OwnedFd>,
        job: SharedJobId,
        patience: Duration,
    ) -> Result<(), EpochError> {
        let directory =
            rustix::fs::openat(root, name_of(job).as_os_str(), DIRECTORY, Mode::empty())?;
        if !has_been_made_here(&directory)? {
            return Err(EpochError::OfAnotherUser);
        }
        let directory = Self {
            directory: Arc::new(directory),
        };
        directory.end(patience)?;
        directory.remove(lease, root, job, patience)
    }

    fn end(&self, patience: Duration) -> Result<(), EpochError> {
        // nobody begins, or goes on, from here
        make(&self.directory, &epoch_name(END))?;
        // it is to be there after a crash if anything of the job is missing
        rustix::fs::fsync(&self.directory)?;
        self.clear(patience)
    }

    /// Removes the directory of a job that has ended from its target, which keeps its time and its mode. Sessions that
    /// come late may put something into it until they find that it has ended.
    fn remove(
        &self,
        lease: &Lease,
        root: &OwnedFd,
        job: SharedJobId,
        patience: Duration,
    ) -> Result<(), EpochError> {
        let began = Instant::now();
        loop {
            match self.try_to_remove(lease, root, job) {
                Err(error)
                    if error.kind() == io::ErrorKind::DirectoryNotEmpty
                        && began.elapsed() < patience =>
                {
                    self.end(patience)?;
                }
                removed => return Ok(removed?),
            }
        }
    }

    fn try_to_remove(&self, lease: &Lease, root: &OwnedFd, job: SharedJobId) -> io::Result<()> {
        let before = FileIdentity::of(root)?;
        let gone = |removed| match removed {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        };
        let remove = |directory: &OwnedFd, name: Name| {
            gone(rustix::fs::unlinkat(
                directory,
                name.as_os_str(),
                AtFlags::REMOVEDIR,
            ))
        };
        // the mode of the target is set by now, and may forbid its owner to change what is in it
        let mode = Mode::from_raw_mode(rustix::fs::fstat(root)?.st_mode);
        let access = rustix::fs::accessat(
            root,
            ".",
            Access::WRITE_OK | Access::EXEC_OK,
            AtFlags::EACCESS,
        );
        let is_closed = access == Err(Errno::ACCESS);
        // One for all of it: whoever opens up a directory closes it again.
        let permit = lease.permit()?;
        if is_closed {
            Descriptor::Open(root.as_fd()).set_mode(&permit, mode | Mode::RWXU)?;
        }
        let removed =
            remove(&self.directory, epoch_name(END)).and_then(|()| remove(root, name_of(job)));
        if is_closed {
            Descriptor::Open(root.as_fd()).set_mode(&permit, mode)?;
        }
        drop(permit);
        removed?;
        let _best_effort = set_file_mtime(lease.permit()?, root, before.mtime);
        Ok(())
    }

    /// Removes what there is of a job that has ended, but for the mark of its end.
    fn clear(&self, patience: Duration) -> Result<(), EpochError> {
        self.fence(END, patience)?;
        for entry in Dir::read_from(&self.directory)? {
            let entry = entry?;
            let Ok(name) = Name::from_bytes(entry.file_name().to_bytes()) else {
                continue;
            };
            if name != epoch_name(END) {
                remove_for_good(&self.directory, &name, patience)?;
            }
        }
        Ok(rustix::fs::fsync(&self.directory)?)
    }
}

/// Whether a session of an epoch goes on where these have begun.
fn goes_on(number: u64, epochs: &[u64]) -> Result<(), EpochError> {
    match epochs.iter().copied().filter(|epoch| *epoch > number).max() {
        None => Ok(()),
        Some(END) => Err(EpochError::Ended),
        Some(newest) => Err(EpochError::Fenced { newest }),
    }
}

/// Removes a directory with all that is in it, and what is put into it meanwhile.
fn remove_for_good(parent: &Arc<OwnedFd>, name: &Name, patience: Duration) -> io::Result<()> {
    let began = Instant::now();
    let tree = Tree::at(Arc::clone(parent));
    loop {
        let mut failed = None;
        let (stops, names) = (|| began.elapsed() > patience, std::iter::once(name));
        let fails = |_path, error| failed = Some(error);
        remove_entries_within(
            &RemovalBudget::new(u64::MAX),
            stops,
            &tree,
            &RelPath::root(),
            names,
            fails,
        );
        match number_at(parent, name.as_os_str()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) if began.elapsed() < patience => std::thread::sleep(LOOK_AGAIN_AFTER),
            Ok(_) => return Err(failed.unwrap_or_else(|| Errno::NOTEMPTY.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{FileIdentity, set_file_mtime};
    use crate::file_io::data_file::Direct;
    use crate::new_files::NewFiles;
    use crate::publish::Replace;
    use crate::shared_job_names::is_shared_job_name;
    use crate::staging_place::StagingPlace;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use zmove_types::Timestamp;

    const JOB: SharedJobId = SharedJobId([7; 16]);
    const NOT_LONG: Duration = Duration::from_secs(10);

    fn place() -> (tempfile::TempDir, Arc<OwnedFd>) {
        let home = tempfile::tempdir().unwrap();
        let fd = rustix::fs::open(home.path(), DIRECTORY, Mode::empty()).unwrap();
        (home, Arc::new(fd))
    }

    fn job(root: &Arc<OwnedFd>) -> SharedJobDirectory {
        SharedJobDirectory::open(root, JOB, Beginning::Allowed).unwrap()
    }

    fn close(
        directory: &SharedJobDirectory,
        root: &OwnedFd,
        number: u64,
    ) -> Result<(), EpochError> {
        directory.close(&Lease::constant(), root, JOB, number, NOT_LONG)
    }

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn create(epoch: &Arc<EpochSession>, root: &Arc<OwnedFd>) -> io::Result<Name> {
        let staging_place = StagingPlace::Epoch(Arc::clone(epoch));
        let staged = staging_place.create(root, &NewFiles::default(), 0o600)?;
        Ok(staged.into_hidden_name().unwrap())
    }

    #[track_caller]
    fn assert_fenced<T: std::fmt::Debug>(done: io::Result<T>) {
        assert_eq!(Errno::from_io_error(&done.unwrap_err()), Some(FENCED));
    }

    /// Sessions that were stopped go on when the next epoch has begun.
    #[test]
    fn an_older_epoch_neither_creates_nor_names_anything() {
        let (home, root) = place();
        let job = job(&root);
        let old = Arc::new(job.begin(1, "a", NOT_LONG).unwrap());
        let hidden = create(&old, &root).unwrap();
        let part = old
            .open_part(&Lease::constant(), &name("part"), 10, Direct::Off)
            .unwrap();
        let new = Arc::new(job.begin(2, "b", NOT_LONG).unwrap());
        assert_fenced(old.publish(
            &Lease::constant(),
            &hidden,
            (&root, &name("f")),
            Replace::Existing,
        ));
        assert_fenced(create(&old, &root));
        assert_fenced(old.open_part(&Lease::constant(), &name("other"), 10, Direct::Off));
        assert_fenced(old.has_part(&name("part"), part.file()));
        assert!(
            old.publish_part(
                &Lease::constant(),
                (&name("part"), part.file()),
                (&root, &name("p")),
                Replace::Existing
            )
            .is_err()
        );
        assert_fenced(old.place(
            &Lease::constant(),
            (&root, &name("l")),
            (Replace::Existing, GroupOfNew::Own),
            |(directory, name)| Ok(rustix::fs::symlinkat("x", directory, name.as_os_str())?),
        ));
        let time = || FileIdentity::of(&root).unwrap().mtime;
        let [before, of_old, of_new] = [0, 1, 2].map(|nanos| Timestamp { nanos, ..time() });
        for (epoch, given, kept) in [(&old, of_old, before), (&new, of_new, of_new)] {
            set_file_mtime(crate::Permit::for_hidden(), &root, before).unwrap();
            epoch.give_back_time(&Lease::constant(), &root, given);
            assert_eq!(time(), kept);
        }
        assert!(old.is_fenced() && !new.is_fenced());
        drop((old, part));
        let hidden = create(&new, &root).unwrap();
        new.publish(
            &Lease::constant(),
            &hidden,
            (&root, &name("f")),
            Replace::Existing,
        )
        .unwrap();
        let names = std::fs::read_dir(home.path()).unwrap().count();
        assert_eq!(names, 2, "the job's directory and one file");
    }

    #[test]
    fn an_epoch_that_was_fenced_off_neither_begins_nor_ends_the_job() {
        let (_home, root) = place();
        let directory = job(&root);
        let _newer = directory.begin(2, "a", NOT_LONG).unwrap();
        let refused = directory.begin(1, "b", NOT_LONG);
        assert!(
            matches!(refused, Err(EpochError::Fenced { newest: 2 })),
            "{refused:?}"
        );
        assert!(matches!(
            close(&directory, &root, 1),
            Err(EpochError::Fenced { newest: 2 })
        ));
        let unknown = SharedJobDirectory::open(&root, SharedJobId([8; 16]), Beginning::UnderWay);
        assert!(
            matches!(unknown, Err(EpochError::NotUnderWay)),
            "{unknown:?}"
        );
    }

    #[test]
    fn the_end_of_a_job_removes_its_directory_and_fences_off_its_sessions() {
        let (home, root) = place();
        let directory = job(&root);
        let session = directory.begin(2, "a", NOT_LONG).unwrap();
        let path = home.path().join(format!("{JOB_PREFIX}{JOB}"));
        std::fs::write(path.join("journal-2-1"), "x").unwrap();
        let time = Timestamp {
            seconds: 1_000_000_000,
            nanos: 5,
        };
        set_file_mtime(crate::Permit::for_hidden(), &root, time).unwrap();
        close(&directory, &root, 2).unwrap();
        assert!(session.is_fenced() && !path.exists());
        assert_eq!(FileIdentity::of(&root).unwrap().mtime, time);
        assert!(matches!(
            close(&directory, &root, 2),
            Err(EpochError::Ended)
        ));
        let late = SharedJobDirectory::open(&root, JOB, Beginning::UnderWay);
        assert!(matches!(late, Err(EpochError::NotUnderWay)), "{late:?}");
    }

    /// Whoever has ended it was killed before it had removed all.
    #[test]
    fn a_job_that_has_begun_to_end_is_not_begun_again() {
        let (home, root) = place();
        let directory = job(&root);
        drop(directory.begin(2, "a", NOT_LONG).unwrap());
        let path = home.path().join(format!("{JOB_PREFIX}{JOB}"));
        std::fs::create_dir(path.join(epoch_name(END).as_os_str())).unwrap();
        std::fs::create_dir_all(path.join(".zmove-epoch-2/.zmove-a")).unwrap();
        std::fs::write(path.join("journal-2-1"), "x").unwrap();
        for epoch in [1, 2, 3] {
            let late = job(&root).begin(epoch, "late", NOT_LONG);
            assert!(matches!(late, Err(EpochError::Ended)), "{late:?}");
        }
        let left = std::fs::read_dir(&path).unwrap();
        let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [epoch_name(END).as_os_str()]);
        SharedJobDirectory::end_dead(&Lease::constant(), &root, JOB, NOT_LONG).unwrap();
        assert!(!path.exists());
    }

    /// The client of a network file system asks again where the answer was lost.
    #[test]
    fn a_name_that_was_given_although_the_call_failed_is_told_as_given() {
        let (home, root) = place();
        let epoch = Arc::new(job(&root).begin(1, "a", NOT_LONG).unwrap());
        let at = |text: &str| home.path().join(text);
        let own = |hidden: &Name| format!("/proc/self/fd/{}/{hidden}", epoch.own().as_raw_fd());
        let look = |hidden: &Name, staged, error: Errno| {
            epoch.look_after_failure((staged, hidden), (&root, &name("f")), error.into())
        };
        let hidden = create(&epoch, &root).unwrap();
        let staged = number_at(epoch.own(), hidden.as_os_str()).unwrap();
        assert!(look(&hidden, staged, Errno::NOENT).is_err(), "not yet");
        std::fs::rename(own(&hidden), at("f")).unwrap();
        look(&hidden, staged, Errno::NOENT).unwrap();
        // without the flag that replaces nothing it is a link
        std::fs::hard_link(at("f"), own(&hidden)).unwrap();
        look(&hidden, staged, Errno::EXIST).unwrap();
        assert_eq!(at("f").metadata().unwrap().nlink(), 1);
    }

    /// Somebody who cleans by hand takes a file that waits for its name for rubbish.
    #[test]
    fn a_file_that_somebody_else_has_removed_is_not_told_as_named() {
        let (home, root) = place();
        let epoch = Arc::new(job(&root).begin(1, "a", NOT_LONG).unwrap());
        for replace in [Replace::Existing, Replace::Nothing] {
            let hidden = create(&epoch, &root).unwrap();
            rustix::fs::unlinkat(epoch.own(), hidden.as_os_str(), AtFlags::empty()).unwrap();
            let told = epoch
                .publish(&Lease::constant(), &hidden, (&root, &name("f")), replace)
                .unwrap_err();
            assert_eq!(told.kind(), io::ErrorKind::NotFound);
            assert!(!home.path().join("f").exists() && !epoch.is_fenced());
        }
    }

    /// Whoever looks before its own directory is there sees nothing of another that does the same.
    #[test]
    fn of_epochs_that_begin_at_once_only_the_newest_goes_on() {
        let (_home, root) = place();
        let directory = job(&root);
        for round in 0..400_u64 {
            let numbers = [3 * round + 1, 3 * round + 2, 3 * round + 2 + round % 2];
            let (begin, begun) = (Barrier::new(numbers.len()), Barrier::new(numbers.len()));
            let went_on: Vec<_> = std::thread::scope(|scope| {
                let sessions = numbers.iter().enumerate().map(|(session, number)| {
                    let (root, directory, begin, begun) = (&root, &directory, &begin, &begun);
                    scope.spawn(move || {
                        begin.wait();
                        let epoch = directory.begin(*number, &session.to_string(), NOT_LONG);
                        begun.wait();
                        let epoch = Arc::new(epoch.ok()?);
                        create(&epoch, root).is_ok().then_some(*number)
                    })
                });
                let sessions: Vec<_> = sessions.collect();
                sessions
                    .into_iter()
                    .filter_map(|session| session.join().unwrap())
                    .collect()
            });
            let newest = numbers[2];
            assert!(went_on.contains(&newest), "round {round}: {went_on:?}");
            assert!(
                went_on.iter().all(|number| *number == newest),
                "round {round}: {went_on:?}"
            );
        }
    }

    /// A session that is under way makes new entries as fast as they are removed.
    #[test]
    fn what_an_older_epoch_goes_on_making_is_removed_until_it_cannot() {
        let (home, root) = place();
        let job = job(&root);
        let old = Arc::new(job.begin(1, "a", NOT_LONG).unwrap());
        let made = AtomicUsize::new(0);
        let is_over = AtomicBool::new(false);
        let begun = std::thread::scope(|scope| {
            let making = scope.spawn(|| {
                while create(&old, &root).is_ok() && !is_over.load(Ordering::Relaxed) {
                    made.fetch_add(1, Ordering::Relaxed);
                }
            });
            while made.load(Ordering::Relaxed) == 0 && !making.is_finished() {
                std::thread::yield_now();
            }
            let begun = job.begin(2, "b", NOT_LONG);
            is_over.store(true, Ordering::Relaxed);
            begun
        });
        begun.unwrap();
        assert!(made.load(Ordering::Relaxed) > 0);
        let directory = home.path().join(format!("{JOB_PREFIX}{JOB}"));
        assert!(!directory.join(epoch_name(1).as_os_str()).exists());
    }

    #[test]
    fn directories_of_a_job_are_closed_and_give_nothing_away() {
        let (home, root) = place();
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o2777)).unwrap();
        let acl = crate::entry::xattrs::tests::acl_of_a_user();
        let has_acl = rustix::fs::fsetxattr(
            &root,
            crate::entry::xattrs::DEFAULT_NAME,
            &acl,
            rustix::fs::XattrFlags::empty(),
        );
        let epoch = job(&root).begin(1, "a", NOT_LONG).unwrap();
        for directory in [&epoch.job, &epoch.directory, &epoch.own] {
            let there = File::from(directory.try_clone().unwrap())
                .metadata()
                .unwrap();
            assert_eq!(there.mode() & 0o7777, 0o700);
            if has_acl.is_ok() {
                assert_eq!(
                    crate::entry::xattrs::default_acl(directory.as_fd()).unwrap(),
                    None
                );
            }
        }
    }

    /// The job may be another host's, at work for weeks, or its directory restored from a backup.
    #[test]
    fn a_job_s_directory_is_known_by_its_name_and_stays() {
        let (home, root) = place();
        let _epoch = job(&root).begin(1, "a", NOT_LONG).unwrap();
        let job_name = name(&format!("{JOB_PREFIX}{JOB}"));
        assert!(is_shared_job_name(job_name.as_bytes()));
        let longer = format!("{JOB_PREFIX}{JOB}07");
        for other in [".zmove-job-", ".zmove-job-7", &longer, &longer[1..44]] {
            assert!(!is_shared_job_name(other.as_bytes()), "{other}");
        }
        let jobs = crate::abandoned::remove_abandoned(
            &Tree::at(Arc::clone(&root)),
            &RelPath::root(),
            root.as_fd(),
        );
        assert_eq!(jobs.unwrap(), [JOB]);
        assert_eq!(jobs_in(root.as_fd()).unwrap(), [JOB]);
        assert!(home.path().join(job_name.as_os_str()).exists());
    }

    /// Nothing can be renamed into it.
    #[test]
    fn a_directory_on_another_file_system_than_the_job_is_refused() {
        let (_home, root) = place();
        let epoch = job(&root).begin(1, "a", NOT_LONG).unwrap();
        epoch.check_device(&root).unwrap();
        let refused = epoch
            .check_device(File::open("/proc").unwrap())
            .unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::XDEV));
    }

    #[test]
    fn a_part_that_has_been_given_up_is_gone_and_is_not_begun_again() {
        let (home, root) = place();
        let [one, other] = ["a", "b"].map(|own| job(&root).begin(1, own, NOT_LONG).unwrap());
        let part = name("p");
        let open =
            |epoch: &EpochSession| epoch.open_part(&Lease::constant(), &part, 4, Direct::Off);
        let [of_one, of_other] = [&one, &other].map(|epoch| open(epoch).unwrap());
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
            matches!(found, PartFound::GivenUp { errno } if errno == Errno::NOSPC.raw_os_error())
        );
        // the reason of the first stays
        other
            .give_up_part(&part, of_other.file(), Errno::DQUOT)
            .unwrap();
        let found = one.find_part(&part).unwrap();
        assert!(
            matches!(found, PartFound::GivenUp { errno } if errno == Errno::NOSPC.raw_os_error())
        );
        drop(home);
    }

    /// One committer is stopped before its rename; meanwhile another commits, and work is handed out twice.
    #[test]
    fn a_part_that_has_been_committed_is_not_begun_again() {
        let (home, root) = place();
        let [slow, fast, late] =
            ["a", "b", "c"].map(|own| job(&root).begin(1, own, NOT_LONG).unwrap());
        let part = name("p");
        let open =
            |epoch: &EpochSession| epoch.open_part(&Lease::constant(), &part, 4, Direct::Off);
        let [of_slow, of_fast] = [&slow, &fast].map(|epoch| open(epoch).unwrap());
        assert!(matches!(late.find_part(&part), Ok(PartFound::Part(_))));
        std::os::unix::fs::FileExt::write_all_at(of_fast.file(), b"data", 0).unwrap();
        let file_name = name("f");
        let target = (&*root, &file_name);
        fast.publish_part(
            &Lease::constant(),
            (&part, of_fast.file()),
            target,
            Replace::Existing,
        )
        .unwrap();
        assert_eq!(
            Errno::from_io_error(&open(&late).unwrap_err()),
            Some(PART_GONE)
        );
        let there = home.path().join("f");
        let expected = there.metadata().unwrap().ino();
        let is_told = |epoch: &EpochSession| matches!(epoch.find_part(&part), Ok(PartFound::Committed { inode }) if inode == expected);
        assert!(is_told(&late));
        slow.publish_part(
            &Lease::constant(),
            (&part, of_slow.file()),
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
                (&part, of_slow.file()),
                target,
                Replace::Existing,
            )
            .unwrap_err();
        assert!(gone.kind() == io::ErrorKind::NotFound && is_told(&slow) && !there.exists());
    }

    #[test]
    fn a_part_is_as_long_as_its_file_whoever_opens_it_and_keeps_what_others_have_written() {
        use std::os::unix::fs::FileExt;
        let (_home, root) = place();
        let epoch = job(&root).begin(1, "a", NOT_LONG).unwrap();
        let one = epoch
            .open_part(&Lease::constant(), &name("p"), 10, Direct::Off)
            .unwrap();
        one.file().write_all_at(b"x", 9).unwrap();
        let other = epoch
            .open_part(&Lease::constant(), &name("p"), 10, Direct::Off)
            .unwrap();
        let mut bytes = [7; 10];
        other.file().read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, *b"\0\0\0\0\0\0\0\0\0x");
        drop((one, other));
        assert!(matches!(
            epoch.find_part(&name("p")),
            Ok(PartFound::Part(_))
        ));
        assert!(matches!(
            epoch.find_part(&name("q")),
            Ok(PartFound::Nothing)
        ));
    }

    #[test]
    fn what_a_beginning_has_made_is_taken_back_unless_somebody_has_something_in_it() {
        let (home, root) = place();
        let has_job = || home.path().join(name_of(JOB).as_os_str()).exists();
        let epoch = make(job(&root).fd(), &epoch_name(3)).unwrap();
        rustix::fs::mkdirat(&epoch, own_name("a"), Mode::RWXU).unwrap();
        assert!(SharedJobDirectory::take_back(&root, JOB, 3, "a") && !has_job());
        let session = job(&root).begin(3, "b", NOT_LONG).unwrap();
        assert!(
            !SharedJobDirectory::take_back(&root, JOB, 3, "a") && has_job(),
            "another session has begun"
        );
        drop(session);
        close(&job(&root), &root, 3).unwrap();
        assert!(!has_job());
    }
}
