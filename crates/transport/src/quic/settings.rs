//! The settings of QUIC. Both sides use the same settings, except for those that the dialer chooses.
//!
//! **Invariant:** the amount of data that a peer can make this side buffer is bounded. Before the peer is admitted, the
//! bound is [`UNADMITTED_WINDOW_BYTES`]. After that, it is [`CONTROL_WINDOW_BYTES`] for control and the [`LaneWindow`]
//! for a lane.
//!
//! MTU discovery finds the largest datagram size, from QUIC's minimum up to the size that the first link can carry. The
//! default congestion control is a CUBIC that tolerates single losses ([`tolerant`](super::tolerant)). quinn's BBR is
//! the first version of BBR, which retransmits much data.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::{AckFrequencyConfig, EndpointConfig, MtuDiscoveryConfig, TransportConfig};
use quinn_proto::RandomConnectionIdGenerator;

use super::tolerant::{PathAccount, TolerantConfig};
use crate::endpoint::unspecified;
use crate::lane::LaneWindow;
use crate::trust::Identity;

/// Maximum number of unread bytes of a control connection on this side.
pub(crate) const CONTROL_WINDOW_BYTES: u32 = 1 << 20;
/// Maximum number of unread bytes on a connection that is not admitted or has no transfer yet. The window is large
/// enough for a greeting and an opening.
pub(super) const UNADMITTED_WINDOW_BYTES: u32 = 64 << 10;
/// Maximum datagram size, which fills jumbo frames of 9,000 bytes over IPv6.
const DATAGRAM_BYTES_MAX: u16 = 8_952;
/// Size of the IP and UDP headers of a packet.
const HEADER_BYTES_V4: u32 = 28;
const HEADER_BYTES_V6: u32 = 48;
/// Requested size of socket buffers. The kernel limits it to `net.core.rmem_max` and `net.core.wmem_max`.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;
/// Size of a connection's first flight, in bytes. The first flight is paced. Its size equals TCP's first flight with
/// jumbo frames.
const FIRST_FLIGHT_BYTES: u64 = 128 << 10;
/// Interval of keep-alives. A restarted daemon answers a keep-alive with a reset, so a waiting peer detects the restart
/// within this time. For NATs, which keep a UDP flow for about 30 seconds or longer, a longer interval would suffice.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Maximum time without packets from a peer. After this time, the connection counts as lost.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Maximum number of packets until a peer must send an acknowledgment. The next constant is the maximum delay of an
/// acknowledgment.
const ACK_PACKETS: u32 = 10;
const ACK_DELAY: Duration = Duration::from_millis(5);

/// The congestion control of QUIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownCongestion, parse_err_fn = unknown)]
pub enum QuicCongestion {
    /// CUBIC, but single lost packets do not count as congestion if no queue has built up.
    #[default]
    Tolerant,
    /// CUBIC (RFC 9438).
    Cubic,
    /// The first version of BBR, which responds to rates and round-trip times instead of losses.
    Bbr,
    /// `NewReno` (RFC 9002).
    #[strum(serialize = "reno")]
    NewReno,
}

/// The error for the name of a congestion control that is unknown or that QUIC does not support.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("QUIC supports tolerant, cubic, bbr and reno")]
pub struct UnknownCongestion;

fn unknown(_name: &str) -> UnknownCongestion {
    UnknownCongestion
}

impl QuicCongestion {
    fn factory(self, account: Arc<PathAccount>) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Self::Tolerant => Arc::new(TolerantConfig {
                cubic: cubic(),
                first_flight_bytes: FIRST_FLIGHT_BYTES,
                account,
            }),
            Self::Cubic => Arc::new(cubic()),
            Self::Bbr => Arc::new(
                BbrConfig::default()
                    .initial_window(FIRST_FLIGHT_BYTES)
                    .clone(),
            ),
            Self::NewReno => Arc::new(
                NewRenoConfig::default()
                    .initial_window(FIRST_FLIGHT_BYTES)
                    .clone(),
            ),
        }
    }
}

fn cubic() -> CubicConfig {
    CubicConfig::default()
        .initial_window(FIRST_FLIGHT_BYTES)
        .clone()
}

/// Returns the settings of a connection. `datagram_bytes_max` is the upper bound for MTU discovery. `account` contains
/// the known properties of the path.
pub(super) fn transport(
    congestion: QuicCongestion,
    datagram_bytes_max: u16,
    account: Arc<PathAccount>,
) -> TransportConfig {
    let mut acks = AckFrequencyConfig::default();
    acks.ack_eliciting_threshold(ACK_PACKETS.into())
        .max_ack_delay(Some(ACK_DELAY));
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(datagram_bytes_max);
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(1_u32.into())
        .max_concurrent_uni_streams(0_u32.into())
        .datagram_receive_buffer_size(None)
        // The connection has only one stream.
        .stream_receive_window(LaneWindow::Wide.bytes().into())
        .receive_window(CONTROL_WINDOW_BYTES.into())
        // The lane itself limits the number of bytes that it passes to the connection.
        .send_window(4 * u64::from(LaneWindow::Wide.bytes()))
        .send_fairness(false)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(IDLE_MAX.try_into().ok())
        .mtu_discovery_config(Some(mtu))
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(congestion.factory(account));
    config
}

/// Returns the settings of an endpoint. The reset tokens are derived from the key, so that a restarted daemon can reset
/// its old connections.
pub(super) fn endpoint(identity: &Identity) -> EndpointConfig {
    let secret = identity.derive(RESET_CONTEXT);
    let reset = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &secret);
    let mut config = EndpointConfig::new(Arc::new(reset));
    // quinn's default connection IDs contain a checksum with a key of the process. A restarted process has another key
    // and would not answer packets of old connections with a reset.
    config.cid_generator(|| Box::<RandomConnectionIdGenerator>::default());
    // Resets need no minimum interval, because a reset is shorter than the packet that it answers. After a restart, all
    // connections send packets at about the same time, and each of them needs a reset.
    config.min_reset_interval(Duration::ZERO);
    // The size is above QUIC's minimum, so it is accepted.
    let _taken = config.max_udp_payload_size(DATAGRAM_BYTES_MAX);
    config
}

const RESET_CONTEXT: &str = "zmove 2026-11-21 quic stateless reset";

/// Enlarges the socket buffers if they are smaller than requested. Returns the size of the receive buffer in bytes.
pub(super) fn enlarge_buffers(socket: &UdpSocket) -> io::Result<usize> {
    let options = socket2::SockRef::from(socket);
    // A privileged process may exceed the system's limits.
    if options.recv_buffer_size()? < SOCKET_BUFFER_BYTES
        && rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, SOCKET_BUFFER_BYTES)
            .is_err()
    {
        options.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    }
    if options.send_buffer_size()? < SOCKET_BUFFER_BYTES
        && rustix::net::sockopt::set_socket_send_buffer_size_force(socket, SOCKET_BUFFER_BYTES)
            .is_err()
    {
        options.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    }
    options.recv_buffer_size()
}

/// Returns the size of the largest datagram to try for `address`: the largest that the first link can carry.
pub(super) fn datagram_bytes_max(address: SocketAddr) -> u16 {
    let headers = if address.is_ipv6() {
        HEADER_BYTES_V6
    } else {
        HEADER_BYTES_V4
    };
    let carried = link_mtu(address)
        .unwrap_or(ETHERNET_MTU)
        .saturating_sub(headers);
    u16::try_from(carried)
        .unwrap_or(u16::MAX)
        .clamp(QUIC_MINIMUM, DATAGRAM_BYTES_MAX)
}

fn link_mtu(address: SocketAddr) -> io::Result<u32> {
    let socket = UdpSocket::bind(unspecified(address))?;
    // This sends nothing. The kernel only looks up the route.
    socket.connect(address)?;
    zmove_sockopt::path_mtu(&socket, address)
}

const ETHERNET_MTU: u32 = 1500;

/// The datagram size that every QUIC path must support.
const QUIC_MINIMUM: u16 = 1200;
