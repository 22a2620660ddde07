//! What happens during the tries of a round.

use std::time::Duration;

use crate::torture::dice::Dice;

/// One of the programs of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// The push.
    Head,
    /// A receiver of this number.
    Receiver(usize),
    /// A node of this number, other than the head.
    Node(usize),
    /// A server of the broker of this number.
    Server(usize),
}

/// What the broker loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The consumers of the queue.
    Consumers,
    /// The queue itself.
    Stream,
    /// All that it has: all its servers are killed as well.
    Store,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// `kill -9`.
    Kill(Who),
    /// One that was killed comes back.
    Start(Who),
    /// SIGSTOP.
    Stop(Who),
    /// SIGCONT.
    Wake(Who),
    /// The broker loses something.
    Lose(Loss),
}

impl Act {
    /// Whether it brings something back.
    pub(super) const fn restores(self) -> bool {
        matches!(self, Self::Start(_) | Self::Wake(_))
    }
}

/// An act, and when it happens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub(super) after: Duration,
    pub(super) act: Act,
}

/// The acts of a try, in the order in which they happen, and those that it leaves to the next.
#[derive(Debug)]
pub(super) struct Acts {
    /// Whether the time of the acts counts from when the job has begun at the target.
    pub(super) since: Since,
    pub(super) now: Vec<Timed>,
    pub(super) later: Vec<Timed>,
}

/// From when on the time of acts counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// The start of the push.
    Start,
    /// The moment at which the job is under way at the target.
    JobBegun,
}

/// How many there are of whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) receivers: usize,
    pub(crate) nodes: usize,
    /// The servers of the broker.
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

/// Draws the acts of a try, which begins with some that the one before has left.
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

/// The broker loses something.
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

/// Somebody is killed or stopped, and comes back.
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
        // it would take a minute until all give up somebody who is silent
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

/// Mostly soon.
fn moment(dice: &mut Dice, micros_max: u64) -> Duration {
    Duration::from_micros(dice.scaled_within(1_000..=micros_max))
}

const BETWEEN_MICROS_MAX: u64 = 2_000_000;
const AWAY_MICROS_MAX: u64 = 5_000_000;
/// Of so many that are struck, one comes back during the next try.
const LEFT_ONE_IN: u64 = 3;
/// Of so many that are stopped until the next push, one has to be noticed by the first.
const NOTICED_ONE_IN: u64 = 8;
