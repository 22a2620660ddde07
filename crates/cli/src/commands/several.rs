//! Pushes from several nodes or to several receivers.

pub(crate) mod cluster;
pub(crate) mod cluster_push;
pub(crate) mod participants;
pub(crate) mod shared_job;
pub(crate) mod spread;
