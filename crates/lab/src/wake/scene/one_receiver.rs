//! A push, pull or copy with one receiver, then the same command with another receiver.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitStatus;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::super::Method;
use super::super::trees::Trees;
use super::{
    ANOTHER_CLIENT, PATIENCE, Scene, SceneOptions, Spelling, end, spelled, wait_until_published,
};
use crate::torture::dice::Dice;
use crate::torture::options::Direction;
use crate::torture::programs::{
    CLIENT_HOME, DAEMON_HOME, Daemon, Place, Running, Transfer, free_address, free_address_of,
};

/// The programs of a round with one receiver: two of each kind, one for each transfer.
pub(super) struct OneReceiver {
    place: Place,
    direction: Direction,
    client_options: Vec<&'static str>,
    sources: [PathBuf; 2],
    target: PathBuf,
    /// Daemons that receive. Empty if ssh starts a receiver for each push, or the client is the receiver.
    receivers: Vec<Daemon>,
    /// Daemons that send. Empty if the client sends.
    senders: Vec<Daemon>,
    /// The home directory of the next transfer's client.
    next_home: &'static str,
    /// The name that the next transfer's client uses for the daemon.
    next_spelling: Spelling,
    /// An address without a listener.
    unused: String,
    client: Option<Running>,
}

const HOMES: [&str; 2] = [DAEMON_HOME, "second"];
const SENDER_HOMES: [&str; 2] = ["sender", "second-sender"];
/// Another loopback address of the same host.
const OTHER_LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

impl OneReceiver {
    pub(super) fn set_up(
        options: &SceneOptions<'_>,
        trees: &Trees,
        dice: &mut Dice,
    ) -> Result<Self> {
        let method = options.method;
        let direction = match method {
            Method::Pull => Direction::Pull,
            Method::Copy => Direction::Copy,
            _ => Direction::Push,
        };
        let over_quic = method == Method::Quic || direction != Direction::Push && dice.one_in(3);
        let carrier = if over_quic { Method::Quic } else { method };
        let target = &trees.target;
        let place = if direction == Direction::Pull {
            let place =
                Place::prepare(options.zmove, options.directory, &trees.first, &["--read"])?;
            place.prepare_another(HOMES[1], &trees.new, &["--read"])?;
            place
        } else {
            let place = Place::prepare(options.zmove, options.directory, target, &["--write"])?;
            place.prepare_another(HOMES[1], target, &["--write"])?;
            place
        };
        let mut client_options = carrier.client_options().to_vec();
        if direction == Direction::Pull {
            // Limits the time for which a pull tries to reach its daemon again.
            client_options.push("--timeout=5s");
        }
        let mut scene = Self {
            place,
            direction,
            client_options,
            sources: [trees.first.clone(), trees.new.clone()],
            target: target.clone(),
            receivers: Vec::new(),
            senders: Vec::new(),
            next_home: CLIENT_HOME,
            next_spelling: Spelling::Address,
            unused: free_address(dice)?.to_string(),
            client: None,
        };
        if method == Method::Home {
            let homes = &HOMES[1..];
            scene
                .place
                .prepare_client(ANOTHER_CLIENT, homes, target, &["--write"])?;
            scene.next_home = ANOTHER_CLIENT;
        }
        if method != Method::Ssh {
            scene.serve(method, carrier.serve_options(), dice)?;
        }
        Ok(scene)
    }

    fn serve(&mut self, method: Method, options: &[&'static str], dice: &mut Dice) -> Result<()> {
        let mut next_host = Ipv4Addr::LOCALHOST;
        if method == Method::Name && dice.one_in(2) {
            next_host = OTHER_LOOPBACK;
        } else if method == Method::Name {
            self.next_spelling = Spelling::Name;
        }
        let mut daemons = Vec::new();
        for (home, host) in HOMES.into_iter().zip([Ipv4Addr::LOCALHOST, next_host]) {
            daemons.push(serve(&self.place, home, host, options, dice)?);
        }
        match self.direction {
            Direction::Push => self.receivers = daemons,
            Direction::Pull => self.senders = daemons,
            Direction::Copy => {
                self.receivers = daemons;
                for (which, home) in SENDER_HOMES.into_iter().enumerate() {
                    let to = self.receivers[which].address();
                    self.place
                        .prepare_another_sender(home, &self.sources[which], to)?;
                    let host = Ipv4Addr::LOCALHOST;
                    let sender = serve(&self.place, home, host, options, dice)?;
                    self.senders.push(sender);
                }
            }
        }
        Ok(())
    }

    /// Starts the client of the first or the next transfer.
    fn start(&self, which: usize, home: &str, spelling: Spelling) -> Result<Running> {
        let spelled = |daemon: &Daemon| spelled(daemon, spelling);
        let receiver = self.receivers.get(which).map(spelled);
        let sender = self.senders.get(which).map(spelled);
        let daemon = receiver
            .as_ref()
            .or(sender.as_ref())
            .unwrap_or(&self.unused);
        self.place.start(&Transfer {
            home,
            direction: self.direction,
            options: &self.client_options,
            source: &self.sources[which],
            target: &self.target,
            daemon: Some(daemon),
            sender: sender.as_deref(),
        })
    }

    fn client(&mut self) -> Result<&mut Running> {
        self.client.as_mut().context("no transfer has begun")
    }
}

fn serve(
    place: &Place,
    home: &'static str,
    host: Ipv4Addr,
    options: &[&'static str],
    dice: &mut Dice,
) -> Result<Daemon> {
    let log = place.directory.join(format!("{home}.log"));
    place.serve_from(home, free_address_of(host, dice)?, options, log)
}

impl Scene for OneReceiver {
    fn shown(&self) -> String {
        let spelled = self
            .receivers
            .get(1)
            .map(|next| spelled(next, self.next_spelling));
        let next = spelled.map(|spelled| format!(", next to {spelled}"));
        format!(
            "{} {}{}",
            self.direction.word(),
            self.client_options.join(" "),
            next.unwrap_or_default()
        )
    }

    fn begin(&mut self) -> Result<()> {
        self.client = Some(self.start(0, CLIENT_HOME, Spelling::Address)?);
        Ok(())
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.client()?.ended()
    }

    fn receivers(&self) -> Vec<u32> {
        if let Some(receiver) = self.receivers.first() {
            return vec![receiver.id()];
        }
        match &self.client {
            Some(client) if self.direction == Direction::Pull => vec![client.id()],
            _ => Vec::new(),
        }
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(receiver) = self.receivers.first_mut() {
            receiver.running().signal(signal);
        } else if self.direction == Direction::Pull {
            self.client()?.signal(signal);
        } else {
            self.place.signal_started_by_ssh(signal)?;
        }
        Ok(())
    }

    fn kill_sender(&mut self) -> Result<()> {
        match self.senders.first_mut() {
            Some(sender) => sender.running().kill()?,
            None => self.client()?.kill()?,
        };
        Ok(())
    }

    fn begin_next(&mut self) -> Result<Running> {
        self.start(1, self.next_home, self.next_spelling)
    }

    fn settle(&mut self, trees: &Trees) -> Result<()> {
        if let Some(receiver) = self.receivers.first_mut() {
            wait_until_published(trees, &[]);
            return end(receiver);
        }
        let has_ended = if self.direction == Direction::Pull {
            self.client()?.wait(PATIENCE)?.is_some()
        } else {
            self.place.wait_for_started_by_ssh(PATIENCE)?
        };
        if !has_ended {
            bail!("the receiver does not end after it was woken up");
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}
