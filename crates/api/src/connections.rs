//! The connections of the API: listeners, limits and authentication.

pub(crate) mod guard;
pub(crate) mod host_name;
pub(crate) mod listen;
pub(crate) mod room;
pub(crate) mod token;
