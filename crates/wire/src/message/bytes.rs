//! Byte strings, names and paths within messages: a length and the bytes, parsed while decoding.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

use crate::limits::TOLD_CHARS_MAX;

pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    <&[u8]>::deserialize(deserializer).map(<[u8]>::to_vec)
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

/// Reads a text for the user, cut to what a person would read.
pub(super) fn reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(<&str>::deserialize(deserializer)?
        .chars()
        .take(REASON_CHARS_MAX)
        .collect())
}

/// Reads the text of an event, cut to what one can have.
pub(super) fn told<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(<&str>::deserialize(deserializer)?
        .chars()
        .take(TOLD_CHARS_MAX)
        .collect())
}

const REASON_CHARS_MAX: usize = 4096;

macro_rules! parsed {
    ($module:ident, $type:ident) => {
        pub(super) mod $module {
            use super::{Deserialize, Deserializer, Serializer};
            use serde::de::Error;
            use zmove_types::$type;

            pub(in super::super) fn serialize<S: Serializer>(
                value: &$type,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.serialize_bytes(value.as_bytes())
            }

            pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$type, D::Error> {
                $type::from_bytes(<&[u8]>::deserialize(deserializer)?).map_err(D::Error::custom)
            }
        }
    };
}

parsed!(name, Name);
parsed!(path, RelPath);

/// A special entry: its tag and the number of its device, as in a batch.
pub(super) mod special {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use zmove_types::Special;

    use crate::batch::{special_of, special_parts};

    pub(in super::super) fn serialize<S: Serializer>(
        special: &Special,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        special_parts(*special).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Special, D::Error> {
        let (tag, device) = Deserialize::deserialize(deserializer)?;
        special_of(tag, device).map_err(D::Error::custom)
    }
}
