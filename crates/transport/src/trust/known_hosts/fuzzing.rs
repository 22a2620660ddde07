//! A fuzz target of `known_hosts` for `crates/fuzz`.

use std::path::Path;

use super::{Endpoint, parse, parse_line};

/// Reads arbitrary bytes as a file. Checks that each host in it can be looked up by its name, and that its formatted
/// line can be parsed.
///
/// # Panics
/// Panics if a check fails.
pub fn known_hosts(bytes: &[u8]) {
    let Ok(pins) = parse(Path::new("known_hosts"), bytes) else {
        return;
    };
    for (host, pin) in &pins {
        assert_eq!(
            Endpoint::canonical(&host.host, host.port).as_ref(),
            Some(host)
        );
        let line = format!("{host} {}", pin.fingerprint);
        assert_eq!(parse_line(&line), Ok((host.clone(), pin.fingerprint)));
    }
}
