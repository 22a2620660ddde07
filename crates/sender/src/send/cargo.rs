//! What lanes carry: frames with what it takes to declare and to account for them.

use std::sync::Arc;

use zmove_chunk::seal;
use zmove_disk::FileIdentity;
use zmove_transport::Frame;
use zmove_wire::FrameHeader;

use crate::read::source::LargeSource;

/// What lanes carry.
#[derive(Debug)]
pub(crate) struct Cargo {
    pub(crate) frame: Frame,
    /// The file that the frame is a group of; none for a batch.
    pub(crate) chunk: Option<Chunk>,
}

/// What a lane has to know of a group's file.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) file: Arc<LargeSource>,
    pub(crate) identity: FileIdentity,
    /// How often the group came damaged.
    pub(crate) tries: u8,
    /// Another copy is in flight, and late: what waited for this one waited for that.
    pub(crate) late: bool,
}

/// A header with the seal over itself and its content.
pub(crate) fn sealed(content: &[u8; 32], header: FrameHeader) -> FrameHeader {
    FrameHeader { digest: seal(&header.prefix(), content), ..header }
}
