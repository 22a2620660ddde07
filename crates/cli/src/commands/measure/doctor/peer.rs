//! Examines a receiver and the path to it, as a push would see them.
//!
//! The probe dials the receiver over both transports, and requests a preview of an empty transfer. **Invariant:** no
//! key is pinned, and nothing at the receiver is changed.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use zmove_engine::{Remote, fresh_transfer};
use zmove_sender::ask_admission;
use zmove_transport::{
    Channel, ChannelDialer, DialError, DialOptions, DialStage, Fingerprint, FirstKey,
    HostAuthority, HostPolicy, Identity, KnownHosts, PathProbe, TransportChoice, control_pair,
};

/// The results of dialing a receiver.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) host: Remote,
    /// Key of this host, which the receiver must allow.
    pub(super) key: Fingerprint,
    /// Addresses to which the host's name resolves, or the error of the name lookup.
    pub(super) addresses: Result<Vec<IpAddr>, String>,
    /// Result of dialing over TCP. `None` if the host's name did not resolve.
    pub(super) tcp: Option<Reachability>,
    /// Result of dialing over QUIC. `None` if the host's name did not resolve, or if another program answers at the TCP
    /// port.
    pub(super) quic: Option<Reachability>,
    /// Number of lanes that the receiver would accept, or the reason why it refuses this host. `None` if neither
    /// transport reaches the receiver.
    pub(super) admission: Option<Result<u16>>,
}

/// The result of dialing over one transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reachability {
    Reached(Reached),
    /// The receiver has a key other than the pinned one.
    OtherKey(String),
    /// Another program answers, or zmove in a version with a different protocol.
    OtherProgram(String),
    /// The receiver answers, but cannot be trusted for a reason other than a changed key.
    Refused(String),
    /// A program accepts the connection but does not complete the handshake.
    Silent(String),
    /// No program accepts the connection.
    Unreached(String),
}

/// A connection to the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) address: SocketAddr,
    pub(super) round_trip: Duration,
    /// Time until both ends had proved their keys.
    pub(super) taken: Duration,
    pub(super) host_key: HostKey,
    /// Path MTU known to the kernel. This is the MTU of the first link until a router reports a smaller one.
    pub(super) mtu: Option<u32>,
    /// Size of the largest packets that carried data in both directions, up to `mtu`, or `None` if unknown.
    pub(super) mtu_measured: Option<u32>,
    pub(super) congestion: Option<String>,
}

/// The receiver's key, and whether it is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostKey {
    Pinned(Fingerprint),
    /// The site's authority has issued a certificate for the key.
    Vouched(Fingerprint),
    Unknown(Fingerprint),
}

/// The result of dialing over one transport. If the dial succeeded, the result includes the connection.
type Dialled = (Reachability, Option<(Channel, ChannelDialer)>);

/// The receiver to dial, and the identity of this host.
struct Dialer<'a> {
    host: &'a Remote,
    home: &'a Path,
    identity: Identity,
}

impl Peer {
    /// Dials a receiver with the keys in `home`.
    ///
    /// # Errors
    /// Returns an error if this host's keys or lists cannot be read.
    pub(crate) async fn dial(host: &Remote, home: &Path) -> Result<Self> {
        let visit = Dialer {
            host,
            home,
            identity: Identity::load_or_create(home)?,
        };
        let key = visit.identity.fingerprint();
        let addresses = look_up(host).await;
        if addresses.is_err() {
            return Ok(Self {
                host: host.clone(),
                key,
                addresses,
                tcp: None,
                quic: None,
                admission: None,
            });
        }
        let (tcp, by_tcp, over_quic) = visit.reach_by_both().await?;
        let (quic, by_quic) = over_quic.unzip();
        let admission = match (by_tcp, by_quic.flatten()) {
            (Some(admission), _) => Some(admission),
            (None, Some((_, dialer))) => Some(ask_over_quic(&dialer).await),
            (None, None) => None,
        };
        Ok(Self {
            host: host.clone(),
            key,
            addresses,
            tcp: Some(tcp),
            quic,
            admission,
        })
    }

    /// Returns the address to which packets for the receiver are sent.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        let reached = self.reached().map(|reached| reached.address.ip());
        reached.or_else(|| self.addresses.as_ref().ok()?.first().copied())
    }

    /// Returns the shortest round-trip time that was measured.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.reached().map(|reached| reached.round_trip)
    }

    /// Returns the connection that a push would use.
    pub(super) fn reached(&self) -> Option<&Reached> {
        [&self.tcp, &self.quic]
            .into_iter()
            .find_map(|way| match way {
                Some(Reachability::Reached(reached)) => Some(reached),
                _ => None,
            })
    }
}

/// Asks for admission over a new connection. The earlier QUIC connection may have waited for the TCP result longer than
/// a receiver waits for a greeting.
async fn ask_over_quic(dialer: &ChannelDialer) -> Result<u16> {
    let admission = match dialer.dial(STEP_TIMEOUT).await {
        Ok(channel) => ask(channel).await,
        Err(error) => Err(error.into()),
    };
    dialer.close().await;
    admission
}

async fn ask(channel: Channel) -> Result<u16> {
    let transfer = fresh_transfer().context("draw a transfer id")?;
    let (reader, writer) = control_pair(channel);
    Ok(ask_admission(reader, writer, transfer).await?)
}

async fn look_up(host: &Remote) -> Result<Vec<IpAddr>, String> {
    let found = tokio::net::lookup_host((host.host.as_str(), host.port));
    let found = tokio::time::timeout(STEP_TIMEOUT, found)
        .await
        .map_err(|_| "no answer".to_owned())?;
    Ok(found
        .map_err(|error| error.to_string())?
        .map(|address| address.ip())
        .collect())
}

impl Dialer<'_> {
    /// Dials over TCP and QUIC at the same time. If another program answers at the TCP port, the function does not wait
    /// for QUIC, because QUIC is not expected to answer.
    async fn reach_by_both(&self) -> Result<(Reachability, Option<Result<u16>>, Option<Dialled>)> {
        let mut by_quic = Box::pin(self.reach(TransportChoice::Quic));
        let mut over_quic = None;
        let mut by_tcp = Box::pin(self.ask_over_tcp());
        let (tcp, admission) = loop {
            tokio::select! {
                asked = &mut by_tcp => break asked?,
                reached = &mut by_quic, if over_quic.is_none() => over_quic = Some(reached?),
            }
        };
        if over_quic.is_none() && !matches!(tcp, Reachability::OtherProgram(_)) {
            over_quic = Some(by_quic.await?);
        }
        Ok((tcp, admission, over_quic))
    }

    /// Dials over TCP, and asks for admission over the same connection immediately.
    async fn ask_over_tcp(&self) -> Result<(Reachability, Option<Result<u16>>)> {
        let (mut way, connected) = self.reach(TransportChoice::Tcp).await?;
        let Some((channel, dialer)) = connected else {
            return Ok((way, None));
        };
        let probe = channel.probe();
        way.learn(&probe);
        let admission = ask(channel).await;
        way.learn(&probe);
        way.measure(&dialer).await;
        Ok((way, Some(admission)))
    }

    /// Dials over one transport. If the dial succeeds, also returns the connection for further use.
    async fn reach(&self, transport: TransportChoice) -> Result<Dialled> {
        let begun = Instant::now();
        let known = KnownHosts::open(self.home)?.lookup(&self.host.host, self.host.port);
        let policy = match known {
            Some(key) => HostPolicy::Pinned(key),
            None => HostAuthority::load(self.home, &self.host.host)?
                .map_or(HostPolicy::RefuseUnknown, HostPolicy::Vouched),
        };
        let (dialled, thought): (_, fn(_) -> _) = match self.dial(transport, policy).await {
            Err(DialError::UnknownHost { .. }) => {
                // The key is not stored, and the request reveals nothing to an unknown host.
                let policy = HostPolicy::AcceptNew(FirstKey::default());
                (self.dial(transport, policy).await, HostKey::Unknown)
            }
            dialled => (
                dialled,
                if known.is_some() {
                    HostKey::Pinned
                } else {
                    HostKey::Vouched
                },
            ),
        };
        Ok(match dialled {
            Ok((channel, dialer)) => {
                let reached = Reached {
                    address: channel.address(),
                    round_trip: channel.round_trip(),
                    taken: begun.elapsed(),
                    host_key: thought(channel.peer()),
                    mtu: None,
                    mtu_measured: None,
                    congestion: None,
                };
                (Reachability::Reached(reached), Some((channel, dialer)))
            }
            Err(error) => (Reachability::failed(&error), None),
        })
    }

    async fn dial(
        &self,
        transport: TransportChoice,
        policy: HostPolicy,
    ) -> Result<(Channel, ChannelDialer), DialError> {
        let Remote { host, port, .. } = self.host;
        let reach = DialOptions {
            transport,
            ..DialOptions::default()
        };
        let dialer = ChannelDialer::new(&self.identity, host, *port, policy, reach).await?;
        let channel = dialer.dial(STEP_TIMEOUT).await?;
        Ok((channel, dialer))
    }
}

impl Reachability {
    fn failed(error: &DialError) -> Self {
        let text = format!("failed to {error}");
        match error {
            DialError::HostKeyChanged { .. } => Self::OtherKey(text),
            DialError::NotTls { .. }
            | DialError::NotZmove { .. }
            | DialError::OtherVersion { .. } => Self::OtherProgram(text),
            DialError::Closed { .. }
            | DialError::TimedOut {
                stage: DialStage::Handshaking,
                ..
            } => Self::Silent(text),
            DialError::Resolve { .. } | DialError::Socket { .. } => Self::Unreached(text),
            error if error.retryable() => Self::Unreached(text),
            _ => Self::Refused(text),
        }
    }

    /// Updates the record with the data that the kernel currently reports about the connection.
    fn learn(&mut self, probe: &PathProbe) {
        let Self::Reached(reached) = self else { return };
        let shortest = probe.read().and_then(|info| info.round_trip_min);
        reached.round_trip =
            shortest.map_or(reached.round_trip, |time| time.min(reached.round_trip));
        // An earlier value is kept if the kernel reports no new value, as for a closed connection.
        reached.mtu = probe.mtu().or(reached.mtu);
        reached.congestion = probe.congestion().or(reached.congestion.take());
    }

    /// Sends data to find the largest packet size that arrives. Tries the MTU that the kernel reports, and then the
    /// common MTUs in descending order.
    async fn measure(&mut self, dialer: &ChannelDialer) {
        let Self::Reached(reached) = self else { return };
        let within = ARRIVAL_MAX + reached.round_trip * 8;
        if dialer.arrives(None, within).await {
            reached.mtu_measured = reached.mtu;
            return;
        }
        let headers = HEADERS_BYTES[usize::from(reached.address.is_ipv6())];
        let arrives = |size: u32| dialer.arrives(Some(size - headers), within);
        if !arrives(MTU_MIN).await {
            return;
        }
        let largest = reached.mtu.unwrap_or(MTU_MIN);
        for size in MTUS.into_iter().filter(|size| *size < largest) {
            if arrives(size).await {
                reached.mtu_measured = Some(size);
                return;
            }
        }
        reached.mtu_measured = Some(MTU_MIN);
    }
}

/// The MTUs of common links and tunnels, largest first.
const MTUS: [u32; 8] = [8_000, 4_470, 2_000, 1_500, 1_492, 1_450, 1_420, 1_400];
/// The minimum MTU of every path (IPv6).
const MTU_MIN: u32 = 1_280;
/// Combined size of the IP and TCP headers, in bytes: for IPv4, then for IPv6.
const HEADERS_BYTES: [u32; 2] = [40, 60];
/// Maximum time for the arrival of a message that is larger than a packet. It allows for several retransmissions.
const ARRIVAL_MAX: Duration = Duration::from_secs(3);

/// Maximum time for each step of the probe. A lost packet is retransmitted after 1, 3 and 7 s.
const STEP_TIMEOUT: Duration = Duration::from_secs(8);
