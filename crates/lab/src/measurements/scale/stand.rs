//! The nodes of both sides. Each receiver has a daemon that accepts all senders.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::Lab;
use super::model::Model;
use crate::measurements::late::shared::Costs;
use crate::network::star::{Host, Spoke, Star};
use crate::processes::groups::Group;
use crate::processes::{inside, server};
use crate::units::{Rate, RoundTrip};

/// The nodes, which exist until this value is dropped.
#[derive(Debug)]
pub(super) struct Stand<'a> {
    zmove: &'a str,
    /// The control group of all processes of the nodes.
    pub(super) group: Group,
    servers: Vec<Child>,
    pub(super) senders: Vec<Node>,
    pub(super) receivers: Vec<Node>,
    /// A host on the senders' side whose link has the total rate of all links of that side.
    pub(super) wide_sender: Node,
    /// A host on the receivers' side whose link has the total rate of all links of that side.
    pub(super) wide_receiver: Node,
    /// The mounts through which the receivers, including the wide one, access the target. `None` if they access it
    /// directly.
    pub(super) model: Option<Model>,
    /// The directory for the temporary files of runs.
    pub(super) scratch: PathBuf,
    _star: Star,
}

/// A host with the home directory of its zmove.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) host: Host,
    pub(super) home: PathBuf,
    /// The directory that its programs find instead of the target's root.
    view: Option<View>,
}

/// A directory that replaces another one.
#[derive(Clone, Debug)]
struct View {
    directory: PathBuf,
    root: PathBuf,
}

impl<'a> Stand<'a> {
    pub(super) fn open(lab: &Lab<'a>, name: &str, nodes: usize) -> Result<Self> {
        let rate = lab.arguments.rate;
        // Nodes that share a file system are near each other, so the round-trip time is between the sides.
        let side = |letter: char, round_trip: RoundTrip| {
            let wide = Spoke {
                name: format!("{letter}-wide"),
                rate: Rate(rate.0 * nodes as u64),
                round_trip,
            };
            (1..=nodes)
                .map(move |node| Spoke {
                    name: format!("{letter}{node}"),
                    rate,
                    round_trip,
                })
                .chain([wide])
        };
        let spokes: Vec<Spoke> = side('s', RoundTrip::default())
            .chain(side('r', lab.arguments.rtt))
            .collect();
        let (star, hosts) = Star::open(lab.session, &spokes)?;
        let scratch = lab.session.subdirectory(name)?;
        let node = |(host, spoke): (Host, &Spoke)| {
            let home = scratch.join(&spoke.name);
            std::fs::create_dir(&home)
                .with_context(|| format!("failed to make {}", home.display()))?;
            Ok(Node {
                host,
                home,
                view: None,
            })
        };
        let mut senders: Vec<Node> = hosts
            .into_iter()
            .zip(&spokes)
            .map(node)
            .collect::<Result<_>>()?;
        let mut receivers = senders.split_off(nodes + 1);
        let [wide_sender, wide_receiver] = [&mut senders, &mut receivers]
            .map(|side| side.pop().expect("the last host of a side is the wide one"));
        let group = Group::create(lab.session.id(), "scale")?;
        let servers = Vec::new();
        let (zmove, model) = (lab.zmove, None);
        let mut stand = Self {
            zmove,
            group,
            servers,
            senders,
            receivers,
            wide_sender,
            wide_receiver,
            model,
            scratch,
            _star: star,
        };
        if lab.arguments.model {
            stand.see_by_model(lab.arguments.costs, lab.place.root())?;
        }
        stand.serve(lab.place.root())?;
        stand.introduce()?;
        Ok(stand)
    }

    pub(super) fn nodes(&self) -> usize {
        self.senders.len()
    }

    /// Gives each host that writes to the target its own mount, as a client of the model.
    fn see_by_model(&mut self, costs: Costs, root: &Path) -> Result<()> {
        let model = self.model.insert(Model::new(costs));
        for node in self.receivers.iter_mut().chain([&mut self.wide_receiver]) {
            let directory = node.home.with_extension("view");
            std::fs::create_dir(&directory)
                .with_context(|| format!("failed to make {}", directory.display()))?;
            model.add(directory.clone(), root)?;
            node.view = Some(View {
                directory,
                root: root.to_owned(),
            });
        }
        Ok(())
    }

    /// Starts a daemon on each receiver, where every sender may write below the target's root.
    fn serve(&mut self, root: &Path) -> Result<()> {
        let mut keys = Vec::new();
        for sender in self.all_senders() {
            let shown = self.output(sender, &["key", "show"])?;
            let key = shown
                .split_whitespace()
                .rfind(|word| word.starts_with("SHA256:"));
            keys.push(key.context("zmove key show: no fingerprint")?.to_owned());
        }
        let root = root.to_str().context("the target's path is not UTF-8")?;
        for receiver in self.receivers.clone() {
            for (number, key) in keys.iter().enumerate() {
                let name = format!("sender{number}");
                self.output(
                    &receiver,
                    &[
                        "allow", key, "--name", &name, "--write", "--lead", "--root", root,
                    ],
                )?;
            }
            let mut command = self.command(&receiver)?;
            command.args(["serve", "--listen", &receiver.listens_at()]);
            let log = receiver.home.join("serve.log");
            self.servers.push(server::start(
                command,
                &receiver.host.namespace,
                PORT,
                &log,
            )?);
        }
        Ok(())
    }

    /// Makes every sender trust the key of every receiver.
    fn introduce(&self) -> Result<()> {
        for sender in self.all_senders() {
            for receiver in &self.receivers {
                self.output(sender, &["trust", "--accept-new", &receiver.listens_at()])?;
            }
        }
        Ok(())
    }

    fn all_senders(&self) -> impl Iterator<Item = &Node> {
        self.senders.iter().chain([&self.wide_sender])
    }

    /// Returns a zmove command that runs on a node, under the name of the node's host. Its CPU time is counted.
    pub(super) fn command(&self, node: &Node) -> Result<Command> {
        let mut command = self.program(node, &self.group, self.zmove)?;
        command.env("ZMOVE_HOME", &node.home);
        Ok(command)
    }

    /// Returns a command that runs a program on a node, with the node's view of the target.
    pub(super) fn program(&self, node: &Node, group: &Group, program: &str) -> Result<Command> {
        let namespace = &node.host.namespace;
        let mut command = inside::command(Some(namespace), Some(group), "unshare")?;
        match &node.view {
            Some(View { directory, root }) => {
                command
                    .args(["--uts", "--mount", "sh", "-c", SEEING, namespace])
                    .args([directory, root]);
            }
            None => {
                command.args(["--uts", "sh", "-c", NAMED, namespace]);
            }
        }
        command.arg(program).stdin(Stdio::null());
        Ok(command)
    }

    /// Runs zmove on a node to completion and returns its output.
    pub(super) fn output(&self, node: &Node, words: &[&str]) -> Result<String> {
        let output = self
            .command(node)?
            .args(words)
            .output()
            .context("failed to start zmove")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!(
                "zmove {} ended with {}: {}",
                words.join(" "),
                output.status,
                said.trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns whether this version of zmove supports jobs of several senders.
    pub(super) fn knows_clusters(&self) -> Result<bool> {
        let asked = Command::new(self.zmove)
            .args(["cluster", "--help"])
            .output();
        Ok(asked.context("failed to start zmove")?.status.success())
    }
}

impl Drop for Stand<'_> {
    fn drop(&mut self) {
        self.group.kill();
        for server in &mut self.servers {
            let _ended = server.wait();
        }
    }
}

impl Node {
    pub(super) fn listens_at(&self) -> String {
        self.at(PORT)
    }

    pub(super) fn at(&self, port: u16) -> String {
        format!("{}:{port}", self.host.address)
    }
}

/// Sets the host's name, mounts the view over the target's root, and executes the program.
const SEEING: &str =
    r#"echo "$0" > /proc/sys/kernel/hostname && mount --bind "$1" "$2" && shift 2 && exec "$@""#;
/// Sets the host's name and executes the program.
const NAMED: &str = r#"echo "$0" > /proc/sys/kernel/hostname && exec "$@""#;
const PORT: u16 = 5870;
