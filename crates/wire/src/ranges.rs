//! Encoding of the [ranges of data](DataRanges) of a file in the heads of frames.

use std::ops::Range;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zmove_types::{DataRanges, list};

/// Ranges that have been received but not checked.
#[derive(Deserialize)]
struct ReceivedRanges {
    file_bytes: u64,
    #[serde(deserialize_with = "list::at_most::<{ DataRanges::MAX }, _, _>")]
    ranges: Vec<Range<u64>>,
}

pub(crate) fn serialize<S: Serializer>(
    data: &Option<Arc<DataRanges>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let sent = data.as_ref().map(|data| (data.file_bytes(), data.ranges()));
    sent.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Arc<DataRanges>>, D::Error> {
    let Some(received) = Option::<ReceivedRanges>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let data = DataRanges::new(received.file_bytes, received.ranges);
    let data = data.ok_or_else(|| D::Error::custom("ranges of data"))?;
    Ok(Some(Arc::new(data)))
}

/// Returns whether the ranges, if any, belong to a file of `file_bytes` bytes.
pub(crate) fn are_of_file(data: Option<&Arc<DataRanges>>, file_bytes: u64) -> bool {
    data.is_none_or(|data| data.file_bytes() == file_bytes)
}
