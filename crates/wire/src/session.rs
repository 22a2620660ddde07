//! The protocol's state on either side, without I/O: what is in flight, what is settled, and when the transfer is over.
//!
//! [`SenderTransfer`] and [`ReceiverTransfer`] are fed events and drained of actions; the tests at the foot of
//! `session/tests.rs` run the pair in virtual time over a path that delays, reorders and damages.

mod arrivals;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use arrivals::Arrivals;
pub use receiver::{ReceiverAction, ReceiverTransfer};
pub use sender::{LastWord, Load, Receipt, Resend, SenderTransfer};
