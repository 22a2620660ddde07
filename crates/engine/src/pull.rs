//! A pull from another host. This side dials and is the receiver, and the other host is the sender. Both roles work as
//! in a push, because they do not depend on the side that dials. Only the additional messages of the sender differ
//! (`relayed`).
//!
//! **Invariant:** this side creates the opening message for its receiver. An opening from the host is never passed on
//! (`conversation`). The names that the host reports for the top level of the target must match the requested sources
//! (`sources`).

pub(crate) mod asking;
mod conversation;
pub(crate) mod relayed;
mod sources;

use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use zmove_disk::RemovalBudget;
use zmove_receiver::{
    NamedFiles, Opening, OwnerPermission, ReceiverConfig, Rights, Session,
    SessionError as ReceiverError, run_session,
};
use zmove_sender::{
    LaneCount, LaneSupply, Link, Manifest, RunState, SessionError, SessionProgress, Summary,
};
use zmove_transport::{LaneError, LaneSource, PathProbe};
use zmove_types::{Counters, DeliveryLog, Lock, Observer};
use zmove_wire::limits::LANES_MAX;
use zmove_wire::{
    Compare, Fetch, Greeting, Intent, LaneOrder, Open, Proof, Role, TargetState, ToSender, ToSource,
};

use crate::connecting::dial::{ConnectedHost, Transferred, in_time, unless_interrupted};
use crate::copy::unexpected;
use crate::error::{PullError, PushError};
use crate::retrying::{RetryPolicy, Sessions};
use asking::ask;
use conversation::{Ended, FilteredControl, filter_control};
use relayed::{RelayedEvents, SenderReport};

pub use sources::RemoteSources;

/// The parameters of a pull.
pub struct RemotePull<'a> {
    /// The sending host, and how the pull reconnects to it.
    pub sender: RetryPolicy<'a>,
    /// The order for the host. Its `open` describes how this side writes the target. The number of lanes is filled in
    /// for each session.
    pub fetch: Fetch,
    /// The list of paths, if the order announces one.
    pub list: Option<Arc<[u8]>>,
    /// The requested sources, which determine the names that the host may send.
    pub sources: RemoteSources,
    /// Settings of the receiver. The allowed names and the limit of removals are filled in.
    pub receiver: ReceiverConfig,
    /// Observer of the session's events.
    pub observer: Arc<dyn Observer>,
}

/// The state of a pull across all of its sessions.
#[derive(Debug)]
struct PullRun {
    started: Instant,
    manifest: Option<Manifest>,
    /// Results of the sessions so far.
    standing: RunState,
    /// Files and groups that the sessions stored on this side.
    delivery_log: Arc<Lock<DeliveryLog>>,
    /// Maximum number of lanes of any failed session.
    lanes_most: usize,
    first_byte: Option<Duration>,
    /// Number of files that were complete before the last session.
    files_before: u64,
    /// Number of entries that the run may still remove.
    removals: Option<Arc<RemovalBudget>>,
    removals_left: u64,
    /// The id of the run, which is the id of its first transfer.
    id: Option<[u8; 16]>,
}

/// Time limit for the host to report its summary after all data has arrived.
const ACCOUNT_TIMEOUT: Duration = Duration::from_secs(120);
/// How long this side still reads messages of the host after a failure.
const FINAL_MESSAGES_TIMEOUT: Duration = Duration::from_secs(5);

impl PullRun {
    fn begin(manifest: Option<Manifest>, started: Instant) -> Self {
        Self {
            started,
            manifest,
            standing: RunState::default(),
            delivery_log: Arc::default(),
            lanes_most: 0,
            first_byte: None,
            files_before: 0,
            removals: None,
            removals_left: 0,
            id: None,
        }
    }
}

impl fmt::Debug for RemotePull<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RemotePull");
        shown.field("sender", &self.sender).finish_non_exhaustive()
    }
}

impl RemotePull<'_> {
    /// Pulls the sources. Returns when the pull is complete, `stop` resolves, or there has been no connection for too
    /// long. `started` is the time at which the user's wait started.
    ///
    /// # Errors
    /// The host cannot be reached or refuses to send, or connections were lost for too long. Failed files are not an
    /// error: the summary counts them.
    pub async fn pull(
        &self,
        manifest: Option<Manifest>,
        started: Instant,
        stop: impl Future<Output = ()>,
    ) -> Result<Transferred, PushError> {
        let mut run = PullRun::begin(manifest, started);
        run.standing.inspects = self.fetch.open.intent == Intent::Inspect;
        let mut sessions = PullSessions { of: self, run };
        self.sender.run(&mut sessions, stop).await
    }

    /// Requests the data from the host and receives it.
    async fn receive(
        &self,
        run: &mut PullRun,
        link: Link<Box<dyn LaneSource>>,
        connection: PathProbe,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Summary, PushError> {
        let session_started = Instant::now();
        let Link {
            transfer,
            cipher,
            control: (reader, writer),
            lanes,
            supply,
            ..
        } = link;
        let supply = supply.expect("this side dials more lanes");
        let run_id = *run.id.get_or_insert(transfer.0);
        let (fetch, own_open) = self.order(run_id, lane_order(&supply)).await;
        let wanted = ToSource::Fetch(Box::new(fetch));
        let greeting = Greeting {
            cipher,
            ..Greeting::new(Role::Fetch, transfer)
        };
        let asking = ask(
            reader,
            writer,
            greeting,
            wanted,
            self.list.clone(),
            run.standing.patience,
            &*self.observer,
        );
        let asked = unless_interrupted(stop.as_mut(), asking).await?;
        // While the host was busy, it closed some of the lanes. It then requests the same number of lanes again.
        let dialled = usize::from(supply.asked) * if asked.has_waited { 2 } else { 1 };
        let ToSender::Fetching(_) = asked.answer else {
            return Err(unexpected("the first answer"));
        };
        run.begin_session();
        let relayed = Arc::new(RelayedEvents::new(
            Arc::clone(&self.observer),
            run.manifest.take(),
            supply.more.clone(),
            run.started.elapsed(),
        ));
        let FilteredControl {
            reader,
            shape,
            filter_task,
        } = filter_control(self.sources.clone(), Arc::clone(&relayed), asked.reader);
        let open = Box::new(own_open);
        let forwarded = forward(lanes, dialled);
        let session = Session {
            opening: Opening::Ordered { open, shape },
            failed_lanes: Some(forwarded.failed_lanes),
            connection,
            config: self.receiver_config(run, &relayed),
            ..Session::new(transfer, (reader, asked.writer.greeted()), forwarded.lanes)
        };
        let receiving = ReceivingSession {
            session,
            filter_task,
            first_lanes_error: forwarded.first_lanes_error,
            supply,
        };
        let received = receiving.run(stop).await;
        let (manifest, heard) = relayed.end(received.final_messages.clone());
        run.manifest = manifest;
        let summary = received.account(&heard).inspect_err(|_| run.add(&heard))?;
        Ok(self.finish(run, summary, &heard, session_started)?)
    }

    /// Returns the order for a session, and the opening for this side's receiver.
    async fn order(&self, run: [u8; 16], lanes: LaneOrder) -> (Fetch, Open) {
        let mut fetch = Fetch {
            lanes,
            ..self.fetch.clone()
        };
        fetch.open.run = run;
        let own_open = fetch.open.clone();
        fetch.open.target = Vec::new();
        // This side's receiver reads back the data that it stores.
        fetch.open.proof = Proof::Wire;
        fetch.open.known_state = is_target_empty(&own_open)
            .await
            .then_some(TargetState::Empty);
        (fetch, own_open)
    }

    fn receiver_config(&self, run: &mut PullRun, relayed: &Arc<RelayedEvents>) -> ReceiverConfig {
        // The host has received the same limit but may ignore it.
        let removals = run
            .removals
            .get_or_insert_with(|| Arc::new(RemovalBudget::new(self.removals_max())));
        run.removals_left = removals.left();
        let named = self
            .fetch
            .manifest
            .then(|| Arc::clone(relayed) as Arc<dyn NamedFiles>);
        ReceiverConfig {
            named,
            removals: Some(Arc::clone(removals)),
            // The receiver runs as the user, so the permissions of the kernel are sufficient.
            rights: Rights {
                owning: OwnerPermission::Allowed,
                ..Rights::default()
            },
            top_names: self.sources.top_names(),
            meter: Arc::default(),
            delivery_log: Some(Arc::clone(&run.delivery_log)),
            ..self.receiver.clone()
        }
    }

    /// Returns the maximum number of entries that the run may remove, including entries that are replaced.
    fn removals_max(&self) -> u64 {
        self.fetch.open.removals_max.unwrap_or(u64::MAX)
    }

    /// Returns the counters of the whole run, based on the counters of its last session. Stored and removed files are
    /// counted on this side, for two reasons: the host does not know about earlier sessions, and its final messages are
    /// lost if the connection is lost.
    fn counters(&self, run: &PullRun, last: Counters) -> Counters {
        let last = Counters {
            reconnects: run.standing.reconnects(),
            lanes: last.lanes.max(run.lanes_most as u64),
            ..last
        };
        if self.fetch.open.intent == Intent::Inspect {
            return last;
        }
        let whole = run.delivery_log.lock().completed_counters();
        let removals = run.removals.as_deref();
        let replaced_below = removals.map_or(0, RemovalBudget::replaced);
        let gone = removals.map_or(0, |removals| self.removals_max() - removals.left());
        Counters {
            files: whole.files,
            bytes: whole.bytes,
            hard_links: whole.hard_links,
            bytes_resumed: whole.bytes_resumed,
            bytes_matched: whole.bytes_matched,
            // Files that earlier sessions of this run delivered were found to be equal by the last session. They do not
            // count as skipped.
            skipped: last.skipped.saturating_sub(run.files_before),
            removed: gone.saturating_sub(replaced_below),
            replaced_below,
            ..last
        }
    }

    /// Returns the summary of the whole run after it succeeded.
    fn finish(
        &self,
        run: &mut PullRun,
        summary: Summary,
        heard: &SenderReport,
        session_started: Instant,
    ) -> Result<Summary, SessionError> {
        let manifest = run.manifest.take();
        // A host that compares contents reports the hash of each file, even if the file was not sent.
        let tells_all = manifest.is_none() || self.fetch.open.compare == Compare::Checksum;
        let manifest_unread = if tells_all {
            0
        } else {
            summary
                .counters
                .skipped
                .saturating_sub(heard.reported_existing)
        };
        let manifest_left_out = manifest
            .map_or(Ok(0), Manifest::finish)
            .map_err(SessionError::Manifest)?;
        Ok(Summary {
            counters: Counters {
                manifest_left_out,
                manifest_unread,
                ..self.counters(run, summary.counters)
            },
            elapsed: run.started.elapsed(),
            measured: session_started.elapsed(),
            first_byte: run.first_byte.or(heard.first_byte),
            ..summary
        })
    }
}

impl PullRun {
    /// Records that a session has begun. It has made no progress yet.
    fn begin_session(&mut self) {
        self.standing.begin_session();
        self.files_before = self.delivery_log.lock().completed_counters().files;
    }

    /// Records a failed session. The session made progress in any of these cases: it stored a file or a group that no
    /// earlier session had delivered, it removed an entry, or it found more bytes at the target than any earlier
    /// session.
    fn add(&mut self, heard: &SenderReport) {
        let answered = heard.answered.map(|first| first.elapsed());
        self.standing.note_answered(answered.unwrap_or_default());
        self.standing.note_found(heard.progress.skipped.bytes);
        let has_removed = self
            .removals
            .as_ref()
            .is_some_and(|removals| removals.left() < self.removals_left);
        if self.delivery_log.lock().take_new() || has_removed {
            self.standing.fate = SessionProgress::Progressed;
        }
        self.lanes_most = self.lanes_most.max(heard.lanes);
        self.first_byte = self.first_byte.or(heard.first_byte);
        self.manifest
            .iter_mut()
            .for_each(Manifest::begin_next_session);
    }
}

/// A receiving session, and the task that reads the host's messages.
struct ReceivingSession {
    session: Session,
    filter_task: JoinHandle<Ended>,
    first_lanes_error: oneshot::Receiver<LaneError>,
    /// Further lanes are dialed until this value is dropped.
    supply: LaneSupply,
}

impl ReceivingSession {
    /// Receives until the transfer is complete, all lanes fail to connect, or `stop` resolves. Then reads the host's
    /// final messages.
    async fn run(self, mut stop: Pin<&mut impl Future<Output = ()>>) -> ReceivingResult {
        let Self {
            session,
            mut filter_task,
            first_lanes_error,
            supply,
        } = self;
        let mut interrupted = false;
        let mut lane_error = None;
        let ends = async {
            tokio::select! {
                () = &mut stop => interrupted = true,
                Ok(error) = first_lanes_error => lane_error = Some(error),
            }
            ReceiverError::Stopping
        };
        let received = run_session(session, ends).await;
        drop(supply);
        let patience = if received.is_ok() {
            ACCOUNT_TIMEOUT
        } else {
            FINAL_MESSAGES_TIMEOUT
        };
        let final_messages = tokio::select! {
            ended = &mut filter_task => ended.unwrap_or_default(),
            () = tokio::time::sleep(patience) => None,
            () = &mut stop, if !interrupted => {
                interrupted = true;
                None
            }
        };
        filter_task.abort();
        ReceivingResult {
            failure: received.err(),
            lane_error,
            interrupted,
            final_messages,
        }
    }
}

/// The result of a receiving session.
struct ReceivingResult {
    failure: Option<ReceiverError>,
    /// The error if none of the first lanes connected.
    lane_error: Option<LaneError>,
    interrupted: bool,
    final_messages: Ended,
}

impl ReceivingResult {
    /// Returns the host's summary of the session, or the error that explains why there is no summary.
    fn account(self, heard: &SenderReport) -> Result<Summary, PushError> {
        if self.interrupted {
            return Err(SessionError::Interrupted.into());
        }
        match (self.failure, &heard.account, self.lane_error) {
            (None, Some(account), _) => Ok(Summary::from(account.clone())),
            (_, _, Some(error)) => Err(PullError::Lane(error).into()),
            (failure, ..) => Err(end_cause(failure, heard).into()),
        }
    }
}

/// Returns the reason why the session ended. The host's reason is used if this side has no error of its own.
fn end_cause(error: Option<ReceiverError>, heard: &SenderReport) -> PullError {
    match (error, &heard.broken) {
        (Some(ReceiverError::PeerMisbehaved(error)), _) => PullError::Misbehaved(error),
        (Some(ReceiverError::Refused(refusal)), _) => PullError::Target(refusal),
        (Some(error @ (ReceiverError::Control(_) | ReceiverError::Lane(_))), broken) => {
            match broken {
                Some(refusal) if error.is_lost() => PullError::Refused(refusal.clone()),
                _ => match error {
                    ReceiverError::Control(error) => error.into(),
                    error => PullError::Receiver(error),
                },
            }
        }
        (Some(error), _) => PullError::Receiver(error),
        (None, Some(refusal)) => PullError::Refused(refusal.clone()),
        (None, None) => PullError::Control(zmove_transport::ControlError::Closed),
    }
}

/// Returns whether the target is empty and does not contain a partial file either.
async fn is_target_empty(open: &Open) -> bool {
    let target = PathBuf::from(OsString::from_vec(open.target.clone()));
    let look = move || match std::fs::read_dir(target) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    open.intent == Intent::Write && tokio::task::spawn_blocking(look).await.unwrap_or(false)
}

fn lane_order(supply: &LaneSupply) -> LaneOrder {
    let least = match supply.number {
        LaneCount::Fixed => None,
        LaneCount::Tuned { least } => Some(least),
    };
    LaneOrder {
        dialled: supply.asked,
        least,
        most: LANES_MAX,
    }
}

type DialedLanes = mpsc::Receiver<Result<Box<dyn LaneSource>, LaneError>>;

/// The lanes of a session, forwarded from the dialer.
struct ForwardedLanes {
    lanes: mpsc::Receiver<Box<dyn LaneSource>>,
    /// Receives a message for each lane that failed to connect.
    failed_lanes: mpsc::UnboundedReceiver<()>,
    /// The error if none of the first lanes connected.
    first_lanes_error: oneshot::Receiver<LaneError>,
}

/// Forwards the lanes that connect. The first `asked` results belong to the first lanes.
fn forward(mut dialled: DialedLanes, asked: usize) -> ForwardedLanes {
    let (up, lanes) = mpsc::channel(usize::from(LANES_MAX));
    let (failed, failed_lanes) = mpsc::unbounded_channel();
    let (none_came, first_lanes_error) = oneshot::channel();
    tokio::spawn(async move {
        let mut none_came = Some(none_came);
        let mut came = 0;
        while let Some(lane) = dialled.recv().await {
            came += 1;
            let handed_on = match lane {
                Ok(lane) => {
                    none_came = None;
                    up.send(lane).await.is_ok()
                }
                Err(error) => match none_came.take_if(|_| came >= asked) {
                    Some(none_came) => none_came.send(error).is_ok(),
                    None => failed.send(()).is_ok(),
                },
            };
            if !handed_on {
                return;
            }
        }
    });
    ForwardedLanes {
        lanes,
        failed_lanes,
        first_lanes_error,
    }
}

/// The sessions of a pull.
struct PullSessions<'a, 'b> {
    of: &'a RemotePull<'b>,
    run: PullRun,
}

impl Sessions for PullSessions<'_, '_> {
    async fn session<S: Future<Output = ()>>(
        &mut self,
        until: Option<tokio::time::Instant>,
        mut stop: Pin<&mut S>,
    ) -> Result<Transferred, PushError> {
        let connector = &self.of.sender.connector;
        let dial = connector.open(None, stop.as_mut());
        let ConnectedHost {
            link,
            connection,
            route,
        } = in_time(until, PullError::Silent, dial).await?;
        self.run.started += route.asked();
        let received = self.of.receive(&mut self.run, link, connection, stop).await;
        route.finish(received, connector.listener).await
    }

    fn standing(&mut self) -> &mut RunState {
        &mut self.run.standing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_wire::{FileTotal, TransferProgress};

    #[test]
    fn sessions_that_bring_find_and_remove_nothing_new_come_no_further() {
        let mut run = PullRun::begin(None, Instant::now());
        let mut is_of_use = |skipped_bytes, delivery_log: &[&str]| {
            delivery_log
                .iter()
                .for_each(|thing| run.delivery_log.lock().note(thing));
            let progress = TransferProgress {
                stored: FileTotal { files: 1, bytes: 9 },
                skipped: FileTotal {
                    files: 0,
                    bytes: skipped_bytes,
                },
                ..TransferProgress::default()
            };
            run.add(&SenderReport {
                progress,
                ..SenderReport::default()
            });
            std::mem::take(&mut run.standing.fate) == SessionProgress::Progressed
        };
        assert!(is_of_use(0, &["log"]) && !is_of_use(0, &["log"]));
        assert!(is_of_use(7, &["log"]) && !is_of_use(7, &["log"]) && !is_of_use(2, &[]));
        assert!(is_of_use(2, &["a group"]), "while what is equal gets less");
        run.removals = Some(Arc::new(RemovalBudget::new(1)));
        for (left, fate) in [
            (2, SessionProgress::Progressed),
            (
                1,
                SessionProgress::NoProgress {
                    answered: Duration::ZERO,
                },
            ),
        ] {
            run.removals_left = left;
            run.add(&SenderReport::default());
            assert_eq!(run.standing.fate, fate);
        }
    }
}
