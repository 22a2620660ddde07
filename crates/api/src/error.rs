//! The reasons why the API cannot be served.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The reason why the API cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// An operation on a file or socket failed.
    #[error("{operation} '{}': {source}", path.display())]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The file concerned.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The address cannot be listened at.
    #[error("listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The address is one that other hosts reach.
    #[error(
        "{0} can be reached from other hosts, and there the page is served over TLS alone: name --http-cert, --http-key \
         and --http-client-ca, or 127.0.0.1 or [::1], and reach it from elsewhere through ssh \
         (ssh -L {port}:127.0.0.1:{port} HOST)", port = .0.port()
    )]
    Public(SocketAddr),
    /// Others than its owner can use the file with the key.
    #[error(
        "the key '{}' has mode {mode:03o}, and others than its owner may use it: chmod 600 '{}'",
        path.display(), path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The bits of its mode.
        mode: u32,
    },
    /// A file does not hold what TLS needs.
    #[error("use {what} in '{}': {cause}", path.display())]
    Tls {
        /// What should be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it is none.
        cause: String,
    },
}
