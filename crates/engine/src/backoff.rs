//! Back-off: how long a push goes on without connections, and how it spends that time. Pure, without a clock.
//!
//! A wait is short at first and doubles each time up to a bound; chance takes off up to half of it. An outage
//! lasts from the loss until something is done: a host that answers, and whose connections are lost at once, time
//! after time, does not end it. The time of sessions in which the host has answered is no part of it: to compare much
//! takes long.
//!
//! **Invariant:** no wait goes beyond the end of the timeout, and the timeout ends the push unless something
//! is done in between.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The longest time that a push goes on without connections; zero: not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(pub Duration);

impl Timeout {
    /// No time at all: the push ends with its connections.
    pub const NONE: Self = Self(Duration::ZERO);
}

/// A text that cannot be read as a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no time: write for example 90s, 5min or 1h, or 0")]
pub struct ParseTimeoutError(String);

/// The outages of a push, each from the loss of connections until something is done again.
#[derive(Debug)]
pub(crate) struct Outages {
    timeout: Timeout,
    /// The upper bound of the next wait.
    wait: Duration,
    since: Option<Instant>,
    /// The number of sessions of this outage that have begun, and in which nothing was done.
    in_vain: u32,
}

/// The action that follows a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The outage has lasted too long.
    GiveUp,
    /// Try again at this moment.
    Retry {
        at: Instant,
        /// The end of the timeout.
        until: Instant,
        outage: Outage,
    },
}

/// Whether an outage has just begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    Begins,
    GoesOn,
}

impl Outages {
    pub(crate) fn new(timeout: Timeout) -> Self {
        Self { timeout, wait: WAIT_MIN, since: None, in_vain: 0 }
    }

    /// Ends the outage: something has been done again.
    pub(crate) fn end(&mut self) {
        *self = Self::new(self.timeout);
    }

    /// Counts a session that has begun, in which the host has answered for so long and nothing was done.
    pub(crate) fn began_in_vain(&mut self, answered: Duration) {
        self.in_vain += 1;
        self.since = self.since.map(|since| since + answered);
    }

    /// The number of such sessions in a row.
    pub(crate) const fn in_vain(&self) -> u32 {
        self.in_vain
    }

    /// The action after connections were lost, or did not come about; `chance` is any number, a fresh one each time.
    pub(crate) fn lost(&mut self, now: Instant, chance: u32) -> Next {
        let outage = if self.since.is_none() { Outage::Begins } else { Outage::GoesOn };
        let until = *self.since.get_or_insert(now) + self.timeout.0;
        if now >= until {
            return Next::GiveUp;
        }
        Next::Retry { at: (now + self.next_wait(chance)).min(until), until, outage }
    }

    /// The next wait. Waits double, and chance shortens each to between half of it and all of it, so that many senders
    /// that lost the same host do not come back at once.
    fn next_wait(&mut self, chance: u32) -> Duration {
        let longest = self.wait;
        self.wait = (longest * 2).min(WAIT_MAX);
        longest.mul_f64(0.5 + 0.5 * f64::from(chance) / f64::from(u32::MAX))
    }
}

const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);

impl FromStr for Timeout {
    type Err = ParseTimeoutError;

    /// Reads `500ms`, `90s`, `5min`, `1.5h`, and a bare number as seconds.
    fn from_str(text: &str) -> Result<Self, ParseTimeoutError> {
        read(text).map(Self).ok_or_else(|| ParseTimeoutError(text.to_owned()))
    }
}

fn read(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let seconds = match text[end..].trim_start() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "min" | "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    } * text[..end].parse::<f64>().ok()?;
    (seconds <= SECONDS_MAX).then(|| Duration::from_secs_f64(seconds))
}

/// The longest timeout, a month: more is a mistake.
const SECONDS_MAX: f64 = 31.0 * 86_400.0;

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        match millis {
            0..1000 => write!(f, "{millis} ms"),
            _ if millis.is_multiple_of(3_600_000) => write!(f, "{} h", millis / 3_600_000),
            _ if millis.is_multiple_of(60_000) => write!(f, "{} min", millis / 60_000),
            _ => write!(f, "{} s", self.0.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_shown() {
        let shown = ["0", "1s", "90", "5min", "1.5h", "250ms", "2 h"];
        let shown = shown.map(|text| text.parse::<Timeout>().unwrap().to_string());
        assert_eq!(shown, ["0 ms", "1 s", "90 s", "5 min", "90 min", "250 ms", "2 h"]);
        for text in ["", "5 days", "-1s", "s", "1.2.3s", "1e9s", "99999h"] {
            assert_eq!(text.parse::<Timeout>(), Err(ParseTimeoutError(text.into())), "{text}");
        }
    }

    #[test]
    fn waits_double_up_to_a_bound_and_begin_anew() {
        let fresh = || Outages::new(Timeout::NONE);
        let mut outages = fresh();
        let waits: Vec<_> = (0..9).map(|_| outages.next_wait(u32::MAX).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(fresh().next_wait(0).as_millis(), 50);
    }

    #[test]
    fn an_outage_begins_once_and_is_waited_for_as_long_as_was_said() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut outages = Outages::new(Timeout(second));
        let retry = |outages: &mut Outages, after| outages.lost(start + after, u32::MAX);
        let until = start + second;
        let at = start + Duration::from_millis(100);
        assert_eq!(retry(&mut outages, Duration::ZERO), Next::Retry { at, until, outage: Outage::Begins });
        let late = Duration::from_millis(900);
        let at = start + Duration::from_millis(1000);
        assert_eq!(retry(&mut outages, late), Next::Retry { at, until, outage: Outage::GoesOn });
        assert_eq!(retry(&mut outages, second), Next::GiveUp);
        outages.end();
        let at = start + second + Duration::from_millis(100);
        let until = until + second;
        assert_eq!(retry(&mut outages, second), Next::Retry { at, until, outage: Outage::Begins });
    }

    #[test]
    fn sessions_in_vain_count_and_their_time_does_not() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut outages = Outages::new(Timeout(second));
        let mut now = start;
        for lasted in [5 * second, second / 2, 5 * second] {
            now += lasted;
            outages.began_in_vain(lasted);
            assert!(matches!(outages.lost(now, u32::MAX), Next::Retry { .. }));
        }
        assert_eq!(outages.lost(now + second, u32::MAX), Next::GiveUp);
        assert_eq!(outages.in_vain(), 3);
        outages.end();
        assert_eq!(outages.in_vain(), 0);
    }

    #[test]
    fn no_timeout_gives_up_at_once() {
        assert_eq!(Outages::new(Timeout(Duration::ZERO)).lost(Instant::now(), 0), Next::GiveUp);
    }
}
