//! The results of all kills.

use std::fmt;

use super::one::{Killed, Victim, mebibytes};
use crate::measurements::measure::figures::{median, shown, spread};

/// All kills so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    killed: Vec<Killed>,
}

impl Tally {
    pub(crate) fn add(&mut self, killed: Killed) {
        self.killed.push(killed);
    }

    /// Returns whether all contents are correct and no run moved too much excess data.
    pub(crate) fn all_right(&self) -> bool {
        self.killed
            .iter()
            .all(|one| one.difference.is_none() && one.excess_bytes() <= EXCESS_BYTES_MAX)
    }

    fn of(&self, value: impl Fn(&Killed) -> u64) -> String {
        let values: Vec<f64> = self
            .killed
            .iter()
            .map(|one| mebibytes(value(one)))
            .collect();
        let most = spread(&values).map(|(_, most)| most);
        format!(
            "at most {} MiB, median {}",
            shown(most, 1),
            shown(median(&values), 1)
        )
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let senders = self
            .killed
            .iter()
            .filter(|one| one.victim == Victim::Sender)
            .count();
        let wrong = self
            .killed
            .iter()
            .filter(|one| one.difference.is_some())
            .count();
        let above = self
            .killed
            .iter()
            .filter(|one| one.excess_bytes() > EXCESS_BYTES_MAX)
            .count();
        write!(
            f,
            "{} kills, {senders} of senders; missing {}; excess {}; over written {}; above {} MiB: {above}; wrong: {wrong}",
            self.killed.len(),
            self.of(Killed::missing_bytes),
            self.of(Killed::excess_bytes),
            self.of(Killed::excess_over_written_bytes),
            EXCESS_BYTES_MAX >> 20,
        )
    }
}

/// Maximum number of bytes that may be moved in addition to the missing ones.
const EXCESS_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::one::Stored;
    use super::*;

    fn killed(moved_bytes: u64, difference: Option<&str>) -> Killed {
        Killed {
            victim: Victim::Receiver,
            after: Duration::ZERO,
            stored: Stored {
                journalled_bytes: 512 << 20,
                told_bytes: 0,
                written_bytes: 520 << 20,
            },
            total_bytes: 1 << 30,
            moved_bytes,
            resumed_bytes: 0,
            again: Duration::ZERO,
            difference: difference.map(str::to_owned),
        }
    }

    fn tally(killed: Vec<Killed>) -> Tally {
        Tally { killed }
    }

    #[test]
    fn an_excess_above_the_bound_and_wrong_contents_fail() {
        assert!(tally(vec![killed((512 + 64) << 20, None)]).all_right());
        assert!(!tally(vec![killed(((512 + 64) << 20) + 1, None)]).all_right());
        assert!(!tally(vec![killed(512 << 20, Some("f: content differs"))]).all_right());
    }

    #[test]
    fn the_sum_has_the_worst_and_the_middle() {
        let all = tally(vec![
            killed(513 << 20, None),
            killed(522 << 20, None),
            killed(512 << 20, None),
        ]);
        assert_eq!(
            all.to_string(),
            "3 kills, 0 of senders; missing at most 512.0 MiB, median 512.0; excess at most 10.0 MiB, median 1.0; \
             over written at most 18.0 MiB, median 9.0; above 64 MiB: 0; wrong: 0"
        );
    }
}
