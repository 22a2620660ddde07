//! The client side. Dials a host by TCP or by QUIC. If both are permitted, QUIC is the fallback if TCP cannot connect.
//!
//! `--transport auto` works like "happy eyeballs" (RFC 8305). TCP gets a head start because it needs less CPU time. The
//! head start is long enough for one lost packet and a long round trip. QUIC starts after the head start, or when TCP
//! has been refused. The first transport to connect is used for the whole run. After a refusal by TCP, QUIC gets only a
//! short time limit, which depends on the duration of the refusal, and no time if datagrams are refused too. If the
//! caller knows that QUIC connects sooner on this path, QUIC gets the head start instead.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use socket2::Socket;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, timeout};

use zmove_sockopt::tcp_info;
use zmove_types::Lock;
use zmove_wire::TransportChoice;

use super::Channel;
use crate::endpoint::unspecified;
use crate::error::DialError;
use crate::path::{PathProbe, Transport};
use crate::quic::{QuicCongestion, QuicConnection, QuicDialer, Resumption, SavedWindow};
use crate::tcp_tls::{
    BlackHole, Deadline, ForwardedPort, ResolvedHost, SILENCE_MAX, SocketConfig, TcpConnected,
    TcpDialer,
};
use crate::trust::{HostPolicy, Identity};

/// How to reach a host.
#[derive(Clone, Debug, Default)]
pub struct DialOptions {
    /// The transports that may be used. Default: TCP, with QUIC as the fallback.
    pub transport: TransportChoice,
    /// The TCP settings.
    pub socket: SocketConfig,
    /// The congestion control of QUIC. Default: tolerant.
    pub quic_congestion: QuicCongestion,
    /// The congestion window that an earlier push reached on the path. Used by QUIC's tolerant congestion control.
    /// Default: none.
    pub saved: Option<SavedWindow>,
    /// The head start of QUIC, if both transports are permitted. Default: `None`, which means that TCP starts first.
    pub quic_first: Option<Duration>,
}

/// Dials connections to one host. Cheap to clone. Clones use the same address and transport.
#[derive(Clone, Debug)]
pub struct ChannelDialer {
    host: ResolvedHost,
    tcp: Option<TcpDialer>,
    quic: QuicDialer,
    quic_first: Option<Duration>,
    /// The only permitted transport, or the transport of the run's first connection.
    settled: Arc<OnceLock<Transport>>,
    /// The TCP sockets of the lanes, as weak references.
    lanes: Arc<Lock<Vec<Weak<Socket>>>>,
}

impl ChannelDialer {
    /// Resolves the host once for all connections. `name` is a host name or an address. An IPv6 address has no
    /// brackets.
    ///
    /// # Errors
    /// Returns an error if the name has no address, or if a socket cannot be configured.
    pub async fn new(
        identity: &Identity,
        name: &str,
        port: u16,
        policy: HostPolicy,
        reach: DialOptions,
    ) -> Result<Self, DialError> {
        let host = ResolvedHost::resolve(name, port).await?;
        let quic = QuicDialer::new(
            identity,
            host.clone(),
            policy.clone(),
            reach.quic_congestion,
            reach.saved,
        );
        let (tcp, settled) = match reach.transport {
            TransportChoice::Quic => (None, Transport::Quic.into()),
            choice => {
                let tcp = TcpDialer::to(identity, host.clone(), policy, reach.socket)?;
                let is_only = choice == TransportChoice::Tcp;
                let settled = is_only.then_some(Transport::Tcp);
                (
                    Some(tcp),
                    settled.map_or_else(OnceLock::new, OnceLock::from),
                )
            }
        };
        Ok(Self {
            host,
            tcp,
            quic,
            quic_first: reach.quic_first,
            settled: Arc::new(settled),
            lanes: Arc::default(),
        })
    }

    /// Creates a dialer of TLS connections through ssh. `name` is the name of the host, for messages. `policy` is the
    /// policy for the key of the process that listens on the forwarded port.
    ///
    /// # Errors
    /// Returns an error if no socket can be opened.
    pub fn through(
        identity: &Identity,
        name: &str,
        forwarded: ForwardedPort,
        policy: HostPolicy,
    ) -> Result<Self, DialError> {
        let host = ResolvedHost::forwarded(name, &forwarded);
        let quic = QuicDialer::new(
            identity,
            host.clone(),
            policy.clone(),
            QuicCongestion::default(),
            None,
        );
        let tcp = TcpDialer::to(identity, host.clone(), policy, SocketConfig::default())?;
        Ok(Self {
            host,
            tcp: Some(tcp.through(forwarded)),
            quic,
            quic_first: None,
            settled: Arc::new(Transport::Tcp.into()),
            lanes: Arc::default(),
        })
    }

    /// Returns whether ssh forwards the connections.
    #[must_use]
    pub fn is_forwarded(&self) -> bool {
        self.tcp.as_ref().is_some_and(TcpDialer::is_forwarded)
    }

    /// Returns the maximum number of lanes that ssh is expected to carry, or `None` if there is no limit.
    #[must_use]
    pub fn lanes_max(&self) -> Option<u16> {
        self.tcp.as_ref()?.lanes_max()
    }

    /// Dials one connection in at most `deadline`. A successful dial does not mean that the host accepts this side's
    /// key. Only the next data from the host shows that.
    ///
    /// # Errors
    /// Returns [`DialError`] if no address responds, if the server does not speak the zmove protocol, or if the host's
    /// key is not accepted.
    pub async fn dial(&self, deadline: Duration) -> Result<Channel, DialError> {
        if let Some(head_start) = self.quic_first
            && self.settled.get().is_none()
        {
            match self.quic.dial(head_start).await {
                Ok(connection) if self.settle(Transport::Quic) => {
                    return Ok(Channel::quic(connection));
                }
                Err(error) if !error.retryable() => return Err(error),
                // Continues below if another connection of this run has settled on TCP, or if this attempt by QUIC has
                // failed.
                _ => {}
            }
        }
        match (&self.tcp, self.settled.get()) {
            (Some(tcp), Some(Transport::Tcp)) => Ok(Channel::tcp(tcp.dial(deadline).await?)),
            (Some(tcp), None) => self.race(tcp, deadline).await,
            _ => Ok(Channel::quic(self.quic.dial(deadline).await?)),
        }
    }

    /// Returns the result of using the saved window.
    #[must_use]
    pub fn resumption(&self) -> Resumption {
        self.quic.resumption()
    }

    /// Returns the round-trip time, once a TCP connection has measured it.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.tcp.as_ref()?.round_trip()
    }

    /// Returns the black hole on the path, if this dialer has found one. In that case, segments are limited.
    #[must_use]
    pub fn black_hole(&self) -> Option<BlackHole> {
        self.tcp.as_ref()?.black_hole().cloned()
    }

    /// Adds a lane to those that [`await_black_hole`](Self::await_black_hole) monitors.
    pub fn add_lane(&self, path: &PathProbe) {
        self.lanes.lock().extend(path.downgrade());
    }

    /// Checks the path before the first connection. If full-size packets are lost, limits the segments of all
    /// connections. Does not check a host that does not respond to TCP immediately.
    pub async fn check_path(&self) {
        if let Some(tcp) = &self.tcp {
            tcp.check_path().await;
        }
    }

    /// Resolves once full-size packets are found to be lost on the path, and limits the segments of all later
    /// connections. Checks the path when no data moves on the TCP lanes. QUIC is not checked, because it discovers its
    /// packet size itself.
    pub async fn await_black_hole(&self) -> BlackHole {
        if let Some(tcp) = &self.tcp {
            tcp.await_black_hole(|| self.bytes_moved()).await;
        }
        match self.black_hole() {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }

    /// Returns the number of bytes sent and received on the TCP lanes.
    fn bytes_moved(&self) -> u64 {
        let lanes = self.lanes.lock();
        let infos = lanes
            .iter()
            .filter_map(|lane| tcp_info(&*lane.upgrade()?).ok());
        infos
            .map(|info| info.bytes_acked.unwrap_or(0) + info.bytes_received.unwrap_or(0))
            .sum()
    }

    /// Exchanges messages larger than any packet with the host over TCP, in segments of at most `segment_bytes`.
    /// Returns whether both messages arrived before the timeout `within`.
    pub async fn arrives(&self, segment_bytes: Option<u32>, within: Duration) -> bool {
        match &self.tcp {
            Some(tcp) => timeout(within, tcp.arrives(segment_bytes))
                .await
                .unwrap_or(false),
            None => false,
        }
    }

    /// Closes all QUIC connections gracefully. Must be called before the process ends. Unlike for TCP, the kernel does
    /// not send the last packets of a QUIC connection.
    pub async fn close(&self) {
        self.quic.close().await;
    }

    /// Settles on `transport`, unless this run has already settled on a transport. Returns whether `transport` is the
    /// transport of the run.
    fn settle(&self, transport: Transport) -> bool {
        *self.settled.get_or_init(|| transport) == transport
    }

    async fn race(&self, tcp: &TcpDialer, deadline: Duration) -> Result<Channel, DialError> {
        let begun = Instant::now();
        let deadline = Deadline::after(deadline);
        let reaching = tcp.reach(deadline);
        tokio::pin!(reaching);
        tokio::select! {
            reached = &mut reaching => return match reached {
                Ok(connected) => self.continue_with_tcp(connected, tcp, deadline).await,
                Err(error) => self.dial_quic_only(error, begun.elapsed()).await,
            },
            () = sleep(HEAD_START) => {}
        }
        if self.settled.get() == Some(&Transport::Tcp) {
            let connected = reaching.await?;
            return Ok(Channel::tcp(tcp.secure(connected, deadline).await?));
        }
        let dialling = self.quic.dial(QUIC_TIMEOUT);
        tokio::pin!(dialling);
        tokio::select! {
            reached = &mut reaching => match reached {
                Ok(connected) => self.continue_with_tcp(connected, tcp, deadline).await,
                Err(error) => self.use_quic(dialling.await, error),
            },
            dialled = &mut dialling => match dialled {
                Ok(connection) if self.settle(Transport::Quic) => Ok(Channel::quic(connection)),
                Err(error) if !error.retryable() => Err(error),
                // QUIC has failed, so the result of TCP is used.
                unhelpful => match reaching.await {
                    Ok(connected) => self.continue_with_tcp(connected, tcp, deadline).await,
                    Err(error) => self.use_quic(unhelpful, error),
                },
            },
        }
    }

    async fn continue_with_tcp(
        &self,
        connected: TcpConnected,
        tcp: &TcpDialer,
        deadline: Deadline,
    ) -> Result<Channel, DialError> {
        if self.settle(Transport::Tcp) {
            return Ok(Channel::tcp(tcp.secure(connected, deadline).await?));
        }
        Ok(Channel::quic(self.quic.dial(deadline.waited).await?))
    }

    /// Dials by QUIC only, after TCP has failed within `taken`.
    async fn dial_quic_only(
        &self,
        error: DialError,
        taken: Duration,
    ) -> Result<Channel, DialError> {
        let refused = matches!(error, DialError::Refused { .. });
        let doubtful = refused && self.settled.get().is_none();
        if !doubtful {
            return self.use_quic(self.quic.dial(QUIC_TIMEOUT).await, error);
        }
        tokio::select! {
            biased;
            () = datagrams_refused(&self.host.addresses) => Err(error),
            dialled = self.quic.dial(timeout_after_refusal(taken)) => self.use_quic(dialled, error),
        }
    }

    fn use_quic(
        &self,
        dialled: Result<QuicConnection, DialError>,
        tcp: DialError,
    ) -> Result<Channel, DialError> {
        match dialled {
            Ok(connection) if self.settle(Transport::Quic) => Ok(Channel::quic(connection)),
            // QUIC works, but the other connections of this run use TCP, so the error of TCP is returned.
            Ok(_) => Err(tcp),
            Err(quic) if !quic.retryable() => Err(quic),
            Err(quic) => Err(self.both_failed(tcp, quic)),
        }
    }

    fn both_failed(&self, tcp: DialError, quic: DialError) -> DialError {
        DialError::Neither {
            host: self.host.endpoint.clone(),
            tcp: Box::new(tcp),
            quic: Box::new(quic),
        }
    }
}

/// Waits until every address has answered an empty datagram with "port unreachable". QUIC itself ignores such answers,
/// because anyone can forge them. After a refusal by TCP, they are plausible.
async fn datagrams_refused(addresses: &[SocketAddr]) {
    for address in addresses {
        let asked = async {
            let socket = UdpSocket::bind(unspecified(*address)).await?;
            socket.connect(address).await?;
            socket.send(&[]).await?;
            socket.recv(&mut [0]).await
        };
        let is_refused = asked
            .await
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if !is_refused {
            return std::future::pending().await;
        }
    }
}

/// Head start of TCP: one second until a lost packet is retransmitted, plus a long round trip.
const HEAD_START: Duration = Duration::from_millis(1_500);
/// Time limit for QUIC if the host does not answer TCP. With this limit, TCP and QUIC give up at the same time.
const QUIC_TIMEOUT: Duration = SILENCE_MAX.saturating_sub(HEAD_START);
/// Returns the time limit for QUIC after TCP was refused. The limit is short, because a refusal shows that the host
/// exists and that most likely no daemon listens on the port. The refusal took `taken`, which is at least one round
/// trip. A handshake takes two.
fn timeout_after_refusal(taken: Duration) -> Duration {
    // Rounded down to milliseconds, because the value may be displayed.
    let whole = Duration::from_millis(u64::try_from(taken.as_millis()).unwrap_or(u64::MAX));
    (REFUSED_TIMEOUT_MIN + whole * HANDSHAKES_ROUND_TRIPS).min(REFUSED_TIMEOUT_MAX)
}

/// Minimum time limit for QUIC after a refusal: one second until a lost packet is retransmitted, plus the time that a
/// busy host needs to compute the keys. The limit needs a minimum because a nearby firewall may have sent the refusal,
/// so `taken` can be shorter than a round trip to the host.
const REFUSED_TIMEOUT_MIN: Duration = Duration::from_millis(1_500);
const HANDSHAKES_ROUND_TRIPS: u32 = 6;
const REFUSED_TIMEOUT_MAX: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn datagrams_are_refused_where_nobody_takes_them() {
        // This socket accepts datagrams from only one other port and refuses all others. No other process can get its
        // port.
        let only_own = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        only_own.connect("127.0.0.1:1").await.unwrap();
        let nobody = only_own.local_addr().unwrap();
        datagrams_refused(&[nobody, nobody]).await;

        let taken = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addresses = [nobody, taken.local_addr().unwrap()];
        let mut empty = [0];
        tokio::select! {
            biased;
            () = datagrams_refused(&addresses) => panic!("somebody takes them"),
            bytes = taken.recv(&mut empty) => assert_eq!(bytes.unwrap(), 0),
        }
    }

    #[test]
    fn a_refusal_that_came_at_once_is_soon_believed() {
        assert_eq!(
            timeout_after_refusal(Duration::from_micros(50)),
            REFUSED_TIMEOUT_MIN
        );
        let far = Duration::from_millis(260);
        assert!(timeout_after_refusal(far) > 4 * far);
        assert_eq!(
            timeout_after_refusal(Duration::from_secs(9)),
            REFUSED_TIMEOUT_MAX
        );
    }
}
