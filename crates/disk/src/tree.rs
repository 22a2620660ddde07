//! Directories beneath a root, opened so that no symbolic link and no `..` can lead out.
//!
//! **Invariant:** every descriptor this hands out was reached from the root's descriptor without following a link
//! (`openat2` with `RESOLVE_BENEATH`, or component by component with `O_NOFOLLOW` where the kernel refuses that call).

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use zmove_types::{Name, RelPath};

/// The root of a tree.
#[derive(Clone, Debug)]
pub struct Tree {
    root: Arc<OwnedFd>,
}

/// Longer paths are opened in pieces: the kernel takes 4096 bytes at once.
const PIECE_BYTES_MAX: usize = 4000;
/// How often to try again when somebody else changes what is in the way.
const RACES_MAX: usize = 16;

pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Tree {
    /// The tree at `path`, which may itself be reached through links.
    ///
    /// # Errors
    /// What the system says, `ENOTDIR` when it is no directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { root: Arc::new(root) })
    }

    /// The tree at `path`, on whose way no link of other users is followed: they could lead anywhere.
    ///
    /// # Errors
    /// What the system says, and an error with a text for such a link.
    pub fn open_guarded(path: &Path) -> io::Result<Self> {
        Ok(Self { root: Arc::new(crate::root::open_directory(path)?) })
    }

    /// The tree at an open directory.
    #[must_use]
    pub fn at(root: Arc<OwnedFd>) -> Self {
        Self { root }
    }

    /// The root's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a directory that exists.
    ///
    /// # Errors
    /// What the system says: `ENOENT`, `ENOTDIR` and `ELOOP` when it is not there or not a directory.
    pub fn open_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        if path.is_root() {
            return Ok(Arc::clone(&self.root));
        }
        Ok(Arc::new(open_beneath(self.fd(), path, DIRECTORY)?))
    }

    /// Opens a directory and makes what is missing of it, for the owner only (0700): the final mode is set at the end.
    ///
    /// # Errors
    /// What the system says, `ENOTDIR` or `ELOOP` when a file or link is in the way.
    pub fn ensure_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.open_directory(path) {
            Ok(directory) => {
                // the root itself is the user's: nobody would set its mode back
                if !path.is_root() {
                    make_writable(&directory);
                }
                Ok(directory)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.make_directory(path),
            Err(error) => Err(error),
        }
    }

    /// Opens a directory of the target path itself and makes what is missing of it with the usual permissions. Unlike
    /// [`ensure_directory`](Self::ensure_directory) it removes nothing.
    ///
    /// # Errors
    /// What the system says, `ENOTDIR` when something else is there.
    pub fn create_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.open_directory(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => return outcome,
        }
        let mut directory = Arc::clone(&self.root);
        for name in path.components().map(OsStr::from_bytes) {
            let open = || rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty());
            let opened = match open() {
                Err(Errno::NOENT) => {
                    match rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(0o777)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    open()?
                }
                opened => opened?,
            };
            directory = Arc::new(opened);
        }
        Ok(directory)
    }

    /// Makes a directory in an open one, for the owner only (0700); `false` when the name is taken.
    ///
    /// # Errors
    /// What the system says.
    pub fn make_new(parent: BorrowedFd<'_>, name: &Name) -> io::Result<bool> {
        match rustix::fs::mkdirat(parent, name.as_os_str(), Mode::RWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Walks down, one component after the other: a path may have thousands of them, too many for recursion.
    fn make_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        let mut directory = Arc::clone(&self.root);
        for (depth, name) in path.components().map(OsStr::from_bytes).enumerate() {
            // the root itself is the user's
            directory = Arc::new(enter_or_make(&directory, name, depth > 0)?);
        }
        Ok(directory)
    }
}

/// Opens a directory in another, and makes it if it is not there.
fn enter_or_make(parent: &OwnedFd, name: &OsStr, may_change_parent: bool) -> io::Result<OwnedFd> {
    for _ in 0..RACES_MAX {
        match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
            Ok(directory) => return Ok(directory),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        if may_change_parent {
            make_writable(parent);
        }
        match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::BUSY.into())
}

/// Opens `path` beneath `root` without following any link.
///
/// # Errors
/// What the system says; `ELOOP` or `ENOTDIR` when a link is in the path.
pub fn open_beneath(root: BorrowedFd<'_>, path: &RelPath, flags: OFlags) -> io::Result<OwnedFd> {
    let bytes = path.as_bytes();
    if bytes.len() > PIECE_BYTES_MAX {
        let cut = bytes[..PIECE_BYTES_MAX].iter().rposition(|&byte| byte == b'/');
        let cut = cut.expect("names are at most 255 bytes, so 4000 hold a separator");
        let (head, tail) = (RelPath::from_bytes(&bytes[..cut]), RelPath::from_bytes(&bytes[cut + 1..]));
        let (head, tail) = (head.expect("a prefix of a path"), tail.expect("a suffix of a path"));
        let middle = open_beneath(root, &head, DIRECTORY)?;
        return open_beneath(middle.as_fd(), &tail, flags);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..RACES_MAX {
        match rustix::fs::openat2(root, path.as_path(), flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Ok(fd) => return Ok(fd),
            Err(Errno::NOSYS | Errno::PERM) => return open_by_component(root, path, flags),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // for a file opened without waiting: its owner holds a lease on it, and may for long
    Err(Errno::AGAIN.into())
}

fn open_by_component(root: BorrowedFd<'_>, path: &RelPath, flags: OFlags) -> io::Result<OwnedFd> {
    let mut directory = root.try_clone_to_owned()?;
    let mut components = path.components().peekable();
    while let Some(component) = components.next() {
        let last = components.peek().is_none();
        let wanted = if last { flags | OFlags::NOFOLLOW | OFlags::CLOEXEC } else { DIRECTORY };
        let name = OsStr::from_bytes(component);
        directory = rustix::fs::openat(&directory, name, wanted, Mode::empty())?;
    }
    Ok(directory)
}

/// A directory that came read-only must take its files again; its mode is set anew at the end. Where this is not
/// allowed the create that follows says so.
pub(crate) fn make_writable(directory: &OwnedFd) {
    let Ok(stat) = rustix::fs::fstat(directory) else { return };
    let mode = Mode::from_raw_mode(stat.st_mode);
    if !mode.contains(Mode::RWXU) {
        let _best_effort = rustix::fs::fchmod(directory, mode | Mode::RWXU);
    }
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

    /// In a thread with little stack: none of it goes to each directory.
    #[test]
    fn a_path_of_thousands_of_directories_needs_no_more_stack_than_any() {
        let (home, tree) = tree();
        let deep = path(&vec!["d"; 6_000].join("/"));
        let thread = std::thread::Builder::new().stack_size(256 << 10);
        let made = thread.spawn(move || {
            tree.ensure_directory(&deep).unwrap();
            drop(tree.create_directory(&deep.join(&Name::from_bytes(b"e").unwrap()).unwrap()).unwrap());
            tree.open_directory(&deep).unwrap()
        });
        assert!(rustix::fs::fstat(made.unwrap().join().unwrap()).is_ok());
        let tree = Tree::open(home.path()).unwrap();
        let top = path("d").file_name().unwrap();
        let gone = crate::remove_entries(&tree, &RelPath::root(), std::iter::once(&top), |path, error| {
            panic!("{path}: {error}");
        });
        assert_eq!(gone, 6_001);
    }

    /// A FIFO is not waited for, and a device would not be opened.
    #[test]
    fn nobody_waits_for_a_fifo_in_the_way_of_a_directory() {
        let (home, tree) = tree();
        rustix::fs::mknodat(tree.fd(), "a", rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(tree.open_directory(&path("a")).is_err());
        assert!(tree.ensure_directory(&path("a/b")).is_err());
        assert!(!home.path().join("a").is_dir());
    }

    #[test]
    fn component_wise_opening_refuses_links_too() {
        let (home, tree) = tree();
        std::fs::create_dir_all(home.path().join("real/sub")).unwrap();
        symlink("real", home.path().join("link")).unwrap();
        assert!(open_by_component(tree.fd(), &path("real/sub"), DIRECTORY).is_ok());
        assert!(open_by_component(tree.fd(), &path("link/sub"), DIRECTORY).is_err());
        assert!(open_by_component(tree.fd(), &path("link"), DIRECTORY).is_err());
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
