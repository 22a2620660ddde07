//! Journals and moments as the user reads them.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::value::age::Age;

/// How a journal is called: by its transfer, with which its file's name begins.
pub(super) fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem.split('-').next().unwrap_or_default().to_owned()
}

/// How long ago a moment was; none if it is still to come.
pub(super) fn age(moment: SystemTime) -> Age {
    Age(SystemTime::now().duration_since(moment).unwrap_or_default())
}

/// How long ago a moment in seconds since 1970 was.
pub(super) fn age_of_seconds(seconds: u64) -> Age {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).map_or(Age(Duration::ZERO), age)
}
