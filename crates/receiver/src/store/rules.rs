//! The rules of a transfer: what its sender asks for, and what its key may.

use std::borrow::Cow;

use zmove_disk::{FileIdentity, Replace};
use zmove_types::{Metadata, Timestamp};
use zmove_wire::{Compare, Durability, Extraneous, Open, Overwrite};

/// The rules of one transfer, or of a preview.
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
    pub(crate) set_ids: SetIds,
}

impl Rules {
    pub(crate) fn of(open: &Open, set_ids: SetIds) -> Self {
        Self {
            durability: open.durability,
            compare: open.compare,
            overwrite: open.overwrite,
            extraneous: open.extraneous,
            delta: open.delta,
            in_place: open.inplace,
            set_ids,
        }
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

/// Whether files may have setuid and setgid bits. Those of directories, and the sticky bit, lend no rights
/// and are always carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetIds {
    /// The bits are dropped: ownership is not carried over, so they would lend the rights of the receiver's user.
    #[default]
    Dropped,
    /// The bits are carried, as the grant allows.
    Carried,
}

const BITS: u32 = 0o6000;

impl SetIds {
    /// A regular file's metadata without setuid and setgid bits, unless they are carried.
    pub(crate) fn of_file(self, metadata: &Metadata) -> Cow<'_, Metadata> {
        if self == Self::Carried || metadata.mode & BITS == 0 {
            return Cow::Borrowed(metadata);
        }
        Cow::Owned(Metadata { mode: metadata.mode & !BITS, ..metadata.clone() })
    }
}
