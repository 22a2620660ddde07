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
        "{0} can be reached from other hosts, and there the page is not served: name 127.0.0.1 or [::1], and reach it \
         from elsewhere through ssh (ssh -L {port}:127.0.0.1:{port} HOST)", port = .0.port()
    )]
    Public(SocketAddr),
    /// Others can read the token, so it proves nothing.
    #[error("'{}' can be read by others: remove it, and a new token is made", .0.display())]
    TokenOpen(PathBuf),
    /// The token's file is another user's, or no file.
    #[error("'{}' is not a file of this user's", .0.display())]
    TokenForeign(PathBuf),
    /// The token's file does not hold a token.
    #[error("'{}' holds no token: remove it, and a new one is made", .0.display())]
    TokenNonsense(PathBuf),
}
