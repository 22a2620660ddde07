//! Packs: the small entries that will travel in one batch, gathered by directory. The planner fills them,
//! readers turn them into batch frames.
//!
//! The first packs are small, and their limit doubles after every few packs: a small pack crosses a
//! connection that is still in slow start at once, and the target's work begins some round trips sooner.
//!
//! A directory that fits into one pack is not split over two, because the receiver then makes all its files in one
//! staging directory. So a pack that is nearly full closes where another directory begins, and the part of a directory
//! at the end of a full pack moves on into the next.

use std::ops::Add;
use std::sync::Arc;

use crossbeam_channel::Sender;
use zmove_scan::{Beside, Entry, EntryKind, SharedFileId, WalkTotal};
use zmove_types::{GROUP_BYTES, Metadata, RelPath, Root};
use zmove_wire::Operation;
use zmove_wire::limits::{BATCH_ENTRIES_MAX, BATCH_HEAD_BYTES_TARGET};

use crate::plan::links::FirstName;
use crate::read::source::SourceDirectory;

/// A file that could not be read, of which it is not known whether the target needs it.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) directory: SourceDirectory,
    pub(crate) entry: Entry,
}

/// Work on small entries for one reader.
#[derive(Clone, Debug)]
pub(crate) struct Pack {
    pub(crate) groups: Vec<PackGroup>,
    /// How often the pack has been sent before.
    pub(crate) tries: u8,
    pub(crate) basis: Basis,
    /// The channel for files that cannot be read before they are known to be needed; dropped once the pack has been
    /// read.
    pub(crate) unread: Option<Sender<Unread>>,
}

/// What was known about the target when a pack was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// Enough: the entries are needed.
    Known,
    /// Nothing: the entries are sent as a guess.
    Guessed,
    /// Nothing: the entries are read, and sent when it is known that they are needed.
    ReadAhead,
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
    Itself(Metadata, Beside),
    /// An entry in the directory: a subdirectory, a link, or a file of one group or less.
    Within(Entry),
    /// A file of any size whose contents may be at the target already, with the root hash of the target's
    /// file.
    Compare(Entry, Root),
    /// A file of any size whose contents are at the target already, and whose other metadata are not.
    Retouch(Entry),
    /// Another name of a file that is at the target under its first one.
    Link(Entry, Arc<FirstName>),
}

impl PackEntry {
    /// The entry, unless it is the directory itself.
    pub(crate) fn entry(&self) -> Option<&Entry> {
        match self {
            Self::Itself(..) => None,
            Self::Within(entry)
            | Self::Compare(entry, _)
            | Self::Retouch(entry)
            | Self::Link(entry, _) => Some(entry),
        }
    }

    /// The bytes of contents that travel with the entry, by what the scan has seen.
    pub(crate) fn data_bytes(&self) -> u64 {
        match self {
            Self::Within(entry) if entry.kind == EntryKind::File => entry.size,
            _ => 0,
        }
    }

    /// How many bytes its extended attributes have, by what the scan has seen.
    fn xattr_bytes(&self) -> usize {
        let (Self::Itself(_, beside)
        | Self::Within(Entry { beside, .. })
        | Self::Compare(Entry { beside, .. }, _)
        | Self::Link(Entry { beside, .. }, _)
        | Self::Retouch(Entry { beside, .. })) = self;
        beside.xattrs.as_ref().map_or(0, |mark| mark.bytes)
    }

    /// How many bytes the entry's name and link target have.
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

    /// The entry's path below the target, if it is one of this `directory`.
    pub(crate) fn target_path(&self, directory: &SourceDirectory) -> RelPath {
        self.entry().map_or_else(
            || directory.target_path().clone(),
            |entry| directory.target_of(&entry.name),
        )
    }

    /// The path below the target at which an operation for the entry has failed. All entries of a directory that cannot
    /// be opened or made have the path of that.
    pub(crate) fn failed_path(&self, directory: &SourceDirectory, operation: Operation) -> RelPath {
        match self.entry() {
            Some(entry) if operation.is_on_directory() && entry.kind != EntryKind::Directory => {
                directory.target_path().clone()
            }
            _ => self.target_path(directory),
        }
    }
}

/// An entry's fixed part in a batch's head, rounded up.
const ENTRY_HEAD_BYTES: usize = 64;
/// The data of one of the first packs: about what ten segments of a large MTU hold (RFC 6928).
const FIRST_DATA_BYTES: u64 = 64 << 10;
const FIRST_ENTRIES: u64 = 64;

/// The number of the first packs that hold what was found; what does not fit in packs is counted in the same way.
pub(crate) fn packs_of(found: WalkTotal) -> u64 {
    found
        .bytes
        .div_ceil(FIRST_DATA_BYTES)
        .max(found.entries.div_ceil(FIRST_ENTRIES))
        .max(1)
}

/// The sizes of packs, by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackSizes {
    /// For connections, of which each begins in slow start, and any may be slow at the end: the first packs are small,
    /// about one for each lane that may begin before `Opened`, and the last ones are split.
    ForLanes,
    /// Where nothing is in slow start, and no lane slower than another. Storage that answers late is slow as long as
    /// all packs under way are of one directory or two, and how many are under way is bounded, however small they are.
    Within,
}

impl PackSizes {
    /// The number of packs before the limit doubles.
    fn packs_per_doubling(self) -> u32 {
        match self {
            Self::ForLanes => 8,
            Self::Within => 1,
        }
    }
}

const RAMP_DOUBLINGS_MAX: u32 = 16;
/// The maximum number of entries in one pack. More cost less per file, fewer spread a small tree over more lanes and
/// writers.
const ENTRIES_MAX: usize = 1024;
const _: () = assert!(ENTRIES_MAX <= BATCH_ENTRIES_MAX);
/// The number of directories that a pack holds open.
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

/// The part of a batch that entries take.
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

    /// Adds an entry; returns the pack that had no room for it.
    pub(crate) fn add(&mut self, directory: &SourceDirectory, entry: PackEntry) -> Option<Pack> {
        let more = PackLoad::of(directory, &entry);
        let elsewhere = self
            .groups
            .last()
            .is_some_and(|group| !group.directory.is(directory));
        // The files of one directory are best placed by one writer.
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

    /// Takes what has been gathered, except for a beginning of `directory` that fits into the next pack together with
    /// `more`: a directory that comes in one piece is the least work for the target.
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

    /// The limit of the present pack. The first packs are small, so that each crosses a connection that is still in
    /// slow start (RFC 5681) at once and the target's work begins a few round trips sooner; every few packs the limit
    /// doubles.
    fn ramp<N: Ord + Copy + TryFrom<u64>>(&self, most: N, first: u64) -> N {
        let doublings =
            (self.packs_made / self.pack_sizes.packs_per_doubling()).min(RAMP_DOUBLINGS_MAX);
        N::try_from(first << doublings).map_or(most, |limit| limit.min(most))
    }

    fn begin_group(&mut self, directory: &SourceDirectory, entry: PackEntry) {
        let mut directory = directory.clone();
        if self.groups.len() >= DIRECTORIES_OPEN_MAX {
            directory.put_off();
        }
        self.groups.push(PackGroup {
            directory,
            entries: vec![entry],
        });
    }

    /// Takes what has been gathered, if anything.
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
        // an upper bound of what it takes in a batch's head, should it be the first of its directory
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
    /// The bytes of its files.
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
    /// A pack of entries that are needed.
    pub(crate) fn of(groups: Vec<PackGroup>) -> Self {
        Self {
            groups,
            tries: 0,
            basis: Basis::Known,
            unread: None,
        }
    }

    /// Divides the entries, in their order, into packs with data of at most `bytes_max` or a single file; a directory
    /// that fits into one pack is not split.
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

    /// The bytes of the pack's files.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.groups.iter().map(PackGroup::data_bytes).sum()
    }

    /// The number of the pack's entries.
    pub(crate) fn entry_count(&self) -> usize {
        self.groups.iter().map(|group| group.entries.len()).sum()
    }

    /// About how many bytes the memory of its names takes.
    pub(crate) fn name_bytes(&self) -> u64 {
        self.groups
            .iter()
            .map(|group| group.load().head_bytes as u64)
            .sum()
    }

    /// An entry, by its number over all groups, and its directory.
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

    /// The entries other than files that have several names, each with its path at the target and its number at the
    /// source.
    pub(crate) fn shared_beside_files(
        &self,
    ) -> impl Iterator<Item = (&PackEntry, RelPath, SharedFileId)> {
        let all = self
            .groups
            .iter()
            .flat_map(|group| group.entries.iter().map(|entry| (&group.directory, entry)));
        all.filter_map(|(directory, what)| {
            let entry = what.entry().filter(|entry| entry.kind != EntryKind::File)?;
            Some((what, what.target_path(directory), entry.shared?.id))
        })
    }

    /// The target path of an entry, by its number over all groups; `None` past the end.
    pub(crate) fn target_path(&self, entry: u32) -> Option<RelPath> {
        self.entry(entry)
            .map(|(directory, entry)| entry.target_path(directory))
    }

    /// Closes the pack's directories while it waits for its receipt.
    pub(crate) fn put_off(&mut self) {
        self.groups
            .iter_mut()
            .for_each(|group| group.directory.put_off());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use zmove_scan::{ScanConfig, ScanItem, ScanRoot, scan};

    /// The files of a tree, packed as a scan finds them.
    fn packs(home: &std::path::Path, entries_max: usize) -> Vec<Pack> {
        let root = ScanRoot::new(home.to_owned(), RelPath::root());
        let scan = scan(vec![root], &ScanConfig::default());
        let mut packer = Packer {
            packs_made: RAMP_DOUBLINGS_MAX,
            entries_max,
            ..Packer::new(PackSizes::Within)
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

    /// The number of packs that the files of each directory are in.
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
        assert_eq!(sizes(PackSizes::Within), [64, 128, 256, 512]);
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
