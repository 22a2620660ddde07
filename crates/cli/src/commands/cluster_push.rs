//! `zmove push --cluster NAME`: this node leads a job in which all nodes of a cluster take part, itself among them.

mod granting;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use zmove_cluster::jetstream::{
    BrokerState, JetStream, JobNotice, LocalBroker, LocalServer, NodeFailure, Notice, Notices,
    Numbered, Role, Settings, SourceNotice, TELL_EVERY,
};
use zmove_cluster::{Head, JobError, Node, Receiver, SharedJob};
use zmove_engine::DialSettings;
use zmove_jobs::this_program;
use zmove_types::{Event, Observer, SharedJobId};

use self::granting::Granting;
use crate::commands::cluster::sources::{self as node_sources, Trees};
use crate::commands::participants::Participants;
use crate::commands::shared_job::{self, By, Led, fresh, lead_again, tell_end, threads};
use crate::commands::transfer::{interrupted, own_name};
use crate::display::nodes::as_json;
use crate::display::progress::Display;
use crate::settings::cluster::Cluster;
use crate::settings::{self, PushSettings, Role as KeyRole};
use crate::value::exit::{Exit, failure, usage_error};

/// Leads a push of these settings.
pub(crate) fn push(settings: &PushSettings, cluster: &Cluster, started: Instant) -> Result<Exit> {
    let display = Display::new(&settings.args, None);
    let sources = settings.look_at_sources(&display)?;
    let receivers = receivers(settings, cluster)?;
    let directory = std::env::current_dir().context("find the working directory")?;
    let mut job = shared_job::job(settings, &sources, fresh()?)?.with_marks();
    // all nodes tell of a failure in the same words, so that it is told and counted once
    for source in &mut job.sources {
        source.source = directory.join(&source.source);
    }
    let mountinfo = node_sources::mountinfo();
    let trees = Arc::new(Trees::new(directory.clone(), &job));
    let notice = JobNotice {
        job: job.id.0,
        sources: node_sources::notices(&mountinfo, &directory, &sources),
        mounts: trees.mounts(&mountinfo),
        directory: directory.into_os_string().into_vec(),
        words: std::env::args_os()
            .skip(1)
            .map(OsStringExt::into_vec)
            .collect(),
        nodes: BTreeMap::from([(own_name(), 0)]),
        answered: BTreeMap::new(),
        begun: false,
        reader: node_sources::reader(),
        instead: node_sources::instead_notice(job.config.instead),
        shown: String::new(),
    };
    if !notice.fits() {
        return Err(usage_error(TOO_MANY_SOURCES));
    }
    display.start();
    let led = lead_again(receivers.len(), |begins_at| {
        let job = shared_job::anew(&job)?;
        let id = job.id;
        let leading = Leading {
            cluster,
            trees: Arc::clone(&trees),
            observer: display.observer(),
            notice: JobNotice {
                job: id.0,
                ..notice.clone()
            },
            mountinfo: mountinfo.clone(),
            granting: Granting::new(&job, &receivers)?,
            patience: settings.args.timeout.0,
            begins_at,
        };
        let leading = leading.lead(job, receivers.clone());
        settings::block_on(threads(), Box::pin(leading))
    });
    let by = By {
        noun: "node",
        took_part: display.end(),
    };
    tell_end(led?, &by, settings, &sources, started)
}

/// The receivers of a cluster, with the keys that its file names.
pub(crate) fn receivers(settings: &PushSettings, cluster: &Cluster) -> Result<Vec<Receiver>> {
    let home = settings::home(KeyRole::Client)?;
    let receiver =
        |(remote, known): (&zmove_engine::Remote, &settings::cluster::ClusterReceiver)| {
            let key = known
                .key
                .parse()
                .with_context(|| format!("the key of {remote}"))?;
            let settings = DialSettings {
                key: Some(key),
                ..settings.dial_to(remote)?
            };
            Ok(Receiver {
                home: home.clone(),
                remote: remote.clone(),
                settings,
            })
        };
    settings
        .receivers()
        .zip(&cluster.receivers)
        .map(receiver)
        .collect()
}

/// How long whoever asks a broker goes on to ask, by the push's `--timeout`: one that is started again takes a moment.
pub(crate) fn broker_patience(timeout: Duration) -> Duration {
    timeout.max(BROKER_PATIENCE_MIN)
}

/// A job that is led from here.
struct Leading<'a> {
    cluster: &'a Cluster,
    trees: Arc<Trees>,
    observer: Arc<dyn Observer>,
    notice: JobNotice,
    /// What was mounted where when the notice's mounts were listed.
    mountinfo: Vec<u8>,
    granting: Granting,
    patience: Duration,
    /// The number of the receiver that is asked first to begin the job.
    begins_at: usize,
}

/// What is mounted where, and the mounts below the sources if that is not what it was.
type Mounted = (Vec<u8>, Option<Vec<SourceNotice>>);

impl Leading<'_> {
    /// Leads the job to its end, with a broker of this push if the cluster has none.
    async fn lead(mut self, job: SharedJob, receivers: Vec<Receiver>) -> Result<Led> {
        let mut stop: Stop = Box::pin(interrupted());
        let _server = match self.cluster.local_broker()? {
            Some(broker) => Some(tokio::select! {
                started = start(&broker) => started?,
                () = &mut stop => return Ok(not_begun(job.id)),
            }),
            None => None,
        };
        Box::pin(self.lead_by_broker(job, receivers, stop)).await
    }

    async fn lead_by_broker(
        &mut self,
        job: SharedJob,
        receivers: Vec<Receiver>,
        mut stop: Stop,
    ) -> Result<Led> {
        let (notices, queue) = tokio::select! {
            opened = self.open(&job) => opened?,
            () = &mut stop => return Ok(not_begun(job.id)),
        };
        let mut broker = BrokerWatch::new(self.cluster.broker.clone(), queue.state());
        let queue = Arc::new(queue);
        let names = receivers.iter().map(|receiver| receiver.remote.to_string());
        let participants = Arc::new(Participants::of_nodes(
            own_name(),
            names.collect(),
            Arc::clone(&self.observer),
        ));
        self.tell_nodes(&notices).await?;
        let head = self.head(job, Arc::clone(&queue), receivers, &participants);
        let own = || head.node.served.by_receiver();
        let mut telling = Box::pin(participants.tell(Arc::clone(&queue), own));
        let mut begun = head.begun.subscribe();
        let observer = Arc::clone(&participants) as Arc<dyn Observer>;
        let leading = head.run(observer, Arc::new(shared_job::SessionWarnings), stop);
        let mut leading = Box::pin(leading);
        let mut ticks = tokio::time::interval(TELL_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looking = JoinSet::<Mounted>::new();
        let ended = loop {
            tokio::select! {
                ended = &mut leading => break ended,
                never = &mut telling => match never {},
                _ = ticks.tick() => {
                    self.look_at_mounts(&mut looking);
                    self.notice.shown = as_json(&participants.shown()).to_string();
                    self.tell_nodes(&notices).await?;
                }
                Some(looked) = looking.join_next() => {
                    if self.take_mounts(looked?) {
                        self.tell_nodes(&notices).await?;
                    }
                }
                changed = begun.changed(), if !self.notice.begun => {
                    changed?;
                    self.notice.begun = true;
                    self.tell_nodes(&notices).await?;
                }
                heard = notices.hear() => {
                    if let Ok(notice) = heard? {
                        if let Notice::Node(node) = &notice {
                            queue.note_stored(node.stored);
                        }
                        self.answer(notice, &notices, &participants).await?;
                    }
                }
                message = broker.changed() => self.observer.on(&Event::Warned { message }),
            }
        };
        participants.tell_now(Some(0), &own());
        let has_lost_sessions =
            head.node.served.has_lost_sessions() || participants.others().borrow().unfinished > 0;
        let served = participants.served(head.node.served.items() > 0);
        Ok(Led {
            id: head.node.job.id,
            ended,
            served,
            has_lost_sessions,
        })
    }

    /// The head of the job, which has done nothing yet.
    fn head(
        &self,
        job: SharedJob,
        queue: Arc<JetStream>,
        receivers: Vec<Receiver>,
        participants: &Participants,
    ) -> Head<JetStream> {
        let movers = receivers.len();
        let node = Node {
            told: participants.told(),
            ..Node::new(job, queue, receivers, movers, self.patience)
        };
        Head {
            begins_at: self.begins_at,
            others: participants.others(),
            others_come_within: OTHERS_COME_WITHIN,
            ..Head::new(node)
        }
    }

    /// Sends all nodes the notice of the job as it is now.
    async fn tell_nodes(&self, notices: &Notices) -> Result<()> {
        Ok(notices.tell(&Notice::Job(self.notice.clone())).await?)
    }

    /// Takes a notice and answers it with a grant where one is due.
    async fn answer(
        &mut self,
        notice: Notice,
        notices: &Notices,
        participants: &Participants,
    ) -> Result<()> {
        if let Notice::Node(node) = &notice
            && let Some(grant) = self.granting.answer(node)?
        {
            notices.tell(&grant).await?;
        }
        if self.take(notice, participants) {
            self.tell_nodes(notices).await?;
        }
        Ok(())
    }

    /// Connects to the broker and makes the queue of the job.
    async fn open(&self, job: &SharedJob) -> Result<(Notices, JetStream)> {
        let (access, key) = (self.cluster.access(), self.cluster.key()?);
        let settings = Settings {
            patience: broker_patience(self.patience),
            ..Settings::new(Role::Head, job.id, key.of_job(job.id))
        };
        let no_broker = |error| self.cluster.no_broker(&error);
        let notices = Notices::open(&access, &key).await.map_err(no_broker)?;
        let queue = JetStream::open(&access, settings).await;
        Ok((notices, queue.map_err(no_broker)?))
    }

    /// Lists the mounts below the sources again where something has been mounted since, as what is looked at may be.
    /// One that does not answer holds up this alone.
    fn look_at_mounts(&mut self, looking: &mut JoinSet<Mounted>) {
        if !looking.is_empty() {
            return;
        }
        let (before, trees) = (std::mem::take(&mut self.mountinfo), Arc::clone(&self.trees));
        looking.spawn_blocking(move || {
            let now = node_sources::mountinfo();
            let mounts = (now != before).then(|| trees.mounts(&now));
            (now, mounts)
        });
    }

    /// Takes what has been seen of mounts; returns whether the nodes are to be told of it at once.
    fn take_mounts(&mut self, (mountinfo, mounts): Mounted) -> bool {
        self.mountinfo = mountinfo;
        mounts.map(|mounts| self.notice.mounts = mounts).is_some()
    }

    /// Takes a notice; returns whether the nodes are to be told of the job at once: a node is new, here or in the job.
    fn take(&mut self, notice: Notice, participants: &Participants) -> bool {
        match notice {
            Notice::Failed(NodeFailure { job, node, message }) if job == self.notice.job => {
                participants.on(&Event::Failed {
                    message: format!("{message} (at {node})"),
                });
                false
            }
            Notice::Warned(warning) if warning.job == self.notice.job => {
                participants.warn(warning);
                false
            }
            Notice::Absent(failure) if failure.job == self.notice.job => {
                participants.leave(failure);
                false
            }
            Notice::Node(node) => match node.part {
                None => participants.has_come(node.node),
                Some(part) if part.job == self.notice.job => {
                    let numbered = self.notice.number(&node.node);
                    match numbered {
                        Numbered::TooMany => participants.warn_of_too_many(),
                        Numbered::Now | Numbered::Before => participants.hear(&node.node, &part),
                    }
                    self.notice.answer(&node.node, part.ping);
                    numbered == Numbered::Now
                }
                Some(_of_another_job) => false,
            },
            _ => false,
        }
    }
}

/// Starts the broker of this push, unless another push on this host has started it.
async fn start(broker: &LocalBroker) -> Result<LocalServer> {
    let command = || {
        let mut command = this_program();
        command.args(["cluster", "broker", &std::process::id().to_string()]);
        command
    };
    let started = broker.start(command).await;
    started.map_err(|error| {
        failure(
            Exit::Connection,
            format!("start the broker of the push: {error}"),
        )
    })
}

/// Resolves when the user stops the push.
type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The broker as the user sees it.
struct BrokerWatch {
    name: String,
    state: watch::Receiver<BrokerState>,
    lost: Option<Instant>,
}

impl BrokerWatch {
    fn new(name: String, state: watch::Receiver<BrokerState>) -> Self {
        Self {
            name,
            state,
            lost: None,
        }
    }

    /// What is to be told, once something is.
    async fn changed(&mut self) -> String {
        loop {
            if self.state.changed().await.is_err() {
                // the queue has gone, and so does this
                return std::future::pending().await;
            }
            let is_lost = *self.state.borrow_and_update() == BrokerState::Lost;
            match self.lost {
                None if is_lost => {
                    self.lost = Some(Instant::now());
                    return format!("the broker {} is away: the job waits for it", self.name);
                }
                Some(since) if !is_lost => {
                    self.lost = None;
                    let seconds = since.elapsed().as_secs_f64();
                    return format!(
                        "the broker {} is there again after {seconds:.1} s",
                        self.name
                    );
                }
                _ => {}
            }
        }
    }
}

/// What has become of a job that the user ends before any receiver has been asked.
fn not_begun(id: SharedJobId) -> Led {
    Led {
        id,
        ended: Err(JobError::Interrupted),
        served: 0,
        has_lost_sessions: false,
    }
}

const TOO_MANY_SOURCES: &str = "there are more sources than the other nodes can be told of: push the directory that they are in";
/// How long nodes may take to come, of which each has a session with one receiver: after that this node serves those
/// receivers, too, for which there is no other. A node that has lost the broker asks for it every 4 s at last.
const OTHERS_COME_WITHIN: Duration = Duration::from_secs(2);
/// How long a broker is waited for in any case.
const BROKER_PATIENCE_MIN: Duration = Duration::from_secs(10);
