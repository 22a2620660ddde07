//! The results of rounds.

use std::collections::BTreeSet;
use std::fmt;

/// The kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureKind {
    /// The same command succeeded, but the target does not equal the source.
    Wrong,
    /// After the power cut, an entry under a final name was not a complete version of the file, or was missing.
    Partial,
    /// The push succeeded before the power cut, but not all of its data was on the disk.
    Lost,
    /// The same command did not succeed.
    Unfinished,
    /// A program did not end.
    Hung,
    /// The round itself could not continue.
    Lab,
}

/// Counts of one or more rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) rounds: u64,
    /// Number of power cuts. `cuts_after_done` is the number of power cuts after a successful push.
    pub(crate) cuts: u64,
    pub(crate) cuts_after_done: u64,
    /// Writes that power cuts could lose.
    pub(crate) pending: u64,
    /// Rounds in which a fault made a push fail.
    pub(crate) faults_told: u64,
    /// Number of failed requests.
    pub(crate) faults: u64,
    /// Hidden files that were left at the end.
    pub(crate) hidden: u64,
    /// Number of failed rounds, by kind.
    failed_rounds: Vec<(FailureKind, u64)>,
    failures: Vec<(FailureKind, String)>,
}

impl FailureKind {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Wrong, "wrong after the same command"),
        (Self::Partial, "partial names"),
        (Self::Lost, "lost after exit 0"),
        (Self::Unfinished, "unfinished"),
        (Self::Hung, "hung"),
        (Self::Lab, "lab"),
    ];
}

impl Tally {
    /// Returns the tally of a round that has not run yet.
    pub(crate) fn of_one_round() -> Self {
        Self {
            rounds: 1,
            ..Self::default()
        }
    }

    pub(crate) fn fail(&mut self, kind: FailureKind, what: impl Into<String>) {
        self.failures.push((kind, what.into()));
    }

    pub(crate) fn all_right(&self) -> bool {
        self.failures.is_empty() && self.failed_rounds.is_empty()
    }

    /// Adds the counts of a round.
    pub(crate) fn add(&mut self, round: &Self) {
        self.rounds += round.rounds;
        self.cuts += round.cuts;
        self.cuts_after_done += round.cuts_after_done;
        self.pending += round.pending;
        self.faults_told += round.faults_told;
        self.faults += round.faults;
        self.hidden += round.hidden;
        let kinds: BTreeSet<FailureKind> = round.failures.iter().map(|(kind, _)| *kind).collect();
        for kind in kinds {
            match self
                .failed_rounds
                .iter_mut()
                .find(|(known, _)| *known == kind)
            {
                Some((_, count)) => *count += 1,
                None => self.failed_rounds.push((kind, 1)),
            }
        }
    }

    /// Returns the failures of a round in one line: the count and the first failure of each kind.
    pub(crate) fn failed_line(&self) -> String {
        let mut words = Vec::new();
        for (wanted, name) in FailureKind::ALL {
            let mut of_kind = self.failures.iter().filter(|(kind, _)| *kind == wanted);
            if let Some((_, first)) = of_kind.next() {
                words.push(format!("{name} {}: {first}", 1 + of_kind.count()));
            }
        }
        words.join("; ")
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rounds, {} cuts ({} after exit 0), {} writes to lose, {} requests failed ({} pushes told of it), {} hidden names left",
            self.rounds,
            self.cuts,
            self.cuts_after_done,
            self.pending,
            self.faults,
            self.faults_told,
            self.hidden,
        )?;
        for (place, (wanted, words)) in FailureKind::ALL.into_iter().enumerate() {
            let count = self
                .failed_rounds
                .iter()
                .find(|(kind, _)| *kind == wanted)
                .map_or(0, |(_, count)| *count);
            write!(
                f,
                "{} {words} {count}",
                if place == 0 { ": rounds" } else { "," }
            )?;
        }
        Ok(())
    }
}
