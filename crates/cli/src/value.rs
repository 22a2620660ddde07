//! Leaf types of the command line: values that are read from a word and shown as one, and how a command ends.

pub(crate) mod account;
pub(crate) mod age;
pub(crate) mod cause;
pub(crate) mod control;
pub(crate) mod exit;
pub(crate) mod version;
