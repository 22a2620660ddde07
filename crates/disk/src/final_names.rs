//! The calls that give or remove final names.
//!
//! **Invariant:** nothing else in this crate renames, links or removes an entry under a name that others see. Each call
//! takes a [`Permit`], so none is made after the sender has gone. Hidden names need none.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, RenameFlags};
use rustix::io::Result;

use crate::lease::Permit;

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) directory: BorrowedFd<'a>,
    pub(crate) name: &'a OsStr,
}

pub(crate) fn place<'a>(directory: &'a impl AsFd, name: &'a OsStr) -> Place<'a> {
    Place {
        directory: directory.as_fd(),
        name,
    }
}

pub(crate) fn rename(_permit: Permit<'_>, from: Place<'_>, to: Place<'_>) -> Result<()> {
    rustix::fs::renameat(from.directory, from.name, to.directory, to.name)
}

pub(crate) fn rename_with(
    _permit: Permit<'_>,
    from: Place<'_>,
    to: Place<'_>,
    flags: RenameFlags,
) -> Result<()> {
    rustix::fs::renameat_with(from.directory, from.name, to.directory, to.name, flags)
}

pub(crate) fn link(_permit: Permit<'_>, from: Place<'_>, to: Place<'_>) -> Result<()> {
    rustix::fs::linkat(
        from.directory,
        from.name,
        to.directory,
        to.name,
        AtFlags::empty(),
    )
}

pub(crate) fn symlink(_permit: Permit<'_>, target: &[u8], at: Place<'_>) -> Result<()> {
    rustix::fs::symlinkat(target, at.directory, at.name)
}

pub(crate) fn make_directory(_permit: Permit<'_>, at: Place<'_>, mode: Mode) -> Result<()> {
    rustix::fs::mkdirat(at.directory, at.name, mode)
}

/// Removes an entry that is no directory, or, by `AtFlags::REMOVEDIR`, an empty directory.
pub(crate) fn remove(_permit: Permit<'_>, at: Place<'_>, flags: AtFlags) -> Result<()> {
    rustix::fs::unlinkat(at.directory, at.name, flags)
}
