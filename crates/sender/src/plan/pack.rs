//! Packs: small entries that are sent in one batch, gathered by directory. The planner fills them, and readers turn
//! them into batch frames.
//!
//! The first packs are small, and their limit doubles after every few packs. A connection that is still in slow start
//! carries a small pack without delay, and the target can start its work some round trips earlier.
//!
//! A directory that fits into one pack is not split between two, because the receiver then creates all of its files in
//! one staging directory. A pack that is nearly full therefore closes where another directory begins. If a pack becomes
//! full in the middle of a directory, the part of that directory moves to the next pack.

use std::ops::Add;
use std::sync::Arc;

use crossbeam_channel::Sender;
use zmove_scan::{Entry, EntryKind, EntryProperties, HardLinkedFileId, WalkTotals};
use zmove_types::{GROUP_BYTES, Metadata, RelPath, Root};
use zmove_wire::Operation;
use zmove_wire::limits::{BATCH_ENTRIES_MAX, BATCH_HEAD_BYTES_TARGET};

use crate::plan::links::FirstName;
use crate::read::source::SourceDirectory;

/// A file that could not be read and that the target may not need.
#[derive(Debug)]
pub(crate) struct UnreadFile {
    pub(crate) directory: SourceDirectory,
    pub(crate) entry: Entry,
}

/// Work on small entries for one reader.
#[derive(Clone, Debug)]
pub(crate) struct Pack {
    pub(crate) groups: Vec<PackGroup>,
    /// Number of times that the pack has been sent before.
    pub(crate) tries: u8,
    pub(crate) basis: PlanBasis,
    /// The channel for files that cannot be read while it is unknown whether the target needs them. Dropped once the
    /// pack has been read.
    pub(crate) unread: Option<Sender<UnreadFile>>,
}

/// How much was known about the target when a pack was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanBasis {
    /// The entries are known to be needed.
    Known,
    /// The state of the target is unknown, and the entries are sent as a guess.
    Guessed,
    /// The state of the target is unknown. The entries are read, but sent only when they are known to be needed.
    ReadAhead,
}

/// The entries of one directory.
#[derive(Clone, Debug)]
pub(crate) struct PackGroup {
    pub(crate) directory: SourceDirectory,
    pub(crate) entries: Vec<PackEntry>,
}

/// One entry of a pack.
#[derive(Clone, Debug)]
pub(crate) enum PackEntry {
    /// The directory itself.
    Itself(Metadata, EntryProperties),
    /// An entry in the directory: a subdirectory, a symbolic link, or a file of at most one group.
    Within(Entry),
    /// A file of any size whose contents may already be at the target, with the root hash of the target's file.
    Compare(Entry, Root),
    /// A file of any size whose contents are already at the target, but whose metadata differ.
    Retouch(Entry),
    /// Another name of a file that is at the target under its first name.
    Link(Entry, Arc<FirstName>),
}

impl PackEntry {
    /// Returns the entry, or `None` for the directory itself.
    pub(crate) fn entry(&self) -> Option<&Entry> {
        match self {
            Self::Itself(..) => None,
            Self::Within(entry)
            | Self::Compare(entry, _)
            | Self::Retouch(entry)
            | Self::Link(entry, _) => Some(entry),
        }
    }

    /// Returns the number of content bytes sent with the entry, according to the scan.
    pub(crate) fn data_bytes(&self) -> u64 {
        match self {
            Self::Within(entry) if entry.kind == EntryKind::File => entry.size,
            _ => 0,
        }
    }

    /// Returns the number of bytes of extended attributes, according to the scan.
    fn xattr_bytes(&self) -> usize {
        let (Self::Itself(_, properties)
        | Self::Within(Entry { properties, .. })
        | Self::Compare(Entry { properties, .. }, _)
        | Self::Link(Entry { properties, .. }, _)
        | Self::Retouch(Entry { properties, .. })) = self;
        properties.xattrs.as_ref().map_or(0, |mark| mark.bytes)
    }

    /// Returns the length in bytes of the entry's name and of its link target.
    pub(crate) fn text_bytes(&self) -> usize {
        let first = if let Self::Link(_, first) = self {
            first.path.as_bytes().len()
        } else {
            0
        };
        first
            + self.entry().map_or(0, |entry| match &entry.kind {
                EntryKind::Symlink(target) => entry.name.as_bytes().len() + target.len(),
                _ => entry.name.as_bytes().len(),
            })
    }

    /// Returns the entry's path relative to the target. The entry must belong to `directory`.
    pub(crate) fn target_path(&self, directory: &SourceDirectory) -> RelPath {
        self.entry().map_or_else(
            || directory.target_path().clone(),
            |entry| directory.target_of(&entry.name),
        )
    }

    /// Returns the path, relative to the target, at which an operation for the entry has failed. If the directory could
    /// not be opened or created, all of its entries failed at the path of the directory.
    pub(crate) fn failed_path(&self, directory: &SourceDirectory, operation: Operation) -> RelPath {
        match self.entry() {
            Some(entry) if operation.is_on_directory() && entry.kind != EntryKind::Directory => {
                directory.target_path().clone()
            }
            _ => self.target_path(directory),
        }
    }
}

/// Size in bytes of an entry's fixed part in the head of a batch, rounded up.
const ENTRY_HEAD_BYTES: usize = 64;
/// Data bytes of one of the first packs: about ten segments with a large MTU (RFC 6928).
const FIRST_DATA_BYTES: u64 = 64 << 10;
const FIRST_ENTRIES: u64 = 64;

/// Returns the number of packs of the initial size that would hold all entries found. Large files, which are not sent
/// in packs, are counted in the same way.
pub(crate) fn packs_of(found: WalkTotals) -> u64 {
    found
        .bytes
        .div_ceil(FIRST_DATA_BYTES)
        .max(found.entries.div_ceil(FIRST_ENTRIES))
        .max(1)
}

/// The sizes of packs, depending on how they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackSizes {
    /// Sizes for connections, each of which begins in slow start and may be slow at the end. The first packs are small,
    /// about one for each lane that may begin before `Opened`. The last packs are split.
    ForLanes,
    /// Sizes for a local copy, which has neither slow start nor slow lanes. Small packs would slow down storage with a
    /// high latency, because all packs in flight would come from only one or two directories. The number of packs in
    /// flight is limited regardless of their size.
    LocalCopy,
}

impl PackSizes {
    /// Returns the number of packs after which the limit doubles.
    fn packs_per_doubling(self) -> u32 {
        match self {
            Self::ForLanes => 8,
            Self::LocalCopy => 1,
        }
    }
}

const RAMP_DOUBLINGS_MAX: u32 = 16;
/// Maximum number of entries in one pack. A higher limit reduces the cost per file. A lower limit spreads a small tree
/// over more lanes and writers.
const ENTRIES_MAX: usize = 1024;
const _: () = assert!(ENTRIES_MAX <= BATCH_ENTRIES_MAX);
/// Maximum number of directories that a pack holds open.
const DIRECTORIES_OPEN_MAX: usize = 16;

/// Gathers entries until they fill a batch.
#[derive(Debug)]
pub(crate) struct Packer {
    groups: Vec<PackGroup>,
    load: PackLoad,
    entries_max: usize,
    pack_sizes: PackSizes,
    packs_made: u32,
}

/// The amount of room in a batch that entries use.
#[derive(Clone, Copy, Debug, Default)]
struct PackLoad {
    entries: usize,
    data_bytes: u64,
    head_bytes: usize,
}

impl Packer {
    pub(crate) fn new(pack_sizes: PackSizes) -> Self {
        Self {
            groups: Vec::new(),
            load: PackLoad::default(),
            entries_max: ENTRIES_MAX,
            pack_sizes,
            packs_made: 0,
        }
    }

    /// Adds an entry. Returns the gathered pack if the entry starts a new one, because the gathered pack has no room
    /// for it or is nearly full and the entry belongs to another directory.
    pub(crate) fn add(&mut self, directory: &SourceDirectory, entry: PackEntry) -> Option<Pack> {
        let more = PackLoad::of(directory, &entry);
        let elsewhere = self
            .groups
            .last()
            .is_some_and(|group| !group.directory.is(directory));
        // It is most efficient if a single writer creates all files of a directory.
        let nearly_full = elsewhere && self.load.entries >= self.most_entries() / 4 * 3;
        let pack = if nearly_full || !self.fits(self.load + more) {
            self.take_before(directory, more)
        } else {
            None
        };
        self.load = self.load + more;
        match self.groups.last_mut() {
            Some(group) if group.directory.is(directory) => group.entries.push(entry),
            _ => self.begin_group(directory, entry),
        }
        pack
    }

    /// Takes the gathered entries, except those of `directory` if they fit into the next pack together with `more`. A
    /// directory that is not split causes the least work for the target.
    fn take_before(&mut self, directory: &SourceDirectory, more: PackLoad) -> Option<Pack> {
        let begun = self.groups.pop_if(|group| group.directory.is(directory));
        let load = begun.as_ref().map(PackGroup::load).unwrap_or_default();
        if self.groups.is_empty() || !self.fits(load + more) {
            self.groups.extend(begun);
            return self.take();
        }
        let pack = self.take();
        self.groups.extend(begun);
        self.load = load;
        pack
    }

    fn fits(&self, load: PackLoad) -> bool {
        load.entries <= self.most_entries()
            && load.data_bytes <= self.ramp(GROUP_BYTES, FIRST_DATA_BYTES)
            && load.head_bytes <= BATCH_HEAD_BYTES_TARGET
    }

    fn most_entries(&self) -> usize {
        self.ramp(self.entries_max, FIRST_ENTRIES)
    }

    /// Returns the limit for the current pack. The limit is small for the first packs and doubles after every few
    /// packs. A connection that is still in slow start (RFC 5681) carries a small pack without delay, so that the
    /// target can start its work a few round trips earlier.
    fn ramp<N: Ord + Copy + TryFrom<u64>>(&self, most: N, first: u64) -> N {
        let doublings =
            (self.packs_made / self.pack_sizes.packs_per_doubling()).min(RAMP_DOUBLINGS_MAX);
        N::try_from(first << doublings).map_or(most, |limit| limit.min(most))
    }

    fn begin_group(&mut self, directory: &SourceDirectory, entry: PackEntry) {
        let mut directory = directory.clone();
        if self.groups.len() >= DIRECTORIES_OPEN_MAX {
            directory.close();
        }
        self.groups.push(PackGroup {
            directory,
            entries: vec![entry],
        });
    }

    /// Takes the gathered entries, if there are any.
    pub(crate) fn take(&mut self) -> Option<Pack> {
        self.load = PackLoad::default();
        if self.groups.is_empty() {
            return None;
        }
        self.packs_made += 1;
        Some(Pack::of(std::mem::take(&mut self.groups)))
    }
}

impl PackLoad {
    fn of(directory: &SourceDirectory, entry: &PackEntry) -> Self {
        // An upper bound of the entry's size in the head of a batch if it is the first of its directory.
        let path_bytes = directory.target_path().as_bytes().len();
        let head_bytes =
            2 * ENTRY_HEAD_BYTES + entry.text_bytes() + entry.xattr_bytes() + path_bytes;
        Self {
            entries: 1,
            data_bytes: entry.data_bytes(),
            head_bytes,
        }
    }
}

impl Add for PackLoad {
    type Output = Self;
    fn add(self, more: Self) -> Self {
        Self {
            entries: self.entries + more.entries,
            data_bytes: self.data_bytes + more.data_bytes,
            head_bytes: self.head_bytes + more.head_bytes,
        }
    }
}

impl PackGroup {
    /// Returns the total size of the group's files in bytes.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.entries.iter().map(PackEntry::data_bytes).sum()
    }

    fn load(&self) -> PackLoad {
        self.entries
            .iter()
            .map(|entry| PackLoad::of(&self.directory, entry))
            .fold(PackLoad::default(), PackLoad::add)
    }
}

impl Pack {
    /// Creates a pack of entries that are needed.
    pub(crate) fn of(groups: Vec<PackGroup>) -> Self {
        Self {
            groups,
            tries: 0,
            basis: PlanBasis::Known,
            unread: None,
        }
    }

    /// Divides the entries into packs without changing their order. Each pack contains at most `bytes_max` bytes of
    /// data, or a single larger file. A directory that fits into one pack is not split.
    pub(crate) fn split(self, bytes_max: u64) -> Vec<Self> {
        let mut pieces = Vec::new();
        let mut piece = Vec::<PackGroup>::new();
        let mut bytes = 0;
        for group in self.groups {
            let whole = group.data_bytes();
            let mut full = bytes + whole > bytes_max && whole <= bytes_max;
            let PackGroup { directory, entries } = group;
            for entry in entries {
                let more = entry.data_bytes();
                if bytes > 0 && (full || bytes + more > bytes_max) {
                    pieces.push(std::mem::take(&mut piece));
                    bytes = 0;
                }
                full = false;
                bytes += more;
                match piece.last_mut() {
                    Some(group) if group.directory.is(&directory) => group.entries.push(entry),
                    _ => piece.push(PackGroup {
                        directory: directory.clone(),
                        entries: vec![entry],
                    }),
                }
            }
        }
        pieces.push(piece);
        pieces
            .into_iter()
            .map(|groups| Self {
                groups,
                unread: self.unread.clone(),
                ..self
            })
            .collect()
    }

    /// Returns the total size of the pack's files in bytes.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.groups.iter().map(PackGroup::data_bytes).sum()
    }

    /// Returns the number of entries in the pack.
    pub(crate) fn entry_count(&self) -> usize {
        self.groups.iter().map(|group| group.entries.len()).sum()
    }

    /// Returns the approximate memory of the pack's names in bytes.
    pub(crate) fn name_bytes(&self) -> u64 {
        self.groups
            .iter()
            .map(|group| group.load().head_bytes as u64)
            .sum()
    }

    /// Returns an entry, given by its index over all groups, and its directory.
    pub(crate) fn entry(&self, number: u32) -> Option<(&SourceDirectory, &PackEntry)> {
        let mut left = usize::try_from(number).ok()?;
        for group in &self.groups {
            if let Some(entry) = group.entries.get(left) {
                return Some((&group.directory, entry));
            }
            left -= group.entries.len();
        }
        None
    }

    /// Returns the non-file entries that have several names, each with its path at the target and its identity at the
    /// source.
    pub(crate) fn shared_non_files(
        &self,
    ) -> impl Iterator<Item = (&PackEntry, RelPath, HardLinkedFileId)> {
        let all = self
            .groups
            .iter()
            .flat_map(|group| group.entries.iter().map(|entry| (&group.directory, entry)));
        all.filter_map(|(directory, what)| {
            let entry = what.entry().filter(|entry| entry.kind != EntryKind::File)?;
            Some((what, what.target_path(directory), entry.shared?.id))
        })
    }

    /// Returns the target path of an entry, given by its index over all groups, or `None` past the end.
    pub(crate) fn target_path(&self, entry: u32) -> Option<RelPath> {
        self.entry(entry)
            .map(|(directory, entry)| entry.target_path(directory))
    }

    /// Closes the pack's directories. Called when the pack has been sent and waits for its receipt.
    pub(crate) fn close_directories(&mut self) {
        self.groups
            .iter_mut()
            .for_each(|group| group.directory.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use zmove_scan::{ScanConfig, ScanItem, ScanRoot, scan};

    /// Packs the files of a tree in the order in which a scan finds them.
    fn packs(home: &std::path::Path, entries_max: usize) -> Vec<Pack> {
        let root = ScanRoot::new(home.to_owned(), RelPath::root());
        let scan = scan(vec![root], &ScanConfig::default());
        let mut packer = Packer {
            packs_made: RAMP_DOUBLINGS_MAX,
            entries_max,
            ..Packer::new(PackSizes::LocalCopy)
        };
        let mut packs = Vec::new();
        for item in scan.receiver() {
            let ScanItem::Batch(batch) = item else {
                continue;
            };
            let directory = SourceDirectory::held_open(&batch.directory);
            let files = batch
                .entries
                .into_iter()
                .filter(|entry| matches!(entry.kind, EntryKind::File));
            packs.extend(files.filter_map(|file| packer.add(&directory, PackEntry::Within(file))));
        }
        packs.extend(packer.take());
        packs
    }

    /// Returns the number of packs that contain files of each directory.
    fn pieces(home: &std::path::Path, entries_max: usize) -> HashMap<RelPath, usize> {
        let mut pieces = HashMap::new();
        for pack in packs(home, entries_max) {
            assert!(pack.entry_count() <= entries_max);
            for group in pack.groups {
                *pieces
                    .entry(group.directory.target_path().clone())
                    .or_default() += 1;
            }
        }
        pieces
    }

    #[test]
    fn a_directory_that_fits_a_pack_is_in_one() {
        let home = tempfile::tempdir().unwrap();
        let files = [7, 90, 60, 100, 3, 99, 41, 77];
        for (number, count) in files.into_iter().enumerate() {
            let directory = home.path().join(number.to_string());
            std::fs::create_dir(&directory).unwrap();
            (0..count)
                .for_each(|file| std::fs::write(directory.join(file.to_string()), "x").unwrap());
        }
        let pieces = pieces(home.path(), 100);
        assert_eq!(pieces.len(), files.len());
        assert!(pieces.values().all(|&count| count == 1), "{pieces:?}");
    }

    #[test]
    fn a_pack_in_pieces_is_the_same_files_in_their_order() {
        let home = tempfile::tempdir().unwrap();
        for (directory, bytes) in [
            ("a", 10),
            ("a", 20),
            ("a", 0),
            ("b", 70),
            ("b", 500),
            ("c", 30),
        ] {
            std::fs::create_dir_all(home.path().join(directory)).unwrap();
            std::fs::write(
                home.path().join(directory).join(bytes.to_string()),
                vec![0; bytes],
            )
            .unwrap();
        }
        let pack = packs(home.path(), 100).pop().unwrap();
        let paths = |pack: &Pack| {
            (0..)
                .map_while(|entry| pack.target_path(entry))
                .collect::<Vec<_>>()
        };
        let whole = paths(&pack);
        let pieces = pack.split(100);
        assert_eq!(whole.len(), 6);
        assert_eq!(pieces.iter().flat_map(paths).collect::<Vec<_>>(), whole);
        for piece in &pieces {
            let files = piece.groups.iter().flat_map(|group| &group.entries);
            let with_data = files.filter(|file| file.data_bytes() > 0).count();
            assert!(piece.data_bytes() <= 100 || with_data == 1, "{piece:?}");
        }
        assert!(pieces.len() >= 3, "{}", pieces.len());
    }

    #[test]
    fn packs_grow_with_each_where_nothing_is_in_slow_start() {
        let home = tempfile::tempdir().unwrap();
        let root = ScanRoot::new(home.path().to_owned(), RelPath::root());
        (0..1000).for_each(|file| std::fs::write(home.path().join(file.to_string()), "x").unwrap());
        let scan = scan(vec![root], &ScanConfig::default());
        let batch = |item| {
            if let ScanItem::Batch(batch) = item {
                Some(batch)
            } else {
                None
            }
        };
        let batches: Vec<_> = scan.receiver().iter().filter_map(batch).collect();
        let sizes = |pack_sizes| {
            let mut packer = Packer::new(pack_sizes);
            let all = batches.iter().flat_map(|batch| {
                let directory = SourceDirectory::held_open(&batch.directory);
                batch
                    .entries
                    .iter()
                    .map(move |entry| (directory.clone(), entry.clone()))
            });
            let packs = all
                .filter_map(|(directory, entry)| packer.add(&directory, PackEntry::Within(entry)));
            packs.map(|pack| pack.entry_count()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(PackSizes::LocalCopy), [64, 128, 256, 512]);
        assert_eq!(
            sizes(PackSizes::ForLanes)[..9],
            [[64; 8].as_slice(), &[128]].concat()
        );
    }

    #[test]
    fn one_that_does_not_fit_is_in_as_few_as_can_be() {
        let home = tempfile::tempdir().unwrap();
        (0..250).for_each(|file| std::fs::write(home.path().join(file.to_string()), "x").unwrap());
        assert_eq!(
            pieces(home.path(), 100).into_values().collect::<Vec<_>>(),
            [3]
        );
    }
}
