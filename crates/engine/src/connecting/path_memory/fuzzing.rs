//! The fuzz target for the file `paths`, run by `crates/fuzz`.

use std::path::PathBuf;
use std::time::Duration;

use super::{PathRecord, Rates};

/// Parses a file and adds a path. The new path and the paths of the file must be found again.
///
/// # Panics
/// Panics if one of these paths is lost.
pub fn paths(bytes: &[u8]) {
    let paths = super::paths(PathBuf::new());
    let Some(lines) = std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| paths.parse(text))
    else {
        return;
    };
    let known = PathRecord {
        lanes: 8,
        loss_tolerant: true,
        round_trip: Duration::from_millis(90),
        bytes_per_second: 1,
        day: 1,
        rates: Rates::default(),
        window: None,
    };
    let others: Vec<_> = lines
        .iter()
        .filter(|(endpoint, _)| endpoint != NEW)
        .cloned()
        .collect();
    let again = paths
        .parse(&paths.with(lines, NEW, Some(known)))
        .expect("what is written can be read");
    let (new, kept_again) = again.split_last().expect("one was written");
    assert_eq!(*new, (NEW.to_owned(), known));
    // The oldest paths are dropped if there are too many.
    assert_eq!(kept_again, &others[others.len() - kept_again.len()..]);
}

const NEW: &str = "new:1";
