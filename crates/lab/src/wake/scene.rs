//! The programs of a round and their roles: a transfer with its receivers and its sender, and the next transfer to the
//! same target.

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

/// The settings of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct SceneOptions<'a> {
    pub(super) zmove: &'a str,
    pub(super) directory: &'a Path,
    pub(super) method: Method,
    pub(super) seed: u64,
}

/// The programs of a round.
pub(super) trait Scene {
    /// Describes the random choices.
    fn shown(&self) -> String;

    /// Starts the first transfer.
    fn begin(&mut self) -> Result<()>;

    /// Returns the exit status of the first transfer's client, if it has ended.
    fn ended(&mut self) -> Result<Option<ExitStatus>>;

    /// Returns the processes of the receivers to be stopped. Empty if they are unknown, in which case there are no
    /// others.
    fn receivers(&self) -> Vec<u32>;

    /// Sends a signal to the programs that are to be stopped or resumed.
    fn signal(&mut self, signal: Signal) -> Result<()>;

    /// Kills the sender of the first transfer.
    fn kill_sender(&mut self) -> Result<()>;

    /// Starts the next transfer.
    fn begin_next(&mut self) -> Result<Running>;

    /// Waits until the resumed receivers have finished their work.
    fn settle(&mut self, trees: &Trees) -> Result<()>;

    /// Ends the programs of the first transfer that are still running.
    fn end(&mut self) -> Result<()>;
}

/// Maximum time for a program.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between checks for the end of a session. The end of a session over QUIC takes half a minute, and each check
/// reads the target.
const END_LOOK_AFTER: Duration = Duration::from_millis(100);
/// How long a resumed receiver of a job may continue to work. It asks its sender for an echo within a second.
const SETTLES_WITHIN: Duration = Duration::from_secs(3);
/// The home directory of a second client.
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

/// Waits until these processes have no more files under hidden names.
fn wait_until_published(trees: &Trees, processes: &[u32]) {
    let deadline = Instant::now() + PATIENCE;
    while trees.unpublished(processes) > 0 && Instant::now() < deadline {
        thread::sleep(END_LOOK_AFTER);
    }
}

/// Ends a daemon and its sessions.
fn end(daemon: &mut Daemon) -> Result<()> {
    daemon.running().signal(Signal::TERM);
    if daemon.running().wait(PATIENCE)?.is_none() {
        bail!("a receiver does not end after it was woken up");
    }
    Ok(())
}

/// Returns the name that a client uses for a daemon on this host: its address, or its host name.
fn spelled(daemon: &Daemon, spelling: Spelling) -> String {
    match spelling {
        Spelling::Address => daemon.address().to_string(),
        Spelling::Name => format!("localhost:{}", daemon.address().port()),
    }
}

/// The form of a host's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    Address,
    Name,
}
