//! What a peer may do here: its grants, its quota, and the names at the top of the target.

pub(crate) mod grant;
pub(crate) mod quota;
pub(crate) mod top_names;
