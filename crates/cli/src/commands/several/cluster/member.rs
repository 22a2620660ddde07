//! A node that takes part in the jobs of a cluster.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Error, Result};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use zmove_cluster::jetstream::{
    GrantNotice, JobNotice, NOTICE_INTERVAL, NodeFailure, NodeNotice, NodePart, NodeState, Notice,
    NoticeBoard, NumberedNode,
};
use zmove_cluster::{CurrentGrant, HeadLease, WorkError};
use zmove_jobs::host_name;
use zmove_transport::Identity;
use zmove_types::{Hex, SharedJobId};
use zmove_wire::SignedJobGrant;

use super::part::{NodeWork, OpenQueue};
use crate::commands::transfer::interrupted;
use crate::display::terminal;
use crate::settings::cluster::{Cluster, innermost};
use crate::settings::{self, Role};
use crate::value::exit::{Exit, failure};

/// Takes part in the jobs of a cluster until the user stops the node.
pub(super) async fn take_part(cluster: &Cluster) -> Result<Exit> {
    let mut member = None;
    let serving = async {
        let notices = listen(cluster).await?;
        let member = member.insert(Member::new(cluster, notices)?);
        member.serve().await
    };
    tokio::select! {
        failed = serving => match failed? {},
        () = interrupted() => {}
    }
    if let Some(member) = &mut member {
        // If the broker is unreachable, leaving the jobs would wait for it. The timeout limits this wait.
        drop(timeout(LEAVES_WITHIN, member.leave_all_jobs()).await);
    }
    Err(failure(Exit::Interrupted, "interrupted"))
}

/// Connects to the broker, which may exist only while a push runs.
async fn listen(cluster: &Cluster) -> Result<NoticeBoard> {
    let mut warned = String::new();
    loop {
        let why = match cluster.notices().await {
            Ok(notices) => return Ok(notices),
            Err(WorkError::UnusableServer(why)) => why.to_string(),
            Err(error) => {
                let why = innermost(&error);
                format!("no broker at {} yet ({why})", cluster.broker)
            }
        };
        warn_once(&mut warned, format!("{why}: {WAITS}"));
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// A node that takes part in the jobs of a cluster.
struct Member<'a> {
    cluster: &'a Cluster,
    notices: NoticeBoard,
    /// Unique name of the node.
    node: String,
    /// Key of the node, by which receivers identify the node.
    key: [u8; 32],
    jobs: HashMap<SharedJobId, Job>,
    /// Jobs that have ended here, or in which this node could not take part.
    left: HashMap<SharedJobId, LeftJob>,
    working: JoinSet<(SharedJobId, Result<()>)>,
    /// The last warning about the broker.
    warned_of_broker: String,
    /// The last warning about another protocol version.
    warned_of_version: String,
}

/// A job that this node has offered to join, or in which it takes part.
#[derive(Default)]
struct Job {
    /// The lease that this node has from the node that leads the job (the head).
    head: HeadLease,
    /// The current grant from the head, which admits this node to the receivers.
    grant: CurrentGrant,
    /// Number of reports that this node has sent since it last received a notice from the head. A suspended process
    /// sends no reports, so the time of its suspension does not count as silence.
    unheard: u32,
    part: Arc<NodeWork>,
    /// The task that does this node's share of the work. `None` until the job has started.
    work: Option<AbortHandle>,
    /// The queue from which this node takes work items. Empty until the queue is open.
    queue: Arc<OnceLock<OpenQueue>>,
}

/// A job that this node has left.
struct LeftJob {
    /// Time at which the node may take part again.
    until: Instant,
    /// The work that this node did before it left. A later attempt adds to it.
    part: Arc<NodeWork>,
}

impl Job {
    /// Returns this node's report to the head.
    fn report(&self, id: SharedJobId, state: NodeState) -> NodePart {
        NodePart {
            job: id,
            state,
            moved: self.part.moved(),
            tally: self.part.served.tally(),
            granted_until: self.grant.ends(),
            ping: self.head.lease.send_ping(),
            receivers: self.part.served.by_receiver(),
        }
    }

    fn state(&self) -> NodeState {
        match self.queue.get() {
            Some(_) => NodeState::Works,
            None => NodeState::Offers,
        }
    }

    /// Returns whether the head has sent no notice for too long. In that case, no node leads the job.
    fn is_silent(&self) -> bool {
        let open = self.queue.get();
        let max = open.map_or(FORGOTTEN_AFTER, |open| open.silence_max);
        NOTICE_INTERVAL * self.unheard > max
    }
}

impl<'a> Member<'a> {
    fn new(cluster: &'a Cluster, notices: NoticeBoard) -> Result<Self> {
        let unique: [u8; 3] = zmove_engine::random().context("get random bytes")?;
        let identity = Identity::load_or_create(&settings::home(Role::Client)?)?;
        Ok(Self {
            cluster,
            notices,
            node: format!("{}-{}", host_name(), Hex(&unique)),
            key: identity.fingerprint().0,
            jobs: HashMap::new(),
            left: HashMap::new(),
            working: JoinSet::new(),
            warned_of_broker: String::new(),
            warned_of_version: String::new(),
        })
    }

    async fn serve(&mut self) -> Result<Infallible> {
        let Cluster { name, broker, .. } = self.cluster;
        let node = &self.node;
        terminal::say(format_args!("{node} waits for jobs of {name} at {broker}"));
        let mut ticks = tokio::time::interval(NOTICE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Notices that have already arrived are read before the head is considered silent.
                biased;
                heard = self.notices.hear() => match heard {
                    Ok(Notice::Job(job)) => self.take(job).await,
                    Ok(Notice::Grant(grant)) => self.hold(&grant),
                    Ok(_) => {}
                    Err(other) => {
                        let text = format!("{other}; its jobs are left to other nodes");
                        warn_once(&mut self.warned_of_version, text);
                    }
                },
                Some(ended) = self.working.join_next() => match ended {
                    Ok((job, ended)) => self.end(job, ended).await,
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => return Err(error).context("a part of a job panicked"),
                },
                _ = ticks.tick() => self.report_all().await,
            }
        }
    }

    /// Sends a report for each job, and leaves the jobs whose head is silent.
    async fn report_all(&mut self) {
        match self.notices.server_mismatch() {
            Some(why) => warn_once(&mut self.warned_of_broker, format!("{why}: {WAITS}")),
            None => self.warned_of_broker.clear(),
        }
        for job in self.jobs.values_mut() {
            job.unheard += 1;
        }
        let silent: Vec<_> = self.jobs.extract_if(|_, job| job.is_silent()).collect();
        for (id, job) in silent {
            let Some(work) = &job.work else { continue };
            work.abort();
            if job.queue.get().is_some() {
                // The sessions of the aborted task may stay active at their receivers for a short time.
                self.report_job(id, &job, NodeState::HasLostSessions).await;
            }
            let why = "the leading node has sent no report for too long";
            self.give_up(id, job, &failure(Exit::Broken, why)).await;
        }
        for (id, job) in &self.jobs {
            self.report_job(*id, job, job.state()).await;
        }
        if self.jobs.is_empty() {
            self.notices.tell(&self.report(None)).await;
        }
        let now = Instant::now();
        self.left.retain(|_, left| now < left.until + KEPT_FOR);
    }

    /// Sends this node's report about a job to the head. Before the report, sends the failures since the last report.
    /// Each failure is sent once, so the failures wait until the broker is connected.
    async fn report_job(&self, id: SharedJobId, job: &Job, state: NodeState) {
        if !self.notices.is_connected() {
            return;
        }
        for trouble in job.part.take_problems() {
            let trouble = (trouble.notice)(self.failure(id, trouble.message));
            self.notices.tell(&trouble).await;
        }
        let report = self.report(Some(job.report(id, state)));
        self.notices.tell(&report).await;
    }

    fn report(&self, part: Option<NodePart>) -> Notice {
        let queues = self.jobs.values().filter_map(|job| job.queue.get());
        let stored = queues.map(|open| open.queue.stored());
        Notice::Node(Box::new(NodeNotice {
            node: self.node.clone(),
            key: self.key,
            part,
            stored: stored.max().unwrap_or_default(),
        }))
    }

    fn failure(&self, id: SharedJobId, message: String) -> NodeFailure {
        NodeFailure {
            job: id,
            node: self.node.clone(),
            message,
        }
    }

    /// Stores a grant if it is for this node.
    fn hold(&mut self, GrantNotice { job, key, grant }: &GrantNotice) {
        if *key == self.key
            && let Some(job) = self.jobs.get(job)
            && let Ok(grant) = SignedJobGrant::decode(grant)
        {
            job.grant.renew(grant);
        }
    }

    /// Handles the head's notice of a job. Takes part in the job if the head has granted this node access, and
    /// otherwise offers this node to the head.
    async fn take(&mut self, notice: JobNotice) {
        let id = notice.job;
        let has_left = |left: &LeftJob| Instant::now() < left.until;
        if self.left.get(&id).is_some_and(has_left) {
            return;
        }
        let job = self.jobs.entry(id).or_insert_with(|| {
            let left = self.left.remove(&id);
            Job {
                part: left.map(|left| left.part).unwrap_or_default(),
                ..Job::default()
            }
        });
        job.unheard = 0;
        let numbered = notice.nodes.get(&self.node).copied();
        if let Some(NumberedNode { ping, .. }) = numbered {
            job.head.lease.note_echo(ping);
        }
        match numbered {
            _ if job.work.is_some() => {}
            Some(NumberedNode { number, .. }) if job.grant.ends().is_some() => {
                if notice.begun {
                    let work = Arc::clone(&job.part).work(
                        self.cluster.clone(),
                        notice,
                        number,
                        job.grant.clone(),
                        job.head.lease.clone(),
                        Arc::clone(&job.queue),
                    );
                    let work = self.working.spawn(async move { (id, work.await) });
                    job.work = Some(work);
                }
            }
            // The head replies to the offer with a node number and a grant.
            _ => {
                let offer = job.report(id, NodeState::Offers);
                self.notices.tell(&self.report(Some(offer))).await;
            }
        }
    }

    /// Handles the end of this node's work in a job. If the work failed, the node takes part again later.
    async fn end(&mut self, id: SharedJobId, ended: Result<()>) {
        let Some(job) = self.jobs.remove(&id) else {
            return;
        };
        let state = if job.part.served.has_lost_sessions() {
            NodeState::HasLostSessions
        } else {
            NodeState::HasEnded
        };
        self.report_job(id, &job, state).await;
        if let Err(error) = ended {
            return self.give_up(id, job, &error).await;
        }
        terminal::say(format!("job {id} has ended"));
        self.suspend_job(id, job, KEPT_FOR);
    }

    /// Leaves a job to the other nodes for a limited time, and reports the reason to the head.
    async fn give_up(&mut self, id: SharedJobId, job: Job, error: &Error) {
        let why = terminal::causes(error).to_string();
        terminal::warn(format_args!("job {id}: {why}"));
        self.suspend_job(id, job, TRY_AGAIN_AFTER);
        let absent = Notice::Absent(self.failure(id, why));
        self.notices.tell(&absent).await;
    }

    fn suspend_job(&mut self, id: SharedJobId, job: Job, time: Duration) {
        let until = Instant::now() + time;
        let part = job.part;
        self.left.insert(id, LeftJob { until, part });
    }

    /// Leaves all jobs to the other nodes before this node exits. If the sessions end in time, they do not count as
    /// lost, and no other node waits for them.
    async fn leave_all_jobs(&mut self) {
        for job in self.jobs.values() {
            job.part.leaves.send_replace(true);
        }
        let all_end = async { while self.working.join_next().await.is_some() {} };
        if timeout(SESSIONS_END_WITHIN, all_end).await.is_err() {
            self.working.shutdown().await;
        }
        for (id, job) in &self.jobs {
            let Some(open) = job.queue.get() else {
                continue;
            };
            let mut state = NodeState::Stopped;
            if job.part.served.has_lost_sessions() {
                state = NodeState::HasLostSessions;
                let stopped = self.failure(*id, STOPPED.to_owned());
                self.notices.tell(&Notice::Warned(stopped)).await;
            }
            self.report_job(*id, job, state).await;
            self.notices.flush().await;
            // This call reports the items that this node has taken and will not finish, so that other nodes can take
            // them.
            open.queue.flush_dropped().await;
        }
    }
}

fn warn_once(warned: &mut String, text: String) {
    if *warned != text {
        terminal::warn(&text);
        *warned = text;
    }
}

/// The status message while the broker is unreachable, for example because no push has started it yet.
const WAITS: &str = "waiting for the broker";
const STOPPED: &str = "the node was stopped: other nodes take over its work";
/// Interval between attempts to connect to an unreachable broker.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// Maximum time for a stopped node to leave its jobs to the others.
const LEAVES_WITHIN: Duration = Duration::from_secs(7);
/// Maximum time for the sessions of a stopped node to end. This time is included in `LEAVES_WITHIN`.
const SESSIONS_END_WITHIN: Duration = Duration::from_secs(5);
/// Time for which a node leaves a job to the others after it could not take part.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Maximum silence of a head if this node does no work in its job.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// Time for which a node remembers that a job has ended, and the work that it did in the job.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    /// This test needs a runtime because of the job's lease.
    #[tokio::test]
    async fn a_head_counts_as_silent_only_after_the_limit() {
        let unheard = FORGOTTEN_AFTER.as_secs() / NOTICE_INTERVAL.as_secs();
        let mut job = Job {
            unheard: u32::try_from(unheard).unwrap(),
            ..Job::default()
        };
        assert!(!job.is_silent());
        job.unheard += 1;
        assert!(job.is_silent());
    }
}
