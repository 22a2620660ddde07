//! A connection by whichever transport reaches the other host, and the two ways to come by one.
//!
//! A channel has one peer, one key and one stream of bytes. The greeting, the messages and the frames on it, who may
//! send what, and how lanes are made of it do not depend on the transport.
//!
//! **Invariant:** all connections of one [`ChannelDialler`] use one transport, which is the one reported to the user.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use zmove_wire::{Cipher, SignedJobGrant};

use crate::lane::clear::ClearLane;
use crate::lane::rate_limiter::SharedRate;
use crate::lane::tls::TlsLane;
use crate::lane::{LaneError, LaneSink, LaneSource};
use crate::path::{PathProbe, Transport};
use crate::quic::{Pulse, QuicConnection, QuicLane};
use crate::tcp_tls::Connection;
use crate::trust::Fingerprint;

mod dialler;
mod listener;
mod sockets;

pub use dialler::{ChannelDialler, Reach, TransportChoice};
pub use listener::{Incoming, Listener};
pub use sockets::Inherited;

/// The claim of a peer: the key that it has proved to hold, and the certificates for that key.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The key.
    pub key: Fingerprint,
    /// The certificates that the peer has shown; its own is the first.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// The [grant](SignedJobGrant) that the peer has shown as the last of its certificates, undecoded.
    pub job_grant: Option<Vec<u8>>,
}

impl Claim {
    /// The claim of a peer that has proved this key and shown these certificates before.
    #[must_use]
    pub fn again(key: Fingerprint, certificates: Vec<Vec<u8>>) -> Self {
        Self {
            key,
            chain: certificates.into_iter().map(CertificateDer::from).collect(),
            job_grant: None,
        }
    }

    fn new(key: Fingerprint, mut chain: Vec<CertificateDer<'static>>) -> Self {
        let job_grant = chain
            .pop_if(|last| SignedJobGrant::is_one(last))
            .map(|grant| grant.to_vec());
        Self {
            key,
            chain,
            job_grant,
        }
    }

    /// The certificates that the peer has shown, in DER.
    #[must_use]
    pub fn certificates(&self) -> Vec<Vec<u8>> {
        self.chain
            .iter()
            .map(|certificate| certificate.to_vec())
            .collect()
    }
}

/// A handle on a [`Channel`], usable while others read and write it.
#[derive(Clone, Debug)]
pub struct ChannelHandle(HandleOf);

#[derive(Clone, Debug)]
enum HandleOf {
    Tcp(PathProbe),
    Quic(quinn::Connection),
}

impl ChannelHandle {
    /// Whether the peer has ended the connection, or it is lost, as far as the kernel reports; nothing is read for
    /// that.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        match &self.0 {
            HandleOf::Tcp(probe) => probe
                .read()
                .is_some_and(|info| info.established == Some(false)),
            HandleOf::Quic(connection) => connection.close_reason().is_some(),
        }
    }

    /// Lets the peer send as much before it is read as control may; before a peer is admitted, a daemon lets it send
    /// little.
    pub fn open_control_window(&self) {
        match &self.0 {
            // The kernel has a window of its own.
            HandleOf::Tcp(_) => {}
            HandleOf::Quic(connection) => QuicConnection::open_control_window(connection),
        }
    }
}

/// An established connection to a peer whose key is known.
#[derive(Debug)]
pub struct Channel {
    established: Established,
    /// The rate to which the channel is held when it receives as a lane.
    receive_rate: SharedRate,
}

#[derive(Debug)]
enum Established {
    Tcp(Box<Connection>),
    Quic(Box<QuicConnection>),
}

impl Channel {
    fn tcp(connection: Connection) -> Self {
        Self::by(Established::Tcp(Box::new(connection)))
    }

    fn quic(connection: QuicConnection) -> Self {
        Self::by(Established::Quic(Box::new(connection)))
    }

    fn by(established: Established) -> Self {
        Self {
            established,
            receive_rate: SharedRate::default(),
        }
    }

    /// The transport that carries the channel.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        match &self.established {
            Established::Tcp(_) => Transport::Tcp,
            Established::Quic(_) => Transport::Quic,
        }
    }

    /// The peer's key.
    #[must_use]
    pub fn peer(&self) -> Fingerprint {
        match &self.established {
            Established::Tcp(connection) => connection.peer,
            Established::Quic(connection) => connection.peer,
        }
    }

    /// The key that the peer has proved, and the certificates that it has shown.
    #[must_use]
    pub fn claim(&self) -> Claim {
        Claim::new(self.peer(), self.certificates())
    }

    /// The certificates that the peer has shown; its own is the first.
    fn certificates(&self) -> Vec<CertificateDer<'static>> {
        match &self.established {
            Established::Tcp(connection) => connection
                .session()
                .peer_certificates()
                .unwrap_or_default()
                .to_vec(),
            Established::Quic(connection) => connection.certificates(),
        }
    }

    /// The peer's address; an IPv4 one never in IPv6 form.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match &self.established {
            Established::Tcp(connection) => connection.address,
            Established::Quic(connection) => connection.address,
        }
    }

    /// The round trip measured by the handshake.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        match &self.established {
            Established::Tcp(connection) => connection.rtt,
            Established::Quic(quic) => quic.connection.rtt(),
        }
    }

    /// A probe of the connection, usable while other threads use the connection; over QUIC it reports nothing
    /// before there is a lane.
    #[must_use]
    pub fn probe(&self) -> PathProbe {
        match &self.established {
            Established::Tcp(connection) => connection.probe(),
            Established::Quic(_) => PathProbe::default(),
        }
    }

    /// A handle on the connection that stays when it is split into its two directions.
    #[must_use]
    pub fn handle(&self) -> ChannelHandle {
        ChannelHandle(match &self.established {
            Established::Tcp(connection) => HandleOf::Tcp(connection.probe()),
            Established::Quic(quic) => HandleOf::Quic(quic.connection.clone()),
        })
    }

    /// A way to ask whether the peer is still there.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        match &self.established {
            Established::Tcp(_) => Pulse::default(),
            Established::Quic(quic) => quic.pulse(),
        }
    }

    /// Ends the connection when the peer has not acknowledged bytes for so long; see
    /// [`Connection::set_unacknowledged_max`]. QUIC has a limit of its own for silence.
    ///
    /// # Errors
    /// The socket refuses the option.
    pub fn set_unacknowledged_max(&self, longest: Duration) -> io::Result<()> {
        match &self.established {
            Established::Tcp(connection) => connection.set_unacknowledged_max(longest),
            Established::Quic(_) => Ok(()),
        }
    }

    /// Once it is a lane, receives no faster than `rate`, together with all others that keep it.
    pub fn set_receive_rate(&mut self, rate: SharedRate) {
        self.receive_rate = rate;
    }

    /// Turns this into the sending end of one of `lanes` lanes, after a greeting that has been flushed.
    ///
    /// # Errors
    /// [`LaneError`] when the connection has ended already, or cannot be a lane of this kind.
    pub fn into_sink(self, cipher: Cipher, lanes: u16) -> Result<Box<dyn LaneSink>, LaneError> {
        Ok(match (self.established, cipher) {
            (Established::Tcp(connection), Cipher::Tls) => Box::new(TlsLane::new(*connection)?),
            (Established::Tcp(connection), Cipher::None) => Box::new(ClearLane::new(*connection)?),
            (Established::Quic(connection), Cipher::Tls) => {
                Box::new(QuicLane::sink(*connection, lanes))
            }
            (Established::Quic(_), Cipher::None) => return Err(never_clear()),
        })
    }

    /// Turns this into the receiving end of a lane, after a greeting that has been read.
    ///
    /// # Errors
    /// [`LaneError`] when the connection has ended already, or cannot be a lane of this kind.
    pub fn into_source(self, cipher: Cipher) -> Result<Box<dyn LaneSource>, LaneError> {
        let rate = self.receive_rate;
        Ok(match (self.established, cipher) {
            (Established::Tcp(connection), Cipher::Tls) => {
                Box::new(TlsLane::new(*connection)?.held_to(rate))
            }
            (Established::Tcp(connection), Cipher::None) => {
                Box::new(ClearLane::new(*connection)?.held_to(rate))
            }
            (Established::Quic(connection), Cipher::Tls) => {
                Box::new(QuicLane::source(*connection).held_to(rate))
            }
            (Established::Quic(_), Cipher::None) => return Err(never_clear()),
        })
    }
}

fn never_clear() -> LaneError {
    io::Error::new(io::ErrorKind::Unsupported, "QUIC has no lanes in clear").into()
}

impl AsyncRead for Channel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.established {
            Established::Tcp(connection) => Pin::new(connection).poll_read(context, buffer),
            Established::Quic(connection) => Pin::new(connection).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.established {
            Established::Tcp(connection) => Pin::new(connection).poll_write(context, bytes),
            Established::Quic(connection) => Pin::new(connection).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.established {
            Established::Tcp(connection) => Pin::new(connection).poll_flush(context),
            Established::Quic(connection) => Pin::new(connection).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.established {
            Established::Tcp(connection) => Pin::new(connection).poll_shutdown(context),
            Established::Quic(connection) => Pin::new(connection).poll_shutdown(context),
        }
    }
}
