//! The attributes that are sent in addition to contents, mode and time: owners and extended attributes.
//!
//! When the receiver opens the transfer, it reports which attributes it keeps. Until then the sender assumes that all
//! requested attributes are kept. If some are not kept, entries that were sent earlier are counted as lacking them.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use zmove_chunk::{contents_digest, read_root};
use zmove_disk::{
    Descriptor, EntryXattrs, FileIdentity, HasXattrs, NameAt, mode_without_acl, next_data_offset,
};
use zmove_scan::{Entry, EntryKind, EntryProperties};
use zmove_types::{
    Account, ExtraMetadata, GROUP_BYTES, Ids, Lock, Metadata, MetadataKinds, RelPath, Root, Xattr,
};
use zmove_wire::{
    AccountMatch, Batch, BatchEntry, DirectoryGroup, Mapping, NotKeptReason, PreserveOptions, Zeros,
};

use crate::push::config::{FallbackAttributes, OwnerMapping, SenderConfig};
use crate::read::holes::HoleHandling;
use crate::read::source::SourceDirectory;

/// The entry type, as far as it affects the meaning of the permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Directory,
    Other,
}

impl Form {
    pub(crate) fn of(kind: &EntryKind) -> Self {
        if *kind == EntryKind::Directory {
            Self::Directory
        } else {
            Self::Other
        }
    }
}

impl FallbackAttributes {
    fn of(self, metadata: Metadata, form: Form) -> Metadata {
        let all = if form == Form::Directory {
            0o777
        } else {
            0o666
        };
        let mode = self.umask.map_or(metadata.mode, |umask| all & !umask);
        Metadata {
            mode,
            mtime: self.mtime.unwrap_or(metadata.mtime),
            ..metadata
        }
    }
}

/// The attributes that a session sends in addition to contents, mode and time.
#[derive(Debug)]
pub(crate) struct Extras {
    /// The attributes that the receiver is asked to keep.
    asked: PreserveOptions,
    owners: OwnerMapping,
    zeros: Zeros,
    instead: FallbackAttributes,
    known: Lock<KnownAccounts>,
}

#[derive(Debug, Default)]
struct KnownAccounts {
    users: HashMap<u32, Account>,
    groups: HashMap<u32, Account>,
    /// Values shared by all entries that have the same owner and group and no other extra attributes.
    shared: HashMap<Ids, Arc<ExtraMetadata>>,
}

/// Maximum number of remembered users. The same maximum applies to remembered groups and to remembered pairs of user
/// and group.
const KNOWN_MAX: usize = 4096;
const GROUP_BITS: u32 = 0o070;
/// Attributes that an entry lacks when it is sent, each with the reason.
pub(crate) type Lacks = Vec<(MetadataKinds, NotKeptReason)>;

impl Extras {
    /// Creates the extras for the attributes in `asked`, adapted to this configuration.
    pub(crate) fn new(asked: PreserveOptions, config: &SenderConfig) -> Self {
        Self {
            asked,
            owners: config.owners.clone(),
            zeros: config.zeros,
            instead: config.instead,
            known: Lock::default(),
        }
    }

    /// Returns the kinds of attributes that are kept.
    pub(crate) fn kinds(&self) -> MetadataKinds {
        self.asked.kinds
    }

    /// Returns how holes are handled.
    pub(crate) fn holes(&self) -> HoleHandling {
        match self.zeros {
            _ if !self.kinds().has_any(MetadataKinds::HOLES) => HoleHandling::Sent,
            Zeros::Sent => HoleHandling::Kept,
            Zeros::MadeHoles => HoleHandling::Made,
        }
    }

    /// Returns the metadata by which the receiver checks that a first name leads to this file. The receiver has set the
    /// same metadata on the file.
    pub(crate) fn link_metadata(&self, metadata: Metadata) -> Metadata {
        self.instead.of(metadata, Form::Other)
    }

    /// Returns a message about attributes of an entry that zmove never copies. Returns `None` if attributes of their
    /// namespaces were not requested.
    pub(crate) fn never_copied(&self, entry: &Entry) -> Option<String> {
        let found = entry.never_copied;
        let is_told = !found.is_empty() && self.kinds().has_any(MetadataKinds::PRIVILEGED);
        is_told.then(|| {
            format!("attributes that are specific to one system are never copied: {found}")
        })
    }

    /// Returns whether hard links are to be kept.
    pub(crate) fn wants_links(&self) -> bool {
        self.asked.kinds.has_any(MetadataKinds::LINKS)
    }

    /// Returns the digest by which the contents of a file of `bytes` bytes are compared, or `None` if the push is being
    /// stopped. If holes are kept, the holes of a large file are not read.
    pub(crate) fn contents_root(
        &self,
        file: &File,
        bytes: u64,
        stop: impl Fn() -> bool,
    ) -> io::Result<Option<Root>> {
        if self.compares_groups(bytes) {
            contents_digest(file, next_data_offset, stop)
        } else {
            read_root(file, stop)
        }
    }

    /// Returns whether contents of `bytes` bytes are compared group by group instead of by their root.
    pub(crate) fn compares_groups(&self, bytes: u64) -> bool {
        bytes > GROUP_BYTES && self.kinds().has_any(MetadataKinds::HOLES)
    }

    /// Returns whether entries that lack attributes are reported by name.
    pub(crate) fn reports_names(&self) -> bool {
        self.asked.named
    }

    /// Returns the metadata of a file that was examined after it was opened, and the attributes that it lacks.
    pub(crate) fn file_metadata(
        &self,
        file: impl AsFd,
        read: &FileIdentity,
        entry: &Entry,
    ) -> (Metadata, Lacks) {
        let is_as_seen = read.ctime == entry.ctime && read.inode == entry.inode;
        let has_any = entry.properties.xattrs.is_some() || !is_as_seen;
        let descriptor = Descriptor::Open(file.as_fd());
        let seen = EntryProperties {
            ids: read.ids,
            atime: entry.properties.atime,
            xattrs: None,
        };
        self.with_extra(
            Form::Other,
            read.metadata(),
            &seen,
            has_any.then_some(descriptor),
        )
    }

    /// Returns the metadata of an entry that is not opened, and the attributes that it lacks.
    pub(crate) fn entry_metadata(
        &self,
        directory: &SourceDirectory,
        entry: &Entry,
    ) -> (Metadata, Lacks) {
        let properties = &entry.properties;
        let opened = directory.opened();
        let named = opened
            .fd()
            .map(|directory| NameAt {
                directory,
                name: &entry.name,
            })
            .filter(|_| properties.xattrs.is_some());
        let form = Form::of(&entry.kind);
        self.with_extra(form, entry.metadata.clone(), properties, named)
    }

    /// Returns the metadata of a directory itself, and the attributes that it lacks.
    pub(crate) fn directory_metadata(
        &self,
        directory: &SourceDirectory,
        metadata: &Metadata,
        properties: &EntryProperties,
    ) -> (Metadata, Lacks) {
        let opened = directory.opened();
        let itself = opened
            .fd()
            .map(|directory| Descriptor::Open(directory.as_fd()))
            .filter(|_| properties.xattrs.is_some());
        self.with_extra(Form::Directory, metadata.clone(), properties, itself)
    }

    /// Returns the metadata of an entry as the scan saw it, and the digest of its extended attributes.
    pub(crate) fn seen(
        &self,
        form: Form,
        metadata: &Metadata,
        properties: &EntryProperties,
    ) -> (Metadata, Option<Box<[u8; 32]>>) {
        let keeps_xattrs = self.kinds().has_any(MetadataKinds::ANY_XATTR);
        let mark = properties.xattrs.as_deref();
        let digest = mark.filter(|_| keeps_xattrs).and_then(|mark| mark.digest);
        let mode = mark
            .filter(|_| !keeps_xattrs)
            .map_or(metadata.mode, |mark| mark.mode_without_acl);
        let metadata = Metadata {
            mode,
            extra: self.extra(properties.ids, ExtraMetadata::default()),
            ..metadata.clone()
        };
        (self.instead.of(metadata, form), digest.map(Box::new))
    }

    /// Returns the attributes that the scan could not read, for an entry that stays unchanged at the target.
    pub(crate) fn lacks_of(&self, entry: &Entry) -> Lacks {
        let unread = entry.properties.xattrs.iter();
        unread
            .flat_map(|mark| mark.unread.each())
            .map(|kind| (kind, NotKeptReason::Unread))
            .collect()
    }

    /// Returns the metadata with all attributes that are kept, and a list of the attributes that the entry lacks.
    /// Extended attributes are read from `of`.
    fn with_extra(
        &self,
        form: Form,
        metadata: Metadata,
        properties: &EntryProperties,
        of: Option<impl HasXattrs>,
    ) -> (Metadata, Lacks) {
        let asked = self.kinds().common(MetadataKinds::ANY_XATTR);
        let mut lacks = Lacks::new();
        let mut mode = metadata.mode;
        let mut xattrs = Vec::new();
        if let Some(of) = of {
            let found = of.xattrs(asked.and(MetadataKinds::ACLS));
            // The group bits of the mode are the mask of the access control list (ACL). The owning group may have fewer
            // permissions than the mask.
            if found
                .as_ref()
                .is_ok_and(|found| found.unread.has_any(MetadataKinds::ACLS))
            {
                mode &= !GROUP_BITS;
            }
            let unread = EntryXattrs {
                unread: asked,
                ..EntryXattrs::default()
            };
            let EntryXattrs {
                list,
                oversized,
                unread,
                ..
            } = found.unwrap_or(unread);
            lacks.extend(oversized.each().map(|kind| (kind, NotKeptReason::TooMuch)));
            lacks.extend(
                unread
                    .common(asked)
                    .each()
                    .map(|kind| (kind, NotKeptReason::Unread)),
            );
            if !asked.has_any(MetadataKinds::ACLS) {
                mode = mode_without_acl(mode, &list);
            }
            xattrs = list;
        }
        let kind = |xattr: &Xattr| MetadataKinds::of_xattr(&xattr.name).unwrap_or_default();
        xattrs.retain(|xattr| asked.has_any(kind(xattr)));
        let extra = ExtraMetadata {
            xattrs,
            atime: self
                .kinds()
                .has_any(MetadataKinds::ATIME)
                .then_some(properties.atime),
            ..ExtraMetadata::default()
        };
        let metadata = Metadata {
            mode,
            extra: self.extra(properties.ids, extra),
            ..metadata
        };
        (self.instead.of(metadata, form), lacks)
    }

    /// Adds the owner and group of an entry, if they are kept.
    fn extra(&self, ids: Ids, extra: ExtraMetadata) -> Option<Arc<ExtraMetadata>> {
        let kinds = self.kinds();
        if !kinds.has_any(MetadataKinds::OWNERSHIP) {
            return (!extra.is_empty()).then(|| Arc::new(extra));
        }
        let mut known = self.known.lock();
        let is_alone = extra.is_empty();
        if is_alone && let Some(shared) = known.shared.get(&ids) {
            return Some(Arc::clone(shared));
        }
        let OwnerMapping {
            accounts,
            users,
            groups,
        } = &self.owners;
        let KnownAccounts {
            users: known_users,
            groups: known_groups,
            ..
        } = &mut *known;
        let user = || mapped(users, ids.user, accounts.user_name(ids.user));
        let group = || mapped(groups, ids.group, accounts.group_name(ids.group));
        let owner = kinds
            .has_any(MetadataKinds::OWNER)
            .then(|| remembered(known_users, ids.user, user));
        let group = kinds
            .has_any(MetadataKinds::GROUP)
            .then(|| remembered(known_groups, ids.group, group));
        let extra = Arc::new(ExtraMetadata {
            owner,
            group,
            ..extra
        });
        if is_alone && known.shared.len() < KNOWN_MAX {
            known.shared.insert(ids, Arc::clone(&extra));
        }
        Some(extra)
    }
}

/// Removes extended attributes from the entries that have the most, until the head of a batch is `excess` bytes
/// shorter. Attributes may have been added since the scan. Returns the attributes that entries now lack.
pub(crate) fn drop_xattrs(batch: &mut Batch, excess: usize) -> Vec<(RelPath, Lacks)> {
    let bytes = |entry: &BatchEntry| {
        entry
            .metadata()
            .xattrs()
            .iter()
            .map(Xattr::bytes)
            .sum::<usize>()
    };
    let mut most: Vec<_> = batch
        .groups
        .iter()
        .flat_map(|group| &group.entries)
        .map(bytes)
        .enumerate()
        .collect();
    most.sort_unstable_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let mut gained = 0;
    let too_many = most.into_iter().take_while(|(_, bytes)| {
        let is_over = gained < excess;
        gained += bytes;
        is_over
    });
    let too_many: HashSet<_> = too_many.map(|(number, _)| number).collect();
    let entries = batch
        .groups
        .iter_mut()
        .flat_map(|DirectoryGroup { directory, entries }| {
            let directory = &*directory;
            entries.iter_mut().map(move |entry| (directory, entry))
        });
    let left_out = entries
        .enumerate()
        .filter(|(number, _)| too_many.contains(number));
    left_out
        .map(|(_, (directory, entry))| {
            (
                path_of(directory, entry),
                without_xattrs(entry.metadata_mut()),
            )
        })
        .collect()
}

/// Returns the path of an entry of a batch.
pub(super) fn path_of(directory: &RelPath, entry: &BatchEntry) -> RelPath {
    entry
        .name()
        .and_then(|name| directory.join(name).ok())
        .unwrap_or_else(|| directory.clone())
}

fn without_xattrs(metadata: &mut Metadata) -> Lacks {
    let kinds = metadata
        .xattrs()
        .iter()
        .filter_map(|xattr| MetadataKinds::of_xattr(&xattr.name));
    let kinds = kinds.fold(MetadataKinds::NONE, MetadataKinds::and);
    metadata.mode = mode_without_acl(metadata.mode, metadata.xattrs());
    let rest = metadata.extra.as_deref().map(|extra| ExtraMetadata {
        xattrs: Vec::new(),
        ..extra.clone()
    });
    metadata.extra = rest.filter(|extra| !extra.is_empty()).map(Arc::new);
    kinds
        .each()
        .map(|kind| (kind, NotKeptReason::TooMuch))
        .collect()
}

fn remembered(
    known: &mut HashMap<u32, Account>,
    id: u32,
    find: impl FnOnce() -> Account,
) -> Account {
    if let Some(account) = known.get(&id) {
        return account.clone();
    }
    let account = find();
    if known.len() < KNOWN_MAX {
        known.insert(id, account.clone());
    }
    account
}

/// Returns the account at the target to which a user or group of this host is mapped.
fn mapped(mappings: &[Mapping], id: u32, name: Option<String>) -> Account {
    let applies = |mapping: &&Mapping| match &mapping.from {
        AccountMatch::All => true,
        AccountMatch::Nameless => name.is_none(),
        AccountMatch::Name(wanted) => name.as_ref() == Some(wanted),
        AccountMatch::Ids(first, last) => (*first..=*last).contains(&id),
    };
    if let Some(mapping) = mappings.iter().find(applies) {
        return mapping.to.clone();
    }
    let name = name
        .filter(|name| name.len() <= Account::NAME_BYTES_MAX)
        .unwrap_or_default();
    Account {
        id,
        name: name.into(),
    }
}

#[cfg(test)]
impl Default for Extras {
    fn default() -> Self {
        Self::new(PreserveOptions::LEAST, &SenderConfig::default())
    }
}

#[cfg(test)]
mod tests {
    use zmove_types::{Accounts, Name, Timestamp};
    use zmove_wire::limits::FRAME_HEAD_BYTES_MAX;

    use super::*;

    #[derive(Debug)]
    struct Ann;

    impl Accounts for Ann {
        fn user_name(&self, id: u32) -> Option<String> {
            (id == 7).then(|| "ann".to_owned())
        }
        fn group_name(&self, _id: u32) -> Option<String> {
            None
        }
        fn user_id(&self, _name: &str) -> Option<u32> {
            None
        }
        fn group_id(&self, _name: &str) -> Option<u32> {
            None
        }
    }

    fn account(id: u32, name: &str) -> Account {
        Account {
            id,
            name: name.into(),
        }
    }

    fn extras(kinds: MetadataKinds, users: Vec<Mapping>) -> Extras {
        let owners = OwnerMapping {
            accounts: Arc::new(Ann),
            users,
            groups: Vec::new(),
        };
        Extras::new(
            PreserveOptions {
                kinds,
                ..PreserveOptions::default()
            },
            &SenderConfig {
                owners,
                ..SenderConfig::default()
            },
        )
    }

    #[test]
    fn owners_go_by_name_where_they_have_one_and_are_shared() {
        let extras = extras(MetadataKinds::ALL, Vec::new());
        let extra = |user| {
            extras
                .extra(Ids { user, group: 5 }, ExtraMetadata::default())
                .unwrap()
        };
        assert_eq!(
            (extra(7).owner.clone(), extra(7).group.clone()),
            (Some(account(7, "ann")), Some(account(5, "")))
        );
        assert_eq!(extra(8).owner, Some(account(8, "")));
        assert!(Arc::ptr_eq(&extra(7), &extra(7)));
        let group = Extras::new(
            PreserveOptions {
                kinds: MetadataKinds::GROUP,
                ..PreserveOptions::default()
            },
            &SenderConfig::default(),
        );
        let extra = group
            .extra(Ids { user: 7, group: 5 }, ExtraMetadata::default())
            .unwrap();
        assert_eq!((&extra.owner, &extra.group), (&None, &Some(account(5, ""))));
    }

    #[test]
    fn the_first_mapping_that_applies_counts() {
        let to = |from, id| Mapping {
            from,
            to: account(id, ""),
        };
        let mappings = [
            to(AccountMatch::Name("ann".into()), 1),
            to(AccountMatch::Ids(100, 199), 2),
            to(AccountMatch::Nameless, 3),
            to(AccountMatch::All, 4),
        ];
        let map = |id, name: Option<&str>| mapped(&mappings, id, name.map(str::to_owned)).id;
        assert_eq!(
            [
                map(7, Some("ann")),
                map(199, Some("bob")),
                map(200, None),
                map(200, Some("bob"))
            ],
            [1, 2, 3, 4]
        );
    }

    /// Attributes may grow between the scan, which determines how entries are packed, and the read.
    #[test]
    fn attributes_that_do_not_fit_into_a_head_are_left_out_and_counted() {
        let entry = |text: &str, bytes: usize| {
            let acl: &[u8] = b"\x02\0\0\0\x01\0\x06\0\xFF\xFF\xFF\xFF\x04\0\x04\0\xFF\xFF\xFF\xFF";
            let xattr = |name: &str, value| Xattr {
                name: name.as_bytes().into(),
                value,
            };
            let xattrs = vec![
                xattr("system.posix_acl_access", acl.into()),
                xattr("user.a", vec![7; bytes].into()),
            ];
            let extra = Some(Arc::new(ExtraMetadata {
                owner: Some(account(7, "ann")),
                xattrs,
                ..ExtraMetadata::default()
            }));
            let metadata = Metadata {
                extra,
                ..Metadata::new(0o660, Timestamp::default())
            };
            BatchEntry::Directory(Name::from_bytes(text.as_bytes()).unwrap(), metadata)
        };
        let entries = vec![
            entry("a", 1000),
            entry("b", 1_040_000),
            entry("c", 1_000_000),
            entry("d", 900_000),
        ];
        let directory = RelPath::from_bytes(b"d").unwrap();
        let mut batch = Batch {
            groups: vec![DirectoryGroup { directory, entries }],
        };
        let excess = batch.encode().len() - FRAME_HEAD_BYTES_MAX;
        let lacks = drop_xattrs(&mut batch, excess);
        assert!(batch.encode().len() <= FRAME_HEAD_BYTES_MAX);
        let lacking = |kind| (kind, NotKeptReason::TooMuch);
        let b = RelPath::from_bytes(b"d/b").unwrap();
        assert_eq!(
            lacks,
            [(
                b,
                vec![lacking(MetadataKinds::XATTRS), lacking(MetadataKinds::ACLS)]
            )]
        );
        let left = batch.groups[0].entries[1].metadata();
        assert_eq!(
            (left.mode, left.xattrs()),
            (0o640, &[][..]),
            "its group gets no more than the list gave"
        );
        assert_eq!(left.extra.as_ref().unwrap().owner, Some(account(7, "ann")));
        assert_eq!(batch.groups[0].entries[2].metadata().xattrs().len(), 2);
    }

    /// An entry whose access control list cannot be read.
    #[derive(Clone, Copy)]
    struct Unreadable;

    impl HasXattrs for Unreadable {
        fn list_into(self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
            let names = b"system.posix_acl_access\0";
            buffer[..names.len()].copy_from_slice(names);
            Ok(names.len())
        }

        fn get_into(self, _name: &std::ffi::CStr, _buffer: &mut [u8]) -> rustix::io::Result<usize> {
            Err(rustix::io::Errno::IO)
        }

        fn file_system(self) -> Option<i64> {
            None
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_gives_the_group_nothing() {
        let metadata = Metadata::new(0o2664, Timestamp::default());
        let (read, lacks) = extras(MetadataKinds::USUAL, Vec::new()).with_extra(
            Form::Other,
            metadata,
            &EntryProperties::default(),
            Some(Unreadable),
        );
        assert_eq!(
            (read.mode, lacks),
            (0o2604, vec![(MetadataKinds::ACLS, NotKeptReason::Unread)])
        );
    }

    #[test]
    fn what_could_not_be_read_of_a_file_that_stays_is_counted() {
        let mark = |kinds, unread| zmove_scan::XattrMark {
            digest: None,
            bytes: 0,
            kinds,
            unread,
            mode_without_acl: 0o600,
        };
        let lacks = |mark| extras(MetadataKinds::XATTRS, Vec::new()).lacks_of(&entry_with(mark));
        assert_eq!(lacks(mark(MetadataKinds::XATTRS, MetadataKinds::NONE)), []);
        assert_eq!(
            lacks(mark(MetadataKinds::XATTRS, MetadataKinds::XATTRS)),
            [(MetadataKinds::XATTRS, NotKeptReason::Unread)]
        );
        assert_eq!(
            lacks(mark(MetadataKinds::ACLS, MetadataKinds::XATTRS)),
            [(MetadataKinds::XATTRS, NotKeptReason::Unread)]
        );
    }

    fn entry_with(mark: zmove_scan::XattrMark) -> Entry {
        Entry {
            name: Name::from_bytes(b"f").unwrap(),
            kind: EntryKind::File,
            size: 0,
            metadata: Metadata::new(0o644, Timestamp::default()),
            inode: 1,
            device: 1,
            ctime: Timestamp::default(),
            may_have_holes: false,
            is_mount: None,
            shared: None,
            properties: EntryProperties {
                xattrs: Some(Box::new(mark)),
                ..EntryProperties::default()
            },
            never_copied: zmove_types::NeverCopied::default(),
        }
    }
}
