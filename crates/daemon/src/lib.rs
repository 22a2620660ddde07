//! The daemon: it listens, admits each connection by its key, and runs one session for each transfer.
//!
//! `zmove serve` and `zmove receive` run it. **Invariant:** no message of a peer is parsed before its key is
//! authorized.

mod admission;
mod answering;
mod authorizer;
mod authorizer_threads;
mod copies;
mod copying;
mod daemon;
mod event;
mod node_grant;
mod node_session;
mod pending_handshakes;
mod rate_limits;
mod refusals;
mod registry;
mod relaying;
mod sending;
mod sources;
mod transfers;
mod wait_queue;

pub use authorizer::Authorizer;
pub use copies::Copies;
pub use daemon::Daemon;
pub use event::{DaemonEvent, EndedTransfer, Moved, Rejection, TransferEnd};
pub use sending::SendingError;
pub use transfers::{Cut, Direction, TransferStatus, Transfers, Who};
pub use zmove_receiver::Limits;
