//! Numbers that nobody can predict.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use zmove_types::TransferId;

/// A transfer id that no other transfer has.
///
/// # Errors
/// The system has no randomness.
pub fn fresh_transfer() -> io::Result<TransferId> {
    random().map(TransferId)
}

/// Random bytes from the kernel.
///
/// # Errors
/// The kernel has none.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    if filled == N {
        Ok(bytes)
    } else {
        Err(io::Error::other("too little randomness"))
    }
}
