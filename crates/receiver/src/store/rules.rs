//! The rules of a transfer: the options that its sender requests, limited by the permissions of its key.

use std::borrow::Cow;

use zmove_disk::{DirectoryModes, FileIdentity, Replace};
use zmove_types::{Account, Metadata, MetadataKinds, Special, Timestamp};
use zmove_wire::{Compare, Durability, Extraneous, Open, Overwrite, Proof};

use crate::rights::grant::{OwnerPermission, Rights, SetIds};

/// The rules of one transfer or one inspection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) durability: Durability,
    pub(crate) compare: Compare,
    pub(crate) overwrite: Overwrite,
    pub(crate) extraneous: Extraneous,
    /// Whether a large file that has changed is compared group by group with the existing version.
    pub(crate) delta: bool,
    /// Whether existing files are changed in place.
    pub(crate) in_place: bool,
    /// The check that a file must pass before it is renamed into place.
    pub(crate) proof: Proof,
    pub(crate) set_ids: SetIds,
    /// The kinds of metadata and entries that are preserved in addition to file contents.
    pub(crate) kinds: MetadataKinds,
    pub(crate) owning: OwnerPermission,
}

impl Rules {
    pub(crate) fn of(open: &Open, rights: &Rights) -> Self {
        Self {
            durability: open.durability,
            compare: open.compare,
            overwrite: open.overwrite,
            extraneous: open.extraneous,
            delta: open.delta,
            in_place: open.inplace,
            proof: open.proof,
            set_ids: rights.set_ids,
            kinds: open.keeping.kinds,
            owning: rights.owning,
        }
    }

    /// Returns the metadata to set on a regular file. Unless the grant allows both bits, keeps the setuid bit only if
    /// the owner is set too, and the setgid bit only if the group is set too. Otherwise, anyone who runs the file would
    /// get the privileges of the receiver's user or group.
    pub(crate) fn of_file<'a>(&self, metadata: &'a Metadata) -> Cow<'a, Metadata> {
        let extra = metadata.extra.as_deref();
        let gets = |kind, account: Option<&Account>| {
            account.is_some() && self.kinds.has_any(kind) && self.owning == OwnerPermission::Allowed
        };
        let gets_owner = gets(
            MetadataKinds::OWNER,
            extra.and_then(|extra| extra.owner.as_ref()),
        );
        let gets_group = gets(
            MetadataKinds::GROUP,
            extra.and_then(|extra| extra.group.as_ref()),
        );
        let bits = if gets_owner { 0 } else { SETUID } | if gets_group { 0 } else { SETGID };
        if self.set_ids == SetIds::Carried || metadata.mode & bits == 0 {
            return Cow::Borrowed(metadata);
        }
        Cow::Owned(Metadata {
            mode: metadata.mode & !bits,
            ..metadata.clone()
        })
    }

    /// Returns the metadata for a file that replaces the existing file `there`. If modes are not preserved, the new
    /// file gets the mode of the existing file.
    pub(crate) fn metadata_of_replacement<'a>(
        &self,
        metadata: &'a Metadata,
        there: &FileIdentity,
    ) -> Cow<'a, Metadata> {
        if self.kinds.has_any(MetadataKinds::MODE) {
            return self.of_file(metadata);
        }
        let kept = self.metadata_of_kept(metadata, there);
        Cow::Owned(self.of_file(&kept).into_owned())
    }

    /// Returns the metadata for an existing file that is not replaced. If modes are not preserved, the file keeps its
    /// mode.
    pub(crate) fn metadata_of_kept<'a>(
        &self,
        metadata: &'a Metadata,
        there: &FileIdentity,
    ) -> Cow<'a, Metadata> {
        if self.kinds.has_any(MetadataKinds::MODE) {
            return self.of_file(metadata);
        }
        Cow::Owned(Metadata {
            mode: there.mode,
            ..metadata.clone()
        })
    }

    /// Returns the metadata for an existing directory. If modes, times or directory times are not preserved, the
    /// directory keeps its mode or time.
    pub(crate) fn of_directory<'a>(
        &self,
        metadata: &'a Metadata,
        there: &FileIdentity,
    ) -> Cow<'a, Metadata> {
        let kept = |kind| !self.kinds.has_any(kind);
        let keeps_time = kept(MetadataKinds::TIMES) || kept(MetadataKinds::DIRECTORY_TIMES);
        if !kept(MetadataKinds::MODE) && !keeps_time {
            return Cow::Borrowed(metadata);
        }
        let mut own = metadata.clone();
        if kept(MetadataKinds::MODE) {
            own.mode = there.mode;
        }
        if keeps_time {
            own.mtime = there.mtime;
        }
        Cow::Owned(own)
    }

    /// Returns how the modes of directories are handled.
    pub(crate) fn directory_modes(&self) -> DirectoryModes {
        if self.kinds.has_any(MetadataKinds::MODE) {
            DirectoryModes::SetAtTheEnd
        } else {
            DirectoryModes::Kept
        }
    }

    /// Returns the kinds of extended attributes that this transfer sets and removes.
    pub(crate) fn xattr_kinds(&self) -> MetadataKinds {
        let kinds = self.kinds.common(MetadataKinds::ANY_XATTR);
        if self.owning == OwnerPermission::Allowed {
            kinds
        } else {
            kinds.without(MetadataKinds::PRIVILEGED)
        }
    }

    /// Returns whether a special file of this kind may be created.
    pub(crate) fn may_make(&self, special: Special) -> bool {
        let kind = special.kind();
        self.kinds.has_any(kind)
            && (kind == MetadataKinds::SPECIALS || self.owning == OwnerPermission::Allowed)
    }

    /// Returns whether written data is flushed. This is the case unless durability is `none`.
    pub(crate) fn flushes(&self) -> bool {
        self.durability != Durability::None
    }

    /// Returns whether a new entry replaces an existing entry with the same name.
    pub(crate) const fn replaces(&self) -> Replace {
        match self.overwrite {
            Overwrite::Differing | Overwrite::Older => Replace::Existing,
            Overwrite::Nothing => Replace::Nothing,
        }
    }

    /// Returns whether the existing entry `there` must be kept regardless of its contents. `kept` returns the time that
    /// the new file would get.
    pub(crate) fn must_keep(&self, there: &FileIdentity, kept: impl FnOnce() -> Timestamp) -> bool {
        match self.overwrite {
            Overwrite::Differing => false,
            Overwrite::Older => there.regular && there.mtime > kept(),
            Overwrite::Nothing => true,
        }
    }
}

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
