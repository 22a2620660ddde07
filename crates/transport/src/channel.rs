//! A connection to the other host over TCP or QUIC. The submodules `dialer` and `listener` establish such connections.
//!
//! A channel has one peer, one key and one byte stream. The greeting, the messages, the frames, the peer's rights and
//! the conversion to a lane are the same for both transports.
//!
//! **Invariant:** all connections of one [`ChannelDialer`] use the transport that is reported to the user.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use rustls_pki_types::CertificateDer;
use zmove_wire::{Cipher, SignedJobGrant};

use crate::byte_stream::{ByteStream, delegate_stream};
use crate::lane::clear::ClearLane;
use crate::lane::rate_limiter::SharedRate;
use crate::lane::tls::TlsLane;
use crate::lane::{LaneError, LaneSink, LaneSource};
use crate::path::{PathProbe, Transport};
use crate::quic::{CONTROL_WINDOW_BYTES, QuicConnection, QuicLane};
use crate::tcp_tls::Connection;
use crate::trust::Fingerprint;

mod dialer;
mod listener;
mod sockets;

pub use dialer::{ChannelDialer, DialOptions};
pub use listener::{Incoming, Listener};
pub use sockets::Inherited;

/// The identity that a peer claims: its proven key and the certificates for that key.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The proven key.
    pub key: Fingerprint,
    /// The certificates that the peer presented, beginning with its own certificate.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// The encoded [grant](SignedJobGrant) that the peer presented as its last certificate, if any.
    pub job_grant: Option<Vec<u8>>,
}

impl Claim {
    /// Recreates the claim of a peer from its key and certificates on an earlier connection.
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
            .pop_if(|last| SignedJobGrant::is_job_grant(last))
            .map(|grant| grant.to_vec());
        Self {
            key,
            chain,
            job_grant,
        }
    }

    /// Returns the certificates that the peer presented, in DER form.
    #[must_use]
    pub fn certificates(&self) -> Vec<Vec<u8>> {
        self.chain
            .iter()
            .map(|certificate| certificate.to_vec())
            .collect()
    }
}

/// An established connection to a peer whose key is known.
#[derive(Debug)]
pub struct Channel(Established);

#[derive(Debug)]
enum Established {
    Tcp(Box<Connection>),
    Quic(Box<QuicConnection>),
}

impl Channel {
    fn tcp(connection: Connection) -> Self {
        Self(Established::Tcp(Box::new(connection)))
    }

    fn quic(connection: QuicConnection) -> Self {
        Self(Established::Quic(Box::new(connection)))
    }

    /// Returns the transport of the channel.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match &self.0 {
            Established::Tcp(connection) => connection.transport(),
            Established::Quic(_) => Transport::Quic,
        }
    }

    /// Returns the peer's key.
    #[must_use]
    pub fn peer(&self) -> Fingerprint {
        match &self.0 {
            Established::Tcp(connection) => connection.peer,
            Established::Quic(connection) => connection.peer,
        }
    }

    /// Returns the peer's proven key and its certificates.
    #[must_use]
    pub fn claim(&self) -> Claim {
        Claim::new(self.peer(), self.certificates())
    }

    /// Returns the certificates that the peer presented, beginning with its own certificate.
    fn certificates(&self) -> Vec<CertificateDer<'static>> {
        match &self.0 {
            Established::Tcp(connection) => connection
                .session()
                .peer_certificates()
                .unwrap_or_default()
                .to_vec(),
            Established::Quic(connection) => connection.certificates(),
        }
    }

    /// Returns the peer's address. An IPv4 address is never in its IPv6-mapped form.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match &self.0 {
            Established::Tcp(connection) => connection.address,
            Established::Quic(connection) => connection.address,
        }
    }

    /// Returns the round-trip time measured during the handshake.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        match &self.0 {
            Established::Tcp(connection) => connection.rtt,
            Established::Quic(quic) => quic.connection.rtt(),
        }
    }

    /// Returns a probe that can be used while other tasks read and write the connection.
    #[must_use]
    pub fn probe(&self) -> PathProbe {
        match &self.0 {
            Established::Tcp(connection) => connection.probe(),
            Established::Quic(connection) => connection.probe(),
        }
    }

    /// Returns a callback that opens the receive window of this control connection. A daemon calls it when the peer is
    /// admitted and keeps the window small until then.
    pub fn control_window(&self) -> impl FnOnce() + Send + use<> {
        let by_quic = match &self.0 {
            // The kernel manages the receive window of a TCP connection.
            Established::Tcp(_) => None,
            Established::Quic(quic) => Some(quic.connection.clone()),
        };
        move || {
            if let Some(connection) = by_quic {
                connection.set_receive_window(CONTROL_WINDOW_BYTES.into());
            }
        }
    }

    /// Closes the connection if the peer acknowledges no data for `longest`; see
    /// [`Connection::set_unacknowledged_max`]. Has no effect on QUIC, which has its own idle timeout.
    ///
    /// # Errors
    /// Returns an error if the socket refuses the option.
    pub fn set_unacknowledged_max(&self, longest: Duration) -> io::Result<()> {
        match &self.0 {
            Established::Tcp(connection) => connection.set_unacknowledged_max(longest),
            Established::Quic(_) => Ok(()),
        }
    }

    /// Turns the channel into the sending end of one of `lanes` lanes. The greeting must have been sent and flushed.
    ///
    /// # Errors
    /// Returns [`LaneError`] if the connection has ended or cannot become a lane with this cipher.
    pub fn into_sink(self, cipher: Cipher, lanes: u16) -> Result<Box<dyn LaneSink>, LaneError> {
        Ok(self.into_lane(cipher, lanes, SharedRate::default())?)
    }

    /// Turns the channel into the receiving end of a lane. The greeting must have been read. All lanes with the same
    /// `rate` share it.
    ///
    /// # Errors
    /// Returns [`LaneError`] if the connection has ended or cannot become a lane with this cipher.
    pub fn into_source(
        self,
        cipher: Cipher,
        rate: SharedRate,
    ) -> Result<Box<dyn LaneSource>, LaneError> {
        Ok(self.into_lane(cipher, 1, rate)?)
    }

    fn into_lane(
        self,
        cipher: Cipher,
        lanes: u16,
        rate: SharedRate,
    ) -> Result<Box<dyn LaneEnd>, LaneError> {
        Ok(match (self.0, cipher) {
            (Established::Tcp(connection), Cipher::Tls) => {
                Box::new(TlsLane::new(*connection, rate)?)
            }
            (Established::Tcp(connection), Cipher::None) => {
                Box::new(ClearLane::new(*connection, rate)?)
            }
            (Established::Quic(connection), Cipher::Tls) => {
                Box::new(QuicLane::new(*connection, lanes, rate))
            }
            (Established::Quic(_), Cipher::None) => {
                let text = "QUIC has no lanes in clear";
                return Err(io::Error::new(io::ErrorKind::Unsupported, text).into());
            }
        })
    }

    /// Returns the stream for greetings and control messages.
    fn stream(&mut self) -> Pin<&mut dyn ByteStream> {
        match &mut self.0 {
            Established::Tcp(connection) => Pin::new(&mut **connection),
            Established::Quic(connection) => Pin::new(&mut **connection),
        }
    }
}

/// Either end of a lane.
trait LaneEnd: LaneSink + LaneSource {}

impl<L: LaneSink + LaneSource> LaneEnd for L {}

delegate_stream!(Channel);
