//! Resolves the target that a client requests to the directory in which its entries are stored.
//!
//! **Invariant:** if the client may only write below roots, this module creates and opens directories only below these
//! roots. It opens them from the root's descriptor without following links.
//!
//! If access to a root is denied although its mode allows it, the root was missing when the daemon was confined at
//! startup. In that case, the refusal says that the daemon must be restarted.

mod blocking;
pub(crate) mod compared;
mod dead_mount;
pub(crate) mod directories;
pub(crate) mod file_systems;
pub(crate) mod links;
pub(crate) mod metadata_policy;
pub(crate) mod non_regular;
pub(crate) mod open_directories;
pub(crate) mod replacement;
pub(crate) mod tree;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Access, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use zmove_disk::{
    DirectoryModes, Lease, RETRY_INTERVAL, Roots, Tree, VISIBILITY_TIMEOUT, is_file_system_gone,
    is_listable, is_same_file, is_shared_job_name, list_directory, list_shared_jobs, open_at,
    stat_at,
};
use zmove_types::{Beginning, Escaped, MetadataKinds, Name, RelPath};
use zmove_wire::{Extraneous, Open, Refusal, RefusalCode, TargetShape, TargetState};

use crate::shared_job::other_jobs::{FoundJob, OtherJobs, ignore_denied};
use crate::shared_job::session::{SharedJobSession, not_in_progress};
use crate::store::failure::entry_operation;

/// The directories of the file system to which a client may write.
#[derive(Clone, Debug)]
pub enum WriteAccess {
    /// The client may write wherever this process may write. Used if the target is local to a process of the user.
    Anywhere,
    /// The client may write below these roots. A relative target is resolved below the first root.
    Beneath(Roots),
    /// The client may not write, because its key has only read access.
    ReadOnly,
}

/// The directory in which entries are stored.
#[derive(Debug)]
pub(crate) struct Target {
    /// The directory to which paths are relative.
    pub(crate) tree: Tree,
    /// The name of a single entry at the source, and its different name at the target.
    pub(crate) rename: Option<(Name, Name)>,
    /// Whether any of the entries to be written already exists.
    pub(crate) state: TargetState,
    /// Whether this session has created the directory with access for its owner only. The final mode is not known yet.
    pub(crate) is_closed: bool,
    /// The previous mode of the directory, if this session has changed it to give the owner access. The final mode is
    /// not known yet.
    pub(crate) mode_before: Option<Mode>,
    /// The session's state in a shared job, if it belongs to one.
    pub(crate) shared_job: Option<SharedJobSession>,
}

/// The location of a target, whose directory need not exist yet.
struct TargetLocation<'a> {
    /// The tree that contains the target. `None` only if the target is local and its parent does not exist.
    tree: Option<Tree>,
    /// The path of the directory in which entries are stored, relative to the tree.
    path: RelPath,
    /// The name of a single entry at the source and at the target. `None` if there are several entries, or if the entry
    /// is stored inside an existing directory.
    rename: Option<(Name, Name)>,
    /// The target as the client requested it.
    shown: &'a Path,
}

const TARGET_BYTES_MAX: usize = 4096;

impl<'a> TargetLocation<'a> {
    /// Finds the location. Creates missing parent directories if `create_under` is a lease.
    fn of(
        open: &'a Open,
        access: &WriteAccess,
        create_under: Option<&Lease>,
    ) -> Result<Self, Refusal> {
        if open.target.len() > TARGET_BYTES_MAX || open.target.contains(&0) {
            let text = "the target path is too long or contains a NUL byte";
            return Err(Refusal::new(RefusalCode::Protocol, text));
        }
        let (tree, path) = locate(&open.target, access, create_under)?;
        if path.components().any(is_shared_job_name) {
            let text = "a directory .zmove-job-… belongs to a job of several receivers, and no other transfer may \
                write there";
            return Err(Refusal::new(RefusalCode::Denied, text));
        }
        let shown = Path::new(OsStr::from_bytes(&open.target));
        if let TargetShape::Single { name } = &open.shape
            && let Some((parent, own_name)) = path.split()
        {
            let is_directory = match tree.as_ref().map(|tree| tree.open_directory(&path)) {
                // The target exists, but its file system is dead, so nothing can be stored in it.
                Some(Err(error)) if is_file_system_gone(&error) => {
                    return Err(refusal("open directory", shown, &error));
                }
                opened => opened.is_some_and(|opened| opened.is_ok()),
            };
            if !open.target.ends_with(b"/") && !is_directory {
                return Ok(Self {
                    tree,
                    path: parent,
                    rename: Some((name.clone(), own_name)),
                    shown,
                });
            }
        }
        Ok(Self {
            tree,
            path,
            rename: None,
            shown,
        })
    }

    /// Returns the refusal for a directory that cannot be created or opened. For a single entry under its own name, the
    /// refusal states the path of the entry and not of its directory.
    fn entry_refusal(&self, operation: &str, error: &io::Error) -> Refusal {
        let way = || {
            let own_name = self.rename.as_ref().map(|(_, own_name)| own_name);
            let renamed = own_name.and_then(|own_name| self.path.join(own_name).ok());
            blocking::blocking_entry(
                self.tree.as_ref()?,
                renamed.as_ref().unwrap_or(&self.path),
                self.shown,
            )
        };
        entry_refusal(operation, self.shown, error, way)
    }
}

impl Target {
    /// Opens the target and creates missing directories. If the session joins a running job, creates no directory and
    /// changes no mode, because the target may already have its final mode.
    pub(crate) fn resolve(
        open: &Open,
        access: &WriteAccess,
        lease: &Lease,
    ) -> Result<Self, Refusal> {
        Self::make(open, access, lease).map_err(|refusal| dead_mount::named(refusal, open, access))
    }

    fn make(open: &Open, access: &WriteAccess, lease: &Lease) -> Result<Self, Refusal> {
        if let Some(part) = open
            .shared_job
            .as_ref()
            .filter(|part| part.beginning == Beginning::UnderWay)
        {
            let began = Instant::now();
            loop {
                match Self::find(open, access, lease)? {
                    Some(found) => return Ok(found),
                    None if began.elapsed() >= VISIBILITY_TIMEOUT => {
                        return Err(not_in_progress(part.job));
                    }
                    None => std::thread::sleep(RETRY_INTERVAL),
                }
            }
        }
        let place = TargetLocation::of(open, access, Some(lease))?;
        let tree = place.tree.clone().expect("it was made");
        let tree = &tree.under(lease.clone());
        let path = &place.path;
        let tops = names_at_top(&open.shape, place.rename.as_ref());
        // The source sends a mode for the target only if the entries are its contents and modes are preserved.
        // Otherwise, the target has the usual mode from the start.
        let gets_mode = tops.is_empty() && open.keeping.kinds.has_any(MetadataKinds::MODE);
        let closed = if gets_mode {
            make_closed(tree, path)
        } else {
            Ok(false)
        };
        let made = closed.and_then(|is_closed| {
            let (directory, mode_before) = match (path.parent(), path.file_name()) {
                // If the mode denies access to the owner, it is changed now. The final mode is set at the end.
                (Some(parent), Some(name)) if gets_mode => tree
                    .with_root(tree.create_directory(&parent)?)
                    .open_with_access(&RelPath::from(&name))?,
                _ if gets_mode => tree.open_with_access(path)?,
                _ => (tree.create_directory(path)?, None),
            };
            Ok((is_closed, directory, mode_before))
        });
        let (is_closed, fd, mode_before) = made.map_err(|error| {
            let operation = entry_operation(tree, path, &error).to_string();
            place.entry_refusal(&operation, &error)
        })?;
        check_listable(open, &fd, &tops, place.shown)?;
        let state =
            state_of(&fd, &tops).map_err(|error| refusal("read directory", place.shown, &error))?;
        if state == TargetState::Empty {
            // This check finds out before any data is sent whether entries can be created in this directory. It uses
            // effective rights, which include capabilities.
            let may_write = rustix::fs::accessat(
                &fd,
                ".",
                Access::WRITE_OK | Access::EXEC_OK,
                AtFlags::EACCESS,
            );
            may_write
                .map_err(|errno| refusal("write into directory", place.shown, &errno.into()))?;
        }
        Ok(Self {
            tree: tree.with_root(fd),
            rename: place.rename,
            state,
            is_closed,
            mode_before,
            shared_job: None,
        })
    }

    /// [Enters](OtherJobs::enter) the target's directory: removes the entries of dead processes, and waits for jobs of
    /// other runs.
    pub(crate) fn enter(
        &self,
        open: &Open,
        other_jobs: &OtherJobs,
    ) -> Result<Vec<FoundJob>, Refusal> {
        let root = RelPath::root();
        let directory = self.tree.open_directory(&root);
        let entered =
            directory.and_then(|directory| other_jobs.enter(&self.tree, &root, &directory));
        let shown = Path::new(OsStr::from_bytes(&open.target));
        entered.map_err(|error| refusal("check for other pushes at", shown, &error))
    }

    /// Opens an existing target without changing it.
    fn find(open: &Open, access: &WriteAccess, lease: &Lease) -> Result<Option<Self>, Refusal> {
        let place = TargetLocation::of(open, access, None)?;
        let Some(tree) = &place.tree else {
            return Ok(None);
        };
        let fd = match tree.open_directory(&place.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|error| place.entry_refusal("open directory", &error))?,
        };
        let tops = names_at_top(&open.shape, place.rename.as_ref());
        check_listable(open, &fd, &tops, place.shown)?;
        let state =
            state_of(&fd, &tops).map_err(|error| refusal("read directory", place.shown, &error))?;
        Ok(Some(Self {
            tree: Tree::at(fd).under(lease.clone()),
            rename: place.rename,
            state,
            is_closed: false,
            mode_before: None,
            shared_job: None,
        }))
    }
}

/// Waits until the states of all jobs of other runs above the target are known, up to the root of the grant. Removes
/// the remains of dead jobs.
pub(crate) fn wait_for_jobs_above(
    open: &Open,
    access: &WriteAccess,
    other_jobs: &OtherJobs,
) -> Result<(), Refusal> {
    let wait = || {
        let place = TargetLocation::of(open, access, None)?;
        jobs_above(&place, access)
            .and_then(|found| other_jobs.wait_for(found))
            .map(|dead| other_jobs.end(dead))
            .map_err(|error| refusal("check for other pushes at", place.shown, &error))
    };
    wait().map_err(|refusal| dead_mount::named(refusal, open, access))
}

/// Returns the jobs above a location, each with the directory that contains it.
fn jobs_above(place: &TargetLocation<'_>, access: &WriteAccess) -> io::Result<Vec<FoundJob>> {
    let mut found = Vec::new();
    for directory in directories_of(place, access)? {
        let directory = directory?;
        let jobs = ignore_denied(list_shared_jobs(directory.as_fd()))?;
        found.extend(jobs.into_iter().map(|job| (Arc::clone(&directory), job)));
    }
    Ok(found)
}

/// Returns the existing directories above a location.
fn directories_of(
    place: &TargetLocation<'_>,
    access: &WriteAccess,
) -> io::Result<impl Iterator<Item = io::Result<Arc<OwnedFd>>>> {
    let (tree, nearest) = match &place.tree {
        Some(tree) => (tree.clone(), place.path.parent()),
        None => (nearest(place.shown)?, Some(RelPath::root())),
    };
    let above_root = match access {
        WriteAccess::Anywhere => above(&tree),
        WriteAccess::Beneath(_) | WriteAccess::ReadOnly => Vec::new(),
    };
    let paths = std::iter::successors(nearest, RelPath::parent);
    let there = paths.filter_map(move |path| match tree.open_directory(&path) {
        Err(error) if is_unlistable(&error) => None,
        opened => Some(opened),
    });
    Ok(there.chain(above_root.into_iter().map(Ok)))
}

/// Returns whether an error means that the directory does not exist or cannot be listed.
fn is_unlistable(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | NotADirectory | PermissionDenied)
        || Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Returns the tree of the nearest existing directory above a path.
fn nearest(path: &Path) -> io::Result<Tree> {
    let mut last = Err(io::ErrorKind::NotFound.into());
    for above in path.ancestors().skip(1) {
        let above = if above.as_os_str().is_empty() {
            Path::new(".")
        } else {
            above
        };
        last = Tree::open(above);
        match &last {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => break,
        }
    }
    last
}

/// Returns the directories above a tree, up to the first one that cannot be opened.
fn above(tree: &Tree) -> Vec<Arc<OwnedFd>> {
    let up = |below: BorrowedFd<'_>| {
        let parent = open_at(below, "..", OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
        (!is_same_file(&parent, below)).then(|| Arc::new(parent))
    };
    let directories = std::iter::successors(up(tree.fd()), |below| up(below.as_fd()));
    directories.take(ABOVE_MAX).collect()
}

/// Maximum number of directories above a target in which to look for jobs.
const ABOVE_MAX: usize = 64;

/// A target that is only inspected. Missing directories are not created.
#[derive(Debug, Default)]
pub(crate) struct InspectedTarget {
    /// The directory to which paths are relative, if it exists.
    pub(crate) tree: Option<Tree>,
    /// The name of a single entry at the source, and the different name that a transfer would give it.
    pub(crate) rename: Option<(Name, Name)>,
    /// Whether the target exists but its mode denies access to its owner. A transfer would change the mode, but an
    /// inspection does not, so it cannot read the contents.
    pub(crate) is_closed: bool,
}

impl InspectedTarget {
    /// Finds the target like [`Target::resolve`], but creates and changes nothing.
    pub(crate) fn inspect(open: &Open, access: &WriteAccess) -> Result<Self, Refusal> {
        Self::find(open, access).map_err(|refusal| dead_mount::named(refusal, open, access))
    }

    fn find(open: &Open, access: &WriteAccess) -> Result<Self, Refusal> {
        let place = TargetLocation::of(open, access, None)?;
        let contents = matches!(&open.shape, TargetShape::Directory { tops } if tops.is_empty());
        let look = |tree: &Tree| match (place.path.parent(), place.path.file_name()) {
            (Some(parent), Some(name)) if contents => {
                Tree::at(tree.open_directory(&parent)?).open_for_inspection(&RelPath::from(&name))
            }
            _ => tree.open_directory(&place.path).map(Some),
        };
        let found = match place.tree.as_ref().map(look).transpose() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // The mode of the target denies access to its owner. A transfer that does not preserve modes would not
            // change it, so the target is refused.
            Ok(Some(None)) if !open.keeping.kinds.has_any(MetadataKinds::MODE) => {
                return Err(place.entry_refusal("open directory", &Errno::ACCESS.into()));
            }
            found => found.map_err(|error| place.entry_refusal("open directory", &error))?,
        };
        Ok(Self {
            is_closed: matches!(found, Some(None)),
            tree: found.flatten().map(Tree::at),
            rename: place.rename,
        })
    }
}

/// Creates a directory to which only its owner has access (mode 0700). Returns `false` if an entry with that name
/// exists. Creates missing parent directories with the usual permissions.
fn make_closed(tree: &Tree, path: &RelPath) -> io::Result<bool> {
    let Some((parent, name)) = path.split() else {
        return Ok(false);
    };
    if tree.open_directory(path).is_ok() {
        return Ok(false);
    }
    let parent = tree.create_directory(&parent)?;
    Tree::create_new(
        tree.lease(),
        parent.as_fd(),
        &name,
        DirectoryModes::SetAtTheEnd,
    )
}

/// Returns the name of an entry at the target. Only a single entry at the top can have another name there.
pub(crate) fn renamed<'a>(
    rename: Option<&'a (Name, Name)>,
    directory: &RelPath,
    name: &'a Name,
) -> &'a Name {
    match rename {
        Some((from, to)) if directory.is_root() && name == from => to,
        _ => name,
    }
}

/// Returns the tree that contains the target, and the target's path in it.
fn locate(
    target: &[u8],
    access: &WriteAccess,
    create_under: Option<&Lease>,
) -> Result<(Option<Tree>, RelPath), Refusal> {
    let roots = match access {
        WriteAccess::ReadOnly => {
            let text = "this key may not write here. On that host, run: zmove allow KEY --name NAME --root DIR \
                --write (KEY is the output of 'zmove key show' here)";
            return Err(Refusal::new(RefusalCode::Denied, text));
        }
        WriteAccess::Anywhere => return locate_own(target, create_under),
        WriteAccess::Beneath(roots) => roots,
    };
    let (root, rest) = choose_root(target, roots.paths(), "write to")?;
    Ok((Some(open_root(roots, root)?), clean(rest)?))
}

fn open_root(roots: &Roots, root: &Path) -> Result<Tree, Refusal> {
    roots.open(root).map_err(|error| {
        // A root that does not answer must not be accessed again.
        let is_denied = Errno::from_io_error(&error) == Some(Errno::ACCESS);
        let remedy =
            if is_denied && rustix::fs::access(root, Access::READ_OK | Access::EXEC_OK).is_ok() {
                CONFINED
            } else {
                remedy(&error)
            };
        refusal_with("open root", root, &error, remedy)
    })
}

/// The remedy if access is denied although the mode of the root allows it. In that case, a kernel rule (confinement)
/// denies the access.
const CONFINED: &str = " (if the receiver is confined to the roots that it had at startup, by 'zmove serve --confine' \
                        or confine in zmove.toml, restart it to add a root)";

/// Locates a target that the user names in the same process. Symbolic links and `..` in the path are followed, as in
/// any command of the user.
fn locate_own(
    target: &[u8],
    create_under: Option<&Lease>,
) -> Result<(Option<Tree>, RelPath), Refusal> {
    let path = Path::new(OsStr::from_bytes(if target.is_empty() {
        b"."
    } else {
        target
    }));
    let own_error = match Tree::open(path) {
        Ok(tree) => return Ok((Some(tree), RelPath::root())),
        Err(error) if is_file_system_gone(&error) => {
            return Err(refusal("open directory", path, &error));
        }
        Err(error) => error,
    };
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| {
        Refusal::new(
            RefusalCode::Target,
            format!("no such target: '{}'", Escaped::path(&path)),
        )
    })?;
    let way = || blocking::own_blocking_entry(path);
    if let Some(lease) = create_under {
        let made = Tree::create_with_parents(lease, parent);
        made.map_err(|error| entry_refusal("make directory", parent, &error, way))?;
    }
    let tree = match Tree::open(parent) {
        Err(error) if create_under.is_none() && error.kind() == io::ErrorKind::NotFound => None,
        // The target exists, so the error of opening it is reported instead of the error of opening its parent.
        Err(_) if path.is_dir() => return Err(refusal("open directory", path, &own_error)),
        opened => {
            Some(opened.map_err(|error| entry_refusal("open directory", parent, &error, way))?)
        }
    };
    Ok((tree, clean(name.as_bytes())?))
}

/// Returns the root that contains a path, and the path relative to that root. A relative path is resolved below the
/// first root. `may` is the operation for the text of a refusal, such as "write to".
///
/// # Errors
/// Returns a refusal if no root contains the path.
pub fn choose_root<'a>(
    asked: &'a [u8],
    roots: &'a [PathBuf],
    may: &str,
) -> Result<(&'a Path, &'a [u8]), Refusal> {
    if !asked.starts_with(b"/") {
        let first = roots
            .first()
            .ok_or_else(|| Refusal::new(RefusalCode::Denied, "this key has no roots"))?;
        return Ok((first, asked));
    }
    let path = Path::new(OsStr::from_bytes(asked));
    let longest = roots
        .iter()
        .filter(|root| path.starts_with(root))
        .max_by_key(|root| root.as_os_str().len());
    longest
        .and_then(|root| {
            Some((
                root.as_path(),
                path.strip_prefix(root).ok()?.as_os_str().as_bytes(),
            ))
        })
        .ok_or_else(|| {
            let allowed: Vec<_> = roots
                .iter()
                .map(|root| format!("'{}'", Escaped::path(&root)))
                .collect();
            let text = format!(
                "'{}' lies in none of the roots that this key may {may}: {}",
                Escaped::path(&path),
                allowed.join(", ")
            );
            Refusal::new(RefusalCode::Denied, text)
        })
}

/// Returns a path without repeated slashes and `.` components.
#[must_use]
pub fn without_dots(path: &[u8]) -> Vec<u8> {
    let parts: Vec<_> = path
        .split(|&byte| byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."))
        .collect();
    parts.join(&b'/')
}

/// Returns a path without repeated slashes and `.` components. Refuses a path that contains `..`.
fn clean(path: &[u8]) -> Result<RelPath, Refusal> {
    RelPath::from_bytes(&without_dots(path)).map_err(|error| {
        let shown = Path::new(OsStr::from_bytes(path));
        Refusal::new(
            RefusalCode::Target,
            format!("target '{}': {error}", Escaped::path(&shown)),
        )
    })
}

/// Returns the names of the entries that are stored directly in the target directory. Returns no names if the entries
/// are the contents of the target.
fn names_at_top<'a>(shape: &'a TargetShape, rename: Option<&'a (Name, Name)>) -> Vec<&'a Name> {
    match (shape, rename) {
        (TargetShape::Directory { tops }, _) => tops.iter().collect(),
        (TargetShape::Single { .. }, Some((_, own_name))) => vec![own_name],
        (TargetShape::Single { name }, None) => vec![name],
    }
}

/// Refuses a drop box as the target of a transfer that must list the target. Other transfers look up each name.
fn check_listable(
    open: &Open,
    directory: &impl AsFd,
    tops: &[&Name],
    shown: &Path,
) -> Result<(), Refusal> {
    let mirrors = open.extraneous == Extraneous::Goes && tops.is_empty();
    if is_listable(directory) || !mirrors && open.shared_job.is_none() {
        return Ok(());
    }
    let mut refusal = refusal("list directory", shown, &Errno::ACCESS.into());
    let why = " (a push with --delete, and a push to several receivers, must list its target)";
    refusal.text.push_str(why);
    Err(refusal)
}

/// Returns `Empty` if none of the entries in `tops` exists or, if `tops` is empty, if the directory has no entries. A
/// drop box cannot be listed, so it counts as populated.
fn state_of(directory: &impl AsFd, tops: &[&Name]) -> io::Result<TargetState> {
    let found = if tops.is_empty() {
        !is_listable(directory) || holds_anything(directory)?
    } else {
        tops.iter().any(|top| stat_at(directory, top).is_ok())
    };
    Ok(if found {
        TargetState::Populated
    } else {
        TargetState::Empty
    })
}

fn holds_anything(directory: &impl AsFd) -> io::Result<bool> {
    for entry in list_directory(directory)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the refusal for a directory that cannot be created or opened. If an entry is in the way, `way` returns a
/// description of it.
fn entry_refusal(
    operation: &str,
    path: &Path,
    error: &io::Error,
    way: impl FnOnce() -> Option<String>,
) -> Refusal {
    let is_blocked = matches!(
        Errno::from_io_error(error),
        Some(Errno::NOTDIR | Errno::EXIST | Errno::LOOP)
    );
    match is_blocked.then(way).flatten() {
        Some(text) => Refusal::new(RefusalCode::Target, text),
        None => refusal(operation, path, error),
    }
}

fn refusal(operation: &str, path: &Path, error: &io::Error) -> Refusal {
    refusal_with(operation, path, error, remedy(error))
}

fn refusal_with(operation: &str, path: &Path, error: &io::Error, remedy: &str) -> Refusal {
    let path = Escaped::path(&path);
    let text = match Errno::from_io_error(error) {
        Some(Errno::NOTDIR) => {
            format!("target '{path}' is not a directory (symbolic links are not followed)")
        }
        Some(Errno::LOOP) => {
            format!("target '{path}' leads through a symbolic link, which is not followed")
        }
        _ => format!("{operation} '{path}': {error}{remedy}"),
    };
    Refusal::new(RefusalCode::of_target(error), text)
}

/// Returns the remedy for an error, for the text of a refusal.
fn remedy(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS | Errno::PERM) => {
            " (give the receiver's user the permission, or choose another target)"
        }
        Some(Errno::ROFS) => " (mount the file system writable, or choose another target)",
        Some(Errno::NAMETOOLONG) => " (choose a shorter name)",
        Some(Errno::NOSPC | Errno::DQUOT) => " (free some space, and run the same command again)",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
