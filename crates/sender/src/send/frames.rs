//! The frames that lanes send, with what is needed to declare and to account for them.

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
    /// The file that the frame is a group of; `None` for a batch.
    pub(crate) chunk: Option<Chunk>,
}

/// The data of a group's file that a lane needs.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) file: Arc<LargeSource>,
    pub(crate) identity: FileIdentity,
    /// The number of times that the group came damaged.
    pub(crate) tries: u8,
    /// The second copy of a group whose first is late. A lane does not book the wait for it as starved.
    pub(crate) late: bool,
}

/// A frame with its lengths in the header, and the seal over that and the content.
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
