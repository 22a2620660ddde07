//! The time at which a permission expires: conversion between text and seconds since 1970, always in UTC.
//!
//! The text is a date, which means the start of that day, or an RFC 3339 timestamp with `Z`. **Invariant:** a formatted
//! time is parsed as the same time.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The time from which a permission is no longer valid, with a resolution of one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expiry(
    /// The time in UTC, not before 1970.
    OffsetDateTime,
);

/// The error for text that is neither a date nor a timestamp in UTC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time in UTC: write 2027-01-31 or 2027-01-31T18:00:00Z")]
pub struct ParseExpiryError {
    text: String,
}

impl Expiry {
    /// Returns the time `span` after `now`, or `None` if it is out of range.
    #[must_use]
    pub fn after(now: SystemTime, span: Duration) -> Option<Self> {
        let seconds = now
            .duration_since(UNIX_EPOCH)
            .ok()?
            .checked_add(span)?
            .as_secs();
        OffsetDateTime::from_unix_timestamp(seconds.try_into().ok()?)
            .ok()
            .map(Self)
    }

    /// Returns whether the time has been reached. Returns false if the clock shows a time before 1970, because such a
    /// clock is wrong.
    #[must_use]
    pub fn has_come(self, now: SystemTime) -> bool {
        self.0 <= now
    }
}

impl FromStr for Expiry {
    type Err = ParseExpiryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text)
            .map(Self)
            .ok_or_else(|| ParseExpiryError { text: text.into() })
    }
}

fn parse(text: &str) -> Option<OffsetDateTime> {
    // RFC 3339 also permits other time zones and fractions of a second, which are rejected here.
    let whole = match text.split_once('T') {
        Some((_, time)) if time.len() == "00:00:00Z".len() && time.ends_with('Z') => {
            text.to_owned()
        }
        Some(_) => return None,
        None => format!("{text}T00:00:00Z"),
    };
    let moment = OffsetDateTime::parse(&whole, &Rfc3339).ok()?;
    // A leap second is parsed as a fraction of the second before it.
    (moment.year() >= 1970 && moment.nanosecond() == 0).then_some(moment)
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.format(&Rfc3339).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY_SECONDS: u64 = 24 * 60 * 60;
    /// The start of the year 10000, in seconds since 1970. Years with five digits are rejected.
    const SECONDS_MAX: u64 = 253_402_300_800;

    fn seconds(text: &str) -> Option<i64> {
        text.parse::<Expiry>()
            .ok()
            .map(|expiry| expiry.0.unix_timestamp())
    }

    #[test]
    fn dates_and_times_are_read() {
        // The expected numbers are from `date -u -d TEXT +%s`.
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
            "2026-12-31T23:59:60Z",
            "2027-01-31T18:00:00.5Z",
            "2027-01-31 18:00:00Z",
            "2027-01-31t18:00:00Z",
            "2027-01-31T18:00:00z",
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
            let expiry = Expiry::after(UNIX_EPOCH, Duration::from_secs(seconds)).unwrap();
            prop_assert_eq!(expiry.to_string().parse(), Ok(expiry));
        }
    }
}
