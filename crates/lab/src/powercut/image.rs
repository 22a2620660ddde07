//! The contents of a device, block by block. Copies share their blocks, so a copy of a formatted device is cheap.

use std::sync::Arc;

/// The size of a logical block, which a device writes completely or not at all.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// One block.
pub(crate) type Block = Arc<[u8; BLOCK_BYTES]>;

/// The contents of a device.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// A block that was never written is `None` and reads as zeros.
    blocks: Vec<Option<Block>>,
}

impl Image {
    /// Returns an image without any writes.
    pub(crate) fn blank(blocks: usize) -> Self {
        Self {
            blocks: vec![None; blocks],
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK_BYTES) as u64
    }

    /// Replaces blocks starting at index `first`.
    ///
    /// # Panics
    /// The blocks do not fit into the image.
    pub(crate) fn put(&mut self, first: usize, blocks: &[Block]) {
        for (place, block) in self.blocks[first..first + blocks.len()]
            .iter_mut()
            .zip(blocks)
        {
            *place = Some(Arc::clone(block));
        }
    }

    /// Appends `bytes` bytes from `offset` to `room`, or fewer at the end of the image.
    pub(crate) fn read(&self, offset: usize, bytes: usize, room: &mut Vec<u8>) {
        let end = (offset + bytes).min(self.blocks.len() * BLOCK_BYTES);
        let mut place = offset;
        while place < end {
            let within = place % BLOCK_BYTES;
            let taken = (BLOCK_BYTES - within).min(end - place);
            match &self.blocks[place / BLOCK_BYTES] {
                Some(block) => room.extend_from_slice(&block[within..within + taken]),
                None => room.resize(room.len() + taken, 0),
            }
            place += taken;
        }
    }

    /// Forgets blocks that contain only zeros.
    pub(crate) fn trim(&mut self) {
        for place in &mut self.blocks {
            if place
                .as_ref()
                .is_some_and(|block| block.iter().all(|byte| *byte == 0))
            {
                *place = None;
            }
        }
    }
}

/// Divides data into blocks.
///
/// # Panics
/// The length is not a multiple of the block size.
pub(crate) fn blocks_of(bytes: &[u8]) -> Vec<Block> {
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    assert!(rest.is_empty(), "the kernel writes whole logical blocks");
    blocks.iter().map(|block| Arc::new(*block)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(image: &Image, offset: usize, bytes: usize) -> Vec<u8> {
        let mut room = Vec::new();
        image.read(offset, bytes, &mut room);
        room
    }

    #[test]
    fn what_was_put_is_read_and_all_else_is_zeros_up_to_the_end() {
        let mut image = Image::blank(4);
        image.put(1, &blocks_of(&[7; 2 * BLOCK_BYTES]));
        assert_eq!(read(&image, BLOCK_BYTES - 1, 3), [0, 7, 7]);
        assert_eq!(read(&image, 3 * BLOCK_BYTES - 2, 4), [7, 7, 0, 0]);
        assert_eq!(read(&image, 4 * BLOCK_BYTES - 1, 10), [0]);
    }

    #[test]
    fn a_copy_keeps_what_the_other_writes_over() {
        let mut image = Image::blank(1);
        image.put(0, &blocks_of(&[1; BLOCK_BYTES]));
        let copy = image.clone();
        image.put(0, &blocks_of(&[0; BLOCK_BYTES]));
        image.trim();
        assert_eq!((read(&copy, 0, 1), read(&image, 0, 1)), (vec![1], vec![0]));
    }
}
