//! Checks who can change the files that a daemon reads, like sshd's `StrictModes`.
//!
//! **Invariant:** the check accepts a path only if nobody except root and the user of the daemon can change or replace
//! the file.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::KeyFileError;

/// Checks a file and every directory above it. Accepts a file that does not exist.
///
/// # Errors
/// Returns an error for the first entry that other users can change.
pub(super) fn check(path: &Path) -> Result<(), KeyFileError> {
    check_for(path, rustix::process::geteuid().as_raw())
}

/// Checks a file like [`check`], for a process that runs as `user`.
///
/// # Errors
/// Returns an error for the first entry that other users can change.
pub(super) fn check_for(path: &Path, user: u32) -> Result<(), KeyFileError> {
    let look = |source| KeyFileError::Look {
        path: path.into(),
        source,
    };
    let absolute = std::path::absolute(path).map_err(look)?;
    let real = match fs::canonicalize(&absolute) {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(look(error)),
    };
    // Symbolic links in the path are checked too, because their owners can change their targets.
    check_way(&real, user)?;
    if absolute == real {
        Ok(())
    } else {
        check_way(&absolute, user)
    }
}

fn check_way(path: &Path, user: u32) -> Result<(), KeyFileError> {
    path.ancestors().try_for_each(|path| {
        let found = fs::symlink_metadata(path).map_err(|source| KeyFileError::Look {
            path: path.into(),
            source,
        })?;
        if ![0, user].contains(&found.uid()) {
            return Err(KeyFileError::Owner {
                path: path.into(),
                owner: found.uid(),
                owner_wanted: owner_wanted(path, &found, user),
            });
        }
        if others_may_write(&found) {
            return Err(KeyFileError::Writable {
                path: path.into(),
                mode: found.mode() & 0o7777,
            });
        }
        Ok(())
    })
}

/// Returns the user who should own an entry. A directory should belong to root, unless the reader already owns it. A
/// file in a directory of root should belong to root too, because otherwise the reader could change files that root
/// reads.
fn owner_wanted(path: &Path, found: &Metadata, user: u32) -> u32 {
    let parent = path.parent().and_then(|parent| fs::metadata(parent).ok());
    let is_of_user = parent.is_some_and(|parent| parent.uid() == user);
    if is_of_user && !found.is_dir() {
        user
    } else {
        0
    }
}

/// Returns whether other users may change an entry. The sticky bit of a directory lets them create files, but not
/// remove or rename files of others, so such a directory does not count.
fn others_may_write(found: &Metadata) -> bool {
    let sticky = found.is_dir() && found.mode() & 0o1000 != 0;
    !found.is_symlink() && !sticky && found.mode() & 0o022 != 0
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_others_can_write_is_refused_at_every_step_of_the_way() {
        let home = tempfile::tempdir().unwrap();
        let (directory, file) = (home.path().join("d"), home.path().join("d/f"));
        fs::create_dir(&directory).unwrap();
        fs::write(&file, "").unwrap();
        for (path, right) in [
            (&file, 0o600),
            (&directory, 0o700),
            (&home.path().to_owned(), 0o700),
        ] {
            for wrong in [0o720, 0o702, 0o777] {
                mode(path, wrong);
                let error = check(&file).unwrap_err();
                assert!(
                    matches!(&error, KeyFileError::Writable { path: at, mode } if at == path && *mode == wrong),
                    "{error}"
                );
                assert!(
                    error
                        .to_string()
                        .ends_with(&format!("run: chmod go-w {}", path.display())),
                    "{error}"
                );
            }
            mode(path, right);
            check(&file).unwrap();
        }
        mode(&directory, 0o1777);
        check(&file).unwrap();
        check(&directory.join("nothing")).unwrap();
    }

    #[test]
    fn what_belongs_to_somebody_else_is_refused_at_every_step_of_the_way() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: only root can give files away");
        }
        let home = tempfile::tempdir().unwrap();
        let (directory, file, link) = (
            home.path().join("d"),
            home.path().join("d/f"),
            home.path().join("l"),
        );
        fs::create_dir(&directory).unwrap();
        fs::write(&file, "").unwrap();
        symlink("d/f", &link).unwrap();
        for (path, read) in [
            (&file, &file),
            (&directory, &file),
            (&link, &link),
            (&directory, &link),
        ] {
            std::os::unix::fs::lchown(path, Some(65_534), None).unwrap();
            let error = check(read).unwrap_err();
            assert!(
                matches!(&error, KeyFileError::Owner { path: at, owner: 65_534, owner_wanted: 0 } if at == path),
                "{error}"
            );
            std::os::unix::fs::lchown(path, Some(0), None).unwrap();
            check(read).unwrap();
        }
        chown(&file, None, Some(65_534)).unwrap();
        check(&file).unwrap();
    }
}
