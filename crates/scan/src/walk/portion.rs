//! Portions of a walk. Several nodes share the walk of some trees, and a portion is the work that one node does at a
//! time. It leaves the remaining work for later portions.
//!
//! **Invariant:** if the sources do not change, a portion is the same on every node and in every repetition. So names
//! are processed in byte order, and a portion is limited by entries and bytes, never by time.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use zmove_types::{Name, RelPath};

use crate::config::{ScanConfig, ScanRoot};
use crate::directory::{Directory, Extent, SourceRoot};
use crate::entry::{Entry, EntryBatch, EntryKind, ScanItem};
use crate::error::{Operation, ScanError};
use crate::listing::Listing;

use super::mark::{DirectoryMark, MarkedPath, check_mount, open_and_compare};
use super::names::NameList;
use super::{DescriptorWait, UnfinishedParts, Walk, WalkTally, Worker, may_be_directory};

/// The limits of one portion.
#[derive(Clone, Copy, Debug)]
pub struct PortionSize {
    /// Maximum number of entries to look up.
    pub entries: usize,
    /// Maximum total size of the files in bytes. The last file of a portion may exceed this limit.
    pub bytes: u64,
    /// Files of at least this size in bytes do not count toward `bytes`.
    pub large_bytes: u64,
    /// The entries to look up.
    pub wanted: PortionEntries,
}

/// The kinds of entries that a portion contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortionEntries {
    /// All entries.
    All,
    /// Directories only.
    Directories,
}

/// The entries that the walk of a portion found, and the remaining work.
#[derive(Debug, Default)]
pub struct Portion {
    /// The items found, in the order in which the receiver needs them.
    pub items: Vec<ScanItem>,
    /// Directories that remain to be walked.
    pub directories: Vec<MarkedPath>,
    /// Entries that remain to be looked up, as names of a directory.
    pub names: Vec<(MarkedPath, Vec<Name>)>,
    /// The marks of the directories that were opened and compared, by their paths below the root.
    pub marks: HashMap<RelPath, DirectoryMark>,
    /// Number of entries that the selection has excluded.
    pub left_out: u64,
    /// The parts of unfinished transfers that were skipped.
    pub parts: UnfinishedParts,
    /// Whether the directory that contains the entries could not be opened.
    pub is_unopened: bool,
}

impl Portion {
    /// Returns the error about an entry that differs from the entry of another node at the same path, if any.
    #[must_use]
    pub fn difference(&self) -> Option<&ScanError> {
        self.errors()
            .find(|error| matches!(error, ScanError::Differs { .. }))
    }

    /// Returns the error about exactly this path, if any.
    #[must_use]
    pub fn failure_at(&self, path: &Path) -> Option<&ScanError> {
        self.errors().find(|error| error.path() == Some(path))
    }

    fn errors(&self) -> impl Iterator<Item = &ScanError> {
        self.items.iter().filter_map(|item| match item {
            ScanItem::Error(error) => Some(error),
            ScanItem::Root { .. } | ScanItem::Batch(_) => None,
        })
    }
}

/// Walks these directories below a root until a limit of the portion is reached.
#[must_use]
pub fn walk_portion(
    root: &ScanRoot,
    directories: &[MarkedPath],
    size: PortionSize,
    config: &ScanConfig,
) -> Portion {
    portion(config, size, |walker| walker.walk(root, directories))
}

/// Looks up entries of a directory below a root until a limit of the portion is reached.
#[must_use]
pub fn look_up_portion(
    root: &ScanRoot,
    directory: &MarkedPath,
    names: &[Name],
    size: PortionSize,
    config: &ScanConfig,
) -> Portion {
    portion(config, size, |walker| match walker.open_root(root) {
        Ok(opened) => walker.look_up_in(opened.root(), directory, names),
        Err(error) => walker.report(error),
    })
}

/// Returns the mark of a root. For a single-entry root, returns the mark of the directory that contains the entry.
/// Returns `None` if the directory cannot be opened.
#[must_use]
pub fn mark_root(root: &ScanRoot) -> Option<DirectoryMark> {
    let open = || {
        let opened = Arc::new(root.open(root.directory_flags()?)?);
        Directory::open(&opened, &RelPath::root())?.query_status_at_server()
    };
    let status = DescriptorWait::new().open(open).ok()?;
    Some(DirectoryMark::of_root(&status))
}

fn portion(
    config: &ScanConfig,
    size: PortionSize,
    work: impl FnOnce(&mut PortionWalker<'_, '_>),
) -> Portion {
    let (output, nobody) = crossbeam_channel::bounded(1);
    let tally = Arc::new(WalkTally::default());
    let walk = Arc::new(Walk::new(output, config, Arc::clone(&tally)));
    let mut portion = Portion::default();
    Worker::run(&walk, |worker| {
        work(&mut PortionWalker {
            worker,
            portion: &mut portion,
            size,
            entries: 0,
            bytes: 0,
        });
    });
    drop(nobody);
    Portion {
        left_out: tally.left_out(),
        parts: tally.parts(),
        ..portion
    }
}

/// The walk of one portion.
struct PortionWalker<'a, 'walk> {
    worker: &'a mut Worker<'walk>,
    portion: &'a mut Portion,
    size: PortionSize,
    entries: usize,
    bytes: u64,
}

impl PortionWalker<'_, '_> {
    fn is_full(&self) -> bool {
        self.entries >= self.size.entries || self.bytes >= self.size.bytes
    }

    fn walk(&mut self, root: &ScanRoot, directories: &[MarkedPath]) {
        let opened = match self.open_root(root) {
            Ok(opened) => opened,
            Err(error) => return self.report(error),
        };
        if opened.root().extent == Extent::SingleEntry {
            let name = root
                .parent_and_name()
                .and_then(|(_, name)| Name::from_bytes(name.as_bytes()).ok());
            let Some(directory) = directories.first() else {
                return;
            };
            return self.look_up_in(opened.root(), directory, name.as_slice());
        }
        let mut ahead: Vec<_> = directories.iter().rev().cloned().collect();
        while !self.is_full()
            && let Some(place) = ahead.pop()
        {
            match self.visit(opened.root(), &place) {
                Ok(below) => ahead.extend(below.into_iter().rev()),
                Err(error) => self.report(error),
            }
        }
        ahead.reverse();
        self.portion.directories = ahead;
    }

    /// Opens a root that is a directory, or the directory that contains a single entry.
    fn open_root(&self, root: &ScanRoot) -> Result<Arc<Directory>, ScanError> {
        let flags = root.directory_flags();
        self.worker
            .open_root(root, flags.map_err(root.failed(Operation::Stat))?)
    }

    fn report(&mut self, error: ScanError) {
        self.portion.items.push(ScanItem::Error(error));
    }

    /// Lists a directory and looks up its entries until a limit of the portion is reached. Returns the subdirectories.
    fn visit(
        &mut self,
        root: &Arc<SourceRoot>,
        place: &MarkedPath,
    ) -> Result<Vec<MarkedPath>, ScanError> {
        let path = &place.path;
        let directory = self.open(root, place)?;
        let within = directory
            .is_within(self.worker.walk.config.file_systems)
            .map_err(root.open_error(path))?;
        if path.is_root() {
            match self.worker.root_item(&directory) {
                Ok(item) => self.portion.items.push(item),
                Err(errno) => {
                    self.report(ScanError::io(directory.full_path(), Operation::Stat, errno));
                }
            }
        }
        if !within {
            return Ok(Vec::new());
        }
        let mut names = self.list(&directory);
        names.sort_unstable();
        if self.size.wanted == PortionEntries::All {
            let rest = names.split_off(names.len().min(self.size.entries));
            self.defer_names(&directory, &rest);
        }
        Ok(self.add_entries(&directory, &names))
    }

    /// Opens a directory. If it has a mark, compares the directory with the mark.
    fn open(
        &mut self,
        root: &Arc<SourceRoot>,
        place: &MarkedPath,
    ) -> Result<Arc<Directory>, ScanError> {
        let MarkedPath { path, mark } = place;
        let Some(seen) = *mark else {
            return self
                .worker
                .walk
                .open(root, path)
                .map_err(root.open_error(path));
        };
        let walk = &self.worker.walk;
        let (directory, now) =
            open_and_compare(root, path, seen, &walk.config, |path| walk.open(root, path))?;
        self.portion.marks.insert(path.clone(), now);
        Ok(directory)
    }

    /// Returns the path of an open directory, with its mark.
    fn marked(&self, directory: &Directory) -> MarkedPath {
        let path = directory.source_path().clone();
        MarkedPath {
            mark: self.portion.marks.get(&path).copied(),
            path,
        }
    }

    /// Returns the names in a directory that may belong to wanted entries. If reading the directory fails, reports the
    /// error and returns the names that were read so far.
    fn list(&mut self, directory: &Directory) -> Vec<CString> {
        let mut names = Vec::new();
        let listed = directory.list(&mut Listing::default(), |entry| {
            if self.size.wanted == PortionEntries::All || may_be_directory(entry) {
                names.push(entry.file_name().to_owned());
            }
            Ok(true)
        });
        if let Err(error) = listed {
            self.report(error);
        }
        names
    }

    /// Leaves names for later portions, in groups that each fit into one portion.
    fn defer_names(&mut self, directory: &Directory, names: &[CString]) {
        let path = directory.source_path();
        for batch in names.chunks(self.size.entries) {
            let mut known = Vec::with_capacity(batch.len());
            for name in batch {
                match Name::from_bytes(name.as_bytes()) {
                    Ok(name) => known.push(name),
                    Err(source) => {
                        let path = path.as_path().join(OsStr::from_bytes(name.as_bytes()));
                        self.report(ScanError::Path { path, source });
                    }
                }
            }
            self.portion.names.push((self.marked(directory), known));
        }
    }

    fn look_up_in(&mut self, root: &Arc<SourceRoot>, place: &MarkedPath, names: &[Name]) {
        let directory = match self.open(root, place) {
            Ok(directory) => directory,
            Err(error) => {
                self.portion.is_unopened = true;
                return self.report(error);
            }
        };
        let names: Vec<_> = names
            .iter()
            .filter_map(|name| CString::new(name.as_bytes()).ok())
            .collect();
        let below = self.add_entries(&directory, &names);
        self.portion.directories.extend(below);
    }

    /// Adds entries of a directory until a limit of the portion is reached, and leaves the remaining entries for later
    /// portions. Returns the subdirectories among the added entries.
    fn add_entries(&mut self, directory: &Arc<Directory>, names: &[CString]) -> Vec<MarkedPath> {
        let mut list = NameList::default();
        names.iter().for_each(|name| list.push(name));
        let mut errors = Vec::new();
        let entries = self
            .worker
            .look_up_selected(directory, &list, |_, error| errors.push(error));
        errors.into_iter().for_each(|error| self.report(error));
        self.compare_mounts(directory, &entries);
        let marked = self.marked(directory);
        let below = directories_below(&marked, &entries);
        self.entries += entries.len();
        let mut taken = Vec::with_capacity(entries.len());
        let mut left = Vec::new();
        let mut left_bytes = 0;
        let is_wanted = |entry: &Entry| {
            self.size.wanted == PortionEntries::All || entry.kind == EntryKind::Directory
        };
        for entry in entries.into_iter().filter(is_wanted) {
            let counts = entry.kind == EntryKind::File && entry.size < self.size.large_bytes;
            if !counts || self.bytes < self.size.bytes {
                self.bytes += if counts { entry.size } else { 0 };
                taken.push(entry);
            } else {
                left_bytes += entry.size;
                left.push(entry.name);
                if left_bytes >= self.size.bytes {
                    left_bytes = 0;
                    self.portion
                        .names
                        .push((marked.clone(), std::mem::take(&mut left)));
                }
            }
        }
        if !left.is_empty() {
            self.portion.names.push((marked, left));
        }
        if !taken.is_empty() {
            let directory = Arc::clone(directory);
            self.portion.items.push(ScanItem::Batch(EntryBatch {
                directory,
                entries: taken,
            }));
        }
        below
    }

    /// Reports entries that are mount points only here or only at the head (the node that leads the job).
    fn compare_mounts(&mut self, directory: &Directory, entries: &[Entry]) {
        if directory.root().extent == Extent::SingleEntry {
            return; // a source itself, which is compared before the walk
        }
        for entry in entries {
            let compared = check_mount(&self.worker.walk.config, entry.is_mount, || {
                directory.display_path(&entry.name)
            });
            compared.unwrap_or_else(|error| self.report(error));
        }
    }
}

/// Returns the subdirectories among the entries of a directory, with marks if the directory has one.
fn directories_below(directory: &MarkedPath, entries: &[Entry]) -> Vec<MarkedPath> {
    let below = |entry: &Entry| MarkedPath {
        path: directory
            .path
            .join(&entry.name)
            .expect("its length was checked"),
        mark: directory.mark.map(|mark| mark.below(entry)),
    };
    entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Directory)
        .map(below)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::{File, create_dir_all};

    use super::*;

    const SIZE: PortionSize = PortionSize {
        entries: 4,
        bytes: 100,
        large_bytes: 1000,
        wanted: PortionEntries::All,
    };

    fn path(text: &str) -> RelPath {
        RelPath::from_bytes(text.as_bytes()).unwrap()
    }

    fn unmarked(text: &str) -> MarkedPath {
        MarkedPath {
            path: path(text),
            mark: None,
        }
    }

    fn make(home: &Path, files: &[(&str, u64)]) -> ScanRoot {
        for (file, bytes) in files {
            let file = home.join(file);
            create_dir_all(file.parent().unwrap()).unwrap();
            File::create(file).unwrap().set_len(*bytes).unwrap();
        }
        ScanRoot::new(home, RelPath::root())
    }

    fn found(portion: &Portion) -> Vec<String> {
        let batches = portion.items.iter().filter_map(|item| match item {
            ScanItem::Batch(batch) => Some(batch),
            _ => None,
        });
        let full = |batch: &EntryBatch, entry: &Entry| {
            batch
                .directory
                .source_path()
                .join(&entry.name)
                .unwrap()
                .as_path()
                .display()
                .to_string()
        };
        batches
            .flat_map(|batch| batch.entries.iter().map(move |entry| full(batch, entry)))
            .collect()
    }

    /// Walks everything in portions. Returns the number of portions and the paths found.
    fn walk_all(root: &ScanRoot, config: &ScanConfig) -> (usize, Vec<String>) {
        let mut all = Vec::new();
        let mut portions = 0;
        let mut ahead = vec![walk_portion(root, &[unmarked("")], SIZE, config)];
        while let Some(portion) = ahead.pop() {
            portions += 1;
            all.extend(found(&portion));
            if !portion.directories.is_empty() {
                ahead.push(walk_portion(root, &portion.directories, SIZE, config));
            }
            for (directory, names) in &portion.names {
                ahead.push(look_up_portion(root, directory, names, SIZE, config));
            }
        }
        (portions, all)
    }

    #[test]
    fn portions_have_each_entry_once_however_the_tree_is_shaped() {
        let home = tempfile::tempdir().unwrap();
        let many: Vec<_> = (0..23).map(|number| format!("wide/f{number}")).collect();
        let mut files: Vec<_> = many.iter().map(|name| (name.as_str(), 1)).collect();
        files.extend([
            ("deep/a/b/c/d", 1),
            ("heavy/1", 60),
            ("heavy/2", 60),
            ("heavy/3", 60),
            ("heavy/4", 9000),
        ]);
        let root = make(home.path(), &files);
        let (portions, all) = walk_all(&root, &ScanConfig::default());
        let distinct: BTreeSet<_> = all.iter().cloned().collect();
        assert_eq!(all.len(), distinct.len(), "{all:?}");
        let directories =
            ["wide", "deep", "deep/a", "deep/a/b", "deep/a/b/c", "heavy"].map(str::to_owned);
        let expected = files.iter().map(|(file, _)| (*file).to_owned());
        assert_eq!(distinct, expected.chain(directories).collect());
        assert!(portions > 8, "{portions}");
    }

    #[test]
    fn a_portion_ends_by_entries_and_by_bytes_and_is_the_same_each_time() {
        let home = tempfile::tempdir().unwrap();
        let files = [
            ("a/1", 60),
            ("a/2", 60),
            ("a/3", 60),
            ("b/1", 1),
            ("c/1", 1),
        ];
        let root = make(home.path(), &files);
        for _ in 0..2 {
            let portion = walk_portion(&root, &[unmarked("")], SIZE, &ScanConfig::default());
            assert_eq!(found(&portion), ["a", "b", "c", "a/1", "a/2"]);
            assert_eq!(portion.directories, [unmarked("b"), unmarked("c")]);
            let name = Name::from_bytes(b"3").unwrap();
            assert_eq!(portion.names, [(unmarked("a"), vec![name])]);
        }
    }

    #[test]
    fn a_portion_of_directories_has_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let root = make(home.path(), &[("a/1", 60), ("a/b/1", 60), ("2", 6000)]);
        let size = PortionSize {
            wanted: PortionEntries::Directories,
            ..SIZE
        };
        let portion = walk_portion(&root, &[unmarked("")], size, &ScanConfig::default());
        assert_eq!(found(&portion), ["a", "a/b"]);
        assert!(portion.names.is_empty(), "{portion:?}");
    }

    #[test]
    fn a_source_that_is_no_directory_is_a_portion() {
        let home = tempfile::tempdir().unwrap();
        make(home.path(), &[("f", 7)]);
        let root = ScanRoot::new(home.path().join("f"), path("g"));
        let portion = walk_portion(&root, &[unmarked("")], SIZE, &ScanConfig::default());
        assert_eq!(found(&portion), ["f"]);
    }

    #[test]
    fn what_cannot_be_walked_is_told() {
        let root = ScanRoot::new("/does/not/exist", RelPath::root());
        let portion = walk_portion(&root, &[unmarked("")], SIZE, &ScanConfig::default());
        assert!(
            matches!(portion.items[..], [ScanItem::Error(_)]),
            "{portion:?}"
        );
        let home = tempfile::tempdir().unwrap();
        let root = make(home.path(), &[("a/1", 60)]);
        let gone = walk_portion(&root, &[unmarked("gone")], SIZE, &ScanConfig::default());
        assert!(
            matches!(
                gone.items[..],
                [ScanItem::Error(ScanError::Vanished { .. })]
            ),
            "{gone:?}"
        );
    }
}
