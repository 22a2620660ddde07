//! The resource counts of a process. The kernel reports them until the parent has reaped the process.

use std::fs;
use std::ops::Sub;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::param::clock_ticks_per_second;

/// The resources that a process has used since its start, or the difference of two such values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) cpu: Duration,
    /// Bytes read from files, whether cached or not.
    pub(crate) bytes_read: u64,
    /// Bytes written to files, even if they are still in the page cache.
    pub(crate) bytes_written: u64,
}

impl Counted {
    pub(crate) fn of(process: u32) -> Result<Self> {
        let told = |name: &str| {
            let path = format!("/proc/{process}/{name}");
            fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))
        };
        let ticks = ticks(&told("stat")?).context("/proc/PID/stat has other fields")?;
        let io = told("io")?;
        let per_second = clock_ticks_per_second();
        Ok(Self {
            cpu: Duration::from_micros(ticks * 1_000_000 / per_second),
            bytes_read: field(&io, "rchar").context("/proc/PID/io has no rchar")?,
            bytes_written: field(&io, "write_bytes").context("/proc/PID/io has no write_bytes")?,
        })
    }
}

impl Sub for Counted {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            bytes_read: self.bytes_read.saturating_sub(before.bytes_read),
            bytes_written: self.bytes_written.saturating_sub(before.bytes_written),
        }
    }
}

/// Returns the user and system time of all threads, in ticks (proc(5)). The process name in parentheses may contain any
/// characters.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields
        .split_whitespace()
        .skip(USER_TIME_FIELD)
        .map_while(|field| field.parse::<u64>().ok());
    Some(times.next()? + times.next()?)
}

fn field(io: &str, name: &str) -> Option<u64> {
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().parse().ok()
}

/// Index of the user time after the process name.
const USER_TIME_FIELD: usize = 11;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 100";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn a_field_of_io_is_the_one_of_that_name() {
        let io = "rchar: 12\nwchar: 3\nread_bytes: 4\nwrite_bytes: 5\ncancelled_write_bytes: 6\n";
        assert_eq!(
            (
                field(io, "rchar"),
                field(io, "write_bytes"),
                field(io, "char")
            ),
            (Some(12), Some(5), None)
        );
    }

    #[test]
    fn a_living_process_has_read_something() {
        fs::read("/proc/self/stat").unwrap();
        assert!(Counted::of(std::process::id()).unwrap().bytes_read > 0);
    }
}
