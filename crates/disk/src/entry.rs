//! Entries other than data: links, metadata, and what tells that a source file changed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Mode, Stat, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use zmove_types::{Metadata, Name, Timestamp};

use crate::hidden::TempNames;
use crate::staged::Replace;

pub(crate) mod own;

use own::open_own;

/// What must not differ between the first look at a source file and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Size in bytes.
    pub bytes: u64,
    /// When the contents last changed.
    pub mtime: Timestamp,
    /// When anything last changed, as the kernel alone can set it.
    pub ctime: Timestamp,
    /// Which file it is on its file system.
    pub inode: u64,
    /// Permission bits.
    pub mode: u32,
    /// Whether it is a regular file.
    pub regular: bool,
}

impl FileIdentity {
    /// Looks at an open file.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::from_stat(&rustix::fs::fstat(file)?))
    }

    /// Looks at an entry of a directory without following a link.
    ///
    /// # Errors
    /// What the system says.
    pub fn at(directory: impl AsFd, name: &Name) -> io::Result<Self> {
        Ok(Self::from_stat(&rustix::fs::statat(directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Mode and time to be carried over.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        Metadata { mode: self.mode, mtime: self.mtime }
    }

    fn from_stat(stat: &Stat) -> Self {
        Self {
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: timestamp(stat.st_mtime, stat.st_mtime_nsec),
            ctime: timestamp(stat.st_ctime, stat.st_ctime_nsec),
            inode: stat.st_ino,
            mode: stat.st_mode & 0o7777,
            regular: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        }
    }
}

fn timestamp(seconds: i64, nanos: u64) -> Timestamp {
    Timestamp { seconds, nanos: u32::try_from(nanos).unwrap_or(0) }
}

/// Makes a symbolic link, or leaves the one that is there when it points to the same; sets its time. What has the name stays
/// as it is where nothing is to be replaced.
///
/// # Errors
/// What the system says; `EISDIR` when a directory has that name.
pub fn place_symlink(
    directory: BorrowedFd<'_>,
    name: &Name,
    (target, mtime): (&[u8], Timestamp),
    names: &TempNames,
    replace: Replace,
) -> io::Result<()> {
    match rustix::fs::symlinkat(target, directory, name.as_os_str()) {
        Ok(()) => {}
        Err(Errno::EXIST) if replace == Replace::Nothing => return Ok(()),
        Err(Errno::EXIST) => replace_with_symlink(directory, name, target, names)?,
        Err(error) => return Err(error.into()),
    }
    let times = Timestamps { last_access: OMIT, last_modification: timespec(mtime) };
    Ok(rustix::fs::utimensat(directory, name.as_os_str(), &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn replace_with_symlink(
    directory: BorrowedFd<'_>,
    name: &Name,
    target: &[u8],
    names: &TempNames,
) -> rustix::io::Result<()> {
    let there = rustix::fs::readlinkat(directory, name.as_os_str(), Vec::new());
    if there.is_ok_and(|there| there.as_bytes() == target) {
        return Ok(());
    }
    let make = |name: &Name| rustix::fs::symlinkat(target, directory, name.as_os_str());
    let (temporary, ()) = names.make(directory, make)?;
    let renamed = rustix::fs::renameat(directory, temporary.as_os_str(), directory, name.as_os_str());
    if renamed.is_err() {
        let _best_effort = rustix::fs::unlinkat(directory, temporary.as_os_str(), AtFlags::empty());
    }
    renamed
}

/// Sets mode and time of a regular file that stays as it is. Anything else is not even opened: a device may do something
/// then, and nobody but its owner says who may use it.
///
/// # Errors
/// What the system says, `EINVAL` for what is no regular file.
pub fn retouch(directory: BorrowedFd<'_>, name: &Name, metadata: &Metadata) -> io::Result<()> {
    let regular = |there: FileIdentity| if there.regular { Ok(()) } else { Err(Errno::INVAL) };
    regular(FileIdentity::at(directory, name)?)?;
    let file = open_own(directory, name)?;
    regular(FileIdentity::of(&file)?)?;
    set_file_metadata(file.as_fd(), metadata)
}

/// Sets mode and time of an open directory.
///
/// # Errors
/// What the system says.
pub fn set_directory_metadata(directory: BorrowedFd<'_>, metadata: &Metadata) -> io::Result<()> {
    set_file_metadata(directory, metadata)
}

/// Gives a directory the mode that one gets which is made in it, by the umask or by what access control lists pass on.
///
/// # Errors
/// What the system says.
pub fn set_usual_mode(directory: BorrowedFd<'_>, names: &TempNames) -> io::Result<()> {
    let all = Mode::from_raw_mode(0o777);
    let make = |name: &Name| rustix::fs::mkdirat(directory, name.as_os_str(), all);
    let (made, ()) = names.make(directory, make)?;
    let stat = rustix::fs::statat(directory, made.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::unlinkat(directory, made.as_os_str(), AtFlags::REMOVEDIR)?;
    Ok(rustix::fs::fchmod(directory, Mode::from_raw_mode(stat?.st_mode))?)
}

/// Sets mode and time of a file just made; tells whether it had the mode already, as is often so.
///
/// # Errors
/// What the system says.
pub fn set_new_file_metadata(file: impl AsFd, metadata: &Metadata) -> io::Result<bool> {
    let file = file.as_fd();
    let has_mode = rustix::fs::fstat(file)?.st_mode & 0o7777 == metadata.mode;
    if has_mode {
        set_file_mtime(file, metadata.mtime)?;
    } else {
        set_file_metadata(file, metadata)?;
    }
    Ok(has_mode)
}

fn set_file_metadata(file: BorrowedFd<'_>, metadata: &Metadata) -> io::Result<()> {
    rustix::fs::fchmod(file, Mode::from_raw_mode(metadata.mode))?;
    set_file_mtime(file, metadata.mtime)
}

pub(crate) fn set_file_mtime(file: BorrowedFd<'_>, mtime: Timestamp) -> io::Result<()> {
    let times = Timestamps { last_access: OMIT, last_modification: timespec(mtime) };
    Ok(rustix::fs::futimens(file, &times)?)
}

const OMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanos) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn links_are_made_kept_and_replaced() {
        let home = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(home.path()).unwrap();
        let (name, names) = (Name::from_bytes(b"l").unwrap(), TempNames::new("t"));
        let mtime = Timestamp { seconds: 10, nanos: 20 };
        for target in ["one", "one", "two\u{ff}"] {
            place_symlink(fd.as_fd(), &name, (target.as_bytes(), mtime), &names, Replace::Existing).unwrap();
            let link = home.path().join("l");
            assert_eq!(std::fs::read_link(&link).unwrap().to_str(), Some(target));
            let stat = link.symlink_metadata().unwrap();
            assert_eq!((stat.mtime(), stat.mtime_nsec()), (10, 20));
        }
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn nothing_but_a_regular_file_is_retouched() {
        let home = tempfile::tempdir().unwrap();
        let fd = std::fs::File::open(home.path()).unwrap();
        std::fs::write(home.path().join("precious"), "x").unwrap();
        std::fs::create_dir(home.path().join("directory")).unwrap();
        std::os::unix::fs::symlink("precious", home.path().join("link")).unwrap();
        let node = |name, kind| rustix::fs::mknodat(&fd, name, kind, Mode::RUSR, 0);
        node("fifo", FileType::Fifo).unwrap();
        node("socket", FileType::Socket).unwrap();
        // only root can make one
        let device = node("device", FileType::CharacterDevice).is_ok();
        let mode = |name: &str| home.path().join(name).symlink_metadata().unwrap().mode();
        let names = ["directory", "link", "fifo", "socket", "device"];
        let metadata = Metadata { mode: 0o777, mtime: Timestamp { seconds: 3, nanos: 4 } };
        for name in names.into_iter().filter(|name| device || *name != "device") {
            let before = mode(name);
            let there = Name::from_bytes(name.as_bytes()).unwrap();
            assert!(retouch(fd.as_fd(), &there, &metadata).is_err(), "{name}");
            assert_eq!(mode(name), before, "{name}");
        }
        assert_ne!(home.path().join("precious").metadata().unwrap().mtime(), 3);
    }

    #[test]
    fn an_unreadable_file_is_retouched() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("x");
        std::fs::write(&path, "data").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
        let fd = std::fs::File::open(home.path()).unwrap();
        let name = Name::from_bytes(b"x").unwrap();
        let metadata = Metadata { mode: 0o440, mtime: Timestamp { seconds: 3, nanos: 4 } };
        retouch(fd.as_fd(), &name, &metadata).unwrap();
        let identity = FileIdentity::at(&fd, &name).unwrap();
        assert_eq!(identity.metadata(), metadata);
    }
}
