//! The identity of file system entries, used to detect changes, and functions that set their mode and times.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Stat, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use zmove_types::{FileNumber, Ids, Metadata, Name, Timestamp};

pub(crate) mod metadata;
pub(crate) mod open_despite_mode;
pub(crate) mod proven;
pub(crate) mod xattrs;

use crate::opening::by_name::stat_at;
use crate::publishing::lease::{Lease, Permit};
use metadata::{MetadataFailure, WantedMetadata};
use open_despite_mode::open_despite_mode;
use proven::ProvenKinds;
use xattrs::Descriptor;

/// The properties of a file that must match between two checks for the file to count as unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last change of the contents.
    pub mtime: Timestamp,
    /// Time of the last change of the contents or the inode. Only the kernel can set it.
    pub ctime: Timestamp,
    /// The inode number.
    pub inode: u64,
    /// The device number of the file system.
    pub device: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub ids: Ids,
    /// Whether the entry is a regular file.
    pub regular: bool,
    /// Number of hard links.
    pub names: u64,
}

impl FileIdentity {
    /// Returns the identity of an open file.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::from_stat(&rustix::fs::fstat(file)?))
    }

    /// Returns the identity of the entry `name` of a directory. Does not follow a symbolic link.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn at(directory: impl AsFd, name: &Name) -> io::Result<Self> {
        Ok(Self::from_stat(&stat_at(directory, name)?))
    }

    /// Returns the mode and modification time, which a transfer copies.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        Metadata::new(self.mode, self.mtime)
    }

    /// Converts the result of a `stat` call.
    #[must_use]
    pub fn from_stat(stat: &Stat) -> Self {
        Self {
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: timestamp(stat.st_mtime, stat.st_mtime_nsec),
            ctime: timestamp(stat.st_ctime, stat.st_ctime_nsec),
            inode: stat.st_ino,
            device: stat.st_dev,
            mode: stat.st_mode & 0o7777,
            ids: Ids {
                user: stat.st_uid,
                group: stat.st_gid,
            },
            regular: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
            names: stat.st_nlink,
        }
    }
}

pub(crate) fn timestamp(seconds: i64, nanos: u64) -> Timestamp {
    Timestamp {
        seconds,
        nanos: u32::try_from(nanos).unwrap_or(0),
    }
}

/// Returns the device and inode number of an open file.
///
/// # Errors
/// Returns the system's error.
pub fn number_of(file: impl AsFd) -> io::Result<FileNumber> {
    Ok(of_stat(&rustix::fs::fstat(file)?))
}

/// Returns the device and inode number of the entry `name`. Does not follow a symbolic link.
///
/// # Errors
/// Returns the system's error.
pub fn number_at(directory: impl AsFd, name: impl AsRef<OsStr>) -> io::Result<FileNumber> {
    Ok(of_stat(&stat_at(directory, name)?))
}

/// Returns whether the entry `name` is a directory. Does not follow a symbolic link.
pub(crate) fn is_directory(parent: BorrowedFd<'_>, name: &Name) -> bool {
    stat_at(parent, name)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Returns whether two descriptors refer to the same file, or `false` if the system cannot tell.
#[must_use]
pub fn is_same_file(one: impl AsFd, other: impl AsFd) -> bool {
    matches!((number_of(one), number_of(other)), (Ok(one), Ok(other)) if one == other)
}

const fn of_stat(stat: &Stat) -> FileNumber {
    FileNumber {
        device: stat.st_dev,
        inode: stat.st_ino,
    }
}

/// Sets the metadata of a regular file if the file still matches `judged`, the identity recorded when the file was
/// compared. Returns the values that could not be set.
///
/// Entries of other types keep their metadata. They are not opened, because opening a device can have side effects. A
/// write between the last check and the change of the time is not detected if it does not change the length of the
/// file.
///
/// # Errors
/// Returns the system's error. Returns `EINVAL` if the entry is not a regular file, and `EBUSY` if the file has
/// changed. Also returns `EBUSY` if the owner would change and the file has other hard links. Returns `EPERM` if
/// another user owns the file and only that user may set its mode and time.
pub fn set_metadata_if_unchanged(
    lease: &Lease,
    directory: BorrowedFd<'_>,
    name: &Name,
    judged: &FileIdentity,
    wanted: &WantedMetadata<'_>,
    proven: &ProvenKinds,
) -> io::Result<Vec<MetadataFailure>> {
    let there = FileIdentity::at(directory, name)?;
    if !there.regular {
        return Err(Errno::INVAL.into());
    }
    let file = open_despite_mode(lease, directory, name)?;
    let opened = FileIdentity::of(&file)?;
    // `open_despite_mode` may change the mode temporarily, which updates the ctime.
    let is_it = FileIdentity {
        ctime: there.ctime,
        ..opened
    } == there;
    if there != *judged || !is_it {
        return Err(Errno::BUSY.into());
    }
    if is_owner_change_unsafe(&FileIdentity::of(&file)?, wanted) {
        return Err(Errno::BUSY.into());
    }
    let misses = wanted.set(lease.permit()?, Descriptor::Open(file.as_fd()), proven)?;
    if is_foreign_owner_failure(opened.ids, &misses) {
        return Err(Errno::PERM.into());
    }
    if wanted.mtime.is_some() && FileIdentity::of(&file)?.bytes != judged.bytes {
        return Err(Errno::BUSY.into());
    }
    Ok(misses)
}

/// Returns whether the owner of a file must not change because the file has other hard links. A local user may have
/// created one of these links to change the owner of another user's file. This does not apply to a new file, which has
/// no other links.
fn is_owner_change_unsafe(there: &FileIdentity, wanted: &WantedMetadata<'_>) -> bool {
    wanted.changes_owner(there.ids) && there.names > 1 && can_change_owner()
}

/// Returns whether a mode or time could not be set because another user owns the entry. `has` is the owner of the
/// entry.
#[must_use]
pub fn is_foreign_owner_failure(has: Ids, misses: &[MetadataFailure]) -> bool {
    misses.iter().any(MetadataFailure::needs_entry_owner) && is_foreign_owner(has)
}

/// Returns whether an entry with owner `has` belongs to another user and this thread lacks `CAP_FOWNER`.
#[must_use]
pub fn is_foreign_owner(has: Ids) -> bool {
    let may_act_for_all =
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::FOWNER));
    has.user != rustix::process::geteuid().as_raw() && !may_act_for_all()
}

/// Returns whether this thread may give files to other users. Returns `true` if its capabilities cannot be read.
pub(crate) fn can_change_owner() -> bool {
    capabilities(None).map_or(true, |sets| sets.effective.contains(CapabilitySet::CHOWN))
}

/// Sets the modification time of an open file, and sets its access time to the current time. Both times are set because
/// some file systems ignore a request that sets only one of them.
///
/// # Errors
/// Returns the system's error.
pub fn set_file_mtime(permit: Permit<'_>, file: impl AsFd, mtime: Timestamp) -> io::Result<()> {
    Ok(Descriptor::Open(file.as_fd()).set_times(&permit, &times_with_atime_now(mtime))?)
}

/// Returns timestamps that set the modification time to `mtime` and the access time to the current time.
pub(crate) fn times_with_atime_now(mtime: Timestamp) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        },
        last_modification: timespec(mtime),
    }
}

pub(crate) fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanos.into(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::fs::Mode;
    use rustix::thread::set_capabilities;
    use std::fs::File;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    /// Runs `work` in a thread without root's privileges, so that file modes restrict it.
    pub(crate) fn as_an_ordinary_user<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        let drop_rights = || {
            let mut own = capabilities(None).unwrap();
            own.effective
                .remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
            set_capabilities(None, own).unwrap();
        };
        std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                drop_rights();
                work()
            });
            working.join().unwrap()
        })
    }

    /// Calls [`super::set_metadata_if_unchanged`] with no proven kinds of metadata.
    fn set_metadata_if_unchanged(
        directory: BorrowedFd<'_>,
        name: &Name,
        judged: &FileIdentity,
        wanted: &WantedMetadata<'_>,
    ) -> io::Result<Vec<MetadataFailure>> {
        super::set_metadata_if_unchanged(
            &Lease::constant(),
            directory,
            name,
            judged,
            wanted,
            &ProvenKinds::default(),
        )
    }

    /// Sets the mode and time of a new file.
    pub(crate) fn set_new_file_metadata(file: &File, metadata: &Metadata) -> io::Result<()> {
        let wanted = WantedMetadata::mode_and_time(metadata);
        let misses = wanted.set(
            Permit::for_hidden(),
            Descriptor::Open(file.as_fd()),
            &ProvenKinds::default(),
        )?;
        assert_eq!(misses, []);
        Ok(())
    }

    fn wanted(mode: u32, mtime: Option<Timestamp>) -> WantedMetadata<'static> {
        WantedMetadata {
            mode,
            mtime,
            ..WantedMetadata::default()
        }
    }

    #[test]
    fn nothing_but_a_regular_file_is_retouched() {
        let home = tempfile::tempdir().unwrap();
        let fd = File::open(home.path()).unwrap();
        std::fs::write(home.path().join("precious"), "x").unwrap();
        std::fs::create_dir(home.path().join("directory")).unwrap();
        std::os::unix::fs::symlink("precious", home.path().join("link")).unwrap();
        let node = |name, kind| rustix::fs::mknodat(&fd, name, kind, Mode::RUSR, 0);
        node("fifo", FileType::Fifo).unwrap();
        node("socket", FileType::Socket).unwrap();
        // Only root can make a device node.
        let device = node("device", FileType::CharacterDevice).is_ok();
        let mode = |name: &str| home.path().join(name).symlink_metadata().unwrap().mode();
        let names = ["directory", "link", "fifo", "socket", "device"];
        let metadata = Metadata::new(
            0o777,
            Timestamp {
                seconds: 3,
                nanos: 4,
            },
        );
        for name in names.into_iter().filter(|name| device || *name != "device") {
            let before = mode(name);
            let there = Name::from_bytes(name.as_bytes()).unwrap();
            let judged = FileIdentity::at(&fd, &there).unwrap();
            let wanted = wanted(metadata.mode, Some(metadata.mtime));
            assert!(
                set_metadata_if_unchanged(fd.as_fd(), &there, &judged, &wanted).is_err(),
                "{name}"
            );
            assert_eq!(mode(name), before, "{name}");
        }
        assert_ne!(home.path().join("precious").metadata().unwrap().mtime(), 3);
    }

    #[test]
    fn a_file_with_other_names_gets_no_other_owner() {
        let home = tempfile::tempdir().unwrap();
        let fd = File::open(home.path()).unwrap();
        let name = Name::from_bytes(b"x").unwrap();
        std::fs::write(home.path().join("precious"), "x").unwrap();
        std::fs::hard_link(home.path().join("precious"), home.path().join("x")).unwrap();
        let judged = FileIdentity::at(&fd, &name).unwrap();
        let given = WantedMetadata {
            owner: Some(judged.ids.user + 1),
            may_set_owner: true,
            ..wanted(0o600, None)
        };
        let error = set_metadata_if_unchanged(fd.as_fd(), &name, &judged, &given).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::BUSY));
        assert_eq!(FileIdentity::at(&fd, &name).unwrap(), judged);
        set_metadata_if_unchanged(
            fd.as_fd(),
            &name,
            &judged,
            &WantedMetadata {
                owner: Some(judged.ids.user),
                ..given
            },
        )
        .unwrap();
    }

    /// If another program has changed the file since the comparison, the file must not get the time of the compared
    /// contents.
    #[test]
    fn a_file_that_has_changed_since_it_was_judged_keeps_its_time() {
        let home = tempfile::tempdir().unwrap();
        let fd = File::open(home.path()).unwrap();
        let name = Name::from_bytes(b"x").unwrap();
        let path = home.path().join("x");
        let of_second = |seconds| Timestamp { seconds, nanos: 0 };
        std::fs::write(&path, "judged").unwrap();
        set_file_mtime(
            Permit::for_hidden(),
            File::open(&path).unwrap().as_fd(),
            of_second(3),
        )
        .unwrap();
        let judged = FileIdentity::at(&fd, &name).unwrap();
        set_metadata_if_unchanged(fd.as_fd(), &name, &judged, &wanted(0o604, None)).unwrap();
        let judged = FileIdentity::at(&fd, &name).unwrap();
        assert_eq!(judged.metadata(), Metadata::new(0o604, of_second(3)));
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        let replace = || {
            std::fs::write(home.path().join("y"), "judged").unwrap();
            std::fs::rename(home.path().join("y"), &path).unwrap();
        };
        let changes: [&dyn Fn(); 3] =
            [&|| write("twice!"), &|| write("longer than that"), &replace];
        for change in changes {
            change();
            let changed = set_metadata_if_unchanged(
                fd.as_fd(),
                &name,
                &judged,
                &wanted(0o640, Some(of_second(7))),
            )
            .unwrap_err();
            assert_eq!(Errno::from_io_error(&changed), Some(Errno::BUSY));
            assert_ne!(path.metadata().unwrap().mtime(), 7);
        }
    }

    #[test]
    fn an_unreadable_file_is_retouched() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("x");
        std::fs::write(&path, "data").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o000)).unwrap();
        let fd = File::open(home.path()).unwrap();
        let name = Name::from_bytes(b"x").unwrap();
        let metadata = Metadata::new(
            0o440,
            Timestamp {
                seconds: 3,
                nanos: 4,
            },
        );
        let judged = FileIdentity::at(&fd, &name).unwrap();
        set_metadata_if_unchanged(
            fd.as_fd(),
            &name,
            &judged,
            &wanted(metadata.mode, Some(metadata.mtime)),
        )
        .unwrap();
        let identity = FileIdentity::at(&fd, &name).unwrap();
        assert_eq!(identity.metadata(), metadata);
    }

    #[test]
    fn a_file_is_the_same_under_all_its_names_and_a_link_is_not() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let (file, other) = (
            File::create(at("file")).unwrap(),
            File::create(at("other")).unwrap(),
        );
        std::fs::hard_link(at("file"), at("name")).unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        assert!(
            is_same_file(&file, File::open(at("name")).unwrap()) && !is_same_file(&file, &other)
        );
        let directory = File::open(home.path()).unwrap();
        let number = |name: &str| number_at(&directory, name).unwrap();
        assert_eq!(number("name"), number_of(&file).unwrap());
        assert!(![number("file"), number("other")].contains(&number("link")));
        assert!(number_at(&directory, "nothing").is_err());
    }
}
