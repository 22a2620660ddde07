//! The results of rounds of `torture --cluster`.

use std::fmt;

use super::acts::{Act, Who};
use crate::torture::tally::{FailureKind, Tally};

/// Counts of one or more rounds.
#[derive(Debug, Default)]
pub(crate) struct ClusterTally {
    /// Counts common to all kinds of torture.
    pub(crate) common: Tally,
    killed: Struck,
    stopped: Struck,
    losses: u64,
}

/// Number of actions against each kind of program.
#[derive(Debug, Default)]
struct Struck {
    heads: u64,
    receivers: u64,
    nodes: u64,
    servers: u64,
}

impl Struck {
    fn note(&mut self, who: Who) {
        *match who {
            Who::Head => &mut self.heads,
            Who::Receiver(_) => &mut self.receivers,
            Who::Node(_) => &mut self.nodes,
            Who::Server(_) => &mut self.servers,
        } += 1;
    }

    fn add(
        &mut self,
        Self {
            heads,
            receivers,
            nodes,
            servers,
        }: &Self,
    ) {
        self.heads += heads;
        self.receivers += receivers;
        self.nodes += nodes;
        self.servers += servers;
    }
}

impl fmt::Display for Struck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            heads,
            receivers,
            nodes,
            servers,
        } = self;
        write!(
            f,
            "{heads} heads, {receivers} receivers, {nodes} nodes, {servers} servers"
        )
    }
}

impl ClusterTally {
    pub(super) fn happened(&mut self, act: Act) {
        match act {
            Act::Kill(who) => self.killed.note(who),
            Act::Stop(who) => self.stopped.note(who),
            Act::Lose(_) => self.losses += 1,
            Act::Start(_) | Act::Wake(_) => {}
        }
    }

    /// Adds the counts of another tally.
    pub(crate) fn add(&mut self, other: Self) {
        self.common.add(other.common);
        self.killed.add(&other.killed);
        self.stopped.add(&other.stopped);
        self.losses += other.losses;
    }
}

impl fmt::Display for ClusterTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            common,
            killed,
            stopped,
            losses,
        } = self;
        let Tally {
            rounds,
            tries,
            looks,
            calm_failed,
            ..
        } = common;
        let doubled = common
            .failures
            .iter()
            .filter(|found| found.kind == FailureKind::Doubled)
            .count();
        write!(
            f,
            "{rounds} rounds, {tries} tries; killed: {killed}; stopped: {stopped}; {losses} losses of the broker; \
             {looks} looks at targets, {calm_failed} calm tries failed: \
             {}, doubled {doubled}",
            common.columns()
        )
    }
}
