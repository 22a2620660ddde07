//! Opens paths below one directory and never anywhere else.
//!
//! **Invariant:** no symbolic link, magic link or `..` is followed below the root. `openat2` has the kernel
//! check the whole path; where it is missing or refused (old kernels, containers) the path is opened one
//! component at a time, each with `O_NOFOLLOW`, which holds the same.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::{Errno, Result};
use zmove_types::RelPath;

/// A directory that paths are opened beneath.
#[derive(Debug)]
pub(crate) struct Beneath {
    root: OwnedFd,
    openat2_refused: AtomicBool,
}

impl Beneath {
    pub(crate) fn new(root: OwnedFd) -> Self {
        Self { root, openat2_refused: AtomicBool::new(false) }
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens `path` with `flags`, in as few steps as its length allows.
    pub(crate) fn open(&self, path: &RelPath, flags: OFlags) -> Result<OwnedFd> {
        if path.is_root() {
            return openat(&self.root, c".", flags | ALWAYS, Mode::empty());
        }
        if !self.openat2_refused.load(Ordering::Relaxed) {
            match self.open_in_steps(path, flags, Step::Whole) {
                Err(Errno::NOSYS | Errno::PERM) => self.openat2_refused.store(true, Ordering::Relaxed),
                result => return result,
            }
        }
        self.open_in_steps(path, flags, Step::Component)
    }

    fn open_in_steps(&self, path: &RelPath, flags: OFlags, step: Step) -> Result<OwnedFd> {
        let mut waypoint: Option<OwnedFd> = None;
        let mut rest = path.as_bytes();
        loop {
            let from = waypoint.as_ref().map_or(self.root(), OwnedFd::as_fd);
            let (head, tail) = step.split(rest);
            if tail.is_empty() {
                return step.open(from, head, flags | ALWAYS);
            }
            waypoint = Some(step.open(from, head, WAYPOINT | ALWAYS)?);
            rest = tail;
        }
    }
}

/// How much of a path one system call opens.
#[derive(Clone, Copy)]
enum Step {
    /// As much as the kernel takes at once, checked by `openat2`.
    Whole,
    /// One component.
    Component,
}

impl Step {
    fn open(self, from: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        match self {
            Self::Whole => openat2(from, path, flags, Mode::empty(), RESOLVE),
            Self::Component => openat(from, path, flags, Mode::empty()),
        }
    }

    /// Cuts a path into what is opened next and what is left, at a `/`.
    fn split(self, path: &[u8]) -> (&[u8], &[u8]) {
        let cut = match self {
            Self::Whole if path.len() <= STEP_BYTES_MAX => None,
            Self::Whole => path[..STEP_BYTES_MAX].iter().rposition(|&byte| byte == b'/'),
            Self::Component => path.iter().position(|&byte| byte == b'/'),
        };
        cut.map_or((path, &[]), |at| (&path[..at], &path[at + 1..]))
    }
}

/// Below `PATH_MAX` (4096 with the final NUL) with room to spare, above the longest component.
const STEP_BYTES_MAX: usize = 4000;
const ALWAYS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);
const WAYPOINT: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, open};

    use super::*;

    fn tree() -> (tempfile::TempDir, Beneath) {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("a/b/c")).unwrap();
        symlink("b", tree.path().join("a/inner")).unwrap();
        symlink("/", tree.path().join("a/outer")).unwrap();
        let root = open(tree.path(), WAYPOINT, Mode::empty()).unwrap();
        (tree, Beneath::new(root))
    }

    fn open_path(beneath: &Beneath, path: &str) -> Result<OwnedFd> {
        beneath.open(&RelPath::from_bytes(path.as_bytes()).unwrap(), OFlags::DIRECTORY)
    }

    #[test]
    fn links_are_not_followed_with_openat2_nor_without() {
        let (_tree, beneath) = tree();
        for refused in [false, true] {
            beneath.openat2_refused.store(refused, Ordering::Relaxed);
            assert!(open_path(&beneath, "").is_ok());
            assert!(open_path(&beneath, "a/b/c").is_ok());
            for path in ["a/inner", "a/inner/c", "a/outer", "a/outer/etc"] {
                let errno = open_path(&beneath, path).unwrap_err();
                assert!(matches!(errno, Errno::LOOP | Errno::NOTDIR), "{path}: {errno}");
            }
            assert_eq!(open_path(&beneath, "a/x").unwrap_err(), Errno::NOENT);
        }
    }

    #[test]
    fn a_path_longer_than_the_kernel_takes_opens() {
        let (_tree, beneath) = tree();
        let name = "n".repeat(200);
        let mut path = RelPath::root();
        let mut fd = openat(CWD, _tree.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..45 {
            rustix::fs::mkdirat(&fd, name.as_str(), Mode::RWXU).unwrap();
            fd = openat(&fd, name.as_str(), OFlags::DIRECTORY, Mode::empty()).unwrap();
            path = path.join(&zmove_types::Name::from_bytes(name.as_bytes()).unwrap()).unwrap();
        }
        assert!(beneath.open(&path, OFlags::DIRECTORY).is_ok());
        beneath.openat2_refused.store(true, Ordering::Relaxed);
        assert!(beneath.open(&path, OFlags::DIRECTORY).is_ok());
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
