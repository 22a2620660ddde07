//! What lanes carry: frames with what it takes to declare and to account for them.

use std::sync::Arc;

use zmove_chunk::seal;
use zmove_disk::FileIdentity;
use zmove_transport::Frame;
use zmove_types::Buffer;
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

/// A frame with its lengths in the header, and the seal over that and the content.
pub(crate) fn sealed(content: &[u8; 32], header: FrameHeader, head: Vec<u8>, data: Buffer) -> Frame {
    let length = |bytes| u32::try_from(bytes).expect("frames hold a few MiB");
    let header = FrameHeader { head_bytes: length(head.len()), data_bytes: length(data.len()), ..header };
    let header = FrameHeader { digest: seal(&header.prefix(), content), ..header };
    Frame { header, head, data }
}
