//! The client side: establishes any number of [`Connection`]s to a host.
//!
//! Control and lanes are dialed concurrently, and again after an interruption. **Invariant:** all connections of one
//! dialer use the same address. A name may resolve to several hosts, and lanes must reach the host of their control
//! connection.

use std::{
    future::pending,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use rustls::{CertificateError, ClientConfig, Error as TlsError, OtherError};
use rustls_pki_types::ServerName;
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use zmove_wire::{ANY_PROTOCOL_NAME, Greeting, GreetingError, PATH_CHECK_BYTES};

use super::black_hole::{
    self, BlackHole, HANDSHAKE_LONG, PathVerdict, SAFE_SEGMENT_BYTES, SegmentLimit,
};
use super::{Connection, ForwardedPort, SocketConfig, StreamSocket, WholeRecords, tls_error};
use crate::{
    endpoint::Endpoint,
    error::{DialError, DialStage},
    record::TrafficSecrets,
    trust::{
        HandshakeFault, HostKeyFault, HostPolicy, Identity, SERVER_NAME, client_config,
        path_check_config, provider, version_query_config,
    },
};

pub(crate) mod race;

pub(crate) use race::{ChosenAddress, TcpConnected};

/// Maximum time without an answer from an address. The packets of a TCP handshake are retransmitted after one second
/// and after three seconds.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Maximum time to wait for the version of a host with an unknown key. The limit applies to TCP and QUIC.
const QUERY_MAX: Duration = Duration::from_secs(5);

/// Maximum time to connect for a path check. A lost packet is retransmitted after one second.
const CHECK_CONNECT_MAX: Duration = Duration::from_secs(2);

/// Number of round trips of a handshake through ssh. In the first one, the other host confirms the forwarding.
const FORWARDED_ROUND_TRIPS: u32 = 2;

/// Maximum time for the system to resolve a name.
const RESOLVE_MAX: Duration = Duration::from_secs(30);

/// A host that has been resolved.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedHost {
    pub(crate) endpoint: Endpoint,
    /// The addresses of the host, at least one.
    pub(crate) addresses: Arc<[SocketAddr]>,
}

impl ResolvedHost {
    /// Resolves a host. `name` is a host name or an address. An IPv6 address has no brackets.
    ///
    /// # Errors
    /// Returns an error if the name has no address.
    pub(crate) async fn resolve(name: &str, port: u16) -> Result<Self, DialError> {
        Ok(Self {
            endpoint: Endpoint::new(name, port),
            addresses: resolve(name, port).await?.into(),
        })
    }

    /// Returns the host at the other end of a forwarded port.
    pub(crate) fn forwarded(name: &str, forwarded: &ForwardedPort) -> Self {
        let address = forwarded.address();
        Self {
            endpoint: Endpoint::new(name, address.port()),
            addresses: Arc::new([address]),
        }
    }
}

/// The time by which a connection must be established, with the time limit from which it was computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) due: Instant,
    pub(crate) waited: Duration,
}

impl Deadline {
    pub(crate) fn after(waited: Duration) -> Self {
        Self {
            due: Instant::now() + waited,
            waited,
        }
    }

    /// Returns the earlier of this deadline and the deadline `waited` from now.
    fn or_after(self, waited: Duration) -> Self {
        let sooner = Self::after(waited);
        if sooner.due < self.due { sooner } else { self }
    }
}

/// Dials connections to one host. Cheap to clone. Clones use the same address.
#[derive(Clone, Debug)]
pub struct TcpDialer {
    address: ChosenAddress,
    /// Round-trip time of the first established connection, before any data was sent on it.
    round_trip: Arc<OnceLock<Duration>>,
    tls: Arc<ClientConfig>,
    socket: SocketConfig,
    /// Set once full-size packets are found to be lost on the path.
    black_hole: Arc<OnceLock<BlackHole>>,
    /// Locked during a path check, so that several connections that hang at the same time trigger only one check.
    checking: Arc<tokio::sync::Mutex<()>>,
    /// Where all connections begin if ssh forwards them.
    forwarded: Option<ForwardedPort>,
}

impl TcpDialer {
    /// Resolves the host once for all connections. `host` is a host name or an address. An IPv6 address has no
    /// brackets.
    ///
    /// # Errors
    ///
    /// Returns an error if the name has no address, or if the socket cannot be configured.
    pub async fn new(
        identity: &Identity,
        host: &str,
        port: u16,
        policy: HostPolicy,
        socket: SocketConfig,
    ) -> Result<Self, DialError> {
        Self::to(
            identity,
            ResolvedHost::resolve(host, port).await?,
            policy,
            socket,
        )
    }

    /// Creates a dialer like [`new`](Self::new), for a host that has already been resolved.
    pub(crate) fn to(
        identity: &Identity,
        host: ResolvedHost,
        policy: HostPolicy,
        socket: SocketConfig,
    ) -> Result<Self, DialError> {
        // Opens a socket as a test, so that settings that the kernel rejects are found before the first connection.
        let trial = socket.open(host.addresses[0]);
        trial.map_err(|source| DialError::Socket {
            host: host.endpoint.clone(),
            source,
        })?;
        let tls = Arc::new(client_config(
            provider(),
            identity,
            policy,
            HandshakeFault::default(),
        ));
        Ok(Self {
            address: ChosenAddress::of(host),
            round_trip: Arc::default(),
            tls,
            socket,
            black_hole: Arc::default(),
            checking: Arc::default(),
            forwarded: None,
        })
    }

    /// Returns this dialer for connections that ssh forwards. They have no options of TCP and no path to check.
    pub(crate) fn through(self, forwarded: ForwardedPort) -> Self {
        Self {
            forwarded: Some(forwarded),
            ..self
        }
    }

    /// Returns whether ssh forwards the connections.
    pub(crate) const fn is_forwarded(&self) -> bool {
        self.forwarded.is_some()
    }

    /// Returns the maximum number of lanes that ssh is expected to carry, or `None` if there is no limit.
    pub(crate) fn lanes_max(&self) -> Option<u16> {
        self.forwarded.as_ref()?.lanes_max()
    }

    /// Dials one connection in at most `deadline`. A successful dial does not mean that the host accepts this side's
    /// key. Only the next data from the host shows that.
    ///
    /// # Errors
    ///
    /// Returns [`DialError`] if no address responds, if the server does not speak the zmove protocol, or if the host's
    /// key is not accepted.
    pub async fn dial(&self, deadline: Duration) -> Result<Connection, DialError> {
        let deadline = Deadline::after(deadline);
        let connected = self.reach(deadline).await?;
        self.secure(connected, deadline).await
    }

    /// Returns the round-trip time measured by the first established connection.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip.get().copied()
    }

    /// Establishes a TCP connection: the first half of a dial. Gives up if no address answers for [`SILENCE_MAX`].
    pub(crate) async fn reach(&self, deadline: Deadline) -> Result<TcpConnected, DialError> {
        let deadline = deadline.or_after(SILENCE_MAX);
        let connected = timeout_at(deadline.due, self.connect()).await;
        connected.map_err(|_| self.address.timed_out(DialStage::Connecting, deadline))?
    }

    /// Performs the handshake: the second half of a dial.
    pub(crate) async fn secure(
        &self,
        connected: TcpConnected,
        deadline: Deadline,
    ) -> Result<Connection, DialError> {
        let handshake = timeout_at(deadline.due, self.handshake_by_any_size(connected)).await;
        let made =
            handshake.map_err(|_| self.address.timed_out(DialStage::Handshaking, deadline))?;
        unless_other_version(made, deadline, async |_due| {
            let tls = Arc::new(version_query_config(&self.tls));
            self.handshake(self.connect().await?, &tls).await
        })
        .await
    }

    async fn connect(&self) -> Result<TcpConnected, DialError> {
        let connected = self.connect_as(&self.socket).await?;
        if let Some(rtt) = connected.rtt {
            self.round_trip.get_or_init(|| rtt);
        }
        Ok(connected)
    }

    async fn connect_as(&self, socket: &SocketConfig) -> Result<TcpConnected, DialError> {
        if let Some(forwarded) = &self.forwarded {
            return self.connect_through(forwarded).await;
        }
        let start = |address| race::attempt(self.address.endpoint(), address, socket.clone());
        self.address.connect(start).await
    }

    async fn connect_through(&self, forwarded: &ForwardedPort) -> Result<TcpConnected, DialError> {
        let address = forwarded.address();
        let connected = forwarded.connect().await;
        let socket = connected.map_err(|source| DialError::Connect {
            host: self.address.endpoint(),
            address,
            source,
        })?;
        Ok(TcpConnected {
            socket: StreamSocket::Forwarded(socket),
            address,
            rtt: None,
        })
    }

    /// Performs the handshake. If the handshake hangs because full-size packets are lost, performs another handshake
    /// with small packets.
    async fn handshake_by_any_size(
        &self,
        connected: TcpConnected,
    ) -> Result<Connection, DialError> {
        let vanishing = async {
            sleep(HANDSHAKE_LONG).await;
            if self.check_path().await != PathVerdict::BlackHole {
                pending::<()>().await;
            }
        };
        tokio::select! {
            made = self.handshake(connected, &self.tls) => return made,
            () = vanishing => {}
        }
        self.handshake(self.connect().await?, &self.tls).await
    }

    /// Returns the black hole that this dialer has found, if any.
    pub(crate) fn black_hole(&self) -> Option<&BlackHole> {
        self.black_hole.get()
    }

    /// Resolves once full-size packets are found to be lost on the path, and limits the segments of all later
    /// connections. `moved` returns the number of bytes moved on the lanes. The path is checked when this number has
    /// not changed for some time.
    pub(crate) async fn await_black_hole(&self, moved: impl Fn() -> u64) {
        if self.is_forwarded() || self.socket.segment_limit.get().is_some() {
            return pending().await;
        }
        black_hole::watch(moved, || self.check_path()).await;
    }

    /// Checks whether full-size packets are lost on the path. If they are, limits the segments of all later
    /// connections.
    pub(crate) async fn check_path(&self) -> PathVerdict {
        if self.is_forwarded() {
            return PathVerdict::Unknown;
        }
        let _one_at_a_time = self.checking.lock().await;
        let limit = &self.socket.segment_limit;
        if limit.get().is_some() {
            return PathVerdict::BlackHole;
        }
        let grace = black_hole::grace(self.round_trip().unwrap_or_default());
        let small = self.arrives(Some(SAFE_SEGMENT_BYTES));
        let verdict = black_hole::judge(self.arrives(None), small, grace).await;
        if verdict == PathVerdict::BlackHole {
            limit.set_safe();
            let host = self.address.endpoint();
            self.black_hole.get_or_init(|| BlackHole { host });
        }
        verdict
    }

    /// Exchanges messages larger than any packet with the host, on a connection with segments of at most
    /// `segment_bytes`. Returns whether both messages arrived.
    pub(crate) async fn arrives(&self, segment_bytes: Option<u32>) -> bool {
        let socket = SocketConfig {
            segment_limit: segment_bytes.map(SegmentLimit::of).unwrap_or_default(),
            ..self.socket.clone()
        };
        let exchange = async {
            let connected = timeout(CHECK_CONNECT_MAX, self.connect_as(&socket)).await;
            let connected = connected.ok()?.ok()?.socket;
            let connector = TlsConnector::from(Arc::new(path_check_config(&self.tls)));
            let mut stream = connector.connect(server_name(), connected).await.ok()?;
            let mut answer = vec![0; PATH_CHECK_BYTES];
            stream.read_exact(&mut answer).await.ok()
        };
        Box::pin(exchange).await.is_some()
    }

    async fn handshake(
        &self,
        connected: TcpConnected,
        tls: &Arc<ClientConfig>,
    ) -> Result<Connection, DialError> {
        let TcpConnected {
            socket,
            address,
            rtt,
        } = connected;
        let secrets = Arc::<TrafficSecrets>::default();
        let connector = TlsConnector::from(secrets.of_client(tls));
        let began = Instant::now();
        let connecting = connector.connect(server_name(), WholeRecords::new(socket));
        let mut stream = connecting
            .await
            .map_err(|error| self.handshake_error(error))?;
        let rtt = rtt.unwrap_or_else(|| began.elapsed() / FORWARDED_ROUND_TRIPS);
        self.round_trip.get_or_init(|| rtt);
        let host = self.address.endpoint();
        if stream.get_ref().1.alpn_protocol() == Some(ANY_PROTOCOL_NAME) {
            let mut greeting = [0; Greeting::BYTES];
            let heard = stream.read_exact(&mut greeting).await;
            heard.map_err(|error| self.handshake_error(error))?;
            return Err(greeting_fault(host, &greeting));
        }
        Connection::new(stream.into(), secrets, address, rtt).ok_or(DialError::NotZmove { host })
    }

    fn handshake_error(&self, error: io::Error) -> DialError {
        let host = self.address.endpoint();
        match tls_error(&error).cloned() {
            Some(source) => tls_fault(host, source),
            // ssh accepts each connection, and closes it if the other host refuses to forward it.
            None if self.is_forwarded() && self.round_trip().is_none() => {
                DialError::NotForwarded { host }
            }
            None => DialError::Closed {
                host,
                source: error,
            },
        }
    }
}

fn server_name() -> ServerName<'static> {
    ServerName::try_from(SERVER_NAME).expect("the constant is a DNS name")
}

/// Returns the error for a failed handshake with a host.
pub(crate) fn tls_fault(host: Endpoint, source: TlsError) -> DialError {
    match &source {
        TlsError::InvalidCertificate(CertificateError::Other(OtherError(fault))) => {
            match fault.downcast_ref().cloned() {
                Some(HostKeyFault::Unknown { found }) => DialError::UnknownHost {
                    host,
                    fingerprint: found,
                },
                Some(HostKeyFault::Changed { expected, found }) => DialError::HostKeyChanged {
                    host,
                    expected,
                    found,
                },
                Some(HostKeyFault::Certificate { fault }) => {
                    DialError::HostCertificate { host, fault }
                }
                None => DialError::Handshake { host, source },
            }
        }
        TlsError::InvalidCertificate(CertificateError::BadSignature) => {
            DialError::HostKeyUnproven { host }
        }
        TlsError::InvalidMessage(_) => DialError::NotTls { host },
        error if super::speaks_otherwise(error) => DialError::NotZmove { host },
        _ => DialError::Handshake { host, source },
    }
}

/// Returns the result of a dial. If the host's key is unknown, first calls `ask` to query the version of the host. If
/// the host speaks another version, returns that error instead, because the user then need not decide about the key.
/// The query takes at most [`QUERY_MAX`] and ends with the deadline of the dial.
pub(crate) async fn unless_other_version<T>(
    made: Result<T, DialError>,
    deadline: Deadline,
    ask: impl AsyncFnOnce(Deadline) -> Result<T, DialError>,
) -> Result<T, DialError> {
    let unknown = match made {
        Err(unknown @ DialError::UnknownHost { .. }) => unknown,
        made => return made,
    };
    // The query is boxed, because few dials need it.
    let deadline = deadline.or_after(QUERY_MAX);
    match timeout_at(deadline.due, Box::pin(ask(deadline))).await {
        Ok(Err(other @ DialError::OtherVersion { .. })) => Err(other),
        _ => Err(unknown),
    }
}

/// Returns the error for a host that has no version of the protocol in common with this side. `greeting` is the
/// greeting that the host has sent.
pub(crate) fn greeting_fault(host: Endpoint, greeting: &[u8]) -> DialError {
    match greeting.try_into().map(Greeting::decode) {
        Ok(Err(fault @ GreetingError::OtherVersion { .. })) => {
            DialError::OtherVersion { host, fault }
        }
        _ => DialError::NotZmove { host },
    }
}

/// Resolves a host to at least one address. The two address families alternate. Otherwise, the resolver's order is
/// kept.
async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let unresolved = |source| DialError::Resolve {
        host: host.into(),
        source,
    };
    let found = timeout(RESOLVE_MAX, tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| unresolved(io::ErrorKind::TimedOut.into()))?
        .map_err(unresolved)?;
    let addresses = race::interleave(found);
    if addresses.is_empty() {
        Err(unresolved(io::ErrorKind::NotFound.into()))
    } else {
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// This test uses TCP. QUIC queries the version in the same way.
    #[tokio::test(start_paused = true)]
    async fn a_host_that_does_not_name_its_version_is_not_waited_for_beyond_the_dial() {
        let unknown = || -> Result<(), DialError> {
            Err(DialError::UnknownHost {
                host: Endpoint::new("h", 1),
                fingerprint: crate::Fingerprint([0; 32]),
            })
        };
        let second = Duration::from_secs(1);
        for (deadline, waited) in [(60 * second, QUERY_MAX), (second, second)] {
            let began = Instant::now();
            let deadline = Deadline::after(deadline);
            let made = unless_other_version(unknown(), deadline, async |due| {
                assert_eq!(due.due, began + waited);
                pending().await
            })
            .await;
            assert!(matches!(made, Err(DialError::UnknownHost { .. })));
            assert_eq!(began.elapsed(), waited);
        }
    }

    #[tokio::test]
    async fn address_that_answered_first_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create(home.path()).unwrap();
        let policy = HostPolicy::RefuseUnknown;
        let mut dialer = TcpDialer::new(&identity, "127.0.0.1", 1, policy, SocketConfig::default())
            .await
            .unwrap();
        // The second socket does not listen. It only reserves the port.
        let first = TcpSocket::new_v4().unwrap();
        first.set_reuseport(true).unwrap();
        first.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let keeps_port = TcpSocket::new_v4().unwrap();
        keeps_port.set_reuseport(true).unwrap();
        keeps_port.bind(first.local_addr().unwrap()).unwrap();
        let first = first.listen(1).unwrap();
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = [&first, &other].map(|listener| listener.local_addr().unwrap());
        dialer.address.host.addresses = addresses.into();
        let clone = dialer.clone();
        assert_eq!(dialer.connect().await.unwrap().address, addresses[0]);
        drop(first);
        let again = clone.connect().await.err();
        assert!(
            matches!(again, Some(DialError::Refused { address, .. }) if address == addresses[0])
        );
    }

    #[tokio::test]
    async fn names_are_looked_up_and_addresses_are_not() {
        assert!(!resolve("localhost", 1).await.unwrap().is_empty());
        assert_eq!(
            resolve("::1", 7).await.unwrap(),
            ["[::1]:7".parse().unwrap()]
        );
        let error = resolve("no such host", 1).await.unwrap_err();
        assert!(matches!(&error, DialError::Resolve { host, .. } if host == "no such host"));
    }
}
