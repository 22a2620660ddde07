//! Quantities on the command line: rates, byte counts, round-trip times and loss.
//!
//! Every parser requires a unit, so that `1Gbit` and `1GiB` cannot be confused.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A rate in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) u64);

impl Rate {
    /// Returns the time to transfer `bytes` at this rate.
    pub(crate) fn duration_of(self, bytes: u64) -> Duration {
        let nanoseconds = u128::from(bytes) * 8 * NANOSECONDS_PER_SECOND / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// Returns the number of bytes transferred in `duration`.
    pub(crate) fn bytes_in(self, duration: Duration) -> u64 {
        let bytes = u128::from(self.0) * duration.as_nanos() / (8 * NANOSECONDS_PER_SECOND);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl FromStr for Rate {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let units = [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];
        let bits = scaled(text.trim_end_matches("/s"), &units)?;
        if bits == 0 {
            bail!("a rate is above zero");
        }
        Ok(Self(bits))
    }
}

/// A rate in bytes per second, as is common for storage: `600MB/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRate(pub(crate) u64);

impl ByteRate {
    /// Returns the time to transfer `bytes` at this rate.
    pub(crate) fn duration_of(self, bytes: u64) -> Duration {
        Rate(self.0 * 8).duration_of(bytes)
    }
}

impl FromStr for ByteRate {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let bytes = text
            .strip_suffix("/s")
            .context("a rate of storage ends in /s")?;
        let ByteCount(bytes) = bytes.parse()?;
        if bytes == 0 {
            bail!("a rate is above zero");
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "for the eye")]
        let megabytes = self.0 as f64 / 1e6;
        write!(f, "{megabytes}MB/s")
    }
}

/// A number of bytes: `1500`, `64KiB` (1,024 each) or `64KB` (1,000 each).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteCount(pub(crate) u64);

impl FromStr for ByteCount {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let units = [
            ("GiB", 1_073_741_824.0),
            ("MiB", 1_048_576.0),
            ("KiB", 1_024.0),
            ("GB", 1e9),
            ("MB", 1e6),
            ("KB", 1e3),
            ("B", 1.0),
            ("", 1.0),
        ];
        scaled(text, &units).map(Self)
    }
}

/// A round-trip time, typed in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundTrip(pub(crate) Duration);

impl RoundTrip {
    /// Returns the round-trip time in milliseconds.
    pub(crate) fn milliseconds(self) -> f64 {
        self.0.as_secs_f64() * 1e3
    }

    /// Returns the delay of one direction.
    pub(crate) fn one_way(self) -> Duration {
        self.0 / 2
    }
}

impl FromStr for RoundTrip {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let milliseconds: f64 = text
            .trim_end_matches("ms")
            .trim()
            .parse()
            .context("not a number")?;
        if !(0.0..=60_000.0).contains(&milliseconds) {
            bail!("a round trip lies between 0 and 60000 ms");
        }
        Ok(Self(Duration::from_secs_f64(milliseconds / 1e3)))
    }
}

/// The fraction of packets that are lost, from 0 to 1. It is typed as a percentage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossShare(pub(crate) f64);

impl FromStr for LossShare {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let percent: f64 = text.trim_end_matches('%').parse().context("not a number")?;
        if !(0.0..=100.0).contains(&percent) {
            bail!("loss lies between 0 and 100 per cent");
        }
        Ok(Self(percent / 100.0))
    }
}

/// Parses a number followed by one of `units`. A unit that is a suffix of another must be listed after it.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to lie within u64"
)]
fn scaled(text: &str, units: &[(&str, f64)]) -> Result<u64> {
    for (unit, factor) in units {
        let Some(number) = text.strip_suffix(unit) else {
            continue;
        };
        let Ok(number) = number.trim().parse::<f64>() else {
            continue;
        };
        let value = number * factor;
        if !(0.0..9e18).contains(&value) {
            bail!("{text} is out of range");
        }
        return Ok(value.round() as u64);
    }
    let known: Vec<&str> = units.iter().map(|(unit, _)| *unit).collect();
    bail!(
        "{text} is not a number with one of the units {}",
        known.join(" ")
    )
}

const NANOSECONDS_PER_SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_decimal_bits() {
        assert_eq!("1Gbit".parse::<Rate>().unwrap(), Rate(1_000_000_000));
        assert_eq!("2.5Mbit/s".parse::<Rate>().unwrap(), Rate(2_500_000));
        assert!("1GB".parse::<Rate>().is_err());
        assert!("0bit".parse::<Rate>().is_err());
        assert!("17".parse::<Rate>().is_err());
    }

    #[test]
    fn binary_and_decimal_byte_units_differ() {
        assert_eq!("64KiB".parse::<ByteCount>().unwrap(), ByteCount(65_536));
        assert_eq!("64KB".parse::<ByteCount>().unwrap(), ByteCount(64_000));
        assert_eq!("1500".parse::<ByteCount>().unwrap(), ByteCount(1_500));
        assert!("-1".parse::<ByteCount>().is_err());
    }

    #[test]
    fn a_round_trip_may_be_a_fraction_of_a_millisecond() {
        assert_eq!(
            "0.2".parse::<RoundTrip>().unwrap(),
            RoundTrip(Duration::from_micros(200))
        );
        assert_eq!(
            "90ms".parse::<RoundTrip>().unwrap().one_way(),
            Duration::from_millis(45)
        );
    }

    #[test]
    fn loss_is_typed_in_per_cent() {
        assert_eq!("0.01".parse::<LossShare>().unwrap(), LossShare(0.0001));
        assert!("101%".parse::<LossShare>().is_err());
    }

    #[test]
    fn a_rate_turns_bytes_into_time_and_back() {
        let rate = Rate(1_000_000_000);
        assert_eq!(rate.duration_of(125_000), Duration::from_millis(1));
        assert_eq!(rate.bytes_in(Duration::from_millis(1)), 125_000);
    }
}
