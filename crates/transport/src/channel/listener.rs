//! The daemon's side: TCP and UDP at one port.
//!
//! **Invariant:** a channel is returned only when its peer has proved a key, whatever the transport.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;

use zmove_wire::TransportChoice;

use super::{Channel, Inherited};
use crate::error::{AcceptError, BindError};
use crate::quic::{self, QuicAcceptor};
use crate::tcp_tls::{self, Acceptor, SocketConfig};
use crate::trust::{Fingerprint, Identity};

/// Listens for clients.
#[derive(Debug)]
pub struct Listener {
    tcp: Option<Acceptor>,
    quic: Option<QuicAcceptor>,
    fingerprint: Fingerprint,
}

/// A client that wants a connection and has proved nothing.
#[derive(Debug)]
pub struct Incoming {
    address: SocketAddr,
    accepted: Accepted,
}

#[derive(Debug)]
enum Accepted {
    Tcp(TcpStream),
    Quic(Box<quinn::Incoming>),
}

impl Listener {
    /// Listens on `address` by the transports of `choice`, both at the same port; port 0 stands for any free one. Runs
    /// on the tokio runtime that calls.
    ///
    /// # Errors
    /// The address cannot be used, or the socket cannot be set up as configured.
    pub async fn bind(
        address: SocketAddr,
        identity: &Identity,
        choice: TransportChoice,
        socket: &SocketConfig,
    ) -> Result<Self, BindError> {
        Self::on(Inherited::bind(address, choice, socket)?, identity, socket)
    }

    /// Listens on sockets that another program has bound, one or both, each where it is bound. Runs on the tokio
    /// runtime that calls.
    ///
    /// # Errors
    /// There is none, or one is no listening socket, or cannot be set up as configured.
    pub fn on(
        sockets: Inherited,
        identity: &Identity,
        socket: &SocketConfig,
    ) -> Result<Self, BindError> {
        let Inherited { tcp, udp } = sockets;
        if tcp.is_none() && udp.is_none() {
            return Err(BindError::Inherited(io::ErrorKind::NotConnected.into()));
        }
        let tcp = tcp
            .map(|tcp| Acceptor::on(tcp, identity, socket))
            .transpose()?;
        let quic = udp.map(|udp| QuicAcceptor::on(udp, identity)).transpose()?;
        Ok(Self {
            tcp,
            quic,
            fingerprint: identity.fingerprint(),
        })
    }

    /// The key by which this side proves itself.
    #[must_use]
    pub const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The address that clients can dial.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match (&self.tcp, &self.quic) {
            (Some(tcp), _) => tcp.local_addr(),
            (None, Some(quic)) => quic.endpoint.local_addr(),
            (None, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The bytes of UDP that the kernel holds until they are received, where there is UDP; they limit how fast QUIC can
    /// be.
    #[must_use]
    pub fn udp_buffer_bytes(&self) -> Option<usize> {
        self.quic.as_ref().map(|quic| quic.receive_buffer_bytes)
    }

    /// The next client. Dropping the future loses none.
    ///
    /// # Errors
    /// The client is gone already, or the system is out of descriptors or memory: pause and go on.
    pub async fn accept(&self) -> io::Result<Incoming> {
        let by_tcp = async {
            match &self.tcp {
                Some(tcp) => tcp.accept_tcp().await,
                None => std::future::pending().await,
            }
        };
        let by_quic = async {
            match &self.quic {
                Some(quic) => quic.endpoint.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            tcp = by_tcp => tcp.map(|(socket, address)| Incoming { address, accepted: Accepted::Tcp(socket) }),
            accepted = by_quic => match accepted {
                Some(incoming) => {
                    let address = tcp_tls::canonical(incoming.remote_address());
                    Ok(Incoming { address, accepted: Accepted::Quic(Box::new(incoming)) })
                }
                None => Err(io::Error::other("the UDP socket is gone")),
            },
        }
    }

    /// Has the peer prove its key, within `deadline`. The caller then decides by the fingerprint. Calls `spoken` when
    /// the client's first message has come, which over QUIC it always has.
    ///
    /// # Errors
    /// The client is slow, not zmove, or does not prove a key; see [`AcceptError`].
    pub async fn handshake(
        &self,
        incoming: Incoming,
        deadline: Duration,
        spoken: impl FnOnce(),
    ) -> Result<Channel, AcceptError> {
        match (incoming.accepted, &self.tcp, &self.quic) {
            (Accepted::Quic(incoming), _, Some(quic)) => {
                spoken();
                Ok(Channel::quic(quic.handshake(*incoming, deadline).await?))
            }
            (Accepted::Tcp(socket), Some(tcp), _) => {
                Ok(Channel::tcp(tcp.handshake(socket, deadline, spoken).await?))
            }
            (Accepted::Tcp(_), None, _) | (Accepted::Quic(_), _, None) => {
                Err(AcceptError::Gone(io::ErrorKind::NotConnected.into()))
            }
        }
    }

    /// Takes no more clients and closes the listening socket of TCP. That of UDP carries the connections over QUIC, and
    /// is closed with the last of them.
    pub fn stop_listening(&self) {
        if let Some(tcp) = &self.tcp {
            tcp.stop_listening();
        }
        if let Some(quic) = &self.quic {
            quic.endpoint.set_server_config(None);
        }
    }

    /// Closes all QUIC connections, in order.
    pub fn close(&self) {
        if let Some(quic) = &self.quic {
            quic.endpoint.close(quic::DONE, b"");
        }
    }
}

impl Incoming {
    /// The address that the client has given; over TCP it is proved.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Has a client prove that its address is its own by dialling again; `None` when it has been asked to. For use
    /// while there are many clients.
    #[must_use]
    pub fn send_retry(self) -> Option<Self> {
        let Self { address, accepted } = self;
        match accepted {
            Accepted::Tcp(_) => Some(Self { address, accepted }),
            Accepted::Quic(incoming) => {
                let incoming = quic::send_retry(*incoming)?;
                Some(Self {
                    address,
                    accepted: Accepted::Quic(Box::new(incoming)),
                })
            }
        }
    }
}
