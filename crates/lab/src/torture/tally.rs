//! The results of rounds: counts and failures, and the lines that report them.

use std::collections::BTreeMap;
use std::fmt;

use super::events::EventKind;

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) what: String,
}

/// The kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureKind {
    /// The command succeeded, but the target does not equal the source.
    Wrong,
    /// An entry under a final name was not a complete version of the file.
    Partial,
    /// The command did not succeed although nothing disturbed it any more.
    Unfinished,
    /// Files of zmove were left behind.
    Left,
    /// An operation happened or was counted twice.
    Doubled,
    /// A program did not end.
    Hung,
    /// An unexplained exit code or death, or a panic.
    Odd,
    /// The round itself could not continue.
    Lab,
}

/// Counts of one or more rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) rounds: u64,
    pub(crate) tries: u64,
    /// Attempts that failed although nothing disturbed them.
    pub(crate) calm_failed: u64,
    pub(crate) bytes: u64,
    pub(crate) looks: u64,
    /// Hidden files that killed daemons left behind, as documented.
    pub(crate) orphans: u64,
    /// Transfers that hung after bytes were corrupted and had to be cut off.
    pub(crate) harms_cut: u64,
    pub(crate) events: BTreeMap<EventKind, u64>,
    pub(crate) failures: Vec<Failure>,
}

impl FailureKind {
    /// Returns the word for the failure in the summary.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Wrong => "wrong",
            Self::Partial => "partial",
            Self::Unfinished => "unfinished",
            Self::Left => "left behind",
            Self::Doubled => "doubled",
            Self::Hung => "hung",
            Self::Odd => "odd",
            Self::Lab => "lab",
        }
    }
}

impl Tally {
    pub(crate) fn fail(&mut self, kind: FailureKind, what: impl Into<String>) {
        let failure = Failure {
            kind,
            what: what.into(),
        };
        if !self.failures.contains(&failure) {
            self.failures.push(failure);
        }
    }

    pub(crate) fn is_well(&self) -> bool {
        self.failures.is_empty()
    }

    /// Adds the counts of another tally.
    pub(crate) fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.tries += other.tries;
        self.calm_failed += other.calm_failed;
        self.bytes += other.bytes;
        self.looks += other.looks;
        self.orphans += other.orphans;
        self.harms_cut += other.harms_cut;
        for (kind, count) in other.events {
            *self.events.entry(kind).or_default() += count;
        }
        self.failures.extend(other.failures);
    }

    /// Returns the failures in one line.
    pub(crate) fn failed_line(&self) -> String {
        let words = |failure: &Failure| format!("{}: {}", failure.kind.word(), failure.what);
        let mut line = self
            .failures
            .iter()
            .take(FAILURES_SHOWN)
            .map(words)
            .collect::<Vec<_>>()
            .join("; ");
        if self.failures.len() > FAILURES_SHOWN {
            line.push_str(&format!(
                "; and {} more",
                self.failures.len() - FAILURES_SHOWN
            ));
        }
        line
    }
}

impl Tally {
    /// Returns the number of failures of each kind.
    pub(crate) fn columns(&self) -> String {
        let bad = [
            ("wrong bytes", FailureKind::Wrong),
            ("partial", FailureKind::Partial),
            ("unfinished", FailureKind::Unfinished),
            ("left behind", FailureKind::Left),
            ("hung", FailureKind::Hung),
            ("odd", FailureKind::Odd),
            ("lab", FailureKind::Lab),
        ];
        let count = |wanted: FailureKind| {
            self.failures
                .iter()
                .filter(|found| found.kind == wanted)
                .count()
        };
        let columns: Vec<_> = bad
            .iter()
            .map(|(words, kind)| format!("{words} {}", count(*kind)))
            .collect();
        columns.join(", ")
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<String> = self
            .events
            .iter()
            .map(|(kind, count)| format!("{} {count}", kind.word()))
            .collect();
        write!(
            f,
            "{} rounds, {} events ({}), {} tries, {} MiB relayed, {} looks at targets",
            self.rounds,
            self.events.values().sum::<u64>(),
            kinds.join(", "),
            self.tries,
            self.bytes >> 20,
            self.looks,
        )?;
        write!(
            f,
            ", {} calm tries failed, {} orphans",
            self.calm_failed, self.orphans
        )?;
        write!(f, ", {} harms waited out", self.harms_cut)?;
        write!(f, ": {}", self.columns())
    }
}

const FAILURES_SHOWN: usize = 4;
