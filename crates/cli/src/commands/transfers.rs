//! The transfer commands and their shared code.

pub(crate) mod copy;
pub(crate) mod mount;
pub(crate) mod pull;
pub(crate) mod push;
pub(crate) mod receive;
pub(crate) mod transfer;
pub(crate) mod verify;
