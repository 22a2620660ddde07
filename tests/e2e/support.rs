//! Building blocks of the tests: programs, hosts, trees, and the relays between them.

pub(crate) mod command;
pub(crate) mod daemon;
pub(crate) mod half_cut;
pub(crate) mod harness;
pub(crate) mod hooked_queue;
pub(crate) mod hooks;
pub(crate) mod host;
pub(crate) mod inprocess;
pub(crate) mod namespace;
pub(crate) mod ports;
pub(crate) mod proxy;
pub(crate) mod quiet_machine;
pub(crate) mod rsync;
pub(crate) mod tree;
