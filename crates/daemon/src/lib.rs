//! The daemon: it listens for connections, admits each one by its key, and runs one session per transfer.
//!
//! `zmove serve` and `zmove receive` run it. **Invariant:** no message of a peer is parsed before the peer's key is
//! authorized.

mod access;
mod answering;
mod copies;
mod copying;
mod daemon;
mod event;
mod node_session;
mod registry;
mod sender_relay;
mod sending;
mod sources;
mod transfers;

pub use access::authorizer::Authorizer;
pub use copies::Copies;
pub use daemon::Daemon;
pub use event::{DaemonEvent, EndedTransfer, Moved, Rejection, TransferEnd};
pub use sending::SendingError;
pub use transfers::{Direction, GranterStatus, PeerInfo, StopReason, TransferStatus, Transfers};
pub use zmove_receiver::Limits;
