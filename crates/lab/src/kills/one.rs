//! A transfer that is killed at a random time and completed with the same command.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

use super::yard::Yard;
use crate::data::datasets::{self, DataSet};
use crate::data::trees::{self, Modes};
use crate::torture::dice::Dice;

/// The setup in which transfers are killed.
#[derive(Debug)]
pub(crate) struct Bench {
    yard: Yard,
    set: DataSet,
    source: PathBuf,
    whole: Duration,
}

/// The side to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Sender,
    Receiver,
}

/// A transfer that was killed and completed.
#[derive(Clone, Debug)]
pub(crate) struct Killed {
    pub(crate) victim: Victim,
    pub(crate) after: Duration,
    pub(crate) stored: Stored,
    /// Size of the source.
    pub(crate) total_bytes: u64,
    /// Bytes moved by the runs after the kill.
    pub(crate) moved_bytes: u64,
    pub(crate) resumed_bytes: u64,
    pub(crate) again: Duration,
    /// A difference between the source and the target, if there is one.
    pub(crate) difference: Option<String>,
}

/// The bytes that the receiver had at the time of the kill, according to three sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Bytes according to the journals.
    pub(crate) journalled_bytes: u64,
    /// Bytes according to the last report to the sender.
    pub(crate) told_bytes: u64,
    /// Bytes that the receiver had written according to the kernel: an upper bound of the bytes stored.
    pub(crate) written_bytes: u64,
}

impl Stored {
    /// Returns the number of bytes that the receiver certainly had, and the source of that number.
    pub(crate) fn certain(self) -> (u64, &'static str) {
        if self.journalled_bytes >= self.told_bytes {
            (self.journalled_bytes, "journal")
        } else {
            (self.told_bytes, "sender")
        }
    }
}

impl Killed {
    /// Returns the bytes that the receiver may not have had.
    pub(crate) fn missing_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.stored.certain().0)
    }

    /// Returns the bytes that were moved although the receiver had them for certain.
    pub(crate) fn excess_bytes(&self) -> u64 {
        self.moved_bytes.saturating_sub(self.missing_bytes())
    }

    /// Returns the bytes that were moved although the receiver had written them, at least in part.
    pub(crate) fn excess_over_written_bytes(&self) -> u64 {
        let handed = self.stored.written_bytes.max(self.stored.certain().0);
        self.moved_bytes
            .saturating_sub(self.total_bytes.saturating_sub(handed))
    }
}

impl Bench {
    /// Starts the daemon and measures the duration of a push without a kill.
    pub(crate) fn set_up(
        zmove: &str,
        place: &Path,
        set: &DataSet,
        options: &[String],
        dice: &mut Dice,
    ) -> Result<Self> {
        let yard = Yard::set_up(zmove, place, &set.root, options, dice)?;
        datasets::warm(set)?;
        let whole = yard.push()?.finish()?.elapsed;
        yard.empty_target()?;
        Ok(Self {
            yard,
            set: set.clone(),
            source: set.root.clone(),
            whole,
        })
    }

    pub(crate) fn whole(&self) -> Duration {
        self.whole
    }

    /// Kills the sender in odd runs and the receiver in even runs, and completes the transfer.
    pub(crate) fn kill_one(&mut self, number: u64, dice: &mut Dice) -> Result<Killed> {
        let victim = if number % 2 == 1 {
            Victim::Sender
        } else {
            Victim::Receiver
        };
        for _ in 0..TRIES_MAX {
            let after = Duration::from_micros(dice.within(0..=micros(self.whole)));
            if let Some(stored) = self.begin_and_kill(victim, after)? {
                let killed = self.finish(victim, after, stored)?;
                self.yard.empty_target()?;
                return Ok(killed);
            }
            self.yard.empty_target()?;
        }
        bail!("{TRIES_MAX} pushes in a row had ended before they were to be killed")
    }

    /// Returns `None` if the push ended before the kill.
    fn begin_and_kill(&mut self, victim: Victim, after: Duration) -> Result<Option<Stored>> {
        let before = self.yard.receiver()?;
        let mut push = self.yard.push()?;
        if !push.runs_for(after)? {
            push.finish()?;
            return Ok(None);
        }
        let mut stored = Stored::default();
        match victim {
            Victim::Sender => {
                push.kill()?;
                stored.journalled_bytes = self.yard.journalled_bytes()?;
                stored.written_bytes = (self.yard.receiver()? - before).bytes_written;
            }
            Victim::Receiver => {
                let done = self.yard.kill_receiver(&mut push)?;
                stored.journalled_bytes = self.yard.journalled_bytes()?;
                stored.written_bytes = (done - before).bytes_written;
                self.yard.serve_again()?;
            }
        }
        stored.told_bytes = push.bytes_stored()?;
        Ok(Some(stored))
    }

    fn finish(&self, victim: Victim, after: Duration, stored: Stored) -> Result<Killed> {
        let done = self.yard.push()?.finish()?;
        Ok(Killed {
            victim,
            after,
            stored,
            total_bytes: self.set.bytes,
            moved_bytes: done.bytes,
            resumed_bytes: done.bytes_resumed,
            again: done.elapsed,
            difference: trees::difference(&self.source, self.yard.target(), Modes::Compared)?,
        })
    }
}

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let victim = match self.victim {
            Victim::Sender => "sender",
            Victim::Receiver => "receiver",
        };
        let stored = self.stored;
        write!(
            f,
            "{victim} killed after {:.2} s; stored by ",
            self.after.as_secs_f64()
        )?;
        for (bytes, account) in [
            (stored.journalled_bytes, "journal, "),
            (stored.told_bytes, "sender, "),
            (stored.written_bytes, "kernel"),
        ] {
            write!(f, "{:.1} {account}", mebibytes(bytes))?;
        }
        write!(
            f,
            " MiB; missing {:.1} ({}); again moved {:.1}, resumed {:.1} in {:.2} s; excess {:.1}, over written {:.1}; {}",
            mebibytes(self.missing_bytes()),
            stored.certain().1,
            mebibytes(self.moved_bytes),
            mebibytes(self.resumed_bytes),
            self.again.as_secs_f64(),
            mebibytes(self.excess_bytes()),
            mebibytes(self.excess_over_written_bytes()),
            self.difference
                .as_ref()
                .map_or_else(|| "right".to_owned(), |what| format!("WRONG: {what}")),
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

const TRIES_MAX: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn killed(stored: Stored, moved_bytes: u64) -> Killed {
        Killed {
            victim: Victim::Sender,
            after: Duration::from_millis(500),
            stored,
            total_bytes: 100,
            moved_bytes,
            resumed_bytes: 0,
            again: Duration::from_secs(1),
            difference: None,
        }
    }

    #[test]
    fn the_larger_account_of_what_was_stored_holds() {
        let by_sender = Stored {
            journalled_bytes: 30,
            told_bytes: 40,
            written_bytes: 45,
        };
        assert_eq!(by_sender.certain(), (40, "sender"));
        let killed = killed(by_sender, 70);
        assert_eq!((killed.missing_bytes(), killed.excess_bytes()), (60, 10));
        assert_eq!(killed.excess_over_written_bytes(), 15);
    }

    #[test]
    fn less_than_what_was_missing_is_no_excess() {
        let stored = Stored {
            journalled_bytes: 30,
            told_bytes: 0,
            written_bytes: 20,
        };
        let killed = killed(stored, 60);
        assert_eq!((killed.missing_bytes(), killed.excess_bytes()), (70, 0));
        assert_eq!(killed.excess_over_written_bytes(), 0);
    }
}
