//! `authorized_keys` for `crates/fuzz`.

use std::path::Path;

use super::{line, parse_lines, render};

/// A whole file: what is understood stays as it stands, and means the same when it is written anew.
///
/// # Panics
/// When it does not.
pub fn authorized_keys(bytes: &[u8]) {
    let path = Path::new("authorized_keys");
    let Ok(lines) = parse_lines(path, bytes) else { return };
    let kept = render(&lines);
    assert_eq!(kept.strip_suffix(b"\n").unwrap_or(&kept), bytes.strip_suffix(b"\n").unwrap_or(bytes));
    for line in lines {
        let Some(grant) = line.grant else { continue };
        assert_eq!(line::check(&grant), Ok(()));
        assert_eq!(line::parse(&line::render(&grant)), Ok(grant));
    }
}
