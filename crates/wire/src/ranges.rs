//! Ranges of data as they travel: for each 8 bytes for its beginning and 8 for its end, in ascending order.

use std::ops::Range;

use zmove_types::DataRanges;

use crate::error::WireError;
use crate::fields::Reader;
use crate::limits::within;

const RANGE_BYTES: usize = 16;

pub(crate) fn encode_ranges(data: &DataRanges) -> Vec<u8> {
    let ends = data
        .ranges()
        .iter()
        .flat_map(|range| [range.start, range.end]);
    ends.flat_map(u64::to_le_bytes).collect()
}

/// Reads the ranges of a file of `file_bytes`.
///
/// # Errors
/// [`WireError`] when they are too many, do not ascend, pass the end of the file or leave no hole.
pub(crate) fn decode_ranges(bytes: &[u8], file_bytes: u64) -> Result<DataRanges, WireError> {
    within("ranges of data", bytes.len() / RANGE_BYTES, DataRanges::MAX)?;
    let mut reader = Reader::new(bytes);
    let mut ranges = Vec::<Range<u64>>::with_capacity(bytes.len() / RANGE_BYTES);
    while !reader.is_empty() {
        let range = reader.u64()?..reader.u64()?;
        within("end of data", range.end, file_bytes)?;
        ranges.push(range);
    }
    DataRanges::new(file_bytes, ranges).ok_or(WireError::OutOfOrder {
        what: "a range of data",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    #[test]
    fn the_bytes_of_ranges_are_pinned() {
        let data = DataRanges::new(0x0300, vec![1..2, 0x0102..0x0300]).unwrap();
        let numbers = [[1, 0], [2, 0], [2, 1], [0, 3]];
        let bytes: Vec<u8> = numbers
            .iter()
            .flat_map(|[low, high]| [*low, *high, 0, 0, 0, 0, 0, 0])
            .collect();
        assert_eq!(encode_ranges(&data), bytes);
        assert_eq!(decode_ranges(&bytes, 0x0300), Ok(data));
    }

    #[test]
    fn ranges_that_make_no_sense_are_refused() {
        let decode = |ranges: &[(u64, u64)], file_bytes| {
            let bytes: Vec<u8> = ranges
                .iter()
                .flat_map(|(start, end)| [*start, *end])
                .flat_map(u64::to_le_bytes)
                .collect();
            decode_ranges(&bytes, file_bytes)
        };
        let order = Err(WireError::OutOfOrder {
            what: "a range of data",
        });
        assert_eq!(decode(&[(0, 5), (4, 8)], 10), order, "they overlap");
        assert_eq!(decode(&[(6, 8), (0, 5)], 10), order);
        assert_eq!(decode(&[(5, 5)], 10), order);
        assert_eq!(decode(&[(0, 10)], 10), order, "there is no hole");
        let beyond = WireError::OverLimit {
            what: "end of data",
            value: 11,
            limit: 10,
        };
        assert_eq!(decode(&[(3, 11)], 10), Err(beyond));
        let many: Vec<_> = (0..=DataRanges::MAX as u64)
            .map(|at| (2 * at, 2 * at + 1))
            .collect();
        assert!(decode(&many[1..], u64::MAX).is_ok());
        let (value, limit) = (many.len() as u64, DataRanges::MAX as u64);
        let error = WireError::OverLimit {
            what: "ranges of data",
            value,
            limit,
        };
        assert_eq!(decode(&many, u64::MAX), Err(error));
        assert_eq!(
            decode_ranges(&[0; 9], 10),
            Err(WireError::Truncated { wanted: 7 })
        );
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_themselves_or_fail(numbers in proptest::collection::vec(0..40_u64, 0..9), file_bytes in any::<u64>()) {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            if let Ok(data) = decode_ranges(&bytes, file_bytes) {
                assert_eq!(encode_ranges(&data), bytes);
            }
        }
    }
}
