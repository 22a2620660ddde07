//! Questions about entries of the target, their answers, and the orders that follow from them.

pub(crate) mod kept;
pub(crate) mod mirror;
pub(crate) mod request;
pub(crate) mod verdict;
