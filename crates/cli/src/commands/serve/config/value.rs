//! Values of the configuration file, each checked when it is read.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;

use crate::value::age::Age;

/// What is read from a string as the command line reads it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String", bound(deserialize = "T: FromStr, T::Err: Display"))]
pub(crate) struct Text<T>(pub(crate) T);

/// One of the words that the command line takes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String", bound(deserialize = "T: ValueEnum"))]
pub(crate) struct Word<T>(pub(crate) T);

/// A number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "i64")]
pub(super) struct Count<const MIN: usize, const MAX: usize>(pub(super) usize);

/// A span of time of `MIN` to `MAX` seconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(super) struct Seconds<const MIN: u64, const MAX: u64>(pub(super) Duration);

/// A size in memory, in bytes, of at least `MIN_MIB`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(super) struct Memory<const MIN_MIB: u64>(pub(super) u64);

impl<T: FromStr> TryFrom<String> for Text<T>
where
    T::Err: Display,
{
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error| format!("'{text}': {error}"))
    }
}

impl<T: ValueEnum> TryFrom<String> for Word<T> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        T::from_str(&text, false).map(Self).map_err(|_| {
            let words = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            let words: Vec<_> = words.map(|word| word.get_name().to_owned()).collect();
            format!("'{text}' is none of {}", words.join(", "))
        })
    }
}

impl<const MIN: usize, const MAX: usize> TryFrom<i64> for Count<MIN, MAX> {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        let fits = usize::try_from(number).ok().filter(|number| (MIN..=MAX).contains(number));
        fits.map(Self).ok_or_else(|| format!("{number} is not {MIN} to {MAX}"))
    }
}

impl<const MIN: u64, const MAX: u64> TryFrom<String> for Seconds<MIN, MAX> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let Age(time) = text.parse()?;
        let fits = (MIN..=MAX).contains(&time.as_secs());
        fits.then_some(Self(time)).ok_or_else(|| format!("'{text}' is not {MIN} s to {MAX} s"))
    }
}

impl<const MIN_MIB: u64> TryFrom<String> for Memory<MIN_MIB> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let units = [("MiB", 20), ("GiB", 30)];
        let bytes = units.iter().find_map(|(unit, shift)| {
            let number: u64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
            number.checked_mul(1 << shift)
        });
        let bytes = bytes.ok_or_else(|| format!("'{text}' is not a number with MiB or GiB"))?;
        let fits = bytes >= MIN_MIB << 20;
        fits.then_some(Self(bytes)).ok_or_else(|| format!("'{text}' is less than {MIN_MIB}MiB"))
    }
}
