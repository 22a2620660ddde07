//! BLAKE3 values: the root of a whole file and the chaining value of one group.
//!
//! The two are separate types because a user cannot check a chaining value with any tool. Only the merge in
//! `zmove-chunk` turns a complete list of chaining values into a [`Root`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hex::Hex;

/// The ordinary BLAKE3 hash of a file's contents, as `b3sum` prints it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Root(pub [u8; 32]);

/// The BLAKE3 chaining value of one group of a file with more than one group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cv(pub [u8; 32]);

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Root({self})")
    }
}

impl fmt::Debug for Cv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cv({})", Hex(&self.0))
    }
}
