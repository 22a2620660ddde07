//! How the connection below a lane does, for whoever reports on the path.
//!
//! A probe is apart from its lane, because a lane's thread may hang in a write for as long as the path is slow.

use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;

use zmove_sockopt::{TcpInfo, tcp_info};

use crate::channel::Transport;

/// Asks about one lane's connection; keeps the socket, but not the connection, open.
#[derive(Clone, Default)]
pub struct PathProbe(Option<(Transport, Arc<Ask>)>);

type Ask = dyn Fn() -> Option<TcpInfo> + Send + Sync;

impl PathProbe {
    /// A probe of a socket; one that cannot be duplicated tells nothing.
    pub(crate) fn new(socket: &TcpStream) -> Self {
        socket.try_clone().map_or_else(
            |_| Self::default(),
            |socket| Self::asking(Transport::Tcp, move || tcp_info(&socket).ok()),
        )
    }

    /// A probe that asks by `ask`.
    pub(crate) fn asking(
        transport: Transport,
        ask: impl Fn() -> Option<TcpInfo> + Send + Sync + 'static,
    ) -> Self {
        Self(Some((transport, Arc::new(ask))))
    }

    /// What carries the lane; `None` within one process.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        self.0.as_ref().map(|(transport, _)| *transport)
    }

    /// What is known at this moment, in the terms of TCP; `None` where neither the kernel's TCP nor QUIC carries the lane.
    #[must_use]
    pub fn read(&self) -> Option<TcpInfo> {
        self.0.as_ref()?.1()
    }
}

impl fmt::Debug for PathProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PathProbe")
    }
}
