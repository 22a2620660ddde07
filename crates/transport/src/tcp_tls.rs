//! Connections over TCP with mutually authenticated TLS 1.3.
//!
//! The client side is [`TcpDialer`], and the server side is [`Acceptor`]. Both return a [`Connection`], which is an
//! async stream for control that a [`TlsLane`](crate::TlsLane) can take over. The caller decides on the peer's
//! permissions. **Invariant:** the peer of a [`Connection`] has proved its key, uses TLS 1.3, and has agreed on the
//! protocol.

use std::{
    io::{self, Read as _},
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio_rustls::TlsStream;
use zmove_wire::PROTOCOL_NAME;

use crate::byte_stream::{ByteStream, delegate_stream};
use crate::path::{PathProbe, Transport};
use crate::record::TrafficSecrets;
use crate::trust::{Fingerprint, peer_fingerprint};

mod acceptor;
mod black_hole;
mod dialer;
mod forwarded_port;
mod socket;
mod stream_socket;
mod unsent_limit;
mod whole_records;

pub use acceptor::Acceptor;
pub(crate) use acceptor::{canonical, listen, own_greeting};
pub use black_hole::{BlackHole, SegmentLimit};
pub use dialer::TcpDialer;
pub(crate) use dialer::{
    ChosenAddress, Deadline, ResolvedHost, SILENCE_MAX, TcpConnected, greeting_fault, tls_fault,
    unless_other_version,
};
pub use forwarded_port::ForwardedPort;
pub use socket::SocketConfig;
pub(crate) use stream_socket::StreamSocket;
pub(crate) use unsent_limit::UnsentLimit;
use whole_records::WholeRecords;

/// Receive window of a lane, in bytes, until autotuning has measured the lane's speed. See
/// [`zmove_sockopt::open_receive_window`].
const LANE_WINDOW_BYTES: u32 = 8 << 20;

/// Receive window before the peer has proved a key, in bytes. A lane's first data arrives together with its first
/// message, and the initial window of 64 KiB would limit it. With this early size, the acknowledgments of the handshake
/// announce the window. A separate window update would be sent only after more data was received.
const EARLY_WINDOW_BYTES: u32 = 1 << 20;

/// An established connection to a peer whose key is known.
#[derive(Debug)]
pub struct Connection {
    /// The peer's key.
    pub peer: Fingerprint,
    /// The round-trip time. At the client, the kernel measured it when the connection was established. At the server
    /// and through ssh, it follows from the duration of the TLS handshake, which includes some computation.
    pub rtt: Duration,
    /// The peer's address. An IPv4 address is never in its IPv6-mapped form.
    pub address: SocketAddr,
    stream: TlsStream<WholeRecords>,
    secrets: Arc<TrafficSecrets>,
}

/// The parts of a connection for a layer that takes it over. The order of the peer's data is: `plaintext`, then
/// `records`, then the data that is still in the socket.
pub(crate) struct ConnectionParts {
    /// The socket, in blocking mode.
    pub(crate) socket: socket2::Socket,
    pub(crate) transport: Transport,
    pub(crate) unsent_limit: UnsentLimit,
    /// The TLS session, which holds no received data.
    pub(crate) session: rustls::Connection,
    pub(crate) secrets: Arc<TrafficSecrets>,
    pub(crate) plaintext: Vec<u8>,
    pub(crate) records: Vec<u8>,
}

impl Connection {
    /// Returns the negotiated TLS state: version, cipher suite and kind of handshake.
    #[must_use]
    pub fn session(&self) -> &rustls::CommonState {
        self.stream.get_ref().1
    }

    /// Splits the connection into its parts. In both directions, the last record must be complete, and all data must be
    /// flushed.
    pub(crate) fn into_parts(self) -> io::Result<ConnectionParts> {
        let (stream, mut session): (_, rustls::Connection) = match self.stream {
            TlsStream::Client(stream) => {
                let (stream, session) = stream.into_inner();
                (stream, session.into())
            }
            TlsStream::Server(stream) => {
                let (stream, session) = stream.into_inner();
                (stream, session.into())
            }
        };
        let plaintext = drain(&mut session)?;
        let (socket, records) = stream.into_parts()?;
        let transport = socket.transport();
        let socket = socket.into_blocking()?;
        zmove_sockopt::open_receive_window(&socket, LANE_WINDOW_BYTES)?;
        let unsent_limit = UnsentLimit::new(&socket);
        Ok(ConnectionParts {
            socket,
            transport,
            unsent_limit,
            session,
            secrets: self.secrets,
            plaintext,
            records,
        })
    }

    /// Closes the connection if the peer acknowledges no data, or offers no window, for `longest`. Only for control: a
    /// lane may legitimately wait for a slow disk at the other end. Has no effect through ssh, which has its own limit.
    ///
    /// # Errors
    ///
    /// Returns an error if the socket refuses the option.
    pub fn set_unacknowledged_max(&self, longest: Duration) -> io::Result<()> {
        match self.transport() {
            Transport::Ssh => Ok(()),
            Transport::Tcp | Transport::Quic => {
                socket2::SockRef::from(self).set_tcp_user_timeout(Some(longest))
            }
        }
    }

    /// Returns a probe that reads the state of the connection while other tasks use it.
    pub(crate) fn probe(&self) -> PathProbe {
        let socket = self.as_fd().try_clone_to_owned().map(socket2::Socket::from);
        socket
            .map(|socket| PathProbe::new(Arc::new(socket), self.transport()))
            .unwrap_or_default()
    }

    fn stream(&mut self) -> Pin<&mut dyn ByteStream> {
        Pin::new(&mut self.stream)
    }

    /// Returns the transport below TLS.
    pub(crate) fn transport(&self) -> Transport {
        self.stream.get_ref().0.transport()
    }

    /// Checks the negotiated state. Returns `None` if the peer does not speak the protocol.
    fn new(
        stream: TlsStream<WholeRecords>,
        secrets: Arc<TrafficSecrets>,
        address: SocketAddr,
        rtt: Duration,
    ) -> Option<Self> {
        let session = stream.get_ref().1;
        let peer = peer_fingerprint(session).ok()?;
        let speaks_zmove = session.alpn_protocol() == Some(PROTOCOL_NAME);
        speaks_zmove.then_some(Self {
            peer,
            rtt,
            address,
            stream,
            secrets,
        })
    }
}

/// Reads the plaintext that TLS has already decrypted.
fn drain(session: &mut rustls::Connection) -> io::Result<Vec<u8>> {
    let mut plaintext = Vec::new();
    match session.reader().read_to_end(&mut plaintext) {
        // No more data was received, or the socket has ended. A later read of the socket reports its end again.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::UnexpectedEof
            ) =>
        {
            Ok(plaintext)
        }
        Err(error) => Err(error),
        // The peer has ended the connection gracefully.
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Returns the TLS error inside the error of a handshake, if there is one.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// Returns whether the error means that the peer has no version, cipher suite or protocol in common with this side.
const fn speaks_otherwise(error: &rustls::Error) -> bool {
    use rustls::{AlertDescription as Alert, Error};
    matches!(
        error,
        Error::PeerIncompatible(_)
            | Error::NoApplicationProtocol
            | Error::AlertReceived(
                Alert::ProtocolVersion | Alert::HandshakeFailure | Alert::NoApplicationProtocol
            )
    )
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().0.as_fd()
    }
}

delegate_stream!(Connection);
