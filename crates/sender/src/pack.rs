//! Packs: the small entries that will travel in one batch, gathered by directory.

use zmove_scan::{Entry, EntryKind};
use zmove_types::{GROUP_BYTES, Metadata, Name, RelPath, Root};
use zmove_wire::limits::{BATCH_ENTRIES_MAX, BATCH_HEAD_BYTES_TARGET};

use crate::source::SourceDirectory;

/// Work on small entries for one reader.
#[derive(Clone, Debug)]
pub(crate) struct Pack {
    pub(crate) groups: Vec<PackGroup>,
    /// How often it has been sent before.
    pub(crate) tries: u8,
    /// Whether it was planned before the target was known.
    pub(crate) guessed: bool,
}

/// The entries of one directory.
#[derive(Clone, Debug)]
pub(crate) struct PackGroup {
    pub(crate) directory: SourceDirectory,
    pub(crate) entries: Vec<PackEntry>,
}

/// One small entry.
#[derive(Clone, Debug)]
pub(crate) enum PackEntry {
    /// The directory itself.
    Itself(Metadata),
    /// A subdirectory.
    Directory(Name, Metadata),
    /// A link.
    Symlink(Name, Metadata, Box<[u8]>),
    /// A file of one group or less.
    File(Entry),
    /// A file of any size whose contents may be there already: the root of what is there.
    Compare(Entry, Root),
}

impl PackEntry {
    /// The entry as the scan found it; `None` for what has no place in a pack.
    pub(crate) fn from_scan(entry: Entry) -> Option<Self> {
        let (name, metadata) = (entry.name.clone(), entry.metadata);
        match &entry.kind {
            EntryKind::Directory => Some(Self::Directory(name, metadata)),
            EntryKind::Symlink(target) => Some(Self::Symlink(name, metadata, target.clone())),
            EntryKind::File if entry.size <= GROUP_BYTES => Some(Self::File(entry)),
            _ => None,
        }
    }

    fn name(&self) -> Option<&Name> {
        match self {
            Self::Itself(_) => None,
            Self::Directory(name, _) | Self::Symlink(name, ..) => Some(name),
            Self::File(entry) | Self::Compare(entry, _) => Some(&entry.name),
        }
    }

    fn data_bytes(&self) -> u64 {
        match self {
            Self::File(entry) => entry.size,
            _ => 0,
        }
    }

    /// An upper bound of its bytes in a batch's head.
    fn head_bytes(&self) -> usize {
        match self {
            Self::Symlink(name, _, target) => ENTRY_HEAD_BYTES + name.as_bytes().len() + target.len(),
            Self::Directory(name, _) => ENTRY_HEAD_BYTES + name.as_bytes().len(),
            Self::File(entry) | Self::Compare(entry, _) => ENTRY_HEAD_BYTES + entry.name.as_bytes().len(),
            Self::Itself(_) => ENTRY_HEAD_BYTES,
        }
    }
}

/// An entry's fixed part in a batch's head, rounded up.
const ENTRY_HEAD_BYTES: usize = 64;
/// The first packs: about what ten segments of a large MTU hold (RFC 6928).
const FIRST_DATA_BYTES: u64 = 64 << 10;
const FIRST_ENTRIES: u64 = 64;
/// About one pack for each lane.
const PACKS_PER_DOUBLING: u32 = 8;
const RAMP_DOUBLINGS_MAX: u32 = 16;
/// How many directories a pack holds open.
const DIRECTORIES_OPEN_MAX: usize = 16;

/// Gathers entries until they fill a batch.
#[derive(Debug)]
pub(crate) struct Packer {
    groups: Vec<PackGroup>,
    entries: usize,
    data_bytes: u64,
    head_bytes: usize,
    entries_max: usize,
    packs_made: u32,
}

impl Packer {
    /// A packer of at most `entries_max` entries a pack.
    pub(crate) fn new(entries_max: usize) -> Self {
        let entries_max = entries_max.clamp(1, BATCH_ENTRIES_MAX);
        Self { groups: Vec::new(), entries: 0, data_bytes: 0, head_bytes: 0, entries_max, packs_made: 0 }
    }

    /// Adds an entry; returns the pack that had no room for it.
    pub(crate) fn add(&mut self, directory: &SourceDirectory, entry: PackEntry) -> Option<Pack> {
        let head_bytes = entry.head_bytes() + directory.target_path().as_bytes().len() + ENTRY_HEAD_BYTES;
        let entries_max = self.ramp(self.entries_max, FIRST_ENTRIES);
        let elsewhere = self.groups.last().is_some_and(|group| !group.directory.is(directory));
        let full = self.entries >= entries_max
            // the files of one directory are best placed by one hand
            || (elsewhere && self.entries >= entries_max / 4 * 3)
            || self.data_bytes + entry.data_bytes() > self.ramp(GROUP_BYTES, FIRST_DATA_BYTES)
            || self.head_bytes + head_bytes > BATCH_HEAD_BYTES_TARGET;
        let pack = if full { self.take() } else { None };
        self.entries += 1;
        self.data_bytes += entry.data_bytes();
        self.head_bytes += head_bytes;
        match self.groups.last_mut() {
            Some(group) if group.directory.is(directory) => group.entries.push(entry),
            _ => self.begin_group(directory, entry),
        }
        pack
    }

    /// The first packs are small, so that each crosses a connection that is still in slow start (RFC 5681) at once and
    /// the target's work begins a few round trips sooner; every few packs the limit doubles.
    fn ramp<N: Ord + Copy + TryFrom<u64>>(&self, most: N, first: u64) -> N {
        let doublings = (self.packs_made / PACKS_PER_DOUBLING).min(RAMP_DOUBLINGS_MAX);
        N::try_from(first << doublings).map_or(most, |limit| limit.min(most))
    }

    fn begin_group(&mut self, directory: &SourceDirectory, entry: PackEntry) {
        let mut directory = directory.clone();
        if self.groups.len() >= DIRECTORIES_OPEN_MAX {
            directory.put_off();
        }
        self.groups.push(PackGroup { directory, entries: vec![entry] });
    }

    /// What has been gathered, if anything.
    pub(crate) fn take(&mut self) -> Option<Pack> {
        if self.groups.is_empty() {
            return None;
        }
        self.packs_made += 1;
        let groups = std::mem::take(&mut self.groups);
        (self.entries, self.data_bytes, self.head_bytes) = (0, 0, 0);
        Some(Pack { groups, tries: 0, guessed: false })
    }
}

impl Pack {
    /// How many entries it has.
    pub(crate) fn entry_count(&self) -> usize {
        self.groups.iter().map(|group| group.entries.len()).sum()
    }

    /// Where an entry goes, by its number over all groups; `None` past the end.
    pub(crate) fn target_path(&self, entry: u32) -> Option<RelPath> {
        let mut left = usize::try_from(entry).ok()?;
        for group in &self.groups {
            if let Some(entry) = group.entries.get(left) {
                let directory = group.directory.target_path();
                return Some(entry.name().map_or_else(
                    || directory.clone(),
                    |name| directory.join(name).unwrap_or_else(|_| directory.clone()),
                ));
            }
            left -= group.entries.len();
        }
        None
    }

    /// Lets go of open directories while the pack waits for its receipt.
    pub(crate) fn put_off(&mut self) {
        self.groups.iter_mut().for_each(|group| group.directory.put_off());
    }
}
