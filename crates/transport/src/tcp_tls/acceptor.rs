//! The server side: a listener, and one handshake per connection.
//!
//! The caller accepts connections in one task and runs each handshake in a separate task, with a limit on concurrent
//! handshakes. A slow or hostile client therefore does not block others. **Invariant:** this module parses only the TLS
//! data of a client.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::{AlertDescription, CertificateError, Error as TlsError, ServerConfig, server};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};
use zmove_types::{Lock, TransferId};
use zmove_wire::{ANY_PROTOCOL_NAME, Greeting, PATH_CHECK_BYTES, PATH_CHECK_NAME, Role};

use super::{Connection, EARLY_WINDOW_BYTES, SocketConfig, StreamSocket, WholeRecords, tls_error};
use crate::{
    error::{AcceptError, BindError},
    record::TrafficSecrets,
    trust::{Identity, server_config},
};

/// Maximum number of connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1024;

/// Listens for clients.
#[derive(Debug)]
pub struct Acceptor {
    /// The listening socket. `None` once it is closed.
    listener: Lock<Option<Arc<TcpListener>>>,
    tls: ServerConfig,
}

impl Acceptor {
    /// Accepts clients on a listening socket that another program has bound. Must be called in a tokio runtime, which
    /// runs the listener.
    ///
    /// # Errors
    ///
    /// Returns an error if the socket is not a listening TCP socket, or if it cannot be configured.
    pub fn on(
        listener: std::net::TcpListener,
        identity: &Identity,
        socket: &SocketConfig,
    ) -> Result<Self, BindError> {
        let address = listener.local_addr().map_err(BindError::Inherited)?;
        let applied = socket.apply(&socket2::SockRef::from(&listener));
        applied.map_err(|source| BindError::Socket { address, source })?;
        let adopted = listener
            .set_nonblocking(true)
            .and_then(|()| TcpListener::from_std(listener));
        let listener = adopted.map_err(|source| BindError::Listen { address, source })?;
        Ok(Self {
            listener: Lock::new(Some(Arc::new(listener))),
            tls: server_config(identity),
        })
    }

    /// Returns the address that clients can dial.
    ///
    /// # Errors
    ///
    /// Returns an error if the socket is closed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listening()?.local_addr()
    }

    fn listening(&self) -> io::Result<Arc<TcpListener>> {
        let listener = self.listener.lock().clone();
        listener.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Closes the listening socket, so that another process can listen on its port. Established connections continue.
    pub fn stop_listening(&self) {
        *self.listener.lock() = None;
    }

    /// Waits for the next TCP connection and returns it with its address. Cancellation safe: dropping the future loses
    /// no connection.
    ///
    /// # Errors
    ///
    /// Returns an error if the client has already disconnected, or if the system is out of descriptors or memory. The
    /// caller should pause and retry.
    pub async fn accept_tcp(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, address) = self.listening()?.accept().await?;
        Ok((socket, canonical(address)))
    }

    /// Performs the handshake, in which the peer proves its key. Takes at most `deadline`. The caller must then
    /// authorize the peer by its fingerprint. Calls `spoken` when the client's first message is received.
    ///
    /// # Errors
    ///
    /// Returns [`AcceptError`] if the client is too slow, does not speak the zmove protocol, or does not prove a key.
    pub async fn handshake(
        &self,
        socket: TcpStream,
        deadline: Duration,
        spoken: impl FnOnce(),
    ) -> Result<Connection, AcceptError> {
        let address = canonical(socket.peer_addr().map_err(AcceptError::Gone)?);
        timeout(deadline, self.secure(socket, address, spoken))
            .await
            .map_err(|_| AcceptError::TimedOut { waited: deadline })?
    }

    async fn secure(
        &self,
        socket: TcpStream,
        address: SocketAddr,
        spoken: impl FnOnce(),
    ) -> Result<Connection, AcceptError> {
        zmove_sockopt::open_receive_window(&socket, EARLY_WINDOW_BYTES)
            .map_err(AcceptError::Gone)?;
        let socket = WholeRecords::new(StreamSocket::Tcp(socket));
        let secrets = Arc::<TrafficSecrets>::default();
        let hello = LazyConfigAcceptor::new(server::Acceptor::default(), socket)
            .await
            .map_err(handshake_error)?;
        spoken();
        // The client's next message arrives one round trip after our answer.
        let answered = Instant::now();
        let mut stream = hello
            .into_stream(secrets.of_server(&self.tls))
            .await
            .map_err(handshake_error)?;
        let protocol = stream.get_ref().1.alpn_protocol();
        if protocol == Some(ANY_PROTOCOL_NAME) {
            send_and_close(&mut stream, &own_greeting()).await?;
            return Err(AcceptError::OtherVersion);
        }
        if protocol == Some(PATH_CHECK_NAME) {
            send_and_close(&mut stream, &[0; PATH_CHECK_BYTES]).await?;
            return Err(AcceptError::Unused);
        }
        Connection::new(stream.into(), secrets, address, answered.elapsed())
            .ok_or(AcceptError::NotZmove)
    }
}

/// Sends the final message of a connection and closes the connection.
async fn send_and_close(
    stream: &mut TlsStream<WholeRecords>,
    message: &[u8],
) -> Result<(), AcceptError> {
    stream.write_all(message).await.map_err(AcceptError::Gone)?;
    stream.shutdown().await.map_err(AcceptError::Gone)
}

/// Opens a socket that listens on `address`. Port 0 selects a free port. The IPv6 wildcard `::` also accepts IPv4.
pub(crate) fn listen(
    address: SocketAddr,
    config: &SocketConfig,
) -> Result<std::net::TcpListener, BindError> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))
        .map_err(|source| BindError::Listen { address, source })?;
    config
        .apply(&(&socket).into())
        .map_err(|source| BindError::Socket { address, source })?;
    let listen = || {
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|source| BindError::Listen { address, source })?;
    Ok(socket.into())
}

/// Returns the greeting that is sent to a client that speaks another version. The client reads this side's version from
/// it.
pub(crate) fn own_greeting() -> [u8; Greeting::BYTES] {
    Greeting::new(Role::Control, TransferId([0; 16])).encode()
}

pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn handshake_error(error: io::Error) -> AcceptError {
    let Some(source) = tls_error(&error).cloned() else {
        return AcceptError::Closed(error);
    };
    match &source {
        TlsError::NoCertificatesPresented => AcceptError::NoClientKey,
        TlsError::InvalidCertificate(CertificateError::BadSignature) => {
            AcceptError::ClientKeyUnproven
        }
        TlsError::InvalidMessage(_) => AcceptError::NotTls(source),
        TlsError::AlertReceived(
            AlertDescription::CertificateUnknown
            | AlertDescription::BadCertificate
            | AlertDescription::DecryptError,
        ) => AcceptError::HostKeyRefused,
        error if super::speaks_otherwise(error) => AcceptError::NotZmove,
        _ => AcceptError::Handshake(source),
    }
}
