//! Creates, replaces and removes final names, which requires a permit from the lease.

pub(crate) mod final_names;
pub(crate) mod lease;
pub(crate) mod link;
pub(crate) mod publish;
pub(crate) mod remove;
pub(crate) mod special;
