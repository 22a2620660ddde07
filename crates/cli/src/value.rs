//! The exit codes, and small value types of the command line. A value is parsed from one word, and displayed as one
//! word.

pub(crate) mod account;
pub(crate) mod age;
pub(crate) mod cause;
pub(crate) mod control;
pub(crate) mod exit;
pub(crate) mod version;
