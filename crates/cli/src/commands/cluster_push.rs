//! `zmove push --cluster NAME`: this node leads a job in which all nodes of a cluster take part, itself among them.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::watch;
use zmove_cluster::jetstream::{
    JetStream, JobNotice, NodeMoved, NodePart, NodeState, Notice, Notices, Role, Server, Settings,
};
use zmove_cluster::{JobEnd, JobError, Lead, Receiver, SharedJob};
use zmove_engine::{DialSettings, Remote};
use zmove_types::{Event, Observer};

use crate::commands::spread::{self, Unended, fresh_epoch, fresh_id, tell_end, threads};
use crate::commands::transfer::{interrupted, own_name};
use crate::display::format::counted;
use crate::display::progress::Display;
use crate::settings::cluster::Cluster;
use crate::settings::{self, PushSettings, Role as KeyRole};
use crate::value::exit::Exit;
use crate::value::version::VERSION;

/// Leads a push of these settings.
pub(crate) fn push(settings: &PushSettings, cluster: &Cluster, started: Instant) -> Result<Exit> {
    let display = Display::new(&settings.args, None);
    let sources = settings.look_at_sources(&display)?;
    let receivers = receivers(settings, cluster)?;
    let id = fresh_id()?;
    let epoch = fresh_epoch();
    let job = spread::job(settings, &sources, (id, epoch))?;
    let notice = JobNotice {
        job: id.0,
        epoch,
        version: VERSION.clone(),
        directory: std::env::current_dir().context("find the working directory")?.into_os_string().into_vec(),
        words: std::env::args_os().skip(1).map(OsStringExt::into_vec).collect(),
        nodes: BTreeMap::from([(own_name(), 0)]),
        begun: false,
    };
    let before = spread::end_before(&job, &receivers)?;
    let unended = spread::note(&job, &receivers)?;
    display.start();
    let leading = Leading { cluster, observer: display.observer(), notice };
    let patience = settings.args.timeout.0;
    let ended = settings::block_on(threads(), Box::pin(leading.lead(job, receivers, patience, before)));
    display.end();
    let (ended, nodes) = ended?;
    if ended.is_ok() {
        unended.forget()?;
    }
    tell_end(ended, settings, &sources, (id, &format!("by {}", counted(nodes as u64, "node")), started))
}

/// The receivers of a cluster, with the keys that its file names.
pub(crate) fn receivers(settings: &PushSettings, cluster: &Cluster) -> Result<Vec<Receiver>> {
    let home = settings::home(KeyRole::Client)?;
    let zmove_engine::Location::Remote(Remote { path, .. }) = &settings.location else {
        return Ok(Vec::new());
    };
    let receiver = |receiver: &settings::cluster::ClusterReceiver| {
        let remote = receiver.remote(path);
        let key = receiver.key.parse().with_context(|| format!("the key of {remote}"))?;
        let settings = DialSettings { key: Some(key), ..settings.dial_to(&remote)? };
        Ok(Receiver { home: home.clone(), remote, settings })
    };
    cluster.receivers.iter().map(receiver).collect()
}

/// A job that is led from here.
struct Leading<'a> {
    cluster: &'a Cluster,
    observer: Arc<dyn Observer>,
    notice: JobNotice,
}

impl Leading<'_> {
    /// Leads the job to its end; returns that, and how many nodes have taken part.
    async fn lead(
        mut self,
        job: SharedJob,
        receivers: Vec<Receiver>,
        patience: Duration,
        before: Vec<Unended>,
    ) -> Result<(Result<JobEnd, JobError>, usize)> {
        let _broker = self.start_broker().await?;
        let (access, key) = (self.cluster.access()?, self.cluster.key()?);
        let notices = Notices::open(&access, &key).await?;
        let settings = Settings::new(Role::Head, job.id, job.epoch, key.of_job(job.id));
        let queue = JetStream::open(&access, settings).await?;
        for before in before {
            let (job, epoch) = (before.job(), before.epoch());
            let settings = Settings::new(Role::Head, job, epoch, key.of_job(job));
            JetStream::end_abandoned(&access, settings).await?;
            before.forget()?;
        }
        let mut nodes = Nodes::new(Arc::clone(&self.observer));
        notices.tell(&Notice::Job(self.notice.clone())).await?;
        let count = receivers.len();
        let lead = Lead {
            others: nodes.others.subscribe(),
            others_come_within: OTHERS_COME_WITHIN,
            ..Lead::new((job, Arc::new(queue)), receivers, count, patience)
        };
        let mut begun = lead.begun.subscribe();
        let leading = lead.run(Arc::clone(&self.observer), Arc::new(spread::Notices), interrupted());
        let mut leading = Box::pin(leading);
        let mut ticks = tokio::time::interval(TELL_EVERY);
        let mut ended = loop {
            tokio::select! {
                ended = &mut leading => break ended,
                _ = ticks.tick() => notices.tell(&Notice::Job(self.notice.clone())).await?,
                changed = begun.changed(), if !self.notice.begun => {
                    changed?;
                    self.notice.begun = true;
                    notices.tell(&Notice::Job(self.notice.clone())).await?;
                }
                heard = notices.hear() => {
                    if self.take(heard?, &mut nodes) {
                        notices.tell(&Notice::Job(self.notice.clone())).await?;
                    }
                }
            }
        };
        if let Ok(ended) = &mut ended {
            nodes.parts.values().for_each(|moved| {
                ended.skipped.files += moved.skipped_files;
                ended.skipped.bytes += moved.skipped_bytes;
            });
        }
        Ok((ended, self.notice.nodes.len()))
    }

    /// Starts the broker, where this node is to and none is there.
    async fn start_broker(&self) -> Result<Option<Server>> {
        let Some(server) = self.cluster.server()? else { return Ok(None) };
        if TcpStream::connect_timeout(&(server.address, server.port).into(), CONNECT_MAX).is_ok() {
            return Ok(None);
        }
        let why = "start a broker for the cluster ('nats-server' has to be installed, as by Debian's package of that name)";
        Ok(Some(server.start().await.context(why)?))
    }

    /// Takes a notice; returns whether another node takes part by it.
    fn take(&mut self, notice: Notice, nodes: &mut Nodes) -> bool {
        match notice {
            Notice::Failed(job, message) if job == self.notice.job => {
                self.observer.on(&Event::Failed { message });
                false
            }
            Notice::Node(node) if node.version == self.notice.version => match node.part {
                Some(part) if part.job == self.notice.job => {
                    let number = u32::try_from(self.notice.nodes.len()).unwrap_or(u32::MAX);
                    let is_new = !self.notice.nodes.contains_key(&node.node);
                    self.notice.nodes.entry(node.node.clone()).or_insert(number);
                    nodes.take(node.node, &part);
                    is_new
                }
                _ => false,
            },
            _ => false,
        }
    }
}

/// The other nodes of the job, and what they have told.
struct Nodes {
    observer: Arc<dyn Observer>,
    parts: BTreeMap<String, NodeMoved>,
    ended: std::collections::BTreeSet<String>,
    others: watch::Sender<usize>,
}

impl Nodes {
    fn new(observer: Arc<dyn Observer>) -> Self {
        let ended = std::collections::BTreeSet::new();
        Self { observer, parts: BTreeMap::new(), ended, others: watch::Sender::new(0) }
    }

    fn take(&mut self, node: String, NodePart { state, moved, .. }: &NodePart) {
        let before = self.parts.insert(node.clone(), *moved).unwrap_or_default();
        let (files, bytes) =
            (moved.files.saturating_sub(before.files), moved.bytes.saturating_sub(before.bytes));
        if files + bytes > 0 {
            self.observer.on(&Event::Stored { files, bytes });
        }
        let files = moved.found_files.saturating_sub(before.found_files);
        let bytes = moved.found_bytes.saturating_sub(before.found_bytes);
        if files + bytes > 0 {
            self.observer.on(&Event::Found { files, bytes });
        }
        let files = moved.skipped_files.saturating_sub(before.skipped_files);
        let bytes = moved.skipped_bytes.saturating_sub(before.skipped_bytes);
        if files + bytes > 0 {
            self.observer.on(&Event::Skipped { files, bytes });
        }
        if *state == NodeState::HasEnded {
            self.ended.insert(node);
        } else {
            self.ended.remove(&node);
        }
        self.others.send_replace(self.parts.len() - self.ended.len());
    }
}

/// How often the other nodes are told of the job.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long nodes may take to come, of which each has a session with one receiver: after that this node serves those
/// receivers, too, for which there is no other. A node that waits for the broker asks for it four times a second.
const OTHERS_COME_WITHIN: Duration = Duration::from_secs(2);
/// How long a broker that is there may take to take a connection.
const CONNECT_MAX: Duration = Duration::from_secs(1);
