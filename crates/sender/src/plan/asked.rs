//! Entries to ask the receiver about, and their form in a request.

use zmove_scan::{Entry, EntryKind, EntryProperties};
use zmove_types::{GROUP_BYTES, Metadata, RelPath};
use zmove_wire::{EntryGroup, SourceEntry, SourceKind, SourceMark, SourceMetadata};

use crate::plan::pack::PackEntry;
use crate::read::extras::{Extras, Form};
use crate::read::source::SourceDirectory;

/// An entry to ask the receiver about, and its directory. The directory is not held open.
#[derive(Debug)]
pub(crate) struct AskedEntry {
    pub(crate) directory: SourceDirectory,
    pub(crate) what: PackEntry,
}

impl AskedEntry {
    /// Creates a question about an entry of `directory`, or about `directory` itself.
    pub(crate) fn new(directory: &SourceDirectory, what: PackEntry) -> Self {
        Self {
            directory: directory.closed(),
            what,
        }
    }

    /// Returns the total length in bytes of the entry's path and link target.
    pub(crate) fn text_bytes(&self) -> usize {
        self.directory.target_path().as_bytes().len() + self.what.text_bytes()
    }

    /// Returns the path of the entry at the target.
    pub(crate) fn target_path(&self) -> RelPath {
        self.what.target_path(&self.directory)
    }
}

/// Groups the entries by directory. A question about a directory itself is the first in its group.
pub(crate) fn entry_groups(asked: &[AskedEntry], extras: &Extras) -> Vec<EntryGroup> {
    let is_one = |before: &AskedEntry, asked: &AskedEntry| {
        before.directory.is(&asked.directory) && asked.what.entry().is_some()
    };
    asked
        .chunk_by(is_one)
        .map(|asked| entry_group(asked, extras))
        .collect()
}

/// Returns the group for entries of one directory.
fn entry_group(asked: &[AskedEntry], extras: &Extras) -> EntryGroup {
    let mut group = EntryGroup {
        directory: asked[0].directory.target_path().clone(),
        itself: None,
        entries: Vec::with_capacity(asked.len()),
    };
    for AskedEntry { what, .. } in asked {
        match what {
            PackEntry::Itself(metadata, properties) => {
                group.itself = Some(source_metadata(
                    extras,
                    Form::Directory,
                    metadata,
                    properties,
                ));
            }
            PackEntry::Within(entry) | PackEntry::Compare(entry, _) | PackEntry::Retouch(entry) => {
                group.entries.push(source_entry(entry, extras));
            }
            PackEntry::Link(entry, first) => {
                let kind = SourceKind::Link {
                    bytes: entry.size,
                    first: first.path.clone(),
                };
                group.entries.push(SourceEntry {
                    kind,
                    ..source_entry(entry, extras)
                });
            }
        }
    }
    group
}

fn source_entry(entry: &Entry, extras: &Extras) -> SourceEntry {
    let kind = match &entry.kind {
        EntryKind::Directory => SourceKind::Directory,
        EntryKind::Symlink(target) => SourceKind::Symlink {
            target: target.to_vec(),
        },
        EntryKind::File => SourceKind::File {
            bytes: entry.size,
            mark: (entry.size > GROUP_BYTES).then_some(SourceMark {
                inode: entry.inode,
                ctime: entry.ctime,
            }),
        },
        EntryKind::Special(special) => SourceKind::Special(*special),
    };
    let form = Form::of(&entry.kind);
    SourceEntry {
        name: entry.name.clone(),
        kind,
        metadata: source_metadata(extras, form, &entry.metadata, &entry.properties),
    }
}

fn source_metadata(
    extras: &Extras,
    form: Form,
    metadata: &Metadata,
    properties: &EntryProperties,
) -> SourceMetadata {
    let (metadata, xattrs) = extras.seen(form, metadata, properties);
    SourceMetadata { metadata, xattrs }
}
