//! What keeps the lease of a session: pings to the sender, and its echoes.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use zmove_disk::{GAP_MAX, Lease, boot_clock};
use zmove_transport::{ChannelHandle, Pinger};

/// Where the sender of a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderPlace {
    /// In this process: the sender and its receiver live and die together.
    Here,
    /// In another process.
    Elsewhere,
}

/// A lease that is kept until this is dropped.
#[derive(Debug)]
pub(crate) struct KeptLease {
    pub(crate) lease: Lease,
    keeping: Option<Keeping>,
}

/// What keeps a lease that is not constant.
#[derive(Debug)]
struct Keeping {
    connection: ChannelHandle,
    pongs: watch::Receiver<Option<u64>>,
    pinging: JoinHandle<()>,
    /// Whether the kernel reports the end of the connection.
    is_reported: bool,
}

/// How often the sender is pinged.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How often the process notes that it runs.
const TICK_EVERY: Duration = Duration::from_millis(100);
const _: () = assert!(TICK_EVERY.as_millis() * 4 < GAP_MAX.as_millis());
/// How long a sender may take to echo one ping, beside [`ROUND_TRIPS`]: time for its host to give it a core.
const PATIENCE: Duration = Duration::from_secs(1);
/// Round trips in which a lost ping is repeated.
const ROUND_TRIPS: u32 = 4;

impl KeptLease {
    /// A lease that holds for as long as this process lives.
    pub(crate) const fn constant() -> Self {
        Self {
            lease: Lease::constant(),
            keeping: None,
        }
    }

    /// Keeps a lease for as long as the sender at the other end of a connection echoes pings.
    pub(crate) fn begin(place: SenderPlace, pinger: Pinger, connection: ChannelHandle) -> Self {
        if place == SenderPlace::Here {
            return Self::constant();
        }
        let asker = pinger.clone();
        let ask = move |value| asker.ping(value);
        let socket = connection.socket();
        let is_reported = socket.is_some();
        let lease = Lease::timed(boot_clock(), ask, socket);
        // It goes out with what this side sends first, so that its echo comes with the opening.
        lease.ask();
        let keeping = Keeping {
            connection,
            pongs: pinger.pongs(),
            pinging: tokio::spawn(keep(lease.clone(), pinger)),
            is_reported,
        };
        Self {
            lease,
            keeping: Some(keeping),
        }
    }

    /// Whether the sender echoes a ping that is sent now. Where the kernel reports the end of the connection, that is
    /// not needed.
    pub(crate) async fn is_proved_anew(&self) -> bool {
        let Some(keeping) = self.keeping.as_ref().filter(|keeping| !keeping.is_reported) else {
            return true;
        };
        let since = self.lease.ask();
        let round_trip = keeping.connection.round_trip().unwrap_or_default();
        let mut pongs = keeping.pongs.clone();
        let proof = pongs.wait_for(|value| value.is_some_and(|sent| sent >= since));
        let waited = timeout(PATIENCE + ROUND_TRIPS * round_trip, proof);
        waited.await.is_ok_and(|proof| proof.is_ok())
    }
}

impl Drop for KeptLease {
    fn drop(&mut self) {
        self.lease.end();
        if let Some(keeping) = &self.keeping {
            keeping.pinging.abort();
        }
    }
}

/// Pings the sender, and notes its echoes, until nothing is read from the connection any more.
async fn keep(lease: Lease, pinger: Pinger) {
    let mut pongs = pinger.pongs();
    let mut ping = interval(PING_EVERY);
    let mut tick = interval(TICK_EVERY);
    for timer in [&mut ping, &mut tick] {
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    loop {
        tokio::select! {
            changed = pongs.changed() => match changed {
                Ok(()) => (*pongs.borrow_and_update()).into_iter().for_each(|value| lease.echoed(value)),
                Err(_nothing_is_read) => return lease.end(),
            },
            _ = ping.tick() => drop(lease.ask()),
            _ = tick.tick() => lease.tick(),
        }
    }
}
