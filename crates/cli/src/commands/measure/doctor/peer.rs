//! A receiver and the path to it, as a push would find them.
//!
//! The receiver is dialled by both transports, and asked for a preview of nothing. **Invariant:** no key is pinned,
//! and nothing at the receiver is changed.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use zmove_engine::{Remote, fresh_transfer};
use zmove_sender::ask_admission;
use zmove_transport::{
    Channel, ChannelDialler, DialError, DialStage, Fingerprint, FirstKey, HostAuthority,
    HostPolicy, Identity, KnownHosts, PathProbe, Reach, TransportChoice, control_pair,
};

/// What `doctor` found when it dialled a receiver.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) host: Remote,
    /// This side's key, which a receiver must let in.
    pub(super) key: Fingerprint,
    /// The addresses of the host's name, or the reason why there are none.
    pub(super) addresses: Result<Vec<IpAddr>, String>,
    /// The result of dialling by TCP; `None` without an address.
    pub(super) tcp: Option<Reachability>,
    /// The result of dialling by QUIC; `None` without an address, and where another program has the port.
    pub(super) quic: Option<Reachability>,
    /// The number of lanes that the receiver would take, or why it does not let this side in; `None` where neither
    /// transport reaches it.
    pub(super) admission: Option<Result<u16>>,
}

/// The result of dialling by one transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reachability {
    Reached(Reached),
    /// The host answers with another key than the pinned one.
    OtherKey(String),
    /// Another program answers, or a zmove of another version.
    OtherProgram(String),
    /// The host answers, but is not trusted for another reason than its key.
    Refused(String),
    /// A program takes the connection, and does not complete the handshake.
    Silent(String),
    /// No program takes the connection.
    Unreached(String),
}

/// A connection to the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) address: SocketAddr,
    pub(super) round_trip: Duration,
    /// The time until both ends had proved their keys.
    pub(super) taken: Duration,
    pub(super) host_key: HostKey,
    /// The path MTU as the kernel knows it: that of the first link, until a router reports a smaller one.
    pub(super) mtu: Option<u32>,
    /// The largest packets of which data has arrived in both directions, up to `mtu`; `None` if that is unknown.
    pub(super) mtu_measured: Option<u32>,
    pub(super) congestion: Option<String>,
}

/// The receiver's key, and why it is trusted or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostKey {
    Pinned(Fingerprint),
    /// The site's authority has issued a certificate for the key.
    Vouched(Fingerprint),
    Unknown(Fingerprint),
}

/// The result of dialling by one transport, with the connection if one came up.
type Dialled = (Reachability, Option<(Channel, ChannelDialler)>);

/// The receiver to dial, and the identity to dial it with.
struct Visit<'a> {
    host: &'a Remote,
    home: &'a Path,
    identity: Identity,
}

impl Peer {
    /// Dials a receiver with the keys in `home`.
    ///
    /// # Errors
    /// This side's own keys or lists cannot be read.
    pub(crate) async fn visit(host: &Remote, home: &Path) -> Result<Self> {
        let visit = Visit {
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
            (None, Some((_, dialler))) => Some(ask_over_quic(&dialler).await),
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

    /// The address to which packets for the receiver go.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        let reached = self.reached().map(|reached| reached.address.ip());
        reached.or_else(|| self.addresses.as_ref().ok()?.first().copied())
    }

    /// The shortest round trip that was seen.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.reached().map(|reached| reached.round_trip)
    }

    /// The connection that a push would take.
    pub(super) fn reached(&self) -> Option<&Reached> {
        [&self.tcp, &self.quic]
            .into_iter()
            .find_map(|way| match way {
                Some(Reachability::Reached(reached)) => Some(reached),
                _ => None,
            })
    }
}

/// Asks over a connection of its own: the first one may have waited longer for TCP than a receiver waits for a
/// greeting.
async fn ask_over_quic(dialler: &ChannelDialler) -> Result<u16> {
    let admission = match dialler.dial(STEP_TIMEOUT).await {
        Ok(channel) => ask(channel).await,
        Err(error) => Err(error.into()),
    };
    dialler.close().await;
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

impl Visit<'_> {
    /// Dials by TCP and QUIC at once. QUIC is not waited for where another program has the port: that the program is
    /// silent there says nothing more.
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

    /// Dials by TCP, and asks over that connection at once.
    async fn ask_over_tcp(&self) -> Result<(Reachability, Option<Result<u16>>)> {
        let (mut way, connected) = self.reach(TransportChoice::Tcp).await?;
        let Some((channel, dialler)) = connected else {
            return Ok((way, None));
        };
        let probe = channel.probe();
        way.learn(&probe);
        let admission = ask(channel).await;
        way.learn(&probe);
        way.measure(&dialler).await;
        Ok((way, Some(admission)))
    }

    /// Dials by one transport; the connection is for the caller to use.
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
                // This key is not remembered, and the question reveals nothing.
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
            Ok((channel, dialler)) => {
                let reached = Reached {
                    address: channel.address(),
                    round_trip: channel.round_trip(),
                    taken: begun.elapsed(),
                    host_key: thought(channel.peer()),
                    mtu: None,
                    mtu_measured: None,
                    congestion: None,
                };
                (Reachability::Reached(reached), Some((channel, dialler)))
            }
            Err(error) => (Reachability::failed(&error), None),
        })
    }

    async fn dial(
        &self,
        transport: TransportChoice,
        policy: HostPolicy,
    ) -> Result<(Channel, ChannelDialler), DialError> {
        let Remote { host, port, .. } = self.host;
        let reach = Reach {
            transport,
            ..Reach::default()
        };
        let dialler = ChannelDialler::new(&self.identity, host, *port, policy, reach).await?;
        let channel = dialler.dial(STEP_TIMEOUT).await?;
        Ok((channel, dialler))
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

    /// Updates the record with what the kernel knows of the connection by now.
    fn learn(&mut self, probe: &PathProbe) {
        let Self::Reached(reached) = self else { return };
        let shortest = probe.read().and_then(|info| info.round_trip_min);
        reached.round_trip =
            shortest.map_or(reached.round_trip, |time| time.min(reached.round_trip));
        // Keep the earlier values: a connection that has ended reports none.
        reached.mtu = probe.mtu().or(reached.mtu);
        reached.congestion = probe.congestion().or(reached.congestion.take());
    }

    /// Measures with data which packets arrive: the largest ones, or else the largest of the usual sizes.
    async fn measure(&mut self, dialler: &ChannelDialler) {
        let Self::Reached(reached) = self else { return };
        let within = ARRIVAL_MAX + reached.round_trip * 8;
        if dialler.arrives(None, within).await {
            reached.mtu_measured = reached.mtu;
            return;
        }
        let headers = HEADERS_BYTES[usize::from(reached.address.is_ipv6())];
        let arrives = |size: u32| dialler.arrives(Some(size - headers), within);
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

/// The MTUs of usual links and tunnels, the largest first.
const MTUS: [u32; 8] = [8_000, 4_470, 2_000, 1_500, 1_492, 1_450, 1_420, 1_400];
/// The MTU that every path has (IPv6).
const MTU_MIN: u32 = 1_280;
/// The headers of IPv4 and IPv6, each with that of TCP.
const HEADERS_BYTES: [u32; 2] = [40, 60];
/// How long a message may take that is larger than a packet, with several retransmissions.
const ARRIVAL_MAX: Duration = Duration::from_secs(3);

/// How long each step may take: a lost packet is sent again after 1, 3 and 7 s.
const STEP_TIMEOUT: Duration = Duration::from_secs(8);
