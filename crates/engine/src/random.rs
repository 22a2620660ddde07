//! Unpredictable random numbers.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use zmove_types::TransferId;

/// Generates a unique transfer id.
///
/// # Errors
/// The kernel cannot provide random bytes.
pub fn fresh_transfer() -> io::Result<TransferId> {
    random().map(TransferId)
}

/// Returns random bytes from the kernel.
///
/// # Errors
/// The kernel cannot provide random bytes.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    if filled == N {
        Ok(bytes)
    } else {
        Err(io::Error::other("too little randomness"))
    }
}
