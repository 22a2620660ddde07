//! QUIC connections. Each QUIC connection has one stream and replaces one TCP connection, with the same keys and the
//! same checks. QUIC is used at sites that let only UDP through, and on paths that lose packets.
//!
//! The implementation is quinn, with the same rustls, crypto provider and verifiers as for TCP. The client gives each
//! connection its own UDP socket and a thread with its own runtime ([`QuicDialer`]), so that several connections use
//! several cores. The daemon has one socket on the port of its TCP listener ([`QuicAcceptor`]), and its runtime spreads
//! the connections over its threads. On both sides a connection is a [`QuicConnection`]: an async stream for control,
//! which a [`QuicLane`] can take over.
//!
//! When a process is killed, the kernel closes its TCP connections but not its QUIC connections. The peer detects the
//! loss only by its idle timeout. A shorter timeout would also end pushes whose path is interrupted for a few seconds.
//!
//! **Invariant:** the peer of a [`QuicConnection`] has proved its key and has agreed on the protocol. The connection is
//! closed only after all of its data has been acknowledged, or when it is no longer needed.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use quinn::{
    ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError,
    crypto::rustls::HandshakeData,
};
use rustls_pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::mpsc::{UnboundedSender, unbounded_channel},
};
use zmove_wire::PROTOCOL_NAME;

use crate::tcp_tls::canonical;
use crate::trust::Fingerprint;

mod acceptor;
mod dialer;
mod lane;
mod lane_bytes;
mod linger;
mod resume;
mod settings;
mod socket;
mod timer;
mod tolerant;

pub(crate) use acceptor::{QuicAcceptor, bind, send_retry};
pub(crate) use dialer::QuicDialer;
pub(crate) use lane::QuicLane;
pub use resume::{PathEnds, Resumption, SavedWindow};
pub(crate) use settings::CONTROL_WINDOW_BYTES;
pub use settings::{QuicCongestion, UnknownCongestion};

use lane_bytes::LaneBytes;
use linger::Linger;
use tolerant::PathAccount;

/// An established connection to a peer whose key is known.
#[derive(Debug)]
pub(crate) struct QuicConnection {
    pub(crate) peer: Fingerprint,
    pub(crate) address: SocketAddr,
    pub(crate) connection: quinn::Connection,
    receiving: RecvStream,
    /// The sending half of the stream. `None` once a lane has taken it over or it has been finished.
    sending: Option<SendStream>,
    /// True until anything has been written to the stream.
    silent: bool,
    finished: bool,
    lane_bytes: Arc<LaneBytes>,
    account: Arc<PathAccount>,
    /// Passes the finished stream to the [`Linger`], which closes the connection when the peer has acknowledged all
    /// data.
    linger: UnboundedSender<SendStream>,
}

impl QuicConnection {
    /// Creates a connection with its single stream. Also returns the [`Linger`], which keeps the connection open until
    /// its end. The returned connection is `None` if the peer does not speak the protocol.
    fn new(
        connection: quinn::Connection,
        sending: SendStream,
        receiving: RecvStream,
        account: Arc<PathAccount>,
    ) -> (Option<Self>, Linger) {
        let lane_bytes = Arc::<LaneBytes>::default();
        let (linger, left) = unbounded_channel();
        let whole = peer_of(&connection).map(|peer| Self {
            peer,
            address: canonical(connection.remote_address()),
            connection: connection.clone(),
            receiving,
            sending: Some(sending),
            silent: true,
            finished: false,
            lane_bytes: Arc::clone(&lane_bytes),
            account,
            linger,
        });
        (
            whole,
            Linger {
                connection,
                lane_bytes,
                left,
            },
        )
    }

    /// Returns the certificates that the peer presented.
    pub(crate) fn certificates(&self) -> Vec<CertificateDer<'static>> {
        chain_of(&self.connection).unwrap_or_default()
    }

    fn sending(&mut self) -> io::Result<&mut SendStream> {
        self.sending
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Finishes the stream. Nothing may be written afterwards.
    fn finish(&mut self) -> io::Result<()> {
        self.sending()?.finish().map_err(io::Error::other)?;
        self.finished = true;
        Ok(())
    }
}

/// Returns the name of the negotiated protocol.
fn protocol_of(connection: &quinn::Connection) -> Option<Vec<u8>> {
    let agreed = connection
        .handshake_data()?
        .downcast::<HandshakeData>()
        .ok()?;
    agreed.protocol
}

/// Returns the key that a peer has proved, or `None` if the peer does not speak the protocol.
fn peer_of(connection: &quinn::Connection) -> Option<Fingerprint> {
    let chain = chain_of(connection)?;
    let peer = Fingerprint::of_certificate(chain.first()?).ok()?;
    (protocol_of(connection).as_deref() == Some(PROTOCOL_NAME)).then_some(peer)
}

fn chain_of(connection: &quinn::Connection) -> Option<Vec<CertificateDer<'static>>> {
    connection
        .peer_identity()?
        .downcast()
        .ok()
        .map(|chain| *chain)
}

/// Converts the error of a lost connection to the equivalent error of TCP.
fn lost(error: ConnectionError) -> io::Error {
    match error {
        ConnectionError::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "the peer stopped answering")
        }
        ConnectionError::TransportError(_) | ConnectionError::CidsExhausted => {
            io::Error::other(error)
        }
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}

/// If `error` was caused by a lost connection, converts it to the equivalent error of TCP. Returns any other error
/// unchanged.
fn lost_if(error: io::Error) -> io::Error {
    let inner = error.get_ref();
    let reading = inner.and_then(|inner| inner.downcast_ref::<ReadError>());
    let writing = inner.and_then(|inner| inner.downcast_ref::<WriteError>());
    match (reading, writing) {
        (Some(ReadError::ConnectionLost(reason)), _)
        | (_, Some(WriteError::ConnectionLost(reason))) => lost(reason.clone()),
        _ => error,
    }
}

/// The code of a connection that was closed gracefully.
pub(crate) const DONE: VarInt = VarInt::from_u32(0);
/// The close code for a connection that is dropped before its end.
const DROPPED: VarInt = VarInt::from_u32(1);

impl Drop for QuicConnection {
    fn drop(&mut self) {
        let Some(mut sending) = self.sending.take() else {
            return;
        };
        if self.finished {
            // This fails only if no `Linger` exists, and then the connection is already closed.
            let _closed = self.linger.send(sending);
        } else if self.silent {
            // The peer may not know about the stream, and does not need to.
            self.connection.close(DROPPED, b"");
        } else {
            // A stream that is dropped without a reset would look finished to the peer.
            let _closed = sending.reset(DROPPED);
        }
    }
}

impl AsyncRead for QuicConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.receiving), context, buffer).map_err(lost_if)
    }
}

impl AsyncWrite for QuicConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.silent = false;
        AsyncWrite::poll_write(Pin::new(self.sending()?), context, bytes).map_err(lost_if)
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // QUIC sends written bytes without a flush.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.finish())
    }
}
