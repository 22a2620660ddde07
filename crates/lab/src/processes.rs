//! Starts, measures and ends programs on either host.

pub(crate) mod groups;
pub(crate) mod inside;
pub(crate) mod run;
pub(crate) mod server;
pub(crate) mod session;
