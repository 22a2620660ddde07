//! The model of a disk with a volatile write cache: the guarantees on which the block layer may rely, and no others.
//!
//! A write is certain to be on the medium only after a flush has succeeded that started after the write had completed.
//! Until then, the write may be present, missing or partly present, regardless of earlier and later writes. A logical
//! block is never torn. **Invariant:** every image that [`Disk::cut`] returns contains all writes that a completed
//! flush covers.

use super::image::{BLOCK_BYTES, Block, Image, blocks_of};
use crate::torture::dice::Dice;

/// A disk and its cache.
#[derive(Debug)]
pub(crate) struct Disk {
    /// The contents as reads return them: all writes, in the order of their arrival.
    seen: Image,
    /// The contents that are certain to be on the medium.
    durable: Image,
    /// Writes that may not have reached the medium, in order of arrival.
    pending: Vec<Pending>,
    /// Counts writes, completions and flushes.
    clock: u64,
    cache: Cache,
}

/// Whether a power cut loses writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    /// Each write is durable immediately, and none is logged.
    WriteThrough,
    /// Writes are pending until a flush.
    Volatile,
}

#[derive(Debug)]
struct Pending {
    write: WriteId,
    first: usize,
    blocks: Vec<Block>,
    /// When the write completed, if it has.
    completed: Option<u64>,
    kind: WriteKind,
}

/// Identifies a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteId(u64);

/// The time at which a flush started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlushStart(u64);

/// The apparent contents of a write. This guess makes power cuts more harmful, and correctness does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// Random bytes, as in the lab's files.
    Data,
    /// All other data: journals, inodes, directories.
    Metadata,
}

/// The pending writes that survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// All of them.
    Nothing,
    /// None of them.
    Everything,
    /// All metadata, and one in `kept_in` writes of data.
    Data { kept_in: u64 },
    /// Each write independently, with a probability in percent.
    Some { kept_percent: u64 },
    /// Each block independently, with a probability in percent.
    Torn { kept_percent: u64 },
    /// The oldest writes, up to a random point.
    Latest,
}

impl Disk {
    /// Returns a disk with these contents. Writes are durable immediately until [`Disk::begin_caching`].
    pub(crate) fn new(image: Image) -> Self {
        Self {
            seen: image.clone(),
            durable: image,
            pending: Vec::new(),
            clock: 0,
            cache: Cache::WriteThrough,
        }
    }

    /// Enables the volatile cache: writes may be lost from now on.
    pub(crate) fn begin_caching(&mut self) {
        self.durable = self.seen.clone();
        self.pending.clear();
        self.cache = Cache::Volatile;
    }

    /// Disables the volatile cache: no write is lost from now on. Pending writes are forgotten.
    pub(crate) fn end_caching(&mut self) {
        self.pending.clear();
        self.cache = Cache::WriteThrough;
    }

    pub(crate) fn seen(&self) -> &Image {
        &self.seen
    }

    /// Processes a write, which may be on the medium from now on.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> WriteId {
        let (first, blocks) = (offset / BLOCK_BYTES, blocks_of(bytes));
        self.clock += 1;
        let write = WriteId(self.clock);
        self.seen.put(first, &blocks);
        if self.cache == Cache::Volatile {
            let kind = WriteKind::of(bytes);
            self.pending.push(Pending {
                write,
                first,
                blocks,
                completed: None,
                kind,
            });
        }
        write
    }

    /// Marks a write as complete. A flush that starts later covers it.
    pub(crate) fn complete(&mut self, write: WriteId) {
        self.clock += 1;
        let clock = self.clock;
        if let Some(pending) = self
            .pending
            .iter_mut()
            .rev()
            .find(|pending| pending.write == write)
        {
            pending.completed = Some(clock);
        }
    }

    pub(crate) fn begin_flush(&mut self) -> FlushStart {
        self.clock += 1;
        FlushStart(self.clock)
    }

    /// Marks a flush as complete. All writes that were complete when it started are on the medium.
    pub(crate) fn complete_flush(&mut self, start: FlushStart) {
        let covered = |pending: &Pending| {
            pending
                .completed
                .is_some_and(|completed| completed < start.0)
        };
        for pending in self.pending.iter().filter(|pending| covered(pending)) {
            self.durable.put(pending.first, &pending.blocks);
        }
        self.pending.retain(|pending| !covered(pending));
    }

    /// Returns the number of writes that may be lost.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns the contents of the medium after a power cut.
    pub(crate) fn cut(&self, loss: Loss, dice: &mut Dice) -> Image {
        let mut image = self.durable.clone();
        let first_lost = dice.index(self.pending.len() + 1);
        for (place, pending) in self.pending.iter().enumerate() {
            let kept = match loss {
                Loss::Nothing => true,
                Loss::Everything => false,
                Loss::Data { kept_in } => {
                    pending.kind == WriteKind::Metadata || dice.one_in(kept_in)
                }
                Loss::Some { kept_percent } => dice.within(1..=100) <= kept_percent,
                Loss::Torn { kept_percent } => {
                    for (block, place) in pending.blocks.iter().zip(pending.first..) {
                        if dice.within(1..=100) <= kept_percent {
                            image.put(place, std::slice::from_ref(block));
                        }
                    }
                    false
                }
                Loss::Latest => place < first_lost,
            };
            if kept {
                image.put(pending.first, &pending.blocks);
            }
        }
        image
    }
}

impl WriteKind {
    /// Guesses the kind from the first bytes. On average, two of 512 random bytes are zero.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let zeros = bytes
            .iter()
            .take(JUDGED_BYTES)
            .filter(|byte| **byte == 0)
            .count();
        if zeros <= DATA_ZEROS_MAX {
            Self::Data
        } else {
            Self::Metadata
        }
    }
}

impl Loss {
    /// Draws a kind of loss. The most likely one harms programs that trust the size in an inode.
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        match dice.weighted([1, 2, 5, 3, 3, 2].into_iter()) {
            0 => Self::Nothing,
            1 => Self::Everything,
            2 => Self::Data {
                kept_in: *dice.pick(&[2, 4, 1_000_000]),
            },
            3 => Self::Some {
                kept_percent: dice.within(5..=95),
            },
            4 => Self::Torn {
                kept_percent: dice.within(5..=95),
            },
            _ => Self::Latest,
        }
    }
}

const JUDGED_BYTES: usize = 512;
const DATA_ZEROS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const LOSSES: [Loss; 6] = [
        Loss::Nothing,
        Loss::Everything,
        Loss::Data { kept_in: 2 },
        Loss::Some { kept_percent: 50 },
        Loss::Torn { kept_percent: 50 },
        Loss::Latest,
    ];

    fn disk() -> Disk {
        let mut disk = Disk::new(Image::blank(BLOCKS));
        disk.begin_caching();
        disk
    }

    fn write(disk: &mut Disk, first: usize, blocks: usize, byte: u8) -> WriteId {
        disk.write(first * BLOCK_BYTES, &vec![byte; blocks * BLOCK_BYTES])
    }

    fn flush(disk: &mut Disk) {
        let start = disk.begin_flush();
        disk.complete_flush(start);
    }

    /// Returns the first byte of each block.
    fn firsts(image: &Image) -> Vec<u8> {
        let mut room = Vec::new();
        image.read(0, BLOCKS * BLOCK_BYTES, &mut room);
        room.into_iter().step_by(BLOCK_BYTES).collect()
    }

    /// Returns all images that a power cut may leave, with any kind of loss.
    fn legal(disk: &Disk) -> std::collections::BTreeSet<Vec<u8>> {
        let mut dice = Dice::new(1);
        let all = LOSSES
            .iter()
            .flat_map(|loss| std::iter::repeat_n(*loss, 200));
        all.map(|loss| firsts(&disk.cut(loss, &mut dice))).collect()
    }

    #[test]
    fn a_write_that_a_completed_flush_covers_is_there_after_every_cut() {
        let mut disk = disk();
        let early = write(&mut disk, 0, 2, 1);
        disk.complete(early);
        flush(&mut disk);
        write(&mut disk, 2, 1, 2);
        assert_eq!(legal(&disk), [vec![1, 1, 0, 0], vec![1, 1, 2, 0]].into());
    }

    #[test]
    fn a_write_that_completes_after_the_flush_began_is_not_covered() {
        let mut disk = disk();
        let late = write(&mut disk, 0, 1, 1);
        let start = disk.begin_flush();
        disk.complete(late);
        disk.complete_flush(start);
        assert_eq!(disk.pending(), 1);
        assert_eq!(legal(&disk), [vec![0; BLOCKS], vec![1, 0, 0, 0]].into());
    }

    #[test]
    fn a_flush_that_did_not_complete_covers_nothing() {
        let mut disk = disk();
        let done = write(&mut disk, 0, 1, 1);
        disk.complete(done);
        disk.begin_flush();
        assert!(legal(&disk).contains(&vec![0; BLOCKS]));
    }

    #[test]
    fn a_later_write_may_be_there_without_an_earlier_one() {
        let mut disk = disk();
        for (place, byte) in [(0, 1), (1, 2)] {
            let done = write(&mut disk, place, 1, byte);
            disk.complete(done);
        }
        assert!(legal(&disk).contains(&vec![0, 2, 0, 0]));
    }

    #[test]
    fn a_write_of_several_blocks_may_be_torn_between_them() {
        let mut disk = disk();
        write(&mut disk, 0, 3, 1);
        let torn = legal(&disk);
        assert!(torn.contains(&vec![0, 1, 0, 0]) && torn.contains(&vec![1, 0, 1, 0]));
    }

    #[test]
    fn of_two_writes_to_a_block_either_may_be_left_and_never_the_one_before_the_flushed() {
        let mut disk = disk();
        for byte in [1, 2] {
            let done = write(&mut disk, 0, 1, byte);
            disk.complete(done);
            if byte == 1 {
                flush(&mut disk);
            }
        }
        assert_eq!(legal(&disk), [vec![1, 0, 0, 0], vec![2, 0, 0, 0]].into());
        assert_eq!(firsts(disk.seen()), [2, 0, 0, 0]);
    }

    #[test]
    fn data_is_lost_where_metadata_stays() {
        let mut disk = disk();
        let mut data = vec![0; BLOCK_BYTES];
        Dice::new(9).fill(&mut data);
        data[0] = 1;
        disk.write(0, &data);
        write(&mut disk, 1, 1, 0);
        let mut text = vec![0; BLOCK_BYTES];
        text[0] = 2;
        disk.write(2 * BLOCK_BYTES, &text);
        let left = disk.cut(Loss::Data { kept_in: u64::MAX }, &mut Dice::new(1));
        assert_eq!(firsts(&left), [0, 0, 2, 0]);
    }

    #[test]
    fn what_is_written_through_is_never_lost() {
        let mut disk = disk();
        disk.end_caching();
        write(&mut disk, 0, 1, 1);
        disk.begin_caching();
        assert_eq!(legal(&disk), [vec![1, 0, 0, 0]].into());
    }

    const BLOCKS: usize = 4;
}
