//! What lanes carry: frames with what it takes to declare and to account for them.

use std::sync::Arc;

use zmove_chunk::seal;
use zmove_disk::FileIdentity;
use zmove_transport::Frame;
use zmove_types::ItemId;
use zmove_wire::FrameHeader;

use crate::read::source::LargeSource;
use crate::send::in_flight::Carries;

/// What lanes carry.
#[derive(Debug)]
pub(crate) enum Cargo {
    Batch(Frame),
    Chunk(ChunkCargo),
}

/// A group of a large file.
#[derive(Debug)]
pub(crate) struct ChunkCargo {
    pub(crate) file: Arc<LargeSource>,
    pub(crate) identity: FileIdentity,
    pub(crate) frame: Frame,
    /// How often the group came damaged.
    pub(crate) tries: u8,
    pub(crate) copy: ChunkCopy,
}

/// Whether a chunk is in flight already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkCopy {
    /// No other copy is in flight.
    First,
    /// Another copy is in flight, and late: what waited for this one waited for that.
    Late,
}

impl Cargo {
    pub(crate) fn item(&self) -> ItemId {
        self.frame().header.item
    }

    /// How much payload the frame has.
    pub(crate) fn data_bytes(&self) -> u32 {
        self.frame().header.data_bytes
    }

    pub(crate) fn carries(&self) -> Carries {
        match self {
            Self::Batch(_) => Carries::Batch,
            Self::Chunk(_) => Carries::Chunk,
        }
    }

    fn frame(&self) -> &Frame {
        let (Self::Batch(frame) | Self::Chunk(ChunkCargo { frame, .. })) = self;
        frame
    }

    pub(crate) fn copy(&self) -> ChunkCopy {
        match self {
            Self::Batch(_) => ChunkCopy::First,
            Self::Chunk(chunk) => chunk.copy,
        }
    }
}

/// A header with the seal over itself and its content.
pub(crate) fn sealed(content: &[u8; 32], header: FrameHeader) -> FrameHeader {
    FrameHeader { digest: seal(&header.prefix(), content), ..header }
}
