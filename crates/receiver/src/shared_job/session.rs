//! One session in a shared job: its state, and how it begins.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use zmove_disk::{
    Heartbeat, JobSession, Lease, SharedJobDirectory, SharedJobError, Tree, stat_at, unlink_at,
};
use zmove_types::{Beginning, Lock, Name, RelPath, SharedJobId};
use zmove_wire::{
    Compare, Durability, Extraneous, Open, Proof, Refusal, RefusalCode, SharedJobOpening,
};

use crate::resume::journal::{Begin, Journal};
use crate::rights::quota::Quota;
use crate::shared_job::groups::FlushedGroups;
use crate::shared_job::journals;
use crate::shared_job::other_jobs::FoundJob;
use crate::shared_job::takeover::take_over;

/// The state of one session in a shared job.
#[derive(Debug)]
pub(crate) struct SharedJobSession {
    pub(crate) directory: SharedJobDirectory,
    /// The session's directory inside the job's directory.
    pub(crate) session: Arc<JobSession>,
    pub(crate) job: SharedJobId,
    pub(crate) flushes: Flushes,
    pub(crate) groups: Lock<FlushedGroups>,
    /// The heartbeat of the job, if this receiver writes it.
    pub(crate) heartbeat_writer: Option<Arc<HeartbeatWriter>>,
    /// Name of the session's journal.
    journal: Name,
    /// Length of an empty journal, in bytes.
    journal_bytes_empty: i64,
}

impl Drop for SharedJobSession {
    /// Removes the session's journal if it contains no records. Otherwise, on a full file system, each retry of the
    /// session would leave an empty journal.
    fn drop(&mut self) {
        let directory = self.directory.fd();
        if length(directory, &self.journal).is_ok_and(|length| length == self.journal_bytes_empty) {
            let _best_effort = unlink_at(directory, &self.journal);
        }
    }
}

fn length(directory: &OwnedFd, name: &Name) -> rustix::io::Result<i64> {
    Ok(stat_at(directory, name)?.st_size)
}

/// The writer of a job's heartbeat. It runs on its own thread.
#[derive(Debug)]
pub(crate) struct HeartbeatWriter {
    /// The heartbeat, or `None` after it was stopped.
    heartbeat: Lock<Option<Heartbeat>>,
    stopped: Condvar,
}

impl HeartbeatWriter {
    /// Writes the first heartbeat immediately, so that the directory of a live job soon has one.
    fn begin(mut heartbeat: Heartbeat) -> io::Result<Self> {
        heartbeat.beat(None)?;
        Ok(Self {
            heartbeat: Lock::new(Some(heartbeat)),
            stopped: Condvar::new(),
        })
    }

    /// Writes a heartbeat every second until `stop` is called. Skips it if the head (the node that leads the job) may
    /// be dead.
    pub(crate) fn run(&self, lease: &Lease) {
        let mut guard = self.heartbeat.lock();
        while let Some(heartbeat) = &mut *guard {
            if let Some(age) = lease.echo_age(PING_AGE_MAX) {
                let _ended_or_unwritable = heartbeat.beat(Some(age));
            }
            let is_running = |heartbeat: &mut Option<Heartbeat>| heartbeat.is_some();
            let waited = self
                .stopped
                .wait_timeout_while(guard, HEARTBEAT_INTERVAL, is_running);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Stops the heartbeat. No heartbeat is written after this call.
    pub(crate) fn stop(&self) {
        *self.heartbeat.lock() = None;
        self.stopped.notify_all();
    }
}

/// The flush requests of a session. They are numbered, so that one flush can cover all requests that were made before
/// it began.
#[derive(Debug, Default)]
pub(crate) struct Flushes {
    pub(crate) asked: AtomicU64,
    /// The number of the last request that a flush has covered.
    pub(crate) covered: Lock<u64>,
}

/// Interval between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum age of a ping that proves that the head (the node that leads the job) is alive. The head sends a ping every
/// second.
const PING_AGE_MAX: Duration = Duration::from_secs(2);

/// Refuses the session if it has an option that is not possible in a shared job.
pub(crate) fn check(open: &Open) -> Result<(), Refusal> {
    let refused = [
        (open.grant.is_some(), "a copy with a grant"),
        (open.inplace, "an in-place update"),
        (
            open.extraneous != Extraneous::Stays,
            "removal of entries that are only at the target",
        ),
        (open.delta, "a delta transfer"),
        (open.compare != Compare::Quick, "comparison by content"),
        (
            open.proof != Proof::Wire,
            "verification by reading files back",
        ),
        (
            open.durability == Durability::None,
            "a transfer without flushing",
        ),
    ];
    match refused.into_iter().find(|(asked, _)| *asked) {
        Some((_, what)) => Err(not_in_a_job(what)),
        None => Ok(()),
    }
}

/// Returns the refusal for an option that is not possible in a shared job.
pub(crate) fn not_in_a_job(what: &str) -> Refusal {
    let text = format!("{what} is not possible in a job of several receivers");
    Refusal::new(RefusalCode::Protocol, text)
}

/// Returns the refusal for a session whose job does not exist at this target.
pub(crate) fn not_in_progress(job: SharedJobId) -> Refusal {
    refuse(job, &SharedJobError::NotUnderWay)
}

fn refuse(job: SharedJobId, error: &SharedJobError) -> Refusal {
    let code = match error {
        SharedJobError::NotUnderWay => RefusalCode::NotUnderWay,
        _ => RefusalCode::Target,
    };
    Refusal::new(code, format!("'.zmove-job-{job}': {error}"))
}

impl SharedJobSession {
    /// Begins a session in a job, with its journal. If this fails for a new job, removes everything that was created,
    /// so that the job can begin on another receiver. If the removal fails, the refusal reports that the job has begun
    /// and failed.
    pub(crate) fn begin(
        target: &Tree,
        opening: &SharedJobOpening,
        begin: &Begin,
        quota: &Quota,
    ) -> Result<(Self, Journal), Refusal> {
        let &SharedJobOpening { job, beginning, .. } = opening;
        let root = target
            .open_directory(&RelPath::root())
            .map_err(|error| refuse(job, &error.into()))?;
        // If the sender has disconnected, the job does not begin, because nobody would end it.
        let permit = target.lease().permit();
        drop(permit.map_err(|errno| refuse(job, &io::Error::from(errno).into()))?);
        Self::begin_in(&root, opening, begin, quota).map_err(|refusal| {
            let may_have_begun =
                beginning == Beginning::Allowed && refusal.code == RefusalCode::Target;
            let is_left = may_have_begun
                && !SharedJobDirectory::undo_begin(&root, job, &begin.transfer.to_string());
            if is_left {
                Refusal {
                    code: RefusalCode::Failed,
                    ..refusal
                }
            } else {
                refusal
            }
        })
    }

    fn begin_in(
        root: &Arc<OwnedFd>,
        &SharedJobOpening {
            job,
            beginning,
            leads,
            ..
        }: &SharedJobOpening,
        begin: &Begin,
        quota: &Quota,
    ) -> Result<(Self, Journal), Refusal> {
        let begun = || {
            let directory = SharedJobDirectory::open(root, job, beginning)?;
            let own = begin.transfer.to_string();
            let heartbeat_writer = leads
                .then(|| HeartbeatWriter::begin(directory.heartbeat(&own)))
                .transpose()?;
            let session = directory.begin(&own)?;
            Ok((directory, Arc::new(session), heartbeat_writer.map(Arc::new)))
        };
        let (directory, session, heartbeat_writer) =
            begun().map_err(|error| refuse(job, &error))?;
        let name = journals::name_of(begin.transfer);
        let journal =
            Journal::create_in_job(directory.fd(), &name, begin, quota.journal_limits().bytes);
        let journal = journal.map_err(|error| {
            Refusal::new(
                RefusalCode::Target,
                format!("create the journal of the job: {error}"),
            )
        })?;
        let length = length(directory.fd(), &name).map_err(|error| refuse(job, &error.into()))?;
        let session = Self {
            journal: name,
            journal_bytes_empty: length,
            directory,
            session,
            job,
            flushes: Flushes::default(),
            groups: Lock::new(FlushedGroups::new(quota)),
            heartbeat_writer,
        };
        Ok((session, journal))
    }

    /// Takes over as much as possible of the unfinished large files of dead jobs at this target. Must be called before
    /// the remains of these jobs are removed.
    pub(crate) fn take_over(&self, dead: &[FoundJob], journal: &Journal, quota: &Quota) {
        for (parent, job) in dead {
            if let Ok(dead) = SharedJobDirectory::open_with_proof(parent, *job) {
                let _is_sent_again =
                    take_over(&dead, &self.session, journal, quota.journal_limits().bytes);
            }
        }
    }
}
