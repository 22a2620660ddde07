//! Detects dead mounts: their FUSE server has exited, or their file server has lost its state. Every access to such a
//! mount fails, but the error does not show that the mount is the cause.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use zmove_types::Escaped;

use crate::opening::proc::{Mount, mounts};

/// The error of an operation on a path, formatted for a message. The message names the mount if its file system is
/// dead.
#[derive(Clone, Copy, Debug)]
pub struct PathCause<'a> {
    /// The error.
    pub error: &'a io::Error,
    /// The path that was given to the operation.
    pub path: &'a Path,
}

impl fmt::Display for PathCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        let mount = is_file_system_gone(self.error).then(|| find_dead_mount(self.path));
        mount
            .flatten()
            .map_or(Ok(()), |mount| write_dead_mount(f, &mount))
    }
}

/// Adds the name of the dead mount to a message, after the error of an operation.
pub(crate) fn write_dead_mount(f: &mut fmt::Formatter<'_>, mount: &Mount) -> fmt::Result {
    let Mount { point, kind, .. } = mount;
    write!(
        f,
        " (the {kind} file system mounted at '{}' does not answer; mount it again)",
        Escaped::path(point)
    )
}

/// Returns whether an error may mean that a file system is dead. `ESTALE` can also mean that a single file was removed
/// on the server.
#[must_use]
pub fn is_file_system_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOTCONN | Errno::STALE | Errno::SHUTDOWN | Errno::HOSTDOWN)
    )
}

/// Returns the mount that contains a path, if its file system is dead.
fn find_dead_mount(path: &Path) -> Option<Mount> {
    let mount = Mount::containing(&mounts(), &resolve_links(path)?)?;
    let asked = mount.point.metadata();
    asked
        .is_err_and(|error| is_file_system_gone(&error))
        .then_some(mount)
}

/// Resolves the symbolic links of a path as far as possible. Nothing can be resolved below a dead mount.
fn resolve_links(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    absolute.ancestors().find_map(|ancestor| {
        let real = ancestor.canonicalize().ok()?;
        Some(real.join(absolute.strip_prefix(ancestor).ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_answers_is_not_named() {
        let home = tempfile::tempdir().unwrap();
        for errno in [Errno::STALE, Errno::NOTCONN, Errno::NOENT] {
            let cause = PathCause {
                error: &errno.into(),
                path: home.path(),
            };
            assert_eq!(cause.to_string(), io::Error::from(errno).to_string());
        }
    }

    #[test]
    fn links_are_resolved_as_far_as_they_lead() {
        let home = tempfile::tempdir().unwrap();
        let real = home.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&real, real.join("link")).unwrap();
        let resolved = resolve_links(&real.join("link/none/x")).unwrap();
        assert_eq!(resolved, real.join("none/x"));
    }
}
