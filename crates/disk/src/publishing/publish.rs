//! Moves entries to their final names. An existing entry is replaced atomically or left unchanged.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use zmove_types::{MetadataKinds, Name, Timestamp};

use crate::metadata::attributes::set_times_at;
use crate::metadata::entry::metadata::MetadataFailure;
use crate::metadata::entry::proven::ProvenKinds;
use crate::metadata::entry::xattrs::NameAt;
use crate::metadata::entry::{FileIdentity, times_with_atime_now};
use crate::metadata::storable_times::{is_out_of_range, is_storable_everywhere, may_be_stored_as};
use crate::opening::by_name::unlink_at;
use crate::publishing::final_names::{link, rename, rename_with, symlink};
use crate::publishing::lease::Lease;
use crate::staging::hidden::make_hidden;

/// How to handle an existing entry with the final name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// Replaces the existing entry atomically.
    Existing,
    /// Keeps the existing entry. The new entry is not renamed, and the call fails with `EEXIST`.
    Nothing,
}

impl Replace {
    /// Returns whether the error is `EEXIST` and existing entries must not be replaced. A file system that cannot
    /// replace a file by a rename also returns `EEXIST`.
    #[must_use]
    pub fn has_refused(self, error: &io::Error) -> bool {
        self == Self::Nothing && Errno::from_io_error(error) == Some(Errno::EXIST)
    }
}

/// Renames a file from its hidden name to its final name in the same directory. The two names must share a directory
/// because the kernel serializes renames between directories for the whole file system.
///
/// # Errors
/// Returns the system's error, `EISDIR` if the name is a directory, `EEXIST` if the name exists and must not be
/// replaced, and the errors of [`Lease::permit`].
pub fn publish_file(
    lease: &Lease,
    directory: &OwnedFd,
    hidden: &Name,
    name: &Name,
    replace: Replace,
) -> io::Result<()> {
    publish_across(
        lease,
        NameAt::new(directory, hidden),
        NameAt::new(directory, name),
        replace,
    )
}

/// Renames an entry like [`publish_file`], from any directory of the file system.
pub(crate) fn publish_across(
    lease: &Lease,
    NameAt {
        directory: from,
        name: hidden,
    }: NameAt<'_>,
    NameAt { directory, name }: NameAt<'_>,
    replace: Replace,
) -> io::Result<()> {
    let permit = lease.permit()?;
    if replace == Replace::Existing {
        return Ok(rename(permit, from, hidden, directory, name)?);
    }
    let flags = RenameFlags::NOREPLACE;
    match rename_with(permit, from, hidden, directory, name, flags) {
        // If the file system does not support the flag, use a hard link, which also fails if the name exists.
        Err(Errno::INVAL | Errno::NOSYS) => {
            publish_from(lease, NameAt::new(from, hidden), directory, name)
        }
        renamed => Ok(renamed?),
    }
}

/// Moves a file from another directory to its final name in `into`. Fails if the name exists. The file is linked
/// instead of renamed because the kernel serializes renames between directories for the whole file system.
///
/// # Errors
/// Returns the system's error, `EEXIST` if the name exists, and the errors of [`Lease::permit`].
pub fn publish_from(
    lease: &Lease,
    NameAt {
        directory,
        name: file,
    }: NameAt<'_>,
    into: &OwnedFd,
    name: &Name,
) -> io::Result<()> {
    link(lease.permit()?, directory, file, into, name)?;
    // The file has its final name. If the old name cannot be removed now, the removal of its directory or a later
    // cleanup removes it.
    let _goes_later = unlink_at(directory, file);
    Ok(())
}

/// Creates a symbolic link, or keeps an existing link with the same target, and sets its modification time. Returns the
/// metadata that could not be set.
///
/// # Errors
/// Returns the system's error, `EISDIR` if the name is a directory, `EEXIST` if the name exists and must not be
/// replaced, and the errors of [`Lease::permit`].
pub fn place_symlink(
    lease: &Lease,
    directory: BorrowedFd<'_>,
    name: &Name,
    target: &[u8],
    mtime: Timestamp,
    replace: Replace,
    proven: &ProvenKinds,
) -> io::Result<Vec<MetadataFailure>> {
    match symlink(lease.permit()?, target, directory, name) {
        Ok(()) => {}
        Err(Errno::EXIST) if replace == Replace::Existing => {
            replace_with_symlink(lease, directory, name, target)?
        }
        Err(error) => return Err(error.into()),
    }
    let miss = |error| {
        vec![MetadataFailure {
            kind: MetadataKinds::TIMES,
            error,
        }]
    };
    match set_times_at(
        lease.permit()?,
        directory,
        name,
        &times_with_atime_now(mtime),
    ) {
        Ok(()) => {}
        Err(error) if MetadataFailure::is_refusal(error) => return Ok(miss(error)),
        Err(error) => return Err(error.into()),
    }
    let device = rustix::fs::fstat(directory)?.st_dev;
    if is_storable_everywhere(mtime) && proven.of(device).has_any(MetadataKinds::TIMES) {
        return Ok(Vec::new());
    }
    let got = FileIdentity::at(directory, name)?.mtime;
    Ok(if !may_be_stored_as(got, mtime) {
        miss(MetadataFailure::NOT_STORED)
    } else if is_out_of_range(got, mtime) {
        miss(MetadataFailure::OUT_OF_RANGE)
    } else {
        Vec::new()
    })
}

fn replace_with_symlink(
    lease: &Lease,
    directory: BorrowedFd<'_>,
    name: &Name,
    target: &[u8],
) -> rustix::io::Result<()> {
    let there = rustix::fs::readlinkat(directory, name.as_os_str(), Vec::new());
    // A symbolic link with several hard links may belong to another user.
    let is_alone = || FileIdentity::at(directory, name).is_ok_and(|there| there.names == 1);
    if there.is_ok_and(|there| there.as_bytes() == target) && is_alone() {
        return Ok(());
    }
    let make = |name: &Name| rustix::fs::symlinkat(target, directory, name.as_os_str());
    let (temporary, ()) = make_hidden(directory, make)?;
    let renamed = lease
        .permit()
        .and_then(|permit| rename(permit, directory, &temporary, directory, name));
    if renamed.is_err() {
        let _best_effort = unlink_at(directory, &temporary);
    }
    renamed
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_from_another_directory_takes_a_name_that_nothing_has() {
        let home = tempfile::tempdir().unwrap();
        let directories = ["from", "into"].map(|name| home.path().join(name));
        let [from, into] = directories.clone().map(|path| {
            std::fs::create_dir(&path).unwrap();
            OwnedFd::from(std::fs::File::open(path).unwrap())
        });
        let [hidden, name] = [b"h", b"n"].map(|name| Name::from_bytes(name).unwrap());
        let publish = |contents: &str| {
            std::fs::write(home.path().join("from/h"), contents).unwrap();
            publish_from(
                &Lease::constant(),
                NameAt::new(&from, &hidden),
                &into,
                &name,
            )
        };
        let count = || {
            directories
                .each_ref()
                .map(|path| std::fs::read_dir(path).unwrap().count())
        };
        publish("one").unwrap();
        assert_eq!(
            (std::fs::read(home.path().join("into/n")).unwrap(), count()),
            (b"one".into(), [0, 1])
        );
        let there = publish("two").unwrap_err();
        assert_eq!(Errno::from_io_error(&there), Some(Errno::EXIST));
        assert_eq!(
            (std::fs::read(home.path().join("into/n")).unwrap(), count()),
            (b"one".into(), [1, 1])
        );
    }

    #[test]
    fn links_are_made_kept_and_replaced() {
        let home = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(home.path()).unwrap();
        let name = Name::from_bytes(b"l").unwrap();
        let mtime = Timestamp {
            seconds: 10,
            nanos: 20,
        };
        let mut inodes = Vec::new();
        for target in ["one", "one", "two\u{ff}"] {
            place_symlink(
                &Lease::constant(),
                fd.as_fd(),
                &name,
                target.as_bytes(),
                mtime,
                Replace::Existing,
                &ProvenKinds::default(),
            )
            .unwrap();
            let link = home.path().join("l");
            assert_eq!(std::fs::read_link(&link).unwrap().to_str(), Some(target));
            let stat = link.symlink_metadata().unwrap();
            assert_eq!((stat.mtime(), stat.mtime_nsec()), (10, 20));
            inodes.push(stat.ino());
        }
        assert_eq!(inodes[0], inodes[1], "an equal link is kept");
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    }
}
