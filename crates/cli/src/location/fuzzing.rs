//! Targets for `crates/fuzz`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::Location;

/// A target: what is shown of a daemon's, with its path, means the same, and ssh gets no word that is an option.
///
/// # Panics
/// When that is not so.
pub fn location(bytes: &[u8]) {
    [false, true].into_iter().for_each(|ssh| check(OsStr::from_bytes(bytes), ssh));
}

fn check(text: &OsStr, ssh: bool) {
    let remote = match Location::parse(text, ssh) {
        Ok(Location::Local(path)) => return assert_eq!(path, text),
        Ok(Location::Remote(remote)) => remote,
        Err(error) => return drop(format!("{error:#}")),
    };
    if let Some(login) = &remote.login {
        let words = login.user.iter().chain([&remote.host]);
        words.for_each(|word| assert!(!word.is_empty() && !word.starts_with('-'), "{word:?}"));
        return;
    }
    let shown = [remote.to_string().as_bytes(), b":", &remote.path].concat();
    let again = Location::parse(OsStr::from_bytes(&shown), false).expect("what is shown can be typed");
    assert_eq!(again, Location::Remote(remote));
}
