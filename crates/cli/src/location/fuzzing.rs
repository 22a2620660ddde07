//! Targets for `crates/fuzz`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::Location;

/// A target: what is shown of it, with its path, means the same.
///
/// # Panics
/// When it does not.
pub fn location(bytes: &[u8]) {
    let text = OsStr::from_bytes(bytes);
    match Location::parse(text) {
        Ok(Location::Local(path)) => assert_eq!(path, text),
        Ok(Location::Remote(remote)) => {
            let shown = [remote.to_string().as_bytes(), b":", &remote.path].concat();
            let again = Location::parse(OsStr::from_bytes(&shown)).expect("what is shown can be typed");
            assert_eq!(again, Location::Remote(remote));
        }
        Err(error) => drop(format!("{error:#}")),
    }
}
