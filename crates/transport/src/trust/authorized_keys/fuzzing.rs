//! A fuzz target of `authorized_keys` for `crates/fuzz`.

use std::path::Path;

use super::{line, parse_lines, render};

/// Reads arbitrary bytes as a file. Checks that valid lines are preserved, and that a formatted grant is parsed as the
/// same grant.
///
/// # Panics
/// Panics if a check fails.
pub fn authorized_keys(bytes: &[u8]) {
    let path = Path::new("authorized_keys");
    let Ok(lines) = parse_lines(path, bytes) else {
        return;
    };
    let kept = render(&lines);
    assert_eq!(
        kept.strip_suffix(b"\n").unwrap_or(&kept),
        bytes.strip_suffix(b"\n").unwrap_or(bytes)
    );
    for line in lines {
        let Some(grant) = line.grant else { continue };
        assert_eq!(line::check(&grant), Ok(()));
        assert_eq!(line::parse(&line::render(&grant)), Ok(grant));
    }
}
