//! Serde helpers for byte strings, names and paths in messages: a length followed by the bytes, parsed during decoding.

use std::fmt::Display;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Serializes a byte string.
///
/// # Errors
/// The serializer fails.
pub fn serialize<T: AsRef<[u8]>, S: Serializer>(
    bytes: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes.as_ref())
}

/// Deserializes a byte string into `T`.
///
/// # Errors
/// The bytes are not a valid `T`, or the deserializer fails.
pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: TryFrom<&'de [u8], Error: Display>,
    D: Deserializer<'de>,
{
    T::try_from(<&[u8]>::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// Deserializes a byte string of at most `MAX` bytes.
///
/// # Errors
/// The string is longer, or the deserializer fails.
pub fn at_most<'de, const MAX: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<u8>, D::Error> {
    let bytes = <&[u8]>::deserialize(deserializer)?;
    if bytes.len() > MAX {
        return Err(D::Error::invalid_length(bytes.len(), &"fewer bytes"));
    }
    Ok(bytes.to_vec())
}

/// Serializes the first `MAX` characters of a text. Nobody would read a longer message.
///
/// # Errors
/// The serializer fails.
pub fn cut<const MAX: usize, S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    let end = text.char_indices().nth(MAX);
    serializer.serialize_str(end.map_or(text, |(end, _)| &text[..end]))
}

/// Deserializes a text of at most `MAX` characters.
///
/// # Errors
/// The text is longer, or the deserializer fails.
pub fn text<'de, const MAX: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<String, D::Error> {
    let text = <&str>::deserialize(deserializer)?;
    match text.char_indices().nth(MAX) {
        None => Ok(text.to_owned()),
        Some(_) => {
            let chars = text.chars().count();
            Err(D::Error::invalid_length(chars, &"fewer characters"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::de::value;

    use super::*;

    #[test]
    fn the_length_of_a_text_that_is_too_long_is_in_characters() {
        let text = |sent| {
            let sent = value::BorrowedStrDeserializer::<value::Error>::new(sent);
            text::<2, _>(sent).map_err(|error| error.to_string())
        };
        assert_eq!(text("äö"), Ok("äö".to_owned()));
        let error = "invalid length 3, expected fewer characters";
        assert_eq!(text("äöü"), Err(error.to_owned()));
    }
}
