//! The settings of QUIC, the same on both sides except for what the dialler chooses.
//!
//! **Invariant:** the data that a peer can make this side hold is bounded: by [`UNADMITTED_WINDOW_BYTES`] before it is
//! admitted, for control by [`CONTROL_WINDOW_BYTES`], and on a lane by its [`LaneWindow`].
//!
//! The largest datagram is found by MTU discovery, from QUIC's minimum up to what the first link carries. CUBIC that
//! tolerates single losses ([`tolerant`](super::tolerant)) is the usual congestion control; quinn's BBR is the first
//! version and sends many packets twice.

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

/// The unread bytes of a control connection that this side holds.
pub(crate) const CONTROL_WINDOW_BYTES: u32 = 1 << 20;
/// The unread bytes of a connection that has not been admitted, or has no transfer yet: room for a greeting and an
/// opening.
pub(super) const UNADMITTED_WINDOW_BYTES: u32 = 64 << 10;
/// The largest datagram: what jumbo frames of 9,000 bytes carry over IPv6.
const DATAGRAM_BYTES_MAX: u16 = 8_952;
/// The bytes of IP and UDP headers in a packet.
const HEADER_BYTES_V4: u32 = 28;
const HEADER_BYTES_V6: u32 = 48;
/// The size of buffers that is asked for; the kernel gives as much as `net.core.rmem_max` and `wmem_max` allow.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;
/// The bytes that a connection sends first, paced: what TCP sends at first with jumbo frames.
const FIRST_FLIGHT_BYTES: u64 = 128 << 10;
/// The time between keep-alives: within it a peer that waits for an answer learns, by a reset, that the daemon has been
/// restarted. NATs, which may forget a UDP flow after half a minute, need less.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// A peer that sends nothing for so long counts as gone.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// The number of packets for one acknowledgement, and how long that may wait for them.
const ACK_PACKETS: u32 = 10;
const ACK_DELAY: Duration = Duration::from_millis(5);

/// The congestion control of QUIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownCongestion, parse_err_fn = unknown)]
pub enum QuicCongestion {
    /// CUBIC that does not take single lost packets for congestion where there is no queue.
    #[default]
    Tolerant,
    /// CUBIC (RFC 9438).
    Cubic,
    /// The first version of BBR, which goes by rates and round trips and not by loss.
    Bbr,
    /// `NewReno` (RFC 9002).
    #[strum(serialize = "reno")]
    NewReno,
}

/// The error for a name that is no congestion control of QUIC here.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("QUIC has tolerant, cubic, bbr and reno here")]
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

/// A connection's settings, as of who dials; `datagram_bytes_max` is what this side looks for when it
/// discovers the path's MTU, `account` what it knows of it.
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
        // A lane bounds by itself what it passes to a connection.
        .send_window(4 * u64::from(LaneWindow::Wide.bytes()))
        .send_fairness(false)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(IDLE_MAX.try_into().ok())
        .mtu_discovery_config(Some(mtu))
        .ack_frequency_config(Some(acks))
        .congestion_controller_factory(congestion.factory(account));
    config
}

/// The settings of an endpoint. Its resets are derived from the key: a restarted daemon can notify clients that their
/// connections are gone.
pub(super) fn endpoint(identity: &Identity) -> EndpointConfig {
    let secret = identity.derive(RESET_CONTEXT);
    let reset = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &secret);
    let mut config = EndpointConfig::new(Arc::new(reset));
    // Quinn's own connection ids carry a check by a key of this process; the next process, which lacks that key, would
    // not answer them with a reset.
    config.cid_generator(|| Box::<RandomConnectionIdGenerator>::default());
    // All connections ask a restarted daemon at once, and a reset is shorter than what it answers.
    config.min_reset_interval(Duration::ZERO);
    // The size is above QUIC's minimum, so it is not refused.
    let _taken = config.max_udp_payload_size(DATAGRAM_BYTES_MAX);
    config
}

const RESET_CONTEXT: &str = "zmove 2026-11-21 quic stateless reset";

/// Asks for larger buffers than the kernel gives by itself, and than the socket has; returns how many bytes may wait to
/// be received.
pub(super) fn enlarge_buffers(socket: &UdpSocket) -> io::Result<usize> {
    let options = socket2::SockRef::from(socket);
    // A process that may exceed the limits does.
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

/// The largest datagram worth trying on the way to `address`: what the first link of it carries.
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
    // Nothing is sent: the kernel only looks up the route.
    socket.connect(address)?;
    zmove_sockopt::path_mtu(&socket, address)
}

const ETHERNET_MTU: u32 = 1500;

/// The datagram size that every path of QUIC must carry.
const QUIC_MINIMUM: u16 = 1200;
