//! Byte strings, names and paths within messages: a length and the bytes, parsed while decoding.

use std::fmt::Display;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<T: AsRef<[u8]>, S: Serializer>(
    bytes: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes.as_ref())
}

pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: TryFrom<&'de [u8], Error: Display>,
    D: Deserializer<'de>,
{
    T::try_from(<&[u8]>::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Reads bytes of which there may be no more than `MAX`.
pub(super) fn at_most<'de, const MAX: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<u8>, D::Error> {
    let bytes = <&[u8]>::deserialize(deserializer)?;
    if bytes.len() > MAX {
        return Err(D::Error::invalid_length(bytes.len(), &"fewer bytes"));
    }
    Ok(bytes.to_vec())
}

/// Reads a text of which a person would read no more than `MAX` characters, and cuts it there.
pub(super) fn text<'de, const MAX: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<String, D::Error> {
    let text = <&str>::deserialize(deserializer)?;
    Ok(text.chars().take(MAX).collect())
}
