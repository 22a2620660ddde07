//! The entries that may exist under each name of the target: all complete versions that the round has created, and
//! nothing else.
//!
//! **Invariant:** a version is recorded before the source or the old target contains it, so that a concurrent
//! inspection of the target knows it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A complete version of an entry.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Version {
    /// A regular file: its length and its BLAKE3 hash.
    File(u64, [u8; 32]),
    /// A symbolic link and its target.
    Link(OsString),
    Directory,
    /// A FIFO, a socket or a device: the type bits of its mode, and its device number.
    Special(u32, u64),
}

/// All versions, by path below the tree's root.
#[derive(Debug, Default)]
pub(crate) struct Versions(HashMap<PathBuf, Vec<Version>>);

impl Versions {
    pub(crate) fn add(&mut self, path: &Path, version: Version) {
        let known = self.0.entry(path.to_owned()).or_default();
        if !known.contains(&version) {
            known.push(version);
        }
    }

    pub(crate) fn of(&self, path: &Path) -> &[Version] {
        self.0.get(path).map_or(&[], Vec::as_slice)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(bytes, hash) => {
                write!(
                    f,
                    "File({bytes}, {:02x}{:02x}{:02x}{:02x}…)",
                    hash[0], hash[1], hash[2], hash[3]
                )
            }
            Self::Link(to) => write!(f, "Link({to:?})"),
            Self::Directory => write!(f, "Directory"),
            Self::Special(form, device) => write!(f, "Special({form:o}, {device})"),
        }
    }
}

impl Version {
    /// Returns the version of a special file.
    pub(crate) fn of_special(metadata: &Metadata) -> Self {
        Self::Special(metadata.mode() & FORM_BITS, metadata.rdev())
    }

    /// Returns the version of an open file.
    pub(crate) fn of_file(file: &mut File, block: &mut [u8]) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = 0;
        loop {
            match file.read(block) {
                Ok(0) => return Ok(Self::File(bytes, *hasher.finalize().as_bytes())),
                Ok(read) => {
                    hasher.update(&block[..read]);
                    bytes += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

const FORM_BITS: u32 = 0o170_000;
