//! Dials the control connection and the lanes concurrently, which saves round trips.
//!
//! With `--limit`, the number of lanes does not change after the dial. The same holds if this process may open only a
//! few files.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use zmove_sender::{LaneSupply, Link, NoQuota};
use zmove_transport::{
    CONTROL_SILENCE_MAX, Channel, ChannelDialer, DialError, LaneError, LaneSink, LaneSource,
    PathEnds, PathProbe, SharedRate, Transport, control_pair,
};
use zmove_types::{LaneId, TransferId};
use zmove_wire::limits::LANES_MAX;
use zmove_wire::{Cipher, Greeting, Role};

use super::machine::{lanes_for, quic_lanes, ssh_lanes};
use super::path_watch::PathWatch;
use super::plan::LanePlan;
use super::{ConnectedHost, PathRecall, Route};
use crate::connecting::settings::{DIAL_TIMEOUT, DialSettings, LaterLanes};
use crate::error::ConnectError;
use crate::random::fresh_transfer;

/// Dials the control connection and the first lanes concurrently. Also returns the remembered properties of the path.
pub(super) async fn dial_all<L: LaneEnd>(
    dialer: ChannelDialer,
    settings: &DialSettings,
    plan: LanePlan,
    recalled: PathRecall,
) -> Result<ConnectedHost<L>, ConnectError> {
    let transfer = fresh_transfer().map_err(ConnectError::TransferId)?;
    let lane = |number| LaneDial::new(number, transfer, settings.cipher);
    let (lanes_in, lanes) = mpsc::channel(usize::from(LANES_MAX));
    let (wanted_in, wanted) = watch::channel(None);
    let spawn = |numbers: std::ops::Range<u16>| {
        numbers.for_each(|number| {
            spawn_lane_dial(&dialer, lane(number), &lanes_in, wanted.clone(), None)
        });
    };
    spawn(0..1);
    let early = async {
        let early = plan.initial_lanes(&dialer, settings.reach.transport).await;
        spawn(1..early);
        early
    };
    let (early, channel) = tokio::join!(early, dialer.dial(DIAL_TIMEOUT));
    let channel = channel?;
    let transport = channel.transport();
    let round_trip = channel.round_trip();
    let least = lanes_for(round_trip);
    let usual = match transport {
        Transport::Tcp => plan.count(round_trip, least),
        Transport::Quic => plan.fixed.unwrap_or_else(quic_lanes),
        Transport::Ssh => plan.fixed.unwrap_or_else(|| ssh_lanes(round_trip, &dialer)),
    };
    let few = plan.sufficient_lanes(usual);
    let count = few.unwrap_or(usual);
    wanted_in.send_replace(Some(count));
    spawn(early..count);
    let unacknowledged = channel.set_unacknowledged_max(CONTROL_SILENCE_MAX);
    unacknowledged.map_err(ConnectError::Control)?;
    // Only the kernel's TCP reports what the tuner needs.
    let is_fixed = few.is_some() || settings.limit.is_some() || transport != Transport::Tcp;
    let (number, congestion) = plan.tuning(is_fixed, least, round_trip);
    let mut next = lane(count);
    next.earlier_lanes = Some(count);
    let (more, wanted) = mpsc::unbounded_channel();
    let later = dial_more(dialer.clone(), settings.more, next, lanes_in, wanted);
    tokio::spawn(later);
    let connection = channel.probe();
    Ok(ConnectedHost {
        route: Route {
            transport,
            watch: PathWatch::start(dialer.clone(), connection.clone()),
            dialer,
            ssh: None,
            recalled,
            round_trip,
            ends: ends(&channel),
            limited: settings.limit.is_some(),
            asked: Duration::ZERO,
        },
        link: Link {
            transfer,
            cipher: settings.cipher,
            control: control_pair(channel),
            lanes,
            supply: Some(LaneSupply {
                more,
                asked: count,
                again: 0,
                number,
                congestion,
            }),
            relay: None,
            quota: Arc::new(NoQuota),
        },
        connection,
    })
}

/// Returns both ends of the channel's path. If ssh forwards the channel, they are not known.
fn ends(channel: &Channel) -> Option<PathEnds> {
    match channel.transport() {
        Transport::Tcp | Transport::Quic => PathEnds::towards(channel.address()).ok(),
        Transport::Ssh => None,
    }
}

/// Maximum number of later lanes that are being dialed or wait to be accepted.
const DIALS_MAX: usize = 2 * LANES_MAX as usize;

/// Dials further lanes on request, until the requesting side is dropped. Lanes are numbered from `next` on, or from 0
/// in each new set. Requests beyond [`DIALS_MAX`] are ignored, because the sending host of a pull may request any
/// number of lanes.
async fn dial_more<L: LaneEnd>(
    dialer: ChannelDialer,
    kind: LaterLanes,
    mut next: LaneDial,
    lanes: LanesIn<L>,
    mut wanted: mpsc::UnboundedReceiver<u16>,
) {
    let room = Arc::new(Semaphore::new(DIALS_MAX));
    while let Some(more) = wanted.recv().await {
        let needed = match kind {
            LaterLanes::SameSet => u16::MAX,
            LaterLanes::NewSet => {
                next.number = 0;
                next.earlier_lanes = None;
                more
            }
        };
        let (_known_at_once, count) = watch::channel(Some(needed));
        for _ in 0..more {
            let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                break;
            };
            spawn_lane_dial(&dialer, next, &lanes, count.clone(), Some(permit));
            next.number = next.number.wrapping_add(1);
        }
    }
}

type LanesIn<L> = mpsc::Sender<Result<L, LaneError>>;

/// The local end of a lane, created from a dialed connection.
pub trait LaneEnd: Send + Sized + 'static {
    /// Converts a connection into a lane after the greeting. `lanes` is the total number of lanes.
    ///
    /// # Errors
    /// The connection cannot become a lane.
    fn from_channel(channel: Channel, cipher: Cipher, lanes: u16) -> Result<Self, LaneError>;

    /// Returns a probe of the lane's connection.
    fn path(&self) -> PathProbe;
}

impl LaneEnd for Box<dyn LaneSink> {
    fn from_channel(channel: Channel, cipher: Cipher, lanes: u16) -> Result<Self, LaneError> {
        channel.into_sink(cipher, lanes)
    }

    fn path(&self) -> PathProbe {
        self.as_ref().path()
    }
}

impl LaneEnd for Box<dyn LaneSource> {
    fn from_channel(channel: Channel, cipher: Cipher, _lanes: u16) -> Result<Self, LaneError> {
        channel.into_source(cipher, SharedRate::default())
    }

    fn path(&self) -> PathProbe {
        self.as_ref().path()
    }
}

/// The parameters of a lane to dial.
#[derive(Clone, Copy)]
struct LaneDial {
    number: u16,
    transfer: TransferId,
    cipher: Cipher,
    /// Number of lanes that were dialed before this lane, or `None` for one of the first lanes.
    earlier_lanes: Option<u16>,
}

impl LaneDial {
    /// Creates one of the first lanes.
    const fn new(number: u16, transfer: TransferId, cipher: Cipher) -> Self {
        Self {
            number,
            transfer,
            cipher,
            earlier_lanes: None,
        }
    }
}

/// Dials a lane in a new task. The lane is dropped if fewer lanes turn out to be sufficient. The task holds the permit
/// until the lane is accepted.
fn spawn_lane_dial<L: LaneEnd>(
    dialer: &ChannelDialer,
    lane: LaneDial,
    lanes: &LanesIn<L>,
    mut wanted: watch::Receiver<Option<u16>>,
    permit: Option<OwnedSemaphorePermit>,
) {
    let dialer = dialer.clone();
    let lanes = lanes.clone();
    tokio::spawn(async move {
        let _until_it_is_taken = permit;
        let dialled = dialer.dial(DIAL_TIMEOUT).await;
        let count = wanted.wait_for(Option::is_some).await.map(|count| *count);
        // The control connection failed. Its error contains the reason.
        let Ok(Some(count)) = count else { return };
        if lane.number >= count {
            return;
        }
        let made = match dialled {
            Ok(channel) => greet_lane::<L>(channel, lane, count).await,
            Err(error) => Err(lane_error(error)),
        };
        if let Ok(lane) = &made {
            dialer.add_lane(&lane.path());
        }
        let _push_over = lanes.send(made).await;
    });
}

fn lane_error(error: DialError) -> LaneError {
    let kind = if error.retryable() {
        ErrorKind::NotConnected
    } else {
        ErrorKind::Other
    };
    LaneError::Io {
        source: std::io::Error::new(kind, error),
    }
}

/// Sends the greeting on a connection and converts it into one of `count` lanes.
async fn greet_lane<L: LaneEnd>(
    mut channel: Channel,
    lane: LaneDial,
    count: u16,
) -> Result<L, LaneError> {
    let greeting = Greeting {
        cipher: lane.cipher,
        ..Greeting::new(Role::Lane(LaneId(lane.number)), lane.transfer)
    };
    channel.write_all(&greeting.encode()).await?;
    channel.flush().await?;
    L::from_channel(channel, lane.cipher, lane.earlier_lanes.unwrap_or(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_transport::{DialOptions, HostPolicy, Identity, TransportChoice};

    /// Nobody accepts the lanes, so none of the dial tasks ends.
    #[tokio::test]
    async fn a_host_that_wants_lanes_without_end_has_few_dialled() {
        let identity = Identity::for_once().unwrap();
        let policy = HostPolicy::Pinned(identity.fingerprint());
        let reach = DialOptions {
            transport: TransportChoice::Tcp,
            ..DialOptions::default()
        };
        let dialer = ChannelDialer::new(&identity, "127.0.0.1", 1, policy, reach)
            .await
            .unwrap();
        let first = LaneDial {
            number: 0,
            transfer: TransferId([1; 16]),
            cipher: Cipher::Tls,
            earlier_lanes: Some(1),
        };
        let (lanes, _nobody_takes_them) =
            mpsc::channel::<Result<Box<dyn LaneSource>, LaneError>>(1);
        let (more, wanted) = mpsc::unbounded_channel();
        (0..100).for_each(|_| more.send(LANES_MAX).unwrap());
        drop(more);
        let metrics = tokio::runtime::Handle::current().metrics();
        let before = metrics.num_alive_tasks();
        dial_more(dialer, LaterLanes::SameSet, first, lanes, wanted).await;
        let dialling = metrics.num_alive_tasks() - before;
        assert_eq!(dialling, DIALS_MAX);
    }
}
