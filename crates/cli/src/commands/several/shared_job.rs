//! Leads jobs that are shared by several receivers or by the nodes of a cluster, and reports their results.

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::watch;
use zmove_cluster::{
    Head, JobEnd, JobError, JobPhase, Node, Receiver, SessionEnd, SharedJob, WorkQueue,
};
use zmove_engine::{DialSettings, Listener, Notice, Remote, Sources, Summary, fresh_transfer};
use zmove_jobs::Party;
use zmove_sender::SenderConfig;
use zmove_tools::sweep::Shares;
use zmove_transport::{Fingerprint, SharedRate};
use zmove_types::{ByteCount, ByteRate, MetadataKinds, SharedJobId};
use zmove_wire::{DirectoryReplacement, Open, PreserveOptions, TargetShape};

use crate::commands::participants::Participants;
use crate::commands::transfer::exit_of;
use crate::display::format::counted;
use crate::display::summary::{self, Ending, SessionCount};
use crate::display::terminal;
use crate::settings::{self, PushSettings, Role};
use crate::value::exit::{Exit, failure};

/// A job that this process leads.
pub(crate) struct JobLeader {
    pub(crate) job: SharedJob,
    pub(crate) receivers: Vec<Receiver>,
    /// Index of the receiver that first gets the request to start the job.
    pub(crate) first_receiver: usize,
    /// Maximum time for which the job continues while no receiver can be reached.
    pub(crate) patience: Duration,
    pub(crate) participants: Arc<Participants>,
    /// The current phase of the job.
    pub(crate) phase: watch::Sender<JobPhase>,
    /// Resolves when the user stops the push.
    pub(crate) stop: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl JobLeader {
    /// Leads the job until it ends, with work items from `queue`. `beside` runs concurrently. Other nodes that join in
    /// time do work that this node would otherwise do.
    ///
    /// # Errors
    /// Returns the error of `beside`.
    pub(crate) async fn lead(
        self,
        queue: Arc<impl WorkQueue>,
        others_join_within: Duration,
        beside: impl Future<Output = Result<Infallible>>,
    ) -> Result<JobResult> {
        let Self {
            job,
            receivers,
            participants,
            ..
        } = self;
        let id = job.id;
        let movers = receivers.len();
        let node = Node {
            told: Arc::clone(&participants.seen_failures),
            ..Node::new(job, Arc::clone(&queue), receivers, movers, self.patience)
        };
        let head = Head {
            first_receiver: self.first_receiver,
            phase: self.phase,
            others: participants.others.subscribe(),
            others_join_within,
            ..Head::new(node)
        };
        let observer = Arc::clone(&participants.observer);
        let served = &head.node.served;
        let ended = tokio::select! {
            ended = Box::pin(head.run(observer, Arc::new(SessionWarnings), self.stop)) => ended,
            never = participants.show(&*queue, served) => match never {},
            failed = beside => match failed? {},
        };
        participants.show_now(Some(0), served);
        let others = participants.others.borrow();
        let has_lost_sessions = served.has_lost_sessions() || others.unfinished > 0;
        Ok(JobResult {
            id,
            ended,
            served: participants.served(served),
            has_lost_sessions,
        })
    }
}

/// The result of a job that this process led.
pub(crate) struct JobResult {
    id: SharedJobId,
    ended: Result<JobEnd, JobError>,
    /// Number of nodes or receivers that took part.
    served: usize,
    /// Whether sessions were lost before they had recorded all data that they moved.
    has_lost_sessions: bool,
}

/// Prints the result of a job. `took_part` lists the files and bytes moved by each node, if several nodes took part.
pub(crate) fn print_result(
    led: JobResult,
    took_part: Option<String>,
    settings: &PushSettings,
    sources: &Sources,
    started: Instant,
) -> Result<Exit> {
    let args = &settings.args;
    let ended = led.ended.map_err(as_failure)?;
    let mut summary = summary_of(&ended, started);
    summary.counters.failed += sources.missing;
    let exit = exit_of(&summary, args);
    let is_told = !args.json && !args.quiet;
    if is_told && summary.counters.files > 0 {
        let party = match settings.cluster {
            Some(_) => Party::Node,
            None => Party::Receiver,
        };
        let by = counted(led.served as u64, party.as_ref());
        let text = as_text(&summary, &ended, &by, took_part);
        terminal::print_lines(&(text + &summary::extras(&summary, args)));
    } else {
        let ending = Ending {
            exit,
            transfer: Some(led.id.to_string()),
            sessions: SessionCount::Several,
            is_inexact: ended.is_inexact,
        };
        summary::print(&summary, args, None, &Shares::default(), &ending);
    }
    if is_told && led.has_lost_sessions && summary.counters.skipped > 0 {
        terminal::print_lines(MOVED_BEFORE);
    }
    Ok(exit)
}

/// Returns a receiver of a shared job. If `key` is given, the receiver must have that key.
pub(crate) fn receiver(
    settings: &PushSettings,
    remote: &Remote,
    key: Option<Fingerprint>,
) -> Result<Receiver> {
    let dial = settings.dial_to(remote)?;
    Ok(Receiver {
        home: settings::home(Role::Client)?,
        remote: remote.clone(),
        settings: DialSettings {
            key: key.or(dial.key),
            ..dial
        },
    })
}

/// Returns the number of threads of a process that moves data itself.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, NonZeroUsize::get)
}

/// Returns the ID of a new job.
pub(crate) fn new_job_id() -> Result<SharedJobId> {
    let id = fresh_transfer().context("get random bytes")?;
    Ok(SharedJobId(id.0))
}

/// Leads a job that starts at the first of several receivers. If the job fails because the connection to a receiver was
/// lost, that receiver may have started the job. A new job then starts at a receiver that does not have the first job.
pub(crate) fn lead_with_restart(
    receivers: usize,
    mut lead: impl FnMut(usize) -> Result<JobResult>,
) -> Result<JobResult> {
    let mut first_receiver = 0;
    for _ in 1..receivers {
        let led = lead(first_receiver)?;
        let Err(JobError::PerhapsBegun {
            absent_at: Some(at),
            ..
        }) = led.ended
        else {
            return Ok(led);
        };
        first_receiver = at;
    }
    lead(first_receiver)
}

/// Returns the job that these settings describe. `--limit` applies to the sum of all sessions of this node.
pub(crate) fn job(
    settings: &PushSettings,
    sources: &Sources,
    id: SharedJobId,
) -> Result<SharedJob> {
    let job = settings.job(sources)?;
    let kinds = job.open.keeping.kinds;
    if settings.args.keeping.archive && kinds.has_any(MetadataKinds::LINKS) {
        terminal::warn("with several receivers, hard links become separate files");
    }
    let keeping = PreserveOptions {
        kinds: kinds.without(MetadataKinds::LINKS),
        ..job.open.keeping
    };
    let open = Open {
        shape: of_several(job.open.shape),
        keeping,
        delta: false,
        // An entry that blocks a new entry may have been created through another receiver, so no receiver may remove
        // it.
        in_the_way: DirectoryReplacement::Stays,
        protected: Vec::new(),
        ..job.open
    };
    let storage = settings::storage(settings.args.storage, |notice| terminal::warn(notice));
    let config = SenderConfig {
        // The limit applies to the sum of all sessions of this process, whatever their number.
        rate_shared: settings.args.limit().map(SharedRate::new),
        silence_max: RECEIVER_SILENCE_MAX,
        ..settings.sender(&storage)
    };
    Ok(SharedJob::new(id, job.sources, open, config))
}

/// Returns the shape of a target with several receivers. Even a single source file is placed inside a directory.
fn of_several(shape: TargetShape) -> TargetShape {
    match shape {
        TargetShape::Single { name } => TargetShape::Directory { tops: vec![name] },
        shape @ TargetShape::Directory { .. } => shape,
    }
}

fn summary_of(ended: &JobEnd, started: Instant) -> Summary {
    let tally = &ended.tally;
    Summary {
        counters: tally.counters(),
        not_kept: tally.not_kept.clone(),
        elapsed: started.elapsed(),
        measured: started.elapsed(),
        ..Summary::default()
    }
}

fn as_text(summary: &Summary, ended: &JobEnd, by: &str, took_part: Option<String>) -> String {
    let rate = ByteRate::new(summary.counters.bytes, summary.elapsed);
    let seconds = summary.elapsed.as_secs_f64();
    let took_part = took_part.map(|took_part| took_part + "\n");
    format!(
        "{}{}, {} in {seconds:.2} s: {rate}, by {by}\n{}verified (wire), flushed\n",
        if ended.is_inexact { "at least " } else { "" },
        counted(summary.counters.files, "file"),
        ByteCount(summary.counters.bytes),
        took_part.unwrap_or_default(),
    )
}

/// Converts the error of a job to the failure of the push.
pub(crate) fn as_failure(error: JobError) -> anyhow::Error {
    let text = error.to_string();
    let exit = match error {
        JobError::Interrupted => Exit::Interrupted,
        // A full target produces the same exit code whether it affects single files or the whole job.
        JobError::NoRoom(_) => Exit::Partial,
        JobError::NotShared(_) => Exit::Target,
        JobError::Lost(_) | JobError::Queue(_) => Exit::Broken,
        JobError::NotBegun(error) | JobError::PerhapsBegun { error, .. } => match *error {
            SessionEnd::Connect(error) => return error.into(),
            SessionEnd::Session(error) => return error.into(),
            SessionEnd::NoRoom { .. } => {
                let remedy = "free some space, and run the same command again";
                return failure(Exit::Partial, format!("{text}; {remedy}"));
            }
            SessionEnd::InVain { .. } => Exit::Broken,
            error => return error.into(),
        },
    };
    failure(exit, text)
}

/// Shows the notices of simultaneous sessions as warnings.
pub(crate) struct SessionWarnings;

impl Listener for SessionWarnings {
    fn hear(&self, notice: &Notice<'_>) {
        if !matches!(
            notice,
            Notice::Dialling { .. } | Notice::SessionBegins { .. }
        ) {
            terminal::warn(notice);
        }
    }
}

/// Text that follows the count of equal files. The count may include files that this push has moved.
const MOVED_BEFORE: &str =
    "(some of them may have been moved by this push, before a session was lost)\n";
/// Maximum time for a receiver to answer a ping. A receiver answers even if its storage is busy. After this time,
/// another receiver does the silent receiver's work, and nothing is lost.
const RECEIVER_SILENCE_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn another_job_begins_where_the_first_is_not_and_as_often_as_there_are_receivers() {
        let lead = |absent_at: &[Option<usize>]| {
            let mut begun_at = Vec::new();
            let led = lead_with_restart(3, |first_receiver| {
                begun_at.push(first_receiver);
                let absent_at = absent_at[begun_at.len() - 1];
                let error = Box::new(SessionEnd::JobClosed);
                let ended = Err(JobError::PerhapsBegun { error, absent_at });
                Ok(JobResult {
                    id: SharedJobId([0; 16]),
                    ended,
                    served: 0,
                    has_lost_sessions: false,
                })
            });
            assert!(matches!(
                led.unwrap().ended,
                Err(JobError::PerhapsBegun { .. })
            ));
            begun_at
        };
        assert_eq!(lead(&[None]), [0], "nobody has said that it is not there");
        assert_eq!(lead(&[Some(2), None]), [0, 2]);
        assert_eq!(lead(&[Some(1), Some(2), Some(0)]), [0, 1, 2]);
    }
}
