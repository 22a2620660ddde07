//! Values of the configuration file, which are checked when they are parsed. The error for an invalid value names the
//! expected value.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use toml::Value;
use zmove_types::{ByteCount, parse_size};

use crate::value::age::Age;

/// Parses a value that is written as a string, in the syntax of the command line.
pub(super) fn text<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    let text = string(from, "a string in quotes")?;
    text.parse()
        .map_err(|error| D::Error::custom(format_args!("'{text}': {error}")))
}

/// Parses one of the keywords that the command line accepts.
pub(super) fn word<'de, T: ValueEnum, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let words = T::value_variants()
        .iter()
        .filter_map(ValueEnum::to_possible_value);
    let words: Vec<_> = words
        .map(|word| format!("\"{}\"", word.get_name()))
        .collect();
    let wanted = format!("one of {}", words.join(", "));
    let text = string(from, &wanted)?;
    T::from_str(&text, false).map_err(|_| unexpected(&Value::String(text), &wanted))
}

/// Parses a number from `MIN` to `MAX`.
pub(super) fn count<'de, T: TryFrom<i64>, D: Deserializer<'de>, const MIN: i64, const MAX: i64>(
    from: D,
) -> Result<T, D::Error> {
    let found = Value::deserialize(from)?;
    let fitting = found
        .as_integer()
        .filter(|number| (MIN..=MAX).contains(number));
    let number = fitting.and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| unexpected(&found, &format!("a number from {MIN} to {MAX}")))
}

/// Parses a time span of `MIN` to `MAX` seconds.
pub(super) fn seconds<'de, D: Deserializer<'de>, const MIN: u64, const MAX: u64>(
    from: D,
) -> Result<Duration, D::Error> {
    let wanted = format!("a time from \"{MIN}s\" to \"{MAX}s\"");
    let text = string(from, &wanted)?;
    let time = text
        .parse()
        .ok()
        .filter(|Age(time)| (MIN..=MAX).contains(&time.as_secs()));
    time.map(|Age(time)| time)
        .ok_or_else(|| unexpected(&Value::String(text), &wanted))
}

/// Parses a memory size of at least `MIN_MIB` MiB.
pub(super) fn memory<'de, D: Deserializer<'de>, const MIN_MIB: u64>(
    from: D,
) -> Result<ByteCount, D::Error> {
    let wanted = format!("a number of bytes such as \"10GiB\", {MIN_MIB}MiB or more");
    let text = string(from, &wanted)?;
    let size = parse_size(&text)
        .ok()
        .filter(|size| size.0 >= MIN_MIB << 20);
    size.ok_or_else(|| unexpected(&Value::String(text), &wanted))
}

fn string<'de, D: Deserializer<'de>>(from: D, wanted: &str) -> Result<String, D::Error> {
    match Value::deserialize(from)? {
        Value::String(text) => Ok(text),
        found => Err(unexpected(&found, wanted)),
    }
}

/// Returns the error for an invalid value. The parser's default message would name Rust types such as `i64`.
fn unexpected<E: serde::de::Error>(found: &Value, wanted: &str) -> E {
    let found = match found {
        Value::String(text) => format!("\"{text}\""),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(truth) => truth.to_string(),
        Value::Datetime(moment) => moment.to_string(),
        Value::Array(_) => "a list".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    };
    E::custom(format_args!("{found} is not {wanted}"))
}
