//! How holes in files are handled, and where an opened file has holes.

use std::fs::File;

use zmove_disk::{find_data, find_nonzero_data};
use zmove_types::DataRanges;
use zmove_wire::NotKeptReason;

/// How holes are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoleHandling {
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
    /// Number of bytes that are not sent.
    pub(crate) bytes: u64,
    /// Number of hole bytes in each group that the target holds. The account has already counted these bytes with the
    /// group.
    pub(crate) held: Vec<(u32, u64)>,
    /// Why some or all holes are sent as zeros.
    pub(crate) lack: Option<NotKeptReason>,
}

impl HoleHandling {
    /// Returns the data ranges of a file of `bytes` bytes if it has holes that are kept, or the reason why they are not
    /// kept. A file that cannot have holes (`may_have` is `false`) is not searched. If the search fails, the file is
    /// read instead, and the read reports the error.
    pub(crate) fn find(
        self,
        file: &File,
        bytes: u64,
        may_have: bool,
        stop: impl Fn() -> bool,
    ) -> (Option<DataRanges>, Option<NotKeptReason>) {
        let found = match self {
            Self::Made => find_nonzero_data(file, bytes, stop),
            Self::Kept if may_have => find_data(file, bytes),
            Self::Kept | Self::Sent => return (None, None),
        };
        match found {
            Ok((data, lost)) => (data, (lost > 0).then_some(NotKeptReason::TooMuch)),
            Err(_) => (None, None),
        }
    }
}
