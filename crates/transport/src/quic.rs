//! QUIC: one connection with one stream in the place of each TCP connection, under the same keys and the same
//! checks. It is for sites where only UDP gets through, and for paths that lose packets.
//!
//! quinn carries it, with the same rustls, the same provider and the same verifiers as TCP has. The client
//! gives each connection a UDP socket and a thread with a runtime of its own ([`QuicDialler`]), so that
//! several keep several cores busy; the daemon has one socket at the port of its TCP listener
//! ([`QuicAcceptor`]), and its runtime spreads the connections over its threads. Both end in a
//! [`QuicConnection`], an async stream for control that a [`QuicLane`] can take over.
//!
//! When a process is killed its kernel does not end its QUIC connections, as it does those of TCP: the peer notices
//! when it has received nothing for a while after the last keep-alive. A shorter while would also end pushes whose path
//! is gone for some seconds and comes back.
//!
//! **Invariant:** a [`QuicConnection`] has proved the key of its `peer` and has agreed on the protocol; it is closed
//! only when all it was given has been acknowledged, or when it is no longer needed.

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
mod dialler;
mod lane;
mod lane_bytes;
mod linger;
mod resume;
mod settings;
mod socket;
mod timer;
mod tolerant;

pub(crate) use acceptor::{QuicAcceptor, bind, send_retry};
pub(crate) use dialler::QuicDialler;
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
    /// The sending half of the stream; `None` once it has been handed over.
    sending: Option<SendStream>,
    /// Whether nothing has been written.
    silent: bool,
    finished: bool,
    lane_bytes: Arc<LaneBytes>,
    account: Arc<PathAccount>,
    /// The way to hand over a finished stream, whose connection is closed when all of it has arrived.
    linger: UnboundedSender<SendStream>,
}

impl QuicConnection {
    /// A connection with its one stream, and what keeps it until that is over; `None` where the peer does not speak the
    /// protocol.
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

    /// The certificates that the peer has shown.
    pub(crate) fn certificates(&self) -> Vec<CertificateDer<'static>> {
        chain_of(&self.connection).unwrap_or_default()
    }

    fn sending(&mut self) -> io::Result<&mut SendStream> {
        self.sending
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Ends the stream: nothing follows.
    fn finish(&mut self) -> io::Result<()> {
        self.sending()?.finish().map_err(io::Error::other)?;
        self.finished = true;
        Ok(())
    }
}

/// The name of the protocol that was agreed on.
fn protocol_of(connection: &quinn::Connection) -> Option<Vec<u8>> {
    let agreed = connection
        .handshake_data()?
        .downcast::<HandshakeData>()
        .ok()?;
    agreed.protocol
}

/// The key that a peer has proved; `None` if it does not speak the protocol.
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

/// The error for a lost connection, in the terms of TCP.
fn lost(error: ConnectionError) -> io::Error {
    match error {
        ConnectionError::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "the peer does not answer any more")
        }
        ConnectionError::TransportError(_) | ConnectionError::CidsExhausted => {
            io::Error::other(error)
        }
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}

/// The same error if that is the reason of `error`, which may have another one.
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

/// The code of a connection that was closed in order.
pub(crate) const DONE: VarInt = VarInt::from_u32(0);
/// The code of a connection whose holder dropped it half-way.
const DROPPED: VarInt = VarInt::from_u32(1);

impl Drop for QuicConnection {
    fn drop(&mut self) {
        let Some(mut sending) = self.sending.take() else {
            return;
        };
        if self.finished {
            // Without a `Linger` the connection is closed already.
            let _closed = self.linger.send(sending);
        } else if self.silent {
            // The peer may not know yet that there is a stream, and need not learn it.
            self.connection.close(DROPPED, b"");
        } else {
            // A stream that is only dropped would look finished.
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
        // Written bytes are on their way.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.finish())
    }
}
