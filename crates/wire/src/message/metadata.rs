//! Times and metadata within messages. Only this file and `fields`, for batches, know their form on the wire.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zmove_types::{Metadata, Timestamp};

pub(super) fn serialize<S: Serializer>(
    metadata: &Metadata,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let Metadata { mode, mtime, .. } = metadata;
    (mode, mtime.seconds, mtime.nanos).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Metadata, D::Error> {
    let (mode, seconds, nanos) = <(u32, _, _)>::deserialize(deserializer)?;
    Ok(Metadata::new(mode & 0o7777, timestamp_of(seconds, nanos)?))
}

fn timestamp_of<E: Error>(seconds: i64, nanos: u32) -> Result<Timestamp, E> {
    if nanos < 1_000_000_000 {
        Ok(Timestamp { seconds, nanos })
    } else {
        Err(E::custom("nanoseconds"))
    }
}

/// A time without other metadata.
pub(super) mod timestamp {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Timestamp, timestamp_of};

    pub(in super::super) fn serialize<S: Serializer>(
        time: &Timestamp,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        (time.seconds, time.nanos).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Timestamp, D::Error> {
        let (seconds, nanos) = <(i64, u32)>::deserialize(deserializer)?;
        timestamp_of(seconds, nanos)
    }
}
