//! The daemon's side: TCP and UDP on the same port.
//!
//! **Invariant:** over any transport, a channel is returned only after its peer has proved a key.

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

/// A connection attempt by a client that has not proved a key.
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
    /// Listens on `address` with the transports in `choice`, both on the same port. Port 0 selects a free port. Must be
    /// called in a tokio runtime, which runs the listener.
    ///
    /// # Errors
    /// Returns an error if the address cannot be used, or if the socket cannot be configured.
    pub async fn bind(
        address: SocketAddr,
        identity: &Identity,
        choice: TransportChoice,
        socket: &SocketConfig,
    ) -> Result<Self, BindError> {
        Self::on(Inherited::bind(address, choice, socket)?, identity, socket)
    }

    /// Listens on one or two sockets that another program has bound. The sockets may have different addresses. Must be
    /// called in a tokio runtime, which runs the listener.
    ///
    /// # Errors
    /// Returns an error if there is no socket, if the TCP socket does not listen, or if a socket cannot be configured.
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

    /// Returns the key of this side.
    #[must_use]
    pub const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns the address that clients can dial.
    ///
    /// # Errors
    /// Returns an error if the socket is closed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match (&self.tcp, &self.quic) {
            (Some(tcp), _) => tcp.local_addr(),
            (None, Some(quic)) => quic.endpoint.local_addr(),
            (None, None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Returns the size of the kernel's receive buffer for UDP in bytes, or `None` without UDP. It limits the speed of
    /// QUIC.
    #[must_use]
    pub fn udp_buffer_bytes(&self) -> Option<usize> {
        self.quic.as_ref().map(|quic| quic.receive_buffer_bytes)
    }

    /// Waits for the next client. Cancellation safe: dropping the future loses no client.
    ///
    /// # Errors
    /// Returns an error if the client has already disconnected, or if the system is out of descriptors or memory. The
    /// caller should pause and retry.
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
                None => Err(io::Error::other("the UDP socket was closed")),
            },
        }
    }

    /// Performs the handshake, in which the peer proves its key. Takes at most `deadline`. The caller must then
    /// authorize the peer by its fingerprint. Calls `spoken` when the client's first message is received. For a QUIC
    /// client, this happens during the handshake.
    ///
    /// # Errors
    /// Returns [`AcceptError`] if the client is too slow, does not speak the zmove protocol, or does not prove a key.
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

    /// Stops accepting clients and closes the listening TCP socket. The UDP socket carries the QUIC connections and is
    /// closed with the last of them.
    pub fn stop_listening(&self) {
        if let Some(tcp) = &self.tcp {
            tcp.stop_listening();
        }
        if let Some(quic) = &self.quic {
            quic.endpoint.set_server_config(None);
        }
    }

    /// Closes all QUIC connections gracefully.
    pub fn close(&self) {
        if let Some(quic) = &self.quic {
            quic.endpoint.close(quic::DONE, b"");
        }
    }
}

impl Incoming {
    /// Returns the address of the client. Over QUIC, it may be spoofed.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests that a QUIC client proves its address by dialing again. Returns `None` if the request was sent. Use
    /// this function while many clients are connecting.
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
