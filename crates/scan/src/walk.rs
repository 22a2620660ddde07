//! The jobs of a walk: visiting a root, listing a directory, and looking up a batch of its names.
//!
//! Jobs run on the walk's own rayon pool, newest first. So a thread walks depth-first, and few directories are queued.
//! **Invariant:** a queued directory is stored as a path, not as a descriptor. Descriptors are open only for running
//! threads, for batches of names that are queued for look-up, and for emitted batches that are not dropped yet.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_channel::{Sender, TrySendError};
use rustix::fs::{AtFlags, FileType, OFlags, RawDirEntry, statx};
use rustix::io::Errno;
use zmove_disk::{Descriptor, is_mount_point};
use zmove_types::{Lock, RelPath, Stopwatch, ThreadState};

use crate::config::{ScanConfig, ScanRoot, Unfinished};
use crate::directory::{Directory, DirectoryStatus, Extent, FileSystems, SourceRoot};
use crate::entry::{
    Entry, EntryBatch, EntryKind, EntryProperties, STATX_FIELDS, ScanItem, metadata_of,
};
use crate::error::{Operation, ScanError};
use crate::listing::Listing;
use crate::selection::{DirectoryFilter, PathKind};
use crate::sources::shared_parents::SharedParents;
use crate::sources::walk_record::{DirectoryChange, ListingStart};

mod descriptor_wait;
mod files_from;
mod mark;
mod names;
mod portion;
mod tally;

use descriptor_wait::DescriptorWait;
pub use mark::{DirectoryMark, MarkedPath};
use names::NameList;
pub use portion::{Portion, PortionEntries, PortionSize, look_up_portion, mark_root, walk_portion};
pub use tally::{UnfinishedParts, WalkTally, WalkTotals};

/// The state shared by all jobs of one walk. The stream of items ends when the last job drops it.
#[derive(Debug)]
pub(crate) struct Walk {
    output: Sender<ScanItem>,
    config: ScanConfig,
    tally: Arc<WalkTally>,
    stopped: AtomicBool,
    descriptor_wait: DescriptorWait,
    parents: SharedParents,
    batches_waiting: AtomicUsize,
    scratch: Lock<Vec<Scratch>>,
}

/// The context in which a thread runs one job.
#[derive(Debug)]
pub(crate) struct Worker<'walk> {
    walk: &'walk Arc<Walk>,
    stopwatch: Stopwatch<'walk>,
}

/// Buffers for listing a directory, reused for the next one.
#[derive(Debug, Default)]
struct Scratch {
    listing: Listing,
    names: NameList,
}

impl Walk {
    pub(crate) fn new(
        output: Sender<ScanItem>,
        config: &ScanConfig,
        tally: Arc<WalkTally>,
    ) -> Self {
        Self {
            output,
            config: config.clone(),
            tally,
            stopped: AtomicBool::new(false),
            descriptor_wait: DescriptorWait::new(),
            parents: SharedParents::default(),
            batches_waiting: AtomicUsize::new(0),
            scratch: Lock::default(),
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn take_scratch(&self) -> Scratch {
        self.scratch.lock().pop().unwrap_or_default()
    }

    fn put_back(&self, mut scratch: Scratch) {
        scratch.listing.names.clear();
        scratch.names.clear();
        self.scratch.lock().push(scratch);
    }

    /// Returns the reason why a name is skipped, or `None` if the name is not skipped.
    fn unfinished(&self, directory: &Directory, name: &CStr) -> Option<Unfinished> {
        // The root of a walk is never skipped, even if it has such a name.
        let skip_filter = self
            .config
            .skip_filter
            .filter(|_| directory.root().extent == Extent::Tree)?;
        skip_filter(directory.fd().as_fd(), name.to_bytes())
    }

    /// Returns whether a name is skipped. If the name is skipped because it is a part of an unfinished transfer, counts
    /// the part.
    fn counts_as_skipped(&self, directory: &Directory, name: &CStr) -> bool {
        let why = self.unfinished(directory, name);
        if why == Some(Unfinished::Part) {
            self.tally.count_skipped_part(|| {
                directory
                    .full_path()
                    .join(OsStr::from_bytes(name.to_bytes()))
            });
        }
        why.is_some()
    }

    /// Opens a directory below a root. Waits if the process is out of descriptors.
    fn open(&self, root: &Arc<SourceRoot>, path: &RelPath) -> Result<Arc<Directory>, Errno> {
        self.descriptor_wait
            .open(|| Directory::open(root, path))
            .map(Arc::new)
    }

    /// Queues a job on the pool of the calling thread.
    fn spawn(self: &Arc<Self>, job: impl FnOnce(&mut Worker<'_>) + Send + 'static) {
        let walk = Arc::clone(self);
        rayon::spawn(move || Worker::run(&walk, job));
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        if !self.is_stopped() {
            self.tally.end();
        }
    }
}

impl<'walk> Worker<'walk> {
    /// Runs one job, unless the walk has been stopped.
    pub(crate) fn run(walk: &'walk Arc<Walk>, job: impl FnOnce(&mut Self)) {
        if !walk.is_stopped() {
            let mut worker = Self {
                walk,
                stopwatch: walk.tally.clock.start(),
            };
            job(&mut worker);
            worker.stopwatch.lap(ThreadState::Busy);
        }
    }

    /// Visits and emits a root. A root is either a directory with everything below it or a single entry.
    pub(crate) fn visit_root(&mut self, root: &ScanRoot) {
        let visited = match root.directory_flags() {
            _ if self.walk.config.reread.is_some() => self.reread_tree(root),
            Ok(Some(flags)) => self.visit_tree(root, flags),
            Ok(None) => self.visit_single(root),
            Err(errno) => Err(root.failed(Operation::Stat)(errno)),
        };
        if let Err(error) = visited {
            self.report(error);
        }
    }

    fn visit_tree(&mut self, root: &ScanRoot, flags: OFlags) -> Result<(), ScanError> {
        if !self.admits(&root.prefix, PathKind::Directory) {
            self.count_excluded(1);
            return Ok(());
        }
        let directory = self.open_root(root, Some(flags))?;
        self.note_root(&directory)
            .map_err(root.failed(Operation::Open))?;
        self.send_root(&directory)
            .and_then(|()| self.visit(&directory, Visit::Entries))
            .map_err(root.failed(Operation::Stat))
    }

    /// Revisits a root that the previous walk opened as a directory. A single-entry root is not revisited, because a
    /// rename elsewhere cannot hide it from the walk.
    fn reread_tree(&mut self, root: &ScanRoot) -> Result<(), ScanError> {
        let Some(walked) = self.walk.config.reread.clone() else {
            return Ok(());
        };
        let opened = match walked.root(&root.source) {
            None => return Ok(()),
            Some(Some(known)) => known.with_prefix(&root.prefix),
            Some(None) => root.directory_flags().and_then(|flags| {
                let flags = flags.or(Some(OFlags::NOFOLLOW));
                self.walk.parents.open(root, flags)
            }),
        };
        let opened = opened.map_err(root.failed(Operation::Open))?;
        if walked.is_replaced_root(&root.source, Some(&opened)) {
            let path = root.source.clone();
            return Err(ScanError::RootReplaced { path });
        }
        let directory = self.walk.open(&Arc::new(opened), &RelPath::root());
        let directory = directory.map_err(root.failed(Operation::Open))?;
        self.note_root(&directory)
            .map_err(root.failed(Operation::Open))?;
        self.visit(&directory, Visit::Entries)
            .map_err(root.failed(Operation::Stat))
    }

    fn note_root(&self, directory: &Directory) -> Result<(), Errno> {
        let walk_record = self.walk.config.walk_record.as_ref();
        walk_record.map_or(Ok(()), |walk_record| {
            walk_record.note_root(directory.root())
        })
    }

    /// Emits the item of a root.
    fn send_root(&mut self, directory: &Arc<Directory>) -> Result<(), Errno> {
        let item = self.root_item(directory)?;
        self.send(item);
        Ok(())
    }

    /// Returns the item of a root.
    fn root_item(&self, directory: &Arc<Directory>) -> Result<ScanItem, Errno> {
        let stat = statx(directory.fd(), c"", AtFlags::EMPTY_PATH, STATX_FIELDS)?;
        let mut metadata = metadata_of(&stat);
        let kinds = self.walk.config.xattrs;
        let (properties, _only_entries_are_reported) = EntryProperties::read(
            Descriptor::Open(directory.fd().as_fd()),
            &stat,
            kinds,
            &mut metadata,
        );
        Ok(ScanItem::Root {
            directory: Arc::clone(directory),
            metadata,
            properties,
        })
    }

    fn visit_single(&mut self, root: &ScanRoot) -> Result<(), ScanError> {
        let directory = self.open_root(root, None)?;
        let name = root
            .parent_and_name()
            .and_then(|(_, name)| CString::new(name.as_bytes()).ok());
        let mut names = NameList::default();
        names.push(&name.ok_or_else(|| root.failed(Operation::Stat)(Errno::INVAL))?);
        // If the entry has just become a directory, listing it fails with an error, because directories of a
        // single-entry root are opened only with `O_PATH`.
        self.look_up(&directory, &names, Visit::Entries);
        Ok(())
    }

    fn open_root(
        &self,
        root: &ScanRoot,
        flags: Option<OFlags>,
    ) -> Result<Arc<Directory>, ScanError> {
        let open = || {
            let root = Arc::new(self.walk.parents.open(root, flags)?);
            Directory::open(&root, &RelPath::root())
        };
        let opened = self.walk.descriptor_wait.open(open);
        opened.map(Arc::new).map_err(root.failed(Operation::Open))
    }

    fn visit_directory(&mut self, root: &Arc<SourceRoot>, path: &RelPath, visit: Visit) {
        let opened = self.walk.open(root, path);
        let visited = opened.and_then(|directory| self.visit(&directory, visit));
        let is_excluded_mount = || root.is_excluded_mount(path, self.walk.config.file_systems);
        match visited.map_err(root.open_error(path)) {
            Err(error) if !is_excluded_mount() => self.report(error),
            Ok(()) | Err(_) => {}
        }
    }

    /// Lists a directory and records its times for later walks. The times are read after the names, so they reflect
    /// every change that the names may lack.
    fn visit(&mut self, directory: &Arc<Directory>, visit: Visit) -> Result<(), Errno> {
        let before = match &self.walk.config.reread {
            Some(_) => Some(directory.status()?),
            None => None,
        };
        let listed = ListingStart::begin(before);
        if directory.is_within(self.walk.config.file_systems)? {
            self.list(directory, self.visit_for(directory, before.as_ref(), visit));
        }
        if let Some(walk_record) = &self.walk.config.walk_record {
            let after = directory.status()?;
            walk_record.note_mount(directory, &after);
            walk_record.note_listed(directory, listed, &after);
        }
        Ok(())
    }

    /// Returns which entries of a directory the walk visits.
    fn visit_for(
        &self,
        directory: &Directory,
        before: Option<&DirectoryStatus>,
        moved: Visit,
    ) -> Visit {
        let Some((walked, before)) = self.walk.config.reread.as_ref().zip(before) else {
            return Visit::Entries;
        };
        match walked.change(before) {
            _ if moved == Visit::Tree => Visit::Tree,
            DirectoryChange::Nothing => Visit::Directories,
            // A root cannot have been moved here undetected, because its inode number was compared.
            DirectoryChange::Replaced if !directory.source_path().is_root() => Visit::Tree,
            DirectoryChange::Replaced | DirectoryChange::Names => Visit::Entries,
        }
    }

    /// Reads the names of a directory and looks them up in batches.
    fn list(&mut self, directory: &Arc<Directory>, visit: Visit) {
        let Scratch {
            mut listing,
            mut names,
        } = self.walk.take_scratch();
        let listed = directory.list(&mut listing, |entry| {
            if visit != Visit::Directories || may_be_directory(entry) {
                names.push(entry.file_name());
            }
            if names.len() >= self.walk.config.batch_entries_max.max(1) {
                let directory = Arc::clone(directory);
                let names = std::mem::take(&mut names);
                self.run_or_queue(move |worker| worker.look_up(&directory, &names, visit));
            }
            Ok(!self.walk.is_stopped())
        });
        if let Err(error) = listed {
            self.report(error);
        }
        self.look_up(directory, &names, visit);
        self.walk.put_back(Scratch { listing, names });
    }

    /// Queues a job for another thread, or runs it directly if enough jobs are queued.
    fn run_or_queue(&mut self, job: impl FnOnce(&mut Worker<'_>) + Send + 'static) {
        if self.walk.batches_waiting.fetch_add(1, Ordering::Relaxed) >= self.walk.config.threads {
            self.walk.batches_waiting.fetch_sub(1, Ordering::Relaxed);
            return job(self);
        }
        self.walk.spawn(move |worker| {
            worker.walk.batches_waiting.fetch_sub(1, Ordering::Relaxed);
            job(worker);
        });
    }

    /// Emits the selected entries of these names as one batch, then queues the subdirectories among them.
    fn look_up(&mut self, directory: &Arc<Directory>, names: &NameList, visit: Visit) {
        let entries = self.look_up_selected(directory, names, Self::report);
        let children = children(directory, &entries);
        if visit != Visit::Directories {
            self.send_entries(directory, entries);
        }
        for path in children {
            let root = Arc::clone(directory.root());
            self.walk
                .spawn(move |worker| worker.visit_directory(&root, &path, visit));
        }
    }

    /// Looks up these names and returns the selected entries. Each error is passed to `report`. If the walk is stopped,
    /// returns no entries.
    fn look_up_selected(
        &mut self,
        directory: &Directory,
        names: &NameList,
        mut report: impl FnMut(&mut Self, ScanError),
    ) -> Vec<Entry> {
        let walk = self.walk;
        let mut filter = DirectoryFilter::new(walk.config.selection.as_deref(), directory);
        let mut entries = Vec::with_capacity(names.len());
        for name in names.iter() {
            if walk.is_stopped() {
                return Vec::new();
            }
            if !walk.counts_as_skipped(directory, name) && filter.may_admit(name) {
                match Entry::look_up(directory, name, walk.config.xattrs) {
                    Ok(entry) if filter.admits(&entry) => entries.push(entry),
                    Ok(_not_wanted) => {}
                    Err(_) if self.is_excluded_mount(directory, name) => filter.left_out += 1,
                    Err(error) => report(self, error),
                }
            }
        }
        self.count_excluded(filter.left_out);
        entries
    }

    /// Returns whether an entry that cannot be looked up is a mount point that this walk would not enter.
    fn is_excluded_mount(&self, directory: &Directory, name: &CStr) -> bool {
        self.walk.config.file_systems == FileSystems::OfRoot
            && is_mount_point(directory.fd(), OsStr::from_bytes(name.to_bytes()))
    }

    /// Emits entries, if there are any.
    fn send_entries(&mut self, directory: &Arc<Directory>, entries: Vec<Entry>) {
        if !entries.is_empty() {
            directory.count_found(entries.len());
            self.walk.tally.add(&entries);
            self.send(ScanItem::Batch(EntryBatch {
                directory: Arc::clone(directory),
                entries,
            }));
        }
    }

    /// Returns whether the selection includes this path below the target.
    fn admits(&self, path: &RelPath, kind: PathKind) -> bool {
        self.walk
            .config
            .selection
            .as_ref()
            .is_none_or(|selection| selection.admits(path, kind))
    }

    /// Counts excluded entries.
    fn count_excluded(&self, entries: u64) {
        if entries > 0 {
            self.walk.tally.count_excluded(entries);
        }
    }

    fn report(&mut self, error: ScanError) {
        self.send(ScanItem::Error(error));
    }

    /// Emits an item, and waits while the queue is full. Stops the walk if all receivers are gone.
    fn send(&mut self, item: ScanItem) {
        let sent = match self.walk.output.try_send(item) {
            Err(TrySendError::Full(item)) => {
                self.stopwatch.lap(ThreadState::Busy);
                let sent = self.walk.output.send(item);
                self.stopwatch.lap(ThreadState::Blocked);
                sent.is_ok()
            }
            sent => sent.is_ok(),
        };
        if !sent {
            self.walk.stopped.store(true, Ordering::Relaxed);
        }
    }
}

/// The entries of a directory that a walk visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visit {
    /// The entries of the directory. The walk decides for each subdirectory which of its entries to visit.
    Entries,
    /// All entries in and below the directory.
    Tree,
    /// The subdirectories only.
    Directories,
}

/// Returns whether an entry must be looked up if only directories are visited. Some file systems do not report the kind
/// of an entry in a listing.
fn may_be_directory(entry: &RawDirEntry<'_>) -> bool {
    matches!(entry.file_type(), FileType::Directory | FileType::Unknown)
}

fn children(directory: &Directory, entries: &[Entry]) -> Vec<RelPath> {
    let path = |entry: &Entry| {
        directory
            .source_path()
            .join(&entry.name)
            .expect("its length was checked")
    };
    entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::Directory)
        .map(path)
        .collect()
}
