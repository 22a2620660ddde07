//! Secrets, which are in files that their user alone can read.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Reads a secret, without the white space around it.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let fail = |error: std::io::Error| format!("read '{}': {error}", path.display());
    let file = File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    let owner = metadata.uid();
    if metadata.mode() & 0o077 != 0 || (owner != rustix::process::geteuid().as_raw() && owner != 0)
    {
        return Err(format!(
            "'{}' has a secret, and others can read it: chmod 600",
            path.display()
        ));
    }
    let mut text = String::new();
    file.take(BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(fail)?;
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("'{}' is empty", path.display()));
    }
    Ok(text.to_owned())
}

/// More than any secret has.
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
            let secret = read(file.path());
            match secret {
                Ok(word) => assert!(is_private && word == "word", "{mode:o}"),
                Err(why) => {
                    assert!(
                        !is_private && why.contains("others can read it: chmod 600"),
                        "{mode:o}: {why}"
                    )
                }
            }
        }
    }
}
