//! What becomes of the setuid and setgid bits of files.

use std::borrow::Cow;

use zmove_types::Metadata;

/// Whether files may have them. Those of directories, and the sticky bit, lend no rights and are always carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetIds {
    /// They are dropped: ownership is not carried over, so these bits would lend the rights of the receiver's user.
    #[default]
    Dropped,
    /// They are carried, as the grant says.
    Carried,
}

const BITS: u32 = 0o6000;

impl SetIds {
    /// A regular file's metadata as they are to be here.
    pub(crate) fn of_file(self, metadata: &Metadata) -> Cow<'_, Metadata> {
        if self == Self::Carried || metadata.mode & BITS == 0 {
            return Cow::Borrowed(metadata);
        }
        Cow::Owned(Metadata { mode: metadata.mode & !BITS, ..metadata.clone() })
    }
}
