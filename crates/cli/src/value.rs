//! Small value types of the command line, which are parsed from one word and displayed as one, and the exit codes.

pub(crate) mod account;
pub(crate) mod age;
pub(crate) mod cause;
pub(crate) mod control;
pub(crate) mod exit;
pub(crate) mod version;
