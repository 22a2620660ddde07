//! The errors of the files of keys, pins and grants: always local, and never cured by trying again.
//!
//! **Invariant:** every message names the file, and where there is one the line; none shows a private key.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::endpoint::Endpoint;
use crate::trust::{Fingerprint, GrantFault, HostLineFault};

/// Why a file of keys, grants or authorities cannot be relied on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file, or a directory on the way to it, belongs to somebody else.
    #[error(
        "trust {}: it belongs to user {owner}, who is neither root nor the user that reads it; run: chown -h {owner_wanted} {}",
        path.display(), path.display()
    )]
    Owner {
        /// The file or directory.
        path: PathBuf,
        /// The user that it belongs to.
        owner: u32,
        /// The user that should own it: root, or the owner of its directory if that is the user that reads it.
        owner_wanted: u32,
    },
    /// Others may write the file, or change what a directory on the way to it holds.
    #[error("trust {}: its mode {mode:04o} lets others write to it; run: chmod go-w {}", path.display(), path.display())]
    Writable {
        /// The file or directory.
        path: PathBuf,
        /// The permission bits of the file.
        mode: u32,
    },
    /// A directory on the way cannot be looked at.
    #[error("look at {}", path.display())]
    Look {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file, or its directory, cannot be made or written.
    #[error("write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl KeyFileError {
    /// The error for a file that is needed and does not exist.
    pub(crate) fn missing(path: &Path) -> Self {
        Self::Read {
            path: path.into(),
            source: io::ErrorKind::NotFound.into(),
        }
    }
}

/// Why this side's own key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be relied on, read or written.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// Others can read the private key.
    #[error("use the key {}: its mode {mode:04o} is too open, others must not read it; run `chmod 600` on it", path.display())]
    Exposed {
        /// The key file.
        path: PathBuf,
        /// The permission bits of the file.
        mode: u32,
    },
    /// The file holds no private key, or no certificate, in PEM form.
    #[error("use the key {}: it is damaged; restore it, or remove it to get a new key", path.display())]
    NotPem {
        /// The key file.
        path: PathBuf,
        /// The error of the parser.
        source: rustls_pki_types::pem::Error,
    },
    /// Key and certificate do not belong together, or are of an unknown kind.
    #[error("use the key {}: key and certificate do not fit; restore it, or remove it to get a new key", path.display())]
    Unusable {
        /// The key file.
        path: PathBuf,
        /// The error of the TLS library.
        source: rustls::Error,
    },
    /// The certificate that an authority has issued is not for this key, or is damaged.
    #[error("use the certificate {}: it is damaged, or not for the key beside it; remove it, or have a new one issued", path.display())]
    Certificate {
        /// The certificate's file.
        path: PathBuf,
    },
    /// No key could be made.
    #[error("make a new key")]
    Generate(#[source] rcgen::Error),
    /// A key that was just made cannot be used.
    #[error("use a new key")]
    Fresh(#[source] rustls::Error),
}

/// Why the certificates or revocation lists of an authority cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A file cannot be relied on, read or written.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// The file holds nothing of its kind in PEM form, or something that cannot be read.
    #[error("read {}: it holds no certificates or revocation lists in PEM, or damaged ones", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// Why the list of known hosts cannot be read or extended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KnownHostsError {
    /// The list cannot be read.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// A line is not of the form `HOST:PORT SHA256:…`.
    #[error("read {}, line {line}: {fault}", path.display())]
    Damaged {
        /// The list.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The fault of the line.
        fault: HostLineFault,
    },
    /// The host has another key in the list already; it is never replaced.
    #[error("remember the key of {host}: {} has {expected} for it, not {found}", path.display())]
    Conflict {
        /// The list.
        path: PathBuf,
        /// The host that was to be pinned.
        host: Endpoint,
        /// The key in the list.
        expected: Fingerprint,
        /// The key that was to be added.
        found: Fingerprint,
    },
    /// The host's name cannot stand in a line.
    #[error("remember the host {0:?}: not a host name or address")]
    HostName(String),
}

/// Why the list of authorized keys cannot be read or extended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorizedKeysError {
    /// A file cannot be relied on, read or written.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// A line is no valid grant.
    #[error("read {}, line {line}: {fault}", path.display())]
    Damaged {
        /// The list.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The fault of the line, which names the field.
        fault: GrantFault,
    },
    /// The grant to be added is not a valid one.
    #[error("authorize {holder}: {fault}")]
    Invalid {
        /// The key of the grant, or the name of its holder.
        holder: String,
        /// The fault of the grant.
        fault: GrantFault,
    },
}
