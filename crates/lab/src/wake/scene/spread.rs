//! A push to two daemons that share the target's storage, then a push to another daemon there, or to the one that was
//! not stopped.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::thread;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::super::Method;
use super::super::trees::Trees;
use super::{
    ANOTHER_CLIENT, SETTLES_WITHIN, Scene, SceneOptions, Spelling, end, spelled,
    wait_until_published,
};
use crate::torture::dice::Dice;
use crate::torture::options::Direction;
use crate::torture::programs::{
    CLIENT_HOME, DAEMON_HOME, Daemon, Place, Running, Transfer, free_address,
};

/// The programs of a round with a push to several receivers.
pub(super) struct Spread {
    place: Place,
    client_options: &'static [&'static str],
    first: PathBuf,
    new: PathBuf,
    target: PathBuf,
    daemons: Vec<Daemon>,
    /// The indexes of the daemons to stop.
    stopped: &'static [usize],
    next: Next,
    client: Option<Running>,
}

/// The next push.
struct Next {
    home: &'static str,
    /// The indexes of the daemons that receive it.
    to: &'static [usize],
    spelling: Spelling,
}

const HOMES: [&str; 3] = [DAEMON_HOME, "daemon-2", "daemon-3"];
const GRANTS: [&str; 2] = ["--write", "--lead"];
/// The daemons of the first push.
const FIRST_TO: [usize; 2] = [0, 1];
/// The daemons to stop, and the sets of daemons for the next push.
const CASTS: [(&[usize], &[&[usize]]); 3] = [
    (&[0, 1], &[&[2]]),
    (&[0], &[&[1], &[2], &[1, 2]]),
    (&[1], &[&[0], &[2], &[0, 2]]),
];

impl Spread {
    pub(super) fn set_up(
        options: &SceneOptions<'_>,
        trees: &Trees,
        dice: &mut Dice,
    ) -> Result<Self> {
        let carrier = if options.method == Method::SpreadQuic {
            Method::Quic
        } else {
            Method::Tcp
        };
        let target = &trees.target;
        let place = Place::prepare(options.zmove, options.directory, target, &GRANTS)?;
        for home in &HOMES[1..] {
            place.prepare_another(home, target, &GRANTS)?;
        }
        place.prepare_client(ANOTHER_CLIENT, &HOMES, target, &GRANTS)?;
        let mut daemons = Vec::new();
        for home in HOMES {
            let log = options.directory.join(format!("{home}.log"));
            let address = free_address(dice)?;
            daemons.push(place.serve_from(home, address, carrier.serve_options(), log)?);
        }
        let (stopped, next_to) = *dice.pick(&CASTS);
        let home = *dice.pick(&[CLIENT_HOME, ANOTHER_CLIENT]);
        let to = *dice.pick(next_to);
        Ok(Self {
            place,
            client_options: carrier.client_options(),
            first: trees.first.clone(),
            new: trees.new.clone(),
            target: target.clone(),
            daemons,
            stopped,
            next: Next {
                home,
                to,
                spelling: *dice.pick(&[Spelling::Address, Spelling::Name]),
            },
            client: None,
        })
    }

    fn push(
        &self,
        home: &str,
        source: &PathBuf,
        to: &[usize],
        spelling: Spelling,
    ) -> Result<Running> {
        let to: Vec<_> = to
            .iter()
            .map(|which| spelled(&self.daemons[*which], spelling))
            .collect();
        self.place.start(&Transfer {
            home,
            direction: Direction::Push,
            options: self.client_options,
            source,
            target: &self.target,
            daemon: Some(&to.join(",")),
            sender: None,
        })
    }

    fn client(&mut self) -> Result<&mut Running> {
        self.client.as_mut().context("no push has begun")
    }
}

impl Scene for Spread {
    fn shown(&self) -> String {
        let Next { home, to, spelling } = &self.next;
        let stopped = self.stopped;
        format!("to {FIRST_TO:?}, {stopped:?} stopped, next from {home} to {to:?} by {spelling:?}")
    }

    fn begin(&mut self) -> Result<()> {
        let client = self.push(CLIENT_HOME, &self.first, &FIRST_TO, Spelling::Address)?;
        self.client = Some(client);
        Ok(())
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.client()?.ended()
    }

    fn receivers(&self) -> Vec<u32> {
        let stopped = self.stopped.iter();
        stopped.map(|which| self.daemons[*which].id()).collect()
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        for which in self.stopped {
            self.daemons[*which].running().signal(signal);
        }
        Ok(())
    }

    fn kill_sender(&mut self) -> Result<()> {
        self.client()?.kill()?;
        Ok(())
    }

    fn begin_next(&mut self) -> Result<Running> {
        let Next { home, to, spelling } = self.next;
        self.push(home, &self.new, to, spelling)
    }

    fn settle(&mut self, trees: &Trees) -> Result<()> {
        // The staged files may have been removed already.
        thread::sleep(SETTLES_WITHIN);
        wait_until_published(trees, &[]);
        self.daemons.iter_mut().try_for_each(end)
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}
