//! Names of the directories of [shared jobs](crate::SharedJobDirectory).
//!
//! Only the name of an entry matters, not its kind or path. A sender does not send entries with such a name. A receiver
//! accepts no path that contains one. Only the job itself writes to such a directory.

use zmove_types::{SharedJobId, from_hex};

/// The prefix of the name, followed by the job ID.
pub(crate) const JOB_PREFIX: &str = ".zmove-job-";

/// Returns whether a name has the form of a shared job's directory.
#[must_use]
pub fn is_shared_job_name(name: &[u8]) -> bool {
    job_of(name).is_some()
}

/// Returns the job to which a directory of this name belongs.
pub(crate) fn job_of(name: &[u8]) -> Option<SharedJobId> {
    let id = name.strip_prefix(JOB_PREFIX.as_bytes())?;
    from_hex::<16>(id).map(SharedJobId)
}
