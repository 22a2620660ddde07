//! Removes entries recursively.
//!
//! **Invariant:** no symbolic link is followed. Each directory is opened by its name in its parent. When the removal
//! returns to a parent, the parent must still be the same directory. A link is removed as a link.
//!
//! At most three descriptors are open at a time, regardless of the depth. Only a few names of subdirectories are
//! stored, for the deepest directories. Other entries are removed while their directory is being read, and a directory
//! with more subdirectories is read again. Mount points are kept, together with the directories that contain them.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, DirEntry, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use zmove_types::{FileNumber, HashOnlySet, Name, RelPath};

use crate::metadata::entry::open_despite_mode::EntryHandle;
use crate::metadata::entry::{is_directory, number_of};
use crate::opening::by_name::{list_directory, open_at};
use crate::opening::tree::{DIRECTORY, Tree, make_writable, open_parent};
use crate::publishing::final_names::remove;
use crate::publishing::lease::Lease;
use crate::staging::hidden::{is_hidden, is_leftover};

/// The number of deepest directories for which names of subdirectories are stored.
const LISTED_MAX: usize = 8;
/// Maximum number of names that are stored per directory. Names of maximum length take 64 KiB.
const NAMES_MAX: usize = 256;
/// Maximum number of retained entries to remember when a directory is reread. Rereading stops at this limit.
const RETAINED_MAX: usize = 65_536;

/// The number of entries that may still be removed, shared by several threads.
#[derive(Debug)]
pub struct RemovalBudget {
    left: AtomicU64,
    replaced: AtomicU64,
}

impl RemovalBudget {
    /// Creates a budget for this number of entries.
    #[must_use]
    pub const fn new(entries: u64) -> Self {
        Self {
            left: AtomicU64::new(entries),
            replaced: AtomicU64::new(0),
        }
    }

    /// Returns the number of entries that may still be removed.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Returns the number of entries that were removed because another entry replaces them.
    #[must_use]
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Records that `entries` removed entries made room for another entry.
    pub fn note_replaced(&self, entries: u64) {
        self.replaced.fetch_add(entries, Ordering::Relaxed);
    }

    /// Removes an entry by calling `unlink`, or returns `EDQUOT` if the budget is used up.
    fn remove(&self, unlink: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        taken.map_err(|_| Errno::DQUOT)?;
        unlink().inspect_err(|_| {
            self.left.fetch_add(1, Ordering::Relaxed);
        })
    }
}

/// Removes entries of a directory of `tree` recursively. Returns the number of removed entries. `failed` receives the
/// path in `tree` of each entry that could not be removed.
pub fn remove_entries<'n>(
    tree: &Tree,
    directory: &RelPath,
    names: impl Iterator<Item = &'n Name>,
    failed: impl FnMut(RelPath, io::Error),
) -> u64 {
    remove_entries_within(
        &RemovalBudget::new(u64::MAX),
        || false,
        tree,
        directory,
        names,
        failed,
    )
}

/// Removes entries like [`remove_entries`], until `should_stop` returns true or the budget is used up. The remaining
/// entries are kept. `should_stop` is called before each entry. When the budget is used up, `failed` receives the first
/// remaining entry with `EDQUOT`.
pub fn remove_entries_within<'n>(
    budget: &RemovalBudget,
    should_stop: impl Fn() -> bool,
    tree: &Tree,
    directory: &RelPath,
    names: impl Iterator<Item = &'n Name>,
    mut failed: impl FnMut(RelPath, io::Error),
) -> u64 {
    let allowed = RemovalContext {
        lease: tree.lease(),
        budget,
    };
    match tree.open_directory(directory) {
        Ok(opened) => remove_from(
            allowed,
            should_stop,
            directory,
            opened.as_fd(),
            names,
            failed,
        ),
        Err(error) => {
            failed(directory.clone(), error);
            0
        }
    }
}

/// Removes entries like [`remove_entries`], from the open directory `opened`. The path may lead to another directory by
/// now.
pub(crate) fn remove_entries_of<'n>(
    tree: &Tree,
    directory: &RelPath,
    opened: BorrowedFd<'_>,
    names: impl Iterator<Item = &'n Name>,
    failed: impl FnMut(RelPath, io::Error),
) -> u64 {
    let allowed = RemovalContext {
        lease: tree.lease(),
        budget: &RemovalBudget::new(u64::MAX),
    };
    remove_from(allowed, || false, directory, opened, names, failed)
}

/// Removes an entry of one of this program's own directories recursively. Ignores errors.
pub(crate) fn remove_best_effort(directory: &Arc<OwnedFd>, name: &Name) {
    let tree = Tree::at(Arc::clone(directory));
    let names = std::iter::once(name);
    let _best_effort = remove_entries(&tree, &RelPath::root(), names, |_path, _stays| {});
}

/// Removes an open directory recursively. Another directory may have taken its name in `parent`, so the directory
/// itself is removed by name only if it is empty. `failed` receives the error of each entry that could not be removed.
pub fn remove_open_directory(
    parent: BorrowedFd<'_>,
    name: &Name,
    directory: BorrowedFd<'_>,
    mut failed: impl FnMut(io::Error),
) {
    let opened = directory.try_clone_to_owned();
    let (opened, itself) = match opened.and_then(|fd| number_of(&fd).map(|itself| (fd, itself))) {
        Ok(opened) => opened,
        Err(error) => return failed(error),
    };
    let allowed = RemovalContext {
        lease: &Lease::constant(),
        budget: &RemovalBudget::new(u64::MAX),
    };
    let failed = |_below: &[Name], error: io::Error| failed(error);
    let mut removal = Removal::new(parent, name, allowed, failed);
    removal.push_level(name.clone(), opened, itself);
    removal.remove_entered(&|| false);
}

/// Removes entries of an open directory.
fn remove_from<'n>(
    allowed: RemovalContext<'_>,
    should_stop: impl Fn() -> bool,
    directory: &RelPath,
    opened: BorrowedFd<'_>,
    names: impl Iterator<Item = &'n Name>,
    mut failed: impl FnMut(RelPath, io::Error),
) -> u64 {
    // The mode of the target root is the user's choice, so it is not changed.
    if !directory.is_root()
        && let Err(error) = make_writable(allowed.lease, opened)
    {
        failed(directory.clone(), error.into());
        return 0;
    }
    let mut removed = 0;
    let is_used_up = Cell::new(false);
    let should_stop = || is_used_up.get() || should_stop();
    for name in names.take_while(|_| !is_used_up.get()) {
        let failed = |below: &[Name], error: io::Error| {
            let path = std::iter::once(name).chain(below);
            let path = path.fold(directory.clone(), |path, name| {
                path.join(name).unwrap_or(path)
            });
            let over = error.kind() == io::ErrorKind::QuotaExceeded && allowed.budget.left() == 0;
            is_used_up.set(is_used_up.get() || over);
            failed(path, error);
        };
        removed += Removal::new(opened, name, allowed, failed).run(&should_stop);
    }
    removed
}

/// The lease and budget under which entries are removed.
#[derive(Clone, Copy)]
struct RemovalContext<'a> {
    lease: &'a Lease,
    budget: &'a RemovalBudget,
}

impl RemovalContext<'_> {
    fn remove(self, directory: impl AsFd, name: &Name, flags: AtFlags) -> Result<(), Errno> {
        self.budget
            .remove(|| remove(self.lease.permit()?, directory, name, flags))
    }
}

/// The recursive removal of one entry.
struct Removal<'a, F> {
    top: BorrowedFd<'a>,
    name: &'a Name,
    /// The directories from the entry down to the directory that is being emptied.
    levels: Vec<RemovalLevel>,
    /// The descriptor of the last of these directories.
    here: Option<OwnedFd>,
    entered: u64,
    /// Retained entries, identified by the number of their directory and their name.
    retained: HashOnlySet,
    removed: u64,
    allowed: RemovalContext<'a>,
    failed: F,
}

struct RemovalLevel {
    name: Name,
    /// The sequence number of this directory among all directories that were entered.
    number: u64,
    itself: FileNumber,
    /// Subdirectories that have not been entered yet.
    directories: Vec<Name>,
    /// Whether the directory may contain entries that have not been read yet.
    is_unread: bool,
    /// Whether an entry was removed since the program began to read the directory.
    has_shrunk: bool,
    /// A hidden entry, if any, that is kept because it may belong to a running transfer.
    hidden: Option<Name>,
    /// Whether an entry below this directory was kept. The error of that entry has been reported.
    has_retained: bool,
}

/// Whether to continue reading a directory.
enum ListingStep {
    Continue,
    Stop,
}

impl<'a, F: FnMut(&[Name], io::Error)> Removal<'a, F> {
    fn new(top: BorrowedFd<'a>, name: &'a Name, allowed: RemovalContext<'a>, failed: F) -> Self {
        Self {
            top,
            name,
            levels: Vec::new(),
            here: None,
            entered: 0,
            retained: HashOnlySet::default(),
            removed: 0,
            allowed,
            failed,
        }
    }

    fn run(mut self, should_stop: &impl Fn() -> bool) -> u64 {
        match self.allowed.remove(self.top, self.name, AtFlags::empty()) {
            Ok(()) => return 1,
            Err(Errno::NOENT) => return 0,
            Err(Errno::ISDIR | Errno::PERM) if is_directory(self.top, self.name) => {}
            Err(error) => {
                (self.failed)(&[], error.into());
                return 0;
            }
        }
        self.enter(self.name.clone());
        self.remove_entered(should_stop)
    }

    /// Removes the entered directories recursively.
    fn remove_entered(mut self, should_stop: &impl Fn() -> bool) -> u64 {
        while let Some(level) = self.levels.last_mut()
            && !should_stop()
        {
            match level.directories.pop() {
                Some(name) => self.enter(name),
                None if level.is_unread && self.retained.len() < RETAINED_MAX => {
                    self.read(should_stop)
                }
                None => self.leave(should_stop),
            }
        }
        self.removed
    }

    fn enter(&mut self, name: Name) {
        let parent = self.here.as_ref().map_or(self.top, OwnedFd::as_fd);
        let opened = open_for_removal(self.allowed.lease, parent, &name);
        match opened.and_then(|fd| number_of(&fd).map(|itself| (fd, itself))) {
            Ok((directory, itself)) => self.push_level(name, directory, itself),
            Err(error) => self.report_failure(Some(&name), error),
        }
    }

    /// Adds an opened directory, which is emptied next.
    fn push_level(&mut self, name: Name, directory: OwnedFd, itself: FileNumber) {
        let above = self.levels.len().checked_sub(LISTED_MAX);
        if let Some(above) = above.and_then(|depth| self.levels.get_mut(depth)) {
            above.is_unread |= !above.directories.is_empty();
            above.directories = Vec::new();
        }
        self.entered += 1;
        self.here = Some(directory);
        self.levels.push(RemovalLevel {
            name,
            number: self.entered,
            itself,
            directories: Vec::new(),
            is_unread: true,
            has_shrunk: false,
            hidden: None,
            has_retained: false,
        });
    }

    /// Removes the entries of the deepest directory except subdirectories, and stores the names of the first
    /// subdirectories.
    fn read(&mut self, should_stop: &impl Fn() -> bool) {
        if let Some(level) = self.levels.last_mut() {
            (level.is_unread, level.has_shrunk) = (false, false);
        }
        if let Err(error) = self.read_entries(should_stop) {
            self.report_failure(None, error);
        }
    }

    fn read_entries(&mut self, should_stop: &impl Fn() -> bool) -> io::Result<()> {
        let Some(here) = &self.here else {
            return Ok(());
        };
        for entry in list_directory(here)? {
            if should_stop() || matches!(self.process_entry(&entry?)?, ListingStep::Stop) {
                break;
            }
        }
        Ok(())
    }

    fn process_entry(&mut self, entry: &DirEntry) -> io::Result<ListingStep> {
        let Some(here) = &self.here else {
            return Ok(ListingStep::Stop);
        };
        let bytes = entry.file_name().to_bytes();
        if matches!(bytes, b"." | b"..") {
            return Ok(ListingStep::Continue);
        }
        let name = Name::from_bytes(bytes).map_err(|_| Errno::NAMETOOLONG)?;
        // A hidden entry in a hidden directory belongs to the same transfer as that directory and is removed with it.
        let mut above = self.levels.iter().map(|level| &level.name);
        if is_hidden(bytes)
            && !above.any(|name| is_hidden(name.as_bytes()))
            && !is_leftover(here.as_fd(), bytes)
        {
            let Some(level) = self.levels.last_mut() else {
                return Ok(ListingStep::Stop);
            };
            level.hidden = Some(name);
            return Ok(ListingStep::Continue);
        }
        let Some(level) = self.levels.last_mut() else {
            return Ok(ListingStep::Stop);
        };
        if self.retained.contains(&(level.number, &name)) {
            return Ok(ListingStep::Continue);
        }
        let is_directory = match entry.file_type() {
            FileType::Unknown => is_directory(here.as_fd(), &name),
            known => known == FileType::Directory,
        };
        if is_directory {
            level.directories.push(name);
            level.is_unread = level.directories.len() == NAMES_MAX;
            return Ok(if level.is_unread {
                ListingStep::Stop
            } else {
                ListingStep::Continue
            });
        }
        match self.allowed.remove(here, &name, AtFlags::empty()) {
            Ok(()) => {
                level.has_shrunk = true;
                self.removed += 1;
            }
            // The entry is listed but does not exist. A file system may list it again, so it must not cause another
            // read of the directory.
            Err(Errno::NOENT) => {}
            Err(error) => self.report_failure(Some(&name), error.into()),
        }
        Ok(ListingStep::Continue)
    }

    /// Removes the deepest directory, which should be empty. Otherwise reads the directory again, unless no more
    /// entries can be removed.
    fn leave(&mut self, should_stop: &impl Fn() -> bool) {
        let above = match self.above() {
            Ok(above) => above,
            Err(error) => {
                // Without its parent, the removal cannot continue.
                self.report_failure(None, error);
                return self.levels.clear();
            }
        };
        let Some(level) = self.levels.last() else {
            return;
        };
        let parent = above.as_ref().map_or(self.top, OwnedFd::as_fd);
        let gone = self.allowed.remove(parent, &level.name, AtFlags::REMOVEDIR);
        let is_filled = matches!(gone, Err(Errno::NOTEMPTY | Errno::EXIST));
        if is_filled && level.has_shrunk && !level.has_retained && level.hidden.is_none() {
            return self.read(should_stop);
        }
        if is_filled && !level.has_retained && level.hidden.is_some() {
            let hidden = level.hidden.clone();
            self.report_failure(hidden.as_ref(), Errno::NOTEMPTY.into());
        }
        self.here = above;
        let Some(level) = self.levels.pop() else {
            return;
        };
        match gone {
            Ok(()) => {
                self.removed += 1;
                self.levels
                    .last_mut()
                    .into_iter()
                    .for_each(|above| above.has_shrunk = true);
            }
            Err(_) if level.has_retained => self.note_retained(&level.name),
            Err(Errno::NOENT) => {}
            Err(error) => self.report_failure(Some(&level.name), error.into()),
        }
    }

    /// Opens the parent of the deepest directory. Returns `None` if that parent is the directory from which entries are
    /// removed.
    fn above(&self) -> io::Result<Option<OwnedFd>> {
        let [.., above, _] = &self.levels[..] else {
            return Ok(None);
        };
        let above = self
            .here
            .as_ref()
            .map(|here| open_parent(here, above.itself));
        above.transpose()
    }

    /// Records that an entry of the deepest directory is kept, so that all directories above it are kept too.
    fn note_retained(&mut self, name: &Name) {
        self.levels
            .iter_mut()
            .for_each(|level| level.has_retained = true);
        if let Some(level) = self.levels.last()
            && self.retained.len() < RETAINED_MAX
        {
            self.retained.insert(&(level.number, name));
        }
    }

    /// Reports that an entry of the deepest directory, or the directory itself if `name` is `None`, could not be
    /// removed.
    fn report_failure(&mut self, name: Option<&Name>, error: io::Error) {
        match name {
            Some(name) => self.note_retained(name),
            None => self
                .levels
                .iter_mut()
                .for_each(|level| level.has_retained = true),
        }
        let path = self
            .levels
            .iter()
            .map(|level| &level.name)
            .chain(name)
            .skip(1);
        let path: Vec<_> = path.cloned().collect();
        (self.failed)(&path, error);
    }
}

/// Opens a directory to remove its contents. Changes its mode if the mode denies its owner reading or writing.
fn open_for_removal(lease: &Lease, parent: BorrowedFd<'_>, name: &Name) -> io::Result<OwnedFd> {
    match open_at(parent, name, DIRECTORY) {
        Ok(directory) => {
            refuse_mount(parent, directory.as_fd())?;
            make_writable(lease, directory.as_fd())?;
            Ok(directory)
        }
        Err(Errno::ACCESS) => {
            let held = EntryHandle::hold(parent, name, FileType::Directory)?;
            refuse_mount(parent, held.as_fd())?;
            Ok(held.open(
                &lease.permit()?,
                Mode::RWXU,
                OFlags::RDONLY | OFlags::DIRECTORY,
            )?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns an error if a directory is a mount point or is on another file system than its parent.
///
/// # Errors
/// Returns `EXDEV` or the system's error.
pub fn refuse_mount(parent: BorrowedFd<'_>, directory: BorrowedFd<'_>) -> io::Result<()> {
    let is_apart = rustix::fs::fstat(parent)?.st_dev != rustix::fs::fstat(directory)?.st_dev;
    // A bind mount can have the same device number as its parent. Kernels before 5.8 do not report mount roots.
    let known = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
    let is_mounted =
        known.is_ok_and(|known| known.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    if is_apart || is_mounted {
        Err(Errno::XDEV.into())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::hidden::tests::of_a_dead_process;
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
        std::fs::set_permissions(home.path().join("tree/a"), PermissionsExt::from_mode(0o000))
            .unwrap();
        assert_eq!(
            remove(home.path(), &["tree", "file", "link", "not there"]),
            (7, vec![])
        );
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
        assert!(outside.path().join("precious").exists());
    }

    /// A directory and each of its entries count against the budget, and the first retained entry is reported.
    #[test]
    fn no_more_goes_than_the_budget_has() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("a/b")).unwrap();
        for file in ["a/b/1", "a/b/2", "a/3", "c", "d"] {
            std::fs::write(home.path().join(file), "x").unwrap();
        }
        let budget = RemovalBudget::new(4);
        let tree = Tree::open(home.path()).unwrap();
        let mut faults = Vec::new();
        let mut remove = |names: &[Name]| {
            let failed =
                |path: RelPath, error: io::Error| faults.push((path.to_string(), error.kind()));
            remove_entries_within(
                &budget,
                || false,
                &tree,
                &RelPath::root(),
                names.iter(),
                failed,
            )
        };
        assert_eq!(remove(&[name("not there"), name("c")]), 1);
        assert_eq!(remove(&[name("a"), name("d")]), 3);
        assert!(home.path().join("d").exists() && home.path().join("a").exists());
        assert!(
            matches!(&faults[..], [(_, io::ErrorKind::QuotaExceeded)]),
            "{faults:?}"
        );
    }

    /// A killed receiver leaves hidden files and staging directories, and perhaps no later transfer to that directory
    /// cleans them up.
    #[test]
    fn what_a_dead_process_has_left_goes_with_its_directory_and_what_a_live_one_has_does_not() {
        let home = tempfile::tempdir().unwrap();
        let dead_in = |directory: &std::path::Path, age: u64| {
            std::fs::create_dir_all(directory).unwrap();
            let opened = std::fs::File::open(directory).unwrap();
            directory.join(
                of_a_dead_process(opened.as_fd(), std::time::Duration::from_secs(age)).as_os_str(),
            )
        };
        std::fs::write(dead_in(&home.path().join("gone/a"), 0), "x").unwrap();
        let staging = dead_in(&home.path().join("gone/b"), 0);
        std::fs::create_dir(&staging).unwrap();
        std::fs::write(staging.join("file"), "x").unwrap();
        std::fs::write(staging.join(".zmove-of-its-maker"), "x").unwrap();
        assert_eq!(remove(home.path(), &["gone"]), (7, vec![]));
        // Two kinds of entries are kept: a copy of a hidden entry, which is ordinary data, and a lasting entry.
        let copied = dead_in(&home.path().join("elsewhere"), 3600);
        std::fs::create_dir(home.path().join("stays")).unwrap();
        for name in [copied.file_name().unwrap(), ".zmove-part-7".as_ref()] {
            let path = home.path().join("stays").join(name);
            std::fs::write(&path, "x").unwrap();
            let (removed, faults) = remove(home.path(), &["stays"]);
            assert_eq!(
                (removed, faults.len(), path.exists()),
                (0, 1, true),
                "{name:?}"
            );
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_tree_that_is_deeper_than_files_may_be_open_goes() {
        let home = tempfile::tempdir().unwrap();
        let mut fd = rustix::fs::open(home.path(), DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..3_000 {
            rustix::fs::mkdirat(&fd, "deep", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&fd, "beside", Mode::RWXU).unwrap();
            fd = open_at(&fd, "deep", DIRECTORY).unwrap();
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
            (
                1,
                vec![(
                    "a/b/.zmove-1-0".to_owned(),
                    io::ErrorKind::DirectoryNotEmpty
                )]
            )
        );
    }

    /// Three levels of directories have more entries than the maximum number of stored names.
    #[test]
    fn a_directory_of_which_not_all_names_are_kept_goes() {
        let home = tempfile::tempdir().unwrap();
        for number in 0..3 * NAMES_MAX {
            std::fs::create_dir_all(home.path().join(format!("a/{number}"))).unwrap();
            std::fs::create_dir_all(home.path().join(format!("a/7/b/c/{number}/d"))).unwrap();
            std::fs::write(home.path().join(format!("a/7/b/f{number}")), "x").unwrap();
        }
        let entries = 1 + 3 * NAMES_MAX + 2 + 2 * 3 * NAMES_MAX + 3 * NAMES_MAX;
        assert_eq!(remove(home.path(), &["a"]), (entries as u64, vec![]));
    }

    /// There are twice as many retained entries as stored names. Each is reported once, and all other entries are
    /// removed.
    #[test]
    fn what_stays_is_in_nobody_elses_way() {
        let home = tempfile::tempdir().unwrap();
        for number in 0..2 * NAMES_MAX {
            std::fs::create_dir_all(home.path().join(format!("a/stays{number}/.zmove-x"))).unwrap();
            std::fs::create_dir_all(home.path().join(format!("a/goes{number}"))).unwrap();
        }
        let (removed, mut faults) = remove(home.path(), &["a"]);
        assert_eq!(
            (removed, faults.len()),
            (2 * NAMES_MAX as u64, 2 * NAMES_MAX)
        );
        faults.sort();
        faults.dedup();
        assert_eq!(faults.len(), 2 * NAMES_MAX);
        assert_eq!(
            std::fs::read_dir(home.path().join("a")).unwrap().count(),
            2 * NAMES_MAX
        );
    }

    /// While the first directory is emptied, the names of the other directories are dropped. A second read finds them
    /// again.
    #[test]
    fn what_is_beside_deep_directories_that_stay_goes() {
        let home = tempfile::tempdir().unwrap();
        let deep = ["d"; LISTED_MAX + 1].join("/");
        for number in 0..20 {
            std::fs::create_dir_all(home.path().join(format!("a/stays{number}/{deep}/.zmove-x")))
                .unwrap();
            std::fs::create_dir_all(home.path().join(format!("a/goes{number}"))).unwrap();
        }
        let (removed, faults) = remove(home.path(), &["a"]);
        assert_eq!((removed, faults.len()), (20, 20));
    }

    #[test]
    fn few_directories_of_a_deep_tree_are_open() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        let deep = home.join(["d"; 300].join("/"));
        std::fs::create_dir_all(deep.join(".zmove-x")).unwrap();
        let tree = Tree::open(&home).unwrap();
        let mut open = 0;
        remove_entries(
            &tree,
            &RelPath::root(),
            std::iter::once(&name("d")),
            |_path, _stays| {
                let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
                let targets = descriptors.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
                open += targets.filter(|target| target.starts_with(&home)).count();
            },
        );
        // The upper limit includes a second descriptor of the directory from which the entry is removed.
        assert!((1..=2 + 3).contains(&open), "{open}");
    }

    /// A directory is moved out of the tree during its removal.
    #[test]
    fn a_directory_that_is_moved_leads_nowhere_else() {
        let (home, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(home.path().join("a/b/c/.zmove-x")).unwrap();
        std::fs::create_dir_all(outside.path().join("b")).unwrap();
        std::fs::create_dir_all(outside.path().join("precious")).unwrap();
        let tree = Tree::open(home.path()).unwrap();
        let mut faults = Vec::new();
        remove_entries(
            &tree,
            &RelPath::root(),
            std::iter::once(&name("a")),
            |path, error| {
                let _moved_once =
                    std::fs::rename(home.path().join("a/b"), outside.path().join("moved"));
                faults.push((path.to_string(), Errno::from_io_error(&error)));
            },
        );
        let told = [("a/b/c/.zmove-x", Errno::NOTEMPTY), ("a/b", Errno::STALE)];
        assert_eq!(
            faults,
            told.map(|(path, errno)| (path.to_owned(), Some(errno)))
        );
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 3);
    }
}
