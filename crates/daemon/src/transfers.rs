//! The queued and running transfers of one daemon, with their peers and their progress. Operators can end a transfer
//! through this list. `/metrics`, `zmove status` and `zmove stop` read it.
//!
//! **Invariant:** a thread that moves data takes no lock of this module. Each transfer counts into its own meter, which
//! is read on demand.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use zmove_receiver::{MeterReading, SessionError, TransferMeter};
use zmove_transport::Fingerprint;
use zmove_types::{Lock, RateLimit, TransferId};
use zmove_wire::{FoundSoFar, Refusal, RefusalCode};

/// The transfers of one daemon.
#[derive(Debug, Default)]
pub struct Transfers(Lock<TransferTable>);

#[derive(Debug, Default)]
struct TransferTable {
    live: Vec<Arc<ActiveTransfer>>,
    ended: MeterReading,
    /// Amounts moved by ended transfers, by the name of their key.
    ended_by_name: BTreeMap<String, MeterReading>,
}

/// A queued or running transfer.
#[derive(Debug)]
pub(crate) struct ActiveTransfer {
    id: TransferId,
    who: PeerInfo,
    limit: Option<RateLimit>,
    since: SystemTime,
    state: Lock<State>,
    pub(crate) meter: Arc<TransferMeter>,
    pub(crate) granter: TransferGranter,
    pace: Lock<MovingRate>,
    cut: watch::Sender<Option<StopReason>>,
}

#[derive(Clone, Debug)]
enum State {
    Waits {
        reason: String,
        ahead: usize,
    },
    Runs {
        direction: Direction,
        since: Instant,
    },
}

/// The peer of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The name of the peer's key in the list of keys.
    pub name: String,
    /// The address of the peer.
    pub address: SocketAddr,
    /// The key that the peer has proved.
    pub key: Fingerprint,
    /// The key of the head of a job, if its grant authorizes the peer as a node. `name` is then the name of the head.
    pub by_head: Option<Fingerprint>,
}

/// The key whose grant a transfer uses: the head of a job for a node, or the client of a copy. Unset until the transfer
/// names its grant.
pub(crate) type TransferGranter = Arc<OnceLock<GranterStatus>>;

/// The key that issued a grant, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GranterStatus {
    /// The name of the key.
    pub name: String,
    /// The fingerprint of the key.
    pub key: String,
}

/// The direction of a transfer, as seen from the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The peer pushes.
    Receive,
    /// The peer pulls files, or has ordered a copy to another host.
    Send,
}

/// The reason why the daemon or its operator ends a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The daemon is being stopped.
    Stopping,
    /// The operator has ended this transfer.
    ByOperator,
    /// The operator has removed the key and ended its transfers.
    KeyRemoved,
    /// The grant of a node has expired.
    GrantOver,
}

/// The entry of a transfer. Dropping it removes the transfer from the list.
#[derive(Debug)]
pub(crate) struct TransferEntry {
    transfers: Arc<Transfers>,
    pub(crate) live: Arc<ActiveTransfer>,
}

/// The status of a transfer, for display.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferStatus {
    /// The id of the transfer, in hexadecimal digits.
    pub id: String,
    /// The name of its key.
    pub name: String,
    /// The fingerprint of its key.
    pub key: String,
    /// The key whose grant the transfer uses: the head of a job for a node, or the client of a copy.
    pub granter: Option<GranterStatus>,
    /// The address of the peer.
    pub from: String,
    /// Whether the transfer is queued.
    pub waits: bool,
    /// The reason for the wait, with the number of transfers of the same key that are ahead.
    pub reason: Option<String>,
    /// The direction of the transfer. Unknown while it is queued.
    pub direction: Option<Direction>,
    /// Whether the transfer is a probe, which moves filler.
    pub probe: bool,
    /// The target that the peer requested. For a transfer that sends, its sources.
    pub path: String,
    /// Regular files received and renamed into place, or sent.
    pub files: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Regular files found at the source so far. Known if this side scans the source or the sender reports it.
    pub files_found: Option<u64>,
    /// Total size of the files found, in bytes.
    pub bytes_found: Option<u64>,
    /// Moving average of the rate, in bytes per second.
    pub bytes_per_second: u64,
    /// Estimated time until the end, in seconds. Known once the scan of the source has ended.
    pub eta_seconds: Option<u64>,
    /// Number of connected lanes.
    pub lanes: usize,
    /// Rate limit of the key, in bytes per second.
    pub limit_bytes_per_second: Option<u64>,
    /// Time of arrival, in seconds since 1970.
    pub since: u64,
    /// Seconds since the transfer began or, if it is queued, since it arrived.
    pub seconds: f64,
}

/// The moving average of a transfer's rate.
#[derive(Debug, Default)]
struct MovingRate {
    bytes: u64,
    per_second: f64,
}

/// Interval at which rates are updated.
const PACE_INTERVAL: Duration = Duration::from_secs(1);
/// Weight of the most recent second in the moving average.
const NEWEST: f64 = 0.3;
/// Maximum number of key names that are counted separately. The transfers of all other keys are counted together.
const NAMES_MAX: usize = 1000;
const OTHER_NAMES: &str = "(others)";

impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by_head {
            Some(_) => write!(f, "node {} for {} at {}", self.key, self.name, self.address),
            None => write!(f, "{} at {}", self.name, self.address),
        }
    }
}

impl Transfers {
    /// Adds a transfer that has arrived.
    pub(crate) fn enter(
        self: &Arc<Self>,
        id: TransferId,
        who: PeerInfo,
        limit: Option<RateLimit>,
    ) -> TransferEntry {
        let head = who.by_head.map(|head| GranterStatus {
            name: who.name.clone(),
            key: head.to_string(),
        });
        let granter = head.map_or_else(OnceLock::new, OnceLock::from);
        let live = Arc::new(ActiveTransfer {
            id,
            who,
            limit,
            since: SystemTime::now(),
            state: Lock::new(State::Waits {
                reason: String::new(),
                ahead: 0,
            }),
            meter: Arc::default(),
            granter: Arc::new(granter),
            pace: Lock::default(),
            cut: watch::Sender::new(None),
        });
        self.0.lock().live.push(Arc::clone(&live));
        TransferEntry {
            transfers: Arc::clone(self),
            live,
        }
    }

    /// Returns the totals of all transfers and the present state of the running ones. Totals never decrease.
    #[must_use]
    pub fn read(&self) -> MeterReading {
        let table = self.0.lock();
        table
            .live
            .iter()
            .fold(table.ended, |sum, live| sum.and(&live.reading()))
    }

    /// Returns the totals and the present state for each key name.
    #[must_use]
    pub fn read_by_name(&self) -> BTreeMap<String, MeterReading> {
        let table = self.0.lock();
        let mut by_name = table.ended_by_name.clone();
        for live in &table.live {
            add(&mut by_name, &live.who.name, &live.reading());
        }
        by_name
    }

    /// Returns the queued and running transfers in their order of arrival.
    #[must_use]
    pub fn list(&self) -> Vec<TransferStatus> {
        self.0
            .lock()
            .live
            .iter()
            .map(|live| live.status())
            .collect()
    }

    /// Ends the transfers that `which` selects, and returns their status.
    pub fn end(
        &self,
        cut: StopReason,
        which: impl Fn(&TransferStatus) -> bool,
    ) -> Vec<TransferStatus> {
        let live = self.0.lock().live.clone();
        let mut ended = Vec::new();
        for live in live {
            let status = live.status();
            if which(&status) {
                live.cut.send_replace(Some(cut));
                ended.push(status);
            }
        }
        ended
    }

    /// Updates the rates periodically. Never returns.
    pub(crate) async fn update_rates(&self) {
        let mut ticks = tokio::time::interval(PACE_INTERVAL);
        loop {
            ticks.tick().await;
            self.0
                .lock()
                .live
                .iter()
                .for_each(|live| live.pace.lock().tick(live.bytes()));
        }
    }
}

fn add(by_name: &mut BTreeMap<String, MeterReading>, name: &str, reading: &MeterReading) {
    let is_new = !by_name.contains_key(name);
    let name = if is_new && by_name.len() >= NAMES_MAX {
        OTHER_NAMES
    } else {
        name
    };
    let sum = by_name.entry(name.to_owned()).or_default();
    *sum = sum.and(reading);
}

impl ActiveTransfer {
    /// Marks the transfer as queued.
    pub(crate) fn set_queued(&self, reason: &str, ahead: usize) {
        *self.state.lock() = State::Waits {
            reason: reason.to_owned(),
            ahead,
        };
    }

    /// Marks the transfer as running.
    pub(crate) fn set_running(&self, direction: Direction) {
        *self.state.lock() = State::Runs {
            direction,
            since: Instant::now(),
        };
    }

    /// Resolves when the operator ends the transfer.
    pub(crate) async fn stop_requested(&self) -> StopReason {
        let mut cut = self.cut.subscribe();
        let cut = cut.wait_for(Option::is_some).await;
        cut.expect("this owns the sending end")
            .expect("it was waited for")
    }

    fn bytes(&self) -> u64 {
        let reading = self.meter.reading();
        reading.bytes + self.meter.partial_frame_bytes() + reading.sent_bytes + reading.probed
    }

    fn reading(&self) -> MeterReading {
        let runs = matches!(*self.state.lock(), State::Runs { .. });
        MeterReading {
            transfers: usize::from(runs),
            ..self.meter.reading()
        }
    }

    fn status(&self) -> TransferStatus {
        let state = self.state.lock().clone();
        let reading = self.meter.reading();
        let bytes = self.bytes();
        let found = self.meter.found();
        let waited = self.since.elapsed().unwrap_or_default();
        let (direction, reason, lasted) = match state {
            State::Waits { reason, ahead } => (None, Some(place(&reason, ahead)), waited),
            State::Runs { direction, since } => (Some(direction), None, since.elapsed()),
        };
        let rate = self.pace.lock().per_second;
        TransferStatus {
            id: self.id.to_string(),
            name: self.who.name.clone(),
            key: self.who.key.to_string(),
            granter: self.granter.get().cloned(),
            from: self.who.address.to_string(),
            waits: direction.is_none(),
            reason,
            direction,
            probe: self.meter.probed().is_some(),
            path: String::from_utf8_lossy(self.meter.target().unwrap_or_default()).into_owned(),
            files: reading.files + reading.sent_files,
            bytes,
            files_found: found.map(|found| found.files),
            bytes_found: found.map(|found| found.bytes),
            bytes_per_second: whole(rate),
            eta_seconds: found.and_then(|found| eta(found, bytes, rate)),
            lanes: reading.lanes,
            limit_bytes_per_second: self.limit.map(|limit| limit.bytes_per_second()),
            since: self
                .since
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            seconds: (lasted.as_secs_f64() * 1e3).round() / 1e3,
        }
    }
}

fn place(reason: &str, ahead: usize) -> String {
    match ahead {
        0 => reason.to_owned(),
        ahead => format!("{ahead} of the same key before it; {reason}"),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates and times are far below 2^64"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// Returns the estimated time until the end in seconds, or `None` if it is unknown.
fn eta(found: FoundSoFar, bytes: u64, per_second: f64) -> Option<u64> {
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let rest = found
        .bytes
        .saturating_sub(found.skipped_bytes.saturating_add(bytes)) as f64;
    (found.all && per_second >= 1.0).then(|| whole(rest / per_second))
}

impl MovingRate {
    /// Updates the average with the bytes moved so far. Called once a second.
    fn tick(&mut self, bytes: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let newest = bytes.saturating_sub(self.bytes) as f64;
        let is_first = self.bytes == 0;
        self.bytes = bytes;
        self.per_second = if is_first {
            newest
        } else {
            self.per_second + NEWEST * (newest - self.per_second)
        };
    }
}

impl StopReason {
    /// Returns the refusal that is sent to the peer of a transfer that was ended for this reason.
    pub(crate) fn refusal(self) -> Refusal {
        let (code, text) = match self {
            Self::Stopping => (
                RefusalCode::Stopping,
                "the daemon there is being stopped and accepts no new transfers: try again later",
            ),
            Self::ByOperator => (
                RefusalCode::Denied,
                "the operator there stopped this transfer; run the same command again to resume",
            ),
            Self::GrantOver => (
                RefusalCode::Stopping,
                "the grant of this node for the job has expired",
            ),
            Self::KeyRemoved => (
                RefusalCode::UnknownKey,
                "the operator there removed this key and stopped its transfers",
            ),
        };
        Refusal::new(code, text)
    }

    /// Returns the error with which a receiving session ends for this reason.
    pub(crate) fn of_receiver(self) -> SessionError {
        match self {
            Self::Stopping => SessionError::Stopping,
            cut => SessionError::CutOff(cut.refusal()),
        }
    }
}

impl Drop for TransferEntry {
    fn drop(&mut self) {
        let mut table = self.transfers.0.lock();
        table.live.retain(|live| !Arc::ptr_eq(live, &self.live));
        let last = MeterReading {
            transfers: 0,
            lanes: 0,
            queued: 0,
            ..self.live.meter.reading()
        };
        table.ended = table.ended.and(&last);
        add(&mut table.ended_by_name, &self.live.who.name, &last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::Event;

    fn who(name: &str) -> PeerInfo {
        PeerInfo {
            name: name.into(),
            address: "[::1]:7".parse().unwrap(),
            key: Fingerprint([1; 32]),
            by_head: None,
        }
    }

    #[test]
    fn totals_stay_when_a_transfer_ends_and_the_rest_goes() {
        let transfers = Arc::<Transfers>::default();
        let one = transfers.enter(TransferId([1; 16]), who("ann"), None);
        let other = transfers.enter(TransferId([2; 16]), who("ben"), None);
        assert_eq!(transfers.read().transfers, 0, "they wait");
        one.live.set_running(Direction::Send);
        other.live.set_running(Direction::Send);
        one.live
            .meter
            .record_event(&Event::Stored { files: 2, bytes: 7 });
        one.live.meter.record_event(&Event::LaneUp { lanes: 3 });
        other
            .live
            .meter
            .record_event(&Event::Stored { files: 0, bytes: 1 });
        let before = transfers.read();
        assert_eq!((before.sent_bytes, before.sent_files), (8, 2));
        assert_eq!((before.transfers, before.lanes), (2, 3));
        drop(one);
        let after = transfers.read();
        assert_eq!((after.sent_bytes, after.sent_files), (8, 2));
        assert_eq!((after.transfers, after.lanes), (1, 0));
        let by_name = transfers.read_by_name();
        assert_eq!(
            (by_name["ann"].sent_bytes, by_name["ann"].transfers),
            (7, 0)
        );
        assert_eq!(
            (by_name["ben"].sent_bytes, by_name["ben"].transfers),
            (1, 1)
        );
    }

    #[test]
    fn names_without_end_are_counted_together() {
        let transfers = Arc::<Transfers>::default();
        for number in 0..NAMES_MAX + 5 {
            let guard = transfers.enter(TransferId([0; 16]), who(&number.to_string()), None);
            guard
                .live
                .meter
                .record_event(&Event::Stored { files: 1, bytes: 1 });
        }
        let by_name = transfers.read_by_name();
        assert_eq!(
            (by_name.len(), by_name[OTHER_NAMES].sent_bytes),
            (NAMES_MAX + 1, 5)
        );
    }

    #[tokio::test]
    async fn only_the_transfer_that_is_meant_is_ended() {
        let transfers = Arc::<Transfers>::default();
        let one = transfers.enter(TransferId([1; 16]), who("ann"), None);
        let other = transfers.enter(TransferId([2; 16]), who("ben"), None);
        let ended = transfers.end(StopReason::ByOperator, |status| status.name == "ann");
        assert_eq!(ended.len(), 1);
        assert_eq!(one.live.stop_requested().await, StopReason::ByOperator);
        assert_eq!(*other.live.cut.borrow(), None);
    }

    #[test]
    fn the_rest_at_the_rate_of_the_last_seconds_is_the_time_until_the_end() {
        let mut pace = MovingRate::default();
        pace.tick(100);
        pace.tick(200);
        let found = FoundSoFar {
            files: 9,
            bytes: 1000,
            skipped_bytes: 300,
            all: false,
        };
        assert_eq!(
            eta(found, 200, pace.per_second),
            None,
            "the scan has not ended"
        );
        assert_eq!(
            eta(FoundSoFar { all: true, ..found }, 200, pace.per_second),
            Some(5)
        );
        assert_eq!(eta(FoundSoFar { all: true, ..found }, 200, 0.0), None);
        let nonsense = FoundSoFar {
            all: true,
            skipped_bytes: u64::MAX,
            ..found
        };
        assert_eq!(
            eta(nonsense, 200, pace.per_second),
            Some(0),
            "a peer says what it likes"
        );
    }
}
