//! The results of rounds of `torture --spread`.

use std::fmt;

use super::acts::Act;
use crate::torture::tally::Tally;

/// Counts of one or more rounds.
#[derive(Debug, Default)]
pub(crate) struct SpreadTally {
    /// Counts common to all kinds of torture.
    pub(crate) common: Tally,
    pushes_killed: u64,
    daemons_killed: u64,
    daemons_stopped: u64,
}

impl SpreadTally {
    pub(super) fn happened(&mut self, act: Act) {
        match act {
            Act::KillPush => self.pushes_killed += 1,
            Act::Kill(_) => self.daemons_killed += 1,
            Act::Stop(_) => self.daemons_stopped += 1,
            Act::Start(_) | Act::Wake(_) => {}
        }
    }

    /// Adds the counts of another tally.
    pub(crate) fn add(&mut self, other: Self) {
        self.common.add(other.common);
        self.pushes_killed += other.pushes_killed;
        self.daemons_killed += other.daemons_killed;
        self.daemons_stopped += other.daemons_stopped;
    }
}

impl fmt::Display for SpreadTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            common,
            pushes_killed,
            daemons_killed,
            daemons_stopped,
        } = self;
        let Tally {
            rounds,
            tries,
            looks,
            calm_failed,
            ..
        } = common;
        write!(
            f,
            "{rounds} rounds, {tries} tries; killed: {pushes_killed} pushes, {daemons_killed} daemons; stopped: \
             {daemons_stopped} daemons; {looks} looks at targets, {calm_failed} calm tries failed: {}",
            common.columns()
        )
    }
}
