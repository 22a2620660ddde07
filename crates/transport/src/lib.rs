//! Transports for frames and messages, and the authentication of peers. Frames and messages are sent over TLS on TCP,
//! over unencrypted TCP after a TLS handshake, over QUIC, or through memory in one process.
//!
//! Lanes are blocking and belong to threads. Control is asynchronous. This crate does not interpret frames.
//! **Invariant:** no connection is returned before both ends have proved their keys.

mod blocking;
mod byte_stream;
mod channel;
mod control;
mod endpoint;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod lane;
mod path;
mod quic;
mod record;
mod tcp_tls;
mod trust;

pub use blocking::blocking;
pub use channel::{Channel, ChannelDialer, Claim, DialOptions, Incoming, Inherited, Listener};
pub use control::{
    CONTROL_SILENCE_MAX, ControlError, ControlReader, ControlWriter, GREETING_TIMEOUT, Inbox,
    Pinger, control_pair,
};
pub use endpoint::Endpoint;
pub use error::{
    AcceptError, AuthorityError, AuthorizedKeysError, BindError, DialError, DialStage,
    IdentityError, KeyFileError, KnownHostsError, SocketError,
};
pub use lane::clear::ClearLane;
pub use lane::memory::{memory_control, memory_lane};
pub use lane::rate_limiter::SharedRate;
pub use lane::tls::TlsLane;
pub use lane::{Frame, LaneBreaker, LaneError, LaneSink, LaneSource, LaneWindow};
pub use path::{PathProbe, Transport};
pub use quic::{PathEnds, QuicCongestion, Resumption, SavedWindow, UnknownCongestion};
pub use record::RecordError;
pub use tcp_tls::{
    Acceptor, BlackHole, Connection, ForwardedPort, SegmentLimit, SocketConfig, TcpDialer,
};
pub use trust::{
    Access, AuthorizedKeys, CertificateFault, Denial, Expiry, Fingerprint, FirstKey, Grant,
    GrantFault, Holder, HostAuthority, HostLineFault, HostPolicy, Identity, KeyList, KnownHosts,
    ParseExpiryError, ParseFingerprintError, Signed, Subject, job_grant_signer,
};
pub use zmove_sockopt::TcpInfo;
pub use zmove_wire::TransportChoice;
