//! Jobs with several receivers or nodes.

pub(crate) mod clusters;
pub(crate) mod job_grants;
pub(crate) mod shared;
pub(crate) mod spread;
