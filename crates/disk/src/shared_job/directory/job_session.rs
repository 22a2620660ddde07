//! The part that one session has in a job: it makes its entries in a directory of its own below that of the job, and
//! gives them their final names by renaming them out of there.
//!
//! **Invariant:** whatever is made or named fails with [`JOB_ENDED`] once the directory of the job has been removed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dev, FileType, OFlags};
use rustix::io::Errno;
use zmove_types::{FileNumber, Name, Timestamp};

use super::{SharedJobDirectory, make, open};
use crate::metadata::entry::xattrs::NameAt;
use crate::metadata::entry::{FileIdentity, number_at, number_of, set_file_mtime};
use crate::metadata::inheritance::Inheritance;
use crate::opening::by_name::{open_at, stat_at, unlink_at};
use crate::publishing::lease::Lease;
use crate::publishing::publish::{Replace, move_to};
use crate::publishing::remove::remove_own;
use crate::staging::hidden::make_hidden;
use crate::staging::new_files::NewFiles;
use crate::staging::staged::Staged;
use crate::storage::file_io::data_file::Direct;

/// The error of what cannot be done any more, since the job has ended. No file system says this.
pub const JOB_ENDED: Errno = Errno::OWNERDEAD;

/// The error of opening a part that has got its final name, or has been given up: nothing is to be written to it. No
/// file system says this.
pub const PART_GONE: Errno = Errno::ALREADY;

/// What there is of a large file in a job.
#[derive(Debug)]
pub enum PartFound {
    /// No receiver has begun it.
    Nothing,
    /// The part, which has no final name. It may be about to get one ([`JobSession::retire_part`]).
    Part(File),
    /// The mark of a part that has got its final name.
    Committed {
        /// The inode of the file.
        inode: u64,
    },
    /// The mark of a part that has been given up.
    GivenUp {
        /// The number of the system's error for which it could not be written.
        errno: i32,
    },
}

/// The group of an entry that is made elsewhere and then placed in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupOfNew {
    /// The one that the directory gives to new entries, if it gives one.
    OfDirectory,
    /// The entry's own.
    Own,
}

/// The part that one session has in a job.
#[derive(Debug)]
pub struct JobSession {
    pub(super) job: Arc<OwnedFd>,
    /// The directory of the parts of large files, which other sessions write as well.
    pub(super) parts: Arc<OwnedFd>,
    own_name: Name,
    /// The directory in which this session alone makes its entries.
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

    /// The directory in which this session alone makes its entries.
    #[must_use]
    pub fn own(&self) -> &Arc<OwnedFd> {
        &self.own
    }

    /// Whether the job has ended: then what this session has said of what came before may be wrong.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let there = number_at(&self.job, &self.own_name);
        let has_its_name = |there| number_of(&self.own).is_ok_and(|here| here == there);
        !there.is_ok_and(has_its_name)
    }

    /// Makes something in a directory of the job.
    pub(crate) fn create<T>(&self, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        make().map_err(|error| self.ended_if_dead(error))
    }

    /// A new empty file in the session's directory, with at most the permissions in `mode`.
    ///
    /// # Errors
    /// The system's error, `EPERM` where the file could not get another name, and [`JOB_ENDED`](crate::JOB_ENDED).
    pub fn create_file(&self, new_files: &NewFiles, mode: u32) -> io::Result<Staged> {
        self.create(|| Staged::create_in(&self.own, new_files, mode))
    }

    /// Gives what has this name in the session's directory its final one. Where that replaces something, the directory
    /// keeps its time: what is done a second time may come after the directory has got that, and would take it away.
    /// One that gets its time between the two calls here loses it all the same.
    ///
    /// # Errors
    /// As [`publish_file`](crate::publish_file), and [`JOB_ENDED`](crate::JOB_ENDED).
    pub fn publish(
        &self,
        lease: &Lease,
        hidden: &Name,
        place: NameAt<'_>,
        replace: Replace,
    ) -> io::Result<()> {
        self.publish_from(lease, NameAt::new(&self.own, hidden), place, replace)
    }

    /// Gives an entry of a directory of the job its final name; see [`publish`](Self::publish).
    fn publish_from(
        &self,
        lease: &Lease,
        from @ NameAt {
            directory: within,
            name: hidden,
        }: NameAt<'_>,
        place @ NameAt { directory, name }: NameAt<'_>,
        replace: Replace,
    ) -> io::Result<()> {
        let staged = number_at(within, hidden).map_err(|error| self.ended_if_dead(error))?;
        let is_there = number_at(directory, name).is_ok();
        let before = is_there.then(|| FileIdentity::of(directory)).transpose()?;
        let moved = move_to(lease, from, place, replace);
        moved.or_else(|error| self.look_after_failure(staged, from, place, error))?;
        if let Some(before) = before {
            self.give_back_time(lease, directory, before.mtime);
        }
        Ok(())
    }

    /// Gives a directory back its time, in which something has been replaced. A session that wakes up after the end of
    /// the job leaves the time that somebody has given since.
    pub(super) fn give_back_time(&self, lease: &Lease, directory: &OwnedFd, time: Timestamp) {
        if !self.has_ended()
            && let Ok(permit) = lease.permit()
        {
            // who may not set it gives no directory its time
            let _best_effort = set_file_mtime(permit, directory, time);
        }
    }

    /// Whether an entry has its final name although the call has failed that was to give it: where an answer is lost,
    /// the client of a network file system asks once more, and hears that there is nothing to be renamed, or that
    /// something has the name.
    pub(super) fn look_after_failure(
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
            // it may be a link that was made twice
            let _goes_with_the_job = unlink_at(within, hidden);
            return Ok(());
        }
        let is_gone = number_at(within, hidden).is_err_and(|error| is_dead(&error));
        Err(if is_gone {
            self.ended_if_dead(error)
        } else {
            error
        })
    }

    /// The error of what was not found: the job has ended, or somebody who does not belong to it has removed that.
    fn ended_if_dead(&self, error: io::Error) -> io::Error {
        if is_dead(&error) && self.has_ended() {
            JOB_ENDED.into()
        } else {
            error
        }
    }

    /// Has `make` make an entry that is no file under another name, and gives it its own in a directory.
    ///
    /// # Errors
    /// Those of `make` and the system's, and [`JOB_ENDED`].
    pub fn place<T>(
        &self,
        lease: &Lease,
        place @ NameAt { directory, name: _ }: NameAt<'_>,
        replace: Replace,
        group: GroupOfNew,
        make: impl FnOnce(NameAt<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let free = |name: &Name| match number_at(&self.own, name) {
            Ok(_) => Err(Errno::EXIST),
            Err(_) => Ok(()),
        };
        let (fresh, ()) = make_hidden(self.own.as_fd(), free)?;
        let made = self
            .create(|| make(NameAt::new(&self.own, &fresh)))
            .and_then(|made| {
                if group == GroupOfNew::OfDirectory {
                    Inheritance::of(directory.as_fd())?.give_group(&self.own, &fresh)?;
                }
                Ok(made)
            });
        self.publish_made(lease, made, &fresh, place, replace)
    }

    /// Gives what was made under a `fresh` name its final one. It has no other name then, whatever has failed.
    fn publish_made<T>(
        &self,
        lease: &Lease,
        made: io::Result<T>,
        fresh: &Name,
        place: NameAt<'_>,
        replace: Replace,
    ) -> io::Result<T> {
        let published =
            made.and_then(|made| self.publish(lease, fresh, place, replace).map(|()| made));
        // A rename does nothing where both names lead to the same.
        let _gone_as_a_rule = unlink_at(&self.own, fresh);
        published
    }

    /// Opens the part of a large file, which receivers on other hosts may write too, and makes it where it is not
    /// there.
    ///
    /// # Errors
    /// The system's error, [`JOB_ENDED`], and [`PART_GONE`].
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

    /// Moves a part of a dead job into this one, if it has this inode. It leaves the dead job first, so that no two
    /// jobs have it. Returns whether this session has taken it.
    ///
    /// # Errors
    /// The system's error.
    pub fn take_part(
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
            // another session was first
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

    /// The part of that name, if it is there; it is not made.
    ///
    /// # Errors
    /// The system's error.
    pub fn find_part(&self, name: &Name) -> io::Result<PartFound> {
        match self.open_existing(name) {
            Err(Errno::NOENT | Errno::STALE) => Ok(PartFound::Nothing),
            Err(Errno::LOOP) => self.read_mark(name),
            part => Ok(PartFound::Part(part?)),
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

    fn read_mark(&self, name: &Name) -> io::Result<PartFound> {
        match rustix::fs::readlinkat(&self.parts, name.as_os_str(), Vec::new()) {
            Err(Errno::NOENT | Errno::STALE) => Ok(PartFound::Nothing),
            Err(error) => Err(error.into()),
            Ok(mark) => {
                let text = mark.to_str().unwrap_or_default();
                let invalid = |_no_number| Errno::INVAL;
                if let Some(errno) = text.strip_prefix(GIVEN_UP) {
                    let errno = errno.parse().map_err(invalid)?;
                    return Ok(PartFound::GivenUp { errno });
                }
                let inode = text.parse().map_err(invalid)?;
                match self.open_existing(&retired_name(name)) {
                    Err(Errno::NOENT | Errno::STALE) => Ok(PartFound::Committed { inode }),
                    part => Ok(PartFound::Part(part?)),
                }
            }
        }
    }

    /// Flushes the names of parts.
    ///
    /// # Errors
    /// The system's error, and [`JOB_ENDED`].
    pub fn flush_part_names(&self) -> io::Result<()> {
        rustix::fs::fsync(&self.parts).map_err(|error| self.ended_if_dead(error.into()))
    }

    /// Takes a part, the very file that is open here, out of its place before it is published, and puts a mark there.
    /// Only its *retired* name leads to it then, which the rename to the final name takes away. So nobody ever finds a
    /// file in the place of a part that has had a final name, under which others may have changed it. To be done again
    /// by whoever does not know whether it has been done.
    ///
    /// # Errors
    /// The system's error, and [`JOB_ENDED`]: the part must not be published.
    pub fn retire_part(&self, part: &Name, file: &File) -> io::Result<()> {
        if self.has_name(part, file)? {
            let retired = retired_name(part);
            // by its name, and a mark leads nowhere: a file that has been published gets no name here again
            let linked = rustix::fs::linkat(
                &self.parts,
                part.as_os_str(),
                &self.parts,
                retired.as_os_str(),
                AtFlags::SYMLINK_FOLLOW,
            );
            match linked {
                // another receiver was first
                Ok(()) | Err(Errno::EXIST | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            self.put_mark(part, file, &number_of(file)?.inode.to_string())?;
        }
        self.flush_part_names()
    }

    /// Gives a part, the very file that is open here, its final name. To be done again by whoever does not know whether
    /// it has been done.
    ///
    /// # Errors
    /// The system's error, and [`JOB_ENDED`]; `ENOENT` also where another receiver was first, and somebody has removed
    /// the file since.
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
            self.publish_from(lease, from, place, replace)?;
            // A rename does nothing where both names lead to the same.
            let _gone_as_a_rule = unlink_at(&self.parts, &retired);
            return Ok(());
        }
        if number_at(directory, name).is_ok_and(is_it) {
            return Ok(());
        }
        Err(self.ended_if_dead(Errno::NOENT.into()))
    }

    /// Gives up a part, the very file that is open here, which cannot be written for this reason: what it takes is free
    /// once nobody has it open any more, and nobody makes it anew in this job.
    ///
    /// # Errors
    /// The system's error: the part stays.
    pub fn give_up_part(&self, part: &Name, file: &File, reason: Errno) -> io::Result<()> {
        let text = format!("{GIVEN_UP}{}", reason.raw_os_error());
        self.put_mark(part, file, &text)
    }

    /// Puts a link that leads nowhere, and tells what has become of a part, in its place.
    fn put_mark(&self, part: &Name, file: &File, text: &str) -> io::Result<()> {
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

    /// Whether this is the part of that name.
    fn has_name(&self, part: &Name, file: &File) -> io::Result<bool> {
        match number_at(&self.parts, part) {
            Ok(there) => Ok(there == number_of(file)?),
            Err(error) if is_dead(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a part still has its name: then no receiver has committed it, or given it up.
    ///
    /// # Errors
    /// [`JOB_ENDED`] where it has none since the job has ended.
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

    /// Checks that a directory lies in the same file system, since nothing can be renamed to another.
    ///
    /// # Errors
    /// `EXDEV` where it does not.
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
        // The end of the job removes what stays.
        remove_own(&self.job, &self.own_name);
    }
}

/// The name of a part that is about to be published.
pub(super) fn retired_name(part: &Name) -> Name {
    let name = [RETIRED.as_bytes(), part.as_bytes()].concat();
    Name::from_bytes(&name).expect("the names of parts are short")
}

/// Whether an error says that a directory has been removed.
pub(super) fn is_dead(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::STALE)
    )
}

/// The beginning of the names of parts that are about to be published; the name of the part follows.
const RETIRED: &str = "retired-";
/// The beginning of where the mark of a part leads that has been given up; the error's number follows.
const GIVEN_UP: &str = "given-up-";
