//! One session of a shared job. The session creates entries in its own directory inside the job's directory, and
//! renames them from there to their final names.
//!
//! **Invariant:** after the directory of the job has been removed, every attempt to create or rename an entry fails
//! with [`JOB_ENDED`].

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dev, FileType, OFlags};
use rustix::io::Errno;
use zmove_types::{FileNumber, Name, Timestamp};

use super::{SharedJobDirectory, make, open, short_name};
use crate::metadata::entry::xattrs::NameAt;
use crate::metadata::entry::{FileIdentity, number_at, number_of, set_file_mtime};
use crate::metadata::inheritance::Inheritance;
use crate::opening::by_name::{open_at, stat_at, unlink_at};
use crate::publishing::lease::Lease;
use crate::publishing::publish::{Replace, publish_across};
use crate::publishing::remove::remove_best_effort;
use crate::staging::hidden::make_hidden;
use crate::staging::new_files::NewFiles;
use crate::staging::staged::Staged;
use crate::storage::file_io::data_file::Direct;

/// The error of an operation that fails because the job has ended. No file system returns this error.
pub const JOB_ENDED: Errno = Errno::OWNERDEAD;

/// The error of opening a part that has its final name or was given up. Nothing may be written to such a part. No file
/// system returns this error.
pub const PART_GONE: Errno = Errno::ALREADY;

/// The state of a part, which is a job's temporary file for one large file.
#[derive(Debug)]
pub enum PartState {
    /// No receiver has created the part.
    Nothing,
    /// The part exists and has no final name. A receiver may be about to rename it ([`JobSession::retire_part`]).
    Part(File),
    /// The part was renamed to its final name. A symbolic link in its place (a mark) records that.
    Committed,
    /// The part was given up because it could not be written. A symbolic link in its place (a mark) records that.
    GivenUp {
        /// The system's error number of the failed write.
        errno: i32,
    },
}

/// The group of an entry that is created elsewhere and then renamed into a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewEntryGroup {
    /// The group that new entries inherit from the directory, if they inherit one.
    OfDirectory,
    /// The entry keeps its own group.
    Own,
}

/// One session of a job.
#[derive(Debug)]
pub struct JobSession {
    pub(super) job: Arc<OwnedFd>,
    /// The directory of the parts of large files, to which all sessions write.
    pub(super) parts: Arc<OwnedFd>,
    own_name: Name,
    /// The directory in which only this session creates entries.
    pub(super) own: Arc<OwnedFd>,
    device: Dev,
}

impl JobSession {
    pub(super) fn begin(job: &Arc<OwnedFd>, parts: &Name, own_name: Name) -> io::Result<Self> {
        let parts = open(job, parts)?;
        let own = make(job, &own_name)?;
        Ok(Self {
            job: Arc::clone(job),
            device: rustix::fs::fstat(&parts)?.st_dev,
            parts: Arc::new(parts),
            own_name,
            own: Arc::new(own),
        })
    }

    /// Returns the directory in which only this session creates entries.
    #[must_use]
    pub fn own(&self) -> &Arc<OwnedFd> {
        &self.own
    }

    /// Returns whether the job has ended. If it has, earlier results of this session may be invalid.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let there = number_at(&self.job, &self.own_name);
        let has_its_name = |there| number_of(&self.own).is_ok_and(|here| here == there);
        !there.is_ok_and(has_its_name)
    }

    /// Creates an entry in a directory of the job. Fails with [`JOB_ENDED`] if the job has ended.
    pub(crate) fn create<T>(&self, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        make().map_err(|error| self.job_ended_if_missing(error))
    }

    /// Creates an empty file in the session's directory, with at most the permissions in `mode`.
    ///
    /// # Errors
    /// Returns the system's error, `EPERM` if the directory does not permit renaming the file later, and
    /// [`JOB_ENDED`](crate::JOB_ENDED).
    pub fn create_file(&self, new_files: &NewFiles, mode: u32) -> io::Result<Staged> {
        self.create(|| Staged::create_in(&self.own, new_files, mode))
    }

    /// Renames an entry of a directory of the job to its final name. If the entry replaces another, the time of the
    /// directory is preserved, because a repeated rename may happen after the directory's final time was set. If
    /// another process sets that time between the two calls made here, the new time is lost.
    ///
    /// # Errors
    /// Returns the errors of [`publish_file`](crate::publish_file), and [`JOB_ENDED`](crate::JOB_ENDED).
    pub fn publish(
        &self,
        lease: &Lease,
        from: NameAt<'_>,
        place @ NameAt { directory, name }: NameAt<'_>,
        replace: Replace,
    ) -> io::Result<()> {
        let staged = number_at(from.directory, from.name)
            .map_err(|error| self.job_ended_if_missing(error))?;
        let is_there = number_at(directory, name).is_ok();
        let before = is_there.then(|| FileIdentity::of(directory)).transpose()?;
        let moved = publish_across(lease, from, place, replace);
        moved.or_else(|error| self.check_failed_rename(staged, from, place, error))?;
        if let Some(before) = before {
            self.restore_time(lease, directory, before.mtime);
        }
        Ok(())
    }

    /// Restores the time of a directory in which an entry was replaced. After the end of the job, the time is not
    /// restored, because a user may have set it since.
    pub(super) fn restore_time(&self, lease: &Lease, directory: &OwnedFd, time: Timestamp) {
        if !self.has_ended()
            && let Ok(permit) = lease.permit()
        {
            // The error is ignored. A process that may not set this time does not set the times of other directories
            // either.
            let _best_effort = set_file_mtime(permit, directory, time);
        }
    }

    /// Checks after a failed rename whether the entry has its final name. If the response to a rename is lost, the
    /// client of a network file system repeats the request. The second request fails because the old name is missing or
    /// the new name exists.
    pub(super) fn check_failed_rename(
        &self,
        staged: FileNumber,
        NameAt {
            directory: within,
            name: hidden,
        }: NameAt<'_>,
        NameAt { directory, name }: NameAt<'_>,
        error: io::Error,
    ) -> io::Result<()> {
        if number_at(directory, name).is_ok_and(|there| there == staged) {
            // The hidden name may still exist if the entry was linked twice.
            let _goes_with_the_job = unlink_at(within, hidden);
            return Ok(());
        }
        let is_file_system_gone = number_at(within, hidden).is_err_and(|error| is_missing(&error));
        Err(if is_file_system_gone {
            self.job_ended_if_missing(error)
        } else {
            error
        })
    }

    /// Returns [`JOB_ENDED`] if an entry was not found because the job has ended. If something else has removed the
    /// entry, returns the error unchanged.
    fn job_ended_if_missing(&self, error: io::Error) -> io::Error {
        if is_missing(&error) && self.has_ended() {
            JOB_ENDED.into()
        } else {
            error
        }
    }

    /// Calls `make` to create an entry other than a regular file under a temporary name, then renames it to its final
    /// name.
    ///
    /// # Errors
    /// Returns the errors of `make`, the system's error, and [`JOB_ENDED`].
    pub fn place<T>(
        &self,
        lease: &Lease,
        place @ NameAt { directory, name: _ }: NameAt<'_>,
        replace: Replace,
        group: NewEntryGroup,
        make: impl FnOnce(NameAt<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let free = |name: &Name| match number_at(&self.own, name) {
            Ok(_) => Err(Errno::EXIST),
            Err(_) => Ok(()),
        };
        let (fresh, ()) = make_hidden(self.own.as_fd(), free)?;
        let from = NameAt::new(&self.own, &fresh);
        let placed = self.create(|| make(from)).and_then(|made| {
            if group == NewEntryGroup::OfDirectory {
                Inheritance::of(directory.as_fd())?.apply_group_to(&self.own, &fresh)?;
            }
            self.publish(lease, from, place, replace)?;
            Ok(made)
        });
        // A rename does nothing if both names are links to the same file.
        let _gone_as_a_rule = unlink_at(&self.own, &fresh);
        placed
    }

    /// Opens the part of a large file, and creates it if it does not exist. Receivers on other hosts may write the same
    /// part.
    ///
    /// # Errors
    /// Returns the system's error, [`JOB_ENDED`] or [`PART_GONE`].
    pub fn open_part(
        &self,
        lease: &Lease,
        name: &Name,
        bytes: u64,
        direct: Direct,
    ) -> io::Result<Staged> {
        let opened = self.create(|| Staged::shared(lease, &self.parts, name, bytes, direct));
        opened.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::LOOP) => PART_GONE.into(),
            _ => error,
        })
    }

    /// Moves a part of a dead job into this job, if the part has this inode number. The part is removed from the dead
    /// job first, so that two jobs never share it. Returns whether this session has taken over the part.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn adopt_part(
        &self,
        dead: &SharedJobDirectory,
        name: &Name,
        inode: u64,
    ) -> io::Result<bool> {
        let path = Path::new(dead.parts.as_os_str()).join(name.as_os_str());
        let is_it = |found: &FileIdentity| found.regular && found.inode == inode;
        let found = match stat_at(dead.fd(), &path) {
            Err(Errno::NOENT) => return Ok(false),
            found => found?,
        };
        if !is_it(&FileIdentity::from_stat(&found)) {
            return Ok(false);
        }
        let take =
            |fresh: &Name| rustix::fs::renameat(dead.fd(), &path, &self.own, fresh.as_os_str());
        let fresh = match make_hidden(self.own.as_fd(), take) {
            // Another session has taken over the part first.
            Err(Errno::NOENT) => return Ok(false),
            taken => taken?.0,
        };
        let from = fresh.as_os_str();
        let to = name.as_os_str();
        let linked = rustix::fs::linkat(&self.own, from, &self.parts, to, AtFlags::empty());
        let _goes_with_the_session = unlink_at(&self.own, from);
        match linked {
            Ok(()) => Ok(is_it(&FileIdentity::at(&self.parts, name)?)),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the state of the part with this name. Does not create it.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn find_part(&self, name: &Name) -> io::Result<PartState> {
        match self.open_existing(name) {
            Err(Errno::NOENT | Errno::STALE) => Ok(PartState::Nothing),
            Err(Errno::LOOP) => self.read_mark(name),
            part => Ok(PartState::Part(part?)),
        }
    }

    fn open_existing(&self, name: &Name) -> rustix::io::Result<File> {
        let part = open_at(&self.parts, name, OFlags::RDWR | OFlags::NONBLOCK)?;
        let mode = rustix::fs::fstat(&part)?.st_mode;
        if FileType::from_raw_mode(mode) == FileType::RegularFile {
            Ok(part.into())
        } else {
            Err(Errno::INVAL)
        }
    }

    fn read_mark(&self, name: &Name) -> io::Result<PartState> {
        match rustix::fs::readlinkat(&self.parts, name.as_os_str(), Vec::new()) {
            Err(Errno::NOENT | Errno::STALE) => Ok(PartState::Nothing),
            Err(error) => Err(error.into()),
            Ok(mark) => {
                let text = mark.to_str().unwrap_or_default();
                if let Some(errno) = text.strip_prefix(GIVEN_UP) {
                    let errno = errno.parse().map_err(|_no_number| Errno::INVAL)?;
                    return Ok(PartState::GivenUp { errno });
                }
                match self.open_existing(&retired_name(name)) {
                    Err(Errno::NOENT | Errno::STALE) => Ok(PartState::Committed),
                    part => Ok(PartState::Part(part?)),
                }
            }
        }
    }

    /// Flushes the directory of the parts.
    ///
    /// # Errors
    /// Returns the system's error, or [`JOB_ENDED`].
    pub fn flush_part_names(&self) -> io::Result<()> {
        rustix::fs::fsync(&self.parts).map_err(|error| self.job_ended_if_missing(error.into()))
    }

    /// Replaces the name of a part with a mark, a symbolic link, before the part is published. `file` must be the
    /// opened part. After this call, the part has only its *retired* name, which the rename to the final name removes.
    /// So a file with the original name of a part has never had a final name, and other programs cannot have changed
    /// it. This operation is idempotent: the caller may retry it.
    ///
    /// # Errors
    /// Returns the system's error, or [`JOB_ENDED`]. The part must not be published in that case.
    pub fn retire_part(&self, part: &Name, file: &File) -> io::Result<()> {
        if self.has_name(part, file)? {
            let retired = retired_name(part);
            // The link is created by name. If a mark has already replaced the part, the name is a dangling symbolic
            // link. So a published file cannot get another name here.
            let linked = rustix::fs::linkat(
                &self.parts,
                part.as_os_str(),
                &self.parts,
                retired.as_os_str(),
                AtFlags::SYMLINK_FOLLOW,
            );
            match linked {
                // Another receiver has retired the part first.
                Ok(()) | Err(Errno::EXIST | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            self.write_mark(part, file, RETIRED)?;
        }
        self.flush_part_names()
    }

    /// Renames a part to its final name. `file` must be the opened part. This operation is idempotent: the caller may
    /// retry it.
    ///
    /// # Errors
    /// Returns the system's error, or [`JOB_ENDED`]. Also returns `ENOENT` if another receiver has published the part
    /// and a user has removed the file since.
    pub fn publish_part(
        &self,
        lease: &Lease,
        part: &Name,
        file: &File,
        place @ NameAt { directory, name }: NameAt<'_>,
        replace: Replace,
    ) -> io::Result<()> {
        self.retire_part(part, file)?;
        let retired = retired_name(part);
        let from = NameAt::new(&self.parts, &retired);
        let is_it = |there| number_of(file).is_ok_and(|here| here == there);
        if number_at(&self.parts, &retired).is_ok_and(is_it) {
            self.publish(lease, from, place, replace)?;
            // A rename does nothing if both names are links to the same file.
            let _gone_as_a_rule = unlink_at(&self.parts, &retired);
            return Ok(());
        }
        if number_at(directory, name).is_ok_and(is_it) {
            return Ok(());
        }
        Err(self.job_ended_if_missing(Errno::NOENT.into()))
    }

    /// Gives up a part that cannot be written because of the error `reason`. `file` must be the opened part. The space
    /// of the part is freed when all processes have closed it. No receiver creates the part again in this job.
    ///
    /// # Errors
    /// Returns the system's error. The part is kept in that case.
    pub fn give_up_part(&self, part: &Name, file: &File, reason: Errno) -> io::Result<()> {
        let text = format!("{GIVEN_UP}{}", reason.raw_os_error());
        self.write_mark(part, file, &text)
    }

    /// Replaces a part with a mark: a dangling symbolic link whose text records whether the part was committed or given
    /// up.
    fn write_mark(&self, part: &Name, file: &File, text: &str) -> io::Result<()> {
        if !self.has_name(part, file)? {
            return Ok(());
        }
        let link = |fresh: &Name| rustix::fs::symlinkat(text, &self.own, fresh.as_os_str());
        let (fresh, ()) = make_hidden(self.own.as_fd(), link)?;
        Ok(rustix::fs::renameat(
            &self.own,
            fresh.as_os_str(),
            &self.parts,
            part.as_os_str(),
        )?)
    }

    /// Returns whether `file` is the part with this name.
    fn has_name(&self, part: &Name, file: &File) -> io::Result<bool> {
        match number_at(&self.parts, part) {
            Ok(there) => Ok(there == number_of(file)?),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a part still has its name. If not, a receiver has committed the part or given it up.
    ///
    /// # Errors
    /// Returns [`JOB_ENDED`] if the name is missing because the job has ended.
    pub fn has_part(&self, name: &Name, part: &File) -> io::Result<bool> {
        if self.has_name(name, part).unwrap_or(false) {
            return Ok(true);
        }
        if self.has_ended() {
            Err(JOB_ENDED.into())
        } else {
            Ok(false)
        }
    }

    /// Checks that a directory is on the same file system as the job, because a rename cannot cross file systems.
    ///
    /// # Errors
    /// Returns `EXDEV` if the file systems differ.
    pub fn check_device(&self, directory: impl AsFd) -> io::Result<()> {
        let device = rustix::fs::fstat(directory)?.st_dev;
        if device == self.device {
            Ok(())
        } else {
            Err(Errno::XDEV.into())
        }
    }
}

impl Drop for JobSession {
    fn drop(&mut self) {
        // The end of the job removes any remaining entries.
        remove_best_effort(&self.job, &self.own_name);
    }
}

/// Returns the name of a part that is about to be published.
pub(super) fn retired_name(part: &Name) -> Name {
    short_name(&format!("{RETIRED}{part}"))
}

/// Returns whether an error means that a directory has been removed.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::STALE)
    )
}

/// The prefix of the name of a part that is about to be published, followed by the name of the part. Also the link text
/// that marks a part as retired.
const RETIRED: &str = "retired-";
/// The prefix of the link text that marks a part as given up, followed by the error number.
const GIVEN_UP: &str = "given-up-";
