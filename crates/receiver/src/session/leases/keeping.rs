//! Keeps the lease of a session valid by pinging the sender.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, timeout};
use zmove_disk::{Lease, SUSPENSION_MAX, boot_clock};
use zmove_transport::{PathProbe, Pinger};

/// The location of a session's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderLocation {
    /// In this process, so the sender ends with the receiver.
    SameProcess,
    /// In another process.
    OtherProcess,
}

/// A lease that is renewed until this value is dropped.
#[derive(Debug)]
pub(crate) struct KeptLease {
    pub(crate) sender: SenderLiveness,
    pinging: Option<JoinHandle<()>>,
}

/// Checks whether the sender of a session is alive.
#[derive(Clone, Debug)]
pub(crate) struct SenderLiveness {
    pub(crate) lease: Lease,
    /// The connection and its pongs, or `None` if the kernel reports the end of the connection.
    unreported: Option<Unreported>,
}

/// The result of requesting an echo from a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Echo {
    Received,
    /// No echo was received in time.
    Late,
    /// The connection has ended, and its session has noticed that.
    Ended,
}

#[derive(Clone, Debug)]
struct Unreported {
    connection: PathProbe,
    pongs: watch::Receiver<Option<u64>>,
}

/// Interval between pings to the sender.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the lease records that this process is running.
const TICK_INTERVAL: Duration = Duration::from_millis(100);
const _: () = assert!(TICK_INTERVAL.as_millis() * 4 < SUSPENSION_MAX.as_millis());
/// Time limit for the echo of a ping, in addition to [`ROUND_TRIPS`]. It allows for scheduling delays at the sender's
/// host.
const ECHO_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of round trips that suffice to retransmit a lost ping.
const ROUND_TRIPS: u32 = 4;

impl KeptLease {
    /// Returns a lease that is valid while this process runs.
    pub(crate) const fn constant() -> Self {
        Self {
            sender: SenderLiveness {
                lease: Lease::constant(),
                unreported: None,
            },
            pinging: None,
        }
    }

    /// Starts a lease that is valid while the sender at the other end of the connection echoes pings.
    pub(crate) fn begin(place: SenderLocation, pinger: Pinger, connection: PathProbe) -> Self {
        if place == SenderLocation::SameProcess {
            return Self::constant();
        }
        let ping_sender = pinger.clone();
        let ask = move |value| ping_sender.ping(value);
        let socket = connection.socket();
        let unreported = socket.is_none().then(|| Unreported {
            connection,
            pongs: pinger.pongs(),
        });
        let lease = Lease::timed(boot_clock(), ask, socket);
        // The ping is sent together with the first message of this side, so its echo arrives with the opening.
        lease.send_ping();
        Self {
            pinging: Some(tokio::spawn(keep(lease.clone(), pinger))),
            sender: SenderLiveness { lease, unreported },
        }
    }
}

impl SenderLiveness {
    /// Returns whether only an echo can show that the sender is alive. This is the case if the kernel does not report
    /// the end of the connection, or if the connection has ended.
    pub(crate) fn needs_echo(&self) -> bool {
        self.unreported.is_some() || self.lease.has_ended()
    }

    /// Invalidates earlier echoes: the session can publish only after the sender has echoed a later ping.
    pub(crate) fn require_new_echo(&self) {
        self.lease.invalidate_pings();
    }

    /// Sends a ping now and waits for its echo.
    pub(crate) async fn echo(&self) -> Echo {
        let unreported = self.unreported.as_ref().filter(|_| !self.lease.has_ended());
        let Some(Unreported { connection, pongs }) = unreported else {
            return Echo::Ended;
        };
        let since = self.lease.send_ping();
        let round_trip = connection.read().and_then(|info| info.round_trip);
        let mut pongs = pongs.clone();
        let proof = pongs.wait_for(|value| value.is_some_and(|sent| sent >= since));
        let waited = timeout(
            ECHO_TIMEOUT + ROUND_TRIPS * round_trip.unwrap_or_default(),
            proof,
        );
        match waited.await {
            Ok(Ok(_)) => Echo::Received,
            Ok(Err(_nothing_is_read)) => Echo::Ended,
            Err(_late) => Echo::Late,
        }
    }
}

impl Drop for KeptLease {
    fn drop(&mut self) {
        self.sender.lease.end();
        if let Some(pinging) = &self.pinging {
            pinging.abort();
        }
    }
}

/// Pings the sender and records its echoes until the connection is no longer read.
async fn keep(lease: Lease, pinger: Pinger) {
    let mut pongs = pinger.pongs();
    // The first ping has already been sent.
    let mut ping = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
    let mut tick = interval(TICK_INTERVAL);
    for timer in [&mut ping, &mut tick] {
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    loop {
        tokio::select! {
            changed = pongs.changed() => match changed {
                Ok(()) => (*pongs.borrow_and_update()).into_iter().for_each(|value| lease.note_echo(value)),
                Err(_nothing_is_read) => return lease.end(),
            },
            _ = ping.tick() => drop(lease.send_ping()),
            _ = tick.tick() => lease.note_running(),
        }
    }
}
