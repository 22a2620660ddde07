//! Questions about entries of the target, the answers, and the resulting requests to remove entries.

pub(crate) mod kept;
pub(crate) mod mirror;
pub(crate) mod request;
pub(crate) mod verdict;
