//! Properties of file timestamps that hold for every file system.

use zmove_types::Timestamp;

/// Returns whether any file system could store the time `source` as `there`.
pub(crate) fn may_be_stored_as(there: Timestamp, source: Timestamp) -> bool {
    !is_storable_everywhere(source) || there.seconds.abs_diff(source.seconds) <= UNIT_SECONDS_MAX
}

/// Returns whether a time is inside the range of every file system. The resolution is not considered.
#[must_use]
pub fn is_storable_everywhere(time: Timestamp) -> bool {
    (EARLIEST_EVERYWHERE..LATEST_EVERYWHERE).contains(&time.seconds)
}

/// Returns whether the time `wanted` must be outside the range of the file system. This is the case if the stored time
/// `got` differs from it by more than any rounding.
#[must_use]
pub fn is_out_of_range(got: Timestamp, wanted: Timestamp) -> bool {
    got.seconds.abs_diff(wanted.seconds) > UNIT_SECONDS_MAX
}

/// The earliest time that every file system can store. The range is 1980 (FAT) to January 2038 (32 bits), narrowed by
/// two days at both ends because of time zones.
const EARLIEST_EVERYWHERE: i64 = 315_532_800 + 2 * 86_400;
const LATEST_EVERYWHERE: i64 = 2_147_483_647 - 2 * 86_400;
/// The coarsest resolution of any file system in seconds, which is that of FAT.
pub(crate) const UNIT_SECONDS_MAX: u64 = 2;
