//! The actions during the attempts of a round.

use std::time::Duration;

use crate::torture::dice::Dice;

/// An action. Numbers are indexes of daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// `kill -9` of the push.
    KillPush,
    /// `kill -9` of a daemon.
    Kill(usize),
    /// Restarts a daemon that was killed.
    Start(usize),
    /// SIGSTOP to a daemon.
    Stop(usize),
    /// SIGCONT to a daemon.
    Wake(usize),
}

impl Act {
    /// Returns whether the action restores a daemon.
    pub(super) fn restores(self) -> bool {
        matches!(self, Self::Start(_) | Self::Wake(_))
    }
}

/// An action, and its time after the start of the push.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub(super) after: Duration,
    pub(super) act: Act,
}

/// The actions of an attempt in chronological order, and the actions that are left for the next attempt.
#[derive(Debug)]
pub(super) struct Acts {
    pub(super) now: Vec<Timed>,
    pub(super) later: Vec<Timed>,
}

/// Draws the actions of an attempt. The attempt starts with the actions that the previous attempt has left.
pub(super) fn draw(dice: &mut Dice, daemons: usize, before: Vec<Timed>) -> Acts {
    let mut acts = Acts {
        now: before,
        later: Vec::new(),
    };
    let mut after = Duration::ZERO;
    for _ in 0..=dice.weighted([3, 4, 3, 2].into_iter()) {
        after += moment(dice, BETWEEN_MICROS_MAX);
        let which = dice.index(daemons);
        let (act, back) = match dice.weighted([4, 6, 2].into_iter()) {
            0 => (Act::Kill(which), Some(Act::Start(which))),
            1 => (Act::Stop(which), Some(Act::Wake(which))),
            _ => (Act::KillPush, None),
        };
        acts.now.push(Timed { after, act });
        let Some(back) = back else { continue };
        let away = moment(dice, AWAY_MICROS_MAX);
        if dice.one_in(3) {
            acts.later.push(Timed {
                after: away,
                act: back,
            });
            if matches!(act, Act::Stop(_)) && !dice.one_in(NOTICED_ONE_IN) {
                // Without this action, the push would wait a minute before it gives up on the silent daemon.
                let after = after + moment(dice, BETWEEN_MICROS_MAX);
                acts.now.push(Timed {
                    after,
                    act: Act::KillPush,
                });
            }
        } else {
            acts.now.push(Timed {
                after: after + away,
                act: back,
            });
        }
    }
    for acts in [&mut acts.now, &mut acts.later] {
        acts.sort_by_key(|timed| timed.after);
    }
    acts
}

/// Draws a time. Short times are more likely.
fn moment(dice: &mut Dice, micros_max: u64) -> Duration {
    Duration::from_micros(dice.scaled_within(1_000..=micros_max))
}

const BETWEEN_MICROS_MAX: u64 = 2_000_000;
const AWAY_MICROS_MAX: u64 = 5_000_000;
/// One in this number of daemons that are stopped until the next push must be noticed by the current push.
const NOTICED_ONE_IN: u64 = 20;
