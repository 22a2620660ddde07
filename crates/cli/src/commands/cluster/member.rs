//! A node that takes part in the jobs of a cluster.

use std::collections::HashMap;
use std::fmt::Display;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use zmove_cluster::jetstream::{
    GrantNotice, JobNotice, NodeFailure, NodeNotice, NodePart, NodeState, Notice, Notices,
    TELL_EVERY,
};
use zmove_cluster::{HeadLease, HeldGrant, WorkError};
use zmove_transport::Identity;
use zmove_types::{Hex, SharedJobId};
use zmove_wire::{GreetingError, SignedJobGrant};

use super::part::{Part, Work};
use crate::commands::transfer::{interrupted, own_name};
use crate::display::terminal;
use crate::settings;
use crate::settings::cluster::{Cluster, innermost};
use crate::value::exit::{Exit, failure};

/// A node that takes part in the jobs of a cluster.
pub(super) struct Member<'a> {
    cluster: &'a Cluster,
    /// The name of the node, which no other has.
    node: String,
    /// The node's key, by which receivers know it.
    key: [u8; 32],
    jobs: HashMap<SharedJobId, Job>,
    /// Jobs that have ended here or in which this node could not take part, and when it may try again.
    left: HashMap<SharedJobId, Instant>,
    beginning: JoinSet<(SharedJobId, Result<(Part, Work)>)>,
    running: JoinSet<(SharedJobId, Result<()>)>,
    /// The last warnings of the broker and of another version of the protocol.
    warned: [String; 2],
}

/// A job for which this node offers itself or in which it takes part.
struct Job {
    /// The lease from the head of the job.
    head: HeadLease,
    /// The head's grant for this node.
    grant: HeldGrant,
    /// When the head was heard. While this process was stopped, it could not hear the head.
    heard: Instant,
    stage: Stage,
}

enum Stage {
    /// The node waits for the head's grant and the beginning of the job.
    Offers,
    /// The node compares its sources with those of the head.
    Looks,
    /// The node does a part of the job.
    Works { part: Part, task: AbortHandle },
}

impl Job {
    fn new() -> Self {
        Self {
            head: HeadLease::new(),
            grant: HeldGrant::default(),
            heard: Instant::now(),
            stage: Stage::Offers,
        }
    }

    /// The part of this node, for the head.
    fn notice(&self, id: SharedJobId, state: NodeState) -> NodePart {
        let part = self.part();
        let tally = part.map(Part::tally).unwrap_or_default();
        NodePart {
            job: id.0,
            state,
            moved: part.map(Part::moved).unwrap_or_default(),
            items: tally.items,
            tally,
            granted_until: self.grant.ends(),
            ping: self.head.ping(),
            receivers: part.map(Part::receivers).unwrap_or_default(),
        }
    }

    fn part(&self) -> Option<&Part> {
        match &self.stage {
            Stage::Works { part, .. } => Some(part),
            Stage::Offers | Stage::Looks => None,
        }
    }

    /// Whether the head has been silent for so long that nobody leads the job.
    fn is_silent(&self) -> bool {
        let max = match &self.stage {
            Stage::Offers => FORGOTTEN_AFTER,
            Stage::Looks => Duration::MAX,
            Stage::Works { part, .. } => part.silence_max(),
        };
        self.heard.elapsed() > max
    }
}

impl<'a> Member<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Result<Self> {
        let unique: [u8; 3] = zmove_engine::random().context("get random bytes")?;
        let identity = Identity::load_or_create(&settings::home(settings::Role::Client)?)?;
        Ok(Self {
            cluster,
            node: format!("{}-{}", own_name(), Hex(&unique)),
            key: identity.fingerprint().0,
            jobs: HashMap::new(),
            left: HashMap::new(),
            beginning: JoinSet::new(),
            running: JoinSet::new(),
            warned: Default::default(),
        })
    }

    /// Takes part until the user stops the node.
    pub(super) async fn run(&mut self) -> Result<Exit> {
        let mut stop = std::pin::pin!(interrupted());
        let stopped = || Err(failure(Exit::Interrupted, "interrupted"));
        let notices = tokio::select! {
            notices = self.listen() => notices?,
            () = &mut stop => return stopped(),
        };
        tokio::select! {
            ended = self.serve(&notices) => ended,
            () = stop => {
                // Without a broker this waits for it.
                let _in_vain = timeout(LEAVES_WITHIN, self.leave(&notices)).await;
                stopped()
            }
        }
    }

    /// Connects to the broker, which may exist only while a push runs.
    async fn listen(&mut self) -> Result<Notices> {
        let (access, key) = (self.cluster.access(), self.cluster.key()?);
        loop {
            match Notices::open(&access, &key).await {
                Ok(notices) => return Ok(notices),
                Err(WorkError::Hindered(why)) => self.warn_of_broker(&why),
                Err(error) => {
                    let (broker, why) = (&self.cluster.broker, innermost(&error));
                    self.warn_of_broker(&format!("no broker at {broker} yet ({why})"));
                }
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    async fn serve(&mut self, notices: &Notices) -> Result<Exit> {
        let Cluster { name, broker, .. } = self.cluster;
        terminal::say(format_args!(
            "{} waits for jobs of {name} at {broker}",
            self.node
        ));
        let mut ticks = tokio::time::interval(TELL_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticked = Instant::now();
        loop {
            tokio::select! {
                // Notices that wait are heard before a head counts as silent.
                biased;
                heard = notices.hear() => match heard? {
                    Ok(Notice::Job(job)) => self.take(job, notices).await?,
                    Ok(Notice::Grant(grant)) => self.hold(&grant),
                    Ok(_) => {}
                    Err(other) => self.warn_of_version(&other),
                },
                Some(ended) = self.running.join_next() => match ended {
                    Ok((job, ended)) => self.end(job, ended, notices).await?,
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => return Err(error).context("a part of a job panicked"),
                },
                Some(begun) = self.beginning.join_next() => {
                    let (job, begun) = begun.context("the beginning of a part of a job panicked")?;
                    self.begin(job, begun, notices).await?;
                }
                _ = ticks.tick() => {
                    self.credit_pause(ticked.elapsed().saturating_sub(TELL_EVERY));
                    ticked = Instant::now();
                    match notices.hindrance() {
                        Some(why) => self.warn_of_broker(&why),
                        None => self.warned[0].clear(),
                    }
                    self.abandon(notices).await?;
                    self.tell(notices).await?;
                    self.left.retain(|_, until| Instant::now() < *until);
                }
            }
        }
    }

    /// Warns that the broker cannot be used, also one that a push will start.
    fn warn_of_broker(&mut self, why: &dyn Display) {
        warn_once(
            &mut self.warned[0],
            format!("{why}: waiting for the broker"),
        );
    }

    /// Warns that a node of the cluster cannot work with this one.
    fn warn_of_version(&mut self, other: &GreetingError) {
        let text = format!("{other}; its jobs are left to others");
        warn_once(&mut self.warned[1], text);
    }

    /// Leaves all jobs to others, to end.
    async fn leave(&mut self, notices: &Notices) -> Result<()> {
        self.running.shutdown().await;
        for (id, job) in self.jobs.drain().collect::<Vec<_>>() {
            let Some(part) = job.part() else { continue };
            notices
                .tell(&self.notice(Some(job.notice(id, NodeState::Stopped))))
                .await?;
            notices.flush().await;
            part.leave().await;
        }
        Ok(())
    }

    /// Keeps a grant that is for this node.
    fn hold(&mut self, GrantNotice { job, key, grant }: &GrantNotice) {
        if *key == self.key
            && let Some(job) = self.jobs.get(&SharedJobId(*job))
            && let Ok(grant) = SignedJobGrant::decode(grant)
        {
            job.grant.renew(grant);
        }
    }

    /// Takes part in a job, if this node may.
    async fn take(&mut self, notice: JobNotice, notices: &Notices) -> Result<()> {
        let id = notice.id();
        if self.left.contains_key(&id) {
            return Ok(());
        }
        let job = self.jobs.entry(id).or_insert_with(Job::new);
        job.heard = Instant::now();
        if let Some(ping) = notice.answer_to(&self.node) {
            job.head.answered(ping);
        }
        if !matches!(job.stage, Stage::Offers) {
            return Ok(());
        }
        match notice.nodes.get(&self.node) {
            Some(number) if job.grant.ends().is_some() => {
                if notice.begun {
                    job.stage = Stage::Looks;
                    let number = *number;
                    let grant = job.grant.clone();
                    let head = job.head.lease();
                    let cluster = self.cluster.clone();
                    self.beginning.spawn(async move {
                        (id, Part::begin(cluster, notice, number, grant, head).await)
                    });
                }
                Ok(())
            }
            // The head answers with a number and a grant.
            _ => {
                let offer = job.notice(id, NodeState::Offers);
                Ok(notices.tell(&self.notice(Some(offer))).await?)
            }
        }
    }

    /// Does a part whose sources are those of the head, or leaves the job to others.
    async fn begin(
        &mut self,
        id: SharedJobId,
        begun: Result<(Part, Work)>,
        notices: &Notices,
    ) -> Result<()> {
        match (begun, self.jobs.get_mut(&id)) {
            (Ok((part, work)), Some(job)) => {
                terminal::print_lines(&format!("job {id} begins: {}", part.what));
                let task = self.running.spawn(async move { (id, work.await) });
                job.heard = Instant::now();
                job.stage = Stage::Works { part, task };
                Ok(())
            }
            (Err(error), _) => self.give_up(id, &error, notices).await,
            (Ok(_), None) => Ok(()),
        }
    }

    /// Does not count the time for which this process was stopped as silence of a head.
    fn credit_pause(&mut self, stopped: Duration) {
        let now = Instant::now();
        for job in self.jobs.values_mut() {
            job.heard = credited(job.heard, stopped, now);
        }
    }

    /// Gives up jobs whose heads have been silent for too long. The queue does not say so if the broker was away when
    /// the head ended.
    async fn abandon(&mut self, notices: &Notices) -> Result<()> {
        let silent = self.jobs.iter().filter(|(_, job)| job.is_silent());
        for id in silent.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(job) = self.jobs.remove(&id) else {
                continue;
            };
            let Stage::Works { task, .. } = &job.stage else {
                continue;
            };
            task.abort();
            // Its sessions may continue for a moment.
            let part = job.notice(id, NodeState::HasLostSessions);
            notices.tell(&self.notice(Some(part))).await?;
            let why = failure(
                Exit::Broken,
                "the node that leads it has not been heard of for too long",
            );
            self.give_up(id, &why, notices).await?;
        }
        Ok(())
    }

    async fn tell(&self, notices: &Notices) -> Result<()> {
        let mut is_at_work = false;
        for (id, job) in &self.jobs {
            if let Some(part) = job.part() {
                is_at_work = true;
                self.tell_trouble(*id, part, notices).await?;
                let part = job.notice(*id, NodeState::Works);
                notices.tell(&self.notice(Some(part))).await?;
            }
        }
        if !is_at_work {
            notices.tell(&self.notice(None)).await?;
        }
        Ok(())
    }

    /// Reports to the head of a job what has failed here since the last report, and the warnings.
    async fn tell_trouble(&self, id: SharedJobId, part: &Part, notices: &Notices) -> Result<()> {
        for message in part.warnings() {
            let warned = Notice::Warned(self.failure(id, message));
            notices.tell(&warned).await?;
        }
        for message in part.failures() {
            let failed = Notice::Failed(self.failure(id, message));
            notices.tell(&failed).await?;
        }
        Ok(())
    }

    /// Leaves a job to others for a while, and reports the reason to its head.
    async fn give_up(
        &mut self,
        id: SharedJobId,
        error: &anyhow::Error,
        notices: &Notices,
    ) -> Result<()> {
        let why = terminal::causes(error).to_string();
        terminal::warn(format_args!("job {id}: {why}"));
        self.jobs.remove(&id);
        self.left.insert(id, Instant::now() + TRY_AGAIN_AFTER);
        Ok(notices.tell(&Notice::Absent(self.failure(id, why))).await?)
    }

    fn failure(&self, id: SharedJobId, message: String) -> NodeFailure {
        NodeFailure {
            job: id.0,
            node: self.node.clone(),
            message,
        }
    }

    /// Ends the part in a job. A part that has failed begins again after a while.
    async fn end(&mut self, id: SharedJobId, ended: Result<()>, notices: &Notices) -> Result<()> {
        let Some(job) = self.jobs.remove(&id) else {
            return Ok(());
        };
        let Some(part) = job.part() else {
            return Ok(());
        };
        self.tell_trouble(id, part, notices).await?;
        let state = part.end();
        if ended.is_ok() || state == NodeState::HasLostSessions {
            notices
                .tell(&self.notice(Some(job.notice(id, state))))
                .await?;
        }
        if let Err(error) = ended {
            return self.give_up(id, &error, notices).await;
        }
        terminal::say(format!("job {id} has ended"));
        self.left.insert(id, Instant::now() + KEPT_FOR);
        Ok(())
    }

    fn notice(&self, part: Option<NodePart>) -> Notice {
        let stored = self
            .jobs
            .values()
            .filter_map(|job| Some(job.part()?.stored()));
        Notice::Node(NodeNotice {
            node: self.node.clone(),
            key: self.key,
            part,
            stored: stored.max().unwrap_or_default(),
        })
    }
}

fn warn_once(warned: &mut String, text: String) {
    if *warned != text {
        terminal::warn(&text);
        *warned = text;
    }
}

/// When a head counts as heard, if this process was stopped since.
fn credited(heard: Instant, stopped: Duration, now: Instant) -> Instant {
    now.min(heard + stopped)
}

/// The interval at which a missing broker is asked again.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// How long a node that is stopped may take to leave its jobs to others.
const LEAVES_WITHIN: Duration = Duration::from_secs(5);
/// How long a node leaves a job to others in which it could not take part.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// How long a node offers itself for a job whose head is silent.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
/// How long a node remembers that a job has ended.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_for_which_a_node_was_stopped_is_no_silence_of_the_head() {
        let heard = Instant::now();
        let after = |seconds| heard + Duration::from_secs(seconds);
        let counts = |stopped| credited(heard, Duration::from_secs(stopped), after(100));
        assert_eq!([0, 70, 200].map(counts), [0, 70, 100].map(after));
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_for_which_a_node_offers_itself_is_forgotten_when_its_head_is_silent() {
        let job = Job::new();
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert!(!job.is_silent());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(job.is_silent());
    }
}
