//! Frames for lanes in these tests.

use zmove_transport::Frame;
use zmove_types::{Buffer, BufferPool, FileId, ItemId};
use zmove_wire::{FrameHeader, FrameKind};

pub(crate) const GREETING: &[u8] = b"a greeting of any kind";
pub(crate) const BUFFER_BYTES: usize = 4 << 20;

/// Returns a chunk of a file.
pub(crate) fn frame(number: u64, head: &[u8], data: &[u8]) -> Frame {
    let pool = BufferPool::new(data.len(), 1);
    let mut buffer = if data.is_empty() {
        Buffer::empty()
    } else {
        pool.take().unwrap()
    };
    buffer.room().copy_from_slice(data);
    buffer.set_len(data.len());
    let header = FrameHeader {
        kind: FrameKind::Chunk,
        head_bytes: head.len().try_into().unwrap(),
        data_bytes: data.len().try_into().unwrap(),
        group: 0,
        item: ItemId(number),
        file: FileId(number),
        digest: [7; 32],
    };
    Frame {
        header,
        head: head.to_vec(),
        data: buffer,
    }
}

/// Returns bytes that reveal swapped blocks.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let lap: Vec<u8> = (0..251).collect();
    let mut data = lap.repeat(len.div_ceil(251));
    data.truncate(len);
    data
}
