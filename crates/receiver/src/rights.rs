//! Permissions of a peer: its grants, its quota, and the names that it may use at the top of the target.

pub(crate) mod grant;
pub(crate) mod quota;
pub(crate) mod top_names;
