//! Final names: given, replaced and removed, and the lease without which none of it is done.

pub(crate) mod final_names;
pub(crate) mod lease;
pub(crate) mod link;
pub(crate) mod publish;
pub(crate) mod remove;
pub(crate) mod special;
