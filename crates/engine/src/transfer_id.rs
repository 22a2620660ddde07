//! Numbers of transfers.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use zmove_types::TransferId;

/// A transfer id that nobody else has.
///
/// # Errors
/// The system has no randomness.
pub fn fresh_transfer() -> io::Result<TransferId> {
    let mut transfer = TransferId([0; 16]);
    let filled = getrandom(&mut transfer.0[..], GetRandomFlags::empty())?;
    if filled == transfer.0.len() { Ok(transfer) } else { Err(io::Error::other("too little randomness")) }
}
