//! The trees of a round: drawn, changed between attempts, and compared with the target.

pub(crate) mod metadata;
pub(crate) mod old;
pub(crate) mod plant;
pub(crate) mod same;
pub(crate) mod tree;
pub(crate) mod versions;
