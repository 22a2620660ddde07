//! What becomes of the holes of files, and where an opened file has any.

use std::fs::File;

use zmove_disk::{find_data, find_data_but_zeros};
use zmove_types::DataRanges;
use zmove_wire::Lack;

/// What becomes of holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holes {
    /// Holes are kept.
    Kept,
    /// Holes are kept, and blocks of zeros become holes.
    Made,
    /// Holes are sent as zeros.
    Sent,
}

/// The holes of a large file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FoundHoles {
    /// How many bytes are not sent.
    pub(crate) bytes: u64,
    /// How many of these lie in each group that the target holds, and have been counted with it.
    pub(crate) held: Vec<(u32, u64)>,
    /// Why some, or all, are sent as zeros.
    pub(crate) lack: Option<Lack>,
}

impl Holes {
    /// Where a file of so many bytes has data, if it has holes that are kept, or why they are not. A file that
    /// cannot have any is not asked: `may_have` is false. What cannot be looked for is read, which
    /// tells why.
    pub(crate) fn find(
        self,
        file: &File,
        bytes: u64,
        may_have: bool,
        stop: impl Fn() -> bool,
    ) -> (Option<DataRanges>, Option<Lack>) {
        let found = match self {
            Self::Made => find_data_but_zeros(file, bytes, stop),
            Self::Kept if may_have => find_data(file, bytes),
            Self::Kept | Self::Sent => return (None, None),
        };
        match found {
            Ok((data, lost)) => (data, (lost > 0).then_some(Lack::TooMuch)),
            Err(_) => (None, None),
        }
    }
}
