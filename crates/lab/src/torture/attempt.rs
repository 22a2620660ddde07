//! One run of the command, and the events during it.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;

use super::dice::Dice;
use super::events::{Event, EventKind, When};
use super::options::{Carrier, Direction};
use super::programs::{Daemon, Place, Running};
use super::relay::{Cut, Harm, Relay, Way};
use super::tally::{FailureKind, Tally};

/// State that the attempts of a round share.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) place: &'a Place,
    pub(crate) relay: &'a Relay,
    pub(crate) daemon: Daemon,
    /// The daemon that has the source, in a copy.
    pub(crate) sender: Option<Daemon>,
    pub(crate) source: &'a Path,
    pub(crate) target: &'a Path,
    pub(crate) dice: Dice,
    pub(crate) direction: Direction,
    pub(crate) carrier: Carrier,
    /// Whether a receiver was killed in this round.
    pub(crate) killed_receiver: bool,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The command ended with exit code 0.
    Done,
    /// The command was killed, or ended with an exit code that reports an expected failure.
    Failed,
}

/// A daemon of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// The daemon that exists in every round.
    Usual,
    /// The daemon that has the source of a copy.
    Sender,
}

/// An event for which the main thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// The client has ended.
    Ended,
    /// The awaited number of bytes has passed the relay.
    Reached,
}

/// The current run of the command.
struct Run {
    client: Running,
    news: Receiver<News>,
    telling: Sender<News>,
    deadline: Instant,
}

impl Stage<'_> {
    /// Runs the command once. Calls `look` after each event.
    pub(crate) fn attempt(
        &mut self,
        options: &[&str],
        to: SocketAddr,
        events: &[Event],
        tally: &mut Tally,
        look: &dyn Fn(),
    ) -> Result<Ending> {
        tally.tries += 1;
        self.relay.begin();
        let ends = (Some(to), self.sender.as_ref().map(Daemon::address));
        let client = self
            .place
            .client(self.direction, options, self.source, ends, self.target)?;
        let mut run = Run::of(client)?;
        let mut happened = Vec::new();
        for event in events {
            if !run.wait_for(event.when, self.relay)? {
                break;
            }
            self.perform(event.kind, &run, tally)?;
            happened.push(event.kind);
            *tally.events.entry(event.kind).or_default() += 1;
            look();
        }
        let ending = self.end(&mut run, &happened, tally);
        tally.bytes += self.relay.passed();
        self.relay.begin();
        look();
        ending
    }

    fn perform(&mut self, kind: EventKind, run: &Run, tally: &mut Tally) -> Result<()> {
        match kind {
            EventKind::KillClient => {
                run.client.signal(Signal::KILL);
                self.killed_receiver |= self.direction == Direction::Pull;
            }
            EventKind::StopClient => run.client.signal(Signal::TERM),
            EventKind::KillDaemon if self.carrier == Carrier::Ssh => {
                self.place.signal_started_by_ssh(Signal::KILL)?;
                self.killed_receiver |= self.direction != Direction::Pull;
            }
            EventKind::StopDaemon if self.carrier == Carrier::Ssh => {
                self.place.signal_started_by_ssh(Signal::TERM)?;
            }
            EventKind::KillDaemon => {
                let which = self.draw_daemon();
                self.daemon_of(which).running().kill()?;
                self.killed_receiver |= which == Which::Usual && self.direction != Direction::Pull;
                self.restart(which)?;
            }
            EventKind::StopDaemon => {
                let which = self.draw_daemon();
                self.daemon_of(which).running().signal(Signal::TERM);
                self.relay.open_gate();
                stopped(self.daemon_of(which), tally)?;
                self.restart(which)?;
            }
            EventKind::CutAll => self.relay.cut(Cut::Closed),
            EventKind::ResetAll => self.relay.cut(Cut::Reset),
            EventKind::CutOne => {
                let how = *self.dice.pick(&[Cut::Closed, Cut::Reset]);
                self.relay.cut_one(&mut self.dice, how);
            }
            EventKind::Stall => self.stall(),
            EventKind::StallAndCut => {
                self.stall();
                self.relay.cut(Cut::Closed);
            }
            EventKind::FlipUp => self.relay.harm(&mut self.dice, Way::Up, Harm::Flip),
            EventKind::FlipDown => self.relay.harm(&mut self.dice, Way::Down, Harm::Flip),
            EventKind::DoubleUp => self.relay.harm(&mut self.dice, Way::Up, Harm::Double),
            EventKind::DoubleDown => self.relay.harm(&mut self.dice, Way::Down, Harm::Double),
            EventKind::HalfCloseUp => self.relay.half_close(&mut self.dice, Way::Up),
            EventKind::HalfCloseDown => self.relay.half_close(&mut self.dice, Way::Down),
        }
        self.relay.open_gate();
        Ok(())
    }

    fn stall(&mut self) {
        self.relay.stall();
        thread::sleep(self.moment(STALL_MILLIS_MAX));
    }

    fn restart(&mut self, which: Which) -> Result<()> {
        self.relay.open_gate();
        thread::sleep(self.moment(AWAY_MILLIS_MAX));
        let place = self.place;
        place.serve_again(self.daemon_of(which))
    }

    /// Draws one of the daemons of a copy, or returns the only daemon.
    fn draw_daemon(&mut self) -> Which {
        if self.sender.is_some() && self.dice.one_in(2) {
            Which::Sender
        } else {
            Which::Usual
        }
    }

    fn daemon_of(&mut self, which: Which) -> &mut Daemon {
        match (which, &mut self.sender) {
            (Which::Sender, Some(sender)) => sender,
            _ => &mut self.daemon,
        }
    }

    fn moment(&mut self, millis_max: u64) -> Duration {
        Duration::from_millis(self.dice.within(0..=millis_max))
    }

    /// Ends all daemons, which have no more work.
    pub(crate) fn end_daemons(&mut self, tally: &mut Tally) -> Result<()> {
        for daemon in self.sender.iter_mut().chain([&mut self.daemon]) {
            daemon.running().signal(Signal::TERM);
            stopped(daemon, tally)?;
        }
        Ok(())
    }

    /// Waits for the client to end and checks its result.
    fn end(&mut self, run: &mut Run, happened: &[EventKind], tally: &mut Tally) -> Result<Ending> {
        self.relay.open_gate();
        let harmed = happened.iter().any(|kind| kind.harms());
        let mut deadline = run.deadline;
        if harmed && !run.wait_for_end(Instant::now() + HARM_PATIENCE) {
            // If a length field was increased, its reader waits for bytes that nobody sends.
            tally.harms_cut += 1;
            self.relay.cut(Cut::Closed);
            // For the same reason, this call may have waited in vain for another event until now, so the deadline is
            // renewed.
            deadline = Instant::now() + PATIENCE;
        }
        if !run.wait_for_end(deadline) {
            tally.fail(
                FailureKind::Hung,
                format!("the client does not end after {happened:?}"),
            );
            run.client.kill()?;
            return Ok(Ending::Failed);
        }
        let status = run
            .client
            .wait(PATIENCE)?
            .context("a process that has ended can be waited for")?;
        for daemon in self.sender.iter_mut().chain([&mut self.daemon]) {
            if let Some(status) = daemon.running().ended()? {
                tally.fail(
                    FailureKind::Odd,
                    format!("a daemon ended by itself with {status}"),
                );
                self.place.serve_again(daemon)?;
            }
        }
        if status.success() {
            return Ok(Ending::Done);
        }
        if !is_sane(status, happened) {
            tally.fail(
                FailureKind::Odd,
                format!("the client ended with {status} after {happened:?}"),
            );
        }
        Ok(Ending::Failed)
    }
}

impl Run {
    fn of(client: Running) -> Result<Self> {
        let (telling, news) = mpsc::channel();
        let handle = client
            .handle()
            .try_clone()
            .context("failed to watch the client")?;
        let ended = telling.clone();
        thread::spawn(move || {
            while poll(&mut [PollFd::new(&handle, PollFlags::IN)], None)
                == Err(rustix::io::Errno::INTR)
            {}
            // The receiver of this message no longer exists if the attempt was given up.
            let _given_up = ended.send(News::Ended);
        });
        Ok(Self {
            client,
            news,
            telling,
            deadline: Instant::now() + PATIENCE,
        })
    }

    /// Waits for a point in time. Returns `false` if the client has ended earlier.
    fn wait_for(&self, when: When, relay: &Relay) -> Result<bool> {
        let due = match when {
            When::After(time) => Instant::now() + time,
            When::Bytes(bytes) => {
                let telling = self.telling.clone();
                relay.close_gate(
                    bytes,
                    Box::new(move || {
                        let _given_up = telling.send(News::Reached);
                    }),
                );
                self.deadline
            }
        };
        match self
            .news
            .recv_timeout(due.saturating_duration_since(Instant::now()))
        {
            Ok(News::Reached) => Ok(true),
            Err(RecvTimeoutError::Timeout) => Ok(due < self.deadline),
            Ok(News::Ended) | Err(RecvTimeoutError::Disconnected) => {
                let _given_up = self.telling.send(News::Ended);
                Ok(false)
            }
        }
    }

    /// Waits until the client has ended. Returns `false` if that takes too long.
    fn wait_for_end(&self, deadline: Instant) -> bool {
        loop {
            match self
                .news
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(News::Ended) => {
                    let _given_up = self.telling.send(News::Ended);
                    return true;
                }
                Ok(News::Reached) => {}
                Err(_too_long) => return false,
            }
        }
    }
}

/// Waits for a daemon that was asked to stop.
fn stopped(daemon: &mut Daemon, tally: &mut Tally) -> Result<()> {
    match daemon.running().wait(PATIENCE)? {
        None => {
            tally.fail(FailureKind::Hung, "the daemon does not end on SIGTERM");
            daemon.running().kill()?;
        }
        Some(status) if status.success() => {}
        Some(status) => tally.fail(
            FailureKind::Odd,
            format!("on SIGTERM the daemon ended with {status}"),
        ),
    }
    Ok(())
}

/// Returns whether the events explain an exit code other than success. The code depends on when they happened: no
/// connection, a lost connection, files that could not be stored, or a wrong key.
fn is_sane(status: ExitStatus, happened: &[EventKind]) -> bool {
    let after = |kind: EventKind| happened.contains(&kind);
    match (status.code(), status.signal()) {
        (Some(10 | 12 | 23), _) => true,
        (Some(13), _) => after(EventKind::StopDaemon),
        (Some(20), _) => after(EventKind::StopClient),
        (Some(5), _) => happened.iter().any(|kind| kind.harms()),
        (_, Some(9)) => after(EventKind::KillClient),
        (_, Some(15)) => after(EventKind::StopClient),
        _ => false,
    }
}

/// Maximum time for any step of a program.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a transfer with corrupted bytes may continue before its connections are cut.
const HARM_PATIENCE: Duration = Duration::from_secs(10);
const STALL_MILLIS_MAX: u64 = 400;
/// Maximum time that a daemon is away.
const AWAY_MILLIS_MAX: u64 = 200;
