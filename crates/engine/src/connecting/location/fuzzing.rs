//! The fuzz target for locations, run by `crates/fuzz`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{Location, Start};
use crate::error::LocationError;

/// Parses a target. If the target belongs to a daemon, its displayed form, including the path, must be parsed as the
/// same target. No argument that is passed to ssh may be an option.
///
/// # Panics
/// Panics if one of these properties is violated.
pub fn location(bytes: &[u8]) {
    [Start::Daemon, Start::OverSsh]
        .into_iter()
        .for_each(|start| check(OsStr::from_bytes(bytes), start));
}

fn check(text: &OsStr, start: Start) {
    let remote = match Location::parse(text, start) {
        Ok(Location::Local(path)) => return assert_eq!(path, text),
        Ok(Location::Remote(remote)) => remote,
        Err(error) => return drop(error.to_string()),
    };
    if let Some(login) = &remote.login {
        let words = login.user.iter().chain([&remote.host]);
        words.for_each(|word| assert!(!word.is_empty() && !word.starts_with('-'), "{word:?}"));
        return;
    }
    let shown = [remote.to_string().as_bytes(), b":", &remote.path].concat();
    match Location::parse(OsStr::from_bytes(&shown), Start::Daemon) {
        // A host of hexadecimal digits and a path of six such groups can together form an IPv6 address.
        Err(LocationError::Unbracketed(_)) => {}
        again => assert_eq!(
            again,
            Ok(Location::Remote(remote)),
            "what is shown can be typed"
        ),
    }
}
