//! The fuzz target for the file `paths`; `crates/fuzz` runs it.

use std::time::Duration;

use super::{Known, Rates, find, parse, split, with};

/// Reads a whole file and adds a path, which must be found again beside the others.
///
/// # Panics
/// When it is not, or one of the others is lost.
pub fn paths(bytes: &[u8]) {
    let Some(lines) = std::str::from_utf8(bytes).ok().and_then(parse) else { return };
    let known = Known {
        lanes: 8,
        loss_tolerant: true,
        round_trip: Duration::from_millis(90),
        bytes_per_second: 1,
        day: 1,
        rates: Rates::default(),
        window: None,
    };
    let again = parse(&with(&lines, NEW, known)).expect("what is written can be read");
    assert_eq!(find(&again, NEW), Some(known));
    let others = lines.iter().filter_map(|line| split(line)).filter(|(endpoint, _)| *endpoint != NEW);
    let others: Vec<_> = others.collect();
    // The oldest paths are dropped where there are too many.
    let kept = &others[others.len() + 1 - again.len()..];
    let kept_again: Vec<_> = again.iter().filter_map(|line| split(line)).take(kept.len()).collect();
    assert_eq!(kept_again, kept);
}

const NEW: &str = "new:1";
