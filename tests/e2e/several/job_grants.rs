//! Nodes whose keys no receiver knows. They are authorized by the grant of their job's head, whose key is allowed.

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use zmove_cluster::{
    Announced, Head, JobEnd, JobError, JobPhase, LocalQueue, Node, NodeRole, Receiver, SessionEnd,
    SharedJob, Tally, WorkError, WorkItem, WorkQueue,
};
use zmove_engine::{DialSettings, NoListener, Remote, SenderConfig};
use zmove_scan::ScanRoot;
use zmove_transport::{Access, DialOptions, Grant, Identity, TransportChoice};
use zmove_types::{NoObserver, RelPath, SharedJobId};
use zmove_wire::{Durability, Extension, Extensions, JobGrant, Open, SignedJobGrant};

use crate::commands::jobs::wait_for;
use crate::several::clusters::has_nats_server;
use crate::support::command::{Outcome, Runner, Zmove};
use crate::support::daemon::Daemon;
use crate::support::harness::{PATIENCE, Site, allow_to_lead, skip};
use crate::support::hooked_queue::{HookedQueue, Hooks, JOB};
use crate::support::ports::free_address;
use crate::support::tree::{assert_same, paint, set_old};

/// Two receivers that share a directory and know the key of the head.
struct Lab {
    site: Site,
    receivers: Vec<Daemon>,
}

impl Lab {
    fn new(receivers: usize) -> Self {
        let site = Site::local();
        std::fs::create_dir_all(site.path("shared")).unwrap();
        let mut lab = Self {
            site,
            receivers: Vec::new(),
        };
        for number in 0..receivers {
            lab.allow(number, Access::WriteOnly);
            let options = ["--listen", "127.0.0.1:0"];
            let daemon =
                Daemon::start_with(&lab.receiver_home(number), &options, &Runner::default());
            lab.receivers.push(daemon);
        }
        lab
    }

    fn receiver_home(&self, number: usize) -> PathBuf {
        self.site.path(&format!("receiver{number}"))
    }

    fn allow(&self, number: usize, access: Access) {
        let head = Identity::load_or_create(&self.home("head"))
            .unwrap()
            .fingerprint();
        let home = self.receiver_home(number);
        std::fs::create_dir_all(&home).unwrap();
        let roots = vec![self.site.path("shared").canonicalize().unwrap()];
        let grant = Grant::new(head, "ann", roots, access);
        allow_to_lead(&home, grant);
    }

    fn home(&self, name: &str) -> PathBuf {
        self.site.path(name)
    }

    fn key_of(&self, name: &str) -> [u8; 32] {
        Identity::load_or_create(&self.home(name))
            .unwrap()
            .fingerprint()
            .0
    }

    fn zmove(&self, name: &str, words: &[&str]) -> Zmove {
        let mut zmove = Runner::default().zmove(&self.home(name));
        zmove.0.args(words);
        zmove
    }

    fn paint(&self) {
        for directory in 0..40 {
            let directory = self.site.source().join(format!("d{directory}"));
            std::fs::create_dir_all(&directory).unwrap();
            (0..60_u64).for_each(|file| paint(directory.join(format!("f{file}")), 1 + file * 170));
        }
        paint(self.site.source().join("large"), 150 << 20);
        set_old(self.site.source());
    }

    /// Starts a node in the background, which ends with the test.
    fn join(&self, name: &str) -> NodeProcess {
        let invitation = self.site.path("lab.toml");
        let mut command = self
            .zmove(name, &["cluster", "join", invitation.to_str().unwrap()])
            .0;
        let log = std::fs::File::create(self.home(&format!("{name}.log"))).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        NodeProcess {
            log: self.home(&format!("{name}.log")),
            child: command.spawn().unwrap(),
        }
    }

    /// Returns a job with this target, as the head or a node sees it.
    fn job(&self, target: &str) -> SharedJob {
        let sources = vec![ScanRoot::new(
            self.site.source(),
            RelPath::from_bytes(b"run7").unwrap(),
        )];
        let open = Open {
            durability: Durability::End,
            ..Open::new(target.into(), [0; 16])
        };
        SharedJob::new(JOB, sources, open, SenderConfig::default())
    }

    fn reached(&self, name: &str, transport: TransportChoice) -> Vec<Receiver> {
        let receiver = |daemon: &Daemon| {
            let remote = Remote::parse_endpoint(&daemon.address.to_string()).unwrap();
            let reach = DialOptions {
                transport,
                ..DialOptions::default()
            };
            let settings = DialSettings {
                key: Some(daemon.fingerprint),
                reach,
                ..DialSettings::default()
            };
            Receiver {
                home: self.home(name),
                remote,
                settings,
            }
        };
        self.receivers.iter().map(receiver).collect()
    }

    /// Returns the head's grant for the node.
    fn grant(&self, job: &SharedJob) -> JobGrant {
        let receivers = self
            .receivers
            .iter()
            .map(|daemon| daemon.fingerprint.0)
            .collect();
        job.grant_for(self.key_of("node"), receivers, now() - 5..now() + 3600)
    }

    fn signed(&self, grant: JobGrant) -> SignedJobGrant {
        Identity::load_or_create(&self.home("head"))
            .unwrap()
            .sign_job_grant(grant)
            .unwrap()
    }

    /// Takes part in a job as the node, and returns the tally of its work.
    async fn take_part<W: WorkQueue>(
        &self,
        (job, queue): (SharedJob, &Arc<W>),
        grant: SignedJobGrant,
        transport: TransportChoice,
    ) -> Result<Tally, SessionEnd> {
        job.grant.renew(grant);
        let job = SharedJob {
            view: NodeRole::Follower,
            ..job
        };
        let receivers = self.reached("node", transport);
        let node = Node::new(job, Arc::clone(queue), receivers, 1, PATIENCE);
        node.take_part(1, Arc::new(NoObserver), Arc::new(NoListener))
            .await?;
        Ok(node.served.tally())
    }

    /// Makes the head lead a job whose work is done by other nodes, and waits until the job has begun.
    async fn begin<W: WorkQueue>(
        &self,
        queue: &Arc<W>,
        stop: oneshot::Receiver<()>,
    ) -> JoinHandle<Result<JobEnd, JobError>> {
        let receivers = self.reached("head", TransportChoice::Auto);
        let node = Node::new(self.job("t"), Arc::clone(queue), receivers, 0, PATIENCE);
        let head = Head::new(node);
        let mut phase = head.phase.subscribe();
        let stop = async { drop(stop.await) };
        let leading = tokio::spawn(async move {
            head.run(Arc::new(NoObserver), Arc::new(NoListener), stop)
                .await
        });
        let has_begun = |phase: &JobPhase| *phase >= JobPhase::Begun;
        phase.wait_for(has_begun).await.unwrap();
        leading
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap()
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// The queue of a job that continues and has no work at the moment.
struct Idle;

impl Hooks for Idle {
    async fn put(
        &self,
        _queue: &LocalQueue,
        _items: Vec<WorkItem>,
    ) -> Result<Announced, WorkError> {
        Ok(Announced::default())
    }

    fn waiting(&self, _none: u64) -> u64 {
        1
    }
}

struct NodeProcess {
    log: PathBuf,
    child: Child,
}

impl NodeProcess {
    fn wait_for(&self, part: &str) {
        let began = Instant::now();
        while !self.said().contains(part) {
            assert!(
                began.elapsed() < PATIENCE,
                "no '{part}' in: {}",
                self.said()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The output of the head names the key that the receivers must allow.
fn init_cluster_of_two(lab: &Lab) {
    let broker = free_address().to_string();
    let hosts: Vec<_> = lab
        .receivers
        .iter()
        .map(|daemon| daemon.address.to_string())
        .collect();
    let init = [
        "cluster",
        "init",
        "lab",
        &hosts[0],
        &hosts[1],
        "--local",
        &broker,
        "--accept-new",
    ];
    let told = lab.zmove("head", &init).outcome().done().stdout;
    let key = lab.zmove("head", &["key", "show"]).outcome().done().stdout;
    assert!(
        told.contains(&format!("zmove allow {}", key.trim())),
        "{told}"
    );
}

/// The second node runs one command, and its key is configured nowhere. The test waits for its grant before the head
/// takes work for the second receiver, so both have moved data.
#[test]
fn two_nodes_move_data_if_only_the_head_is_allowed() {
    if !has_nats_server() {
        return skip("there is no nats-server");
    }
    let lab = Lab::new(2);
    lab.paint();
    init_cluster_of_two(&lab);
    let invitation = lab.site.path("lab.toml");
    let invite = [
        "cluster",
        "invite",
        "lab",
        "-o",
        invitation.to_str().unwrap(),
    ];
    lab.zmove("head", &invite).outcome().done();
    let node = lab.join("node");
    node.wait_for("waiting for the broker");
    let source = lab.site.source();
    let push = [
        "push",
        "--json",
        "--cluster",
        "lab",
        source.to_str().unwrap(),
        "t",
    ];
    let Outcome { stdout, .. } = lab.zmove("head", &push).outcome().expect(0);
    assert!(stdout.contains("\"files\":2401"), "{stdout}");
    node.wait_for("has ended");
    assert_same(&lab.site.source(), &lab.site.path("shared/t/source"));
    let node_key = lab.zmove("node", &["key", "show"]).outcome().done().stdout;
    let [of_head, of_node] = [
        "ann".to_owned(),
        format!("node {} for ann", node_key.trim()),
    ];
    let has_data = |line: &String| !line.contains(" 0 bytes");
    let has_received = |daemon: &Daemon, who: &str| {
        let lines = daemon.logged(&format!("received from {who} at "));
        lines.iter().any(has_data)
    };
    for daemon in &lab.receivers {
        wait_for("data at each receiver", || {
            has_received(daemon, &of_head) || has_received(daemon, &of_node)
        });
        assert!(!daemon.has_logged("unknown key"));
    }
    for who in [&of_head, &of_node] {
        wait_for("data of the head and of the node", || {
            let mut receivers = lab.receivers.iter();
            receivers.any(|daemon| has_received(daemon, who))
        });
    }
    let said = node.said();
    assert!(!said.contains("not known"), "{said}");
}

/// The head moves no data here. The rate, name and log of its line also apply to the node.
#[test]
fn a_node_moves_all_by_its_grant_over_each_transport_and_counts_as_its_head() {
    for transport in [TransportChoice::Tcp, TransportChoice::Quic] {
        let lab = Lab::new(1);
        (0..50_u64).for_each(|file| paint(lab.site.source().join(format!("f{file}")), file * 999));
        paint(lab.site.source().join("large"), 20 << 20);
        runtime().block_on(async {
            let queue = Arc::new(LocalQueue::default());
            let (_go_on, stop) = oneshot::channel();
            let leading = lab.begin(&queue, stop).await;
            let grant = lab.signed(lab.grant(&lab.job("t")));
            let done = lab.take_part((lab.job("t"), &queue), grant, transport);
            let counters = done.await.unwrap().counters();
            leading.await.unwrap().unwrap();
            assert_eq!((counters.files, counters.failed), (51, 0));
        });
        assert_same(&lab.site.source(), &lab.site.path("shared/t/run7"));
        let key = Identity::load_or_create(&lab.home("node"))
            .unwrap()
            .fingerprint();
        let line = lab.receivers[0].wait_for_log(&format!("received from node {key} for ann at "));
        assert!(
            line.contains("51 files") && line.ends_with(&format!("key {key}")),
            "{line}"
        );
    }
}

/// A critical extension that no receiver knows.
fn critical_extension() -> Extensions {
    Extensions(vec![Extension {
        number: 9,
        critical: true,
        value: b"z".to_vec(),
    }])
}

/// Requests of nodes that are refused during a job, each with the reason.
#[test]
fn a_grant_lets_its_node_into_its_job_and_nowhere_else() {
    let lab = Lab::new(1);
    paint(lab.site.source().join("f"), 10);
    runtime().block_on(async {
        let queue = HookedQueue::new(Idle);
        let (end, stop) = oneshot::channel();
        let leading = lab.begin(&queue, stop).await;
        let granted = || lab.grant(&lab.job("t"));
        let refused = async |job: SharedJob, grant: SignedJobGrant| {
            let ended = lab
                .take_part((job, &queue), grant, TransportChoice::Tcp)
                .await;
            ended.unwrap_err().to_string()
        };
        let other_node = JobGrant {
            node: lab.key_of("other"),
            ..granted()
        };
        let of_another = refused(lab.job("t"), lab.signed(other_node)).await;
        assert!(
            of_another.contains("for the key of another node"),
            "{of_another}"
        );
        let stranger = Identity::load_or_create(&lab.home("other")).unwrap();
        let foreign = refused(lab.job("t"), stranger.sign_job_grant(granted()).unwrap()).await;
        assert!(foreign.contains("is not allowed here"), "{foreign}");
        let over = JobGrant {
            not_before: now() - 9,
            not_after: now() - 1,
            ..granted()
        };
        let over = refused(lab.job("t"), lab.signed(over)).await;
        assert!(over.contains(": it expired "), "{over}");
        let another = SharedJob {
            id: SharedJobId([9; 16]),
            ..lab.job("t")
        };
        let another = refused(another, lab.signed(granted())).await;
        assert!(another.contains("another job"), "{another}");
        for target in ["", "t/..", "u", "t/run7"] {
            let refused = refused(lab.job(target), lab.signed(granted())).await;
            assert!(refused.contains("another target"), "{target}: {refused}");
        }
        let mut limited = lab.job("t");
        limited.open.extensions = critical_extension();
        let not_known = "unknown extension 9 of the opening";
        let in_the_grant = refused(lab.job("t"), lab.signed(lab.grant(&limited))).await;
        assert!(in_the_grant.contains(not_known), "{in_the_grant}");
        let in_the_opening = refused(limited, lab.signed(granted())).await;
        assert!(in_the_opening.contains(not_known), "{in_the_opening}");
        // The head's own permissions end at its root.
        let climbs = "'.' or '..' in a path";
        for (target, why) in [
            ("..", climbs),
            ("t/../..", climbs),
            ("/", "lies in none of the roots"),
        ] {
            let grant = lab.signed(lab.grant(&lab.job(target)));
            let refused = refused(lab.job(target), grant).await;
            assert!(refused.contains(why), "{target}: {refused}");
        }
        end.send(()).unwrap();
        assert!(matches!(leading.await.unwrap(), Err(JobError::Interrupted)));
    });
    assert_eq!(crate::support::tree::names(&lab.site.path("shared")), ["t"]);
}

#[test]
fn a_grant_is_refused_after_its_job_has_ended() {
    let lab = Lab::new(1);
    paint(lab.site.source().join("f"), 10);
    runtime().block_on(async {
        let queue = HookedQueue::new(Idle);
        let (end, stop) = oneshot::channel();
        let leading = lab.begin(&queue, stop).await;
        end.send(()).unwrap();
        leading.await.unwrap().unwrap_err();
        let grant = lab.signed(lab.grant(&lab.job("t")));
        let ended = lab
            .take_part((lab.job("t"), &queue), grant, TransportChoice::Tcp)
            .await;
        let refused = ended.unwrap_err().to_string();
        assert!(refused.contains("is not under way"), "{refused}");
    });
}

/// Makes a node take part until its session is ended, and returns the reason.
fn cut_off(lab: &Lab, grant: JobGrant, meanwhile: impl FnOnce() + Send + 'static) -> String {
    runtime().block_on(async {
        let queue = HookedQueue::new(Idle);
        let (_go_on, stop) = oneshot::channel();
        let _leading = lab.begin(&queue, stop).await;
        let meanwhile = tokio::task::spawn_blocking(meanwhile);
        let ended = lab
            .take_part(
                (lab.job("t"), &queue),
                lab.signed(grant),
                TransportChoice::Tcp,
            )
            .await;
        meanwhile.await.unwrap();
        ended.unwrap_err().to_string()
    })
}

#[test]
fn a_node_s_session_ends_with_its_grant() {
    let lab = Lab::new(1);
    let grant = JobGrant {
        // The session must begin before the grant expires.
        not_after: now() + 20,
        ..lab.grant(&lab.job("t"))
    };
    let refused = cut_off(&lab, grant, || {});
    // After that, the node is not authorized again.
    assert!(refused.contains(": it expired "), "{refused}");
    let broken = lab.receivers[0].wait_for_log("broken off by node ");
    assert!(
        broken.contains("the grant of this node for the job has expired"),
        "{broken}"
    );
}

#[test]
fn a_node_s_session_ends_when_the_operator_removes_its_head_s_key() {
    let lab = Lab::new(1);
    let grant = lab.grant(&lab.job("t"));
    let mut removal = lab.zmove("receiver0", &["allow", "remove", "ann", "--now"]);
    removal.0.env("ZMOVE_HOME", lab.receiver_home(0));
    let daemon = &lab.receivers[0];
    let (told_in, told) = std::sync::mpsc::channel();
    let refused = std::thread::scope(|scope| {
        scope.spawn(move || {
            daemon.wait_for_log("begun by node ");
            told_in.send(()).unwrap();
        });
        cut_off(&lab, grant, move || {
            told.recv().unwrap();
            removal.outcome().expect(0);
        })
    });
    assert!(
        refused.contains("is not allowed here") || refused.contains("removed this key"),
        "{refused}"
    );
    let broken = daemon.wait_for_log("broken off by node ");
    assert!(broken.contains("removed this key"), "{broken}");
}

/// An older receiver reads a grant as an additional certificate.
#[test]
fn a_node_without_a_line_and_with_an_invalid_grant_is_refused() {
    let lab = Lab::new(1);
    let mut signed = lab.signed(lab.grant(&lab.job("t")));
    signed.text.truncate(40);
    let queue = HookedQueue::new(Idle);
    let ended =
        runtime().block_on(lab.take_part((lab.job("t"), &queue), signed, TransportChoice::Tcp));
    let refused = ended.unwrap_err().to_string();
    assert!(refused.contains("it cannot be decoded"), "{refused}");
    lab.receivers[0].wait_for_log("with an invalid grant");
}
