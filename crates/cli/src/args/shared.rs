//! Options that several commands share.

pub(crate) mod dial;
pub(crate) mod keeping;
pub(crate) mod selection;
pub(crate) mod storage;
