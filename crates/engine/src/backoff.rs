//! Back-off: how long a transfer goes on without connections, and how it spends that time.
//!
//! A wait is short at first and doubles each time up to a bound; chance takes off up to half of it. An outage
//! lasts from the loss until something is done: a host that answers, and whose connections are lost at once, time
//! after time, does not end it. The time in which the host answers is no part of it: to compare much takes long. Nor is
//! what was before this process was stopped for a while (SIGSTOP): the clock has gone on, and nobody has dialled.
//!
//! **Invariant:** no wait goes beyond the end of the timeout, and the timeout ends the transfer unless something
//! is done in between.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::str::FromStr;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use zmove_sender::SessionFate;
use zmove_types::parse_span;

/// The longest time that a push goes on without connections; zero: not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeout(pub Duration);

impl Timeout {
    /// No time at all: the push ends with its connections.
    pub const NONE: Self = Self(Duration::ZERO);
}

/// A text that cannot be read as a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no time: write for example 90s, 5min or 1h, or 0")]
pub struct ParseTimeoutError(String);

/// The outages of a transfer, each from the loss of connections until something is done again.
#[derive(Debug)]
pub struct Outages {
    timeout: Timeout,
    /// The upper bounds of the next wait, and of all.
    wait: Duration,
    wait_max: Duration,
    since: Option<Instant>,
    /// The number of sessions of this outage that have begun, and in which nothing was done.
    in_vain: u32,
}

/// The action that follows a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The outage has lasted too long.
    GiveUp,
    /// Try again at this moment.
    Retry(Instant, Outage),
}

/// Whether an outage has just begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The loss is the first of an outage.
    Begins,
    /// The outage has begun with an earlier loss.
    GoesOn,
}

impl Outages {
    /// Outages that may last so long each.
    #[must_use]
    pub fn new(timeout: Timeout) -> Self {
        Self {
            timeout,
            wait: WAIT_MIN,
            wait_max: WAIT_MAX,
            since: None,
            in_vain: 0,
        }
    }

    /// The same with shorter waits, where another host may be tried next.
    #[must_use]
    pub fn with_waits_within(self, wait_max: Duration) -> Self {
        Self { wait_max, ..self }
    }

    /// The number of sessions in a row that have begun, and in which nothing was done.
    #[must_use]
    pub const fn in_vain(&self) -> u32 {
        self.in_vain
    }

    /// The end of the outage's timeout, while there is an outage.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        Some(self.since? + self.timeout.0)
    }

    /// The action after a session that has come to this has lost its connections, or they did not come about.
    pub fn lost(&mut self, fate: SessionFate) -> Next {
        let now = Instant::now();
        match fate {
            SessionFate::NotBegun => {}
            SessionFate::InVain { answered } => {
                self.in_vain += 1;
                self.since = self.since.map(|since| (since + answered).min(now));
            }
            SessionFate::OfUse => *self = Self::new(self.timeout).with_waits_within(self.wait_max),
        }
        let outage = if self.since.is_none() {
            Outage::Begins
        } else {
            Outage::GoesOn
        };
        let until = *self.since.get_or_insert(now) + self.timeout.0;
        if now >= until {
            return Next::GiveUp;
        }
        Next::Retry((now + self.next_wait(chance())).min(until), outage)
    }

    /// Waits until it is time to try again; returns whether there is any time left then.
    pub async fn wait(&mut self, at: Instant) -> bool {
        self.watch(sleep_until(at)).await;
        self.until().is_none_or(|until| Instant::now() < until)
    }

    /// Waits for something, and lets an outage begin anew where this process is stopped meanwhile.
    pub async fn watch<T>(&mut self, doing: impl Future<Output = T>) -> T {
        let mut doing = pin!(doing);
        let mut seen = Instant::now();
        loop {
            let done = tokio::select! {
                done = &mut doing => Some(done),
                () = sleep(LOOK_EVERY) => None,
            };
            let now = Instant::now();
            if now - seen >= STOPPED_MIN {
                self.since = self.since.map(|_before| now);
            }
            seen = now;
            if let Some(done) = done {
                return done;
            }
        }
    }

    /// The next wait. Waits double, and chance shortens each to between half of it and all of it, so that many senders
    /// that lost the same host do not come back at once.
    fn next_wait(&mut self, chance: u32) -> Duration {
        let longest = self.wait;
        self.wait = (longest * 2).min(self.wait_max);
        longest.mul_f64(0.5 + 0.5 * f64::from(chance) / f64::from(u32::MAX))
    }
}

/// A number that is another one each time, and in each process.
fn chance() -> u32 {
    let number = RandomState::new().hash_one(());
    u32::try_from(number >> u32::BITS).unwrap_or(u32::MAX)
}

const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);
/// How often the clock is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A process that has not looked at the clock for so long has been stopped; one on a busy host is late by less.
const STOPPED_MIN: Duration = Duration::from_secs(5);

impl FromStr for Timeout {
    type Err = ParseTimeoutError;

    /// Reads a span of time as [`parse_span`] does, and a bare number as seconds.
    fn from_str(text: &str) -> Result<Self, ParseTimeoutError> {
        let is_bare = text.ends_with(|last: char| last.is_ascii_digit());
        let unit = if is_bare { "s" } else { "" };
        parse_span(&format!("{text}{unit}"))
            .filter(|time| *time <= TIMEOUT_MAX)
            .map(Self)
            .ok_or_else(|| ParseTimeoutError(text.to_owned()))
    }
}

/// The longest timeout, a month: more is a mistake.
const TIMEOUT_MAX: Duration = Duration::from_secs(31 * 86_400);

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
    use tokio::time::advance;

    use super::*;

    #[test]
    fn times_are_read_and_shown() {
        let shown = ["0", "1s", "90", "5min", "1.5h", "250ms", "2 h"];
        let shown = shown.map(|text| text.parse::<Timeout>().unwrap().to_string());
        assert_eq!(
            shown,
            ["0 ms", "1 s", "90 s", "5 min", "90 min", "250 ms", "2 h"]
        );
        for text in ["", "5 days", "5m", "-1s", "s", "1.2.3s", "1e9s", "99999h"] {
            assert_eq!(
                text.parse::<Timeout>(),
                Err(ParseTimeoutError(text.into())),
                "{text}"
            );
        }
    }

    #[test]
    fn waits_double_up_to_a_bound_and_begin_anew() {
        let fresh = || Outages::new(Timeout::NONE);
        let waits = |outages: &mut Outages| {
            (0..9)
                .map(|_| outages.next_wait(u32::MAX).as_millis())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            waits(&mut fresh()),
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
        let mut short = fresh().with_waits_within(SECOND);
        assert_eq!(
            waits(&mut short),
            [100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000]
        );
        short.lost(SessionFate::OfUse);
        assert_eq!((short.wait, short.wait_max), (WAIT_MIN, SECOND));
        assert_eq!(fresh().next_wait(0).as_millis(), 50);
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// The action after a loss so much later.
    async fn lost(outages: &mut Outages, later: Duration, fate: SessionFate) -> Next {
        advance(later).await;
        outages.lost(fate)
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_begins_once_and_is_waited_for_as_long_as_was_said() {
        let mut outages = Outages::new(Timeout(SECOND));
        for fate in [SessionFate::NotBegun, SessionFate::OfUse] {
            let begins = lost(&mut outages, Duration::ZERO, fate).await;
            assert!(
                matches!(begins, Next::Retry(_, Outage::Begins)),
                "{begins:?}"
            );
            let until = Instant::now() + SECOND;
            assert_eq!(outages.until(), Some(until));
            outages.wait = WAIT_MAX;
            let goes_on = lost(&mut outages, SECOND * 9 / 10, SessionFate::NotBegun).await;
            assert_eq!(
                goes_on,
                Next::Retry(until, Outage::GoesOn),
                "no wait goes beyond the end"
            );
            assert_eq!(
                lost(&mut outages, SECOND / 10, SessionFate::NotBegun).await,
                Next::GiveUp
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_in_vain_count_and_the_time_of_their_answers_does_not() {
        let mut outages = Outages::new(Timeout(SECOND));
        for answered in [5 * SECOND, SECOND / 2, 5 * SECOND] {
            let next = lost(&mut outages, answered, SessionFate::InVain { answered }).await;
            assert!(matches!(next, Next::Retry(..)), "{next:?}");
        }
        assert_eq!(outages.in_vain(), 3);
        let silent = SessionFate::InVain {
            answered: Duration::ZERO,
        };
        assert_eq!(lost(&mut outages, SECOND, silent).await, Next::GiveUp);
        outages.lost(SessionFate::OfUse);
        assert_eq!(outages.in_vain(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_stopped_has_the_whole_timeout_again() {
        let mut outages = Outages::new(Timeout(60 * SECOND));
        outages.lost(SessionFate::NotBegun);
        outages.watch(advance(59 * SECOND)).await;
        let until = Instant::now() + 60 * SECOND;
        assert_eq!(outages.until(), Some(until));
        // looks at the clock go on as long as it waits
        outages.watch(sleep(59 * SECOND)).await;
        assert!(outages.wait(Instant::now()).await && !outages.wait(until).await);
        assert_eq!(outages.lost(SessionFate::NotBegun), Next::GiveUp);
    }

    #[tokio::test(start_paused = true)]
    async fn no_timeout_gives_up_at_once() {
        assert_eq!(
            Outages::new(Timeout::NONE).lost(SessionFate::NotBegun),
            Next::GiveUp
        );
    }

    #[test]
    fn chance_is_another_number_each_time() {
        let numbers: std::collections::HashSet<_> = (0..100).map(|_| chance()).collect();
        assert!(numbers.len() > 90, "{numbers:?}");
    }
}
