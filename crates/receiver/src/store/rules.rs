//! The rules of a transfer: what its sender asks for, and what its key may.

use std::borrow::Cow;

use zmove_disk::{DirectoryModes, FileIdentity, Replace};
use zmove_types::{Account, Kinds, Metadata, Special, Timestamp};
use zmove_wire::{Compare, Durability, Extraneous, Open, Overwrite, Proof};

use crate::rights::grant::{Owning, Rights, SetIds};

/// The rules of one transfer, or of an inspection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) durability: Durability,
    pub(crate) compare: Compare,
    pub(crate) overwrite: Overwrite,
    pub(crate) extraneous: Extraneous,
    /// Whether a large file that has changed is compared group by group with the version that is there.
    pub(crate) delta: bool,
    /// Whether files that are there are to be changed in their place.
    pub(crate) in_place: bool,
    /// What a file is proven by before it gets its name.
    pub(crate) proof: Proof,
    pub(crate) set_ids: SetIds,
    /// What is kept of entries beside their contents.
    pub(crate) kinds: Kinds,
    pub(crate) owning: Owning,
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

    /// A regular file's metadata as they are to be here. Unless the grant carries both bits, a file has the setuid bit
    /// only where it is to get its owner, and the setgid bit only where it is to get its group: the bits would lend the
    /// rights of the receiver's user, or of that user's group.
    pub(crate) fn of_file<'a>(&self, metadata: &'a Metadata) -> Cow<'a, Metadata> {
        let extra = metadata.extra.as_deref();
        let gets = |kind, account: Option<&Account>| {
            account.is_some() && self.kinds.has_any(kind) && self.owning == Owning::Allowed
        };
        let gets_owner = gets(Kinds::OWNER, extra.and_then(|extra| extra.owner.as_ref()));
        let gets_group = gets(Kinds::GROUP, extra.and_then(|extra| extra.group.as_ref()));
        let bits = if gets_owner { 0 } else { SETUID } | if gets_group { 0 } else { SETGID };
        if self.set_ids == SetIds::Carried || metadata.mode & bits == 0 {
            return Cow::Borrowed(metadata);
        }
        Cow::Owned(Metadata {
            mode: metadata.mode & !bits,
            ..metadata.clone()
        })
    }

    /// The metadata of a file for the place of one that is there: without modes, the mode of that.
    pub(crate) fn of_existing_file<'a>(
        &self,
        metadata: &'a Metadata,
        there: &FileIdentity,
    ) -> Cow<'a, Metadata> {
        if self.kinds.has_any(Kinds::MODE) {
            return self.of_file(metadata);
        }
        let kept = self.of_compared_file(metadata, there);
        Cow::Owned(self.of_file(&kept).into_owned())
    }

    /// The metadata of a file that stays: without modes, its own mode.
    pub(crate) fn of_compared_file<'a>(
        &self,
        metadata: &'a Metadata,
        there: &FileIdentity,
    ) -> Cow<'a, Metadata> {
        if self.kinds.has_any(Kinds::MODE) {
            return self.of_file(metadata);
        }
        Cow::Owned(Metadata {
            mode: there.mode,
            ..metadata.clone()
        })
    }

    /// The metadata of a directory that is there: without modes, its own mode, and without times of directories, its
    /// own time.
    pub(crate) fn of_directory<'a>(
        &self,
        metadata: &'a Metadata,
        there: &FileIdentity,
    ) -> Cow<'a, Metadata> {
        let kept = |kind| !self.kinds.has_any(kind);
        if !kept(Kinds::MODE) && !kept(Kinds::DIRECTORY_TIMES) {
            return Cow::Borrowed(metadata);
        }
        let mut own = metadata.clone();
        if kept(Kinds::MODE) {
            own.mode = there.mode;
        }
        if kept(Kinds::DIRECTORY_TIMES) {
            own.mtime = there.mtime;
        }
        Cow::Owned(own)
    }

    /// What becomes of the modes of directories.
    pub(crate) fn directory_modes(&self) -> DirectoryModes {
        if self.kinds.has_any(Kinds::MODE) {
            DirectoryModes::SetAtTheEnd
        } else {
            DirectoryModes::Kept
        }
    }

    /// The kinds of extended attributes that are set and removed.
    pub(crate) fn xattr_kinds(&self) -> Kinds {
        let kinds = self.kinds.common(Kinds::ANY_XATTR);
        if self.owning == Owning::Allowed {
            kinds
        } else {
            kinds.without(Kinds::PRIVILEGED)
        }
    }

    /// Whether an entry of this kind may be made.
    pub(crate) fn may_make(&self, special: Special) -> bool {
        let kind = special.kind();
        self.kinds.has_any(kind) && (kind == Kinds::SPECIALS || self.owning == Owning::Allowed)
    }

    /// Whether anything is flushed.
    pub(crate) fn flushes(&self) -> bool {
        self.durability != Durability::None
    }

    /// Whether a new entry replaces one that has its name already.
    pub(crate) const fn replaces(&self) -> Replace {
        match self.overwrite {
            Overwrite::Differing | Overwrite::Older => Replace::Existing,
            Overwrite::Nothing => Replace::Nothing,
        }
    }

    /// Whether the entry `there` may not be replaced by a file that will have the time `kept`, whatever it holds.
    pub(crate) fn spare(&self, there: &FileIdentity, kept: impl FnOnce() -> Timestamp) -> bool {
        match self.overwrite {
            Overwrite::Differing => false,
            Overwrite::Older => there.regular && there.mtime > kept(),
            Overwrite::Nothing => true,
        }
    }
}

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
