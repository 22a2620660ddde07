//! Properties of stored times that hold for all file systems and need no probe.

use zmove_types::Timestamp;

/// Returns whether a file system could store the time `source` as `there`.
pub(crate) fn may_be_stored_as(there: Timestamp, source: Timestamp) -> bool {
    !is_storable_everywhere(source) || there.seconds.abs_diff(source.seconds) <= UNIT_SECONDS_MAX
}

/// Returns whether a time is inside the range of every file system. The resolution is not considered.
#[must_use]
pub fn is_storable_everywhere(time: Timestamp) -> bool {
    (EARLIEST_EVERYWHERE..LATEST_EVERYWHERE).contains(&time.seconds)
}

/// Returns whether the stored time is so far from the wanted one that the wanted one must be outside the range of the
/// file system.
#[must_use]
pub fn is_out_of_range(got: Timestamp, wanted: Timestamp) -> bool {
    got.seconds.abs_diff(wanted.seconds) > UNIT_SECONDS_MAX
}

/// 1980 (FAT) to January 2038 (32 bits), narrowed by two days at both ends because of time zones.
const EARLIEST_EVERYWHERE: i64 = 315_532_800 + 2 * 86_400;
const LATEST_EVERYWHERE: i64 = 2_147_483_647 - 2 * 86_400;
/// FAT has a resolution of 2 s.
pub(crate) const UNIT_SECONDS_MAX: u64 = 2;
