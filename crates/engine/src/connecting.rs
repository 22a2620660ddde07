//! How a peer is reached: where it is, the path to it, ssh, and the settings for it.

pub(crate) mod dial;
pub(crate) mod location;
pub(crate) mod path_memory;
pub(crate) mod settings;
pub(crate) mod ssh;
