//! The connections of the API: which are taken, how many, and what each has to show.

pub(crate) mod guard;
pub(crate) mod host_name;
pub(crate) mod listen;
pub(crate) mod room;
pub(crate) mod token;
