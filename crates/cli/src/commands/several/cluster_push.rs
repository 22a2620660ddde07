//! `zmove push --cluster NAME`: this node leads a job in which all nodes of a cluster take part, including this one.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::watch;
use zmove_cluster::jetstream::{
    BrokerState, GrantNotice, JetStream, JobNotice, LocalBroker, LocalServer, NodeNotice, Notice,
    NoticeBoard, NumberedNode, SourceNotice,
};
use zmove_cluster::{JobError, JobPhase, NodeRole, Receiver, SharedJob};
use zmove_engine::Sources;
use zmove_jobs::{host_name, this_program};
use zmove_transport::Identity;
use zmove_types::{Event, Observer, unix_now};

use crate::commands::cluster::sources::{self as node_sources, Trees};
use crate::commands::participants::Participants;
use crate::commands::shared_job::{JobLeader, JobResult, as_failure, receiver};
use crate::settings::cluster::Cluster;
use crate::settings::{self, PushSettings};
use crate::value::exit::{Exit, failure, usage_error};

/// A push from the nodes of a cluster.
pub(crate) struct ClusterPush<'a> {
    cluster: &'a Cluster,
    /// The first notice of the job. Each started job replaces the ID in this notice.
    notice: JobNotice,
    /// The trees of the job at the time when the mounts in the notice were listed.
    trees: Trees,
}

impl<'a> ClusterPush<'a> {
    /// Describes the sources of a job. The other nodes compare this description with their own sources.
    pub(crate) fn new(
        cluster: &'a Cluster,
        job: &mut SharedJob,
        sources: &Sources,
    ) -> Result<Self> {
        let directory = std::env::current_dir().context("find the working directory")?;
        *job = job.clone().with_marks();
        // With absolute paths, all nodes report the same failure with the same message. The failure is then reported
        // and counted once.
        for source in &mut job.sources {
            source.source = directory.join(&source.source);
        }
        let trees = Trees::new(job);
        let typed = std::env::args_os().skip(1);
        let notice = JobNotice {
            sources: node_sources::notices(&directory, sources),
            mounts: trees.mounts(),
            words: typed.map(OsStringExt::into_vec).collect(),
            nodes: BTreeMap::from([(host_name(), NumberedNode::default())]),
            reader: node_sources::reader(),
            instead: job.config.instead,
            ..JobNotice::default()
        };
        if !notice.fits() {
            return Err(usage_error(TOO_MANY_SOURCES));
        }
        Ok(Self {
            cluster,
            notice,
            trees,
        })
    }

    /// Leads the job until it ends. If the cluster is configured with a local broker, starts that broker for the job.
    pub(crate) async fn lead(&self, mut leading: JobLeader) -> Result<JobResult> {
        let broker = self.cluster.local_broker()?;
        let id = leading.job.id;
        let patience = broker_patience(leading.patience);
        let open = async {
            let server = match &broker {
                Some(broker) => Some(start(broker).await?),
                None => None,
            };
            let no_broker = |error| self.cluster.no_broker(error);
            let notices = self.cluster.notices().await.map_err(no_broker)?;
            let queue = self.cluster.queue(NodeRole::Head, id, patience).await;
            Ok::<_, anyhow::Error>((server, notices, queue.map_err(no_broker)?))
        };
        let (_server, notices, queue) = tokio::select! {
            opened = open => opened?,
            () = &mut leading.stop => return Err(as_failure(JobError::Interrupted)),
        };
        let queue = Arc::new(queue);
        let receivers = leading.receivers.iter();
        let keys = receivers.filter_map(|receiver| Some(receiver.settings.key?.0));
        let liaison = Liaison {
            notices,
            notice: JobNotice {
                job: id,
                ..self.notice.clone()
            },
            identity: Identity::load_or_create(&settings::home(settings::Role::Client)?)?,
            job: leading.job.clone(),
            receivers: keys.collect(),
            queue: Arc::clone(&queue),
            participants: Arc::clone(&leading.participants),
        };
        let mounts = self.trees.clone().watch_mounts();
        let outages = warn_of_outages(
            &self.cluster.broker,
            queue.state(),
            Arc::clone(&leading.participants.observer),
        );
        let exchange = liaison.exchange(leading.phase.subscribe(), mounts);
        let beside = async { tokio::try_join!(exchange, outages).map(|(never, _)| never) };
        Box::pin(leading.lead(queue, OTHERS_COME_WITHIN, beside)).await
    }
}

/// Returns the receivers of a cluster, with the keys from the cluster's file.
pub(crate) fn receivers(settings: &PushSettings, cluster: &Cluster) -> Result<Vec<Receiver>> {
    let receivers = settings.receivers().zip(&cluster.receivers);
    let receivers = receivers.map(|(remote, known)| {
        let key = known.key.parse();
        let key = key.with_context(|| format!("the key of {remote}"))?;
        receiver(settings, remote, Some(key))
    });
    receivers.collect()
}

/// Returns the time for which to retry the connection to a broker, based on the push's `--timeout`. A broker that
/// restarts needs some time.
pub(crate) fn broker_patience(timeout: Duration) -> Duration {
    timeout.max(BROKER_PATIENCE_MIN)
}

/// The exchange of notices between the head of a job and the other nodes. The head grants these nodes access to the
/// receivers.
struct Liaison {
    notices: NoticeBoard,
    /// The job as the head sees it.
    notice: JobNotice,
    /// The identity by which the receivers know the head. Its key signs the grants of the nodes.
    identity: Identity,
    job: SharedJob,
    /// Keys of the receivers.
    receivers: Vec<[u8; 32]>,
    queue: Arc<JetStream>,
    participants: Arc<Participants>,
}

impl Liaison {
    /// Sends the job to all nodes every second and after each change. Receives the notices of the nodes.
    async fn exchange(
        mut self,
        mut phase: watch::Receiver<JobPhase>,
        mut mounts: watch::Receiver<Vec<SourceNotice>>,
    ) -> Result<Infallible> {
        let mut shown = self.participants.shown.subscribe();
        loop {
            let job = Notice::Job(self.notice.clone());
            self.notices.tell(&job).await;
            while !tokio::select! {
                changed = shown.changed() => {
                    changed?;
                    self.notice.shown = serde_json::to_string(&*shown.borrow_and_update())?;
                    true
                }
                changed = mounts.changed() => {
                    changed?;
                    self.notice.mounts = mounts.borrow_and_update().clone();
                    true
                }
                changed = phase.changed(), if !self.notice.begun => {
                    changed?;
                    self.notice.begun = true;
                    true
                }
                heard = self.notices.hear() => match heard {
                    Ok(notice) => self.take(notice).await?,
                    Err(_of_another_version) => false,
                },
            } {}
        }
    }

    /// Handles a notice. Returns whether to send the job to the nodes immediately.
    async fn take(&mut self, notice: Notice) -> Result<bool> {
        let own = self.notice.job;
        match notice {
            Notice::Failed(failure) if failure.job == own => self.participants.fail(failure),
            Notice::Warned(warning) if warning.job == own => self.participants.warn(warning),
            Notice::Absent(failure) if failure.job == own => {
                self.participants.report_absent(failure)
            }
            Notice::Node(node) => return self.take_report(&node).await,
            _ => {}
        }
        Ok(false)
    }

    /// Handles the report of a node. If the node needs a grant, sends the grant. Returns whether the node is new to the
    /// job.
    async fn take_report(&mut self, report: &NodeNotice) -> Result<bool> {
        self.queue.note_stored(report.stored);
        let Some(part) = &report.part else {
            return Ok(false);
        };
        if part.job != self.notice.job {
            return Ok(false);
        }
        if let Some(grant) = self.grant_for(report.key, part.granted_until)? {
            self.notices.tell(&Notice::Grant(grant)).await;
        }
        let nodes = self.notice.nodes.len();
        if self.notice.answer(&report.node, part.ping) {
            self.participants.handle_report(&report.node, part);
        } else {
            self.participants.warn_of_too_many();
        }
        Ok(self.notice.nodes.len() > nodes)
    }

    /// Returns a new grant for the node with this key, if the node has no grant or its grant ends soon. Nothing is
    /// stored here. If the broker loses the notice with the grant, the node's next report causes another grant.
    fn grant_for(&self, key: [u8; 32], ends: Option<u64>) -> Result<Option<GrantNotice>> {
        let now = unix_now();
        if ends.is_some_and(|end| end > (now + RENEW_BEFORE).as_secs()) {
            return Ok(None);
        }
        let valid = now.as_secs()..(now + GRANTED_FOR).as_secs();
        let grant = self.job.grant_for(key, self.receivers.clone(), valid);
        let signed = self.identity.sign_job_grant(grant);
        Ok(Some(GrantNotice {
            job: self.job.id,
            key,
            grant: signed.context("sign a grant for a node")?.encode(),
        }))
    }
}

/// Starts the broker of this push, unless another push on this host has already started it.
async fn start(broker: &LocalBroker) -> Result<LocalServer> {
    let command = || {
        let mut command = this_program();
        command.args(["cluster", "broker", &std::process::id().to_string()]);
        command
    };
    let started = broker.start(command).await;
    started.map_err(|error| {
        let error = format!("start the broker of the push: {error}");
        failure(Exit::Connection, error)
    })
}

/// Warns when the broker is lost, when the connection to it is restored, and when no items are taken from it.
async fn warn_of_outages(
    broker: &str,
    mut state: watch::Receiver<BrokerState>,
    observer: Arc<dyn Observer>,
) -> Result<Infallible> {
    let warn = |message| observer.on(&Event::Warned { message });
    loop {
        let news = *state.wait_for(|state| *state != BrokerState::Ready).await?;
        if news == BrokerState::Silent {
            warn(format!(
                "the broker {broker} has items but has not delivered any for a while: the job is waiting"
            ));
            state
                .wait_for(|state| *state != BrokerState::Silent)
                .await?;
            continue;
        }
        let lost = Instant::now();
        warn(format!(
            "the broker {broker} is unreachable: the job is waiting for it"
        ));
        state.wait_for(|state| *state == BrokerState::Ready).await?;
        let seconds = lost.elapsed().as_secs_f64();
        warn(format!(
            "the broker {broker} is reachable again after {seconds:.1} s"
        ));
    }
}

const TOO_MANY_SOURCES: &str =
    "too many sources to send to the other nodes: push their parent directory";
/// Maximum time for other nodes to join. Each of these nodes has a session with one receiver. After this time, the head
/// also serves the receivers that no other node serves. A node that has lost the broker retries at intervals of up to 4
/// s.
const OTHERS_COME_WITHIN: Duration = Duration::from_secs(2);
/// Minimum time to wait for a broker.
const BROKER_PATIENCE_MIN: Duration = Duration::from_secs(10);
/// Lifetime of a grant. A receiver refuses grants with a longer lifetime.
const GRANTED_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// Remaining lifetime at which a grant is renewed. Receivers whose clocks are ahead of the head's clock by up to this
/// time still accept the grant.
const RENEW_BEFORE: Duration = Duration::from_secs(12 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::tests::Warnings;

    #[tokio::test]
    async fn a_broker_from_which_nothing_is_taken_is_reported_once_and_again_later() {
        let warnings = Arc::new(Warnings::default());
        let observer = Arc::clone(&warnings) as Arc<dyn Observer>;
        let states = watch::Sender::new(BrokerState::Ready);
        let warning = tokio::spawn({
            let states = states.subscribe();
            async move { warn_of_outages("b", states, observer).await }
        });
        for count in 1..3 {
            for _ in 0..2 {
                states.send_replace(BrokerState::Silent);
                tokio::task::yield_now().await;
            }
            let told = warnings.0.lock().clone();
            assert_eq!(told.len(), count, "{told:?}");
            assert!(told[0].contains("the broker b has items but has not delivered any"));
            states.send_replace(BrokerState::Ready);
            tokio::task::yield_now().await;
        }
        drop(states);
        assert!(warning.await.unwrap().is_err());
    }
}
