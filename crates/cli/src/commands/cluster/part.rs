//! The part of a node in a job which another node leads.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::task::spawn_blocking;
use zmove_cluster::jetstream::{JetStream, JobNotice, NodeState, Role, Settings};
use zmove_cluster::{HeldGrant, Node, Receiver, Served, SharedJob, Tally, View};
use zmove_disk::Lease;
use zmove_engine::NoListener;
use zmove_types::{Escaped, Event, Lock, Observer};
use zmove_wire::{FileTotal, TransferProgress};

use super::sources::{compare, instead_of, mount_points, not_as_there};
use crate::args::{Args, Command, PushArgs};
use crate::commands::submit::described;
use crate::commands::{cluster_push, shared_job};
use crate::display::prompt::Prompt;
use crate::display::terminal;
use crate::settings::PushSettings;
use crate::settings::cluster::Cluster;

/// The part of a node in a job.
pub(super) struct Part {
    /// What is moved where, and who leads it, for people.
    pub(super) what: String,
    seen: Arc<Seen>,
    queue: Arc<JetStream>,
    served: Arc<Served>,
    patience: Duration,
}

/// What is done for it.
pub(super) type Work = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// What the events of a part have said.
#[derive(Default)]
struct Seen {
    moved: Lock<TransferProgress>,
    failures: Lock<Vec<String>>,
    warnings: Lock<Vec<String>>,
}

impl Part {
    /// Begins as the node of this number, with the head's grant and lease.
    pub(super) async fn begin(
        cluster: Cluster,
        notice: JobNotice,
        number: u32,
        grant: HeldGrant,
        head: Lease,
    ) -> Result<(Self, Work)> {
        let what = what(&notice)?;
        let of_node = cluster.clone();
        let looked = spawn_blocking(move || look(&of_node, &notice, grant)).await;
        let (job, receivers, timeout) = looked.context("look at the sources")??;
        let job = SharedJob { head, ..job };
        let key = cluster.key()?.of_job(job.id);
        let patience = cluster_push::broker_patience(timeout);
        let queue = Settings {
            patience,
            ..Settings::new(Role::Mover, job.id, key)
        };
        let queue = Arc::new(JetStream::open(&cluster.access(), queue).await?);
        let number = usize::try_from(number)?;
        let seen = Arc::new(Seen::default());
        let observer = Arc::clone(&seen) as Arc<dyn Observer>;
        let node = Node::new(job, Arc::clone(&queue), receivers, SESSIONS, timeout);
        let served = Arc::clone(&node.served);
        let work = async move {
            Ok(node
                .take_part(number, observer, Arc::new(shared_job::SessionWarnings))
                .await?)
        };
        Ok((
            Self {
                what,
                seen,
                queue,
                served,
                patience,
            },
            Box::pin(work),
        ))
    }

    /// Waits until others know of what this node has taken and does no more: its process is about to end.
    pub(super) async fn leave(&self) {
        self.queue.flush_dropped().await;
    }

    /// How the part has ended, which is over.
    pub(super) fn end(&self) -> NodeState {
        if self.served.has_lost_sessions() {
            NodeState::HasLostSessions
        } else {
            NodeState::HasEnded
        }
    }

    /// What the node has done.
    pub(super) fn tally(&self) -> Tally {
        self.served.tally()
    }

    /// What the node has stored at each receiver.
    pub(super) fn receivers(&self) -> BTreeMap<usize, FileTotal> {
        self.served.by_receiver()
    }

    /// The highest sequence that the broker has acknowledged to the node.
    pub(super) fn stored(&self) -> u64 {
        self.queue.stored()
    }

    /// How long the head may be silent before nobody leads the job: longer than it waits for a broker.
    pub(super) fn silence_max(&self) -> Duration {
        self.patience + SILENCE_BEYOND
    }

    /// What the node has found and moved.
    pub(super) fn moved(&self) -> TransferProgress {
        *self.seen.moved.lock()
    }

    /// What has failed since this was asked last.
    pub(super) fn failures(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.failures.lock())
    }

    /// What was warned of since this was asked last.
    pub(super) fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.warnings.lock())
    }
}

impl Observer for Seen {
    fn on(&self, event: &Event) {
        match event {
            event if self.moved.lock().hear(event) => {}
            Event::Failed { message } => {
                terminal::warn(message);
                note(message, (&self.failures, FAILURES_MAX));
            }
            Event::Warned { message } | Event::HeldUp { by: message } => {
                terminal::warn(message);
                note(message, (&self.warnings, WARNINGS_MAX));
            }
            _ => {}
        }
    }
}

/// Keeps a message for the head; where there are so many already, once that there are more.
fn note(message: &str, (kept, kept_max): (&Lock<Vec<String>>, usize)) {
    let mut kept = kept.lock();
    match kept.len() {
        so_many if so_many < kept_max => kept.push(message.to_owned()),
        so_many if so_many == kept_max => kept.push(MORE.to_owned()),
        _told => {}
    }
}

/// The job as this node sees it, its receivers, and the `--timeout`. May block on files.
fn look(
    cluster: &Cluster,
    notice: &JobNotice,
    grant: HeldGrant,
) -> Result<(SharedJob, Vec<Receiver>, Duration)> {
    let settings = PushSettings::of_node(words(notice)?, cluster.clone(), Arc::new(Prompt))?;
    let looked = settings.look_at_sources(&NoListener);
    let sources = looked.with_context(|| {
        let first = notice.sources.first().map_or(&[][..], |first| &first.path);
        not_as_there(Path::new(OsStr::from_bytes(first)))
    })?;
    compare(&sources, notice)?;
    let job = shared_job::job(&settings, &sources, notice.id())?;
    let mut job = SharedJob {
        grant,
        view: View::Follows,
        ..job
    };
    job.config.scan.mounts = Some(Arc::new(mount_points(notice)));
    job.config.instead = instead_of(notice.instead);
    Ok((
        job,
        cluster_push::receivers(&settings, cluster)?,
        settings.args.timeout.0,
    ))
}

/// What a job moves where, and who leads it.
fn what(notice: &JobNotice) -> Result<String> {
    let paths = words(notice)?.paths;
    let (target, sources) = paths.split_last().expect("two are demanded");
    let source = described(&sources[0], Path::new(""), sources.len());
    let head = notice.head().unwrap_or_default();
    Ok(format!(
        "{source} -> {}, led by {head}",
        Escaped::path(target)
    ))
}

/// What was typed at the head, its sources as paths that do not depend on a directory.
fn words(notice: &JobNotice) -> Result<PushArgs> {
    let typed = notice.words.iter().cloned().map(OsString::from_vec);
    let mut args = match Args::read(std::iter::once("zmove".into()).chain(typed).collect())?.command
    {
        Command::Push(args) => *args,
        Command::RunJob(args) => args.copy.push,
        _ => bail!("the job is no push"),
    };
    let directory = PathBuf::from(OsString::from_vec(notice.directory.clone()));
    let (_target, sources) = args.paths.split_last_mut().expect("two are demanded");
    sources
        .iter_mut()
        .for_each(|source| *source = directory.join(&*source).into_os_string());
    Ok(args)
}

/// How much longer than for a broker a head is waited for.
const SILENCE_BEYOND: Duration = Duration::from_secs(20);
/// How many sessions a node has at once; the head has one with each receiver that no node serves.
const SESSIONS: usize = 1;
const MORE: &str = "more than is told at once: the node's own output has it all";
/// The most failures that are told at a time: more than are found in a second.
const FAILURES_MAX: usize = 10_000;
/// The most warnings that are told at a time.
const WARNINGS_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_what_a_job_moves_and_who_leads_it() {
        let words =
            ["push", "--cluster", "lab", "run7", "/b", "t"].map(|word| word.as_bytes().to_vec());
        let nodes = BTreeMap::from([("a".to_owned(), 0), ("other".to_owned(), 1)]);
        let (directory, words) = (b"/data".to_vec(), words.to_vec());
        let notice = JobNotice {
            nodes,
            directory,
            words,
            ..JobNotice::default()
        };
        assert_eq!(
            what(&notice).unwrap(),
            "/data/run7 and 1 more -> t, led by a"
        );
    }

    #[test]
    fn of_very_many_failures_the_head_hears_so_many_and_that_there_are_more() {
        let seen = Seen::default();
        for number in 0..FAILURES_MAX + 5 {
            note(&number.to_string(), (&seen.failures, FAILURES_MAX));
        }
        let kept = std::mem::take(&mut *seen.failures.lock());
        assert_eq!(kept.len(), FAILURES_MAX + 1);
        assert_eq!(kept.last().map(String::as_str), Some(MORE));
        note("later", (&seen.failures, FAILURES_MAX));
        assert_eq!(*seen.failures.lock(), ["later"]);
    }
}
