//! The head of a batch frame (many small entries, grouped by directory) and of a declare frame (one large file).
//!
//! Behind either may stand [extensions](crate::extensions), which carry the other properties of an entry.
//! **Invariant:** a decoded [`Batch`] is consistent: its files' lengths add up to the frame's
//! data, every path is a [`RelPath`], and counts are within the limits.

use std::ops::Range;
use std::sync::Arc;

use zmove_types::{DataRanges, GroupSpan, Metadata, Name, RelPath, Root, Special, Timestamp};

use crate::error::WireError;
use crate::extensions::{Extensible, Extensions, KnownExtension};
use crate::extra::{ATIME, ExtraReader, ExtraWriter, FIRST_NAME, OWNERSHIP, XATTRS};
use crate::fields::{Reader, put_metadata, put_name, put_path, put_timestamp};
use crate::limits::{BATCH_ENTRIES_MAX, FRAME_DATA_BYTES_MAX, SYMLINK_BYTES_MAX, within};
use crate::ranges::{decode_ranges, encode_ranges};

/// The decoded head of a batch frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The entries by directory; the same directory may come again.
    pub groups: Vec<DirectoryGroup>,
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
    /// A FIFO, socket or device.
    Special(Name, Metadata, Special),
    /// Another name of a file.
    Link(LinkEntry),
}

/// Another name of a file that is at the target under its first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkEntry {
    /// The name in the group's directory.
    pub name: Name,
    /// Mode and time of the file, by which its first name is known.
    pub metadata: Metadata,
    /// The file's size in bytes, likewise.
    pub bytes: u64,
    /// The path of the first name below the target root.
    pub first: RelPath,
}

/// A small file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// The file's name in the group's directory.
    pub name: Name,
    /// Mode and time.
    pub metadata: Metadata,
    /// The length of the file, whose contents lie in the frame's data.
    pub bytes: u32,
    /// The root hash of the contents, holes being zeros.
    pub root: Root,
    /// The ranges with data, if the file has holes that are to be kept. Only the data lies in the frame, range after
    /// range.
    pub data: Option<Arc<DataRanges>>,
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
    /// The ranges with data, if the file has holes that are to be kept.
    pub data: Option<Arc<DataRanges>>,
}

impl Batch {
    /// The head's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 * self.entry_count() + 64);
        out.extend(count(self.groups.len()).to_le_bytes());
        for group in &self.groups {
            put_path(&mut out, &group.directory);
            out.extend(count(group.entries.len()).to_le_bytes());
            group
                .entries
                .iter()
                .for_each(|entry| entry.encode(&mut out));
        }
        let mut extras = ExtraWriter::default();
        for (number, entry) in (0_u32..).zip(self.groups.iter().flat_map(|group| &group.entries)) {
            let extensions = extras.next(entry.metadata().extra.as_deref());
            let extensions = with_data(
                extensions,
                entry.file().and_then(|file| file.data.as_deref()),
            );
            if !extensions.is_empty() {
                out.extend(number.to_le_bytes());
                extensions.put(&mut out);
            }
        }
        out
    }

    /// Reads a head whose frame carries `data_bytes` of data.
    ///
    /// # Errors
    /// [`WireError`] when it is malformed, over a limit, has a critical extension that is not known, its files together
    /// are longer than one may be, or their data do not add up to `data_bytes`.
    pub fn decode(bytes: &[u8], data_bytes: u32) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let group_count = reader.bounded_u32("batch groups", BATCH_ENTRIES_MAX)?;
        let mut entries_left = BATCH_ENTRIES_MAX;
        let mut groups = Vec::with_capacity(group_count);
        for _ in 0..group_count {
            let directory = reader.path()?;
            let entry_count = reader.bounded_u32("batch entries", entries_left)?;
            entries_left -= entry_count;
            let entries = (0..entry_count)
                .map(|_| BatchEntry::decode(&mut reader))
                .collect::<Result<_, _>>()?;
            groups.push(DirectoryGroup { directory, entries });
        }
        let mut batch = Self { groups };
        batch.take_extensions(&mut reader)?;
        reader.finish()?;
        batch.check_sums(data_bytes)?;
        Ok(batch)
    }

    /// The number of entries in all groups.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.groups.iter().map(|group| group.entries.len()).sum()
    }

    /// Takes what stands behind the entries: for some of them, in their order, the entry's number and its block.
    fn take_extensions(&mut self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let mut extras = ExtraReader::default();
        let mut entries =
            (0_u32..).zip(self.groups.iter_mut().flat_map(|group| &mut group.entries));
        while !reader.is_empty() {
            let number = reader.u32()?;
            let (_, entry) =
                entries
                    .find(|(other, _)| *other == number)
                    .ok_or(WireError::OutOfOrder {
                        what: "an entry's extensions",
                    })?;
            let extensions = Extensions::take::<BatchEntry>(reader)?;
            entry.metadata_mut().extra = extras.next(&extensions)?;
            entry.take_data(&extensions)?;
        }
        Ok(())
    }

    /// Checks that the data are those of the frame, and that the files with their holes are no longer than a frame
    /// without holes could carry: the zeros of holes are hashed, though they do not travel.
    fn check_sums(&self, data_bytes: u32) -> Result<(), WireError> {
        let entries = self.groups.iter().flat_map(|group| &group.entries);
        let files = entries.filter_map(BatchEntry::file);
        let whole = files.clone().map(|file| u64::from(file.bytes)).sum();
        within("sum of file lengths", whole, FRAME_DATA_BYTES_MAX as u64)?;
        let claimed = files.map(|file| file.data_bytes() as u64).sum();
        let limit = u64::from(data_bytes);
        if claimed == limit {
            return Ok(());
        }
        Err(WireError::OverLimit {
            what: "sum of the data of files",
            value: claimed,
            limit,
        })
    }
}

/// Batches that have these groups in their order, each of one directory itself. The head of none is longer than
/// [`DIRECTORY_HEAD_BYTES`], but for one of a single directory that is by itself.
pub fn directory_batches(
    groups: impl IntoIterator<Item = DirectoryGroup>,
) -> impl Iterator<Item = Batch> {
    let mut waiting = groups.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut batch = Batch {
            groups: vec![waiting.next()?],
        };
        let mut bytes = directory_bytes(&batch.groups[0]);
        while batch.groups.len() < DIRECTORIES_AT_ONCE
            && let Some(next) =
                waiting.next_if(|next| bytes + directory_bytes(next) <= DIRECTORY_HEAD_BYTES)
        {
            bytes += directory_bytes(&next);
            batch.groups.push(next);
        }
        Some(batch)
    })
}

/// The most bytes of a head of many directories.
pub const DIRECTORY_HEAD_BYTES: usize = 512 << 10;
/// How many directories one head has: it takes a moment to set them.
const DIRECTORIES_AT_ONCE: usize = 256;

/// No less than what a directory takes in a head.
fn directory_bytes(group: &DirectoryGroup) -> usize {
    let extras = group
        .entries
        .iter()
        .map(|entry| entry.metadata().extra_bytes());
    64 + group.directory.as_bytes().len() + extras.sum::<usize>()
}

impl BatchEntry {
    /// What the entry is to get.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        match self {
            Self::Itself(metadata)
            | Self::Directory(_, metadata)
            | Self::Symlink(_, metadata, _)
            | Self::Retouch(_, metadata)
            | Self::Special(_, metadata, _)
            | Self::Link(LinkEntry { metadata, .. })
            | Self::File(FileEntry { metadata, .. }) => metadata,
        }
    }

    /// The entry's name, unless it is the group's directory itself.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Itself(_) => None,
            Self::Directory(name, _)
            | Self::Symlink(name, _, _)
            | Self::Retouch(name, _)
            | Self::Special(name, _, _)
            | Self::Link(LinkEntry { name, .. })
            | Self::File(FileEntry { name, .. }) => Some(name),
        }
    }

    /// What the entry is to get, to be changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        match self {
            Self::Itself(metadata)
            | Self::Directory(_, metadata)
            | Self::Symlink(_, metadata, _)
            | Self::Retouch(_, metadata)
            | Self::Special(_, metadata, _)
            | Self::Link(LinkEntry { metadata, .. })
            | Self::File(FileEntry { metadata, .. }) => metadata,
        }
    }

    fn file(&self) -> Option<&FileEntry> {
        match self {
            Self::File(file) => Some(file),
            _ => None,
        }
    }

    fn take_data(&mut self, extensions: &Extensions) -> Result<(), WireError> {
        match (self, extensions.get(&DATA)) {
            (_, None) => {}
            (Self::File(file), Some(ranges)) => {
                file.data = Some(Arc::new(decode_ranges(ranges, u64::from(file.bytes))?));
            }
            (_, Some(_)) => {
                return Err(WireError::OutOfOrder {
                    what: "data of an entry that is no file",
                });
            }
        }
        Ok(())
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
                let len =
                    u16::try_from(target.len()).expect("symlink targets are at most 4096 bytes");
                out.extend(len.to_le_bytes());
                out.extend_from_slice(target);
            }
            Self::File(file) => {
                Self::encode_named(out, 4, &file.name, &file.metadata);
                out.extend(file.bytes.to_le_bytes());
                out.extend_from_slice(&file.root.0);
            }
            Self::Retouch(name, metadata) => Self::encode_named(out, 5, name, metadata),
            Self::Special(name, metadata, special) => {
                Self::encode_named(out, 6, name, metadata);
                let (tag, device) = special_parts(*special);
                out.push(tag);
                out.extend(device.to_le_bytes());
            }
            Self::Link(LinkEntry {
                name,
                metadata,
                bytes,
                first,
            }) => {
                Self::encode_named(out, 7, name, metadata);
                out.extend(bytes.to_le_bytes());
                put_path(out, first);
            }
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
                Ok(Self::File(FileEntry {
                    name,
                    metadata,
                    bytes,
                    root: Root(reader.array()?),
                    data: None,
                }))
            }
            5 => Ok(Self::Retouch(name, metadata)),
            6 => {
                let (tag, device) = (reader.u8()?, reader.u64()?);
                Ok(Self::Special(name, metadata, special_of(tag, device)?))
            }
            7 => {
                let (bytes, first) = (reader.u64()?, reader.path()?);
                if first.is_root() {
                    return Err(WireError::OutOfOrder {
                        what: "the target directory as a file",
                    });
                }
                Ok(Self::Link(LinkEntry {
                    name,
                    metadata,
                    bytes,
                    first,
                }))
            }
            _ => Err(WireError::UnknownTag {
                what: "batch entry",
                tag,
            }),
        }
    }
}

/// The tag of a special entry, and the number of its device.
fn special_parts(special: Special) -> (u8, u64) {
    match special {
        Special::Fifo => (1, 0),
        Special::Socket => (2, 0),
        Special::Character(device) => (3, device),
        Special::Block(device) => (4, device),
    }
}

fn special_of(tag: u8, device: u64) -> Result<Special, WireError> {
    match (tag, device) {
        (1, 0) => Ok(Special::Fifo),
        (2, 0) => Ok(Special::Socket),
        (3, device) => Ok(Special::Character(device)),
        (4, device) => Ok(Special::Block(device)),
        _ => Err(WireError::UnknownTag {
            what: "special entry",
            tag,
        }),
    }
}

fn symlink_target(reader: &mut Reader<'_>) -> Result<Box<[u8]>, WireError> {
    let len = usize::from(reader.u16()?);
    if len == 0 || len > SYMLINK_BYTES_MAX {
        let limit = SYMLINK_BYTES_MAX as u64;
        return Err(WireError::OverLimit {
            what: "symlink target",
            value: len as u64,
            limit,
        });
    }
    Ok(reader.bytes(len)?.into())
}

impl FileEntry {
    /// How many bytes of the frame's data are the file's.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        let bytes = self.data.as_ref().map(|data| data.data_bytes());
        bytes.map_or(self.bytes as usize, |bytes| {
            usize::try_from(bytes).expect("no more than the file's length")
        })
    }
}

impl FileHead {
    /// The data of a group, counted from its beginning.
    #[must_use]
    pub fn data_within(&self, span: GroupSpan) -> Vec<Range<usize>> {
        match &self.data {
            Some(data) => data.within(span).collect(),
            None => std::iter::once(0..span.len as usize).collect(),
        }
    }

    /// How many bytes of data a group has.
    #[must_use]
    pub fn data_bytes_within(&self, span: GroupSpan) -> u64 {
        let ranges = self.data_within(span);
        ranges.iter().map(|range| range.len() as u64).sum()
    }

    /// The head's bytes; see [`Batch::encode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(56 + self.path.as_bytes().len());
        put_path(&mut out, &self.path);
        put_metadata(&mut out, &self.metadata);
        out.extend(self.bytes.to_le_bytes());
        put_timestamp(&mut out, self.ctime);
        out.extend(self.inode.to_le_bytes());
        let extensions = ExtraWriter::default().next(self.metadata.extra.as_deref());
        let extensions = with_data(extensions, self.data.as_deref());
        if !extensions.is_empty() {
            extensions.put(&mut out);
        }
        out
    }

    /// Reads a head.
    ///
    /// # Errors
    /// [`WireError`] when it is malformed, or has a critical extension that is not known.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let (path, mut metadata, bytes) = (reader.path()?, reader.metadata()?, reader.u64()?);
        let (ctime, inode) = (reader.timestamp()?, reader.u64()?);
        let mut data = None;
        if !reader.is_empty() {
            let extensions = Extensions::take::<Self>(&mut reader)?;
            metadata.extra = ExtraReader::default().next(&extensions)?;
            let ranges = extensions
                .get(&DATA)
                .map(|ranges| decode_ranges(ranges, bytes));
            data = ranges.transpose()?.map(Arc::new);
        }
        reader.finish()?;
        Ok(Self {
            path,
            metadata,
            bytes,
            ctime,
            inode,
            data,
        })
    }
}

/// The [ranges](crate::ranges) of data of a file with holes. Critical, since frames carry the data alone.
const DATA: KnownExtension = KnownExtension::critical(5);

impl Extensible for BatchEntry {
    const NAME: &'static str = "a batch's entry";
    const KNOWN: &'static [KnownExtension] = &[OWNERSHIP, XATTRS, ATIME, FIRST_NAME, DATA];
}

impl Extensible for FileHead {
    const NAME: &'static str = "a large file";
    const KNOWN: &'static [KnownExtension] = &[OWNERSHIP, XATTRS, ATIME, DATA];
}

fn with_data(extensions: Extensions, data: Option<&DataRanges>) -> Extensions {
    let Some(data) = data else { return extensions };
    extensions.with(&DATA, encode_ranges(data))
}

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("batches hold at most 2048 entries")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extra::tests::{any_extra, xattr};
    use crate::limits::FRAME_HEAD_BYTES_MAX;
    use proptest::prelude::{Strategy, any, prop_oneof, proptest};
    use zmove_types::{Account, Extra, Xattr};

    fn name(bytes: &[u8]) -> Name {
        Name::from_bytes(bytes).unwrap()
    }

    fn metadata() -> Metadata {
        Metadata::new(
            0o644,
            Timestamp {
                seconds: -2,
                nanos: 5,
            },
        )
    }

    #[test]
    fn batch_bytes_are_pinned() {
        let file = FileEntry {
            name: name(b"a"),
            metadata: metadata(),
            bytes: 3,
            root: Root([7; 32]),
            data: None,
        };
        let group = DirectoryGroup {
            directory: RelPath::from_bytes(b"d").unwrap(),
            entries: vec![
                BatchEntry::File(file),
                BatchEntry::Symlink(name(b"l"), metadata(), b"t".as_slice().into()),
            ],
        };
        let batch = Batch {
            groups: vec![group],
        };
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
    fn a_small_file_s_holes_are_pinned_and_its_data_alone_is_in_the_frame() {
        let data = DataRanges::new(9, Vec::from([Range { start: 4, end: 6 }])).map(Arc::new);
        let (metadata, root) = (metadata(), Root([7; 32]));
        let file = FileEntry {
            name: name(b"a"),
            metadata,
            bytes: 9,
            root,
            data,
        };
        let (link, directory) = (
            BatchEntry::Retouch(name(b"l"), file.metadata.clone()),
            RelPath::root(),
        );
        let entries = vec![link, BatchEntry::File(file)];
        let batch = Batch {
            groups: vec![DirectoryGroup { directory, entries }],
        };
        let mut bytes = batch.encode();
        let block = [1, 0, 0, 0, 23, 0, 0, 0, 5, 0, 1, 16, 0, 0, 0];
        let ranges = [4, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0];
        assert!(bytes.ends_with(&[&block[..], &ranges].concat()));
        assert_eq!(Batch::decode(&bytes, 2), Ok(batch));
        assert!(matches!(
            Batch::decode(&bytes, 9),
            Err(WireError::OverLimit { .. })
        ));
        let at = bytes.len() - block.len() - ranges.len();
        bytes[at] = 0;
        let error = WireError::OutOfOrder {
            what: "data of an entry that is no file",
        };
        assert_eq!(Batch::decode(&bytes, 9), Err(error));
    }

    #[test]
    fn lengths_must_add_up() {
        let bytes = Batch::default().encode();
        let error = WireError::OverLimit {
            what: "sum of the data of files",
            value: 0,
            limit: 1,
        };
        assert_eq!(Batch::decode(&bytes, 1), Err(error));
        let file = FileEntry {
            name: name(b"a"),
            metadata: metadata(),
            bytes: 3,
            root: Root([7; 32]),
            data: None,
        };
        let group = DirectoryGroup {
            directory: RelPath::root(),
            entries: vec![BatchEntry::File(file)],
        };
        let bytes = Batch {
            groups: vec![group],
        }
        .encode();
        let error = WireError::OverLimit {
            what: "sum of the data of files",
            value: 3,
            limit: 2,
        };
        assert_eq!(Batch::decode(&bytes, 2), Err(error));
    }

    /// Files without data cost their sender some bytes each, and whoever hashes them all of their zeros.
    #[test]
    fn files_of_holes_are_together_no_longer_than_a_frame() {
        let batch = |bytes: &[u32]| {
            let file = |bytes: &u32| {
                let data = DataRanges::new(u64::from(*bytes), Vec::new()).map(Arc::new);
                let name = Name::from_bytes(b"f").unwrap();
                BatchEntry::File(FileEntry {
                    name,
                    metadata: Metadata::default(),
                    bytes: *bytes,
                    root: Root([0; 32]),
                    data,
                })
            };
            let entries = bytes.iter().map(file).collect();
            Batch {
                groups: vec![DirectoryGroup {
                    directory: RelPath::root(),
                    entries,
                }],
            }
            .encode()
        };
        let half = u32::try_from(FRAME_DATA_BYTES_MAX / 2).unwrap();
        assert!(Batch::decode(&batch(&[half, half]), 0).is_ok());
        let value = FRAME_DATA_BYTES_MAX as u64 + 1;
        let error = WireError::OverLimit {
            what: "sum of file lengths",
            value,
            limit: value - 1,
        };
        assert_eq!(Batch::decode(&batch(&[half, half, 1]), 0), Err(error));
    }

    #[test]
    fn a_path_that_climbs_is_refused() {
        let bytes = [
            &1_u32.to_le_bytes()[..],
            &[2, 0, b'.', b'.'],
            &0_u32.to_le_bytes(),
        ]
        .concat();
        assert_eq!(
            Batch::decode(&bytes, 0),
            Err(WireError::Path(zmove_types::PathError::Dots))
        );
    }

    #[test]
    fn special_entries_are_pinned() {
        let entry = |special| {
            let entries = vec![BatchEntry::Special(name(b"s"), metadata(), special)];
            let batch = Batch {
                groups: vec![DirectoryGroup {
                    directory: RelPath::root(),
                    entries,
                }],
            };
            let bytes = batch.encode();
            assert_eq!(Batch::decode(&bytes, 0), Ok(batch));
            bytes[bytes.len() - 9..].to_vec()
        };
        assert_eq!(entry(Special::Fifo), [1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(entry(Special::Socket), [2, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            entry(Special::Character(0x0103)),
            [3, 3, 1, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(entry(Special::Block(1 << 56)), [4, 0, 0, 0, 0, 0, 0, 0, 1]);
        for (tag, device) in [(0, 0), (5, 0), (1, 7)] {
            assert_eq!(
                special_of(tag, device),
                Err(WireError::UnknownTag {
                    what: "special entry",
                    tag
                })
            );
        }
    }

    #[test]
    fn links_are_pinned_and_lead_to_a_path_below_the_target() {
        let first = RelPath::from_bytes(b"d/f").unwrap();
        let link = LinkEntry {
            name: name(b"l"),
            metadata: metadata(),
            bytes: 0x0102_0304_0506,
            first,
        };
        let entries = vec![BatchEntry::Link(link)];
        let batch = Batch {
            groups: vec![DirectoryGroup {
                directory: RelPath::root(),
                entries,
            }],
        };
        let bytes = batch.encode();
        let before = &bytes[..bytes.len() - 13];
        assert_eq!(before[10..13], [7, 1, b'l']);
        assert_eq!(
            bytes[before.len()..],
            [6, 5, 4, 3, 2, 1, 0, 0, 3, 0, b'd', b'/', b'f']
        );
        assert_eq!(Batch::decode(&bytes, 0), Ok(batch));
        let to = |path: &[u8]| {
            let len = u16::try_from(path.len()).unwrap().to_le_bytes();
            Batch::decode(&[before, &[0; 8], &len, path].concat(), 0).map(|_| ())
        };
        assert_eq!(to(b"a"), Ok(()));
        for path in [
            &b""[..],
            b"..",
            b"../f",
            b"d/../f",
            b"/f",
            b"d//f",
            b"d/f/",
            b"d\0f",
        ] {
            assert!(to(path).is_err(), "{path:?}");
        }
    }

    fn any_entry() -> impl Strategy<Value = BatchEntry> {
        let any_name = "[a-z\u{e9}]{1,12}".prop_map(|text| name(text.as_bytes()));
        let any_metadata = (0..0o10000_u32, any::<i64>(), 0..1_000_000_000_u32)
            .prop_map(|(mode, seconds, nanos)| Metadata::new(mode, Timestamp { seconds, nanos }));
        (
            any_name,
            any_metadata,
            any::<[u8; 32]>(),
            0..1000_u32,
            0..8_u8,
        )
            .prop_map(|(name, meta, root, bytes, kind)| match kind {
                0 => BatchEntry::Itself(meta),
                1 => BatchEntry::Directory(name, meta),
                2 => BatchEntry::Symlink(name, meta, root.as_slice().into()),
                3 => BatchEntry::Retouch(name, meta),
                4 => BatchEntry::Special(name, meta, Special::Character(u64::from(bytes))),
                5 => BatchEntry::Special(name, meta, Special::Fifo),
                6 => {
                    let first = RelPath::root().join(&name).unwrap();
                    BatchEntry::Link(LinkEntry {
                        name,
                        metadata: meta,
                        bytes: bytes.into(),
                        first,
                    })
                }
                _ => BatchEntry::File(FileEntry {
                    name,
                    metadata: meta,
                    bytes,
                    root: Root(root),
                    data: None,
                }),
            })
    }

    #[test]
    fn a_declaration_s_bytes_are_pinned() {
        let metadata = Metadata::new(
            0o644,
            Timestamp {
                seconds: -2,
                nanos: 3,
            },
        );
        let (path, ctime) = (
            RelPath::from_bytes(b"d/f").unwrap(),
            Timestamp {
                seconds: 4,
                nanos: 5,
            },
        );
        let head = FileHead {
            path,
            metadata,
            bytes: 0x0102_0304_0506,
            ctime,
            inode: 7,
            data: None,
        };
        let mut expected = vec![3, 0, b'd', b'/', b'f', 0xA4, 1, 0, 0, 0xFE];
        expected.extend([0xFF; 7]);
        expected.extend([
            3, 0, 0, 0, 6, 5, 4, 3, 2, 1, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 7,
        ]);
        expected.extend([0; 7]);
        assert_eq!(head.encode(), expected);
        assert_eq!(FileHead::decode(&expected), Ok(head.clone()));
        let plain = expected.len();
        let extended = FileHead {
            metadata: noted(head.metadata.clone()),
            ..head.clone()
        };
        expected.extend([&[19, 0, 0, 0][..], &NOTE].concat());
        assert_eq!(extended.encode(), expected);
        assert_eq!(FileHead::decode(&expected), Ok(extended.clone()));
        let data =
            DataRanges::new(head.bytes, Vec::from([Range { start: 8, end: 9 }])).map(Arc::new);
        let with_holes = FileHead { data, ..extended };
        let mut sparse = expected.clone();
        sparse[plain] = 42;
        sparse.extend([
            5, 0, 1, 16, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0,
        ]);
        assert_eq!(with_holes.encode(), sparse);
        assert_eq!(FileHead::decode(&sparse), Ok(with_holes));
        let last = sparse.len() - 1;
        sparse[last] = 0xFF;
        assert!(matches!(
            FileHead::decode(&sparse),
            Err(WireError::OverLimit {
                what: "end of data",
                ..
            })
        ));
        let number = expected.len() - NOTE.len();
        expected[number] = 9;
        assert_eq!(
            FileHead::decode(&expected),
            Ok(head),
            "what is not critical is passed over"
        );
        expected[number + 2] = 1;
        let error = WireError::UnknownExtension {
            what: "a large file",
            number: 9,
        };
        assert_eq!(FileHead::decode(&expected), Err(error));
    }

    /// An attribute, as an extension.
    const NOTE: [u8; 19] = *b"\x02\0\0\x0C\0\0\0\x06user.n\x01\0\0\0z";

    fn noted(metadata: Metadata) -> Metadata {
        let extra = Extra {
            xattrs: vec![xattr("user.n", b"z")],
            ..Extra::default()
        };
        Metadata {
            extra: Some(Arc::new(extra)),
            ..metadata
        }
    }

    /// A file may have as many attributes as Linux lists, as many bytes of them as are carried, and all ranges at once.
    #[test]
    fn the_longest_declaration_fits() {
        const LISTED_BYTES_MAX: usize = 64 << 10;
        let count = LISTED_BYTES_MAX / "user.00000\0".len();
        let share = Xattr::ENTRY_BYTES_MAX / count - "user.00000".len();
        let xattrs = (0..count).map(|number| xattr(&format!("user.{number:05}"), &vec![7; share]));
        let account = |name: char| {
            Some(Account {
                id: 1,
                name: name.to_string().repeat(255).into(),
            })
        };
        let extra = Extra {
            owner: account('o'),
            group: account('g'),
            xattrs: xattrs.collect(),
            ..Extra::default()
        };
        let ranges = (0..DataRanges::MAX as u64).map(|at| 2 * at..2 * at + 1);
        let data = DataRanges::new(u64::MAX, ranges.collect()).map(Arc::new);
        assert!(data.is_some());
        let path = RelPath::from_bytes([b"a".repeat(255), b"b".repeat(255)].join(&b'/').as_slice())
            .unwrap();
        let metadata = Metadata {
            extra: Some(Arc::new(extra)),
            ..metadata()
        };
        let head = FileHead {
            path,
            metadata,
            bytes: u64::MAX,
            ctime: Timestamp::default(),
            inode: 7,
            data,
        };
        let bytes = head.encode();
        assert!(bytes.len() <= FRAME_HEAD_BYTES_MAX);
        assert_eq!(FileHead::decode(&bytes), Ok(head));
    }

    /// Two directories with a group each, so that numbers go on over groups.
    fn two_entries() -> Batch {
        let group = |text: &[u8]| DirectoryGroup {
            directory: RelPath::from_bytes(text).unwrap(),
            entries: vec![BatchEntry::Itself(metadata())],
        };
        Batch {
            groups: vec![group(b"a"), group(b"b")],
        }
    }

    #[test]
    fn extensions_of_entries_are_pinned_and_cost_nothing_where_there_are_none() {
        let mut batch = two_entries();
        let mut expected = batch.encode();
        batch.groups[1].entries[0] = BatchEntry::Itself(noted(metadata()));
        let before = expected.len();
        expected.extend([&[1, 0, 0, 0, 19, 0, 0, 0][..], &NOTE].concat());
        assert_eq!(batch.encode(), expected);
        assert_eq!(Batch::decode(&expected, 0), Ok(batch));
        let number = before + 8;
        expected[number] = 9;
        assert_eq!(
            Batch::decode(&expected, 0),
            Ok(two_entries()),
            "what is not critical is passed over"
        );
        expected[number + 2] = 1;
        let error = WireError::UnknownExtension {
            what: "a batch's entry",
            number: 9,
        };
        assert_eq!(Batch::decode(&expected, 0), Err(error));
    }

    #[test]
    fn extensions_of_entries_that_are_not_there_are_refused() {
        let block = |entry: u8| [entry, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0];
        let decode = |blocks: &[[u8; 15]]| {
            Batch::decode(&[two_entries().encode(), blocks.concat()].concat(), 0).map(|_| ())
        };
        let error = Err(WireError::OutOfOrder {
            what: "an entry's extensions",
        });
        assert_eq!(decode(&[block(0), block(1)]), Ok(()));
        assert_eq!(
            [
                &[block(2)][..],
                &[block(1), block(0)],
                &[block(1), block(1)]
            ]
            .map(decode),
            [error; 3]
        );
    }

    proptest! {
        #[test]
        fn batches_survive_the_wire(
            entries in proptest::collection::vec(any_entry(), 0..20),
            split in 0..20_usize,
            extras in proptest::collection::vec(any_extra(), 20),
        ) {
            let mut entries = entries;
            for (entry, extra) in entries.iter_mut().zip(extras) {
                entry.metadata_mut().extra = extra.map(Arc::new);
            }
            let at = split.min(entries.len());
            let groups = [&entries[..at], &entries[at..]].into_iter().map(|entries| DirectoryGroup {
                directory: RelPath::from_bytes(b"some/where").unwrap(),
                entries: entries.to_vec(),
            });
            let batch = Batch { groups: groups.collect() };
            let files = entries.iter().filter_map(BatchEntry::file);
            let data: u64 = files.map(|file| file.data_bytes() as u64).sum();
            let decoded = Batch::decode(&batch.encode(), u32::try_from(data).unwrap());
            assert_eq!(decoded, Ok(batch));
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..300),
            proptest::collection::vec(0..8_u8, 0..300),
        ]) {
            let _outcome = Batch::decode(&bytes, 0);
            let _outcome = FileHead::decode(&bytes);
        }
    }
}
