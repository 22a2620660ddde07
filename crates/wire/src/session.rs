//! The protocol state of both sides, without I/O: items in flight, settled items, and the end of the transfer.
//!
//! [`SenderTransfer`] and [`ReceiverTransfer`] take events and return actions. The tests at the end of
//! `session/tests.rs` run both in virtual time, over a path that delays, reorders and damages data.

mod arrivals;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use arrivals::ReceivedItems;
pub use receiver::{ReceiverAction, ReceiverTransfer};
pub use sender::{FinalReport, ItemReceipt, Resend, SenderTransfer, UnpublishedLoad};
