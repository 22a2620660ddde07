//! Errors that prevent the API from being served.

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
        /// The file or socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The API cannot listen on the address.
    #[error("listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// Other hosts can reach the address.
    #[error(
        "other hosts can reach {0}, but the runner does not support TLS: use 127.0.0.1:{port} or [::1]:{port}, and \
         connect through a reverse proxy ('--http-name') or ssh (ssh -L {port}:127.0.0.1:{port} HOST); see 'The page \
         from other hosts' in OPERATIONS.md",
        port = .0.port()
    )]
    Public(SocketAddr),
}
