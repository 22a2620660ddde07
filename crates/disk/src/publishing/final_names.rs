//! System calls that create or remove final names.
//!
//! **Invariant:** no other code in this crate renames, links or removes an entry under a name that other processes use.
//! Each call takes a [`Permit`], so no name changes after the connection to the sender is lost. Hidden names need no
//! permit.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, RenameFlags};
use rustix::io::Result;

use crate::publishing::lease::Permit;

pub(crate) fn rename(
    _permit: Permit<'_>,
    from: impl AsFd,
    old: impl AsRef<OsStr>,
    to: impl AsFd,
    new: impl AsRef<OsStr>,
) -> Result<()> {
    rustix::fs::renameat(from, old.as_ref(), to, new.as_ref())
}

pub(crate) fn rename_with(
    _permit: Permit<'_>,
    from: impl AsFd,
    old: impl AsRef<OsStr>,
    to: impl AsFd,
    new: impl AsRef<OsStr>,
    flags: RenameFlags,
) -> Result<()> {
    rustix::fs::renameat_with(from, old.as_ref(), to, new.as_ref(), flags)
}

pub(crate) fn link(
    _permit: Permit<'_>,
    from: impl AsFd,
    old: impl AsRef<OsStr>,
    to: impl AsFd,
    new: impl AsRef<OsStr>,
) -> Result<()> {
    rustix::fs::linkat(from, old.as_ref(), to, new.as_ref(), AtFlags::empty())
}

pub(crate) fn symlink(
    _permit: Permit<'_>,
    target: &[u8],
    directory: impl AsFd,
    name: impl AsRef<OsStr>,
) -> Result<()> {
    rustix::fs::symlinkat(target, directory, name.as_ref())
}

pub(crate) fn make_directory(
    _permit: Permit<'_>,
    parent: impl AsFd,
    name: impl AsRef<OsStr>,
    mode: Mode,
) -> Result<()> {
    rustix::fs::mkdirat(parent, name.as_ref(), mode)
}

/// Removes an entry that is not a directory, or an empty directory if `flags` has `AtFlags::REMOVEDIR`.
pub(crate) fn remove(
    _permit: Permit<'_>,
    directory: impl AsFd,
    name: impl AsRef<OsStr>,
    flags: AtFlags,
) -> Result<()> {
    rustix::fs::unlinkat(directory, name.as_ref(), flags)
}
