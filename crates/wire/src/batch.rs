//! The heads of two kinds of frames. A head is the part of a frame that describes its data. The head of a batch frame
//! describes many small entries, grouped by directory. The head of a declare frame describes one large file.
//!
//! Like a [message](crate::message), a head has only one encoding. **Invariant:** a decoded [`Batch`] is consistent:
//! the lengths of its files add up to the frame's data, every path is a [`RelPath`], and all counts are within the
//! limits.

use std::ops::Range;
use std::sync::Arc;

use postcard::Deserializer;
use serde::{Deserialize, Serialize};
use zmove_types::{
    DataRanges, GroupSpan, Metadata, Name, RelPath, Root, Special, Timestamp, bytes,
};

use crate::error::WireError;
use crate::limits::{BATCH_ENTRIES_MAX, FRAME_DATA_BYTES_MAX, SYMLINK_BYTES_MAX, within};
use crate::message::{check_form, decode_message, encode_head};
use crate::ranges;

/// The decoded head of a batch frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Batch {
    /// The entries, grouped by directory. A directory may occur more than once.
    pub groups: Vec<DirectoryGroup>,
}

/// Entries of one directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DirectoryGroup {
    /// The directory's path from the target root.
    pub directory: RelPath,
    /// The entries in that directory.
    pub entries: Vec<BatchEntry>,
}

/// One entry of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchEntry {
    /// The metadata to set for the group's directory itself.
    Itself(Metadata),
    /// A directory, which may be empty.
    Directory(Name, Metadata),
    /// A symbolic link, and the exact bytes of its target.
    Symlink(Name, Metadata, #[serde(with = "bytes")] Box<[u8]>),
    /// A regular file whose bytes are in the frame's data.
    File(FileEntry),
    /// A file whose contents at the target are already correct. Only its metadata is set.
    Retouch(Name, Metadata),
    /// A FIFO, socket or device.
    Special(Name, Metadata, Special),
    /// A hard link: another name of a file.
    Link(LinkEntry),
}

/// A hard link to a file that exists at the target under its first name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkEntry {
    /// The name in the group's directory.
    pub name: Name,
    /// Mode and time of the file. The receiver uses them to recognize the file under its first name.
    pub metadata: Metadata,
    /// The file's size in bytes, also used to recognize the file.
    pub bytes: u64,
    /// The path of the first name below the target root.
    pub first: RelPath,
}

/// A small file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The file's name in the group's directory.
    pub name: Name,
    /// Mode and time.
    pub metadata: Metadata,
    /// The length of the file in bytes. Its contents are in the frame's data.
    pub bytes: u32,
    /// The root hash of the contents, with holes as zeros.
    pub root: Root,
    /// The ranges with data, if the file has holes to preserve. The frame then contains only these ranges, in order.
    #[serde(with = "ranges")]
    pub data: Option<Arc<DataRanges>>,
}

/// A large file, as declared on each lane before its first chunk on that lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHead {
    /// The file's path below the target root.
    pub path: RelPath,
    /// Mode and time.
    pub metadata: Metadata,
    /// The file's size in bytes. Always more than one group.
    pub bytes: u64,
    /// The change time of the source file.
    pub ctime: Timestamp,
    /// The inode of the source file.
    pub inode: u64,
    /// The ranges with data, if the file has holes to preserve.
    #[serde(with = "ranges")]
    pub data: Option<Arc<DataRanges>>,
}

impl Batch {
    /// Encodes the head.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode_head(self, 64 * self.entry_count() + 64)
    }

    /// Decodes the head of a frame with `data_bytes` bytes of data.
    ///
    /// # Errors
    /// [`WireError`] if the head is malformed or exceeds a limit, if the total length of its files exceeds the maximum,
    /// or if their data does not add up to `data_bytes`.
    pub fn decode(bytes: &[u8], data_bytes: u32) -> Result<Self, WireError> {
        let mut decoder = Deserializer::from_bytes(bytes);
        let group_count = usize::deserialize(&mut decoder)?;
        within("batch groups", group_count, BATCH_ENTRIES_MAX)?;
        let mut entries_left = BATCH_ENTRIES_MAX;
        let mut groups = Vec::with_capacity(group_count);
        for _ in 0..group_count {
            let directory = RelPath::deserialize(&mut decoder)?;
            let entry_count = usize::deserialize(&mut decoder)?;
            within("batch entries", entry_count, entries_left)?;
            entries_left -= entry_count;
            let entries = (0..entry_count)
                .map(|_| BatchEntry::deserialize(&mut decoder))
                .collect::<Result<_, _>>()?;
            groups.push(DirectoryGroup { directory, entries });
        }
        let mut batch = Self { groups };
        check_form(&batch, bytes)?;
        batch.check(data_bytes)?;
        batch.share_extras();
        Ok(batch)
    }

    /// Returns the number of entries in all groups.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.groups.iter().map(|group| group.entries.len()).sum()
    }

    /// Lets consecutive entries share their additional metadata (everything except mode and time) if it is equal.
    fn share_extras(&mut self) {
        let mut last = None;
        for entry in self.groups.iter_mut().flat_map(|group| &mut group.entries) {
            let extra = &mut entry.metadata_mut().extra;
            if *extra != last {
                last.clone_from(extra);
            } else if extra.is_some() {
                extra.clone_from(&last);
            }
        }
    }

    /// Checks the entries and the size of their data. The total length of the files, including holes, must not exceed
    /// the maximum data of a frame. Holes are not sent, but they count because the receiver hashes their zeros.
    fn check(&self, data_bytes: u32) -> Result<(), WireError> {
        let entries = self.groups.iter().flat_map(|group| &group.entries);
        if !entries.clone().all(BatchEntry::is_valid) {
            return Err(WireError::Head);
        }
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

/// Splits groups into batches, in the same order. Each group must contain only its directory itself. The head of a
/// batch is no longer than [`DIRECTORY_HEAD_BYTES`], unless a single directory exceeds that size.
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

/// Maximum size of a head with several directories, in bytes. A head with one directory may be longer.
pub const DIRECTORY_HEAD_BYTES: usize = 512 << 10;
/// Maximum number of directories in one batch. The number is limited because setting the metadata of a directory takes
/// time.
const DIRECTORIES_AT_ONCE: usize = 256;

/// Returns an upper bound for the size of a directory in a head.
fn directory_bytes(group: &DirectoryGroup) -> usize {
    let extras = group
        .entries
        .iter()
        .map(|entry| entry.metadata().extra_bytes());
    64 + group.directory.as_bytes().len() + extras.sum::<usize>()
}

impl BatchEntry {
    /// Returns the metadata to set for the entry.
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

    /// Returns the entry's name, or `None` for the group's directory itself.
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

    /// Returns a mutable reference to the metadata to set for the entry.
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

    fn is_valid(&self) -> bool {
        match self {
            Self::Symlink(_, _, target) => (1..=SYMLINK_BYTES_MAX).contains(&target.len()),
            Self::Link(link) => !link.first.is_root(),
            Self::File(file) => ranges::are_of_file(file.data.as_ref(), file.bytes.into()),
            _ => true,
        }
    }
}

impl FileEntry {
    /// Returns the number of bytes of the frame's data that belong to the file.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        let bytes = self.data.as_ref().map(|data| data.data_bytes());
        bytes.map_or(self.bytes as usize, |bytes| {
            usize::try_from(bytes).expect("no more than the file's length")
        })
    }
}

impl FileHead {
    /// Returns the ranges of a group that contain data, relative to the start of the group.
    #[must_use]
    pub fn data_within(&self, span: GroupSpan) -> Vec<Range<usize>> {
        match &self.data {
            Some(data) => data.within(span).collect(),
            None => std::iter::once(0..span.len as usize).collect(),
        }
    }

    /// Returns the number of bytes of data in a group.
    #[must_use]
    pub fn data_bytes_within(&self, span: GroupSpan) -> u64 {
        let ranges = self.data_within(span);
        ranges.iter().map(|range| range.len() as u64).sum()
    }

    /// Encodes the head. See [`Batch::encode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode_head(self, 64 + self.path.as_bytes().len())
    }

    /// Decodes a head.
    ///
    /// # Errors
    /// [`WireError`] if it is malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let head: Self = decode_message(bytes).map_err(|_| WireError::Head)?;
        let is_valid = ranges::are_of_file(head.data.as_ref(), head.bytes);
        if is_valid && head.metadata.first_name().is_none() {
            Ok(head)
        } else {
            Err(WireError::Head)
        }
    }
}

#[cfg(test)]
mod tests;
