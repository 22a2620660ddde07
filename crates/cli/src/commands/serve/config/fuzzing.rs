//! The daemon's file, for `crates/fuzz`.

use std::path::Path;

use super::Config;

/// A file: it is read, or each of its faults is told, with a line that it has.
///
/// # Panics
/// When there is no fault to tell, or one of a line that is not there.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Config::parse(Path::new("zmove.toml"), text) {
        Ok(config) => assert!((8..=64).contains(&config.limits.lanes_per_transfer)),
        Err(faults) => {
            let lines = text.matches('\n').count() + 1;
            assert!(!faults.is_empty(), "neither read nor refused");
            for fault in faults {
                assert!(fault.line.is_none_or(|line| line <= lines), "{fault}");
                assert!(!fault.to_string().is_empty());
            }
        }
    }
}
