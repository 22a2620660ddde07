//! The rule for hidden directories: one is filled, and removed with all that is in it, only where nobody but this user
//! and root can rename entries.
//!
//! The name of a leftover can be forged. Who may rename in a directory may remove files and empty directories there, so
//! their removal takes nothing that this user did not put at risk. But a full directory of another user can be renamed
//! by somebody who cannot remove it.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, Statx, StatxFlags};
use rustix::process::geteuid;
use zmove_types::Name;

use crate::opening::by_name::stat_at;

/// Which entries of a directory nobody but this user and root can rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Guarded {
    /// All entries.
    All,
    /// The entries that this user owns, since the directory has the sticky bit.
    Own,
    /// No entries, or the kernel does not report the owner and the mode of the directory.
    #[default]
    None,
}

impl Guarded {
    /// The fields of `statx` that [`of`](Self::of) needs.
    pub(crate) const ASKED: StatxFlags = StatxFlags::UID.union(StatxFlags::MODE);

    /// The guarded entries of a directory with these properties.
    pub(crate) fn of(directory: &Statx) -> Self {
        let reported = StatxFlags::from_bits_retain(directory.stx_mask);
        if !reported.contains(Self::ASKED) {
            return Self::None;
        }
        let mode = Mode::from_raw_mode(directory.stx_mode.into());
        Self::by(directory.stx_uid, mode, geteuid().as_raw())
    }

    /// The same for the user `own`. With an access control list, the bits of the group are the maximum of all its
    /// entries but the owner's and the others'.
    fn by(owner: u32, mode: Mode, own: u32) -> Self {
        if owner != own && owner != 0 {
            Self::None
        } else if !mode.intersects(Mode::WGRP | Mode::WOTH) {
            Self::All
        } else if mode.contains(Mode::SVTX) {
            Self::Own
        } else {
            Self::None
        }
    }

    /// Whether nobody else can have given an entry its name, or can give that name to another entry now.
    pub(crate) fn covers(self, directory: BorrowedFd<'_>, name: &Name) -> bool {
        let is_own =
            || stat_at(directory, name).is_ok_and(|stat| stat.st_uid == geteuid().as_raw());
        match self {
            Self::All => true,
            Self::Own => is_own(),
            Self::None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_guarded_where_only_their_owner_and_root_can_rename_them() {
        let (own, other) = (1000, 1001);
        for (owner, mode, guarded) in [
            (own, 0o700, Guarded::All),
            (own, 0o2755, Guarded::All),
            (0, 0o755, Guarded::All),
            (0, 0o1755, Guarded::All),
            (own, 0o1777, Guarded::Own),
            (0, 0o1777, Guarded::Own),
            (0, 0o3775, Guarded::Own),
            (own, 0o775, Guarded::None),
            (0, 0o2775, Guarded::None),
            (own, 0o757, Guarded::None),
            (own, 0o777, Guarded::None),
            // The owner of a directory may rename entries of others also where it has the sticky bit.
            (other, 0o1777, Guarded::None),
            (other, 0o755, Guarded::None),
            (other, 0o700, Guarded::None),
        ] {
            let found = Guarded::by(owner, Mode::from_raw_mode(mode), own);
            assert_eq!(found, guarded, "{owner} {mode:o}");
        }
    }
}
