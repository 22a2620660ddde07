//! Access control: handshakes, keys, limits and the queue for a slot.

pub(crate) mod admission;
pub(crate) mod authorizer;
pub(crate) mod authorizer_threads;
pub(crate) mod node_grant;
pub(crate) mod pending_handshakes;
pub(crate) mod rate_limits;
pub(crate) mod refusals;
pub(crate) mod wait_queue;
