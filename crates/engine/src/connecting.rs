//! Connecting to a peer: its location, the path to it, ssh, and the connection settings.

mod closed_port;
pub(crate) mod dial;
pub(crate) mod location;
pub(crate) mod path_memory;
pub(crate) mod settings;
pub(crate) mod ssh;
