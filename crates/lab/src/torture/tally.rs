//! What rounds came to: counts, failures, and the two kinds of lines that say so.

use std::collections::BTreeMap;
use std::fmt;

use super::events::EventKind;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) what: String,
}

/// The ways in which a mover can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureKind {
    /// The command said that all is done, and the target is not the source.
    Wrong,
    /// Under a final name stood what is no whole version of the file.
    Partial,
    /// The command did not come to its end, though nothing disturbed it any more.
    Unfinished,
    /// Something of zmove's own stayed behind.
    Left,
    /// What should have happened once has happened twice, or was counted twice.
    Doubled,
    /// A program did not end.
    Hung,
    /// An exit code or a death that nothing explains, or a panic.
    Odd,
    /// The round itself could not go on.
    Lab,
}

/// Counts of one round or of many.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) rounds: u64,
    pub(crate) tries: u64,
    /// Tries that failed though nothing disturbed them.
    pub(crate) calm_failed: u64,
    pub(crate) bytes: u64,
    pub(crate) looks: u64,
    /// Hidden names that killed daemons left, as documented.
    pub(crate) orphans: u64,
    /// Transfers that waited after bytes were harmed until their connections were cut.
    pub(crate) harms_cut: u64,
    pub(crate) events: BTreeMap<EventKind, u64>,
    pub(crate) failures: Vec<Failure>,
}

impl FailureKind {
    /// The word for it in both lines.
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

    /// Adds another's counts to these.
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

    /// The failures in one line.
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
    /// How many failures there are of each kind.
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
