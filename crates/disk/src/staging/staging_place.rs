//! Where an entry is made before it gets its final name: in the directory where it will stay, or, in a job that several
//! hosts write, in the directory of a [session](crate::JobSession) in the job's.
//! What the directory where it will stay would have given it, it is given ([`NewFiles::give_to`]).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use zmove_types::Name;

use crate::metadata::entry::xattrs::NameAt;
use crate::publishing::lease::Lease;
use crate::publishing::publish::{Replace, publish_file};
use crate::shared_job::directory::JobSession;
use crate::staging::new_files::NewFiles;
use crate::staging::staged::Staged;

/// Where entries are made; see the module.
#[derive(Clone, Debug, Default)]
pub enum StagingPlace {
    /// In the directory where they will stay.
    #[default]
    Beside,
    /// In the directory of a session in a job.
    Job(Arc<JobSession>),
}

impl StagingPlace {
    /// The directory in which entries for this one are made.
    #[must_use]
    pub fn of<'a>(&'a self, directory: &'a Arc<OwnedFd>) -> &'a Arc<OwnedFd> {
        match self {
            Self::Beside => directory,
            Self::Job(job) => job.own(),
        }
    }

    /// The session, in a job.
    #[must_use]
    pub fn job(&self) -> Option<&Arc<JobSession>> {
        match self {
            Self::Beside => None,
            Self::Job(job) => Some(job),
        }
    }

    /// A new empty file for a directory, with at most the permissions in `mode`.
    ///
    /// # Errors
    /// The system's error, `EPERM` where the file could not get another name, and [`JOB_ENDED`](crate::JOB_ENDED).
    pub fn create(
        &self,
        directory: &Arc<OwnedFd>,
        new_files: &NewFiles,
        mode: u32,
    ) -> io::Result<Staged> {
        match self {
            Self::Beside => Staged::create_in(directory, new_files, mode),
            Self::Job(job) => job.create(|| Staged::create_in(job.own(), new_files, mode)),
        }
    }

    /// Gives a file that has a hidden name its final one in a directory.
    ///
    /// # Errors
    /// As [`publish_file`], and [`JOB_ENDED`](crate::JOB_ENDED).
    pub fn publish(
        &self,
        lease: &Lease,
        hidden: &Name,
        NameAt { directory, name }: NameAt<'_>,
        replace: Replace,
    ) -> io::Result<()> {
        match self {
            Self::Beside => publish_file(lease, directory, hidden, name, replace),
            Self::Job(job) => job.publish(lease, hidden, NameAt::new(directory, name), replace),
        }
    }
}
