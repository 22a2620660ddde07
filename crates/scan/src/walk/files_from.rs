//! Visits listed paths (`--files-from`) instead of walking a tree.
//!
//! One job reads the list. It groups the paths of each read by directory and queues a job for each group. That job
//! opens the directory once and looks up the names. The first job that opens a directory emits the directory and its
//! parents. It holds a lock until these items are in the queue, so a directory is always emitted before any entry in
//! it.
//!
//! A path that is listed twice is sent once. To detect this, the scan stores a fingerprint of each path and each
//! directory, with random keys. A fingerprint takes at most 60 bytes, including the growth of its table.
//!
//! **Invariant:** a directory is emitted once, and before any entry in it. Any other path is emitted once, however
//! often it is listed.

use std::collections::HashSet;
use std::ffi::CString;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use zmove_types::{Lock, Name, RelPath};

use crate::directory::{Directory, SourceRoot};
use crate::entry::{Entry, EntryKind};
use crate::error::{ListFault, Operation, ScanError};
use crate::selection::PathKind;
use crate::sources::path_list::PathList;

use super::Worker;
use super::names::NameList;

/// The state shared by all jobs of one list.
#[derive(Debug)]
struct ListedTree {
    root: Arc<SourceRoot>,
    /// The directories that have been emitted. The lock is held while a directory is emitted. If another job finds the
    /// directory here, the directory is already in the queue, ahead of that job's items.
    emitted: Lock<Fingerprints>,
}

/// A set of paths, stored as unpredictable 128-bit fingerprints.
#[derive(Debug, Default)]
struct Fingerprints {
    keys: [RandomState; 2],
    seen: HashSet<[u64; 2]>,
}

/// Listed paths of one directory.
#[derive(Debug)]
struct ListedGroup {
    parent: RelPath,
    names: Vec<Name>,
}

/// The reason why the listed paths of a directory are not visited.
enum SkipReason {
    Excluded,
    Fault(ListFault),
}

impl Worker<'_> {
    /// Visits and emits the paths of a list.
    pub(crate) fn visit_list(&mut self, mut list: PathList) {
        let top = match self.open_root(&list.root, Some(OFlags::empty())) {
            Ok(top) => top,
            Err(error) => return self.report(error),
        };
        let tree = Arc::new(ListedTree {
            root: Arc::clone(top.root()),
            emitted: Lock::default(),
        });
        let mut listed = Fingerprints::default();
        while let Some(batch) = list.next_batch() {
            if self.walk.is_stopped() {
                return;
            }
            let mut paths = Vec::with_capacity(batch.len());
            for path in batch {
                match path {
                    Ok(path) if !listed.insert(&path) => {}
                    Ok(path) if path.is_root() => self.visit_top(&top),
                    Ok(path) => paths.push(path),
                    Err(error) => self.report(error),
                }
            }
            for group in group_by_directory(paths, self.walk.config.batch_entries_max.max(1)) {
                let tree = Arc::clone(&tree);
                self.run_or_queue(move |worker| worker.visit_group(&tree, &group));
            }
        }
    }

    /// Emits the directory to which the paths are relative, because the list contains it as `.`.
    fn visit_top(&mut self, top: &Arc<Directory>) {
        if let Err(errno) = self.send_root(top) {
            self.report(ScanError::io(top.full_path(), Operation::Stat, errno));
        }
    }

    fn visit_group(&mut self, tree: &ListedTree, group: &ListedGroup) {
        match self.enter(tree, &group.parent) {
            Ok(directory) => self.visit_names(tree, &directory, group),
            Err(SkipReason::Excluded) => self.count_excluded(group.names.len() as u64),
            Err(SkipReason::Fault(fault)) => {
                for name in &group.names {
                    self.report(ScanError::Listed {
                        path: group.path_of(name),
                        fault: fault.clone(),
                    });
                }
            }
        }
    }

    fn visit_names(&mut self, tree: &ListedTree, directory: &Arc<Directory>, group: &ListedGroup) {
        let mut names = NameList::default();
        for name in &group.names {
            let raw = CString::new(name.as_bytes()).expect("a name holds no NUL");
            let path = group.parent.join(name).expect("it was listed as one path");
            if self.walk.unfinished(directory, &raw).is_some()
                && self.admits(&path, PathKind::Other)
            {
                // A walk of a tree skips such an entry silently. But here the user has listed the path and must learn
                // that it is not sent.
                self.report(ScanError::Listed {
                    path: group.path_of(name),
                    fault: ListFault::Unfinished,
                });
            } else {
                names.push(&raw);
            }
        }
        let missing = |worker: &mut Self, error| worker.report(as_list_error(error, &group.parent));
        let entries = self.look_up_selected(directory, &names, missing);
        let (directories, others) = entries
            .into_iter()
            .partition(|entry| entry.kind == EntryKind::Directory);
        self.send_entries(directory, others);
        for entry in directories {
            self.send_once(&mut tree.emitted.lock(), directory, entry);
        }
    }

    /// Emits a directory and the directories above it, unless that has been done, and opens the directory.
    fn enter(&mut self, tree: &ListedTree, path: &RelPath) -> Result<Arc<Directory>, SkipReason> {
        let mut emitted = tree.emitted.lock();
        if !path.is_root() && !emitted.contains(path) {
            if !self.admits(path, PathKind::Directory) {
                return Err(SkipReason::Excluded);
            }
            let mut above = RelPath::root();
            for component in path.components() {
                let name = Name::from_bytes(component).expect("a component of a path is a name");
                let below = above.join(&name).expect("it is no longer than the whole");
                if !emitted.contains(&below) {
                    self.emit_directory(tree, &mut emitted, &above, &name)?;
                }
                above = below;
            }
        }
        drop(emitted);
        self.walk
            .open(&tree.root, path)
            .map_err(|errno| skip_reason(tree, path, errno))
    }

    /// Looks up and emits the directory `name` in `parent`.
    fn emit_directory(
        &mut self,
        tree: &ListedTree,
        emitted: &mut Fingerprints,
        parent: &RelPath,
        name: &Name,
    ) -> Result<(), SkipReason> {
        let directory = self
            .walk
            .open(&tree.root, parent)
            .map_err(|errno| skip_reason(tree, parent, errno))?;
        let raw = CString::new(name.as_bytes()).expect("a name holds no NUL");
        let path = directory.display_path(name);
        let kinds = self.walk.config.xattrs;
        let entry = Entry::look_up(&directory, &raw, kinds)
            .map_err(|error| SkipReason::Fault(fault_of(error, path.clone())))?;
        if entry.kind != EntryKind::Directory {
            return Err(SkipReason::Fault(ListFault::NotDirectory(path)));
        }
        self.send_once(emitted, &directory, entry);
        Ok(())
    }

    fn send_once(&mut self, emitted: &mut Fingerprints, directory: &Arc<Directory>, entry: Entry) {
        let path = directory
            .source_path()
            .join(&entry.name)
            .expect("its length was checked");
        if emitted.insert(&path) {
            self.send_entries(directory, vec![entry]);
        }
    }
}

impl Fingerprints {
    /// Adds a path. Returns whether it is new.
    fn insert(&mut self, path: &RelPath) -> bool {
        self.seen.insert(self.of(path))
    }

    fn contains(&self, path: &RelPath) -> bool {
        self.seen.contains(&self.of(path))
    }

    fn of(&self, path: &RelPath) -> [u64; 2] {
        [self.keys[0].hash_one(path), self.keys[1].hash_one(path)]
    }
}

impl ListedGroup {
    fn path_of(&self, name: &Name) -> PathBuf {
        self.parent.as_path().join(name.as_os_str())
    }
}

/// Groups the paths by directory, with at most `names_max` names per group.
fn group_by_directory(mut paths: Vec<RelPath>, names_max: usize) -> Vec<ListedGroup> {
    paths.sort_unstable_by(|one, other| split(one).cmp(&split(other)));
    let mut groups: Vec<ListedGroup> = Vec::new();
    for path in &paths {
        let (parent, name) = split(path);
        let Ok(name) = Name::from_bytes(name) else {
            continue;
        };
        match groups.last_mut() {
            Some(last) if last.parent.as_bytes() == parent && last.names.len() < names_max => {
                last.names.push(name)
            }
            _ => {
                let parent = path.directory();
                groups.push(ListedGroup {
                    parent,
                    names: vec![name],
                });
            }
        }
    }
    groups
}

fn split(path: &RelPath) -> (&[u8], &[u8]) {
    let bytes = path.as_bytes();
    bytes
        .iter()
        .rposition(|&byte| byte == b'/')
        .map_or((&[], bytes), |at| (&bytes[..at], &bytes[at + 1..]))
}

fn skip_reason(tree: &ListedTree, path: &RelPath, errno: Errno) -> SkipReason {
    let full = tree.root.path().join(path.as_path());
    SkipReason::Fault(match errno {
        Errno::NOENT => ListFault::Missing,
        Errno::NOTDIR | Errno::LOOP => ListFault::NotDirectory(full),
        _ => ListFault::Directory {
            path: full,
            source: Arc::new(errno.into()),
        },
    })
}

/// Converts the error of a failed look-up of a directory. The result is the reason why the listed paths below the
/// directory are not sent.
fn fault_of(error: ScanError, path: PathBuf) -> ListFault {
    match error {
        ScanError::Path { source, .. } => ListFault::Path(source),
        ScanError::Io { source, .. } => ListFault::Directory {
            path,
            source: Arc::new(source),
        },
        _ => ListFault::Missing,
    }
}

/// Converts the error about a vanished entry into an error about a missing path, because a listed path may never have
/// existed.
fn as_list_error(error: ScanError, parent: &RelPath) -> ScanError {
    match error {
        ScanError::Vanished { path } => {
            let path = parent.as_path().join(path.file_name().unwrap_or_default());
            ScanError::Listed {
                path,
                fault: ListFault::Missing,
            }
        }
        other => other,
    }
}
