//! One run: its duration, the CPU time, and whether the copy is correct.
//!
//! The time starts with the first client and ends when all clients have ended and the target's file system is synced.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::syncfs;
use serde::Serialize;

use super::data;
use super::fpsync::{self, Workers};
use super::model::Model;
use super::stand::{Node, Stand};
use super::{Lab, Method};
use crate::data::datasets::DataSet;
use crate::data::trees::{self, Modes};
use crate::measurements::late::shared::Charges;
use crate::measurements::measure::first_byte::FirstByte;
use crate::measurements::measure::race::{self, Verdict};
use crate::processes::run as programs;
use crate::processes::session::Session;

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    #[serde(flatten)]
    pub(super) verdict: Verdict,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) first_byte_seconds: Option<f64>,
    /// Fraction of the time in which the machine's processors were idle, from 0 to 1.
    pub(super) idle: f64,
    /// CPU time of all processes of the nodes, including the broker, in seconds.
    pub(super) cpu_seconds: f64,
    /// Bytes that the receivers' links have carried in both directions. Data that was sent twice is visible here.
    pub(super) wire_bytes: u64,
    /// The charges of the model of a cluster file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) charges: Option<Charges>,
}

/// The location of the target.
#[derive(Debug)]
pub(super) struct Place {
    root: PathBuf,
    /// Whether the directory must be removed. A file system of the lab is removed with the lab.
    is_borrowed: bool,
}

impl Place {
    /// Creates the target in a directory, or in a file system in memory.
    pub(super) fn open(session: &Session, directory: Option<&Path>) -> Result<Self> {
        let Some(directory) = directory else {
            let root = session.subdirectory("target")?;
            programs::line(&format!("mount -t tmpfs zmove-lab {}", root.display()))?;
            return Ok(Self {
                root,
                is_borrowed: false,
            });
        };
        let root = directory.join(format!("zmove-lab-{}", session.id()));
        fs::create_dir_all(&root).with_context(|| format!("failed to make {}", root.display()))?;
        let root = root.canonicalize().context("failed to find the target")?;
        Ok(Self {
            root,
            is_borrowed: true,
        })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns an empty directory for a run.
    fn fresh(&self, model: Option<&Model>) -> Result<PathBuf> {
        self.clear(model)?;
        let target = self.root.join("run");
        fs::create_dir(&target).context("failed to make the target")?;
        self.sync()?;
        Ok(target)
    }

    /// Removes everything that a run has left, including the directory of its job.
    fn clear(&self, model: Option<&Model>) -> Result<()> {
        for name in trees::names(&self.root)? {
            fs::remove_dir_all(self.root.join(&name)).context("failed to empty the target")?;
            model.map_or(Ok(()), |model| model.forget(&name))?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let root = File::open(&self.root).context("failed to open the target")?;
        syncfs(&root).context("failed to sync the target")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_borrowed {
            let _best_effort = fs::remove_dir_all(&self.root);
        }
    }
}

/// The clients of a run, and the processes that work for them. The copy ends when the clients end.
struct Crew {
    clients: Vec<Command>,
    movers: Vec<Child>,
    /// The workers of fpsync.
    workers: Option<Workers>,
}

impl Crew {
    /// Returns the CPU time of all processes so far.
    fn cpu_time(&self, stand: &Stand<'_>) -> Result<Duration> {
        let workers = self
            .workers
            .as_ref()
            .map_or(Ok(Duration::ZERO), |workers| workers.group.cpu_time())?;
        Ok(stand.group.cpu_time()? + workers)
    }
}

/// Copies a data set into an empty directory.
pub(super) fn run(
    lab: &Lab<'_>,
    stand: &Stand<'_>,
    method: Method,
    data: &DataSet,
) -> Result<Figures> {
    let (place, model) = (lab.place, stand.model.as_ref());
    let target = place.fresh(model)?;
    let mut crew = assemble(lab, stand, method, data, &target)?;
    race::settle(lab.arguments.settle.longest())?;
    let timed = timed(lab, stand, method, &mut crew);
    drop(crew.workers);
    for mut mover in crew.movers {
        mover.kill().context("failed to end a mover")?;
        mover.wait().context("failed to wait for a mover")?;
    }
    let mut figures = Figures {
        bytes: data.bytes,
        ..timed?
    };
    if figures.verdict == Verdict::Right
        && let Some(difference) = trees::difference(&data.root, &target, Modes::Compared)?
    {
        figures.verdict = Verdict::Wrong(difference);
    }
    place.clear(model)?;
    Ok(figures)
}

fn assemble(
    lab: &Lab<'_>,
    stand: &Stand<'_>,
    method: Method,
    data: &DataSet,
    target: &Path,
) -> Result<Crew> {
    let source = format!("{}/", data.root.display());
    let receivers: Vec<String> = stand
        .receivers
        .iter()
        .map(|receiver| receiver.listens_at())
        .collect();
    let target = target.display();
    let (mut movers, mut workers) = (Vec::new(), None);
    let clients = match method {
        Method::Single | Method::OneSender => {
            let (sender, to) = match method {
                Method::Single => (&stand.senders[0], receivers[0].clone()),
                _ => (&stand.wide_sender, receivers.join(",")),
            };
            let mut push = stand.command(sender)?;
            push.args(["push", "--json", &source, &format!("{to}:{target}/")]);
            vec![push]
        }
        Method::Shares => {
            let mut pushes = Vec::new();
            let shares = data::shares(data, stand.nodes())?;
            for (number, ((sender, receiver), share)) in
                stand.senders.iter().zip(&receivers).zip(shares).enumerate()
            {
                let list = stand.scratch.join(format!("share{number}"));
                fs::write(&list, share.join("\n") + "\n").context("failed to write a share")?;
                let mut push = stand.command(sender)?;
                push.args(["push", "--json", "--files-from"]).arg(&list);
                push.args([&source, &format!("{receiver}:{target}/")]);
                pushes.push(push);
            }
            pushes
        }
        Method::Cluster => {
            movers = join(stand, &receivers)?;
            let mut push = stand.command(&stand.senders[0])?;
            push.args([
                "push",
                "--json",
                "--cluster",
                CLUSTER,
                &source,
                &format!("{target}/"),
            ]);
            vec![push]
        }
        Method::Fpsync => {
            let ssh = lab.ssh.context("fpsync's workers have no keys")?;
            let (started, command) =
                fpsync::start(stand, ssh, lab.session, [&source, &target.to_string()])?;
            workers = Some(started);
            vec![command]
        }
    };
    Ok(Crew {
        clients,
        movers,
        workers,
    })
}

/// Joins the nodes to a cluster and starts their movers. The first sender is the head. Its push starts the broker and
/// moves data too. The movers of the other senders wait for it.
fn join(stand: &Stand<'_>, receivers: &[String]) -> Result<Vec<Child>> {
    let head = &stand.senders[0];
    if !head
        .home
        .join("clusters")
        .join(CLUSTER)
        .with_extension("toml")
        .exists()
    {
        let broker = head.at(BROKER_PORT);
        let mut words = vec!["cluster", "init", "--local", &broker, CLUSTER];
        words.extend(receivers.iter().map(String::as_str));
        stand.output(head, &words)?;
    }
    let movers = stand.senders[1..]
        .iter()
        .enumerate()
        .map(|(number, sender)| {
            let invitation = stand.scratch.join(format!("mover{number}.toml"));
            if !invitation.exists() {
                let output = invitation
                    .to_str()
                    .context("the lab's directory is not UTF-8")?;
                stand.output(head, &["cluster", "invite", CLUSTER, "-o", output])?;
            }
            let log = File::create(stand.scratch.join(format!("mover{number}.log")))?;
            let mut mover = stand.command(sender)?;
            mover
                .args(["cluster", "join"])
                .arg(&invitation)
                .stdout(log.try_clone()?)
                .stderr(log);
            mover.spawn().context("failed to start a mover")
        });
    movers.collect()
}

fn timed(lab: &Lab<'_>, stand: &Stand<'_>, method: Method, crew: &mut Crew) -> Result<Figures> {
    let watch = FirstByte::watch(lab.place.root())?;
    let timeout = Duration::from_secs(lab.arguments.timeout);
    let receivers = match method {
        Method::Fpsync => std::slice::from_ref(&stand.wide_receiver),
        _ => &stand.receivers,
    };
    thread::scope(|scope| {
        let (stopped_watching, stop_watching) = std::io::pipe().context("failed to make a pipe")?;
        let first = scope.spawn(move || watch.wait(&stopped_watching));
        let cpu_before = crew.cpu_time(stand)?;
        let carried_before = carried_bytes(receivers)?;
        stand.model.iter().for_each(Model::begin);
        let before = race::processor_ticks()?;
        let start = Instant::now();
        let verdict = wait_for_all(stand, &mut crew.clients, start + timeout)?;
        lab.place.sync()?;
        let seconds = start.elapsed().as_secs_f64();
        let after = race::processor_ticks()?;
        let charges = stand.model.as_ref().map(Model::charges);
        let cpu_seconds = (crew.cpu_time(stand)? - cpu_before).as_secs_f64();
        drop(stop_watching);
        let first = first
            .join()
            .map_err(|_| anyhow::anyhow!("the watching thread panicked"))?;
        Ok(Figures {
            verdict,
            bytes: 0,
            seconds,
            first_byte_seconds: first.map(|first| (first - start).as_secs_f64()),
            idle: idle_share(before, after),
            cpu_seconds,
            wire_bytes: carried_bytes(receivers)? - carried_before,
            charges,
        })
    })
}

/// Returns the bytes that the links of these nodes have carried so far.
fn carried_bytes(nodes: &[Node]) -> Result<u64> {
    nodes.iter().map(|node| node.host.carried_bytes()).sum()
}

fn wait_for_all(stand: &Stand<'_>, clients: &mut [Command], deadline: Instant) -> Result<Verdict> {
    let mut started = Vec::new();
    for (number, client) in clients.iter_mut().enumerate() {
        let create =
            |kind: &str| File::create(log(stand, number, kind)).context("failed to create a log");
        client.stdout(create("json")?).stderr(create("log")?);
        started.push(client.spawn().context("failed to start a client")?);
    }
    let mut verdict = Verdict::Right;
    for (number, client) in started.iter_mut().enumerate() {
        let status = race::wait_until(client, deadline)?;
        if status.is_none() {
            client.kill().context("failed to end a client")?;
            client.wait().context("failed to wait for a client")?;
        }
        if verdict == Verdict::Right {
            verdict = race::verdict(status, &log(stand, number, "log"));
        }
    }
    Ok(verdict)
}

fn log(stand: &Stand<'_>, client: usize, kind: &str) -> PathBuf {
    stand.scratch.join(format!("client{client}.{kind}"))
}

#[expect(clippy::cast_precision_loss, reason = "ticks of some minutes")]
fn idle_share(before: (u64, u64), after: (u64, u64)) -> f64 {
    let (busy, all) = (after.0 - before.0, (after.1 - before.1).max(1));
    1.0 - busy as f64 / all as f64
}

const CLUSTER: &str = "lab";
const BROKER_PORT: u16 = 4222;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_what_is_not_busy() {
        assert!((idle_share((100, 1_000), (175, 1_100)) - 0.25).abs() < 1e-9);
        assert!(
            (idle_share((5, 10), (5, 10)) - 1.0).abs() < 1e-9,
            "no tick has passed"
        );
    }
}
