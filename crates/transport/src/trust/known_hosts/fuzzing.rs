//! `known_hosts` for `crates/fuzz`.

use std::path::Path;

use super::{Endpoint, parse, parse_line};

/// Reads any bytes as a file, and checks that each host in it is found again by its name and by its rewritten line.
///
/// # Panics When one is not.
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
