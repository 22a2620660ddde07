//! Opens a directory by a path that other users may be able to change.
//!
//! **Invariant:** a symbolic link in the path is followed only if the caller permits it ([`PathLink`]).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// A symbolic link in the path of a directory.
pub(crate) struct PathLink<'a> {
    /// The directory that contains the link.
    pub(crate) directory: &'a OwnedFd,
    pub(crate) name: &'a OsStr,
    owner: u32,
}

/// Maximum number of links to follow, equal to the kernel's limit.
const LINKS_MAX: usize = 40;
const WAYPOINT: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl PathLink<'_> {
    /// Checks that the link belongs to root or to the user of this process. Another user who owns a directory on the
    /// path could use a link to choose where this process writes.
    ///
    /// # Errors
    /// Returns an error with a message if the link belongs to another user.
    pub(crate) fn check_owner(&self) -> io::Result<()> {
        if self.owner == 0 || self.owner == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        let name = Path::new(self.name).display();
        let user = self.owner;
        let text =
            format!("the link '{name}' in the path belongs to user {user} and is not followed");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }
}

/// Returns an `O_PATH` descriptor of the entry at `path`. The entry need not be readable.
///
/// # Errors
/// Returns the system's error, `ELOOP` if the path has too many links, or the error that `may_follow` returns for the
/// first link that it refuses.
pub(crate) fn walk(
    path: &Path,
    may_follow: impl FnMut(&PathLink<'_>) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    walk_entries(path, |_, _| (), may_follow)
}

/// Walks to an entry like [`walk`]. Calls `visit` with the directory and the name of each entry before its access.
///
/// # Errors
/// Returns the errors of [`walk`].
pub(crate) fn walk_entries(
    path: &Path,
    mut visit: impl FnMut(&OwnedFd, &OsStr),
    mut may_follow: impl FnMut(&PathLink<'_>) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    let mut here = start(path)?;
    let mut rest = path_parts(path);
    let mut links = 0;
    while let Some(name) = rest.pop() {
        visit(&here, &name);
        let next = rustix::fs::openat(&here, &name, WAYPOINT, Mode::empty())?;
        let stat = rustix::fs::fstat(&next)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            here = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        may_follow(&PathLink {
            directory: &here,
            name: &name,
            owner: stat.st_uid,
        })?;
        let target = rustix::fs::readlinkat(&next, c"", Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            here = start(&target)?;
        }
        rest.extend(path_parts(&target));
    }
    Ok(here)
}

fn start(path: &Path) -> io::Result<OwnedFd> {
    let from = if path.is_absolute() { c"/" } else { c"." };
    Ok(rustix::fs::openat(CWD, from, WAYPOINT, Mode::empty())?)
}

/// Returns the path of an open directory. The kernel appends " (deleted)" to the path of a removed directory.
pub(crate) fn path_of(directory: &OwnedFd) -> io::Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let path = rustix::fs::readlink(link, Vec::new())?;
    let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
    // A directory outside all mounts has no absolute path.
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Splits a path into its components, last one first. Each `..` is included.
#[must_use]
pub fn path_parts(path: &Path) -> Vec<OsString> {
    let named = path
        .components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    named
        .rev()
        .map(|part| part.as_os_str().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opening::by_name::open_at;
    use crate::opening::tree::DIRECTORY;
    use std::os::unix::fs::{MetadataExt, lchown, symlink};

    fn inode(path: &Path) -> io::Result<u64> {
        let reached = walk(path, |link| link.check_owner())?;
        Ok(rustix::fs::fstat(open_at(&reached, ".", DIRECTORY)?)?.st_ino)
    }

    #[test]
    fn links_of_this_user_lead_where_they_point() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        symlink("a", at("relative")).unwrap();
        symlink(at("a"), at("absolute")).unwrap();
        symlink("../relative/b", at("a/up")).unwrap();
        symlink("round", at("round")).unwrap();
        let there = at("a/b").metadata().unwrap().ino();
        for name in ["a/b", "relative/b", "absolute/b", "a/up", "a/../a/./b"] {
            assert_eq!(inode(&at(name)).unwrap(), there, "{name}");
        }
        assert_eq!(
            inode(&at("round")).unwrap_err().raw_os_error(),
            Some(Errno::LOOP.raw_os_error())
        );
        std::fs::write(at("file"), "x").unwrap();
        assert!(inode(&at("file")).is_err() && inode(&at("nothing")).is_err());
    }

    #[test]
    fn a_link_of_another_user_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let (directory, link) = (home.path().join("a"), home.path().join("link"));
        std::fs::create_dir(&directory).unwrap();
        symlink("a", &link).unwrap();
        if lchown(&link, Some(65_534), None).is_err() {
            return eprintln!("skipped: only root can give a link away");
        }
        assert!(
            inode(&link)
                .unwrap_err()
                .to_string()
                .contains("belongs to user 65534")
        );
    }
}
