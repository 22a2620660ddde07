//! Creates FIFOs, sockets and devices under a hidden name, and renames them to their final name once all their metadata
//! is set.
//!
//! **Invariant:** none of these entries is ever opened, because opening a device can have side effects and opening a
//! FIFO can block.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, Stat, StatVfsMountFlags};
use rustix::io::Errno;
use zmove_types::{Name, Special};

use crate::metadata::entry::metadata::{MetadataFailure, WantedMetadata};
use crate::metadata::entry::open_despite_mode::hold_new;
use crate::metadata::entry::proven::ProvenKinds;
use crate::metadata::entry::xattrs::Descriptor;
use crate::opening::by_name::{stat_at, unlink_at};
use crate::publishing::lease::{Lease, Permit};
use crate::publishing::publish::{Replace, publish_file};
use crate::staging::hidden::make_hidden;

/// Creates a FIFO, socket or device and sets its metadata. An existing entry of the same kind is kept, and any other
/// entry is replaced. Returns the metadata that could not be set. If this host or file system does not permit such an
/// entry, the result contains the kind of the entry as a failure.
///
/// # Errors
/// Returns the system's error, `EISDIR` if the name is a directory, and `EEXIST` if the name exists and must not be
/// replaced.
pub fn place_special(
    lease: &Lease,
    directory: &OwnedFd,
    name: &Name,
    special: Special,
    wanted: &WantedMetadata<'_>,
    replace: Replace,
    proven: &ProvenKinds,
) -> io::Result<Vec<MetadataFailure>> {
    match stat_at(directory, name) {
        Ok(_) if replace == Replace::Nothing => return Err(Errno::EXIST.into()),
        Ok(stat) if is(&stat, special) => {
            // An entry with other hard links may belong to another user.
            if let Ok(held) = hold(directory.as_fd(), name, special) {
                let entry = Descriptor::PathOnly(held.as_fd());
                return wanted.set(lease.permit()?, entry, proven);
            }
        }
        Ok(_) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let form = form(special);
    let device = device(special);
    let missed = |error| {
        let kind = special.kind();
        Ok(vec![MetadataFailure { kind, error }])
    };
    if device != 0 && is_without_devices(directory.as_fd()) {
        return missed(Errno::OPNOTSUPP);
    }
    let make =
        |name: &Name| rustix::fs::mknodat(directory, name.as_os_str(), form, Mode::empty(), device);
    let hidden = match make_hidden(directory.as_fd(), make) {
        Ok((hidden, ())) => hidden,
        // The user may not create such an entry, or the file system does not support it.
        Err(error) if MetadataFailure::is_refusal(error) => return missed(error),
        Err(error) => return Err(error.into()),
    };
    let placed = hold(directory.as_fd(), &hidden, special).and_then(|held| {
        let entry = Descriptor::PathOnly(held.as_fd());
        let misses = wanted.set(Permit::for_hidden(), entry, proven)?;
        publish_file(lease, directory, &hidden, name, replace)?;
        Ok(misses)
    });
    if placed.is_err() {
        let _best_effort = unlink_at(directory, &hidden);
    }
    placed
}

/// Returns an `O_PATH` descriptor of a FIFO, socket or device, which must have no other hard link. Another process with
/// write access to the directory could have replaced the entry with a device whose owner and mode must not change.
fn hold(directory: BorrowedFd<'_>, name: &Name, special: Special) -> io::Result<OwnedFd> {
    let held = hold_new(directory, name, form(special))?;
    if is(&rustix::fs::fstat(&held)?, special) {
        Ok(held)
    } else {
        Err(Errno::BUSY.into())
    }
}

/// Returns whether the entry `name` is of this kind and, for a device, has this number.
#[must_use]
pub fn is_special_at(directory: BorrowedFd<'_>, name: &Name, special: Special) -> bool {
    stat_at(directory, name).is_ok_and(|stat| is(&stat, special))
}

fn is(stat: &Stat, special: Special) -> bool {
    FileType::from_raw_mode(stat.st_mode) == form(special)
        && (device(special) == 0 || stat.st_rdev == device(special))
}

fn form(special: Special) -> FileType {
    match special {
        Special::Fifo => FileType::Fifo,
        Special::Socket => FileType::Socket,
        Special::Character(_) => FileType::CharacterDevice,
        Special::Block(_) => FileType::BlockDevice,
    }
}

fn device(special: Special) -> u64 {
    match special {
        Special::Fifo | Special::Socket => 0,
        Special::Character(device) | Special::Block(device) => device,
    }
}

/// Returns whether the mount disables devices (`nodev`).
fn is_without_devices(directory: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatvfs(directory).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::NODEV))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    use zmove_types::Timestamp;

    #[test]
    fn another_device_under_the_name_is_not_held() {
        let home = tempfile::tempdir().unwrap();
        let directory: OwnedFd = std::fs::File::open(home.path()).unwrap().into();
        let name = Name::from_bytes(b"device").unwrap();
        let [null, zero] = [3, 5].map(|minor| rustix::fs::makedev(1, minor));
        let form = FileType::CharacterDevice;
        let made = rustix::fs::mknodat(&directory, name.as_os_str(), form, Mode::RWXU, null);
        if made.is_err() {
            return eprintln!("skipped: only root can make devices");
        }
        let held = |device| hold(directory.as_fd(), &name, Special::Character(device));
        assert!(held(null).is_ok());
        assert_eq!(
            held(zero).unwrap_err().raw_os_error(),
            Some(Errno::BUSY.raw_os_error())
        );
    }

    #[test]
    fn a_fifo_is_made_kept_and_takes_the_place_of_what_is_there() {
        let home = tempfile::tempdir().unwrap();
        let directory: OwnedFd = std::fs::File::open(home.path()).unwrap().into();
        let (name, path) = (Name::from_bytes(b"s").unwrap(), home.path().join("s"));
        let mtime = Some(Timestamp {
            seconds: 5,
            nanos: 6,
        });
        let wanted = |mode| WantedMetadata {
            mode,
            mtime,
            ..WantedMetadata::default()
        };
        let place = |special, mode, replace| {
            place_special(
                &Lease::constant(),
                &directory,
                &name,
                special,
                &wanted(mode),
                replace,
                &ProvenKinds::default(),
            )
        };
        std::fs::write(&path, "x").unwrap();
        let refused = place(Special::Fifo, 0o640, Replace::Nothing).unwrap_err();
        assert!(Replace::Nothing.has_refused(&refused), "{refused}");
        assert!(path.symlink_metadata().unwrap().is_file());
        assert_eq!(
            place(Special::Fifo, 0o640, Replace::Existing).unwrap(),
            vec![]
        );
        let stat = path.symlink_metadata().unwrap();
        assert!(stat.file_type().is_fifo());
        assert_eq!(
            (stat.mode() & 0o7777, stat.mtime(), stat.mtime_nsec()),
            (0o640, 5, 6)
        );
        assert_eq!(
            place(Special::Fifo, 0o600, Replace::Existing).unwrap(),
            vec![]
        );
        let kept = path.symlink_metadata().unwrap();
        assert_eq!((kept.ino(), kept.mode() & 0o7777), (stat.ino(), 0o600));
        assert_eq!(
            place(Special::Socket, 0o600, Replace::Existing).unwrap(),
            vec![]
        );
        assert!(path.symlink_metadata().unwrap().file_type().is_socket());
        assert!(is_special_at(directory.as_fd(), &name, Special::Socket));
        let misses = place(Special::Character(0x0103), 0o600, Replace::Existing).unwrap();
        let is_device = path
            .symlink_metadata()
            .unwrap()
            .file_type()
            .is_char_device();
        assert!(
            is_device == misses.is_empty()
                && misses
                    .iter()
                    .all(|miss| miss.kind == Special::Block(1).kind())
        );
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_stays_and_what_was_begun_goes() {
        let home = tempfile::tempdir().unwrap();
        let directory: OwnedFd = std::fs::File::open(home.path()).unwrap().into();
        std::fs::create_dir(home.path().join("d")).unwrap();
        let name = Name::from_bytes(b"d").unwrap();
        let placed = place_special(
            &Lease::constant(),
            &directory,
            &name,
            Special::Fifo,
            &WantedMetadata::default(),
            Replace::Existing,
            &ProvenKinds::default(),
        );
        assert_eq!(
            Errno::from_io_error(&placed.unwrap_err()),
            Some(Errno::ISDIR)
        );
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    }
}
