//! Fuzz target for files of filter rules, which `crates/fuzz` runs.

use std::path::Path;

use zmove_scan::{PathKind, Selection};
use zmove_types::RelPath;

use super::rules_in;

/// Parses a path, a line feed and a file of rules. Applies the rules to the path if they are valid.
///
/// # Panics
/// Panics if a path below an excluded directory is selected.
pub fn filters(bytes: &[u8]) {
    let cut = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let (path, text) = bytes.split_at(cut);
    let Ok(rules) = rules_in(text, Path::new("rules")) else {
        return;
    };
    let Ok(selection) = Selection::new(&rules, 0..=u64::MAX) else {
        return;
    };
    let Ok(path) = RelPath::from_bytes(path) else {
        return;
    };
    let taken = [PathKind::Directory, PathKind::Other].map(|kind| selection.admits(&path, kind));
    let above = path
        .parent()
        .is_none_or(|parent| selection.admits(&parent, PathKind::Directory));
    assert!(above || taken == [false, false]);
}
