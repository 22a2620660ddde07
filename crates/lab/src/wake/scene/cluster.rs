//! A push by the nodes of a cluster to two receivers that share the target's storage, then a push from one sender to
//! another daemon there.
//!
//! The node survives its head. When the directory of a job is removed, no sender can store anything for the job. To
//! exclude this effect, in some rounds the other daemon belongs to another user, who cannot remove the directory. Then
//! only the lease that the node has from its head prevents the receivers from publishing.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::super::Method;
use super::super::trees::Trees;
use super::{PATIENCE, SETTLES_WITHIN, Scene, SceneOptions, end, wait_until_published};
use crate::torture::cluster::{CLUSTER, Crowd, Stand, Who, host_of};
use crate::torture::dice::Dice;
use crate::torture::options::Direction;
use crate::torture::programs::{CLIENT_HOME, Daemon, Running, Transfer, append, free_address_of};

/// The programs of a round with a cluster.
pub(super) struct Cluster {
    stand: Stand,
    /// The receiver of the next push.
    other: Daemon,
    first: PathBuf,
    new: PathBuf,
    target: PathBuf,
    stopped: &'static [Who],
    /// The connection options of the head, which the node uses too.
    head_options: &'static [&'static str],
    /// The owner of the other daemon, if it is not the owner of the receivers.
    other_user: Option<u32>,
    head: Option<Running>,
}

const CROWD: Crowd = Crowd {
    servers: 1,
    receivers: 2,
    nodes: 1,
};
const NODE: usize = 0;
const OTHER_HOME: &str = "other";
/// The sets of programs to stop.
const CASTS: [&[Who]; 4] = [
    &[Who::Receiver(0)],
    &[Who::Receiver(1)],
    &[Who::Receiver(0), Who::Receiver(1)],
    &[Who::Receiver(0), Who::Receiver(1), Who::Node(NODE)],
];
/// A user id that no host uses.
const ANOTHER_USER: u32 = 54_321;
/// A rate at which the nodes are busy for several seconds.
const RATE: &str = "400kB";
const LOOK_EVERY: Duration = Duration::from_millis(2);

impl Cluster {
    pub(super) fn set_up(
        options: &SceneOptions<'_>,
        trees: &Trees,
        dice: &mut Dice,
    ) -> Result<Self> {
        let host = host_of(options.seed);
        let stand = Stand::set_up(
            (options.zmove, options.directory, &trees.target),
            CROWD,
            &[],
            (host, dice),
        )?;
        let place = &stand.place;
        place.prepare_another(OTHER_HOME, &trees.target, &["--write"])?;
        let is_root = rustix::process::geteuid().is_root();
        // A user cannot replace files in directories of another user.
        let other_user = (is_root && trees.replaces && dice.one_in(2)).then_some(ANOTHER_USER);
        if let Some(user) = other_user {
            trees.give_target_to(user)?;
            give(&place.directory.join(OTHER_HOME), user)?;
        }
        let log = place.directory.join(OTHER_HOME).with_extension("log");
        let other = place.serve_from(OTHER_HOME, free_address_of(host, dice)?, &[], log)?;
        Ok(Self {
            stand,
            other,
            first: trees.first.clone(),
            new: trees.new.clone(),
            target: trees.target.clone(),
            stopped: *dice.pick(&CASTS),
            head_options: dice.pick(&[Method::Tcp, Method::Quic]).client_options(),
            other_user,
            head: None,
        })
    }

    fn head(&mut self) -> Result<&mut Running> {
        self.head.as_mut().context("no push has begun")
    }

    /// Returns whether the node has started to send.
    fn has_node_begun(&self) -> Result<bool> {
        let said = fs::read_to_string(self.stand.log_of_node(NODE));
        Ok(said
            .context("failed to read the log of a node")?
            .contains(" begins: "))
    }

    fn push_new_to(&self, daemon: &Daemon) -> Result<Running> {
        self.stand.place.start(&Transfer {
            home: CLIENT_HOME,
            direction: Direction::Push,
            options: &[],
            source: &self.new,
            target: &self.target,
            daemon: Some(&daemon.address().to_string()),
            sender: None,
        })
    }
}

/// Changes the owner of a home directory and its files.
fn give(home: &Path, user: u32) -> Result<()> {
    let mut all = vec![home.to_owned()];
    while let Some(path) = all.pop() {
        chown(&path, Some(user), Some(user)).context("failed to give a home away")?;
        if path.is_dir() {
            let entries = fs::read_dir(&path).context("failed to list a home")?;
            all.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
    Ok(())
}

impl Scene for Cluster {
    fn shown(&self) -> String {
        let user = self.other_user.map_or("the same", |_| "another");
        format!(
            "{:?} stopped, {}, next to a daemon of {user} user",
            self.stopped,
            self.head_options.join(" ")
        )
    }

    fn begin(&mut self) -> Result<()> {
        let place = &self.stand.place;
        let log = append(&place.directory.join("client.log"))?;
        let mut command = place.command(CLIENT_HOME);
        command
            .args(["push", "--cluster", CLUSTER, "--quiet", "--limit", RATE])
            .args(self.head_options)
            .arg(self.first.join(""))
            .arg(&self.target)
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut head = Running::start(&mut command)?;
        let deadline = Instant::now() + PATIENCE;
        while !self.has_node_begun()? && head.ended()?.is_none() && Instant::now() < deadline {
            thread::sleep(LOOK_EVERY);
        }
        self.head = Some(head);
        Ok(())
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.head()?.ended()
    }

    fn receivers(&self) -> Vec<u32> {
        let id = |who: &Who| match who {
            Who::Receiver(which) => Some(self.stand.receiver(*which).id()),
            _ => None,
        };
        self.stopped.iter().filter_map(id).collect()
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        let mut stopped = self.stopped.iter();
        stopped.try_for_each(|who| self.stand.signal(*who, signal))
    }

    fn kill_sender(&mut self) -> Result<()> {
        self.head()?.kill()?;
        Ok(())
    }

    fn begin_next(&mut self) -> Result<Running> {
        self.push_new_to(&self.other)
    }

    fn settle(&mut self, trees: &Trees) -> Result<()> {
        thread::sleep(SETTLES_WITHIN);
        // Otherwise the node would wait for its head for another minute, and the receivers for the node.
        self.stand.kill(Who::Node(NODE))?;
        let receivers = [0, 1].map(|which| self.stand.receiver(which).id());
        wait_until_published(trees, &receivers);
        end(&mut self.other)
    }

    fn end(&mut self) -> Result<()> {
        if self.other_user.is_some() {
            // The owner's next session removes the job.
            let status = self.push_new_to(self.stand.receiver(0))?.wait(PATIENCE)?;
            if !status.is_some_and(|status| status.success()) {
                bail!("a push of the owner of the job ended with {status:?}");
            }
        }
        let bad = self.stand.end()?;
        if !bad.is_empty() {
            bail!("{}", bad.join("; "));
        }
        Ok(())
    }
}
