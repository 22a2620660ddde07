//! `zmove push --cluster`: nodes, receivers and a broker in separate processes, with the real `nats-server`.

mod absent;
mod dead_head;
mod sources;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use zmove_cluster::jetstream::{Access as BrokerAccess, JobKey, LocalBroker, Notice, NoticeBoard};
use zmove_transport::{Access, AuthorizedKeys, Grant, Identity};

use crate::commands::jobs::wait_for;
use crate::commands::schema::{fault, schema};
use crate::connections::breakage::interruption;
use crate::connections::clock::Clock;
use crate::support::command::{Outcome, Running, ZMOVE, Zmove, finish, wait_within_patience};
use crate::support::daemon::Daemon;
use crate::support::harness::{PATIENCE, Site, allow_to_lead, is_root, skip};
use crate::support::ports::{free_address, free_port};
use crate::support::quiet_machine::calm_machine;
use crate::support::tree::{assert_same, paint};

/// Receivers that share a directory, and a head that has created a cluster of them.
struct Lab {
    site: Site,
    daemons: Vec<Daemon>,
    /// Port of the broker.
    port: u16,
}

/// A node that waits for jobs, with its output.
struct Node {
    process: Running,
    said: mpsc::Receiver<String>,
}

impl Node {
    /// Waits for a line that contains `part`.
    #[track_caller]
    fn wait_for(&self, part: &str) {
        let until = Instant::now() + PATIENCE;
        let mut others = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let said = self.said.recv_timeout(left);
            let line =
                said.unwrap_or_else(|_| panic!("the node has not said {part:?}, but {others:?}"));
            if line.contains(part) {
                return;
            }
            others.push(line);
        }
    }

    /// Waits for the node to end and returns its exit code.
    #[track_caller]
    fn exit(&mut self) -> Option<i32> {
        wait_within_patience(&mut self.process.0)
    }
}

const HEAD: &str = "head";

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

impl Lab {
    /// Returns `None` if nats-server is missing, unless the lab requires it.
    fn new(receivers: usize) -> Option<Self> {
        Self::at(Site::local(), receivers)
    }

    /// Creates a lab at a site, with the site's program for all hosts.
    fn at(site: Site, receivers: usize) -> Option<Self> {
        if !has_nats_server() {
            skip("there is no nats-server");
            return None;
        }
        std::fs::create_dir_all(site.path("shared")).unwrap();
        let port = free_port();
        let mut lab = Self {
            site,
            daemons: Vec::new(),
            port,
        };
        for number in 0..receivers {
            let home = lab.receiver_home(number);
            std::fs::create_dir_all(&home).unwrap();
            // A case may restart a receiver at its address.
            let listen = free_address().to_string();
            lab.daemons
                .push(Daemon::start(&home, &listen, &lab.site.runner));
        }
        lab.allow(HEAD);
        Some(lab)
    }

    fn receiver_home(&self, number: usize) -> PathBuf {
        self.site.path(&format!("receiver{number}"))
    }

    /// Authorizes a node at all receivers.
    fn allow(&self, node: &str) {
        self.allow_below(node, "shared");
    }

    fn allow_below(&self, node: &str, root: &str) {
        (0..self.daemons.len()).for_each(|number| self.allow_at(number, node, root));
    }

    fn allow_at(&self, number: usize, node: &str, root: &str) {
        let key = Identity::load_or_create(&self.site.path(node))
            .unwrap()
            .fingerprint();
        let roots = vec![self.site.path(root).canonicalize().unwrap()];
        let (home, grant) = (
            self.receiver_home(number),
            Grant::new(key, node, roots, Access::ReadWrite),
        );
        AuthorizedKeys::remove(&home, node).unwrap();
        allow_to_lead(&home, grant);
    }

    fn zmove(&self, node: &str, words: &[&str]) -> Zmove {
        let mut zmove = self.site.runner.zmove(&self.site.path(node));
        zmove.0.args(words);
        zmove
    }

    fn init(&self, broker: &[&str]) -> Outcome {
        let hosts: Vec<_> = self
            .daemons
            .iter()
            .map(|daemon| daemon.address.to_string())
            .collect();
        let words = ["cluster", "init", "lab", "--accept-new"];
        let mut zmove = self.zmove(HEAD, &words);
        zmove.0.args(hosts).args(broker);
        zmove.outcome()
    }

    /// Creates a cluster whose broker is started by each push.
    fn init_with_own_broker(&self) {
        self.init(&["--local", &format!("127.0.0.1:{}", self.port)])
            .done();
    }

    /// Creates an invitation for a node and returns its file.
    fn invite(&self, node: &str) -> PathBuf {
        let file = self.site.path(&format!("{node}.toml"));
        self.zmove(
            HEAD,
            &["cluster", "invite", "lab", "-o", file.to_str().unwrap()],
        )
        .outcome()
        .done();
        file
    }

    /// Makes a node join the cluster. `before` is a command prefix.
    fn join(&self, node: &str, before: &[&str]) -> Node {
        self.join_by(&self.invite(node), node, before)
    }

    fn join_by(&self, invitation: &Path, node: &str, before: &[&str]) -> Node {
        let program = self
            .site
            .runner
            .program
            .as_deref()
            .unwrap_or(Path::new(ZMOVE));
        let words = before.iter().map(OsStr::new).chain([program.as_os_str()]);
        let words: Vec<_> = words.chain(["cluster", "join"].map(OsStr::new)).collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .arg(invitation)
            .env("ZMOVE_HOME", self.site.path(node));
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (heard, said) = mpsc::channel();
        let outputs: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        for output in outputs {
            let (lines, heard) = (BufReader::new(output).lines(), heard.clone());
            std::thread::spawn(move || {
                lines
                    .map_while(Result::ok)
                    .try_for_each(|line| heard.send(line))
            });
        }
        Node {
            process: Running(child),
            said,
        }
    }

    /// A push that takes some seconds.
    fn push(&self, options: &[&str]) -> Zmove {
        self.push_at("10MB", "t", options)
    }

    fn push_at(&self, limit: &str, target: &str, options: &[&str]) -> Zmove {
        let mut zmove = self.zmove(HEAD, &["push", "--cluster", "lab", "--limit", limit]);
        zmove
            .0
            .args(options)
            .arg(self.source().join(""))
            .arg(target);
        zmove
    }

    /// Kills a push after its job has begun.
    fn kill_when_begun(&self, push: Zmove) {
        let mut push = push.start();
        self.daemons[0].wait_for_log("begun by head");
        push.kill().unwrap();
        push.wait().unwrap();
    }

    fn source(&self) -> PathBuf {
        self.site.path("source")
    }

    fn paint(&self) {
        for directory in 0..40 {
            let directory = self.source().join(format!("d{directory}"));
            std::fs::create_dir_all(&directory).unwrap();
            (0..10_u64).for_each(|file| paint(directory.join(format!("f{file}")), 50_000 + file));
        }
        paint(self.source().join("large"), (10 << 20) + 1);
    }

    /// Creates enough files for several nodes. A node takes some 32 MiB at a time.
    fn paint_more(&self) {
        self.paint();
        (0..6).for_each(|number| paint(self.source().join(format!("larger{number}")), 48 << 20));
    }

    /// Creates a tree for a push that does not begin.
    fn paint_one(&self) {
        paint(self.source().join("f"), 10);
    }

    fn assert_done(&self) {
        let target = self.site.path("shared/t");
        crate::support::tree::set_old(self.source());
        crate::support::tree::set_old(target.as_path());
        assert_same(&self.source(), &target);
    }

    /// Starts a broker independent of the push.
    fn start_broker(&self) -> Running {
        self.start_broker_with(&["-js", "-sd", self.site.path("broker").to_str().unwrap()])
    }

    fn start_broker_with(&self, options: &[&str]) -> Running {
        let mut command = nats_server();
        command
            .args(["-a", "127.0.0.1", "-p", &self.port.to_string()])
            .args(options);
        let broker = command.stderr(Stdio::null()).spawn().unwrap();
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < until, "the broker does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Running(broker)
    }

    /// Returns a value in the cluster's file.
    fn value(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.site.path("head/clusters/lab.toml")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim_matches(['=', ' ', '"']).to_owned()
    }

    /// Returns the key of the cluster.
    fn key(&self) -> JobKey {
        JobKey::new(zmove_types::from_hex(self.value("key").as_bytes()).unwrap())
    }

    /// Waits until a node reports a grant that expires later than `before`, in seconds since 1970. Returns its expiry.
    fn wait_for_grant_until(&self, before: u64) -> u64 {
        let key = self.key();
        let access = BrokerAccess {
            urls: vec![self.broker()],
            credentials: Some(self.value("credentials")),
            ..BrokerAccess::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let hear = async {
            let notices = NoticeBoard::open(&access, &key).await.unwrap();
            loop {
                let heard = notices.hear().await;
                if let Ok(Notice::Node(node)) = heard
                    && let Some(part) = node.part
                    && let Some(until) = part.granted_until.filter(|until| *until > before)
                {
                    return until;
                }
            }
        };
        runtime
            .block_on(async { tokio::time::timeout(PATIENCE, hear).await })
            .expect("no such grant")
    }

    fn has_broker(&self) -> bool {
        std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }

    fn broker(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

pub(crate) fn has_nats_server() -> bool {
    nats_server().arg("--version").output().is_ok()
}

fn nats_server() -> Command {
    let debian = Path::new("/usr/sbin/nats-server");
    Command::new(if debian.exists() {
        debian
    } else {
        Path::new("nats-server")
    })
}

/// Asserts that the summary names this number of nodes.
#[track_caller]
fn assert_done_by(outcome: &Outcome, nodes: &str) {
    let told = &outcome.stdout;
    assert!(told.contains(&format!(", by {nodes}\n")), "{told}");
}

/// Asserts that two nodes have done the job, and that none was excluded.
#[track_caller]
fn assert_both_took_part(outcome: &Outcome) {
    assert_done_by(outcome, "2 nodes");
    let told = &outcome.stderr;
    assert!(!told.contains("takes no part"), "{told}");
}

/// Asserts that zmove itself printed every message, and that no library printed one.
#[track_caller]
fn assert_own_words(outcome: &Outcome) {
    let others: Vec<_> = outcome
        .stderr
        .lines()
        .filter(|line| !line.starts_with("zmove: "))
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn two_nodes_do_one_job_and_the_broker_ends_with_it() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint_more();
    lab.allow("other");
    let node = lab.join("other", &[]);
    node.wait_for("waiting for the broker");
    let outcome = lab.push(&[]).outcome().expect(0);
    assert_done_by(&outcome, "2 nodes");
    assert!(!outcome.stdout.contains("at least"), "{}", outcome.stdout);
    assert_own_words(&outcome);
    node.wait_for("has ended");
    lab.assert_done();
    assert!(!lab.has_broker(), "the broker is there still");
    let summary = lab.push(&["--json"]).outcome().expect(0).summary();
    assert_eq!(
        fault(&schema("events.json")["$defs"]["summary"], &summary),
        None
    );
    let of_one_session = [
        "lanes",
        "limited_by",
        "limited_percent",
        "shares_percent",
        "flush_seconds",
    ];
    assert!(
        of_one_session.iter().all(|field| summary[field].is_null()),
        "{summary}"
    );
    assert_eq!(summary["cipher"], "tls");
    assert_eq!(summary["skipped"], 407);
    assert_eq!(summary["inexact"], false);
}

#[test]
fn a_push_waits_for_a_broker_that_is_killed_and_loses_everything() {
    let Some(lab) = Lab::new(2) else { return };
    let broker = lab.start_broker();
    lab.init(&["--nats", &lab.broker()]).done();
    lab.paint();
    let push = lab.push_at("2500kB", "t", &[]).start();
    let has_come = |directory| lab.site.path(&format!("shared/t/d{directory}/f0")).exists();
    wait_for("file at the target", || (0..40).any(has_come));
    drop(broker);
    std::fs::remove_dir_all(lab.site.path("broker")).unwrap();
    let _broker = lab.start_broker();
    let outcome = finish(push)
        .expect(0)
        .says(&["the broker", "is unreachable: the job is waiting for it"])
        .says(&["the broker", "is reachable again after"])
        .says(&["scanning the sources again"]);
    assert_own_words(&outcome);
    let stdout = &outcome.stdout;
    assert!(stdout.starts_with("at least "), "{stdout}");
    lab.assert_done();
}

#[test]
fn the_broker_of_a_killed_push_ends_with_it() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint();
    lab.kill_when_begun(lab.push(&[]));
    wait_for("end of the broker", || !lab.has_broker());
    let outcome = lab.push(&[]).outcome().expect(0);
    assert!(!outcome.stderr.contains("broker"), "{}", outcome.stderr);
    assert!(!lab.has_broker(), "the broker is there still");
    lab.assert_done();
}

#[test]
fn a_second_push_uses_the_broker_of_the_first_and_reports_its_end() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint();
    let starter = lab.push_at("500kB", "t", &[]).start();
    lab.daemons[0].wait_for_log("begun by head");
    let outcome = lab.push_at("1GB", "u", &[]).outcome().expect(0);
    assert!(!outcome.stderr.contains("broker"), "{}", outcome.stderr);
    let other = lab.push_at("500kB", "v", &["--timeout", "1s"]).start();
    wait_for("beginning of the other push", || {
        lab.site.path("shared/v").exists()
    });
    signal(&starter, interruption());
    finish(starter).expect(20);
    finish(other)
        .expect(12)
        .says(&["the broker", &lab.broker(), "has been unreachable for 1"]);
    assert!(!lab.has_broker(), "the broker is there still");
}

#[test]
fn a_receiver_that_a_node_loses_is_reported_at_the_head() {
    let Some(mut lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint_more();
    let node = lab.join("other", &[]);
    node.wait_for("waiting for the broker");
    let push = lab.push(&[]).start();
    lab.daemons[1].wait_for_log("begun by node ");
    lab.daemons[1].kill();
    let outcome = finish(push).expect(0);
    let tried_next = format!("; {} is tried next (at ", lab.daemons[0].address);
    let told = outcome
        .stderr
        .lines()
        .filter(|line| line.contains(&tried_next))
        .count();
    assert_eq!(told, 1, "{}", outcome.stderr);
    lab.assert_done();
}

#[test]
fn another_program_at_the_address_of_a_broker_of_a_push_is_reported() {
    let Some(lab) = Lab::new(1) else { return };
    lab.init_with_own_broker();
    lab.paint_one();
    let taken = format!("another program is listening on 127.0.0.1:{}", lab.port);
    let other = TcpListener::bind(("127.0.0.1", lab.port)).unwrap();
    lab.push(&[]).outcome().expect(10).says(&[&taken]);
    drop(other);
    let broker = lab.start_broker();
    lab.push(&[]).outcome().expect(10).says(&[&taken]);
    drop(broker);
    assert!(!lab.site.path("shared/t").exists(), "nothing has begun");
    lab.push(&[]).outcome().expect(0);
}

#[test]
fn a_node_that_the_broker_does_not_let_in_says_so_and_waits() {
    let Some(lab) = Lab::new(1) else { return };
    let seed = LocalBroker::new_seed().unwrap();
    let file = lab.site.path("seed");
    std::fs::write(&file, &seed).unwrap();
    let file = file.to_str().unwrap();
    let configuration = lab.site.path("nats.conf");
    let write = |user: &str| {
        let text = format!(
            "jetstream {{ store_dir: \"{}\" }}\nauthorization {{ users: [{{ {user} }}] }}\n",
            lab.site.path("broker").display()
        );
        std::fs::write(&configuration, text).unwrap();
    };
    write("user: somebody, password: else");
    let broker = lab.start_broker_with(&["-c", configuration.to_str().unwrap()]);
    lab.init(&["--nats", &lab.broker(), "--nats-credentials", file])
        .done();
    lab.paint_one();
    let node = lab.join("node", &[]);
    let refused = "refuses this node: authorization violation";
    node.wait_for(refused);
    lab.push(&[]).outcome().expect(5).says(&[refused]);
    lab.zmove(HEAD, &["cluster", "status", "lab"])
        .outcome()
        .expect(5)
        .says(&[refused]);
    write(&format!("nkey: {}", LocalBroker::nkey_of(&seed).unwrap()));
    signal(&broker.0, Signal::HUP);
    node.wait_for(" waits for jobs of lab at ");
    lab.push(&[]).outcome().expect(0);
}

#[test]
fn a_broker_that_stays_unreachable_ends_the_push_and_is_named() {
    let Some(lab) = Lab::new(1) else { return };
    let broker = lab.start_broker();
    lab.init(&["--nats", &lab.broker()]).done();
    lab.paint();
    let push = lab.push_at("1MB", "t", &["--timeout", "1s"]).start();
    lab.daemons[0].wait_for_log("begun by head");
    drop(broker);
    let outcome = finish(push).expect(12);
    let away = lab.broker() + " is unreachable";
    let outcome = outcome.says(&["the broker", &away]).says(&[
        "the broker",
        &lab.broker(),
        "has been unreachable for 1",
    ]);
    assert!(
        !outcome.stderr.contains("tried next") && !outcome.stderr.contains("no receiver"),
        "{}",
        outcome.stderr
    );
    let _broker = lab.start_broker();
    lab.push(&[]).outcome().expect(0);
    lab.assert_done();
}

#[test]
fn a_push_is_interrupted_within_seconds_whatever_stands_still() {
    let _calm = calm_machine();
    let Some(lab) = Lab::new(2) else { return };
    let broker = lab.start_broker();
    lab.init(&["--nats", &lab.broker()]).done();
    lab.paint();
    let broker_stops = || signal(&broker.0, Signal::STOP);
    let receiver_stops = || lab.daemons[1].signal(Signal::STOP);
    let nothing_stops = || {};
    let stops: [&dyn Fn(); 3] = [&nothing_stops, &receiver_stops, &broker_stops];
    for (number, stop) in stops.into_iter().enumerate() {
        // A push may restart sessions.
        let before = lab.daemons[0].count_logged("begun by head");
        let push = lab.push_at("1MB", "t", &[]).start();
        lab.daemons[0].wait_for_logs("begun by head", before + 2);
        stop();
        let began = Instant::now();
        signal(&push, interruption());
        finish(push).expect(20);
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{number}: {:?}",
            began.elapsed()
        );
        lab.daemons[1].signal(Signal::CONT);
        signal(&broker.0, Signal::CONT);
    }
    lab.push(&[]).outcome().expect(0);
    lab.assert_done();
}

/// Without a broker no job has begun.
#[test]
fn a_push_without_a_broker_says_which_and_a_push_that_waits_is_interrupted() {
    let _calm = calm_machine();
    let Some(lab) = Lab::new(1) else { return };
    lab.init(&["--nats", &lab.broker()]).done();
    lab.paint_one();
    lab.push(&[])
        .outcome()
        .expect(10)
        .says(&["the broker", &lab.broker(), "cannot be used"]);
    // A listener that accepts connections and sends nothing.
    let silent = TcpListener::bind(("127.0.0.1", lab.port)).unwrap();
    let push = lab.push(&[]).start();
    let _connection = silent.accept().unwrap();
    assert_interrupted_at_once(push);
}

#[track_caller]
fn assert_interrupted_at_once(push: Child) {
    let began = Instant::now();
    signal(&push, interruption());
    finish(push).expect(20);
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn a_push_whose_broker_has_no_queues_is_interrupted_at_once() {
    let _calm = calm_machine();
    let Some(lab) = Lab::new(1) else { return };
    let log = lab.site.path("broker.log");
    let _broker = lab.start_broker_with(&["-DV", "-l", log.to_str().unwrap()]);
    lab.init(&["--nats", &lab.broker()]).done();
    lab.paint_one();
    let push = lab.push(&[]).start();
    wait_for("question of the push", || {
        std::fs::read_to_string(&log).unwrap().contains("$JS.API.")
    });
    assert_interrupted_at_once(push);
}

#[test]
fn the_last_refusal_names_no_other_receiver() {
    let Some(lab) = Lab::new(2) else { return };
    let _broker = lab.start_broker();
    lab.paint_one();
    let [first, second] = [0, 1].map(|number: usize| lab.daemons[number].address.to_string());
    let init = [
        "cluster",
        "init",
        "lab",
        "--accept-new",
        "--nats",
        &lab.broker(),
        &first,
    ];
    let push = |node| {
        let mut push = lab.zmove(node, &["push", "--cluster", "lab"]);
        push.0.arg(lab.source()).arg("t");
        push.outcome().expect(5)
    };
    lab.zmove("one", &init).outcome().done();
    push("one").lines(1);
    lab.zmove("two", &[&init[..], &[&second]].concat())
        .outcome()
        .done();
    let refusals = [
        format!(" (at {first}); {second} is tried next"),
        format!(" (at {second})"),
    ];
    let outcome = push("two").lines(2);
    let mut told = outcome.stderr.lines().zip(refusals);
    assert!(
        told.all(|(line, refusal)| line.ends_with(&refusal)),
        "each is told by whom: {}",
        outcome.stderr
    );
}

/// Otherwise the node would continue alone, and wait forever if nobody closes the queue.
#[test]
fn a_node_gives_up_a_job_that_nobody_leads_any_more() {
    let Some(lab) = Lab::new(2) else { return };
    let _broker = lab.start_broker();
    lab.init(&["--nats", &lab.broker()]).done();
    lab.paint();
    lab.allow("other");
    let node = lab.join("other", &[]);
    let mut push = lab.push(&["--timeout", "0"]).start();
    node.wait_for("begins");
    push.kill().unwrap();
    push.wait().unwrap();
    wait_for("status without a report", || {
        let status = lab.zmove(HEAD, &["cluster", "status", "lab"]);
        let status = status.outcome().done().stdout;
        status.contains(": no report from its push")
    });
    node.wait_for("has sent no report for too long");
    lab.push(&[]).outcome().expect(0);
    lab.assert_done();
}

/// Otherwise the node would record entries as done that it does not find.
#[test]
fn a_node_on_which_the_sources_are_not_mounted_is_told_at_the_head_and_loses_nothing() {
    if !is_root() {
        return skip("to hide a directory from one process takes root");
    }
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint();
    lab.allow("other");
    let empty = lab.site.path("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let hide = format!(
        "mount --bind '{}' '{}' && exec \"$@\"",
        empty.display(),
        lab.source().display()
    );
    let node = lab.join("other", &["unshare", "--mount", "sh", "-c", &hide, "sh"]);
    node.wait_for("waiting for the broker");
    let outcome = lab
        .push_at("2500kB", "t", &[])
        .outcome()
        .expect(0)
        .says(&["takes no part", "is not mounted"]);
    assert_done_by(&outcome, "1 node");
    lab.assert_done();
}

#[test]
fn an_invitation_has_the_credentials_and_is_kept_from_others() {
    let Some(lab) = Lab::new(1) else { return };
    lab.init_with_own_broker();
    let invitation = lab.invite("one");
    let text = std::fs::read_to_string(&invitation).unwrap();
    assert!(
        text.contains(&lab.value("credentials")) && !text.contains("local"),
        "{text}"
    );
    let mode = invitation.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = lab.site.path("one.toml");
    let again = ["cluster", "invite", "lab", "-o", again.to_str().unwrap()];
    lab.zmove(HEAD, &again)
        .outcome()
        .expect(1)
        .says(&["already exists"]);
    // A pipe is private to its processes.
    lab.zmove(HEAD, &["cluster", "invite", "lab"])
        .outcome()
        .done();
    let mut to_file = lab.zmove(HEAD, &["cluster", "invite", "lab"]).0;
    let open = std::fs::File::create(lab.site.path("open.toml")).unwrap();
    open.set_permissions(std::fs::Permissions::from_mode(0o644))
        .unwrap();
    let told = to_file
        .stdout(open)
        .stderr(Stdio::piped())
        .output()
        .unwrap()
        .stderr;
    assert!(
        String::from_utf8_lossy(&told).contains("other users can read"),
        "{told:?}"
    );
}

#[test]
fn an_invitation_that_others_can_read_is_refused() {
    let Some(lab) = Lab::new(1) else { return };
    lab.init_with_own_broker();
    let file = lab.invite("node");
    let join = ["cluster", "join", file.to_str().unwrap()];
    for mode in [0o644, 0o640, 0o604] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let chmod = format!("'chmod 600 {}'", file.display());
        lab.zmove("node", &join)
            .outcome()
            .expect(1)
            .says(&["others can read", &chmod]);
    }
    assert!(!lab.site.path("node/clusters/lab.toml").exists());
}

#[test]
fn several_nodes_join_by_one_invitation() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint_more();
    let invitation = lab.invite("one");
    let nodes = ["one", "two"].map(|node| lab.join_by(&invitation, node, &[]));
    nodes
        .iter()
        .for_each(|node| node.wait_for("waiting for the broker"));
    let outcome = lab.push(&[]).outcome().expect(0);
    assert_done_by(&outcome, "3 nodes");
    lab.assert_done();
}

/// A grant is valid for a day, and the session of a node ends when its grant expires, if not earlier.
#[test]
fn a_push_may_take_longer_than_a_grant_is_valid() {
    let Some((site, clock)) = Clock::site() else {
        return;
    };
    let Some(mut lab) = Lab::at(site, 2) else {
        return;
    };
    lab.init_with_own_broker();
    lab.paint_more();
    let node = lab.join("node", &[]);
    node.wait_for("waiting for the broker");
    let push = lab.push(&[]).start();
    node.wait_for("begins");
    // A stopped receiver keeps the push from ending before the clock has jumped.
    lab.daemons[1].signal(Signal::STOP);
    let first = lab.wait_for_grant_until(0);
    clock.jump("+13h");
    lab.wait_for_grant_until(first);
    clock.jump("+25h");
    for number in 0..2 {
        lab.daemons[number].kill();
        let listen = lab.daemons[number].address.to_string();
        lab.daemons[number] = Daemon::start(&lab.receiver_home(number), &listen, &lab.site.runner);
    }
    let outcome = finish(push).expect(0);
    assert_both_took_part(&outcome);
    assert!(
        lab.daemons
            .iter()
            .any(|daemon| daemon.has_logged("begun by node ")),
        "it has come again"
    );
    lab.assert_done();
}

#[test]
fn a_node_that_is_invited_while_a_push_runs_takes_part() {
    let Some(lab) = Lab::new(2) else { return };
    lab.init_with_own_broker();
    lab.paint_more();
    lab.allow("late");
    let push = lab.push_at("6MB", "t", &[]).start();
    lab.daemons[0].wait_for_log("begun by head");
    let node = lab.join("late", &[]);
    node.wait_for(" waits for jobs of lab at nats://127.0.0.1:");
    finish(push).expect(0);
    assert!(
        lab.daemons
            .iter()
            .any(|daemon| daemon.has_logged("begun by late "))
    );
    lab.assert_done();
}

/// The receivers know the key of the head.
#[test]
fn a_node_whose_key_the_receivers_do_not_know_cannot_lead() {
    let Some(lab) = Lab::new(1) else { return };
    let _broker = lab.start_broker();
    lab.init(&["--nats", &lab.broker()]).done();
    let node = lab.join("invited", &[]);
    node.wait_for(" waits for jobs of lab at ");
    let words = ["push", "--cluster", "lab", "/etc/hostname", "t"];
    lab.zmove("invited", &words).outcome().expect(5);
    assert!(!lab.site.path("shared/t").exists());
}

#[test]
fn invalid_clusters_and_options_are_refused() {
    let Some(lab) = Lab::new(1) else { return };
    let host = lab.daemons[0].address.to_string();
    lab.init(&[]).expect(1).says(&["required arguments"]);
    for url in [
        "http://b:1",
        "nats://b",
        "b:4222",
        "nats://",
        "nats://b:4222/x",
        "nats://b:0",
    ] {
        lab.init(&["--nats", url])
            .expect(1)
            .says(&[url, "nats://HOST:PORT"]);
    }
    for listen in ["0.0.0.0:4222", "127.0.0.1:0", "192.0.2.1:4222"] {
        lab.init(&["--local", listen]).expect(1).says(&[listen]);
    }
    lab.init(&["--nats", "nats://b:4222", &host])
        .expect(1)
        .says(&["is named twice"]);
    let name = host.replace("127.0.0.1", "localhost");
    lab.init(&["--nats", "nats://b:4222", &name])
        .expect(1)
        .says(&["they are the same receiver"]);
    let made = lab.site.path("head/clusters/lab.toml");
    assert!(!made.exists());
    for missing in ["nosuch", "nosuch.toml"] {
        lab.zmove(HEAD, &["cluster", "join", missing])
            .outcome()
            .expect(1)
            .says(&["does not exist"]);
    }
    lab.init_with_own_broker();
    let again = format!("remove '{}' to create it again", made.display());
    lab.init(&["--nats", &lab.broker()])
        .expect(1)
        .says(&[&again]);
    std::fs::remove_file(&made).unwrap();
    lab.init_with_own_broker();
    lab.paint_one();
    for option in ["--ssh", "-essh", "--ssh-ports=5000-5001"] {
        lab.push(&[option])
            .outcome()
            .expect(1)
            .says(&["--cluster", "has no effect"]);
    }
    lab.push(&["--delete"])
        .outcome()
        .expect(1)
        .says(&["not possible with a cluster"]);
    lab.push(&["-H"]).outcome().expect(1).says(&["hard links"]);
}
