//! The programs of a round: receivers, nodes and a broker, and the heads, which come and go.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::acts::{Crowd, Loss, Who};
use super::broker::Broker;
use crate::torture::attempt::PATIENCE;
use crate::torture::dice::Dice;
use crate::torture::programs::{
    CLIENT_HOME, DAEMON_HOME, Daemon, Place, Running, append, free_address_of,
};

/// All programs of a round except the heads.
#[derive(Debug)]
pub(crate) struct Stand {
    pub(crate) place: Place,
    receivers: Vec<Receiver>,
    nodes: Vec<Node>,
    broker: Broker,
}

/// A receiver, and whether this test has ended it.
#[derive(Debug)]
struct Receiver {
    daemon: Daemon,
    is_away: bool,
}

/// A node other than the head.
#[derive(Debug)]
struct Node {
    home: &'static str,
    /// `None` while the node is killed.
    running: Option<Running>,
}

impl Stand {
    /// Starts all programs in the new directory `directory`. Receivers may write below `shared`.
    pub(crate) fn set_up(
        (zmove, directory, shared): (&str, &Path, &Path),
        crowd: Crowd,
        serve: &[&'static str],
        (host, dice): (Ipv4Addr, &mut Dice),
    ) -> Result<Self> {
        let place = Place::prepare(zmove, directory, shared, &GRANTS)?;
        let (homes, nodes) = (
            &RECEIVER_HOMES[..crowd.receivers],
            &NODE_HOMES[..crowd.nodes],
        );
        for home in &homes[1..] {
            place.prepare_another(home, shared, &GRANTS)?;
        }
        for node in nodes {
            place.prepare_client(node, homes, shared, &GRANTS)?;
        }
        let mut receivers = Vec::new();
        for home in homes {
            let address = free_address_of(host, dice)?;
            let daemon = place.serve_from(home, address, serve, log_of(directory, home))?;
            receivers.push(Receiver {
                daemon,
                is_away: false,
            });
        }
        let free_address = || free_address_of(host, dice);
        let broker = Broker::of_lab(crowd.servers, &directory.join("broker"), free_address)?;
        broker.start()?;
        let mut stand = Self {
            place,
            receivers,
            nodes: Vec::new(),
            broker,
        };
        stand.make_cluster()?;
        for home in nodes {
            let mut node = Node {
                home,
                running: None,
            };
            stand.start_node(&mut node)?;
            stand.nodes.push(node);
        }
        Ok(stand)
    }

    fn make_cluster(&self) -> Result<()> {
        let mut words: Vec<String> = ["cluster", "init", "--accept-new", CLUSTER]
            .map(str::to_owned)
            .into();
        words.extend(
            self.receivers
                .iter()
                .map(|receiver| receiver.daemon.address().to_string()),
        );
        words.extend(["--nats".to_owned(), self.broker.urls()]);
        self.run(&words)
    }

    fn run(&self, words: &[String]) -> Result<()> {
        let output = self
            .place
            .command(CLIENT_HOME)
            .args(words)
            .output()
            .context("failed to start zmove")?;
        if !output.status.success() {
            bail!(
                "zmove {} failed: {}",
                words.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }

    fn start_node(&self, node: &mut Node) -> Result<()> {
        let invitation = self.place.directory.join(node.home).with_extension("toml");
        if !invitation.exists() {
            let output = invitation
                .to_str()
                .context("the lab's directory is not UTF-8")?;
            self.run(&["cluster", "invite", CLUSTER, "-o", output].map(str::to_owned))?;
        }
        let mut command = self.place.command(node.home);
        let log = append(&log_of(&self.place.directory, node.home))?;
        command
            .args(["cluster", "join"])
            .arg(&invitation)
            .stdout(log.try_clone()?)
            .stderr(log);
        node.running = Some(Running::start(&mut command)?);
        Ok(())
    }

    /// Returns the daemon of a receiver.
    pub(crate) fn receiver(&self, which: usize) -> &Daemon {
        &self.receivers[which].daemon
    }

    pub(super) fn crowd(&self) -> Crowd {
        Crowd {
            receivers: self.receivers.len(),
            nodes: self.nodes.len(),
            servers: self.broker.count(),
        }
    }

    pub(crate) fn kill(&mut self, who: Who) -> Result<()> {
        match who {
            Who::Head => {}
            Who::Receiver(which) => {
                self.receivers[which].daemon.running().kill()?;
                self.receivers[which].is_away = true;
            }
            Who::Node(which) => {
                if let Some(mut running) = self.nodes[which].running.take() {
                    running.kill()?;
                }
            }
            Who::Server(which) => self.broker.server(which).kill()?,
        }
        Ok(())
    }

    /// Starts a program, if it is not running.
    pub(super) fn start(&mut self, who: Who) -> Result<()> {
        match who {
            Who::Head => {}
            Who::Receiver(which) => {
                let receiver = &mut self.receivers[which];
                if receiver.is_away {
                    self.place.serve_again(&mut receiver.daemon)?;
                    receiver.is_away = false;
                }
            }
            Who::Node(which) if self.nodes[which].running.is_none() => {
                let mut node = Node {
                    home: self.nodes[which].home,
                    running: None,
                };
                self.start_node(&mut node)?;
                self.nodes[which] = node;
            }
            Who::Node(_) => {}
            Who::Server(which) => self.broker.server(which).start()?,
        }
        Ok(())
    }

    pub(crate) fn signal(&mut self, who: Who, signal: Signal) -> Result<()> {
        match who {
            Who::Head => {}
            Who::Receiver(which) => self.receivers[which].daemon.running().signal(signal),
            Who::Node(which) => {
                if let Some(running) = &self.nodes[which].running {
                    running.signal(signal);
                }
            }
            Who::Server(which) => self.broker.server(which).signal(signal)?,
        }
        Ok(())
    }

    /// Resumes all stopped programs, and starts the programs that are not running.
    pub(super) fn restore(&mut self) -> Result<()> {
        let crowd = self.crowd();
        let all = (0..crowd.receivers)
            .map(Who::Receiver)
            .chain((0..crowd.nodes).map(Who::Node))
            .chain((0..crowd.servers).map(Who::Server));
        for who in all.collect::<Vec<_>>() {
            self.signal(who, Signal::CONT)?;
            self.start(who)?;
        }
        Ok(())
    }

    /// Makes the broker lose data.
    pub(super) fn lose(&self, loss: Loss) -> Result<()> {
        self.broker.lose(loss)
    }

    /// Describes the programs that have ended without being killed, and starts them again.
    pub(super) fn dead(&mut self) -> Result<Vec<String>> {
        let mut dead = Vec::new();
        for receiver in self
            .receivers
            .iter_mut()
            .filter(|receiver| !receiver.is_away)
        {
            if let Some(status) = receiver.daemon.running().ended()? {
                dead.push(format!("a receiver ended by itself with {status}"));
                self.place.serve_again(&mut receiver.daemon)?;
            }
        }
        for which in 0..self.nodes.len() {
            let running = self.nodes[which].running.as_mut();
            if let Some(status) = running.map(Running::ended).transpose()?.flatten() {
                dead.push(format!(
                    "{} ended by itself with {status}",
                    self.nodes[which].home
                ));
                self.nodes[which].running = None;
                self.start(Who::Node(which))?;
            }
        }
        Ok(dead)
    }

    /// Ends all programs. Describes the programs that have not ended normally.
    pub(crate) fn end(&mut self) -> Result<Vec<String>> {
        let mut bad = Vec::new();
        for node in &mut self.nodes {
            let Some(mut running) = node.running.take() else {
                continue;
            };
            running.signal(Signal::TERM);
            match running.wait(PATIENCE)? {
                Some(status) if status.code() == Some(INTERRUPTED) => {}
                other => bad.push(format!("{} ended with {other:?} on SIGTERM", node.home)),
            }
        }
        for receiver in &mut self.receivers {
            let running = receiver.daemon.running();
            running.signal(Signal::TERM);
            match running.wait(PATIENCE)? {
                Some(status) if status.success() => {}
                other => bad.push(format!("a receiver ended with {other:?} on SIGTERM")),
            }
        }
        self.broker.kill()?;
        Ok(bad)
    }

    /// Returns the log of a node.
    pub(crate) fn log_of_node(&self, which: usize) -> PathBuf {
        log_of(&self.place.directory, self.nodes[which].home)
    }

    /// Returns the logs of all programs except the heads.
    pub(super) fn logs(&self) -> Vec<PathBuf> {
        let homes = RECEIVER_HOMES.iter().chain(&NODE_HOMES);
        homes
            .map(|home| log_of(&self.place.directory, home))
            .collect()
    }

    /// Returns the home directories of all programs.
    pub(super) fn homes(&self) -> Vec<PathBuf> {
        let homes = [CLIENT_HOME]
            .into_iter()
            .chain(RECEIVER_HOMES)
            .chain(NODE_HOMES);
        homes.map(|home| self.place.directory.join(home)).collect()
    }
}

fn log_of(directory: &Path, home: &str) -> PathBuf {
    directory.join(format!("{home}.log"))
}

pub(super) const RECEIVERS_MAX: usize = RECEIVER_HOMES.len();
pub(super) const NODES_MAX: usize = NODE_HOMES.len();
/// The name of the cluster.
pub(crate) const CLUSTER: &str = "t";
const GRANTS: [&str; 3] = ["--write", "--set-owner", "--lead"];
const RECEIVER_HOMES: [&str; 3] = [DAEMON_HOME, "daemon-2", "daemon-3"];
const NODE_HOMES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// The exit code of a command that the user has interrupted.
const INTERRUPTED: i32 = 20;
