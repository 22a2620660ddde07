//! Removing entries with all below them.
//!
//! **Invariant:** no link is followed: each directory is opened by its name in the one above it, or beneath the first
//! one, and a link goes as a link. What is mounted below stays, with the directories that it is in. However deep a tree is, few of its directories are open at once, and the way back up costs
//! no more than the way down.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use zmove_types::{Name, RelPath};

use crate::tree::{DIRECTORY, Tree, make_writable, open_beneath};

/// Names of running transfers begin so, and stay.
pub(crate) const HIDDEN_PREFIX: &str = ".zmove-";
/// How many of the deepest directories stay open.
const OPEN_MAX: usize = 64;
/// Of the directories above those, one in so many stays open, to find the way back.
const OPEN_EVERY: usize = 256;

/// Whether a name may belong to a transfer that is running.
#[must_use]
pub fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(HIDDEN_PREFIX.as_bytes())
}

/// Removes entries of a directory of `tree`; returns how many there were, with those below them. What could not be removed
/// is told with its path in `tree`.
pub fn remove_entries<'n>(
    tree: &Tree,
    directory: &RelPath,
    names: impl Iterator<Item = &'n Name>,
    mut failed: impl FnMut(RelPath, io::Error),
) -> u64 {
    let opened = match tree.open_directory(directory) {
        Ok(opened) => opened,
        Err(error) => {
            failed(directory.clone(), error);
            return 0;
        }
    };
    // the root itself is the user's
    if !directory.is_root() {
        make_writable(&opened);
    }
    let mut removed = 0;
    for name in names {
        let failed = |below: &[Name], error| {
            let path = std::iter::once(name).chain(below);
            let path = path.fold(directory.clone(), |path, name| path.join(name).unwrap_or(path));
            failed(path, error);
        };
        removed += Removal { top: opened.as_fd(), name, levels: Vec::new(), removed: 0, failed }.run();
    }
    removed
}

/// The removal of one entry.
struct Removal<'a, F> {
    top: BorrowedFd<'a>,
    name: &'a Name,
    /// The directories from the entry down to where it is at work.
    levels: Vec<Level>,
    removed: u64,
    failed: F,
}

struct Level {
    name: Name,
    /// None while it waits for many directories below it.
    fd: Option<OwnedFd>,
    directories: Vec<Name>,
    /// What may belong to a transfer that is running, if there is such a thing in it: it stays.
    hidden: Option<Name>,
    /// Something in it stays, which has been told.
    stays: bool,
}

impl<F: FnMut(&[Name], io::Error)> Removal<'_, F> {
    fn run(mut self) -> u64 {
        match rustix::fs::unlinkat(self.top, self.name.as_os_str(), AtFlags::empty()) {
            Ok(()) => return 1,
            Err(Errno::NOENT) => return 0,
            Err(Errno::ISDIR | Errno::PERM) if is_directory(self.top, self.name) => {}
            Err(error) => {
                (self.failed)(&[], error.into());
                return 0;
            }
        }
        self.enter(self.name.clone());
        while let Some(level) = self.levels.last_mut() {
            match level.directories.pop() {
                Some(name) => self.enter(name),
                None => self.leave(),
            }
        }
        self.removed
    }

    /// Removes all of a directory but the directories in it, which are left for later.
    fn enter(&mut self, name: Name) {
        let opened = self.parent().and_then(|parent| open_to_empty(parent.as_fd(), &name));
        // what is hidden in a hidden directory belongs to the transfer that made that
        let spares_hidden = !is_hidden(self.name.as_bytes());
        let listed = opened.and_then(|fd| {
            let names = list(&fd, spares_hidden)?;
            Ok((fd, names))
        });
        let (fd, names) = match listed {
            Ok(listed) => listed,
            Err(error) => return self.fail(Some(&name), error),
        };
        let depth = self.levels.len();
        let above = depth.checked_sub(OPEN_MAX).filter(|depth| depth % OPEN_EVERY > 0);
        if let Some(above) = above.and_then(|depth| self.levels.get_mut(depth)) {
            above.fd = None;
        }
        let Names { directories, others, hidden } = names;
        self.levels.push(Level { name, fd: None, directories, hidden, stays: false });
        for name in others {
            match rustix::fs::unlinkat(&fd, name.as_os_str(), AtFlags::empty()) {
                Ok(()) => self.removed += 1,
                Err(Errno::NOENT) => {}
                Err(error) => self.fail(Some(&name), error.into()),
            }
        }
        if let Some(level) = self.levels.last_mut() {
            level.fd = Some(fd);
        }
    }

    /// Removes the directory that is empty now.
    fn leave(&mut self) {
        let Some(level) = self.levels.pop() else { return };
        let parent = self.parent();
        let gone = parent.and_then(|parent| {
            Ok(rustix::fs::unlinkat(parent.as_fd(), level.name.as_os_str(), AtFlags::REMOVEDIR)?)
        });
        match gone {
            Ok(()) => self.removed += 1,
            Err(_) if level.stays => self.levels.iter_mut().for_each(|above| above.stays = true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && level.hidden.is_some() => {
                let hidden = level.hidden.clone();
                self.levels.push(level);
                self.fail(hidden.as_ref(), error);
                self.levels.pop();
            }
            Err(error) => self.fail(Some(&level.name), error),
        }
    }

    /// The directory in which it is at work.
    fn parent(&self) -> io::Result<Parent<'_>> {
        match self.levels.last() {
            None => Ok(Parent::Held(self.top)),
            Some(Level { fd: Some(fd), .. }) => Ok(Parent::Held(fd.as_fd())),
            Some(_) => {
                let above = self.levels.iter().rposition(|level| level.fd.is_some());
                let held = above.and_then(|above| self.levels[above].fd.as_ref());
                let closed = above.map_or(0, |above| above + 1);
                let names: Vec<_> = self.levels[closed..].iter().map(|level| level.name.as_bytes()).collect();
                let path = RelPath::from_bytes(&names.join(&b'/')).map_err(|_| Errno::NAMETOOLONG)?;
                Ok(Parent::Again(open_beneath(held.map_or(self.top, OwnedFd::as_fd), &path, DIRECTORY)?))
            }
        }
    }

    fn fail(&mut self, name: Option<&Name>, error: io::Error) {
        self.levels.iter_mut().for_each(|level| level.stays = true);
        let path = self.levels.iter().map(|level| &level.name).chain(name).skip(1);
        let path: Vec<_> = path.cloned().collect();
        (self.failed)(&path, error);
    }
}

enum Parent<'a> {
    Held(BorrowedFd<'a>),
    Again(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Held(fd) => *fd,
            Self::Again(fd) => fd.as_fd(),
        }
    }
}

#[derive(Default)]
struct Names {
    directories: Vec<Name>,
    others: Vec<Name>,
    /// One that may belong to a transfer that is running.
    hidden: Option<Name>,
}

/// All names; of those that may belong to running transfers, where these are spared, only one.
fn list(directory: &OwnedFd, spares_hidden: bool) -> io::Result<Names> {
    let mut names = Names::default();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let bytes = entry.file_name().to_bytes();
        if matches!(bytes, b"." | b"..") {
            continue;
        }
        let name = Name::from_bytes(bytes).map_err(|_| Errno::NAMETOOLONG)?;
        if spares_hidden && is_hidden(bytes) {
            names.hidden = Some(name);
            continue;
        }
        let is_directory = match entry.file_type() {
            FileType::Unknown => is_directory(directory.as_fd(), &name),
            known => known == FileType::Directory,
        };
        if is_directory { names.directories.push(name) } else { names.others.push(name) }
    }
    Ok(names)
}

fn is_directory(parent: BorrowedFd<'_>, name: &Name) -> bool {
    rustix::fs::statat(parent, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Opens a directory of which everything will be removed; one that its owner may not read or write is made so.
fn open_to_empty(parent: BorrowedFd<'_>, name: &Name) -> io::Result<OwnedFd> {
    let open = |flags| rustix::fs::openat(parent, name.as_os_str(), flags, Mode::empty());
    match open(DIRECTORY) {
        Ok(directory) => {
            refuse_mount(parent, directory.as_fd())?;
            make_writable(&directory);
            Ok(directory)
        }
        Err(Errno::ACCESS) => {
            let held = open(OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
            refuse_mount(parent, held.as_fd())?;
            let path = format!("/proc/self/fd/{}", held.as_raw_fd());
            rustix::fs::chmodat(CWD, path.as_str(), Mode::RWXU, AtFlags::empty())?;
            Ok(open(DIRECTORY)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// `EXDEV` where something is mounted on a directory, or where it is in another file system than the one above it.
fn refuse_mount(parent: BorrowedFd<'_>, directory: BorrowedFd<'_>) -> io::Result<()> {
    let is_apart = rustix::fs::fstat(parent)?.st_dev != rustix::fs::fstat(directory)?.st_dev;
    // a bind mount may be of the same file system; kernels before 5.8 cannot tell
    let known = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
    let is_mounted = known.is_ok_and(|known| known.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    if is_apart || is_mounted { Err(Errno::XDEV.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn name(text: &str) -> Name {
        Name::from_bytes(text.as_bytes()).unwrap()
    }

    fn remove(home: &std::path::Path, names: &[&str]) -> (u64, Vec<(String, io::ErrorKind)>) {
        let names: Vec<_> = names.iter().map(|text| name(text)).collect();
        let mut faults = Vec::new();
        let tree = Tree::open(home).unwrap();
        let removed = remove_entries(&tree, &RelPath::root(), names.iter(), |path, error| {
            faults.push((path.to_string(), error.kind()));
        });
        (removed, faults)
    }

    #[test]
    fn everything_goes_and_links_are_not_followed() {
        let (home, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("precious"), "x").unwrap();
        std::fs::create_dir_all(home.path().join("tree/a/b")).unwrap();
        std::fs::write(home.path().join("tree/a/b/f"), "x").unwrap();
        std::fs::write(home.path().join("file"), "x").unwrap();
        std::fs::write(home.path().join("stays"), "x").unwrap();
        symlink(outside.path(), home.path().join("tree/a/link")).unwrap();
        symlink(outside.path(), home.path().join("link")).unwrap();
        std::fs::set_permissions(home.path().join("tree/a"), PermissionsExt::from_mode(0o000)).unwrap();
        assert_eq!(remove(home.path(), &["tree", "file", "link", "not there"]), (7, vec![]));
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
        assert!(outside.path().join("precious").exists());
    }

    #[test]
    fn a_tree_that_is_deeper_than_files_may_be_open_goes() {
        let home = tempfile::tempdir().unwrap();
        let mut fd = rustix::fs::open(home.path(), DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..3_000 {
            rustix::fs::mkdirat(&fd, "deep", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&fd, "beside", Mode::RWXU).unwrap();
            fd = rustix::fs::openat(&fd, "deep", DIRECTORY, Mode::empty()).unwrap();
        }
        assert_eq!(remove(home.path(), &["deep", "beside"]), (6_000, vec![]));
    }

    #[test]
    fn what_a_running_transfer_hides_stays_and_is_told_once() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("a/b/c")).unwrap();
        std::fs::write(home.path().join("a/b/.zmove-1-0"), "x").unwrap();
        let (removed, faults) = remove(home.path(), &["a"]);
        assert_eq!(
            (removed, faults),
            (1, vec![("a/b/.zmove-1-0".to_owned(), io::ErrorKind::DirectoryNotEmpty)])
        );
    }
}
