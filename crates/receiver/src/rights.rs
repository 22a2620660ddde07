//! Permissions of a peer: its grants, its quota, and the paths that it may use in the target.

pub(crate) mod grant;
pub(crate) mod quota;
pub(crate) mod top_names;
