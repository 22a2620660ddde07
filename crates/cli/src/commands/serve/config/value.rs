//! Values of the configuration file, each checked when it is read.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use zmove_types::{ByteCount, parse_size};

use crate::value::age::Age;

/// A value that is written as a string, in the form of the command line.
pub(super) fn text<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|error| D::Error::custom(format_args!("'{text}': {error}")))
}

/// One of the words that the command line takes.
pub(super) fn word<'de, T: ValueEnum, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    T::from_str(&text, false).map_err(|_| {
        let words = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let words: Vec<_> = words.map(|word| word.get_name().to_owned()).collect();
        D::Error::custom(format_args!("'{text}' is none of {}", words.join(", ")))
    })
}

/// A number from `MIN` to `MAX`.
pub(super) fn count<'de, T: TryFrom<i64>, D: Deserializer<'de>, const MIN: i64, const MAX: i64>(
    from: D,
) -> Result<T, D::Error> {
    let number = i64::deserialize(from)?;
    let fits = T::try_from(number).ok().filter(|_| (MIN..=MAX).contains(&number));
    fits.ok_or_else(|| D::Error::custom(format_args!("{number} is not {MIN} to {MAX}")))
}

/// A span of time of `MIN` to `MAX` seconds.
pub(super) fn seconds<'de, D: Deserializer<'de>, const MIN: u64, const MAX: u64>(
    from: D,
) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    let Age(time) = text.parse().map_err(D::Error::custom)?;
    let fits = (MIN..=MAX).contains(&time.as_secs());
    fits.then_some(time).ok_or_else(|| D::Error::custom(format_args!("'{text}' is not {MIN} s to {MAX} s")))
}

/// A size in memory, of at least `MIN_MIB`.
pub(super) fn memory<'de, D: Deserializer<'de>, const MIN_MIB: u64>(from: D) -> Result<ByteCount, D::Error> {
    let text = String::deserialize(from)?;
    let size = parse_size(&text).map_err(D::Error::custom)?;
    let fits = size.0 >= MIN_MIB << 20;
    fits.then_some(size).ok_or_else(|| D::Error::custom(format_args!("'{text}' is less than {MIN_MIB}MiB")))
}
