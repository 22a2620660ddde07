//! What can be said of the times that a file system stores without asking it.

use zmove_types::Timestamp;

/// Whether some file system may make the time `there` of `source`.
pub(crate) fn may_be_kept(there: Timestamp, source: Timestamp) -> bool {
    !is_held_everywhere(source) || there.seconds.abs_diff(source.seconds) <= UNIT_SECONDS_MAX
}

/// Whether every file system can store a time, as far as its range goes.
#[must_use]
pub fn is_held_everywhere(time: Timestamp) -> bool {
    (EARLIEST_EVERYWHERE..LATEST_EVERYWHERE).contains(&time.seconds)
}

/// Whether the time that a file got is so far from the wanted one that its file system cannot store that.
#[must_use]
pub fn is_beyond_range(got: Timestamp, wanted: Timestamp) -> bool {
    got.seconds.abs_diff(wanted.seconds) > UNIT_SECONDS_MAX
}

/// From 1980 (FAT) to January 2038 (32 bits), less two days for time zones.
const EARLIEST_EVERYWHERE: i64 = 315_532_800 + 2 * 86_400;
const LATEST_EVERYWHERE: i64 = 2_147_483_647 - 2 * 86_400;
/// FAT stores every other second.
pub(crate) const UNIT_SECONDS_MAX: u64 = 2;
