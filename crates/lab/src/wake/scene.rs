//! The programs of a round, in the roles that they have: a transfer, its receivers and its sender, and the next
//! transfer to the same target.

mod cluster;
mod one_receiver;
mod spread;

use std::path::Path;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::Signal;

use self::cluster::Cluster;
use self::one_receiver::OneReceiver;
use self::spread::Spread;
use super::Method;
use super::trees::Trees;
use crate::torture::dice::Dice;
use crate::torture::programs::{Daemon, Running};

/// The method of a round, and where it runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct SceneOptions<'a> {
    pub(super) zmove: &'a str,
    pub(super) directory: &'a Path,
    pub(super) method: Method,
    pub(super) seed: u64,
}

/// The programs of a round.
pub(super) trait Scene {
    /// What was drawn, in words.
    fn shown(&self) -> String;

    /// Starts the first transfer.
    fn begin(&mut self) -> Result<()>;

    /// The status of the first transfer's client, once that has ended.
    fn ended(&mut self) -> Result<Option<ExitStatus>>;

    /// The processes of the receivers that are to be stopped. Empty if they are not known, and there are no others.
    fn receivers(&self) -> Vec<u32>;

    /// Stops or wakes what is to be stopped.
    fn signal(&mut self, signal: Signal) -> Result<()>;

    /// Kills the sender of the first transfer.
    fn kill_sender(&mut self) -> Result<()>;

    /// Starts the next transfer.
    fn begin_next(&mut self) -> Result<Running>;

    /// Waits until the receivers that have been woken do nothing more.
    fn settle(&mut self, trees: &Trees) -> Result<()>;

    /// Ends what the first transfer has left running.
    fn end(&mut self) -> Result<()>;
}

/// How long a program may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// The end of a session over QUIC takes half a minute, and each look reads the target.
const END_LOOK_AFTER: Duration = Duration::from_millis(100);
/// How long a receiver of a job has for what it may do when it wakes up: it asks its sender for an echo within a
/// second.
const SETTLES_WITHIN: Duration = Duration::from_secs(3);
/// The home of a second client.
const ANOTHER_CLIENT: &str = "another";

/// Starts the daemons of a round.
pub(super) fn set_up(
    options: &SceneOptions<'_>,
    trees: &Trees,
    dice: &mut Dice,
) -> Result<Box<dyn Scene>> {
    Ok(match options.method {
        Method::Spread | Method::SpreadQuic => Box::new(Spread::set_up(options, trees, dice)?),
        Method::Cluster => Box::new(Cluster::set_up(options, trees, dice)?),
        _ => Box::new(OneReceiver::set_up(options, trees, dice)?),
    })
}

/// Waits until these processes have nothing under hidden names any more.
fn wait_until_published(trees: &Trees, processes: &[u32]) {
    let deadline = Instant::now() + PATIENCE;
    while trees.unpublished(processes) > 0 && Instant::now() < deadline {
        thread::sleep(END_LOOK_AFTER);
    }
}

/// Ends a daemon, which ends its sessions.
fn end(daemon: &mut Daemon) -> Result<()> {
    daemon.running().signal(Signal::TERM);
    if daemon.running().wait(PATIENCE)?.is_none() {
        bail!("a receiver does not end after it was woken up");
    }
    Ok(())
}

/// How a client names a daemon of this host: by its address, or by the name of the host.
fn spelled(daemon: &Daemon, spelling: Spelling) -> String {
    match spelling {
        Spelling::Address => daemon.address().to_string(),
        Spelling::Name => format!("localhost:{}", daemon.address().port()),
    }
}

/// How a host is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    Address,
    Name,
}
