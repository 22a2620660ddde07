//! The files of a sweep, named by their numbers.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags};
use zmove_types::Name;

/// The name of a file, or of a directory of small ones.
pub(crate) fn name_of(number: u64) -> Name {
    Name::from_bytes(number.to_string().as_bytes()).expect("digits")
}

/// Opens a file for reading.
pub(crate) fn open(directory: impl AsFd, number: u64) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name_of(number).as_os_str(), flags, Mode::empty())?.into())
}

/// Of every file.
pub(crate) const MODE: u32 = 0o600;
