//! Finds holes in source files by `SEEK_DATA` and `SEEK_HOLE`, and punches holes into target files that may contain
//! data.
//!
//! The kernel's report is trusted. A file system that reports data as a hole is broken for every program that looks for
//! holes. A file system without holes reports everything as data. On the kernel's own file systems, dirty pages in the
//! page cache count as data.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::{Errno, retry_on_intr};
use zmove_types::{DataRanges, DataRangesBuilder};

/// Returns the data ranges of a file of `bytes` bytes, and the number of holes that were turned into data because the
/// file has too many holes. Returns no ranges if the file has no hole or the file system does not report holes. Resets
/// the file position to the start.
///
/// # Errors
/// Returns the system's error.
pub fn find_data(file: &File, bytes: u64) -> io::Result<(Option<DataRanges>, u64)> {
    let found = find(file, bytes);
    seek(file, SeekFrom::Start(0))?;
    found
}

fn find(file: &File, bytes: u64) -> io::Result<(Option<DataRanges>, u64)> {
    let mut finder = DataRangesBuilder::default();
    let mut at = 0;
    while let Some(data) = next_data(file, at)?.filter(|data| data.start < bytes) {
        at = data.end;
        finder.add(data.start..data.end.min(bytes));
    }
    Ok(finder.finish(bytes))
}

/// Finds data like [`find_data`], but also treats allocated blocks of zeros as holes. Reads all data of the file,
/// unless `stop` returns true before the end.
///
/// # Errors
/// Returns the system's error, or `ECANCELED` if `stop` returned true.
pub fn find_nonzero_data(
    file: &File,
    bytes: u64,
    stop: impl Fn() -> bool,
) -> io::Result<(Option<DataRanges>, u64)> {
    let mut finder = DataRangesBuilder::default();
    let mut room = vec![0; SEARCHED_AT_ONCE_BYTES];
    let mut at = 0;
    while let Some(data) = next_data(file, at)?.filter(|data| data.start < bytes) {
        let end = data.end.min(bytes);
        // Blocks are aligned to the start of the file, regardless of the file system's blocks.
        at = data.start - data.start % ZERO_BLOCK_BYTES as u64;
        while at < end {
            if stop() {
                return Err(Errno::CANCELED.into());
            }
            let piece = usize::try_from(end - at).map_or(room.len(), |left| left.min(room.len()));
            let piece = &mut room[..piece];
            file.read_exact_at(piece, at)?;
            for (start, block) in (at..)
                .step_by(ZERO_BLOCK_BYTES)
                .zip(piece.chunks(ZERO_BLOCK_BYTES))
            {
                if *block != ZERO_BLOCK[..block.len()] {
                    finder.add(start..start + block.len() as u64);
                }
            }
            at += piece.len() as u64;
        }
    }
    seek(file, SeekFrom::Start(0))?;
    Ok(finder.finish(bytes))
}

/// The size of the blocks that are checked for zeros, which is the block size of most file systems.
const ZERO_BLOCK_BYTES: usize = 4096;
static ZERO_BLOCK: [u8; ZERO_BLOCK_BYTES] = [0; ZERO_BLOCK_BYTES];
/// The size of one read, which fits in the L2 cache.
const SEARCHED_AT_ONCE_BYTES: usize = 256 << 10;

/// Returns the next data range of a file at or after the offset `at`. If the file system does not report holes, the
/// range extends beyond the end of the file.
///
/// # Errors
/// Returns the system's error.
pub fn next_data(file: &File, at: u64) -> io::Result<Option<Range<u64>>> {
    let Some(start) = next_data_offset(file, at)? else {
        return Ok(None);
    };
    match seek(file, SeekFrom::Hole(start)) {
        Ok(end) if end > start => Ok(Some(start..end)),
        // The file has been truncated in the meantime.
        Err(Errno::NXIO) => Ok(None),
        Ok(_) | Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(start..u64::MAX)),
        Err(error) => Err(error.into()),
    }
}

/// Returns the offset of the next data of a file at or after the offset `at`. Unlike [`next_data`], this function does
/// not look for the end of the data range, because a file system in memory would visit all pages of the range.
///
/// # Errors
/// Returns the system's error.
pub fn next_data_offset(file: &File, at: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
        Err(error) => Err(error.into()),
    }
}

/// Punches holes into a file outside the ranges of `data`. Writes zeros instead if the file system cannot punch holes.
pub(crate) fn make_holes(file: &File, data: &DataRanges) -> io::Result<()> {
    let length = file.metadata()?.len();
    for hole in data.holes() {
        // A file that is changed in place is longer than its final length.
        let end = if hole.end == data.file_bytes() {
            length
        } else {
            hole.end.min(length)
        };
        let mut at = hole.start;
        while at < end
            && let Some(there) = next_data(file, at)?.filter(|there| there.start < end)
        {
            at = there.end.min(end);
            clear(file, there.start..at, length)?;
        }
    }
    Ok(())
}

/// Writes the data ranges of a file. `contents` holds the data of all ranges in order, without the holes.
///
/// # Errors
/// Returns the system's error.
///
/// # Panics
/// Panics if `contents` is shorter than the ranges.
pub fn write_data(file: &File, data: &DataRanges, contents: &[u8]) -> io::Result<()> {
    let mut rest = contents;
    for Range { start, end } in data.ranges() {
        let bytes = usize::try_from(end - start).expect("it is in memory");
        let (piece, behind) = rest.split_at(bytes);
        file.write_all_at(piece, *start)?;
        rest = behind;
    }
    Ok(())
}

fn clear(file: &File, range: Range<u64>, length: u64) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // A block is freed only if it is completely inside the range, so the range must cover the last block.
    let end = if range.end == length {
        length.next_multiple_of(BLOCK_BYTES_MAX)
    } else {
        range.end
    };
    match retry_on_intr(|| fallocate(file, mode, range.start, end - range.start)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => write_zeros(file, range),
        punched => Ok(punched?),
    }
}

fn write_zeros(file: &File, range: Range<u64>) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES];
    let mut at = range.start;
    while at < range.end {
        let wanted =
            usize::try_from(range.end - at).map_or(zeros.len(), |left| left.min(zeros.len()));
        file.write_all_at(&zeros[..wanted], at)?;
        at += wanted as u64;
    }
    Ok(())
}

const ZEROS_BYTES: usize = 256 << 10;
/// The largest block size of the kernel's file systems.
const BLOCK_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "lists of one range are meant"
)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A file of 8 MiB with data in its second and last MiB.
    fn sparse() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * MIB).unwrap();
        for at in [MIB, 7 * MIB] {
            file.write_all_at(&vec![7; 1 << 20], at).unwrap();
        }
        file
    }

    fn ranges(ranges: &[Range<u64>]) -> Option<DataRanges> {
        DataRanges::new(8 * MIB, ranges.to_vec())
    }

    #[test]
    fn data_is_found_and_no_hole_is_not_one() {
        let file = sparse();
        let found = find_data(&file, 8 * MIB).unwrap();
        assert_eq!(found, (ranges(&[MIB..2 * MIB, 7 * MIB..8 * MIB]), 0));
        assert_eq!(
            seek(&file, SeekFrom::Current(0)),
            Ok(0),
            "it is read from the beginning"
        );
        file.set_len(0).unwrap();
        assert_eq!(find_data(&file, 0).unwrap(), (None, 0));
        file.write_all_at(&[0; 8192], 0).unwrap();
        assert_eq!(
            find_data(&file, 8192).unwrap(),
            (None, 0),
            "zeros that are allocated are data"
        );
    }

    #[test]
    fn what_lies_in_a_hole_goes_and_nothing_else() {
        let file = sparse();
        let wanted = ranges(&[MIB..MIB + 4096, 3 * MIB..4 * MIB]).unwrap();
        make_holes(&file, &wanted).unwrap();
        assert_eq!(
            find_data(&file, 8 * MIB).unwrap().0,
            ranges(&[MIB..MIB + 4096])
        );
        let mut there = vec![1; 8192];
        file.read_exact_at(&mut there, MIB).unwrap();
        assert!(
            there[..4096].iter().all(|byte| *byte == 7)
                && there[4096..].iter().all(|byte| *byte == 0)
        );
        assert_eq!(file.metadata().unwrap().len(), 8 * MIB);
    }

    /// A file that is being changed in place is one byte longer than its final length.
    #[test]
    fn the_last_block_goes_too() {
        let file = sparse();
        file.set_len(8 * MIB + 6).unwrap();
        file.write_all_at(&[7; 6], 8 * MIB).unwrap();
        make_holes(&file, &DataRanges::new(8 * MIB + 5, Vec::new()).unwrap()).unwrap();
        assert_eq!(next_data(&file, 0).unwrap(), None);
        assert_eq!(file.metadata().unwrap().len(), 8 * MIB + 6);
    }

    #[test]
    fn blocks_of_zeros_are_found_wherever_they_lie() {
        let file = sparse();
        let size = 8 * MIB - 5;
        file.set_len(size).unwrap();
        let zeros = |range: Range<u64>| {
            write_zeros(&file, range).unwrap();
        };
        zeros(MIB + 8192..MIB + 16_384);
        // No block consists of zeros only here, and the last block is shorter.
        zeros(MIB + 20_481..MIB + 28_671);
        zeros(size - 4096 + 5..size);
        zeros(5 * MIB..6 * MIB);
        let found = find_nonzero_data(&file, size, || false).unwrap();
        let ranges = [
            MIB..MIB + 8192,
            MIB + 16_384..2 * MIB,
            7 * MIB..8 * MIB - 4096,
        ];
        assert_eq!(found, (DataRanges::new(size, ranges.to_vec()), 0));
        assert!(find_nonzero_data(&file, size, || true).is_err());
    }

    #[test]
    fn data_is_written_where_it_goes() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * MIB).unwrap();
        let data = ranges(&[MIB..MIB + 4096, 3 * MIB..3 * MIB + 4096]).unwrap();
        write_data(&file, &data, &[[7; 4096], [8; 4096]].concat()).unwrap();
        assert_eq!(find_data(&file, 8 * MIB).unwrap().0, Some(data));
        let mut there = [0; 1];
        for (at, byte) in [(MIB, 7), (3 * MIB + 4095, 8)] {
            file.read_exact_at(&mut there, at).unwrap();
            assert_eq!(there, [byte]);
        }
    }

    #[test]
    fn zeros_are_written_over_a_range_and_nowhere_else() {
        let file = sparse();
        write_zeros(&file, MIB + 5..2 * MIB).unwrap();
        let mut there = vec![1; 1 << 20];
        file.read_exact_at(&mut there, MIB).unwrap();
        assert!(there[..5] == [7; 5] && there[5..].iter().all(|byte| *byte == 0));
    }
}
