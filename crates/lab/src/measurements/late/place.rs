//! The storage of the source and the target in a comparison: in memory, or with high latency.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use super::{DEPTH, Delays, Late};
use crate::processes::session::Session;
use crate::units::{ByteRate, RoundTrip};

/// The storage of both ends.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Storage of the source: memory, late:1ms (each metadata operation and each flush takes 1 ms) or late:5ms,600MB/s
    /// (each read and write too, with a total rate of at most 600 MB/s).
    #[arg(long, default_value = "memory")]
    source: Place,
    /// Storage of the target, in the same form.
    #[arg(long, default_value = "memory")]
    target: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Memory,
    Late(Delays),
}

/// The mounts of one run. Each run has its own mounts, so that it does not find data in the kernel's cache that another
/// run has read.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
    _mounts: [Option<Late>; 2],
}

impl Places {
    /// Both ends in memory.
    pub(crate) const MEMORY: Self = Self {
        source: Place::Memory,
        target: Place::Memory,
    };

    /// Returns whether tools wait for storage more than for processors.
    pub(crate) fn any_is_late(self) -> bool {
        self.source != Place::Memory || self.target != Place::Memory
    }

    /// Returns the path at which programs find `root`, the target's volume.
    pub(crate) fn target_root(self, session: &Session, root: &Path) -> Result<PathBuf> {
        self.target.seen(session, TARGET, root)
    }

    /// Mounts storage with high latency for a run from `source` to `target`, which is in `root`.
    pub(crate) fn mount(
        self,
        session: &Session,
        source: &Path,
        root: &Path,
        target: &Path,
    ) -> Result<Mounted> {
        let seen_source = self.source.seen(session, SOURCE, source)?;
        let seen_root = self.target.seen(session, TARGET, root)?;
        let below = target
            .strip_prefix(root)
            .context("the target lies in its volume")?;
        let mounts = [
            self.source.mount(&seen_source, source)?,
            self.target.mount(&seen_root, root)?,
        ];
        Ok(Mounted {
            target: seen_root.join(below),
            source: seen_source,
            _mounts: mounts,
        })
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source {}, target {}", self.source, self.target)
    }
}

impl Place {
    fn seen(self, session: &Session, name: &str, root: &Path) -> Result<PathBuf> {
        match self {
            Self::Memory => Ok(root.to_owned()),
            Self::Late(_) => session.subdirectory(name),
        }
    }

    fn mount(self, seen: &Path, root: &Path) -> Result<Option<Late>> {
        match self {
            Self::Memory => Ok(None),
            Self::Late(delays) => Late::mount(seen.to_owned(), root, delays).map(Some),
        }
    }
}

impl FromStr for Place {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        let delays = text
            .strip_prefix("late:")
            .context("a place is memory or late:MILLISECONDSms")?;
        let (delay, rate) = match delays.split_once(',') {
            Some((delay, rate)) => (delay, Some(rate.parse::<ByteRate>()?)),
            None => (delays, None),
        };
        let delay: RoundTrip = delay.parse()?;
        let data_delay = if rate.is_some() {
            delay
        } else {
            RoundTrip(Duration::ZERO)
        };
        Ok(Self::Late(Delays {
            delay,
            data_delay,
            rate,
            depth: DEPTH,
            room: None,
            deviation: None,
        }))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Late(Delays {
                delay, rate: None, ..
            }) => write!(f, "late:{}ms", delay.milliseconds()),
            Self::Late(Delays {
                delay,
                rate: Some(rate),
                ..
            }) => {
                write!(f, "late:{}ms,{rate}", delay.milliseconds())
            }
        }
    }
}

const SOURCE: &str = "late-source";
const TARGET: &str = "late-target";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_makes_reads_and_writes_late_too() {
        let delays = |text: &str| match text.parse().unwrap() {
            Place::Late(delays) => (
                delays.delay.milliseconds(),
                delays.data_delay.milliseconds(),
                delays.rate,
            ),
            Place::Memory => panic!("{text} is memory"),
        };
        assert_eq!(delays("late:0.2ms"), (0.2, 0.0, None));
        assert_eq!(
            delays("late:5ms,600MB/s"),
            (5.0, 5.0, Some(ByteRate(600_000_000)))
        );
    }

    #[test]
    fn a_place_is_shown_as_it_is_typed() {
        for text in ["memory", "late:1ms", "late:0.2ms", "late:5ms,600MB/s"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        assert!("late".parse::<Place>().is_err() && "late:1ms,".parse::<Place>().is_err());
    }
}
