//! `zmove cluster`: makes a cluster, joins one, shows who is there.

mod broker;
mod part;
pub(crate) mod sources;
mod status;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::fs::{FileType, Mode};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use zmove_cluster::jetstream::{
    GrantNotice, JobNotice, NodeFailure, NodeNotice, NodePart, NodeState, Notice, Notices, Server,
    TELL_EVERY, check_address,
};
use zmove_cluster::{HeadLease, HeldGrant, Tally};
use zmove_engine::Remote;
use zmove_transport::Identity;
use zmove_types::{Escaped, Hex, SharedJobId};
use zmove_wire::{GreetingError, SignedJobGrant, TransferProgress};

use self::broker::BrokerLook;
use self::part::{Part, Work};
use crate::args::{ClusterCommand, ClusterInitArgs};
use crate::commands::transfer::{interrupted, own_name};
use crate::commands::trust::key_of;
use crate::display::terminal;
use crate::settings;
use crate::settings::cluster::{Cluster, ClusterReceiver};
use crate::value::exit::{Exit, failure, usage_error};

/// Runs `zmove cluster`.
pub(crate) fn run(command: ClusterCommand) -> Result<Exit> {
    match command {
        ClusterCommand::Init(args) => init(args),
        ClusterCommand::Invite { name, output } => invite(&name, output.as_deref()),
        ClusterCommand::Join(args) => join(&args.invitation),
        ClusterCommand::Status { name, json } => status::status(&Cluster::load(&name)?, json),
    }
}

fn init(args: ClusterInitArgs) -> Result<Exit> {
    let ClusterInitArgs {
        name,
        receivers,
        listen,
        broker,
        accept_new,
    } = args;
    check_broker(listen, broker.as_deref())?;
    settings::refuse_twice(receivers.iter())?;
    let keys = receivers
        .iter()
        .map(|remote| key_of(remote, accept_new))
        .collect::<Result<Vec<_>>>()?;
    settings::refuse_same_key(receivers.iter().zip(keys.iter().copied()))?;
    if listen.is_some() && !Server::is_installed() {
        terminal::warn(
            "'nats-server' is not here: install it (Debian's package of that name) before the first push",
        );
    }
    let known = receivers.into_iter().zip(keys);
    let known = known.map(|(Remote { host, port, .. }, key)| ClusterReceiver {
        host,
        port,
        key: key.to_string(),
    });
    let known = known.collect();
    let cluster = Cluster::make(&name, known, broker, listen)?;
    terminal::say(format!("cluster {name}, broker {}", cluster.broker));
    let key = Identity::load_or_create(&settings::home(settings::Role::Client)?)?.fingerprint();
    terminal::say("at each receiver, for the key of this node alone:");
    terminal::say(format!(
        "  zmove allow {key} --name NAME --root DIR --write --lead"
    ));
    terminal::say("for each other node, here and there:");
    terminal::say(format!("  zmove cluster invite {name} -o FILE"));
    terminal::say("  zmove cluster join FILE");
    terminal::say("to send:");
    terminal::say(format!("  zmove push --cluster {name} SRC... PATH"));
    Ok(Exit::Done)
}

/// Refuses an address at which no broker can be, before anybody is told of it.
fn check_broker(listen: Option<SocketAddr>, broker: Option<&str>) -> Result<()> {
    let why = match (listen, broker) {
        (None, None) => "say where the broker is: --listen ADDRESS:PORT, of this host, has a push start one there; --broker \
                         URL names one that runs already"
            .to_owned(),
        (Some(listen), _) if listen.ip().is_unspecified() || listen.port() == 0 => {
            format!("--listen {listen}: the other nodes are told this address: name one of this host, and a port")
        }
        (Some(listen), _) => match TcpListener::bind(listen) {
            // a broker may listen there already
            Err(error) if error.kind() != ErrorKind::AddrInUse => format!("--listen {listen}: {error}"),
            _ => return Ok(()),
        },
        (None, Some(url)) if !check_address(url) => {
            format!("--broker {url}: write nats://HOST:PORT or tls://HOST:PORT")
        }
        (None, Some(_)) => return Ok(()),
    };
    Err(usage_error(why))
}

fn invite(name: &str, output: Option<&Path>) -> Result<Exit> {
    let mut cluster = Cluster::load(name)?;
    let Some(output) = output else {
        if is_for_others(std::io::stdout()) {
            terminal::warn("others can read the file that this is written to: use -o FILE");
        }
        cluster.invite()?.lines().for_each(terminal::say);
        return Ok(Exit::Done);
    };
    if output.symlink_metadata().is_ok() {
        return Err(usage_error(format!(
            "there is a file '{}' already",
            output.display()
        )));
    }
    settings::cluster::write_new(output, &cluster.invite()?)?;
    Ok(Exit::Done)
}

/// Whether this is a file that others than its owner may read; a pipe is nobody else's.
fn is_for_others(open: impl AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(open) else {
        return false;
    };
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_file && Mode::from_raw_mode(stat.st_mode).intersects(Mode::RGRP | Mode::ROTH)
}

/// Reads an invitation: one in a file that others than its owner may read is as good as anybody's.
fn read(invitation: &Path) -> Result<String> {
    let mut text = String::new();
    if invitation == Path::new("-") {
        std::io::stdin()
            .read_to_string(&mut text)
            .context("read standard input")?;
        return Ok(text);
    }
    let shown = Escaped::path(invitation);
    let opened = File::open(invitation);
    if opened
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::NotFound)
    {
        return Err(usage_error(format!("there is no file '{shown}'")));
    }
    let mut file = opened.with_context(|| format!("read '{shown}'"))?;
    if is_for_others(&file) {
        return Err(usage_error(format!(
            "others can read '{shown}', and take part in its node's place: 'chmod 600 {shown}' if nobody has"
        )));
    }
    file.read_to_string(&mut text)
        .with_context(|| format!("read '{shown}'"))?;
    Ok(text)
}

fn join(invitation: &Path) -> Result<Exit> {
    let name = invitation
        .to_str()
        .filter(|name| !name.contains(['/', '.']) && *name != "-");
    let cluster = match name {
        Some(name) if !invitation.exists() => Cluster::load(name)?,
        _ => Cluster::join(&read(invitation)?)
            .with_context(|| format!("read '{}'", invitation.display()))?,
    };
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    settings::block_on(cores, async {
        let (mut member, mut stop) = (Member::new(&cluster)?, std::pin::pin!(interrupted()));
        let notices = tokio::select! {
            notices = member.listen() => notices?,
            () = &mut stop => return Err(failure(Exit::Interrupted, "interrupted")),
        };
        tokio::select! {
            ended = member.serve(&notices) => ended,
            () = stop => {
                // without a broker it would wait for one
                let _in_vain = timeout(LEAVES_WITHIN, member.leave(&notices)).await;
                Err(failure(Exit::Interrupted, "interrupted"))
            }
        }
    })
}

/// A node that takes part in the jobs of a cluster.
struct Member<'a> {
    cluster: &'a Cluster,
    /// The name of the node, which no other has.
    node: String,
    /// The node's key, by which receivers know it.
    key: [u8; 32],
    /// What the heads of jobs have granted to it.
    grants: HashMap<SharedJobId, HeldGrant>,
    /// The leases from the heads of jobs for which this node offers itself, or in which it takes part.
    heads: HashMap<SharedJobId, HeadLease>,
    /// Jobs whose sources are being looked at here.
    looked_at: HashSet<SharedJobId>,
    beginning: JoinSet<(SharedJobId, Result<(Part, Work)>)>,
    parts: HashMap<SharedJobId, PartAtWork>,
    running: JoinSet<(SharedJobId, Result<()>)>,
    /// Jobs that have ended here, and when.
    ended: HashMap<SharedJobId, Instant>,
    /// Jobs in which this node could not take part, and when it tries again.
    back_off: HashMap<SharedJobId, Instant>,
    told_of_version: bool,
    broker: BrokerLook,
}

/// A part that is being done.
struct PartAtWork {
    part: Part,
    /// When the head has told of the job last, or later: while this process was stopped, it could not be heard.
    heard: Instant,
    task: AbortHandle,
}

impl<'a> Member<'a> {
    fn new(cluster: &'a Cluster) -> Result<Self> {
        let unique: [u8; 3] = zmove_engine::random().context("get random bytes")?;
        let node = format!("{}-{}", own_name(), Hex(&unique));
        let key = Identity::load_or_create(&settings::home(settings::Role::Client)?)?
            .fingerprint()
            .0;
        Ok(Self {
            cluster,
            node,
            key,
            grants: HashMap::new(),
            heads: HashMap::new(),
            looked_at: HashSet::new(),
            beginning: JoinSet::new(),
            parts: HashMap::new(),
            running: JoinSet::new(),
            ended: HashMap::new(),
            back_off: HashMap::new(),
            told_of_version: false,
            broker: BrokerLook::default(),
        })
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
                // nobody is taken for silent before what waits has been heard
                biased;
                heard = notices.hear() => match heard?.notice {
                    Ok(Notice::Job(job)) => self.take(job, notices).await?,
                    Ok(Notice::Grant(grant)) => self.hold(&grant),
                    Ok(Notice::Refused(refusal)) if refusal.node == self.node => {
                        self.on_refused(refusal, notices).await?;
                    }
                    Ok(_) => {}
                    Err(other) => self.tell_of_version(other),
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
                    self.look_at_broker(notices)?;
                    self.abandon(notices).await?;
                    self.tell(notices).await?;
                    self.forget(Instant::now());
                }
            }
        }
    }

    /// Warns once that a node of the cluster cannot work with this one.
    fn tell_of_version(&mut self, other: GreetingError) {
        if !std::mem::replace(&mut self.told_of_version, true) {
            terminal::warn(format_args!("{other}; its jobs are left to others"));
        }
    }

    /// Leaves all jobs to others, to end.
    async fn leave(&mut self, notices: &Notices) -> Result<()> {
        self.running.shutdown().await;
        for (id, PartAtWork { part, .. }) in self.parts.drain().collect::<Vec<_>>() {
            let stopped = self.part(id, NodeState::Stopped, (part.moved(), part.tally()));
            notices.tell(&self.notice(Some(stopped))).await?;
            notices.flush().await;
            part.leave().await;
        }
        Ok(())
    }

    /// Listens at the broker, which may be there only while a push runs.
    async fn listen(&mut self) -> Result<Notices> {
        let (access, key) = (self.cluster.access()?, self.cluster.key()?);
        loop {
            match Notices::open(&access, &key).await {
                Ok(notices) => return Ok(notices),
                Err(error) => self.broker.tell(self.cluster, &error)?,
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// Looks whether the broker, or what has come in its place, is of use still.
    fn look_at_broker(&mut self, notices: &Notices) -> Result<()> {
        match notices.hindrance() {
            Some(hindrance) => self.broker.tell(self.cluster, &hindrance.into()),
            None => {
                self.broker = BrokerLook::default();
                Ok(())
            }
        }
    }

    /// Holds a grant that is for this node.
    fn hold(&mut self, GrantNotice { job, key, grant }: &GrantNotice) {
        if *key == self.key
            && let Ok(grant) = SignedJobGrant::decode(grant)
        {
            self.grants
                .entry(SharedJobId(*job))
                .or_default()
                .renew(grant);
        }
    }

    fn part(
        &self,
        job: SharedJobId,
        state: NodeState,
        (moved, tally): (TransferProgress, Tally),
    ) -> NodePart {
        let granted_until = self.grants.get(&job).and_then(HeldGrant::ends);
        NodePart {
            job: job.0,
            state,
            moved,
            items: tally.items,
            tally,
            granted_until,
            ping: self.heads.get(&job).map_or(0, HeadLease::ping),
        }
    }

    /// Takes part in a job, if this node may.
    async fn take(&mut self, job: JobNotice, notices: &Notices) -> Result<()> {
        let id = job.id();
        if let (Some(head), Some(ping)) = (self.heads.get(&id), job.answer_to(&self.node)) {
            head.answered(ping);
        }
        if let Some(at_work) = self.parts.get_mut(&id) {
            at_work.heard = Instant::now();
            return Ok(());
        }
        if self.is_backed_off(id) || self.ended.contains_key(&id) || self.looked_at.contains(&id) {
            return Ok(());
        }
        let head = self.heads.entry(id).or_default().lease();
        match (job.nodes.get(&self.node), self.grants.get(&id)) {
            (Some(number), Some(grant)) if job.begun => {
                let number = *number;
                let grant = grant.clone();
                let cluster = self.cluster.clone();
                self.beginning.spawn(async move {
                    (id, Part::begin(cluster, job, number, grant, head).await)
                });
                self.looked_at.insert(id);
                Ok(())
            }
            (Some(_), Some(_)) => Ok(()),
            // the head answers with a number and a grant
            _ => {
                let part = self.part(id, NodeState::Offers, Default::default());
                Ok(notices.tell(&self.notice(Some(part))).await?)
            }
        }
    }

    /// Does a part whose sources have been looked at, or leaves the job to others.
    async fn begin(
        &mut self,
        id: SharedJobId,
        begun: Result<(Part, Work)>,
        notices: &Notices,
    ) -> Result<()> {
        self.looked_at.remove(&id);
        match begun {
            Ok((part, work)) => {
                terminal::print_lines(&format!("job {id} begins: {}", part.what));
                let task = self.running.spawn(async move { (id, work.await) });
                self.parts.insert(
                    id,
                    PartAtWork {
                        part,
                        heard: Instant::now(),
                        task,
                    },
                );
                Ok(())
            }
            Err(error) => self.back_off(id, &error, notices).await,
        }
    }

    /// Holds it against no head that it was not heard while this process was stopped, for so long.
    fn credit_pause(&mut self, stopped: Duration) {
        let now = Instant::now();
        for at_work in self.parts.values_mut() {
            at_work.heard = credited(at_work.heard, stopped, now);
        }
    }

    /// Forgets of jobs what nobody will ask for any more: a node may run for months.
    fn forget(&mut self, now: Instant) {
        let today = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        self.back_off.retain(|_, until| now < *until);
        self.ended.retain(|_, ended| now < *ended + KEPT_FOR);
        // what a part has is renewed here; and the clock of who has granted it may be another
        let (parts, looked_at) = (&self.parts, &self.looked_at);
        let grants = &self.grants;
        self.heads.retain(|id, _| {
            parts.contains_key(id) || looked_at.contains(id) || grants.contains_key(id)
        });
        self.grants.retain(|id, grant| {
            let is_good = |ends: u64| today < ends.saturating_add(KEPT_FOR.as_secs());
            parts.contains_key(id) || looked_at.contains(id) || grant.ends().is_some_and(is_good)
        });
    }

    /// Gives up jobs of which nothing has been heard for so long that nobody leads them any more: no queue would say so
    /// where its broker was away when the head ended.
    async fn abandon(&mut self, notices: &Notices) -> Result<()> {
        let is_silent = |at_work: &PartAtWork| at_work.heard.elapsed() > at_work.part.silence_max();
        let silent = self
            .parts
            .iter()
            .filter(|(_, at_work)| is_silent(at_work))
            .map(|(id, _)| *id);
        for id in silent.collect::<Vec<_>>() {
            if let Some(PartAtWork { part, task, .. }) = self.parts.remove(&id) {
                task.abort();
                // its sessions may go on for a moment
                let part = self.part(id, NodeState::HasLostSessions, (part.moved(), part.tally()));
                notices.tell(&self.notice(Some(part))).await?;
            }
            let why = failure(
                Exit::Broken,
                "the node that leads it has not been heard of for too long",
            );
            self.back_off(id, &why, notices).await?;
        }
        Ok(())
    }

    async fn tell(&self, notices: &Notices) -> Result<()> {
        if self.parts.is_empty() {
            return Ok(notices.tell(&self.notice(None)).await?);
        }
        for (job, PartAtWork { part, .. }) in &self.parts {
            self.tell_trouble(*job, part, notices).await?;
            let part = self.part(*job, NodeState::Works, (part.moved(), part.tally()));
            notices.tell(&self.notice(Some(part))).await?;
        }
        Ok(())
    }

    /// Tells the head of a job what has failed here since, and what this node was warned of.
    async fn tell_trouble(&self, id: SharedJobId, part: &Part, notices: &Notices) -> Result<()> {
        for message in part.warnings() {
            notices
                .tell(&Notice::Warned(self.failure(id, message)))
                .await?;
        }
        for message in part.failures() {
            notices
                .tell(&Notice::Failed(self.failure(id, message)))
                .await?;
        }
        Ok(())
    }

    /// Leaves a job to others whose head does not let this node in; a node may have asked several times.
    async fn on_refused(&mut self, refusal: NodeFailure, notices: &Notices) -> Result<()> {
        let id = SharedJobId(refusal.job);
        if self.is_backed_off(id) {
            return Ok(());
        }
        self.back_off(id, &failure(Exit::Authentication, refusal.message), notices)
            .await
    }

    fn is_backed_off(&self, id: SharedJobId) -> bool {
        self.back_off
            .get(&id)
            .is_some_and(|until| Instant::now() < *until)
    }

    /// Leaves a job to others for a while, and has its head told why.
    async fn back_off(
        &mut self,
        id: SharedJobId,
        error: &anyhow::Error,
        notices: &Notices,
    ) -> Result<()> {
        let why = terminal::causes(error).to_string();
        terminal::warn(format_args!("job {id}: {why}"));
        self.back_off.insert(id, Instant::now() + TRY_AGAIN_AFTER);
        Ok(notices.tell(&Notice::Absent(self.failure(id, why))).await?)
    }

    fn failure(&self, id: SharedJobId, message: String) -> NodeFailure {
        NodeFailure {
            job: id.0,
            node: self.node.clone(),
            message,
        }
    }

    /// Ends the part in a job. One that has ended badly begins again after a while.
    async fn end(&mut self, id: SharedJobId, ended: Result<()>, notices: &Notices) -> Result<()> {
        let Some(PartAtWork { part, .. }) = self.parts.remove(&id) else {
            return Ok(());
        };
        self.tell_trouble(id, &part, notices).await?;
        let state = part.end();
        if ended.is_ok() || state == NodeState::HasLostSessions {
            let part = self.part(id, state, (part.moved(), part.tally()));
            notices.tell(&self.notice(Some(part))).await?;
        }
        match ended {
            Ok(()) => {
                terminal::say(format!("job {id} has ended"));
                self.ended.insert(id, Instant::now());
                self.grants.remove(&id);
                self.heads.remove(&id);
                Ok(())
            }
            Err(error) => self.back_off(id, &error, notices).await,
        }
    }

    fn notice(&self, part: Option<NodePart>) -> Notice {
        Notice::Node(NodeNotice {
            node: self.node.clone(),
            key: self.key,
            part,
        })
    }
}

/// When a head counts as heard that was heard then, of which this process was stopped for so long since.
fn credited(heard: Instant, stopped: Duration, now: Instant) -> Instant {
    now.min(heard + stopped)
}

/// How often a broker that is not there is asked for.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// How long a node that is stopped may take to leave its jobs to others.
const LEAVES_WITHIN: Duration = Duration::from_secs(5);
/// How long a node leaves a job to others that it could not take part in.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// How long it is known that a job has ended, and a grant is kept that is over.
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

    #[test]
    fn a_node_that_runs_for_months_forgets_the_jobs_that_are_over() {
        let key = "0".repeat(64);
        let text = format!("name = 'c'\nkey = '{key}'\nbroker = 'nats://b:1'\nreceivers = []\n");
        let cluster: Cluster = toml::from_str(&text).unwrap();
        let (now, [over, back_off]) = (Instant::now(), [1, 2].map(|id| SharedJobId([id; 16])));
        let mut member = Member {
            cluster: &cluster,
            node: "n".to_owned(),
            key: [0; 32],
            grants: HashMap::from([(over, HeldGrant::default())]),
            heads: HashMap::new(),
            looked_at: HashSet::from([back_off]),
            beginning: JoinSet::new(),
            parts: HashMap::new(),
            running: JoinSet::new(),
            ended: HashMap::from([(over, now)]),
            back_off: HashMap::from([(back_off, now + TRY_AGAIN_AFTER)]),
            told_of_version: false,
            broker: BrokerLook::default(),
        };
        member.grants.insert(back_off, HeldGrant::default());
        member.forget(now);
        assert!(member.is_backed_off(back_off) && member.ended.contains_key(&over));
        assert!(
            member.grants.keys().eq([&back_off]),
            "one that a job has is renewed"
        );
        member.forget(now + KEPT_FOR);
        assert!(member.back_off.is_empty() && member.ended.is_empty());
    }
}
