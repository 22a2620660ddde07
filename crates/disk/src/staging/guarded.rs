//! The rule for hidden directories: a hidden directory is filled, or removed recursively, only if no user except this
//! user and root can rename entries in its parent.
//!
//! Names of leftover entries can be forged. A user who may rename entries of a directory may also remove files and
//! empty directories in it. So if a file or an empty directory has a forged name, its removal is harmless: the user
//! could have removed it directly. But such a user can rename another user's non-empty directory without being able to
//! remove it. The rule protects these directories.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, Statx, StatxFlags};
use rustix::process::geteuid;
use zmove_types::Name;

use crate::opening::by_name::stat_at;

/// The entries of a directory that only this user and root can rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GuardedEntries {
    /// All entries.
    All,
    /// The entries that this user owns, because the directory has the sticky bit.
    Own,
    /// No entries. Also used if the kernel does not report the owner and mode of the directory.
    #[default]
    None,
}

impl GuardedEntries {
    /// The fields of `statx` that [`of`](Self::of) needs.
    pub(crate) const STATX_FIELDS: StatxFlags = StatxFlags::UID.union(StatxFlags::MODE);

    /// Returns the guarded entries of a directory with these properties.
    pub(crate) fn of(directory: &Statx) -> Self {
        let reported = StatxFlags::from_bits_retain(directory.stx_mask);
        if !reported.contains(Self::STATX_FIELDS) {
            return Self::None;
        }
        let mode = Mode::from_raw_mode(directory.stx_mode.into());
        Self::for_user(directory.stx_uid, mode, geteuid().as_raw())
    }

    /// Returns the guarded entries from the perspective of the user `own`. If the directory has an access control list,
    /// the group bits of `mode` are the mask. The mask limits all entries of the list except those for the owner and
    /// for others.
    fn for_user(owner: u32, mode: Mode, own: u32) -> Self {
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

    /// Returns whether no other user could have given the entry its name, or could give that name to another entry now.
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
            (own, 0o700, GuardedEntries::All),
            (own, 0o2755, GuardedEntries::All),
            (0, 0o755, GuardedEntries::All),
            (0, 0o1755, GuardedEntries::All),
            (own, 0o1777, GuardedEntries::Own),
            (0, 0o1777, GuardedEntries::Own),
            (0, 0o3775, GuardedEntries::Own),
            (own, 0o775, GuardedEntries::None),
            (0, 0o2775, GuardedEntries::None),
            (own, 0o757, GuardedEntries::None),
            (own, 0o777, GuardedEntries::None),
            // The owner of a directory may rename entries of other users even if the directory has the sticky bit.
            (other, 0o1777, GuardedEntries::None),
            (other, 0o755, GuardedEntries::None),
            (other, 0o700, GuardedEntries::None),
        ] {
            let found = GuardedEntries::for_user(owner, Mode::from_raw_mode(mode), own);
            assert_eq!(found, guarded, "{owner} {mode:o}");
        }
    }
}
