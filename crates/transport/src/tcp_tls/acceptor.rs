//! The server side: a listener, and a handshake for each connection.
//!
//! The caller accepts in one task and runs each handshake in a task of its own, a limited number at a time, so that a
//! slow or hostile client does not block others. **Invariant:** nothing the client sends is parsed here but TLS.

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

use super::{Connection, EARLY_WINDOW_BYTES, SocketConfig, WholeRecords, tls_error};
use crate::{
    error::{AcceptError, BindError},
    record::TrafficSecrets,
    trust::{Identity, server_config},
};

/// The most connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 1024;

/// Listens for clients.
#[derive(Debug)]
pub struct Acceptor {
    /// The listening socket, until it is closed.
    listener: Lock<Option<Arc<TcpListener>>>,
    tls: ServerConfig,
}

impl Acceptor {
    /// Listens on a socket that another program has bound and made to listen. Runs on the tokio runtime that calls.
    ///
    /// # Errors
    ///
    /// The socket is no listening TCP socket, or cannot be set up as configured.
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

    /// The address that clients can dial.
    ///
    /// # Errors
    ///
    /// The socket is gone.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listening()?.local_addr()
    }

    fn listening(&self) -> io::Result<Arc<TcpListener>> {
        let listener = self.listener.lock().clone();
        listener.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Closes the listening socket, so that another process can listen at its port. Connections go on.
    pub fn stop_listening(&self) {
        *self.listener.lock() = None;
    }

    /// The next TCP connection and its address. Dropping the future loses none.
    ///
    /// # Errors
    ///
    /// The client is gone already, or the system is out of descriptors or memory: pause and go on.
    pub async fn accept_tcp(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, address) = self.listening()?.accept().await?;
        Ok((socket, canonical(address)))
    }

    /// Has the peer prove its key, within `deadline`. The caller then decides by the fingerprint. Calls `spoken` when
    /// the client's first message has come.
    ///
    /// # Errors
    ///
    /// The client is slow, not zmove, or does not prove a key; see [`AcceptError`].
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
        let socket = WholeRecords::new(socket);
        let secrets = Arc::<TrafficSecrets>::default();
        let hello = LazyConfigAcceptor::new(server::Acceptor::default(), socket)
            .await
            .map_err(handshake_error)?;
        spoken();
        // From our answer to the client's next message is one round trip.
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

/// Sends the only message on a connection.
async fn send_and_close(
    stream: &mut TlsStream<WholeRecords>,
    message: &[u8],
) -> Result<(), AcceptError> {
    stream.write_all(message).await.map_err(AcceptError::Gone)?;
    stream.shutdown().await.map_err(AcceptError::Gone)
}

/// A socket that listens on `address`; port 0 stands for any free one, the IPv6 wildcard `::` for IPv4 as well.
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

/// The greeting for a client that speaks another version, which reads this side's version there.
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
