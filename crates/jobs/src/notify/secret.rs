//! Files whose permissions are checked before they are read: the configuration, and secrets that only the owner may
//! read.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Reads a secret and removes leading and trailing white space.
pub(super) fn read_secret(path: &Path) -> Result<String, String> {
    let fail = |error: io::Error| format!("read '{}': {error}", path.display());
    let file = File::open(path).map_err(fail)?;
    if !is_closed_to_others(&file, 0o077).map_err(fail)? {
        return Err(format!(
            "'{}' contains a secret, but other users can read it: run chmod 600 on it",
            path.display()
        ));
    }
    let text = io::read_to_string(file.take(BYTES_MAX)).map_err(fail)?;
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("'{}' is empty", path.display()));
    }
    Ok(text.to_owned())
}

/// Returns whether the file belongs to this user or root, and gives other users none of these permissions.
pub(super) fn is_closed_to_others(file: &File, permissions: u32) -> io::Result<bool> {
    let metadata = file.metadata()?;
    let owner = metadata.uid();
    let is_owned = owner == rustix::process::geteuid().as_raw() || owner == 0;
    Ok(is_owned && metadata.mode() & permissions == 0)
}

/// Maximum number of bytes to read. No secret is longer.
const BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), " word\n").unwrap();
        for (mode, is_private) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
            match read_secret(file.path()) {
                Ok(word) => assert!(is_private && word == "word", "{mode:o}"),
                Err(why) => assert!(
                    !is_private && why.contains("other users can read it: run chmod 600"),
                    "{mode:o}: {why}"
                ),
            }
        }
    }
}
