//! The frames that lanes send, with the data needed to declare files and to account for the frames.

use std::sync::Arc;

use zmove_chunk::seal;
use zmove_disk::FileIdentity;
use zmove_transport::Frame;
use zmove_types::Buffer;
use zmove_wire::FrameHeader;

use crate::read::source::LargeSource;

/// A frame for a lane.
#[derive(Debug)]
pub(crate) struct OutgoingFrame {
    pub(crate) frame: Frame,
    /// The group that the frame carries, or `None` for a batch.
    pub(crate) chunk: Option<Chunk>,
}

/// The data that a lane needs about a group and its file.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) file: Arc<LargeSource>,
    pub(crate) identity: FileIdentity,
    /// Number of times that the group arrived damaged.
    pub(crate) tries: u8,
    /// Whether this is the second copy of a group whose first copy is late. The time that a lane waits for such a copy
    /// does not count as starved.
    pub(crate) late: bool,
}

/// Returns a frame with its lengths in the header and a seal over the header and the content hash.
pub(crate) fn sealed(
    content: &[u8; 32],
    header: FrameHeader,
    head: Vec<u8>,
    data: Buffer,
) -> Frame {
    let length = |bytes| u32::try_from(bytes).expect("frames hold a few MiB");
    let header = FrameHeader {
        head_bytes: length(head.len()),
        data_bytes: length(data.len()),
        ..header
    };
    let header = FrameHeader {
        digest: seal(&header.prefix(), content),
        ..header
    };
    Frame { header, head, data }
}
