//! The work of this node in a job that another node leads.

use std::ffi::OsString;
use std::iter::once;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use zmove_cluster::jetstream::{JetStream, JobNotice, NodeFailure, Notice};
use zmove_cluster::{CurrentGrant, Node, NodeRole, Receiver, SessionResults, SharedJob};
use zmove_disk::Lease;
use zmove_engine::NoListener;
use zmove_types::{Escaped, Event, Lock, Observer};
use zmove_wire::TransferProgress;

use super::sources::{compare, mismatch_message, mount_points, path_of, reader};
use crate::args::{Args, Command, PushArgs};
use crate::commands::submit::described;
use crate::commands::{cluster_push, shared_job};
use crate::display::prompt::Prompt;
use crate::display::terminal;
use crate::settings::PushSettings;
use crate::settings::cluster::Cluster;

/// The work of a node in a job, over all its attempts. This type is also the observer of that work.
#[derive(Default)]
pub(super) struct NodeWork {
    pub(super) served: Arc<SessionResults>,
    /// When set, the node finishes the items that it has taken, and takes no further items.
    pub(super) leaves: watch::Sender<bool>,
    moved: Lock<TransferProgress>,
    /// Failures and warnings since the last report.
    trouble: Lock<Vec<ReportedProblem>>,
}

/// The queue of a job in which the node takes part.
pub(super) struct OpenQueue {
    pub(super) queue: Arc<JetStream>,
    /// Maximum silence of the head. After this time, the node assumes that no node leads the job. It is longer than the
    /// time for which the head waits for a broker.
    pub(super) silence_max: Duration,
}

/// A failure or a warning.
pub(super) struct ReportedProblem {
    /// Creates the notice that reports this problem to the head.
    pub(super) notice: fn(NodeFailure) -> Notice,
    pub(super) message: String,
}

impl NodeWork {
    /// Does the work of the node with this number, under the grant and the lease from the head. Sets `opened` when the
    /// node starts to take work items.
    pub(super) async fn work(
        self: Arc<Self>,
        cluster: Cluster,
        notice: JobNotice,
        number: u32,
        grant: CurrentGrant,
        head: Lease,
        opened: Arc<OnceLock<OpenQueue>>,
    ) -> Result<()> {
        let id = notice.job;
        let what = describe(&notice)?;
        let of_node = cluster.clone();
        let looked = spawn_blocking(move || inspect_job(&of_node, &notice)).await;
        let (job, receivers, timeout) = looked.context("examine the sources")??;
        let patience = cluster_push::broker_patience(timeout);
        let queue = Arc::new(cluster.queue(NodeRole::Follower, id, patience).await?);
        opened.get_or_init(|| OpenQueue {
            queue: Arc::clone(&queue),
            silence_max: patience + SILENCE_BEYOND,
        });
        terminal::print_lines(&format!("job {id} begins: {what}"));
        let job = SharedJob { grant, head, ..job };
        let node = Node {
            served: Arc::clone(&self.served),
            leaves: self.leaves.clone(),
            ..Node::new(job, queue, receivers, SESSIONS, timeout)
        };
        let listener = Arc::new(shared_job::SessionWarnings);
        Ok(node
            .take_part(usize::try_from(number)?, self, listener)
            .await?)
    }

    /// Returns the files and bytes that the node has found and moved.
    pub(super) fn moved(&self) -> TransferProgress {
        *self.moved.lock()
    }

    /// Returns the failures and warnings since the last call.
    pub(super) fn take_problems(&self) -> Vec<ReportedProblem> {
        std::mem::take(&mut *self.trouble.lock())
    }

    /// Stores a message for the next report to the head. If too many messages are stored, adds one final note that
    /// further messages exist.
    fn note(&self, notice: fn(NodeFailure) -> Notice, message: &str) {
        let mut trouble = self.trouble.lock();
        let message = match trouble.len() {
            ..TROUBLE_MAX => message,
            TROUBLE_MAX => MORE,
            _ => return,
        };
        let message = message.to_owned();
        trouble.push(ReportedProblem { notice, message });
    }
}

impl Observer for NodeWork {
    fn on(&self, event: &Event) {
        match event {
            event if self.moved.lock().hear(event) => {}
            Event::Failed { message } => {
                terminal::warn(message);
                self.note(Notice::Failed, message);
            }
            Event::Warned { message } | Event::HeldUp { by: message } => {
                terminal::warn(message);
                self.note(Notice::Warned, message);
            }
            _ => {}
        }
    }
}

/// Returns the job as this node sees it, its receivers, and the `--timeout`. Reads files, so it may block.
fn inspect_job(
    cluster: &Cluster,
    notice: &JobNotice,
) -> Result<(SharedJob, Vec<Receiver>, Duration)> {
    let settings = PushSettings::of_node(head_args(notice)?, cluster.clone(), Arc::new(Prompt))?;
    let looked = settings.examine_sources(&NoListener);
    let sources = looked.with_context(|| mismatch_message(path_of(&notice.sources[0])))?;
    compare(&reader(), &sources, notice)?;
    let mut job = shared_job::job(&settings, &sources, notice.job)?;
    job.view = NodeRole::Follower;
    job.config.scan.mounts = Some(Arc::new(mount_points(notice)));
    job.config.instead = notice.instead;
    let receivers = cluster_push::receivers(&settings, cluster)?;
    Ok((job, receivers, settings.args.timeout.0))
}

/// Describes the sources and the target of a job, and names the node that leads it.
fn describe(notice: &JobNotice) -> Result<String> {
    let paths = head_args(notice)?.paths;
    let (target, sources) = paths.split_last().expect("two are demanded");
    let source = described(&sources[0], Path::new(""), sources.len());
    let target = Escaped::path(target);
    let head = notice.head().unwrap_or_default();
    Ok(format!("{source} -> {target}, led by {head}"))
}

/// Returns the push arguments that the user typed at the head. The sources are replaced by the source paths in the
/// head's notice.
fn head_args(notice: &JobNotice) -> Result<PushArgs> {
    let typed = notice.words.iter().cloned().map(OsString::from_vec);
    let typed = once("zmove".into()).chain(typed);
    let mut args = match Args::read(typed.collect())?.command {
        Command::Push(args) => *args,
        Command::RunJob(args) => args.copy.push,
        _ => bail!("the job is no push"),
    };
    if notice.sources.is_empty() {
        bail!("the job has no sources");
    }
    let target = args.paths.pop().expect("two are demanded");
    let sources = notice.sources.iter();
    let sources = sources.map(|source| OsString::from_vec(source.path.clone()));
    args.paths = sources.chain([target]).collect();
    Ok(args)
}

/// Additional time to wait for a silent head, beyond the time to wait for a broker.
const SILENCE_BEYOND: Duration = Duration::from_secs(20);
/// Number of simultaneous sessions of a node. The head also runs one session with each receiver that no node serves.
const SESSIONS: usize = 1;
const MORE: &str = "too many messages to report: see the output of the node";
/// Maximum number of failures and warnings in one report. A node causes fewer in one second.
const TROUBLE_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use zmove_cluster::jetstream::{NumberedNode, SourceNotice};

    use super::*;

    #[test]
    fn a_node_says_what_a_job_moves_and_who_leads_it() {
        let words =
            ["push", "--cluster", "lab", "run7", "/b", "t"].map(|word| word.as_bytes().to_vec());
        let node = |number| NumberedNode { number, ping: 0 };
        let nodes = BTreeMap::from([("a".to_owned(), node(0)), ("other".to_owned(), node(1))]);
        let source = |path: &str| SourceNotice {
            path: path.into(),
            names: Vec::new(),
            mark: None,
        };
        let notice = JobNotice {
            nodes,
            words: words.to_vec(),
            sources: ["/data/run7", "/b"].map(source).to_vec(),
            ..JobNotice::default()
        };
        assert_eq!(
            describe(&notice).unwrap(),
            "/data/run7 and 1 more -> t, led by a"
        );
    }

    #[test]
    fn of_very_many_failures_the_head_hears_so_many_and_that_there_are_more() {
        let part = NodeWork::default();
        let fail = |number: usize| part.note(Notice::Failed, &number.to_string());
        (0..TROUBLE_MAX + 5).for_each(fail);
        let kept = part.take_problems();
        assert_eq!(kept.len(), TROUBLE_MAX + 1);
        assert_eq!(kept.last().unwrap().message, MORE);
        fail(7);
        let later = part.take_problems();
        assert_eq!((later.len(), later[0].message.as_str()), (1, "7"));
    }
}
