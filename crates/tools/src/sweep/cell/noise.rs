//! The data to write. Its bytes can be neither compressed nor deduplicated, so storage that does either must store all
//! of them.

use zmove_types::{Buffer, BufferPool, GROUP_BYTES, PAGE_BYTES};

/// A thread's buffer of random data.
pub(crate) struct Noise {
    buffer: Buffer,
    state: u64,
}

impl Noise {
    /// Returns a buffer for one group.
    pub(crate) fn new(seed: u64) -> Self {
        let mut buffer = group_buffer();
        let mut state = scattered(seed.wrapping_add(1));
        for word in buffer.room().chunks_exact_mut(8) {
            state = scattered(state);
            word.copy_from_slice(&state.to_le_bytes());
        }
        Self { buffer, state }
    }

    /// Returns a buffer with the next bytes. Each page differs from all previous pages.
    pub(crate) fn take(&mut self, bytes: usize) -> Buffer {
        let mut buffer = std::mem::replace(&mut self.buffer, Buffer::empty());
        for page in buffer.room()[..bytes].chunks_mut(PAGE_BYTES) {
            self.state = scattered(self.state);
            let stamp = self.state.to_le_bytes();
            let stamped = stamp.len().min(page.len());
            page[..stamped].copy_from_slice(&stamp[..stamped]);
        }
        buffer.set_len(bytes);
        buffer
    }

    /// Takes back a buffer that `take` has returned, so that it can be reused.
    pub(crate) fn give_back(&mut self, buffer: Buffer) {
        self.buffer = buffer;
    }
}

/// Returns a page-aligned buffer for one group.
pub(crate) fn group_buffer() -> Buffer {
    let bytes = usize::try_from(GROUP_BYTES).expect("4 MiB fits any usize");
    BufferPool::new(bytes, 1)
        .take()
        .expect("the pool is new and open")
}

/// Returns the next state of the SplitMix64 generator, whose states do not repeat before all values have occurred.
fn scattered(state: u64) -> u64 {
    let mut mixed = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_page_comes_twice() {
        let mut pages = HashSet::new();
        let mut count = 0;
        for seed in 0..2 {
            let mut noise = Noise::new(seed);
            for bytes in [1024, 1 << 20, 1 << 20, 5000] {
                let buffer = noise.take(bytes);
                assert_eq!(buffer.len(), bytes);
                pages.extend(buffer.chunks(PAGE_BYTES).map(<[u8]>::to_vec));
                count += bytes.div_ceil(PAGE_BYTES);
                noise.give_back(buffer);
            }
        }
        assert_eq!(pages.len(), count);
    }
}
