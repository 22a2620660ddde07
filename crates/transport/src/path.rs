//! Probes of the connections that carry lanes. The program uses them to report on the network path and to tune the
//! lanes.
//!
//! A probe can be used independently of its lane, whose thread may be blocked in a write for a long time on a slow
//! path.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use socket2::Socket;
use zmove_sockopt::{TcpInfo, tcp_info};

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Transport {
    /// TLS 1.3 on TCP.
    Tcp,
    /// QUIC, which is TLS 1.3 on UDP.
    Quic,
    /// TLS 1.3 through ssh, which forwards it to the receiver's port.
    Ssh,
}

/// A handle to read the state of a lane's connection and change its settings. A probe keeps the socket's descriptor
/// open, but the lane can still shut down the connection.
#[derive(Clone, Default)]
pub struct PathProbe(Option<ProbeSource>);

#[derive(Clone)]
enum ProbeSource {
    Kernel(Arc<Socket>),
    /// ssh does not report the state of its connection.
    Ssh,
    Callback(Option<Transport>, Arc<dyn Fn() -> TcpInfo + Send + Sync>),
}

impl PathProbe {
    /// Creates a probe of a socket. If the connection is forwarded by ssh, the probe reports only that.
    pub(crate) fn new(socket: Arc<Socket>, transport: Transport) -> Self {
        Self(Some(match transport {
            Transport::Ssh => ProbeSource::Ssh,
            Transport::Tcp | Transport::Quic => ProbeSource::Kernel(socket),
        }))
    }

    /// Creates a probe of a connection that does not use the kernel's TCP. `callback` returns the state of the
    /// connection and must not block.
    pub fn telling(callback: impl Fn() -> TcpInfo + Send + Sync + 'static) -> Self {
        Self(Some(ProbeSource::Callback(None, Arc::new(callback))))
    }

    /// Creates a probe of a QUIC connection, like [`telling`](Self::telling).
    pub(crate) fn of_quic(callback: impl Fn() -> TcpInfo + Send + Sync + 'static) -> Self {
        Self(Some(ProbeSource::Callback(
            Some(Transport::Quic),
            Arc::new(callback),
        )))
    }

    /// Returns the transport of the lane, or `None` for a lane inside one process.
    #[must_use]
    pub fn transport(&self) -> Option<Transport> {
        match self.0.as_ref()? {
            ProbeSource::Kernel(_) => Some(Transport::Tcp),
            ProbeSource::Ssh => Some(Transport::Ssh),
            ProbeSource::Callback(transport, _) => *transport,
        }
    }

    /// Returns the current state of the connection, or `None` if it is not available. For QUIC, the values correspond
    /// to those of TCP.
    #[must_use]
    pub fn read(&self) -> Option<TcpInfo> {
        match self.0.as_ref()? {
            ProbeSource::Kernel(socket) => tcp_info(socket).ok(),
            ProbeSource::Ssh => None,
            ProbeSource::Callback(_, callback) => Some(callback()),
        }
    }

    /// Returns whether the connection is known to have ended or to be lost. Does not read from the connection.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.read()
            .is_some_and(|info| info.established == Some(false))
    }

    /// Returns the size of the largest IP packet that the lane's path can carry, as far as the kernel knows, in bytes.
    /// Returns `None` if the lane does not use the kernel's TCP.
    #[must_use]
    pub fn mtu(&self) -> Option<u32> {
        let socket = self.kernel()?;
        zmove_sockopt::path_mtu(&**socket, socket.peer_addr().ok()?.as_socket()?).ok()
    }

    /// Returns the kernel's name of the current congestion control, or `None` if the lane does not use the kernel's
    /// TCP.
    #[must_use]
    pub fn congestion(&self) -> Option<String> {
        let name = self.kernel()?.tcp_congestion().ok()?;
        let name: Vec<_> = name.into_iter().take_while(|byte| *byte != 0).collect();
        String::from_utf8(name).ok()
    }

    /// Returns a duplicate of the connection's descriptor, for detecting a hangup by `poll`. It keeps the connection
    /// open. Returns `None` if the lane does not use the kernel's TCP.
    #[must_use]
    pub fn socket(&self) -> Option<OwnedFd> {
        self.kernel()?.try_clone().ok().map(OwnedFd::from)
    }

    fn kernel(&self) -> Option<&Arc<Socket>> {
        match self.0.as_ref()? {
            ProbeSource::Kernel(socket) => Some(socket),
            ProbeSource::Ssh | ProbeSource::Callback(..) => None,
        }
    }

    /// Returns a weak reference to the socket, or `None` if the lane does not use the kernel's TCP.
    pub(crate) fn downgrade(&self) -> Option<Weak<Socket>> {
        self.kernel().map(Arc::downgrade)
    }

    /// Shuts the connection down in both directions, if it uses the kernel's TCP.
    pub fn break_off(&self) {
        // The shutdown fails if the connection has already ended, which is harmless.
        let _ended = self.kernel().map(|socket| socket.shutdown(Shutdown::Both));
    }

    /// Sets the congestion control by its kernel name. Has no effect if the lane does not use the kernel's TCP.
    ///
    /// # Errors
    /// Returns an error if the kernel does not support the algorithm, or does not permit this user to choose it.
    pub fn set_congestion(&self, algorithm: &str) -> io::Result<()> {
        let set = |socket: &Arc<Socket>| socket.set_tcp_congestion(algorithm.as_bytes());
        self.kernel().map_or(Ok(()), set)
    }
}

impl fmt::Debug for PathProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PathProbe")
    }
}
