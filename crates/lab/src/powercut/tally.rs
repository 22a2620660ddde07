//! What rounds came to.

use std::collections::BTreeSet;
use std::fmt;

/// The ways in which a mover can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureKind {
    /// The same command said that all is done, and the target is not the source.
    Wrong,
    /// After the cut, a final name stood for what is no whole version of the file, or was gone.
    Partial,
    /// The push had ended with 0 before the cut, and not all of it was there.
    Lost,
    /// The same command did not end with 0.
    Unfinished,
    /// A program did not end.
    Hung,
    /// The round itself could not go on.
    Lab,
}

/// Counts of one round or of many.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) rounds: u64,
    /// Cuts, and how many of them came after the push had ended with 0.
    pub(crate) cuts: u64,
    pub(crate) cuts_after_done: u64,
    /// Writes that cuts could lose.
    pub(crate) pending: u64,
    /// Rounds in which a push did not end with 0 because of a fault.
    pub(crate) faults_told: u64,
    /// Failed requests.
    pub(crate) faults: u64,
    /// Hidden names that were left at the end.
    pub(crate) hidden: u64,
    /// By kind, how many rounds.
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
    /// Of a round to come.
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

    /// Adds a round.
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

    /// The failures of a round in one line: of each kind how many, and the first.
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
