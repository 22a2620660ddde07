//! Final names: an entry that gets one replaces the one that has it in one step, or leaves that as it is.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use zmove_types::{Kinds, Name, Timestamp};

use crate::metadata::attributes::set_times_at;
use crate::metadata::entry::metadata::Miss;
use crate::metadata::entry::proven::ProvenKinds;
use crate::metadata::entry::xattrs::NameAt;
use crate::metadata::entry::{FileIdentity, with_access_now};
use crate::metadata::storable_times::{is_beyond_range, is_held_everywhere, may_be_kept};
use crate::opening::by_name::unlink_at;
use crate::publishing::final_names::{link, rename, rename_with, symlink};
use crate::publishing::lease::Lease;
use crate::staging::hidden::make_hidden;

/// What happens to an entry that has the final name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// The old entry is replaced, in one step.
    Existing,
    /// The old entry stays, and the new one gets no name: `EEXIST`.
    Nothing,
}

/// Gives a file that has a hidden name its final one, in the same directory: across two the kernel renames
/// one at a time on the whole file system.
///
/// # Errors
/// The system's error; `EISDIR` when a directory has that name, `EEXIST` when something has it that is not
/// to be replaced, and what [`Lease::permit`] returns.
pub fn publish_file(
    lease: &Lease,
    directory: &OwnedFd,
    hidden: &Name,
    name: &Name,
    replace: Replace,
) -> io::Result<()> {
    move_to(
        lease,
        NameAt::new(directory, hidden),
        NameAt::new(directory, name),
        replace,
    )
}

/// The same for an entry of any directory of the file system.
pub(crate) fn move_to(
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
        // File systems that do not know the flag refuse to link over a name as well.
        Err(Errno::INVAL | Errno::NOSYS) => {
            publish_from(lease, NameAt::new(from, hidden), directory, name)
        }
        renamed => Ok(renamed?),
    }
}

/// Gives a file of another directory its final name in `into`, which nothing may have, by a link: between two
/// directories the kernel renames one file at a time on the whole file system.
///
/// # Errors
/// The system's error; `EEXIST` when something has that name, and what [`Lease::permit`] returns.
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
    // The file has its name; another one that stays goes with its directory, or is swept.
    let _goes_later = unlink_at(directory, file);
    Ok(())
}

/// Makes a symbolic link, or leaves the one that is there when it points to the same; sets its time, and returns what
/// the link did not get. `None` where something else has the name and nothing is to be replaced.
///
/// # Errors
/// The system's error; `EISDIR` when a directory has that name, and what [`Lease::permit`] returns.
pub fn place_symlink(
    lease: &Lease,
    directory: BorrowedFd<'_>,
    name: &Name,
    target: &[u8],
    mtime: Timestamp,
    replace: Replace,
    proven: &ProvenKinds,
) -> io::Result<Option<Vec<Miss>>> {
    match symlink(lease.permit()?, target, directory, name) {
        Ok(()) => {}
        Err(Errno::EXIST) if replace == Replace::Nothing => return Ok(None),
        Err(Errno::EXIST) => replace_with_symlink(lease, directory, name, target)?,
        Err(error) => return Err(error.into()),
    }
    let miss = |error| {
        Some(vec![Miss {
            kind: Kinds::TIMES,
            error,
        }])
    };
    match set_times_at(lease.permit()?, directory, name, &with_access_now(mtime)) {
        Ok(()) => {}
        Err(error) if Miss::is_refusal(error) => return Ok(miss(error)),
        Err(error) => return Err(error.into()),
    }
    let device = rustix::fs::fstat(directory)?.st_dev;
    if is_held_everywhere(mtime) && proven.of(device).has_any(Kinds::TIMES) {
        return Ok(Some(Vec::new()));
    }
    let got = FileIdentity::at(directory, name)?.mtime;
    Ok(if !may_be_kept(got, mtime) {
        miss(Miss::IGNORED)
    } else if is_beyond_range(got, mtime) {
        miss(Miss::BEYOND_RANGE)
    } else {
        Some(Vec::new())
    })
}

fn replace_with_symlink(
    lease: &Lease,
    directory: BorrowedFd<'_>,
    name: &Name,
    target: &[u8],
) -> rustix::io::Result<()> {
    let there = rustix::fs::readlinkat(directory, name.as_os_str(), Vec::new());
    // one with other names may be anybody's
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
