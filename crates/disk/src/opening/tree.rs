//! Opens directories beneath a root so that no symbolic link and no `..` can lead outside it.
//!
//! **Invariant:** every returned descriptor was reached from the root's descriptor without following a link. It was
//! opened by [`open_beneath`], or component by component with `O_NOFOLLOW` when missing directories are created.

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
use crate::metadata::entry::open_despite_mode::EntryHandle;
use crate::metadata::entry::xattrs::Descriptor;
use crate::opening::by_name::{open_at, stat_at};
use crate::publishing::final_names::make_directory;
use crate::publishing::lease::Lease;

mod beneath;
pub(crate) mod roots;
pub(crate) mod trusted_path;

pub use beneath::open_beneath;

/// A directory tree, given by the descriptor of its root.
#[derive(Clone, Debug)]
pub struct Tree {
    root: Arc<OwnedFd>,
    lease: Lease,
    modes: DirectoryModes,
}

/// How the modes of directories are handled in a tree that a transfer writes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectoryModes {
    /// Modes are set at the end of the transfer. Until then, only the owner can access new directories, and the owner
    /// gets access to directories whose mode denies it.
    #[default]
    SetAtTheEnd,
    /// Modes are not set. A new directory gets the usual mode, and an existing directory keeps its mode.
    Kept,
}

impl DirectoryModes {
    /// Returns the mode for creating a directory.
    pub(crate) const fn mode_for_new(self) -> Mode {
        match self {
            Self::SetAtTheEnd => Mode::RWXU,
            Self::Kept => USUAL_MODE,
        }
    }
}

/// The mode passed to `mkdir`. The umask and inherited access control lists restrict it.
const USUAL_MODE: Mode = Mode::from_bits_retain(0o777);

/// Maximum number of attempts if other processes keep replacing the entry.
const RACES_MAX: usize = 16;

pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

impl Tree {
    /// Opens the tree at `path`. Symbolic links in `path` are followed.
    ///
    /// # Errors
    /// Returns the system's error, `ENOTDIR` if `path` is not a directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let open = |flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
        Ok(Self::at(Arc::new(open_listable_or_drop_box(open)?)))
    }

    /// Returns the tree whose root is an open directory.
    #[must_use]
    pub fn at(root: Arc<OwnedFd>) -> Self {
        Self {
            root,
            lease: Lease::constant(),
            modes: DirectoryModes::default(),
        }
    }

    /// Returns the same tree with other directory modes.
    #[must_use]
    pub fn with_modes(self, modes: DirectoryModes) -> Self {
        Self { modes, ..self }
    }

    /// Returns a tree at another open directory, with the same lease and directory modes.
    #[must_use]
    pub fn with_root(&self, root: Arc<OwnedFd>) -> Self {
        Self::at(root)
            .with_modes(self.modes)
            .under(self.lease.clone())
    }

    /// Returns how the modes of directories are handled.
    #[must_use]
    pub fn modes(&self) -> DirectoryModes {
        self.modes
    }

    /// Returns the same tree with another lease. Entries are created and removed only under that lease.
    #[must_use]
    pub fn under(self, lease: Lease) -> Self {
        Self { lease, ..self }
    }

    /// Returns the lease of the tree.
    #[must_use]
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Returns the root's descriptor.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens an existing directory. A drop box is opened with `O_PATH`: a directory of another user in which this user
    /// may create entries but which this user may not list. See [`is_listable`](crate::is_listable).
    ///
    /// # Errors
    /// Returns the system's error, for example `ENOENT`, `ENOTDIR` or `ELOOP` if the path does not lead to a directory.
    pub fn open_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        if path.is_root() {
            return Ok(Arc::clone(&self.root));
        }
        let open = |flags| open_beneath(self.fd(), path, flags);
        Ok(Arc::new(open_listable_or_drop_box(open)?))
    }

    /// Opens an existing directory even if its mode, or the mode of a directory above it, denies access to its owner.
    /// Unless modes are kept, adds u+rwx to the mode of each such directory first. The directories must belong to the
    /// user of this process.
    ///
    /// # Errors
    /// Returns the errors of [`open_directory`](Self::open_directory).
    pub fn open_own_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.open_directory(path) {
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && self.modes == DirectoryModes::SetAtTheEnd =>
            {
                self.open_inaccessible(path)
            }
            outcome => outcome,
        }
    }

    fn open_inaccessible(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        let mut directory = Arc::clone(&self.root);
        let mut names = path.components().map(OsStr::from_bytes).peekable();
        while let Some(name) = names.next() {
            let entered = match self.open_subdirectory(directory.as_fd(), name) {
                // The directory belongs to another user and can be searched but not listed.
                Err(Errno::ACCESS) if names.peek().is_some() => {
                    open_at(&directory, name, PATH_ONLY)?
                }
                entered => entered?,
            };
            make_writable(&self.lease, entered.as_fd())?;
            directory = Arc::new(entered);
        }
        Ok(directory)
    }

    /// Opens an existing directory to inspect its entries, without changing any mode. Returns `None` if this user owns
    /// the directory, or a directory above it, and its mode denies access to the owner.
    ///
    /// # Errors
    /// Returns the errors of [`open_directory`](Self::open_directory).
    pub fn open_for_inspection(&self, path: &RelPath) -> io::Result<Option<Arc<OwnedFd>>> {
        let searched = self.open_directory(path).and_then(|directory| {
            // A directory can be readable without being searchable.
            open_at(&directory, ".", PATH_ONLY)?;
            Ok(directory)
        });
        let denied = match searched {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => error,
            found => return found.map(Some),
        };
        let mut closed = Arc::clone(&self.root);
        for name in path.components().map(OsStr::from_bytes) {
            let Ok(next) = open_at(&closed, name, PATH_ONLY) else {
                break;
            };
            closed = Arc::new(next);
        }
        let is_own = rustix::fs::fstat(&closed)?.st_uid == rustix::process::geteuid().as_raw();
        if is_own { Ok(None) } else { Err(denied) }
    }

    /// Opens a directory and creates its missing components. If modes are set at the end, new directories have mode
    /// 0700 until then.
    ///
    /// # Errors
    /// Returns the system's error, `ENOTDIR` or `ELOOP` if a file or link is in the way.
    pub fn ensure_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        if self.modes == DirectoryModes::Kept {
            return self.create_directory(path);
        }
        match self.open_own_directory(path) {
            Ok(directory) => {
                // The mode of the root is the user's choice. A caller that sets it at the end uses `open_with_access`.
                if !path.is_root() {
                    make_writable(&self.lease, directory.as_fd())?;
                }
                Ok(directory)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.create_missing(path, DirectoryModes::SetAtTheEnd)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a directory like [`ensure_directory`](Self::ensure_directory). The directory must be the root or a direct
    /// child of the root, and the caller must set its mode at the end. If the mode was changed to grant access, the
    /// second value is the previous mode.
    ///
    /// # Errors
    /// Returns the errors of [`ensure_directory`](Self::ensure_directory).
    pub fn open_with_access(&self, path: &RelPath) -> io::Result<(Arc<OwnedFd>, Option<Mode>)> {
        let place = if path.is_root() {
            b"."
        } else {
            path.as_bytes()
        };
        let before = stat_at(&self.root, OsStr::from_bytes(place));
        let directory = self.ensure_directory(path)?;
        if path.is_root() {
            // The mode is not changed if this process has access regardless of it, for example as root.
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

    /// Sets the mode of the root. Ignores a refusal by the file system.
    ///
    /// # Errors
    /// Returns the system's error and the errors of [`Lease::permit`].
    pub fn set_root_mode(&self, mode: Mode) -> io::Result<()> {
        set_mode_if_allowed(self.lease.permit()?, self.fd(), mode)
    }

    /// Opens a directory on the path of the target. Creates missing components with the usual mode. Unlike
    /// [`ensure_directory`](Self::ensure_directory), never changes the mode of an existing directory.
    ///
    /// # Errors
    /// Returns the system's error, `ENOTDIR` if another kind of entry is in the way.
    pub fn create_directory(&self, path: &RelPath) -> io::Result<Arc<OwnedFd>> {
        match self.open_directory(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => return outcome,
        }
        self.create_missing(path, DirectoryModes::Kept)
    }

    /// Creates the directory at a path that the user chose, and the missing parents of the directory, with the usual
    /// mode. Symbolic links and `..` in the path are followed.
    ///
    /// # Errors
    /// Returns the system's error and the errors of [`Lease::permit`].
    pub fn create_with_parents(lease: &Lease, path: &Path) -> io::Result<()> {
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

    /// Creates a directory inside an open directory. Returns `false` if the name exists.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn create_new(
        lease: &Lease,
        parent: BorrowedFd<'_>,
        name: &Name,
        modes: DirectoryModes,
    ) -> io::Result<bool> {
        match make_directory(lease.permit()?, parent, name, modes.mode_for_new()) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a directory and creates its missing components. A loop walks the path, because a path may have thousands
    /// of components, too many for recursion. If modes are set at the end, makes the existing directories on the path
    /// writable, except the root, whose mode is the user's choice.
    fn create_missing(&self, path: &RelPath, modes: DirectoryModes) -> io::Result<Arc<OwnedFd>> {
        let opens_up = modes == DirectoryModes::SetAtTheEnd;
        let mut directory = Arc::clone(&self.root);
        for (depth, name) in path.components().map(OsStr::from_bytes).enumerate() {
            let make = || {
                if opens_up && depth > 0 {
                    make_writable(&self.lease, directory.as_fd())?;
                }
                make_directory(self.lease.permit()?, &directory, name, modes.mode_for_new())
            };
            let enter = || match opens_up {
                true => self.open_subdirectory(directory.as_fd(), name),
                false => open_listable_or_drop_box(|flags| open_at(&directory, name, flags)),
            };
            let entered = open_or_create(enter, make)?;
            directory = Arc::new(entered);
        }
        Ok(directory)
    }

    /// Opens a subdirectory. If it belongs to this user and its mode denies access, u+rwx is added to the mode first.
    fn open_subdirectory(
        &self,
        parent: BorrowedFd<'_>,
        name: &OsStr,
    ) -> rustix::io::Result<OwnedFd> {
        match open_listable_or_drop_box(|flags| open_at(parent, name, flags)) {
            Err(Errno::ACCESS) => {
                let held = open_at(parent, name, PATH_ONLY)?;
                let held = EntryHandle::of(held, FileType::Directory)?;
                let permit = self.lease.permit()?;
                // If the mode cannot be changed, the directory remains inaccessible.
                held.open_with_access(&permit, OFlags::RDONLY | OFlags::DIRECTORY)
                    .map_err(|_error| Errno::ACCESS)
            }
            opened => opened,
        }
    }
}

/// Opens a directory for reading. If reading is denied and the directory is a drop box, opens it with `O_PATH`.
pub(crate) fn open_listable_or_drop_box(
    open: impl Fn(OFlags) -> rustix::io::Result<OwnedFd>,
) -> rustix::io::Result<OwnedFd> {
    match open(DIRECTORY) {
        Err(Errno::ACCESS) => open(PATH_ONLY)
            .ok()
            .filter(is_drop_box)
            .ok_or(Errno::ACCESS),
        opened => opened,
    }
}

/// Returns whether a directory is a drop box: it belongs to another user, and its mode permits this user to create
/// entries but not to list them. A directory of this user is not a drop box, because this user can change its mode. If
/// the mode permits listing, another kernel rule denies access and would deny creating entries too.
fn is_drop_box(directory: &OwnedFd) -> bool {
    let may = |access| rustix::fs::accessat(directory, ".", access, AtFlags::EACCESS);
    let is_own = rustix::fs::fstat(directory)
        .is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw());
    !is_own
        && may(Access::READ_OK) == Err(Errno::ACCESS)
        && may(Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

/// Opens a directory, and creates it if it does not exist.
fn open_or_create(
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

/// Opens the parent of an open directory.
///
/// # Errors
/// Returns `ESTALE` if the parent is not the directory `known`, because the open directory was moved.
pub(crate) fn open_parent(directory: &OwnedFd, known: FileNumber) -> io::Result<OwnedFd> {
    let above = open_at(directory, "..", DIRECTORY)?;
    if number_of(&above)? == known {
        Ok(above)
    } else {
        Err(Errno::STALE.into())
    }
}

/// Makes a directory writable for its owner. An earlier transfer may have left the directory read-only. Its final mode
/// is set at the end. If the mode cannot be changed, creating an entry fails later.
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

    /// The thread has a small stack, so the code must not use stack space per directory.
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

    /// Opening the path neither blocks on a FIFO nor opens a device.
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
