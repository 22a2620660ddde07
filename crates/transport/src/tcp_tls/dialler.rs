//! The client side: from a host name to a [`Connection`], as often as the run needs one.
//!
//! Control and lanes dial at once, and again after a break. **Invariant:** all connections of one dialler go to one
//! address, also where a name stands for several hosts, for lanes must find their control.

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
use super::{Connection, SocketConfig, WholeRecords, tls_error};
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

pub(crate) use race::{OneAddress, TcpConnected};

/// How long an address may be silent: the packets of a TCP handshake are sent again after one second and after three.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(5);

/// How long a host whose key is unknown may take to name its version, over TCP and QUIC.
const QUERY_MAX: Duration = Duration::from_secs(5);

/// How long the connection of a path check may take: a lost packet is sent again after one second.
const CHECK_CONNECT_MAX: Duration = Duration::from_secs(2);

/// How long the system may look a name up.
const RESOLVE_MAX: Duration = Duration::from_secs(30);

/// A host that has been looked up.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedHost {
    pub(crate) endpoint: Endpoint,
    /// The addresses; there is at least one.
    pub(crate) addresses: Arc<[SocketAddr]>,
}

impl ResolvedHost {
    /// Looks a host up; `name` is a name or an address, IPv6 without brackets.
    ///
    /// # Errors
    /// The name has no address.
    pub(crate) async fn resolve(name: &str, port: u16) -> Result<Self, DialError> {
        Ok(Self {
            endpoint: Endpoint::new(name, port),
            addresses: resolve(name, port).await?.into(),
        })
    }
}

/// When a connection must have come up, and how much time it was given.
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

    /// The same deadline, or one so long from now where that comes sooner.
    fn or_after(self, waited: Duration) -> Self {
        let sooner = Self::after(waited);
        if sooner.due < self.due { sooner } else { self }
    }
}

/// Makes connections to one host. Cheap to clone; clones go to the same address.
#[derive(Clone, Debug)]
pub struct Dialler {
    address: OneAddress,
    /// The round trip of the first connection that came up, before anything was sent on it.
    round_trip: Arc<OnceLock<Duration>>,
    tls: Arc<ClientConfig>,
    socket: SocketConfig,
    /// Set once full-size packets are found to vanish on the path.
    black_hole: Arc<OnceLock<BlackHole>>,
    /// Held during a check of the path, so that connections which hang at the same time share one.
    checking: Arc<tokio::sync::Mutex<()>>,
}

impl Dialler {
    /// Looks the host up, once for all connections. `host` is a name or an address, IPv6 without brackets.
    ///
    /// # Errors
    ///
    /// The name has no address, or the socket cannot be set up as configured.
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

    /// Like [`new`](Self::new), to a host that has been looked up.
    pub(crate) fn to(
        identity: &Identity,
        host: ResolvedHost,
        policy: HostPolicy,
        socket: SocketConfig,
    ) -> Result<Self, DialError> {
        // A setting that the kernel refuses shows here and not at the first connection.
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
            address: OneAddress::of(host),
            round_trip: Arc::default(),
            tls,
            socket,
            black_hole: Arc::default(),
            checking: Arc::default(),
        })
    }

    /// Makes one connection within `deadline`. Whether the host accepts this side's key shows only in what it sends
    /// next.
    ///
    /// # Errors
    ///
    /// No address answers, what answers is not zmove, or the host's key is not accepted; see [`DialError`].
    pub async fn dial(&self, deadline: Duration) -> Result<Connection, DialError> {
        let deadline = Deadline::after(deadline);
        let connected = self.reach(deadline).await?;
        self.secure(connected, deadline).await
    }

    /// A round trip, as measured by the first connection that came up.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip.get().copied()
    }

    /// Makes a TCP connection: the first half of a dial. Where nothing answers for [`SILENCE_MAX`], nothing will.
    pub(crate) async fn reach(&self, deadline: Deadline) -> Result<TcpConnected, DialError> {
        let deadline = deadline.or_after(SILENCE_MAX);
        let connected = timeout_at(deadline.due, self.connect()).await;
        connected.map_err(|_| self.address.timed_out(DialStage::Connecting, deadline))?
    }

    /// Makes the handshake: the second half of a dial.
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
        self.round_trip.get_or_init(|| connected.rtt);
        Ok(connected)
    }

    async fn connect_as(&self, socket: &SocketConfig) -> Result<TcpConnected, DialError> {
        let start = |address| race::attempt(self.address.endpoint(), address, socket.clone());
        self.address.connect(start).await
    }

    /// Makes the handshake. If it hangs because full-size packets vanish, makes it again with small ones.
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

    /// The black hole that this dialler has found, if any.
    pub(crate) fn black_hole(&self) -> Option<&BlackHole> {
        self.black_hole.get()
    }

    /// Resolves once full-size packets are found to vanish on the path, and then limits the segments of all later
    /// connections. The path is checked when the number of bytes that the lanes have `moved` stays the same.
    pub(crate) async fn await_black_hole(&self, moved: impl Fn() -> u64) {
        if self.socket.segment_limit.get().is_some() {
            return pending().await;
        }
        black_hole::watch(moved, || self.check_path()).await;
    }

    /// Checks whether full-size packets vanish on the path. If they do, limits the segments of all later connections.
    pub(crate) async fn check_path(&self) -> PathVerdict {
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

    /// Exchanges messages that are larger than any packet with the host, on a connection with segments of at most
    /// `segment_bytes`. Returns whether both have arrived.
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
        let connecting = connector.connect(server_name(), WholeRecords::new(socket));
        let mut stream = connecting
            .await
            .map_err(|error| self.handshake_error(error))?;
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

/// The error for a failed handshake with a host.
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

/// The outcome of a dial. If the key of the host is unknown, `ask` asks for its version first: nobody needs to judge
/// the key of a host of another version. The question takes [`QUERY_MAX`] and ends with the deadline of the dial.
pub(crate) async fn unless_other_version<T>(
    made: Result<T, DialError>,
    deadline: Deadline,
    ask: impl AsyncFnOnce(Deadline) -> Result<T, DialError>,
) -> Result<T, DialError> {
    let unknown = match made {
        Err(unknown @ DialError::UnknownHost { .. }) => unknown,
        made => return made,
    };
    // Boxed, because hardly any dial asks.
    let deadline = deadline.or_after(QUERY_MAX);
    match timeout_at(deadline.due, Box::pin(ask(deadline))).await {
        Ok(Err(other @ DialError::OtherVersion { .. })) => Err(other),
        _ => Err(unknown),
    }
}

/// The error for a host with which no version of the protocol was agreed on, and which has sent this greeting.
pub(crate) fn greeting_fault(host: Endpoint, greeting: &[u8]) -> DialError {
    match greeting.try_into().map(Greeting::decode) {
        Ok(Err(fault @ GreetingError::OtherVersion { .. })) => {
            DialError::OtherVersion { host, fault }
        }
        _ => DialError::NotZmove { host },
    }
}

/// The addresses of a host, those of the two families in turn, in the resolver's order otherwise; at least one.
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

    /// TCP and QUIC ask alike.
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
        let mut dialler = Dialler::new(&identity, "127.0.0.1", 1, policy, SocketConfig::default())
            .await
            .unwrap();
        // Nobody else gets the port while the second socket has it, which does not listen.
        let first = TcpSocket::new_v4().unwrap();
        first.set_reuseport(true).unwrap();
        first.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let keeps_port = TcpSocket::new_v4().unwrap();
        keeps_port.set_reuseport(true).unwrap();
        keeps_port.bind(first.local_addr().unwrap()).unwrap();
        let first = first.listen(1).unwrap();
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = [&first, &other].map(|listener| listener.local_addr().unwrap());
        dialler.address.host.addresses = addresses.into();
        let clone = dialler.clone();
        assert_eq!(dialler.connect().await.unwrap().address, addresses[0]);
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
