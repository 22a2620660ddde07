//! The server side: one UDP socket for all connections, and one handshake per connection.
//!
//! **Invariant:** this module parses only the QUIC and TLS data of a client. While many handshakes are pending, only
//! clients that have proved their address can begin one.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{ConnectionError, Endpoint, Incoming, TokioRuntime};
use rustls::AlertDescription as Alert;
use tokio::time::timeout;
use zmove_wire::ANY_PROTOCOL_NAME;

use super::dialer::alert;
use super::settings::{self, QuicCongestion};
use super::{DONE, QuicConnection, protocol_of, socket};
use crate::error::{AcceptError, BindError};
use crate::tcp_tls::{canonical, own_greeting};
use crate::trust::{Identity, server_config};

/// Listens for clients over UDP.
#[derive(Debug)]
pub(crate) struct QuicAcceptor {
    pub(crate) endpoint: Endpoint,
    /// Size of the kernel's receive buffer in bytes.
    pub(crate) receive_buffer_bytes: usize,
    /// The settings of connections, except for the datagram size.
    config: quinn::ServerConfig,
}

impl QuicAcceptor {
    /// Listens on a bound socket. Must be called in a tokio runtime, which runs the endpoint.
    ///
    /// # Errors
    /// Returns an error if the socket is not a bound UDP socket.
    pub(crate) fn on(socket: UdpSocket, identity: &Identity) -> Result<Self, BindError> {
        let address = socket.local_addr().map_err(BindError::Inherited)?;
        let failed = |source| BindError::Listen { address, source };
        let receive_buffer_bytes = settings::enlarge_buffers(&socket).map_err(failed)?;
        let config = server(identity).map_err(failed)?;
        let socket = socket::wrap(socket).map_err(failed)?;
        let own = settings::endpoint(identity);
        let endpoint = Endpoint::new_with_abstract_socket(
            own,
            Some(config.clone()),
            socket,
            Arc::new(TokioRuntime),
        );
        Ok(Self {
            endpoint: endpoint.map_err(failed)?,
            receive_buffer_bytes,
            config,
        })
    }

    /// Performs the handshake, in which the peer proves its key, and waits until the peer opens its stream. Takes at
    /// most `deadline`.
    pub(crate) async fn handshake(
        &self,
        incoming: Incoming,
        deadline: Duration,
    ) -> Result<QuicConnection, AcceptError> {
        let datagram_bytes_max = settings::datagram_bytes_max(canonical(incoming.remote_address()));
        let mut config = self.config.clone();
        config.transport_config(Arc::new(transport(datagram_bytes_max)));
        let secured = timeout(deadline, secure(incoming, config)).await;
        secured.map_err(|_| AcceptError::TimedOut { waited: deadline })?
    }
}

/// Binds a socket to `address`, with large buffers if permitted. The IPv6 wildcard `::` also accepts IPv4.
pub(crate) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, Some(socket2::Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    let socket = socket.into();
    settings::enlarge_buffers(&socket)?;
    Ok(socket)
}

/// Requests that a client proves its address. Returns `None` if the request was sent. Returns the client unchanged if
/// it has already proved its address or if the request cannot be sent.
pub(crate) fn send_retry(incoming: Incoming) -> Option<Incoming> {
    if incoming.remote_address_validated() || !incoming.may_retry() {
        return Some(incoming);
    }
    incoming.retry().err().map(quinn::RetryError::into_incoming)
}

async fn secure(
    incoming: Incoming,
    config: quinn::ServerConfig,
) -> Result<QuicConnection, AcceptError> {
    let accepted = incoming
        .accept_with(Arc::new(config))
        .map_err(handshake_error)?;
    let connection = accepted.await.map_err(handshake_error)?;
    if protocol_of(&connection).as_deref() == Some(ANY_PROTOCOL_NAME) {
        connection.close(DONE, &own_greeting());
        return Err(AcceptError::OtherVersion);
    }
    let (sending, receiving) = match connection.accept_bi().await {
        Ok(stream) => stream,
        // This is not an error. On a short path, a client dials more lanes than it needs and closes the unused lanes.
        Err(ConnectionError::ApplicationClosed(_)) => return Err(AcceptError::Unused),
        Err(error) => return Err(handshake_error(error)),
    };
    let (whole, mut linger) = QuicConnection::new(connection, sending, receiving, Arc::default());
    tokio::spawn(async move { linger.wait().await });
    whole.ok_or(AcceptError::NotZmove)
}

fn handshake_error(error: ConnectionError) -> AcceptError {
    match (&error, alert(&error)) {
        (
            ConnectionError::ConnectionClosed(_),
            Some(Alert::BadCertificate | Alert::CertificateUnknown | Alert::DecryptError),
        ) => AcceptError::HostKeyRefused,
        (ConnectionError::TransportError(_), Some(Alert::CertificateRequired)) => {
            AcceptError::NoClientKey
        }
        (ConnectionError::TransportError(_), Some(Alert::DecryptError)) => {
            AcceptError::ClientKeyUnproven
        }
        (_, Some(Alert::NoApplicationProtocol)) => AcceptError::NotZmove,
        (ConnectionError::TransportError(_), _) => AcceptError::Quic(error.into()),
        _ => AcceptError::Closed(error.into()),
    }
}

fn server(identity: &Identity) -> io::Result<quinn::ServerConfig> {
    let mut tls = server_config(identity);
    // No data is accepted before the handshake is complete.
    tls.max_early_data_size = 0;
    let crypto = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    let secret = identity.derive(TOKEN_CONTEXT);
    let token_key = aws_lc_rs::hkdf::Salt::new(aws_lc_rs::hkdf::HKDF_SHA256, &[]).extract(&secret);
    let mut config = quinn::ServerConfig::new(Arc::new(crypto), Arc::new(token_key));
    config
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES_MAX)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL_MAX);
    Ok(config)
}

/// Returns the settings of a connection. `datagram_bytes_max` is the largest datagram that the first link can carry. It
/// limits the datagrams that this side sends.
fn transport(datagram_bytes_max: u16) -> quinn::TransportConfig {
    let mut transport = settings::transport(
        QuicCongestion::default(),
        datagram_bytes_max,
        Arc::default(),
    );
    transport.receive_window(settings::UNADMITTED_WINDOW_BYTES.into());
    transport
}

const TOKEN_CONTEXT: &str = "zmove 2026-11-21 quic retry token";
/// Maximum number of clients that wait for their handshake to begin.
const INCOMING_MAX: usize = 1024;
/// Maximum number of bytes that this side buffers for one waiting client. The next constant is the limit for all
/// waiting clients together.
const INCOMING_BYTES_MAX: u64 = 16 << 10;
const INCOMING_BYTES_TOTAL_MAX: u64 = 4 << 20;
