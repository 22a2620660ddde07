//! How the connection below a lane does, for whoever reports on the path or tunes it.
//!
//! A probe is apart from its lane, because a lane's thread may hang in a write for as long as the path is slow.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use socket2::SockRef;
use zmove_sockopt::{TcpInfo, tcp_info};

/// Asks the kernel about one lane's connection, and sets what may change while it runs; keeps the socket, but not the connection, open.
#[derive(Clone, Default)]
pub struct PathProbe(Option<Arc<TcpStream>>);

impl PathProbe {
    /// A probe of a socket; one that cannot be duplicated tells nothing.
    pub(crate) fn new(socket: &TcpStream) -> Self {
        Self(socket.try_clone().ok().map(Arc::new))
    }

    /// What is known at this moment; `None` where no kernel's TCP carries the lane.
    #[must_use]
    pub fn read(&self) -> Option<TcpInfo> {
        tcp_info(self.0.as_deref()?).ok()
    }

    /// Gives the connection another congestion control, by its kernel name. Nothing happens where no kernel's TCP carries
    /// the lane.
    ///
    /// # Errors
    /// The kernel does not have it, or does not let this user choose it.
    pub fn set_congestion(&self, algorithm: &str) -> io::Result<()> {
        match self.0.as_deref() {
            Some(socket) => SockRef::from(socket).set_tcp_congestion(algorithm.as_bytes()),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for PathProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PathProbe")
    }
}
