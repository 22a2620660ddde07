//! The carriers of frames and messages: TLS on TCP, TCP in clear after TLS, QUIC, or memory within one process; and the
//! trust in the peer at the other end.
//!
//! Lanes are blocking and belong to threads; control is asynchronous. Nothing here knows what a frame means.
//! **Invariant:** no connection is handed out before both ends have proved their keys.

mod blocking;
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
pub use channel::{Channel, ChannelDialler, Claim, Incoming, Inherited, Listener, Reach};
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
pub use tcp_tls::{Acceptor, BlackHole, Connection, Dialler, SegmentLimit, SocketConfig};
pub use trust::{
    Access, AuthorizedKeys, CertificateFault, Denial, Expiry, Fingerprint, FirstKey, Grant,
    GrantFault, Holder, HostAuthority, HostLineFault, HostPolicy, Identity, KeyList, KnownHosts,
    ParseExpiryError, ParseFingerprintError, Signed, Subject, job_grant_signer,
};
pub use zmove_sockopt::TcpInfo;
pub use zmove_wire::TransportChoice;
