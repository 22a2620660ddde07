//! Fuzz target for the daemon's configuration file, which `crates/fuzz` runs.

use std::path::Path;

use super::Config;

/// Parses a file. The result must be settings, or faults on lines that exist in the file.
///
/// # Panics
/// Panics if a refused file has no fault, or if a fault names a line that does not exist.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
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
