//! The plan of a round, which is drawn from its seed.

use std::fmt;
use std::time::Duration;

use super::disk::Loss;
use super::faults::{Faults, Moment};
use crate::torture::dice::Dice;

/// The decisions of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) push: Vec<&'static str>,
    pub(crate) serve: Vec<&'static str>,
    pub(crate) route: Route,
    pub(crate) journals: Journals,
    pub(crate) neighbour: Neighbour,
    pub(crate) story: Story,
}

/// The route of the data to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// A push to a local directory.
    Local,
    /// A push to a daemon on the loopback interface.
    Daemon,
}

/// The location of the receiver's journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journals {
    /// On the disk whose power is cut.
    OnTheDisk,
    /// On another disk, which loses nothing.
    Elsewhere,
}

/// Whether another program flushes its own files on the same file system, which causes journal commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbour {
    Quiet,
    Busy,
}

/// The events during the push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Story {
    /// The power is cut during or after the push.
    Cut {
        at: CutAt,
        kill: Option<Moment>,
        loss: Loss,
        faults: Faults,
    },
    /// Requests fail, or a bit is flipped in one. Then the disk works again.
    Faults(Faults),
}

/// The time of the power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutAt {
    /// At a request, or after the end if the push makes fewer requests.
    Request(Moment),
    /// This time after the start of the push, or at its end if that comes first.
    AfterStart(Duration),
    /// This time after the end of the push.
    AfterEnd(Duration),
}

impl Plan {
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let mut plan = Self {
            push: Vec::new(),
            serve: Vec::new(),
            route: if dice.one_in(3) {
                Route::Daemon
            } else {
                Route::Local
            },
            journals: if dice.one_in(2) {
                Journals::OnTheDisk
            } else {
                Journals::Elsewhere
            },
            neighbour: if dice.one_in(3) {
                Neighbour::Quiet
            } else {
                Neighbour::Busy
            },
            story: Story::draw(dice),
        };
        for row in PUSH_ROWS {
            plan.push
                .extend(row[dice.weighted(row.iter().map(|choice| choice.0))].1);
        }
        if matches!(&plan.story, Story::Faults(faults) if faults.are_silent())
            && !plan.push.contains(&MEDIA)
        {
            plan.push.push(MEDIA);
        }
        if plan.route == Route::Daemon {
            for row in SERVE_ROWS {
                plan.serve
                    .extend(row[dice.weighted(row.iter().map(|choice| choice.0))].1);
            }
        }
        plan
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            route,
            journals,
            neighbour,
            story,
            ..
        } = self;
        write!(f, "push {}, {route:?}", self.push.join(" "))?;
        if *route == Route::Daemon {
            write!(f, ", serve {}", self.serve.join(" "))?;
        }
        write!(
            f,
            ", journals {journals:?}, neighbour {neighbour:?}, {story:?}"
        )
    }
}

impl Story {
    fn draw(dice: &mut Dice) -> Self {
        match dice.weighted([6, 1, 2, 1, 1].into_iter()) {
            0 => Self::draw_cut(dice, Faults::draw_delays),
            1 => Self::draw_cut(dice, Faults::draw_failing_data),
            2 => Self::Faults(Faults::draw_failing_data(dice)),
            3 => Self::Faults(Faults::draw_failing_flushes(dice)),
            _ => Self::Faults(Faults::draw_flip(dice)),
        }
    }

    fn draw_cut(dice: &mut Dice, draw_faults: fn(&mut Dice) -> Faults) -> Self {
        let at = match dice.weighted([6, 1, 2].into_iter()) {
            0 => CutAt::Request(Moment::draw(dice)),
            1 => CutAt::AfterStart(Duration::from_millis(dice.within(1..=400))),
            _ => CutAt::AfterEnd(Duration::from_millis(dice.scaled_within(0..=60))),
        };
        let kill = dice.one_in(5).then(|| Moment::draw(dice));
        Self::Cut {
            at,
            kill,
            loss: Loss::draw(dice),
            faults: draw_faults(dice),
        }
    }
}

/// A choice: its weight and its arguments.
type Choice = (u64, &'static [&'static str]);

/// The option that detects a bit which was flipped on the disk.
const MEDIA: &str = "--verify=media";

/// Rows of options for the push. One choice is taken from each row. `--durability none` is not tested because it makes
/// no guarantees.
const PUSH_ROWS: [&[Choice]; 8] = [
    &[(3, &["--durability=end"]), (1, &["--durability=file"])],
    &[(2, &[]), (1, &["--io-engine=uring"])],
    &[(4, &[]), (1, &[MEDIA])],
    &[(4, &[]), (1, &["--inplace"])],
    &[(4, &[]), (1, &["--checksum"])],
    &[(3, &[]), (1, &["--delete"])],
    &[(3, &[]), (1, &["--direct=on"]), (1, &["--direct=off"])],
    &[(2, &[]), (1, &["--delta=always"]), (1, &["--delta=never"])],
];

const SERVE_ROWS: [&[Choice]; 2] = [
    &[(2, &[]), (1, &["--io-engine", "uring"])],
    &[
        (3, &[]),
        (1, &["--direct", "on"]),
        (1, &["--direct", "off"]),
    ],
];
