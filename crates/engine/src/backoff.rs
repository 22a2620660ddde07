//! Back-off: how long a transfer tries to reconnect, and how long it waits between attempts.
//!
//! The first wait is short. Each further wait doubles up to a maximum, and a random part of up to half is subtracted.
//! An outage lasts from the loss of the connections until a session makes progress. It continues if the host accepts
//! connections and loses them again without progress. Time during which the host answers does not count as outage,
//! because comparing many files takes long. If this process is stopped (SIGSTOP), the time before it continues does not
//! count either, because a stopped process cannot dial.
//!
//! **Invariant:** no wait exceeds the end of the timeout, and the timeout ends the transfer unless a session makes
//! progress.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::str::FromStr;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use zmove_sender::SessionProgress;
use zmove_types::parse_span;

/// How long a push tries to reconnect after losing its connections. Zero disables reconnecting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeout(pub Duration);

impl Timeout {
    /// No reconnecting: the push ends when its connections are lost.
    pub const NONE: Self = Self(Duration::ZERO);
}

/// The error for a text that is not a valid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a valid time: write for example 90s, 5min or 1h, or 0")]
pub struct ParseTimeoutError(String);

/// The outages of a transfer. Each lasts from a loss of connections until a session makes progress.
#[derive(Debug)]
pub struct Outages {
    timeout: Timeout,
    /// Upper bound of the next wait.
    wait: Duration,
    wait_max: Duration,
    since: Option<Instant>,
    /// Number of sessions that began during this outage and made no progress.
    fruitless_sessions: u32,
}

/// The action after a loss of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAction {
    /// The outage has reached the timeout.
    GiveUp,
    /// Try again at this time.
    Retry(Instant, OutageStage),
}

/// Whether a loss starts an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutageStage {
    /// The loss is the first of an outage.
    New,
    /// The outage started with an earlier loss.
    Ongoing,
}

impl Outages {
    /// Creates the outages of a transfer, each limited to `timeout`.
    #[must_use]
    pub fn new(timeout: Timeout) -> Self {
        Self {
            timeout,
            wait: WAIT_MIN,
            wait_max: WAIT_MAX,
            since: None,
            fruitless_sessions: 0,
        }
    }

    /// Limits each wait to `wait_max`. Use this if the next attempt can be made with another host.
    #[must_use]
    pub fn with_max_wait(self, wait_max: Duration) -> Self {
        Self { wait_max, ..self }
    }

    /// Returns the number of consecutive sessions that began and made no progress.
    #[must_use]
    pub const fn fruitless_sessions(&self) -> u32 {
        self.fruitless_sessions
    }

    /// Returns the time at which the outage reaches the timeout, or `None` if there is no outage.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        Some(self.since? + self.timeout.0)
    }

    /// Records that a session ended or failed to connect, with the given progress. Returns the action to take.
    pub fn lost(&mut self, fate: SessionProgress) -> RetryAction {
        let now = Instant::now();
        match fate {
            SessionProgress::NotBegun => {}
            SessionProgress::NoProgress { answered } => {
                self.fruitless_sessions += 1;
                self.since = self.since.map(|since| (since + answered).min(now));
            }
            SessionProgress::Progressed => {
                *self = Self::new(self.timeout).with_max_wait(self.wait_max)
            }
        }
        let outage = if self.since.is_none() {
            OutageStage::New
        } else {
            OutageStage::Ongoing
        };
        let until = *self.since.get_or_insert(now) + self.timeout.0;
        if now >= until {
            return RetryAction::GiveUp;
        }
        RetryAction::Retry((now + self.next_wait(random_bits())).min(until), outage)
    }

    /// Waits until `at`. Returns whether the timeout still allows another attempt.
    pub async fn wait(&mut self, at: Instant) -> bool {
        self.watch(sleep_until(at)).await;
        self.until().is_none_or(|until| Instant::now() < until)
    }

    /// Awaits `doing`. If this process is stopped in the meantime, the outage counts from the time at which the process
    /// continues.
    pub async fn watch<T>(&mut self, doing: impl Future<Output = T>) -> T {
        let mut doing = pin!(doing);
        let mut seen = Instant::now();
        loop {
            let done = tokio::select! {
                done = &mut doing => Some(done),
                () = sleep(CLOCK_CHECK_INTERVAL) => None,
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

    /// Returns the next wait and doubles the wait after it. A random part of up to half is subtracted. Otherwise, many
    /// senders that lost the same host would reconnect simultaneously.
    fn next_wait(&mut self, random_bits: u32) -> Duration {
        let longest = self.wait;
        self.wait = (longest * 2).min(self.wait_max);
        longest.mul_f64(0.5 + 0.5 * f64::from(random_bits) / f64::from(u32::MAX))
    }
}

/// Returns 32 random bits.
fn random_bits() -> u32 {
    let number = RandomState::new().hash_one(());
    u32::try_from(number >> u32::BITS).unwrap_or(u32::MAX)
}

const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Interval between checks of the clock.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A process that did not check the clock for this long was stopped. The delay on a busy host is shorter.
const STOPPED_MIN: Duration = Duration::from_secs(5);

impl FromStr for Timeout {
    type Err = ParseTimeoutError;

    /// Parses a time span like [`parse_span`]. A plain number is in seconds.
    fn from_str(text: &str) -> Result<Self, ParseTimeoutError> {
        let is_bare = text.ends_with(|last: char| last.is_ascii_digit());
        let unit = if is_bare { "s" } else { "" };
        parse_span(&format!("{text}{unit}"))
            .filter(|time| *time <= TIMEOUT_MAX)
            .map(Self)
            .ok_or_else(|| ParseTimeoutError(text.to_owned()))
    }
}

/// Maximum timeout, one month. A larger value is a mistake.
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
        let mut short = fresh().with_max_wait(SECOND);
        assert_eq!(
            waits(&mut short),
            [100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000]
        );
        short.lost(SessionProgress::Progressed);
        assert_eq!((short.wait, short.wait_max), (WAIT_MIN, SECOND));
        assert_eq!(fresh().next_wait(0).as_millis(), 50);
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the action after a loss that occurs after the delay `later`.
    async fn lost(outages: &mut Outages, later: Duration, fate: SessionProgress) -> RetryAction {
        advance(later).await;
        outages.lost(fate)
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_begins_once_and_is_waited_for_as_long_as_was_said() {
        let mut outages = Outages::new(Timeout(SECOND));
        for fate in [SessionProgress::NotBegun, SessionProgress::Progressed] {
            let begins = lost(&mut outages, Duration::ZERO, fate).await;
            assert!(
                matches!(begins, RetryAction::Retry(_, OutageStage::New)),
                "{begins:?}"
            );
            let until = Instant::now() + SECOND;
            assert_eq!(outages.until(), Some(until));
            outages.wait = WAIT_MAX;
            let goes_on = lost(&mut outages, SECOND * 9 / 10, SessionProgress::NotBegun).await;
            assert_eq!(
                goes_on,
                RetryAction::Retry(until, OutageStage::Ongoing),
                "no wait goes beyond the end"
            );
            assert_eq!(
                lost(&mut outages, SECOND / 10, SessionProgress::NotBegun).await,
                RetryAction::GiveUp
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_in_vain_count_and_the_time_of_their_answers_does_not() {
        let mut outages = Outages::new(Timeout(SECOND));
        for answered in [5 * SECOND, SECOND / 2, 5 * SECOND] {
            let next = lost(
                &mut outages,
                answered,
                SessionProgress::NoProgress { answered },
            )
            .await;
            assert!(matches!(next, RetryAction::Retry(..)), "{next:?}");
        }
        assert_eq!(outages.fruitless_sessions(), 3);
        let silent = SessionProgress::NoProgress {
            answered: Duration::ZERO,
        };
        assert_eq!(
            lost(&mut outages, SECOND, silent).await,
            RetryAction::GiveUp
        );
        outages.lost(SessionProgress::Progressed);
        assert_eq!(outages.fruitless_sessions(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_stopped_has_the_whole_timeout_again() {
        let mut outages = Outages::new(Timeout(60 * SECOND));
        outages.lost(SessionProgress::NotBegun);
        outages.watch(advance(59 * SECOND)).await;
        let until = Instant::now() + 60 * SECOND;
        assert_eq!(outages.until(), Some(until));
        // The clock is checked during the whole wait.
        outages.watch(sleep(59 * SECOND)).await;
        assert!(outages.wait(Instant::now()).await && !outages.wait(until).await);
        assert_eq!(outages.lost(SessionProgress::NotBegun), RetryAction::GiveUp);
    }

    #[tokio::test(start_paused = true)]
    async fn no_timeout_gives_up_at_once() {
        assert_eq!(
            Outages::new(Timeout::NONE).lost(SessionProgress::NotBegun),
            RetryAction::GiveUp
        );
    }

    #[test]
    fn chance_is_another_number_each_time() {
        let numbers: std::collections::HashSet<_> = (0..100).map(|_| random_bits()).collect();
        assert!(numbers.len() > 90, "{numbers:?}");
    }
}
