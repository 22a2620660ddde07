//! How the connection below a lane does, for whoever reports on the path.
//!
//! A probe is apart from its lane, because a lane's thread may hang in a write for as long as the path is slow.

use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;

use zmove_sockopt::{TcpInfo, tcp_info};

/// Asks the kernel about one lane's connection; keeps the socket, but not the connection, open.
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
}

impl fmt::Debug for PathProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PathProbe")
    }
}
