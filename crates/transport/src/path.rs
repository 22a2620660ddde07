//! Probes of the connections below lanes, for reports on the path and for its tuning.
//!
//! A probe is separate from its lane, because a lane's thread may hang in a write for as long as the path is slow.

use std::fmt;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use socket2::SockRef;
use zmove_sockopt::{TcpInfo, tcp_info};

/// The carrier of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Transport {
    /// TLS 1.3 on TCP.
    Tcp,
    /// QUIC, which is TLS 1.3 on UDP.
    Quic,
}

/// Reads the state of one lane's connection, and sets what may change while it runs; keeps the socket, but not the
/// connection, open.
#[derive(Clone, Default)]
pub struct PathProbe(Option<ProbeSource>);

#[derive(Clone)]
enum ProbeSource {
    Kernel(Arc<TcpStream>),
    Told(Option<Transport>, Arc<dyn Fn() -> TcpInfo + Send + Sync>),
}

impl PathProbe {
    /// A probe of a socket.
    pub(crate) fn new(socket: Arc<TcpStream>) -> Self {
        Self(Some(ProbeSource::Kernel(socket)))
    }

    /// A probe of a connection that is not the kernel's: `tell` returns its state, and must not block.
    pub fn telling(tell: impl Fn() -> TcpInfo + Send + Sync + 'static) -> Self {
        Self(Some(ProbeSource::Told(None, Arc::new(tell))))
    }

    /// A probe of a QUIC connection, as [`telling`](Self::telling).
    pub(crate) fn of_quic(tell: impl Fn() -> TcpInfo + Send + Sync + 'static) -> Self {
        Self(Some(ProbeSource::Told(
            Some(Transport::Quic),
            Arc::new(tell),
        )))
    }

    /// The transport of the lane; `None` within one process.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        match self.0.as_ref()? {
            ProbeSource::Kernel(_) => Some(Transport::Tcp),
            ProbeSource::Told(transport, _) => *transport,
        }
    }

    /// The present state, in the terms of TCP; `None` where nothing reports it.
    #[must_use]
    pub fn read(&self) -> Option<TcpInfo> {
        match self.0.as_ref()? {
            ProbeSource::Kernel(socket) => tcp_info(socket).ok(),
            ProbeSource::Told(_, tell) => Some(tell()),
        }
    }

    /// Whether the peer has ended the connection, or it is lost, as far as is known without reading from it.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.read()
            .is_some_and(|info| info.established == Some(false))
    }

    /// The largest IP packet that the lane's path carries, as far as the kernel knows; `None` where no kernel's TCP
    /// carries the lane.
    #[must_use]
    pub fn mtu(&self) -> Option<u32> {
        let socket = self.kernel()?;
        zmove_sockopt::path_mtu(&**socket, socket.peer_addr().ok()?).ok()
    }

    /// The kernel's name of the present congestion control; `None` where no kernel's TCP carries the lane.
    #[must_use]
    pub fn congestion(&self) -> Option<String> {
        let name = SockRef::from(&**self.kernel()?).tcp_congestion().ok()?;
        let name: Vec<_> = name.into_iter().take_while(|byte| *byte != 0).collect();
        String::from_utf8(name).ok()
    }

    /// A copy of the connection's descriptor, which tells when the connection hangs up. It keeps the connection open.
    /// `None` where no kernel's TCP carries the lane.
    #[must_use]
    pub fn socket(&self) -> Option<OwnedFd> {
        self.kernel()?.try_clone().ok().map(OwnedFd::from)
    }

    fn kernel(&self) -> Option<&Arc<TcpStream>> {
        match self.0.as_ref()? {
            ProbeSource::Kernel(socket) => Some(socket),
            ProbeSource::Told(..) => None,
        }
    }

    /// The socket, without keeping it open; `None` where no kernel's TCP carries the lane.
    pub(crate) fn downgrade(&self) -> Option<Weak<TcpStream>> {
        self.kernel().map(Arc::downgrade)
    }

    /// Ends the connection for both sides, where a kernel's TCP carries it.
    pub fn break_off(&self) {
        // A connection that has ended already needs no breaking.
        let _ended = self.kernel().map(|socket| socket.shutdown(Shutdown::Both));
    }

    /// Gives the connection another congestion control, by its kernel name. Nothing happens where no kernel's
    /// TCP carries the lane.
    ///
    /// # Errors
    /// The kernel does not have it, or does not let this user choose it.
    pub fn set_congestion(&self, algorithm: &str) -> io::Result<()> {
        let set = |socket: &Arc<TcpStream>| {
            SockRef::from(&**socket).set_tcp_congestion(algorithm.as_bytes())
        };
        self.kernel().map_or(Ok(()), set)
    }
}

impl fmt::Debug for PathProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PathProbe")
    }
}
