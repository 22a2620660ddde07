//! Opens paths below a directory and never outside it. The scan of the source and every access to the target use this
//! module.
//!
//! **Invariant:** no symbolic link, magic link or `..` is followed below the root. `openat2` makes the kernel check the
//! whole path. If `openat2` is missing or refused (old kernels, containers), the path is opened one component at a time
//! with `O_NOFOLLOW`, which gives the same guarantee.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::{Errno, Result};
use zmove_types::RelPath;

/// Whether an `openat2` call was refused. If so, this process does not call it again.
static OPENAT2_REFUSED: AtomicBool = AtomicBool::new(false);

/// Opens `path` beneath `root` without following any link, in the minimum number of system calls.
///
/// # Errors
/// Returns the system's error, `ELOOP` or `ENOTDIR` if the path contains a link.
pub fn open_beneath(root: BorrowedFd<'_>, path: &RelPath, flags: OFlags) -> Result<OwnedFd> {
    if path.is_root() {
        return openat(root, c".", flags | ALWAYS, Mode::empty());
    }
    if !OPENAT2_REFUSED.load(Ordering::Relaxed) {
        match Step::Whole.open_all(root, path, flags) {
            Err(Errno::NOSYS | Errno::PERM) => OPENAT2_REFUSED.store(true, Ordering::Relaxed),
            opened => return opened,
        }
    }
    Step::Component.open_all(root, path, flags)
}

/// The part of the path that one system call opens.
#[derive(Clone, Copy)]
enum Step {
    /// The longest prefix that the kernel accepts in one call. `openat2` checks it.
    Whole,
    /// One component, opened without following a link.
    Component,
}

impl Step {
    /// Opens a path that is not the root itself.
    fn open_all(self, root: BorrowedFd<'_>, path: &RelPath, flags: OFlags) -> Result<OwnedFd> {
        let mut waypoint: Option<OwnedFd> = None;
        let mut rest = path.as_bytes();
        loop {
            let from = waypoint.as_ref().map_or(root, OwnedFd::as_fd);
            let (head, tail) = self.split(rest);
            if tail.is_empty() {
                return self.open(from, head, flags | ALWAYS);
            }
            waypoint = Some(self.open(from, head, WAYPOINT | ALWAYS)?);
            rest = tail;
        }
    }

    fn open(self, from: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        for _ in 0..RACES_MAX {
            let opened = match self {
                Self::Whole => openat2(from, path, flags, Mode::empty(), RESOLVE),
                Self::Component => openat(from, path, flags, Mode::empty()),
            };
            if !matches!(opened, Err(Errno::INTR | Errno::AGAIN)) {
                return opened;
            }
        }
        // Another process holds a file lease (`fcntl(F_SETLEASE)`) on the file. With `O_NONBLOCK`, the call fails
        // instead of waiting for the lease to end.
        Err(Errno::AGAIN)
    }

    /// Splits a path at a `/` into the components to open next and the remaining components.
    fn split(self, path: &[u8]) -> (&[u8], &[u8]) {
        let cut = match self {
            Self::Whole if path.len() <= STEP_BYTES_MAX => None,
            Self::Whole => path[..STEP_BYTES_MAX]
                .iter()
                .rposition(|&byte| byte == b'/'),
            Self::Component => path.iter().position(|&byte| byte == b'/'),
        };
        cut.map_or((path, &[]), |at| (&path[..at], &path[at + 1..]))
    }
}

/// Maximum number of attempts while other processes keep changing an entry of the path.
const RACES_MAX: usize = 16;
/// Maximum length of a prefix, in bytes. It is below `PATH_MAX` (4096 including the final NUL) and above the length of
/// any component.
const STEP_BYTES_MAX: usize = 4000;
const ALWAYS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);
const WAYPOINT: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, open};

    use super::*;

    const BOTH: [Step; 2] = [Step::Whole, Step::Component];

    fn tree() -> (tempfile::TempDir, OwnedFd) {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("a/b/c")).unwrap();
        symlink("b", tree.path().join("a/inner")).unwrap();
        symlink("/", tree.path().join("a/outer")).unwrap();
        let root = open(tree.path(), WAYPOINT, Mode::empty()).unwrap();
        (tree, root)
    }

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).unwrap()
    }

    #[test]
    fn links_are_not_followed_with_openat2_nor_without() {
        let (_tree, root) = tree();
        assert!(open_beneath(root.as_fd(), &path(""), OFlags::DIRECTORY).is_ok());
        for step in BOTH {
            let open = |text: &str| step.open_all(root.as_fd(), &path(text), OFlags::DIRECTORY);
            assert!(open("a/b/c").is_ok());
            for text in ["a/inner", "a/inner/c", "a/outer", "a/outer/etc"] {
                let errno = open(text).unwrap_err();
                assert!(
                    matches!(errno, Errno::LOOP | Errno::NOTDIR),
                    "{text}: {errno}"
                );
            }
            assert_eq!(open("a/x").unwrap_err(), Errno::NOENT);
        }
    }

    #[test]
    fn a_path_longer_than_the_kernel_takes_opens() {
        let (tree, root) = tree();
        let name = "n".repeat(200);
        let mut path = RelPath::root();
        let mut fd = openat(CWD, tree.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..45 {
            rustix::fs::mkdirat(&fd, name.as_str(), Mode::RWXU).unwrap();
            fd = openat(&fd, name.as_str(), OFlags::DIRECTORY, Mode::empty()).unwrap();
            path = path
                .join(&zmove_types::Name::from_bytes(name.as_bytes()).unwrap())
                .unwrap();
        }
        for step in BOTH {
            assert!(
                step.open_all(root.as_fd(), &path, OFlags::DIRECTORY)
                    .is_ok()
            );
        }
    }

    #[test]
    fn steps_cover_the_path() {
        let path = [&[b'a'; 255][..]; 40].join(&b'/');
        let (mut rest, mut opened) = (&path[..], Vec::new());
        while !rest.is_empty() {
            let (head, tail) = Step::Whole.split(rest);
            assert!(head.len() <= STEP_BYTES_MAX);
            opened.push(head);
            rest = tail;
        }
        assert_eq!(opened.join(&b'/'), path);
    }
}
