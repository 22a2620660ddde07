//! The memory, descriptors and threads of a process, and their trend over time.

use std::fmt;
use std::fs;

use anyhow::{Context, Result};

/// The memory, descriptors and threads of a process at one time, or their averages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Level {
    memory_mib: f64,
    descriptors: f64,
    threads: f64,
}

/// Levels in chronological order.
#[derive(Debug, Default)]
pub(crate) struct Levels(Vec<Level>);

/// Maximum ratio of the last level to the first.
const GROWTH_MAX: f64 = 1.1;

impl Level {
    /// Reads the level of a running process.
    pub(crate) fn of(id: u32) -> Result<Self> {
        let status =
            fs::read_to_string(format!("/proc/{id}/status")).context("failed to read /proc")?;
        let number = |name: &str| -> Result<f64> {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .context("a line of status")?;
            Ok(line
                .split_whitespace()
                .next()
                .context("a number")?
                .parse()?)
        };
        let descriptors = u32::try_from(fs::read_dir(format!("/proc/{id}/fd"))?.count())?;
        Ok(Self {
            memory_mib: number("VmRSS:")? / 1024.0,
            descriptors: f64::from(descriptors),
            threads: number("Threads:")?,
        })
    }

    /// Returns whether memory and descriptors are at most 10 % above `first`.
    pub(crate) fn is_level_with(&self, first: &Self) -> bool {
        self.memory_mib <= first.memory_mib * GROWTH_MAX
            && self.descriptors <= first.descriptors * GROWTH_MAX
    }
}

impl Levels {
    pub(crate) fn add(&mut self, level: Level) {
        self.0.push(level);
    }

    pub(crate) fn first_tenth(&self) -> Level {
        average(&self.0[..self.tenth()])
    }

    pub(crate) fn last_tenth(&self) -> Level {
        average(&self.0[self.0.len() - self.tenth()..])
    }

    fn tenth(&self) -> usize {
        self.0.len().div_ceil(10)
    }
}

fn average(levels: &[Level]) -> Level {
    let count = levels.len() as f64;
    let mean = |part: fn(&Level) -> f64| levels.iter().map(part).sum::<f64>() / count;
    Level {
        memory_mib: mean(|level| level.memory_mib),
        descriptors: mean(|level| level.descriptors),
        threads: mean(|level| level.threads),
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            memory_mib,
            descriptors,
            threads,
        } = self;
        write!(
            f,
            "{memory_mib:.1} MiB, {descriptors:.1} descriptors, {threads:.1} threads"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenths_are_averaged_and_compared() {
        let level = |memory_mib| Level {
            memory_mib,
            descriptors: 10.0,
            threads: 3.0,
        };
        let levels = Levels(
            (0..20)
                .map(|number| level(100.0 + f64::from(number)))
                .collect(),
        );
        let (first, last) = (levels.first_tenth(), levels.last_tenth());
        assert_eq!((first, last), (level(100.5), level(118.5)));
        assert!(!last.is_level_with(&first));
        assert!(level(110.0).is_level_with(&level(100.0)));
    }
}
