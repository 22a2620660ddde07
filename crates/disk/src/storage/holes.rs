//! Holes: found at the source by `SEEK_DATA` and `SEEK_HOLE`, made at the target where a file may hold something.
//!
//! The kernel's answer is believed: a file system that calls a hole what holds data loses that data in every program
//! that asks for holes. One that knows no holes says that all is data. A file whose page cache holds what is still to
//! be written has data there, on the file systems of the kernel.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::{Errno, retry_on_intr};
use zmove_types::{DataRanges, DataRangesFinder};

/// Where a file of `bytes` has data, and how many holes were too many to keep; no ranges where it has no hole, or the
/// file system does not tell. The position in the file becomes the beginning.
///
/// # Errors
/// What the system says.
pub fn find_data(file: &File, bytes: u64) -> io::Result<(Option<DataRanges>, u64)> {
    let found = find(file, bytes);
    seek(file, SeekFrom::Start(0))?;
    found
}

fn find(file: &File, bytes: u64) -> io::Result<(Option<DataRanges>, u64)> {
    let mut finder = DataRangesFinder::default();
    let mut at = 0;
    while let Some(data) = next_data(file, at)?.filter(|data| data.start < bytes) {
        at = data.end;
        finder.add(data.start..data.end.min(bytes));
    }
    Ok(finder.finish(bytes))
}

/// Like [`find_data`], with blocks of zeros that are allocated as holes too; so all data is read, until `stop` says so.
///
/// # Errors
/// What the system says, or that it was stopped.
pub fn find_data_but_zeros(
    file: &File,
    bytes: u64,
    stop: impl Fn() -> bool,
) -> io::Result<(Option<DataRanges>, u64)> {
    let mut finder = DataRangesFinder::default();
    let mut room = vec![0; SEARCHED_AT_ONCE_BYTES];
    let mut at = 0;
    while let Some(data) = next_data(file, at)?.filter(|data| data.start < bytes) {
        let end = data.end.min(bytes);
        // A block counts from the file's beginning, whatever those of the file system are.
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

/// The blocks that are looked at for zeros: those of most file systems.
const ZERO_BLOCK_BYTES: usize = 4096;
static ZERO_BLOCK: [u8; ZERO_BLOCK_BYTES] = [0; ZERO_BLOCK_BYTES];
/// A piece that stays in the second-level cache.
const SEARCHED_AT_ONCE_BYTES: usize = 256 << 10;

/// The next data of a file from `at` on; to the end, and beyond, where the file system does not tell.
///
/// # Errors
/// What the system says.
pub fn next_data(file: &File, at: u64) -> io::Result<Option<Range<u64>>> {
    let Some(start) = data_begins(file, at)? else {
        return Ok(None);
    };
    match seek(file, SeekFrom::Hole(start)) {
        Ok(end) if end > start => Ok(Some(start..end)),
        // The file has been cut off meanwhile.
        Err(Errno::NXIO) => Ok(None),
        Ok(_) | Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(start..u64::MAX)),
        Err(error) => Err(error.into()),
    }
}

/// Where the next data of a file begins from `at` on. Unlike [`next_data`] it does not look for its end, for which a
/// file system in memory goes through all pages up to there.
///
/// # Errors
/// What the system says.
pub fn data_begins(file: &File, at: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
        Err(error) => Err(error.into()),
    }
}

/// Has a file hold nothing where `data` has holes: what is there goes, or becomes zeros where the file system cannot
/// let it go.
pub(crate) fn make_holes(file: &File, data: &DataRanges) -> io::Result<()> {
    let length = file.metadata()?.len();
    for hole in data.holes() {
        // A file that is changed in its place is longer than it will be.
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

/// Writes the data of a file, which stands piece after piece in `contents`, where it goes.
///
/// # Errors
/// What the system says.
///
/// # Panics
/// When there is not as much data as in `data`.
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
    // The last block goes only where all of it is to go.
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
/// The largest blocks of the file systems of the kernel.
const BLOCK_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "lists of one range are meant"
)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A file of 8 MiB with data in its second and in its last.
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

    /// A file that is changed in its place has a byte more until it is whole.
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
        // No block is all zeros here, and the last one is shorter.
        zeros(MIB + 20_481..MIB + 28_671);
        zeros(size - 4096 + 5..size);
        zeros(5 * MIB..6 * MIB);
        let found = find_data_but_zeros(&file, size, || false).unwrap();
        let ranges = [
            MIB..MIB + 8192,
            MIB + 16_384..2 * MIB,
            7 * MIB..8 * MIB - 4096,
        ];
        assert_eq!(found, (DataRanges::new(size, ranges.to_vec()), 0));
        assert!(find_data_but_zeros(&file, size, || true).is_err());
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
