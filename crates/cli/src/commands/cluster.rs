//! `zmove cluster`: makes a cluster, joins one, shows who is there.

mod part;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use zmove_cluster::HeldGrant;
use zmove_cluster::jetstream::{
    GrantNotice, JobNotice, NodeMoved, NodeNotice, NodePart, NodeState, Notice, Notices,
};
use zmove_transport::Identity;
use zmove_types::{Hex, SharedJobId};
use zmove_wire::SignedJobGrant;

use self::part::Part;
use crate::args::{ClusterCommand, ClusterInitArgs};
use crate::commands::transfer::{interrupted, own_name};
use crate::commands::trust::key_of;
use crate::display::terminal;
use crate::settings;
use crate::settings::cluster::{Cluster, ClusterReceiver};
use crate::value::exit::{Exit, failure, usage_error};
use crate::value::version::VERSION;

/// Runs `zmove cluster`.
pub(crate) fn run(command: ClusterCommand) -> Result<Exit> {
    match command {
        ClusterCommand::Init(args) => init(args),
        ClusterCommand::Invite { name } => {
            Cluster::load(&name)?.invitation()?.lines().for_each(terminal::say);
            Ok(Exit::Done)
        }
        ClusterCommand::Join(args) => join(&args.invitation),
        ClusterCommand::Status { name, json } => status(&Cluster::load(&name)?, json),
    }
}

fn init(args: ClusterInitArgs) -> Result<Exit> {
    let ClusterInitArgs { name, receivers, listen, broker, accept_new } = args;
    if let Some(listen) = listen.filter(|listen| listen.ip().is_unspecified() || listen.port() == 0) {
        return Err(usage_error(format!(
            "--listen {listen}: the other nodes are told this address: name one of this host, and a port"
        )));
    }
    let mut known = Vec::new();
    for remote in receivers {
        let key = key_of(&remote, accept_new)?;
        known.push(ClusterReceiver { host: remote.host, port: remote.port, key: key.to_string() });
    }
    let cluster = Cluster::make(&name, known, broker, listen)?;
    terminal::say(format!("cluster {name}, broker {}", cluster.broker));
    terminal::say(format!(
        "on each other node: zmove cluster join FILE, with FILE from 'zmove cluster invite {name}' here"
    ));
    terminal::say(format!("to send:            zmove push --cluster {name} SRC... PATH"));
    let key = Identity::load_or_create(&settings::home(settings::Role::Client)?)?.fingerprint();
    terminal::say(format!(
        "at each receiver:   zmove allow {key} --name NAME --root DIR --write, for the key of this node alone"
    ));
    Ok(Exit::Done)
}

fn join(invitation: &Path) -> Result<Exit> {
    let name = invitation.to_str().filter(|name| !name.contains(['/', '.']) && *name != "-");
    let cluster = match name {
        Some(name) if !invitation.exists() => Cluster::load(name)?,
        _ => {
            let mut text = String::new();
            let read = if invitation == Path::new("-") {
                std::io::stdin().read_to_string(&mut text)
            } else {
                std::fs::File::open(invitation).and_then(|mut file| file.read_to_string(&mut text))
            };
            read.with_context(|| format!("read '{}'", invitation.display()))?;
            Cluster::join(&text).with_context(|| format!("read '{}'", invitation.display()))?
        }
    };
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    settings::block_on(cores, async {
        tokio::select! {
            ended = Member::new(&cluster)?.serve() => ended,
            () = interrupted() => Err(failure(Exit::Interrupted, "interrupted")),
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
    parts: HashMap<SharedJobId, Part>,
    running: JoinSet<(SharedJobId, Result<()>)>,
    /// Jobs that have ended here.
    ended: HashSet<SharedJobId>,
    told_of_version: bool,
}

impl<'a> Member<'a> {
    fn new(cluster: &'a Cluster) -> Result<Self> {
        let unique: [u8; 3] = zmove_engine::random().context("get random bytes")?;
        let node = format!("{}-{}", own_name(), Hex(&unique));
        let key = Identity::load_or_create(&settings::home(settings::Role::Client)?)?.fingerprint().0;
        let (grants, parts) = (HashMap::new(), HashMap::new());
        let (running, ended) = (JoinSet::new(), HashSet::new());
        Ok(Self { cluster, node, key, grants, parts, running, ended, told_of_version: false })
    }

    async fn serve(mut self) -> Result<Exit> {
        let notices = self.listen().await?;
        terminal::say(format!("{} is a node of {}", self.node, self.cluster.name));
        let mut ticks = tokio::time::interval(TELL_EVERY);
        loop {
            tokio::select! {
                heard = notices.hear() => match heard? {
                    Notice::Job(job) => self.take(job, &notices).await?,
                    Notice::Grant(grant) => self.hold(&grant),
                    Notice::Node(_) | Notice::Failed(..) => {}
                },
                _ = ticks.tick() => self.tell(&notices).await?,
                Some(ended) = self.running.join_next() => {
                    let (job, ended) = ended.context("a part of a job panicked")?;
                    self.end(job, ended, &notices).await?;
                }
            }
        }
    }

    /// Listens at the broker, which may be there only while a push runs.
    async fn listen(&self) -> Result<Notices> {
        let (access, key) = (self.cluster.access()?, self.cluster.key()?);
        let mut told = false;
        loop {
            match Notices::open(&access, &key).await {
                Ok(notices) => return Ok(notices),
                Err(error) if !told => {
                    let broker = &self.cluster.broker;
                    terminal::warn(format_args!(
                        "no broker at {broker} yet, which a push may start: waiting for it ({error})"
                    ));
                    told = true;
                }
                Err(_told) => {}
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// Holds a grant that is for this node.
    fn hold(&mut self, GrantNotice { job, key, grant }: &GrantNotice) {
        if *key == self.key
            && let Ok(grant) = SignedJobGrant::decode(grant)
        {
            self.grants.entry(SharedJobId(*job)).or_default().renew(grant);
        }
    }

    fn part(&self, job: SharedJobId, state: NodeState, moved: NodeMoved) -> NodePart {
        let granted_until = self.grants.get(&job).and_then(HeldGrant::ends);
        NodePart { job: job.0, state, moved, granted_until }
    }

    /// Takes part in a job, if this node may.
    async fn take(&mut self, job: JobNotice, notices: &Notices) -> Result<()> {
        let id = job.id();
        if self.parts.contains_key(&id) || self.ended.contains(&id) {
            return Ok(());
        }
        if job.version != *VERSION {
            if !std::mem::replace(&mut self.told_of_version, true) {
                terminal::warn(format_args!(
                    "a job of another version of zmove, '{}', is left to others: all nodes need the same",
                    job.version
                ));
            }
            return Ok(());
        }
        match (job.nodes.get(&self.node), self.grants.get(&id)) {
            (Some(number), Some(grant)) if job.begun => {
                let part = Part::begin(self.cluster, &job, (*number, grant.clone())).await;
                let part = part.inspect_err(|error| terminal::warn(terminal::causes(error)));
                if let Ok((part, work)) = part {
                    terminal::say(format!("job {id} begins"));
                    self.running.spawn(async move { (id, work.await) });
                    self.parts.insert(id, part);
                }
                Ok(())
            }
            (Some(_), Some(_)) => Ok(()),
            // the head answers with a number and a grant
            _ => {
                let part = self.part(id, NodeState::Offers, NodeMoved::default());
                Ok(notices.tell(&self.notice(Some(part))).await?)
            }
        }
    }

    async fn tell(&self, notices: &Notices) -> Result<()> {
        if self.parts.is_empty() {
            return Ok(notices.tell(&self.notice(None)).await?);
        }
        for (job, part) in &self.parts {
            for message in part.failures() {
                notices.tell(&Notice::Failed(job.0, message)).await?;
            }
            let part = self.part(*job, NodeState::Works, part.moved());
            notices.tell(&self.notice(Some(part))).await?;
        }
        Ok(())
    }

    /// Ends the part in a job. One that has ended badly begins again with the next notice of it.
    async fn end(&mut self, id: SharedJobId, ended: Result<()>, notices: &Notices) -> Result<()> {
        let Some(part) = self.parts.remove(&id) else { return Ok(()) };
        for message in part.failures() {
            notices.tell(&Notice::Failed(id.0, message)).await?;
        }
        match ended {
            Ok(()) => {
                terminal::say(format!("job {id} has ended"));
                self.ended.insert(id);
                let part = self.part(id, NodeState::HasEnded, part.moved());
                self.grants.remove(&id);
                Ok(notices.tell(&self.notice(Some(part))).await?)
            }
            Err(error) => {
                terminal::warn(format_args!("job {id}: {}", terminal::causes(&error)));
                Ok(())
            }
        }
    }

    fn notice(&self, part: Option<NodePart>) -> Notice {
        let (node, version, key) = (self.node.clone(), VERSION.clone(), self.key);
        Notice::Node(NodeNotice { node, version, key, part })
    }
}

/// Shows who tells something within a few seconds.
fn status(cluster: &Cluster, as_json: bool) -> Result<Exit> {
    let (jobs, nodes) = settings::block_on(1, async {
        let (access, key) = (cluster.access()?, cluster.key()?);
        let unreached =
            || format!("no broker at {}: one that a push starts is there while it runs", cluster.broker);
        let opened = tokio::time::timeout(LISTEN_FOR, Notices::open(&access, &key)).await;
        let notices = opened.map_err(anyhow::Error::from).and_then(|opened| Ok(opened?));
        let notices = notices.map_err(|_no_broker| failure(Exit::Connection, unreached()))?;
        let (mut jobs, mut nodes) = (BTreeMap::new(), BTreeMap::new());
        let until = Instant::now() + LISTEN_FOR;
        while let Ok(heard) = tokio::time::timeout_at(until, notices.hear()).await {
            match heard? {
                Notice::Job(job) => drop(jobs.insert(job.job, job)),
                Notice::Node(node) => drop(nodes.insert(node.node.clone(), node)),
                Notice::Failed(..) | Notice::Grant(_) => {}
            }
        }
        Ok((jobs, nodes))
    })?;
    for job in jobs.values() {
        let (id, nodes) = (job.id().to_string(), job.nodes.keys().cloned().collect::<Vec<_>>());
        terminal::say(if as_json {
            json!({ "job": id, "nodes": nodes }).to_string()
        } else {
            format!("job {id}: {}", nodes.join(", "))
        });
    }
    for node in nodes.values() {
        let part = node.part.as_ref();
        let job = part.map(|part| SharedJobId(part.job).to_string());
        let moved = part.map(|part| part.moved).unwrap_or_default();
        terminal::say(if as_json {
            json!({ "node": node.node, "job": job, "files": moved.files, "bytes": moved.bytes }).to_string()
        } else {
            let bytes = zmove_types::ByteCount(moved.bytes);
            let what = job.map_or("has no work".to_owned(), |job| format!("job {job}, {bytes} moved"));
            format!("node {}: {what}", node.node)
        });
    }
    if nodes.is_empty() && jobs.is_empty() && !as_json {
        terminal::say("no node is there, and no job is under way");
    }
    Ok(Exit::Done)
}

/// How often a broker that is not there is asked for.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// How often a node tells that it is there.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long it is listened who is there.
const LISTEN_FOR: Duration = Duration::from_secs(3);
