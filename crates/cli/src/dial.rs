//! From a host to a [`Link`]: control and lanes dial at the same time, so that no round trip is waited for twice.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, watch};
use zmove_sender::Link;
use zmove_transport::{
    Channel, ChannelDialler, DialError, Fingerprint, FirstKey, HostPolicy, Identity, KnownHosts, LaneError,
    LaneSink, Reach, Transport, TransportChoice, control_pair,
};
use zmove_types::{LaneId, RateLimit, TransferId};
use zmove_wire::{Cipher, Greeting, Role};

use crate::exit::{Exit, Failure};
use crate::location::Remote;
use crate::settings::{self, LANES_AT_ONCE, lanes_for};
use crate::terminal;

/// How long a connection may take to be ready.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// A control connection whose peer acknowledges nothing for so long is lost.
const CONTROL_SILENCE_MAX: Duration = Duration::from_secs(60);

/// How a receiver is to be reached.
#[derive(Clone, Debug)]
pub(crate) struct DialOptions {
    pub(crate) accept_new: bool,
    pub(crate) streams: Option<u16>,
    pub(crate) reach: Reach,
    pub(crate) cipher: Cipher,
    pub(crate) limit: Option<RateLimit>,
}

/// Another host, reached.
pub(crate) struct Reached {
    pub(crate) link: Link,
    pub(crate) transport: Transport,
    /// To be closed at the end.
    pub(crate) dialler: ChannelDialler,
}

/// Dials control and lanes; lanes go on coming up after this returns.
pub(crate) async fn connect(remote: &Remote, options: &DialOptions) -> Result<Reached> {
    let home = settings::home(settings::Role::Client)?;
    let identity = Identity::load_or_create(&home)?;
    let mut known_hosts = KnownHosts::open(&home)?;
    let first_key = FirstKey::default();
    let known = known_hosts.lookup(&remote.host, remote.port);
    let policy = match known {
        Some(key) => HostPolicy::Pinned(key),
        None if options.accept_new => HostPolicy::AcceptNew(first_key.clone()),
        None => HostPolicy::Pinned(ask_for_key(remote, &identity, &mut known_hosts, options).await?),
    };
    let reach = options.reach.clone();
    let dialler = ChannelDialler::new(&identity, &remote.host, remote.port, policy, reach).await?;
    let reached = dial_all(dialler, options).await?;
    if let Some(key) = first_key.get() {
        known_hosts.pin(&remote.host, remote.port, key)?;
        terminal::warn(format_args!("pinned the key of {}:{}: {key}", remote.host, remote.port));
    }
    Ok(reached)
}

/// Asks the user, as ssh does, whether an unknown host's key is the right one.
async fn ask_for_key(
    remote: &Remote,
    identity: &Identity,
    known_hosts: &mut KnownHosts,
    options: &DialOptions,
) -> Result<Fingerprint> {
    let (policy, reach) = (HostPolicy::RefuseUnknown, options.reach.clone());
    let dialler = ChannelDialler::new(identity, &remote.host, remote.port, policy, reach).await?;
    let fingerprint = match dialler.dial(DIAL_TIMEOUT).await {
        Err(DialError::UnknownHost { fingerprint, .. }) => fingerprint,
        Err(error) => return Err(error.into()),
        Ok(channel) => return Ok(channel.peer()),
    };
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        let text = format!(
            "the key of {}:{} is not known: {fingerprint}. If this is the line that 'zmove serve' prints there, run \
             again with --accept-new",
            remote.host, remote.port
        );
        return Err(Failure(Exit::Authentication, text).into());
    }
    eprint!(
        "The receiver at {}:{} is not known yet. Its key is\n  {fingerprint}\n\
         which should be the line that 'zmove serve' prints there. Go on and remember it (yes/no)? ",
        remote.host, remote.port
    );
    std::io::stderr().flush()?;
    // on a thread of its own, so that an interrupt is heard meanwhile
    let read = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer).map(|_| answer)
    });
    if read.await.context("read the answer")??.trim() != "yes" {
        return Err(Failure(Exit::Authentication, "the host's key was not accepted".into()).into());
    }
    known_hosts.pin(&remote.host, remote.port, fingerprint)?;
    Ok(fingerprint)
}

async fn dial_all(dialler: ChannelDialler, options: &DialOptions) -> Result<Reached> {
    let (transfer, streams, cipher) = (fresh_transfer()?, options.streams, options.cipher);
    let lane = |number| {
        let greeting = Greeting { cipher, ..Greeting::new(Role::Lane(LaneId(number)), transfer) };
        Lane { number, greeting, limit: options.limit }
    };
    let (lanes_in, lanes) = mpsc::channel(usize::from(zmove_wire::limits::LANES_MAX));
    let (wanted_in, wanted) = watch::channel(None);
    let at_once = streams.unwrap_or(match options.reach.transport {
        TransportChoice::Quic => settings::quic_lanes(),
        TransportChoice::Auto | TransportChoice::Tcp => LANES_AT_ONCE,
    });
    for number in 0..at_once {
        spawn_lane(&dialler, lane(number), &lanes_in, wanted.clone());
    }
    let channel = dialler.dial(DIAL_TIMEOUT).await?;
    let transport = channel.transport();
    let count = streams.unwrap_or_else(|| match transport {
        Transport::Tcp => lanes_for(channel.round_trip()),
        Transport::Quic => settings::quic_lanes(),
    });
    wanted_in.send_replace(Some(count));
    for number in at_once..count {
        spawn_lane(&dialler, lane(number), &lanes_in, wanted.clone());
    }
    channel.set_unacknowledged_max(CONTROL_SILENCE_MAX).context("set up the control connection")?;
    let link = Link { transfer, cipher, control: control_pair(channel), lanes };
    Ok(Reached { link, transport, dialler })
}

/// A transfer id that nobody else has.
pub(crate) fn fresh_transfer() -> Result<TransferId> {
    let mut transfer = TransferId([0; 16]);
    let filled = rustix::rand::getrandom(&mut transfer.0[..], rustix::rand::GetRandomFlags::empty());
    anyhow::ensure!(filled.context("draw a transfer id")? == transfer.0.len(), "too little randomness");
    Ok(transfer)
}

type LanesIn = mpsc::Sender<Result<Box<dyn LaneSink>, LaneError>>;

/// A lane to be dialled.
#[derive(Clone, Copy)]
struct Lane {
    number: u16,
    greeting: Greeting,
    /// That of all lanes together.
    limit: Option<RateLimit>,
}

/// Dials one lane; it is dropped again if the path turns out to need fewer.
fn spawn_lane(
    dialler: &ChannelDialler,
    lane: Lane,
    lanes: &LanesIn,
    mut wanted: watch::Receiver<Option<u16>>,
) {
    let (dialler, lanes) = (dialler.clone(), lanes.clone());
    tokio::spawn(async move {
        let dialled = dialler.dial(DIAL_TIMEOUT).await;
        let count = wanted.wait_for(Option::is_some).await.map(|count| *count);
        // the control connection did not come up: its error says why
        let Ok(Some(count)) = count else { return };
        if lane.number >= count {
            return;
        }
        let made = match dialled {
            Ok(channel) => make_lane(channel, lane, count).await,
            Err(error) => Err(LaneError::Io { source: std::io::Error::other(error) }),
        };
        let _push_over = lanes.send(made).await;
    });
}

/// Greets on a lane, one of `count`.
async fn make_lane(
    mut channel: Channel,
    Lane { greeting, limit, .. }: Lane,
    count: u16,
) -> Result<Box<dyn LaneSink>, LaneError> {
    if let Some(limit) = limit {
        channel.set_rate_max(limit.share(count))?;
    }
    channel.write_all(&greeting.encode()).await?;
    channel.flush().await?;
    channel.into_sink(greeting.cipher, count)
}
