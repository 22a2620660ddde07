//! A fuzz target of `key.pem` for `crates/fuzz`.

use std::path::Path;

use super::{Identity, file, new_pem};

/// Reads arbitrary bytes as a file. The result must be a key, or an error that can be displayed.
pub fn identity(bytes: &[u8]) {
    let contents = file::Contents {
        bytes: bytes.to_vec(),
        mode: 0o600,
    };
    match Identity::parse(Path::new("key.pem"), &contents) {
        Ok(identity) => drop(identity.fingerprint().to_string()),
        Err(error) => drop(error.to_string()),
    }
}

/// Returns the contents of a file with a new key.
///
/// # Panics
/// Panics if the system has no random numbers.
#[must_use]
pub fn new_identity() -> Vec<u8> {
    new_pem().expect("a key can be made").into_bytes()
}
