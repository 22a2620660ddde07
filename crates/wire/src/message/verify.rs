//! The questions of a verification about files of several groups, and their answers. Smaller files are compared by the
//! [`Findings`](super::Findings) of an inquiry, as in any preview.

use serde::{Deserialize, Serialize};
use zmove_types::RelPath;

use super::fault::FaultCode;
use super::{bytes, list};

/// What a received file is proven by before it gets its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Proof {
    /// The data had the sender's hashes when it arrived.
    #[default]
    Wire,
    /// That, and once more when it was read back from the storage, after a flush and past the page cache.
    Media,
}

/// An order to hash some consecutive groups of one file, as the storage holds them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashOrder {
    /// The number of the order, for its answer.
    pub order: u64,
    /// The path of the file from the target root.
    #[serde(with = "bytes")]
    pub path: RelPath,
    /// The index of the first group.
    pub first: u32,
    /// The number of groups, at most [`HASHED_GROUPS_MAX`](crate::limits::HASHED_GROUPS_MAX).
    pub groups: u32,
}

/// The values of the groups of one order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hashed {
    /// The number of the order that this answers.
    pub order: u64,
    /// The chaining values, in order; `None` for a group that is a hole. Fewer than were asked for where the file ends,
    /// or could not be read.
    #[serde(deserialize_with = "list::at_most::<{ crate::limits::HASHED_GROUPS_MAX }, _, _>")]
    pub values: Vec<Option<[u8; 32]>>,
    /// Why the rest could not be read.
    pub fault: Option<FaultCode>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::HASHED_GROUPS_MAX;
    use crate::{ToReceiver, ToSender, WireError, decode_message, encode_message};

    #[test]
    fn orders_and_answers_are_pinned_and_bounded() {
        let path = RelPath::from_bytes(b"d/f").unwrap();
        let order = ToReceiver::Hash(HashOrder {
            order: 300,
            path,
            first: 2,
            groups: 1,
        });
        let bytes = encode_message(&order);
        assert_eq!(bytes[4..], [10, 0xAC, 2, 3, b'd', b'/', b'f', 2, 1]);
        assert_eq!(decode_message(&bytes[4..]), Ok(order));
        let hashed = |values| {
            ToSender::Hashed(Hashed {
                order: 1,
                values,
                fault: Some(FaultCode::Os(5)),
            })
        };
        let two = hashed(vec![None, Some([7; 32])]);
        let bytes = encode_message(&two);
        assert_eq!(bytes[4..9], [19, 1, 2, 0, 1]);
        assert_eq!(bytes[9..41], [7; 32]);
        assert_eq!(decode_message(&bytes[4..]), Ok(two));
        let many =
            |count| decode_message::<ToSender>(&encode_message(&hashed(vec![None; count]))[4..]);
        assert!(many(HASHED_GROUPS_MAX).is_ok());
        assert_eq!(many(HASHED_GROUPS_MAX + 1), Err(WireError::Message));
    }
}
