//! From a host to a [`Link`]: control and lanes dial at the same time, so that no round trip is waited for twice.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, watch};
use zmove_sender::{LaneNumber, LaneSupply, Learnt, Link, LossAnswer, Need, Summary};
use zmove_transport::{
    Channel, ChannelDialler, DialError, FirstKey, HostPolicy, Identity, KnownHosts, LaneError, LaneSink,
    Reach, Transport, TransportChoice, control_pair,
};
use zmove_types::{LaneId, RateLimit, TransferId};
use zmove_wire::{Cipher, Greeting, Role};

use crate::args::SshArgs;
use crate::commands::trust::host_policy;
use crate::display::terminal;
use crate::location::{Login, Remote};
use crate::paths::{Known, Paths};
use crate::settings::{self, Controls, LANES_AT_ONCE, LOSS_TOLERANT, congestion_controls, lanes_for};
use crate::ssh::{self, SshReceiver, SshSession};

/// How long a connection may take to be ready.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long most lanes are held back for what shows at once: that the scan has ended, or a short path.
const SHOWS_AT_ONCE: Duration = Duration::from_millis(5);
/// A control connection whose peer acknowledges nothing for so long is lost.
const CONTROL_SILENCE_MAX: Duration = Duration::from_secs(60);

/// How a receiver is to be reached.
#[derive(Clone, Debug)]
pub(crate) struct DialOptions {
    pub(crate) accept_new: bool,
    /// An unknown host is refused without asking.
    pub(crate) strict: bool,
    pub(crate) streams: Option<u16>,
    pub(crate) reach: Reach,
    pub(crate) cipher: Cipher,
    pub(crate) limit: Option<RateLimit>,
    pub(crate) ssh: SshArgs,
    pub(crate) more: More,
}

/// What lanes are that are asked for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum More {
    /// More of the same.
    Others,
    /// Each time a set of its own, as if they were the first.
    Sets,
}

/// Another host, reached.
pub(crate) struct Reached {
    pub(crate) link: Link,
    pub(crate) transport: Transport,
    /// To be closed at the end.
    pub(crate) dialler: ChannelDialler,
    pub(crate) route: Route,
    /// What has started the receiver, unless a daemon was running.
    pub(crate) ssh: Option<SshSession>,
}

/// Dials control and lanes; lanes go on coming up after this returns.
pub(crate) async fn connect(remote: &Remote, options: &DialOptions, need: Option<&Need>) -> Result<Reached> {
    let home = settings::home(settings::Role::Client)?;
    match &remote.login {
        Some(login) => connect_over_ssh(&home, remote, login, options, need).await,
        None => connect_to_daemon(&home, remote, options, need).await,
    }
}

async fn connect_to_daemon(
    home: &Path,
    remote: &Remote,
    options: &DialOptions,
    need: Option<&Need>,
) -> Result<Reached> {
    let identity = Identity::load_or_create(home)?;
    let first_key = FirstKey::default();
    let policy = host_policy(remote, &identity, home, options, &first_key).await?;
    let reach = options.reach.clone();
    let dialler = ChannelDialler::new(&identity, &remote.host, remote.port, policy, reach).await?;
    let reached = reach_by(dialler, Paths::of(home, remote), options, need).await?;
    if let Some(key) = first_key.get() {
        KnownHosts::open(home)?.pin(&remote.host, remote.port, key)?;
        terminal::warn(format_args!("pinned the key of {}:{}: {key}", remote.host, remote.port));
    }
    Ok(reached)
}

async fn connect_over_ssh(
    home: &Path,
    remote: &Remote,
    login: &Login,
    options: &DialOptions,
    need: Option<&Need>,
) -> Result<Reached> {
    let SshReceiver { identity, key, host, port, session } = ssh::start(remote, login, options).await?;
    let (policy, reach) = (HostPolicy::Pinned(key), options.reach.clone());
    let dialler = ChannelDialler::new(&identity, &host, port, policy, reach).await?;
    let reached = reach_by(dialler, Paths::of(home, remote), options, need).await;
    let reached = reached.with_context(|| {
        let how = "a firewall may need a range of ports, which --ssh-ports names";
        format!("reach the receiver that ssh has started on {host} ({how})")
    })?;
    Ok(Reached { ssh: Some(session), ..reached })
}

async fn reach_by(
    dialler: ChannelDialler,
    paths: Paths,
    options: &DialOptions,
    need: Option<&Need>,
) -> Result<Reached> {
    let plan = LanePlan::new(options, paths.recall(), need.cloned());
    let (link, transport, round_trip) = dial_all(dialler.clone(), options, plan).await?;
    Ok(Reached { link, transport, dialler, route: Route { paths, round_trip, transport }, ssh: None })
}

/// The path that was taken, to be remembered.
pub(crate) struct Route {
    paths: Paths,
    round_trip: Duration,
    transport: Transport,
}

impl Route {
    /// Keeps what a push over TCP has learnt.
    pub(crate) fn learn(&self, summary: &Summary) {
        if self.transport == Transport::Quic {
            return;
        }
        if let Some(Learnt { lanes, loss_tolerant }) = summary.learnt {
            let rate =
                summary.bytes * 1000 / u64::try_from(summary.elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
            self.paths.keep(Known::new(lanes, loss_tolerant, self.round_trip, rate));
        }
    }
}

/// What lanes are dialled with, before anything is known of the path but what was remembered.
struct LanePlan {
    /// None: the number is for the controller.
    fixed: Option<u16>,
    known: Option<Known>,
    /// Without what is known.
    answer: LossAnswer,
    /// What the push can use, where it may be less than the path could.
    need: Option<Need>,
}

impl LanePlan {
    fn new(options: &DialOptions, known: Option<Known>, need: Option<Need>) -> Self {
        // a pace is shared out over the lanes that there are, and a number that was asked for is kept
        let known = known.filter(|_| options.streams.is_none() && options.limit.is_none());
        let need = need.filter(|_| options.streams.is_none());
        Self { fixed: options.streams, known, answer: loss_answer(options), need }
    }

    /// How many of the first lanes are dialled beside control, which is being dialled: as many as there are without waiting for a
    /// round trip, but few where it shows at once that few are enough.
    async fn early(&self, dialler: &ChannelDialler, transport: TransportChoice) -> u16 {
        let usual = self.at_once(transport);
        let until = tokio::time::Instant::now() + SHOWS_AT_ONCE;
        while self.fixed.is_none() && tokio::time::Instant::now() < until {
            if let Some(lanes) = self.few(usual) {
                return lanes;
            }
            if let Some(round_trip) = dialler.round_trip() {
                return self.count(round_trip, lanes_for(round_trip)).min(usual);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        usual
    }

    /// What the push can use, if that is known to be less than `usual`.
    fn few(&self, usual: u16) -> Option<u16> {
        self.need.as_ref().and_then(Need::lanes).filter(|lanes| *lanes < usual)
    }

    /// How many are dialled before it is known what carries them and how long a round trip takes.
    fn at_once(&self, transport: TransportChoice) -> u16 {
        let known = match transport {
            TransportChoice::Quic => Some(settings::quic_lanes()),
            TransportChoice::Auto | TransportChoice::Tcp => self.known.map(|known| known.lanes),
        };
        self.fixed.or(known).unwrap_or(LANES_AT_ONCE)
    }

    /// How many there shall be at first, where `least` suit the round trip.
    fn count(&self, round_trip: Duration, least: u16) -> u16 {
        let known = self.known_of(round_trip).map_or(least, |known| known.lanes);
        self.fixed.unwrap_or(known.max(least))
    }

    /// How lanes answer to loss at first.
    fn answer(self, round_trip: Duration) -> LossAnswer {
        let tolerant = self.known_of(round_trip).is_some_and(|known| known.loss_tolerant);
        match self.answer {
            LossAnswer::Replaceable { usual, tolerant: other } if tolerant => {
                LossAnswer::Replaced { usual, tolerant: other }
            }
            answer => answer,
        }
    }

    /// What is known, if it is of a path with this round trip.
    fn known_of(&self, round_trip: Duration) -> Option<Known> {
        self.known.filter(|known| known.suits(round_trip))
    }
}

async fn dial_all(
    dialler: ChannelDialler,
    options: &DialOptions,
    plan: LanePlan,
) -> Result<(Link, Transport, Duration)> {
    let (transfer, cipher) = (fresh_transfer()?, options.cipher);
    let lane = |number| {
        let greeting = Greeting { cipher, ..Greeting::new(Role::Lane(LaneId(number)), transfer) };
        Lane { number, greeting, limit: options.limit, one_of: None }
    };
    let (lanes_in, lanes) = mpsc::channel(usize::from(zmove_wire::limits::LANES_MAX));
    let (wanted_in, wanted) = watch::channel(None);
    let spawn = |numbers: std::ops::Range<u16>| {
        numbers.for_each(|number| spawn_lane(&dialler, lane(number), &lanes_in, wanted.clone()));
    };
    spawn(0..1);
    let early = async {
        let early = plan.early(&dialler, options.reach.transport).await;
        spawn(1..early);
        early
    };
    let (early, channel) = tokio::join!(early, dialler.dial(DIAL_TIMEOUT));
    let channel = channel?;
    let (transport, round_trip) = (channel.transport(), channel.round_trip());
    let least = lanes_for(round_trip);
    let usual = match transport {
        Transport::Tcp => plan.count(round_trip, least),
        Transport::Quic => plan.fixed.unwrap_or_else(settings::quic_lanes),
    };
    let few = plan.few(usual);
    let count = few.unwrap_or(usual);
    wanted_in.send_replace(Some(count));
    spawn(early..count);
    channel.set_unacknowledged_max(CONTROL_SILENCE_MAX).context("set up the control connection")?;
    // QUIC's congestion control bears loss, and its windows are shared out over the lanes that there are
    let tuned =
        plan.fixed.is_none() && few.is_none() && options.limit.is_none() && transport == Transport::Tcp;
    let (number, congestion) = if tuned {
        (LaneNumber::Tuned { least }, plan.answer(round_trip))
    } else {
        (LaneNumber::Fixed, LossAnswer::Fixed)
    };
    let (more, wanted) = mpsc::unbounded_channel();
    match options.more {
        More::Others => {
            let next = Lane { one_of: Some(count), ..lane(count) };
            tokio::spawn(dial_more(dialler, next, lanes_in, wanted));
        }
        More::Sets => drop(tokio::spawn(dial_sets(dialler, lane(0), lanes_in, wanted))),
    }
    let supply = Some(LaneSupply { more, asked: count, number, congestion });
    let version = channel.version();
    let link = Link { transfer, cipher, version, control: control_pair(channel), lanes, supply };
    Ok((link, transport, round_trip))
}

/// Dials lanes for as long as somebody may want more; `next` is the first of them.
async fn dial_more(
    dialler: ChannelDialler,
    mut next: Lane,
    lanes: LanesIn,
    mut wanted: mpsc::UnboundedReceiver<u16>,
) {
    let (_all_of_them, count) = watch::channel(Some(u16::MAX));
    while let Some(more) = wanted.recv().await {
        for _ in 0..more {
            spawn_lane(&dialler, next, &lanes, count.clone());
            next = next.following();
        }
    }
}

/// Dials sets of lanes for as long as somebody may want one; `first` is the first of each.
async fn dial_sets(
    dialler: ChannelDialler,
    first: Lane,
    lanes: LanesIn,
    mut wanted: mpsc::UnboundedReceiver<u16>,
) {
    while let Some(count) = wanted.recv().await {
        let (_known_at_once, number) = watch::channel(Some(count));
        let all = std::iter::successors(Some(first), |lane| Some(lane.following()));
        all.take(usize::from(count)).for_each(|lane| spawn_lane(&dialler, lane, &lanes, number.clone()));
    }
}

fn loss_answer(options: &DialOptions) -> LossAnswer {
    match (&options.reach.socket.congestion, congestion_controls()) {
        (Some(name), _) if name == LOSS_TOLERANT => LossAnswer::Tolerant,
        (None, Some(Controls { usual, .. })) if usual == LOSS_TOLERANT => LossAnswer::Tolerant,
        (None, Some(Controls { usual, tolerant: true })) => {
            LossAnswer::Replaceable { usual, tolerant: LOSS_TOLERANT.to_owned() }
        }
        _ => LossAnswer::Fixed,
    }
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
    /// Of how many, where it is dialled later than they.
    one_of: Option<u16>,
}

impl Lane {
    /// The lane after this one.
    fn following(self) -> Self {
        let number = self.number.wrapping_add(1);
        Self { number, greeting: Greeting { role: Role::Lane(LaneId(number)), ..self.greeting }, ..self }
    }
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
            Err(error) => Err(lane_error(error)),
        };
        let _push_over = lanes.send(made).await;
    });
}

fn lane_error(error: DialError) -> LaneError {
    let kind = if error.retryable() { ErrorKind::NotConnected } else { ErrorKind::Other };
    LaneError::Io { source: std::io::Error::new(kind, error) }
}

/// Greets on a lane, one of `count`.
async fn make_lane(
    mut channel: Channel,
    Lane { greeting, limit, one_of, .. }: Lane,
    count: u16,
) -> Result<Box<dyn LaneSink>, LaneError> {
    let count = one_of.unwrap_or(count);
    if let Some(limit) = limit {
        channel.set_rate_max(limit.share(count))?;
    }
    channel.write_all(&greeting.encode()).await?;
    channel.flush().await?;
    channel.into_sink(greeting.cipher, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_another_path_is_not_used() {
        let round_trip = Duration::from_millis(90);
        let plan = || LanePlan {
            fixed: None,
            known: Some(Known::new(32, true, round_trip, 1_000_000)),
            answer: LossAnswer::Replaceable { usual: "cubic".into(), tolerant: "bbr".into() },
            need: None,
        };
        let replaced = LossAnswer::Replaced { usual: "cubic".into(), tolerant: "bbr".into() };
        assert_eq!((plan().count(round_trip, 8), plan().answer(round_trip)), (32, replaced));
        let near = Duration::from_millis(1);
        assert_eq!((plan().count(near, 8), plan().answer(near)), (8, plan().answer));
        let pinned = LanePlan { answer: LossAnswer::Fixed, ..plan() };
        assert_eq!(pinned.answer(round_trip), LossAnswer::Fixed);
    }
}
