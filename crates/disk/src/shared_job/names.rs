//! The names of the directories of [shared jobs](crate::SharedJobDirectory).
//!
//! The name alone decides, whatever has it and wherever it is: nobody sends what has such a name, no receiver lets a
//! path lead through it, and nobody but its job writes there.

use zmove_types::{SharedJobId, from_hex};

/// The beginning of the name; the job's id follows.
pub(crate) const JOB_PREFIX: &str = ".zmove-job-";

/// Whether a name is that of the directory of a shared job.
#[must_use]
pub fn is_shared_job_name(name: &[u8]) -> bool {
    job_of(name).is_some()
}

/// The job to which a directory of this name belongs.
pub(crate) fn job_of(name: &[u8]) -> Option<SharedJobId> {
    let id = name.strip_prefix(JOB_PREFIX.as_bytes())?;
    from_hex::<16>(id).map(SharedJobId)
}
