//! The errors of files with keys, pins and grants. They are always local problems, and a retry never helps.
//!
//! **Invariant:** every message contains the path of the file and, if applicable, the line number. No message contains
//! a private key.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::endpoint::Endpoint;
use crate::trust::{Fingerprint, GrantFault, HostLineFault};

/// The reason why a file with keys, grants or authorities cannot be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// The file, or a directory above it, is owned by a user who is not trusted.
    #[error(
        "use {}: it belongs to user {owner}, who is neither root nor the user that reads it; run: chown -h \
         {owner_wanted} {}",
        path.display(), path.display()
    )]
    Owner {
        /// The file or directory.
        path: PathBuf,
        /// The owner.
        owner: u32,
        /// The user who should own the file or directory. This is root, or the owner of its directory if that is the
        /// user who reads it.
        owner_wanted: u32,
    },
    /// Other users can write to the file, or to a directory above it.
    #[error("use {}: its mode {mode:04o} lets other users write to it; run: chmod go-w {}", path.display(), path.display())]
    Writable {
        /// The file or directory.
        path: PathBuf,
        /// The permission bits of the file or directory.
        mode: u32,
    },
    /// The metadata of a directory above the file cannot be read.
    #[error("inspect {}", path.display())]
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
    /// The file or its directory cannot be created or written.
    #[error("write {} (ZMOVE_HOME names another directory)", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl KeyFileError {
    /// Returns the error for a required file that does not exist.
    pub(crate) fn missing(path: &Path) -> Self {
        Self::Read {
            path: path.into(),
            source: io::ErrorKind::NotFound.into(),
        }
    }
}

/// The reason why this side's own key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be trusted, read or written.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// Other users can read the private key.
    #[error("use the key {}: its mode {mode:04o} lets other users read it; run: chmod 600 {}", path.display(), path.display())]
    Exposed {
        /// The key file.
        path: PathBuf,
        /// The permission bits of the file.
        mode: u32,
    },
    /// The file contains no private key or no certificate in PEM form.
    #[error("use the key {}: it is damaged ({fault}); restore it, or remove it to get a new key", path.display())]
    NotPem {
        /// The key file.
        path: PathBuf,
        /// The error of the parser.
        fault: rustls_pki_types::pem::Error,
    },
    /// The key and the certificate do not match, or their type is not supported.
    #[error("use the key {}: key and certificate do not match; restore it, or remove it to get a new key", path.display())]
    Unusable {
        /// The key file.
        path: PathBuf,
        /// The error of the TLS library.
        source: rustls::Error,
    },
    /// The certificate from an authority does not match this key or is damaged.
    #[error("use the certificate {}: it is damaged, or does not match the key beside it; remove it, or have a new one \
        issued", path.display())]
    Certificate {
        /// The file with the certificate.
        path: PathBuf,
    },
    /// No key could be generated.
    #[error("make a new key")]
    Generate(#[source] rcgen::Error),
    /// A newly generated key cannot be used.
    #[error("use a new key")]
    Fresh(#[source] rustls::Error),
}

/// The reason why the certificates or revocation lists of an authority cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A file cannot be trusted, read or written.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// The file contains no certificates or revocation lists in PEM form, or one of them cannot be parsed.
    #[error("read {}: it contains no certificates or revocation lists in PEM form, or damaged ones", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
}

/// The reason why the list of known hosts cannot be read or extended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KnownHostsError {
    /// The list cannot be trusted, read or written.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// A line does not have the form `HOST:PORT SHA256:…`.
    #[error("read {}, line {line}: {fault} (correct or remove the line)", path.display())]
    Damaged {
        /// The list.
        path: PathBuf,
        /// The line number, starting at 1.
        line: usize,
        /// The fault in the line.
        fault: HostLineFault,
    },
    /// The list already contains another key for the host. A key is never replaced.
    #[error("remember the key of {host}: {} lists {expected} for it, not {found}", path.display())]
    Conflict {
        /// The list.
        path: PathBuf,
        /// The host to be pinned.
        host: Endpoint,
        /// The key in the list.
        expected: Fingerprint,
        /// The key to be added.
        found: Fingerprint,
    },
    /// The host name cannot be written as a line of the list.
    #[error("remember the host {0:?}: it is not a host name or address")]
    HostName(String),
}

/// The reason why the list of authorized keys cannot be read or extended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorizedKeysError {
    /// A file cannot be trusted, read or written.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// A line is not a valid grant.
    #[error("read {}, line {line}: {fault} (correct or remove the line)", path.display())]
    Damaged {
        /// The list.
        path: PathBuf,
        /// The line number, starting at 1.
        line: usize,
        /// The fault in the line, including the field.
        fault: GrantFault,
    },
    /// The grant to be added is not valid.
    #[error("authorize {holder}: {fault}")]
    Invalid {
        /// The key of the grant, or the name of its holder.
        holder: String,
        /// The fault of the grant.
        fault: GrantFault,
    },
}
