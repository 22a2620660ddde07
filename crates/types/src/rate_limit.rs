//! A rate limit for a push, as typed by the user.
//!
//! Bits and bytes differ by a factor of eight, and both are common for rates. The unit is therefore mandatory.
//!
//! **Invariant:** a limit is at least [`RateLimit::BYTES_MIN`] per second.

use std::fmt;
use std::str::FromStr;

use crate::units::ByteCount;

/// A rate limit, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit(u64);

/// The error for an invalid rate on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseRateError(String);

impl RateLimit {
    /// Minimum limit, in bytes per second.
    pub const BYTES_MIN: u64 = 1000;
    const BYTES_MAX: u64 = 1_000_000_000_000_000;

    /// Returns the limit for all lanes together, in bytes per second.
    #[must_use]
    pub const fn bytes_per_second(self) -> u64 {
        self.0
    }

    /// Returns the allowed limit that is closest to `bytes_per_second`.
    #[must_use]
    pub fn nearest(bytes_per_second: u64) -> Self {
        Self(bytes_per_second.clamp(Self::BYTES_MIN, Self::BYTES_MAX))
    }
}

impl FromStr for RateLimit {
    type Err = ParseRateError;

    /// Parses `500Mbit`, `2.5Gbit`, `100MB` (decimal) or `100MiB` (binary), each with or without `/s`.
    fn from_str(text: &str) -> Result<Self, ParseRateError> {
        read(text)
            .map(Self)
            .ok_or_else(|| ParseRateError(text.to_owned()))
    }
}

fn read(text: &str) -> Option<u64> {
    let rate = text.strip_suffix("/s").unwrap_or(text);
    let (number, unit) = rate.split_at(rate.find(|c: char| !c.is_ascii_digit() && c != '.')?);
    let bytes = number.parse::<f64>().ok()? * unit_bytes(unit.trim_start())?;
    let limits =
        ByteCount(RateLimit::BYTES_MIN).as_f64()..=ByteCount(RateLimit::BYTES_MAX).as_f64();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked"
    )]
    limits.contains(&bytes).then_some(bytes as u64)
}

fn unit_bytes(unit: &str) -> Option<f64> {
    if let Some(prefix) = unit.strip_suffix("bit") {
        return Some(1000_f64.powi(power(prefix)?) / 8.0);
    }
    if let Some(prefix) = unit.strip_suffix("iB") {
        return power(prefix)
            .filter(|power| *power > 0)
            .map(|power| 1024_f64.powi(power));
    }
    power(unit.strip_suffix('B')?).map(|power| 1000_f64.powi(power))
}

fn power(prefix: &str) -> Option<i32> {
    Some(match prefix {
        "" => 0,
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return None,
    })
}

impl fmt::Display for RateLimit {
    /// Formats the limit in bits with the largest unit that yields a whole number, so that it can be parsed again
    /// without loss.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 * 8;
        let units = [
            ("Tbit", 1_000_000_000_000),
            ("Gbit", 1_000_000_000),
            ("Mbit", 1_000_000),
            ("kbit", 1000),
        ];
        let (name, unit) = units
            .into_iter()
            .find(|(_, unit)| bits.is_multiple_of(*unit))
            .unwrap_or(("bit", 1));
        write!(f, "{}{name}", bits / unit)
    }
}

impl fmt::Display for ParseRateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a rate: write bits per second as 500Mbit or 5Gbit, bytes per second as 100MB or 100MiB",
            self.0
        )
    }
}

impl std::error::Error for ParseRateError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_bytes_are_told_apart() {
        let cases = [
            ("5Gbit", 625_000_000),
            ("500Mbit", 62_500_000),
            ("2.5Gbit/s", 312_500_000),
            ("80 kbit", 10_000),
            ("100MB", 100_000_000),
            ("100MiB", 104_857_600),
            ("4096B", 4096),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(RateLimit(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_read_as_the_same() {
        let cases = [
            ("5Gbit", "5Gbit"),
            ("2.5Gbit", "2500Mbit"),
            ("1TB", "8Tbit"),
            ("100MiB", "838860800bit"),
        ];
        for (text, shown) in cases {
            let limit: RateLimit = text.parse().unwrap();
            assert_eq!(
                (limit.to_string().as_str(), shown.parse()),
                (shown, Ok(limit))
            );
        }
        for bytes in [1000, 1001, 123_456_789_123_457, 1_000_000_000_000_000] {
            assert_eq!(RateLimit(bytes).to_string().parse(), Ok(RateLimit(bytes)));
        }
    }

    #[test]
    fn what_could_be_either_is_refused() {
        for text in [
            "", "100", "100M", "100Mb", "100mb", "5G", "fast", "iB", "1iB", "-1MB", "0Gbit",
            "7kbit", "9999TB",
        ] {
            assert_eq!(
                text.parse::<RateLimit>(),
                Err(ParseRateError(text.to_owned()))
            );
        }
        let error = "100Mb".parse::<RateLimit>().unwrap_err().to_string();
        assert!(
            error.contains("500Mbit") && error.contains("100MiB"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_limit_becomes_the_nearest() {
        let nearest = [0, 1001, u64::MAX].map(|bytes| RateLimit::nearest(bytes).bytes_per_second());
        assert_eq!(nearest, [1000, 1001, 1_000_000_000_000_000]);
    }
}
