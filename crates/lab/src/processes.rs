//! Programs on either host: how they are started, counted and ended.

pub(crate) mod groups;
pub(crate) mod inside;
pub(crate) mod run;
pub(crate) mod server;
pub(crate) mod session;
