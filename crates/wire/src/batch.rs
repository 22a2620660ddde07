//! The head of a batch frame (many small entries, grouped by directory) and of a declare frame (one large file).
//!
//! Either may be followed by [`Extensions`], in a form that earlier versions refuse. **Invariant:** a decoded [`Batch`]
//! is consistent: its files' lengths add up to the frame's data, every path is a [`RelPath`], and counts are within the
//! limits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use zmove_types::{DataRanges, GroupSpan, Metadata, Name, RelPath, Root, Timestamp};

use crate::codec::{Reader, put_metadata, put_name, put_path, put_timestamp};
use crate::error::WireError;
use crate::extensions::{Extension, Extensions};
use crate::limits::{BATCH_ENTRIES_MAX, FRAME_DATA_BYTES_MAX, SYMLINK_BYTES_MAX};
use crate::ranges::{decode_ranges, encode_ranges};

/// The decoded head of a batch frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The entries by directory; the same directory may come again.
    pub groups: Vec<DirectoryGroup>,
    /// Further properties of an entry, by the entry's number, counted over all groups from 0. For a peer that speaks
    /// [`Version::V4`](crate::Version) or later.
    pub extensions: BTreeMap<u32, Extensions>,
}

/// Entries of one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryGroup {
    /// The directory's path from the target root.
    pub directory: RelPath,
    /// The entries in that directory.
    pub entries: Vec<BatchEntry>,
}

/// One entry of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchEntry {
    /// The group's directory itself: its metadata.
    Itself(Metadata),
    /// A directory, perhaps empty.
    Directory(Name, Metadata),
    /// A symbolic link and what it points to, byte for byte.
    Symlink(Name, Metadata, Box<[u8]>),
    /// A regular file whose bytes are in the frame's data.
    File(FileEntry),
    /// A file whose contents are right already: only its metadata is set.
    Retouch(Name, Metadata),
}

/// A small file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// The file's name in the group's directory.
    pub name: Name,
    /// Mode and time.
    pub metadata: Metadata,
    /// The length of the file's contents, which lie in the frame's data.
    pub bytes: u32,
    /// The root hash of the contents.
    pub root: Root,
}

/// A large file, as declared on each lane before its first chunk there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHead {
    /// The file's path below the target root.
    pub path: RelPath,
    /// Mode and time.
    pub metadata: Metadata,
    /// The file's size in bytes; more than one group.
    pub bytes: u64,
    /// The change time of the source file.
    pub ctime: Timestamp,
    /// The inode of the source file.
    pub inode: u64,
    /// Where it has data, if it has holes that are to be kept: for a peer that speaks
    /// [`Version::V4`](crate::Version) or later.
    pub data: Option<Arc<DataRanges>>,
}

impl Batch {
    /// The numbers of the entry extensions that this release knows.
    pub const ENTRY_EXTENSIONS: &'static [u16] = &[];

    /// The head's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 * self.entry_count() + 64);
        out.extend(count(self.groups.len()).to_le_bytes());
        for group in &self.groups {
            put_path(&mut out, &group.directory);
            out.extend(count(group.entries.len()).to_le_bytes());
            group.entries.iter().for_each(|entry| entry.encode(&mut out));
        }
        for (entry, extensions) in self.extensions.iter().filter(|(_, extensions)| !extensions.is_empty()) {
            out.extend(entry.to_le_bytes());
            extensions.put(&mut out);
        }
        out
    }

    /// Reads a head whose frame carries `data_bytes` of data.
    ///
    /// # Errors
    /// [`WireError`] when it is malformed, over a limit, has a critical extension that is not known, or its
    /// lengths do not add up to `data_bytes`.
    pub fn decode(bytes: &[u8], data_bytes: u32) -> Result<Self, WireError> {
        Self::decode_knowing(bytes, data_bytes, Self::ENTRY_EXTENSIONS)
    }

    fn decode_knowing(bytes: &[u8], data_bytes: u32, known: &[u16]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let group_count = reader.bounded_u32("batch groups", BATCH_ENTRIES_MAX)?;
        let mut entries_left = BATCH_ENTRIES_MAX;
        let mut groups = Vec::with_capacity(group_count);
        for _ in 0..group_count {
            let directory = reader.path()?;
            let entry_count = reader.bounded_u32("batch entries", entries_left)?;
            entries_left -= entry_count;
            let entries =
                (0..entry_count).map(|_| BatchEntry::decode(&mut reader)).collect::<Result<_, _>>()?;
            groups.push(DirectoryGroup { directory, entries });
        }
        let extensions = extensions_of_entries(&mut reader, BATCH_ENTRIES_MAX - entries_left, known)?;
        reader.finish()?;
        let batch = Self { groups, extensions };
        batch.check_sum(data_bytes)?;
        Ok(batch)
    }

    /// The number of entries in all groups.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.groups.iter().map(|group| group.entries.len()).sum()
    }

    fn check_sum(&self, data_bytes: u32) -> Result<(), WireError> {
        let claimed: u64 =
            self.groups.iter().flat_map(|group| &group.entries).map(BatchEntry::data_bytes).sum();
        if claimed == u64::from(data_bytes) {
            return Ok(());
        }
        Err(WireError::OverLimit {
            what: "sum of file lengths",
            value: claimed,
            limit: u64::from(data_bytes),
        })
    }
}

impl BatchEntry {
    fn data_bytes(&self) -> u64 {
        match self {
            Self::File(file) => u64::from(file.bytes),
            _ => 0,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Itself(metadata) => {
                out.push(1);
                put_metadata(out, metadata);
            }
            Self::Directory(name, metadata) => Self::encode_named(out, 2, name, metadata),
            Self::Symlink(name, metadata, target) => {
                Self::encode_named(out, 3, name, metadata);
                let len = u16::try_from(target.len()).expect("symlink targets are at most 4096 bytes");
                out.extend(len.to_le_bytes());
                out.extend_from_slice(target);
            }
            Self::File(file) => {
                Self::encode_named(out, 4, &file.name, &file.metadata);
                out.extend(file.bytes.to_le_bytes());
                out.extend_from_slice(&file.root.0);
            }
            Self::Retouch(name, metadata) => Self::encode_named(out, 5, name, metadata),
        }
    }

    fn encode_named(out: &mut Vec<u8>, tag: u8, name: &Name, metadata: &Metadata) {
        out.push(tag);
        put_name(out, name);
        put_metadata(out, metadata);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let tag = reader.u8()?;
        if tag == 1 {
            return reader.metadata().map(Self::Itself);
        }
        let (name, metadata) = (reader.name()?, reader.metadata()?);
        match tag {
            2 => Ok(Self::Directory(name, metadata)),
            3 => Ok(Self::Symlink(name, metadata, symlink_target(reader)?)),
            4 => {
                let bytes = reader.bounded_u32("file length", FRAME_DATA_BYTES_MAX)?;
                let bytes = u32::try_from(bytes).expect("bounded by 4 MiB");
                Ok(Self::File(FileEntry { name, metadata, bytes, root: Root(reader.array()?) }))
            }
            5 => Ok(Self::Retouch(name, metadata)),
            _ => Err(WireError::UnknownTag { what: "batch entry", tag }),
        }
    }
}

/// Reads the extensions behind `entries` entries: for some of them, in their order, the entry's number and its block.
fn extensions_of_entries(
    reader: &mut Reader<'_>,
    entries: usize,
    known: &[u16],
) -> Result<BTreeMap<u32, Extensions>, WireError> {
    let mut all = BTreeMap::new();
    let mut least = 0;
    while !reader.is_empty() {
        let entry = reader.u32()?;
        if entry < least || usize::try_from(entry).is_ok_and(|entry| entry >= entries) {
            return Err(WireError::OutOfOrder { what: "an entry's extensions" });
        }
        least = entry + 1;
        let extensions = Extensions::take(reader)?.only(known, "a batch's entry")?;
        if !extensions.is_empty() {
            all.insert(entry, extensions);
        }
    }
    Ok(all)
}

fn symlink_target(reader: &mut Reader<'_>) -> Result<Box<[u8]>, WireError> {
    let len = usize::from(reader.u16()?);
    if len == 0 || len > SYMLINK_BYTES_MAX {
        let limit = SYMLINK_BYTES_MAX as u64;
        return Err(WireError::OverLimit { what: "symlink target", value: len as u64, limit });
    }
    Ok(reader.bytes(len)?.into())
}

impl FileHead {
    /// The number of the extension that tells where the file has data. It is critical: frames carry only that.
    const DATA: u16 = 16;
    /// The extensions of a large file that are known here.
    const EXTENSIONS: &'static [u16] = &[Self::DATA];

    /// The data of a group, counted from its beginning.
    #[must_use]
    pub fn data_within(&self, span: GroupSpan) -> Vec<Range<usize>> {
        match &self.data {
            Some(data) => data.within(span).collect(),
            None => std::iter::once(0..span.len as usize).collect(),
        }
    }

    /// The head's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(56 + self.path.as_bytes().len());
        put_path(&mut out, &self.path);
        put_metadata(&mut out, &self.metadata);
        out.extend(self.bytes.to_le_bytes());
        put_timestamp(&mut out, self.ctime);
        out.extend(self.inode.to_le_bytes());
        if let Some(data) = &self.data {
            let extension =
                Extension { number: Self::DATA, critical: true, bytes: encode_ranges(data).into() };
            Extensions::default().with(extension).put(&mut out);
        }
        out
    }

    /// Reads a head.
    ///
    /// # Errors
    /// [`WireError`] when it is malformed, or has a critical extension that is not known.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let (path, metadata, bytes) = (reader.path()?, reader.metadata()?, reader.u64()?);
        let (ctime, inode) = (reader.timestamp()?, reader.u64()?);
        let mut data = None;
        if !reader.is_empty() {
            let extensions = Extensions::take(&mut reader)?.only(Self::EXTENSIONS, "a large file")?;
            let ranges = extensions.get(Self::DATA).map(|ranges| decode_ranges(ranges, bytes));
            data = ranges.transpose()?.map(Arc::new);
        }
        reader.finish()?;
        Ok(Self { path, metadata, bytes, ctime, inode, data })
    }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("batches hold at most 2048 entries")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extensions::tests::{any_extensions, extension};
    use proptest::prelude::{Strategy, any, prop_oneof, proptest};

    fn name(bytes: &[u8]) -> Name {
        Name::from_bytes(bytes).unwrap()
    }

    fn metadata() -> Metadata {
        Metadata { mode: 0o644, mtime: Timestamp { seconds: -2, nanos: 5 } }
    }

    #[test]
    fn batch_bytes_are_pinned() {
        let file = FileEntry { name: name(b"a"), metadata: metadata(), bytes: 3, root: Root([7; 32]) };
        let group = DirectoryGroup {
            directory: RelPath::from_bytes(b"d").unwrap(),
            entries: vec![
                BatchEntry::File(file),
                BatchEntry::Symlink(name(b"l"), metadata(), b"t".as_slice().into()),
            ],
        };
        let batch = Batch { groups: vec![group], ..Batch::default() };
        let meta = [&[0xA4, 1, 0, 0][..], &(-2_i64).to_le_bytes(), &[5, 0, 0, 0]].concat();
        let expected = [
            &[1, 0, 0, 0, 1, 0, b'd', 2, 0, 0, 0][..],
            &[&[4, 1, b'a'][..], &meta, &[3, 0, 0, 0], &[7; 32]].concat(),
            &[&[3, 1, b'l'][..], &meta, &[1, 0, b't']].concat(),
        ]
        .concat();
        assert_eq!(batch.encode(), expected);
        assert_eq!(Batch::decode(&expected, 3), Ok(batch));
    }

    #[test]
    fn lengths_must_add_up() {
        let bytes = Batch::default().encode();
        let error = WireError::OverLimit { what: "sum of file lengths", value: 0, limit: 1 };
        assert_eq!(Batch::decode(&bytes, 1), Err(error));
    }

    #[test]
    fn a_path_that_climbs_is_refused() {
        let bytes = [&1_u32.to_le_bytes()[..], &[2, 0, b'.', b'.'], &0_u32.to_le_bytes()].concat();
        assert_eq!(Batch::decode(&bytes, 0), Err(WireError::Path(zmove_types::PathError::Dots)));
    }

    fn any_entry() -> impl Strategy<Value = BatchEntry> {
        let any_name = "[a-z\u{e9}]{1,12}".prop_map(|text| name(text.as_bytes()));
        let any_metadata = (0..0o10000_u32, any::<i64>(), 0..1_000_000_000_u32)
            .prop_map(|(mode, seconds, nanos)| Metadata { mode, mtime: Timestamp { seconds, nanos } });
        (any_name, any_metadata, any::<[u8; 32]>(), 0..1000_u32, 0..5_u8).prop_map(
            |(name, meta, root, bytes, kind)| match kind {
                0 => BatchEntry::Itself(meta),
                1 => BatchEntry::Directory(name, meta),
                2 => BatchEntry::Symlink(name, meta, root.as_slice().into()),
                3 => BatchEntry::Retouch(name, meta),
                _ => BatchEntry::File(FileEntry { name, metadata: meta, bytes, root: Root(root) }),
            },
        )
    }

    #[test]
    fn a_declaration_s_bytes_are_pinned() {
        let metadata = Metadata { mode: 0o644, mtime: Timestamp { seconds: -2, nanos: 3 } };
        let (path, ctime) = (RelPath::from_bytes(b"d/f").unwrap(), Timestamp { seconds: 4, nanos: 5 });
        let head = FileHead { path, metadata, bytes: 0x0102_0304_0506, ctime, inode: 7, data: None };
        let mut expected = vec![3, 0, b'd', b'/', b'f', 0xA4, 1, 0, 0, 0xFE];
        expected.extend([0xFF; 7]);
        expected.extend([3, 0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 7]);
        expected.extend([0; 7]);
        assert_eq!(head.encode(), expected);
        assert_eq!(FileHead::decode(&expected), Ok(head.clone()));
        let plain = expected.len();
        let data = DataRanges::new(head.bytes, Vec::from([Range { start: 8, end: 9 }])).map(Arc::new);
        let with_holes = FileHead { data, ..head.clone() };
        expected.extend([23, 0, 0, 0, 16, 0, 1, 16, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(with_holes.encode(), expected);
        assert_eq!(FileHead::decode(&expected), Ok(with_holes));
        let mut beyond = expected.clone();
        beyond[plain + 26] = 0xFF;
        assert!(matches!(FileHead::decode(&beyond), Err(WireError::OverLimit { what: "end of data", .. })));
        expected[plain + 4] = 5;
        let error = WireError::UnknownExtension { what: "a large file", number: 5 };
        assert_eq!(FileHead::decode(&expected), Err(error));
        expected[plain + 6] = 0;
        assert_eq!(FileHead::decode(&expected), Ok(head), "what is not critical is passed over");
    }

    /// Two directories with a group each, so that numbers go on over groups.
    fn two_entries() -> Batch {
        let group = |text: &[u8]| DirectoryGroup {
            directory: RelPath::from_bytes(text).unwrap(),
            entries: vec![BatchEntry::Itself(metadata())],
        };
        Batch { groups: vec![group(b"a"), group(b"b")], ..Batch::default() }
    }

    #[test]
    fn extensions_of_entries_are_pinned_and_cost_nothing_where_there_are_none() {
        let mut batch = two_entries();
        let mut expected = batch.encode();
        batch.extensions.insert(0, Extensions::default());
        assert_eq!(batch.encode(), expected, "an empty block is none");
        batch.extensions.clear();
        batch.extensions.insert(1, Extensions::default().with(extension(5, true, b"z")));
        expected.extend([1, 0, 0, 0, 8, 0, 0, 0, 5, 0, 1, 1, 0, 0, 0, b'z']);
        assert_eq!(batch.encode(), expected);
        assert_eq!(Batch::decode_knowing(&expected, 0, &[5]), Ok(batch));
        let error = WireError::UnknownExtension { what: "a batch's entry", number: 5 };
        assert_eq!(Batch::decode(&expected, 0), Err(error));
        let mark = expected.len() - 6;
        expected[mark] = 0;
        assert_eq!(Batch::decode(&expected, 0), Ok(two_entries()), "what is not critical is passed over");
    }

    #[test]
    fn extensions_of_entries_that_are_not_there_are_refused() {
        let block = |entry: u8| [entry, 0, 0, 0, 0, 0, 0, 0];
        let decode = |blocks: &[[u8; 8]]| {
            Batch::decode(&[two_entries().encode(), blocks.concat()].concat(), 0).map(|_| ())
        };
        let error = Err(WireError::OutOfOrder { what: "an entry's extensions" });
        assert_eq!(decode(&[block(0), block(1)]), Ok(()));
        assert_eq!([&[block(2)][..], &[block(1), block(0)], &[block(1), block(1)]].map(decode), [error; 3]);
    }

    proptest! {
        #[test]
        fn batches_survive_the_wire(
            entries in proptest::collection::vec(any_entry(), 0..20),
            split in 0..20_usize,
            extended in proptest::collection::btree_map(0..20_u32, any_extensions(), 0..4),
        ) {
            let at = split.min(entries.len());
            let groups = [&entries[..at], &entries[at..]].into_iter().map(|entries| DirectoryGroup {
                directory: RelPath::from_bytes(b"some/where").unwrap(),
                entries: entries.to_vec(),
            });
            let is_there = |(entry, extensions): &(u32, Extensions)| {
                usize::try_from(*entry).unwrap() < entries.len() && !extensions.is_empty()
            };
            let extensions = extended.into_iter().filter(is_there).collect();
            let batch = Batch { groups: groups.collect(), extensions };
            let data: u64 = entries.iter().map(BatchEntry::data_bytes).sum();
            let known: Vec<_> = (0..=u16::MAX).collect();
            let decoded = Batch::decode_knowing(&batch.encode(), u32::try_from(data).unwrap(), &known);
            assert_eq!(decoded, Ok(batch));
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..300),
            proptest::collection::vec(0..6_u8, 0..300),
        ]) {
            let _outcome = Batch::decode(&bytes, 0);
            let _outcome = FileHead::decode(&bytes);
        }
    }
}
