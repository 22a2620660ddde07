//! The actions during the attempts of a round.

use std::time::Duration;

use crate::torture::dice::Dice;

/// One of the programs of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// The push.
    Head,
    /// The receiver with this index.
    Receiver(usize),
    /// The node with this index, other than the head.
    Node(usize),
    /// The server of the broker with this index.
    Server(usize),
}

/// The data that the broker loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The consumers of the queue.
    Consumers,
    /// The queue itself.
    Stream,
    /// All its data. All servers are killed for that.
    Store,
}

/// An action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// `kill -9`.
    Kill(Who),
    /// Restarts a program that was killed.
    Start(Who),
    /// SIGSTOP.
    Stop(Who),
    /// SIGCONT.
    Wake(Who),
    /// Makes the broker lose data.
    Lose(Loss),
}

impl Act {
    /// Returns whether the action restores a program.
    pub(super) const fn restores(self) -> bool {
        matches!(self, Self::Start(_) | Self::Wake(_))
    }
}

/// An action and its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub(super) after: Duration,
    pub(super) act: Act,
}

/// The actions of an attempt in chronological order, and the actions that are left for the next attempt.
#[derive(Debug)]
pub(super) struct Acts {
    /// The event from which the times of the actions count.
    pub(super) since: Since,
    pub(super) now: Vec<Timed>,
    pub(super) later: Vec<Timed>,
}

/// The event from which the times of the actions count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// The start of the push.
    Start,
    /// The time at which the job has started at the target.
    JobBegun,
}

/// The number of programs of each kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) receivers: usize,
    pub(crate) nodes: usize,
    /// Number of servers of the broker.
    pub(crate) servers: usize,
}

impl Crowd {
    fn draw(self, dice: &mut Dice) -> Who {
        match dice.weighted([3, 4, 4, 3].into_iter()) {
            0 => Who::Head,
            1 => Who::Receiver(dice.index(self.receivers)),
            2 => Who::Node(dice.index(self.nodes)),
            _ => Who::Server(dice.index(self.servers)),
        }
    }
}

/// Draws the actions of an attempt. The attempt starts with the actions that the previous attempt has left.
pub(super) fn draw(dice: &mut Dice, crowd: Crowd, before: Vec<Timed>) -> Acts {
    let since = if dice.one_in(4) {
        Since::Start
    } else {
        Since::JobBegun
    };
    let mut acts = Acts {
        since,
        now: before,
        later: Vec::new(),
    };
    let mut after = Duration::ZERO;
    for _ in 0..=dice.weighted([3, 4, 3, 2].into_iter()) {
        after += moment(dice, BETWEEN_MICROS_MAX);
        if dice.one_in(3) {
            lose(dice, after, crowd.servers, &mut acts);
        } else {
            let who = crowd.draw(dice);
            strike(dice, (after, who), &mut acts);
        }
    }
    for acts in [&mut acts.now, &mut acts.later] {
        acts.sort_by_key(|timed| timed.after);
    }
    acts
}

/// Makes the broker lose data.
fn lose(dice: &mut Dice, after: Duration, servers: usize, acts: &mut Acts) {
    let loss = match dice.weighted([1, 1, 1].into_iter()) {
        0 => Loss::Consumers,
        1 => Loss::Stream,
        _ => Loss::Store,
    };
    acts.now.push(Timed {
        after,
        act: Act::Lose(loss),
    });
    if loss == Loss::Store {
        for server in 0..servers {
            acts.now.push(Timed {
                after: after + moment(dice, AWAY_MICROS_MAX),
                act: Act::Start(Who::Server(server)),
            });
        }
    }
}

/// Kills or stops a program, and restores it later.
fn strike(dice: &mut Dice, (after, who): (Duration, Who), acts: &mut Acts) {
    let (act, back) = if dice.one_in(2) {
        (Act::Kill(who), Act::Start(who))
    } else {
        (Act::Stop(who), Act::Wake(who))
    };
    acts.now.push(Timed { after, act });
    if act == Act::Kill(Who::Head) {
        return;
    }
    let away = moment(dice, AWAY_MICROS_MAX);
    if !dice.one_in(LEFT_ONE_IN) {
        acts.now.push(Timed {
            after: after + away,
            act: back,
        });
        return;
    }
    acts.later.push(Timed {
        after: away,
        act: back,
    });
    let is_waited_for = who != Who::Head && act.is_stop() && !dice.one_in(NOTICED_ONE_IN);
    if is_waited_for {
        // Without this action, the other programs would wait a minute before they give up on the silent program.
        let after = after + moment(dice, BETWEEN_MICROS_MAX);
        acts.now.push(Timed {
            after,
            act: Act::Kill(Who::Head),
        });
    }
}

impl Act {
    const fn is_stop(self) -> bool {
        matches!(self, Self::Stop(_))
    }
}

/// Draws a time. Short times are more likely.
fn moment(dice: &mut Dice, micros_max: u64) -> Duration {
    Duration::from_micros(dice.scaled_within(1_000..=micros_max))
}

const BETWEEN_MICROS_MAX: u64 = 2_000_000;
const AWAY_MICROS_MAX: u64 = 5_000_000;
/// One in this number of programs is restored only during the next attempt.
const LEFT_ONE_IN: u64 = 3;
/// One in this number of programs that are stopped until the next push must be noticed by the current push.
const NOTICED_ONE_IN: u64 = 8;
