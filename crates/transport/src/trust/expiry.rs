//! The moment at which a permission ends: text ↔ seconds since 1970, always in UTC.
//!
//! Written as a date, which means the moment at which that day begins, or as RFC 3339 with `Z`.
//! **Invariant:** what is printed is read as the same moment.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment, to the second, from which on something is not valid any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expiry {
    /// Since 1970.
    seconds: u64,
}

/// The text is neither a date nor a time in UTC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no moment in UTC: write 2027-01-31 or 2027-01-31T18:00:00Z")]
pub struct ParseExpiryError {
    text: String,
}

impl Expiry {
    /// The moment that comes `span` after `now`; `None` where the calendar ends.
    #[must_use]
    pub fn after(now: SystemTime, span: Duration) -> Option<Self> {
        let seconds = now.duration_since(UNIX_EPOCH).ok()?.checked_add(span)?.as_secs();
        (seconds < SECONDS_MAX).then_some(Self { seconds })
    }

    /// Whether the moment has come.
    #[must_use]
    pub fn has_come(self, now: SystemTime) -> bool {
        // a clock before 1970 is wrong, and nothing can be said by it
        now.duration_since(UNIX_EPOCH).is_ok_and(|now| now.as_secs() >= self.seconds)
    }
}

impl FromStr for Expiry {
    type Err = ParseExpiryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(|seconds| Self { seconds }).ok_or_else(|| ParseExpiryError { text: text.into() })
    }
}

fn parse(text: &str) -> Option<u64> {
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, time.strip_suffix('Z')?),
        None => (text, "00:00:00"),
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let whole = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day) && year >= 1970;
    let in_day = hour < 24 && minute < 60 && second < 60;
    (whole && in_day)
        .then(|| days_before(year, month, day) * DAY_SECONDS + hour * 3600 + minute * 60 + second)
}

/// Three numbers of so many digits.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut fields = text.split(separator);
    let mut numbers = [0; 3];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let field = fields.next()?;
        let fits = field.len() == digits && field.bytes().all(|byte| byte.is_ascii_digit());
        *number = field.parse().ok().filter(|_| fits)?;
    }
    fields.next().is_none().then_some(numbers)
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn days_of(year: u64, month: u64) -> u64 {
    match month {
        2 => 28 + is_leap(year) as u64,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// From the first day of 1970 to this one.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let years = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    years + (1..month).map(|month| days_of(year, month)).sum::<u64>() + day - 1
}

const DAY_SECONDS: u64 = 24 * 60 * 60;
/// The end of the year 9999, after which years have five digits.
const SECONDS_MAX: u64 = 253_402_300_800;

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, rest) = (self.seconds / DAY_SECONDS, self.seconds % DAY_SECONDS);
        // the year is found from below: a year has at most 366 days
        let mut year = 1970 + days / 366;
        while days_before(year + 1, 1, 1) <= days {
            year += 1;
        }
        let month = (1..=12).rfind(|month| days_before(year, *month, 1) <= days).unwrap_or(1);
        let day = days - days_before(year, month, 1) + 1;
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(text: &str) -> Option<u64> {
        text.parse::<Expiry>().ok().map(|expiry| expiry.seconds)
    }

    #[test]
    fn dates_and_times_are_read() {
        // by `date -u -d TEXT +%s`
        for (text, expected) in [
            ("1970-01-01", 0),
            ("2000-02-29", 951_782_400),
            ("2027-01-31", 1_801_353_600),
            ("2027-01-31T18:05:09Z", 1_801_418_709),
            ("2100-03-01", 4_107_542_400),
            ("9999-12-31T23:59:59Z", 253_402_300_799),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "2027",
            "2027-1-31",
            "2027-02-29",
            "2100-02-29",
            "2027-13-01",
            "2027-00-01",
            "2027-01-00",
            "2027-01-32",
            "1969-12-31",
            "2027-01-31T18:00Z",
            "2027-01-31T18:00:00",
            "2027-01-31T24:00:00Z",
            "2027-01-31T18:00:60Z",
            "2027-01-31T18:00:00+01:00",
            "+027-01-31",
            "2027-01-31-01",
            "90d",
            "never",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }

    #[test]
    fn the_moment_itself_is_too_late() {
        let expiry: Expiry = "2027-01-31".parse().unwrap();
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(!expiry.has_come(at(1_801_353_599)) && expiry.has_come(at(1_801_353_600)));
        assert!(!expiry.has_come(UNIX_EPOCH - Duration::from_secs(1)));
        let later = Expiry::after(at(1_801_353_600), Duration::from_secs(DAY_SECONDS)).unwrap();
        assert_eq!(later.to_string(), "2027-02-01T00:00:00Z");
        assert_eq!(Expiry::after(at(0), Duration::from_secs(SECONDS_MAX)), None);
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read(seconds in 0..SECONDS_MAX) {
            let expiry = Expiry { seconds };
            prop_assert_eq!(expiry.to_string().parse(), Ok(expiry));
        }
    }
}
