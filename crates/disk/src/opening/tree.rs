//! Directories beneath a root, opened so that no symbolic link and no `..` can lead out.
//!
//! **Invariant:** every descriptor this hands out was reached from the root's descriptor without following a link: by
//! [`open_beneath`], or component by component with `O_NOFOLLOW` where directories are made on the way.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use zmove_types::{FileNumber, Name, RelPath};

use crate::metadata::entry::metadata::set_mode_if_allowed;
use crate::metadata::entry::number_of;
use crate::metadata::entry::open_own::EntryHandle;
use crate::metadata::entry::xattrs::Descriptor;
use crate::opening::by_name::{open_at, stat_at};
use crate::publishing::final_names::make_directory;
use crate::publishing::lease::Lease;

mod beneath;
pub(crate) mod roots;
pub(crate) mod trusted_path;

pub use beneath::open_beneath;

/// The root of a tree.
#[derive(Clone, Debug)]
pub struct Tree {
    root: Arc<OwnedFd>,
    lease: Lease,
    modes: DirectoryModes,
}

/// The modes of the directories in a tree that a transfer writes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectoryModes {
    /// Modes are set at the end. Until then new directories are closed to all but their owner, and directories that are
    /// closed to their owner are opened.
    #[default]
    SetAtTheEnd,
    /// Modes are not set. A new directory has the usual mode from the start, and an existing one keeps its mode.
    Kept,
}

impl DirectoryModes {
    /// The mode with which a directory is made.
    pub(crate) const fn of_new(self) -> Mode {
        match self {
            Self::SetAtTheEnd => Mode::RWXU,
            Self::Kept => USUAL_MODE,
        }
    }
}

/// What the umask and inherited access control lists leave of this is the mode of a new directory.
const USUAL_MODE: Mode = Mode::from_bits_retain(0o777);

/// How often an operation is tried again when another process changes the entry concerned meanwhile.
const RACES_MAX: usize = 16;

pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

const HELD: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

impl Tree {
    /// The tree at `path`, which may itself be reached through links.
    ///
    /// # Errors
    /// The system's error, `ENOTDIR` when it is no directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self::at(Arc::new(root)))
    }

    /// The tree at an open directory.
    #[must_use]
    pub fn at(root: Arc<OwnedFd>) -> Self {
        Self {
            root,
            lease: Lease::constant(),
            modes: DirectoryModes::default(),
        }
    }

    /// The same tree, with these modes of directories.
    #[must_use]
    pub fn with_modes(self, modes: DirectoryModes) -> Self {
        Self { modes, ..self }
    }

    /// A tree at another open directory, with the same lease and modes of directories.
    #[must_use]
    pub fn like_this_at(&self, root: Arc<OwnedFd>) -> Self {
        Self::at(root)
            .with_modes(self.modes)
            .under(self.lease.clone())
    }

    /// The modes of directories.
    #[must_use]
    pub fn modes(&self) -> DirectoryModes {
        self.modes
    }

    /// The same tree, in which something is made or removed only under this lease.
    #[must_use]
    pub fn under(self, lease: Lease) -> Self {
        Self { lease, ..self }
    }

    /// The lease of the tree.
    #[must_use]
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The root's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a directory that exists.
    ///
    /// # Errors
    /// The system's error: `ENOENT`, `ENOTDIR` and `ELOOP` when it is not there or not a directory.
    pub fn open_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        if path.is_root() {
            return Ok(Arc::clone(&self.root));
        }
        Ok(Arc::new(open_beneath(self.fd(), path, DIRECTORY)?))
    }

    /// Opens a directory that exists, also where its mode, or that of one on the way, closes it to its owner,
    /// who is the user of this process: such directories get u+rwx first, unless modes are kept.
    ///
    /// # Errors
    /// As [`open_directory`](Self::open_directory).
    pub fn open_own_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.open_directory(path) {
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && self.modes == DirectoryModes::SetAtTheEnd =>
            {
                self.open_closed(path)
            }
            outcome => outcome,
        }
    }

    fn open_closed(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        let mut directory = Arc::clone(&self.root);
        let mut names = path.components().map(OsStr::from_bytes).peekable();
        while let Some(name) = names.next() {
            let entered = match self.enter_own(directory.as_fd(), name) {
                // The directory is another user's, which lets us through.
                Err(Errno::ACCESS) if names.peek().is_some() => open_at(&directory, name, HELD)?,
                entered => entered?,
            };
            make_writable(&self.lease, entered.as_fd())?;
            directory = Arc::new(entered);
        }
        Ok(directory)
    }

    /// Opens a directory that exists to look at what is in it, and changes no mode for that; `None` where its mode, or
    /// that of one on the way, closes it to its owner, who is the user of this process.
    ///
    /// # Errors
    /// As [`open_directory`](Self::open_directory).
    pub fn look_into(&self, path: &RelPath) -> io::Result<Option<Arc<OwnedFd>>> {
        let searched = self.open_directory(path).and_then(|directory| {
            // A directory that may be read need not be one that may be searched.
            open_at(&directory, ".", HELD)?;
            Ok(directory)
        });
        let denied = match searched {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => error,
            found => return found.map(Some),
        };
        let mut closed = Arc::clone(&self.root);
        for name in path.components().map(OsStr::from_bytes) {
            let Ok(next) = open_at(&closed, name, HELD) else {
                break;
            };
            closed = Arc::new(next);
        }
        let is_own = rustix::fs::fstat(&closed)?.st_uid == rustix::process::geteuid().as_raw();
        if is_own { Ok(None) } else { Err(denied) }
    }

    /// Opens a directory and makes what is missing of it, for the owner only (0700) where the final mode is set at the
    /// end.
    ///
    /// # Errors
    /// The system's error, `ENOTDIR` or `ELOOP` when a file or link is in the way.
    pub fn ensure_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        if self.modes == DirectoryModes::Kept {
            return self.create_directory(path);
        }
        match self.open_own_directory(path) {
            Ok(directory) => {
                // The root itself is the user's: who sets its mode at the end asks for it by open_up.
                if !path.is_root() {
                    make_writable(&self.lease, directory.as_fd())?;
                }
                Ok(directory)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_missing(path, DirectoryModes::SetAtTheEnd)
            }
            Err(error) => Err(error),
        }
    }

    /// The same of a directory in the root, or of the root itself, whose mode the caller sets at the end. Where it has
    /// been opened up for that, the mode comes along that it had.
    ///
    /// # Errors
    /// As [`ensure_directory`](Self::ensure_directory).
    pub fn open_up(&self, path: &RelPath) -> io::Result<(Arc<OwnedFd>, Option<Mode>)> {
        let place = if path.is_root() {
            b"."
        } else {
            path.as_bytes()
        };
        let before = stat_at(&self.root, OsStr::from_bytes(place));
        let directory = self.ensure_directory(path)?;
        if path.is_root() {
            // Whoever may write there without its owner's permissions, as root, leaves them as they are.
            let all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
            if rustix::fs::accessat(&directory, ".", all, AtFlags::EACCESS).is_err() {
                make_writable(&self.lease, directory.as_fd())?;
            }
        }
        let mode = |stat: Stat| Mode::from_raw_mode(stat.st_mode);
        let now = mode(rustix::fs::fstat(&directory)?);
        let before = before.ok().map(mode).filter(|before| *before != now);
        Ok((directory, before))
    }

    /// Sets the mode of the root, if this user may.
    ///
    /// # Errors
    /// The system's error, and what [`Lease::permit`] returns.
    pub fn set_root_mode(&self, mode: Mode) -> io::Result<()> {
        set_mode_if_allowed(self.lease.permit()?, self.fd(), mode)
    }

    /// Opens a directory of the target path itself and makes what is missing of it with the usual permissions. Unlike
    /// [`ensure_directory`](Self::ensure_directory) it removes nothing.
    ///
    /// # Errors
    /// The system's error, `ENOTDIR` when something else is there.
    pub fn create_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.open_directory(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => return outcome,
        }
        self.make_missing(path, DirectoryModes::Kept)
    }

    /// Makes the directory at a path of the user's own, and what is missing above it, with the usual permissions. Links
    /// and `..` in the path are followed.
    ///
    /// # Errors
    /// The system's error, and what [`Lease::permit`] returns.
    pub fn make_with_parents(lease: &Lease, path: &Path) -> io::Result<()> {
        let make = |path: &Path| match make_directory(lease.permit()?, CWD, path, USUAL_MODE) {
            Err(error) if error != Errno::NOENT && path.is_dir() => Ok(()),
            made => made,
        };
        let mut missing = Vec::new();
        for directory in path.ancestors() {
            match make(directory) {
                Err(Errno::NOENT) => missing.push(directory),
                made => {
                    made?;
                    break;
                }
            }
        }
        Ok(missing.into_iter().rev().try_for_each(make)?)
    }

    /// Makes a directory in an open one; `false` when the name is taken.
    ///
    /// # Errors
    /// The system's error.
    pub fn make_new(
        lease: &Lease,
        parent: BorrowedFd<'_>,
        name: &Name,
        modes: DirectoryModes,
    ) -> io::Result<bool> {
        match make_directory(lease.permit()?, parent, name, modes.of_new()) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Walks down, one component after the other: a path may have thousands of them, too many for recursion.
    /// Where modes are set at the end, the directories on the way are opened to their owner, but not the root itself,
    /// which is the user's.
    fn make_missing(&self, path: &RelPath, modes: DirectoryModes) -> io::Result<Arc<OwnedFd>> {
        let opens_up = modes == DirectoryModes::SetAtTheEnd;
        let mut directory = Arc::clone(&self.root);
        for (depth, name) in path.components().map(OsStr::from_bytes).enumerate() {
            let make = || {
                if opens_up && depth > 0 {
                    make_writable(&self.lease, directory.as_fd())?;
                }
                make_directory(self.lease.permit()?, &directory, name, modes.of_new())
            };
            let enter = || match opens_up {
                true => self.enter_own(directory.as_fd(), name),
                false => open_at(&directory, name, DIRECTORY),
            };
            let entered = enter_or_make(enter, make)?;
            directory = Arc::new(entered);
        }
        Ok(directory)
    }

    /// Opens a directory in another; one of this user that is closed to its owner gets a mode that lets it be opened.
    fn enter_own(&self, parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
        match open_at(parent, name, DIRECTORY) {
            Err(Errno::ACCESS) => {
                let held = open_at(parent, name, HELD)?;
                let held = EntryHandle::of(held, FileType::Directory)?;
                let permit = self.lease.permit()?;
                // A directory that cannot be opened up is as closed as it was.
                held.open_up(&permit, OFlags::RDONLY | OFlags::DIRECTORY)
                    .map_err(|_error| Errno::ACCESS)
            }
            opened => opened,
        }
    }
}

/// Enters a directory, and makes it if it does not exist.
fn enter_or_make(
    enter: impl Fn() -> rustix::io::Result<OwnedFd>,
    make: impl Fn() -> rustix::io::Result<()>,
) -> io::Result<OwnedFd> {
    for _ in 0..RACES_MAX {
        match enter() {
            Err(Errno::NOENT) => {}
            opened => return Ok(opened?),
        }
        match make() {
            Err(Errno::EXIST) => {}
            made => made?,
        }
    }
    Err(Errno::BUSY.into())
}

/// Opens the directory above an open one, by which that was reached.
///
/// # Errors
/// `ESTALE` where the open one has been moved since, and so leads elsewhere.
pub(crate) fn open_above(directory: &OwnedFd, known: FileNumber) -> io::Result<OwnedFd> {
    let above = open_at(directory, "..", DIRECTORY)?;
    if number_of(&above)? == known {
        Ok(above)
    } else {
        Err(Errno::STALE.into())
    }
}

/// Makes a directory writable for its owner: one that came read-only must take its files again, and gets its mode anew
/// at the end. Where this is not allowed, the create that follows fails.
pub(crate) fn make_writable(lease: &Lease, directory: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(directory)?.st_mode);
    if !mode.contains(Mode::RWXU) {
        let permit = lease.permit()?;
        let directory = Descriptor::Open(directory);
        let _best_effort = directory.set_mode(&permit, mode | Mode::RWXU);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).unwrap()
    }

    fn tree() -> (tempfile::TempDir, Tree) {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::open(directory.path()).unwrap();
        (directory, tree)
    }

    #[test]
    fn missing_directories_are_made_for_the_owner_only() {
        let (home, tree) = tree();
        tree.ensure_directory(&path("a/b/c")).unwrap();
        let mode = home.path().join("a/b/c").metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_link_is_never_followed_and_stays() {
        let (home, tree) = tree();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), home.path().join("a")).unwrap();
        assert!(tree.open_directory(&path("a")).is_err());
        assert!(tree.ensure_directory(&path("a/b")).is_err());
        assert!(!outside.path().join("b").exists());
        assert!(home.path().join("a").is_symlink());
    }

    #[test]
    fn a_file_in_the_way_of_a_directory_stays() {
        let (home, tree) = tree();
        std::fs::write(home.path().join("a"), "x").unwrap();
        assert!(tree.ensure_directory(&path("a/b")).is_err());
        assert!(home.path().join("a").is_file());
    }

    #[test]
    fn paths_beyond_the_kernel_limit_work() {
        let (_home, tree) = tree();
        let long = vec!["d".repeat(200); 30].join("/");
        tree.ensure_directory(&path(&long)).unwrap();
        assert!(tree.open_directory(&path(&long)).is_ok());
    }

    /// The thread has little stack, so that none of it may be used for each directory.
    #[test]
    fn a_path_of_thousands_of_directories_needs_no_more_stack_than_any() {
        let (home, tree) = tree();
        let deep = path(&vec!["d"; 6_000].join("/"));
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        let made = thread.spawn(move || {
            tree.ensure_directory(&deep).unwrap();
            drop(
                tree.create_directory(&deep.join(&Name::from_bytes(b"e").unwrap()).unwrap())
                    .unwrap(),
            );
            tree.open_directory(&deep).unwrap()
        });
        assert!(rustix::fs::fstat(made.unwrap().join().unwrap()).is_ok());
        let tree = Tree::open(home.path()).unwrap();
        let top = path("d").file_name().unwrap();
        let gone = crate::remove_entries(
            &tree,
            &RelPath::root(),
            std::iter::once(&top),
            |path, error| {
                panic!("{path}: {error}");
            },
        );
        assert_eq!(gone, 6_001);
    }

    /// The open does not wait for a FIFO, and does not open a device.
    #[test]
    fn nobody_waits_for_a_fifo_in_the_way_of_a_directory() {
        let (home, tree) = tree();
        rustix::fs::mknodat(tree.fd(), "a", FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(tree.open_directory(&path("a")).is_err());
        assert!(tree.ensure_directory(&path("a/b")).is_err());
        assert!(!home.path().join("a").is_dir());
    }

    #[test]
    fn a_read_only_directory_takes_files_again() {
        let (home, tree) = tree();
        let inner = home.path().join("a");
        std::fs::create_dir(&inner).unwrap();
        std::fs::set_permissions(&inner, PermissionsExt::from_mode(0o555)).unwrap();
        tree.ensure_directory(&path("a")).unwrap();
        assert_eq!(inner.metadata().unwrap().mode() & 0o777, 0o755);
    }
}
