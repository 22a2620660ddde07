//! Hard links: adds another name to an existing entry.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::AtFlags;
use rustix::io::Errno;
use zmove_types::{FileNumber, Name, Special};

use crate::metadata::entry::xattrs::NameAt;
use crate::metadata::entry::{FileIdentity, number_at};
use crate::opening::by_name::unlink_at;
use crate::publishing::lease::Lease;
use crate::publishing::publish::{Replace, publish_file};
use crate::publishing::special::is_special_at;
use crate::staging::hidden::make_hidden;

/// An entry that is neither a file nor a directory and can have hard links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NonRegular<'a> {
    /// A symbolic link, with its target.
    Symlink(&'a [u8]),
    /// A FIFO, socket or device.
    Special(Special),
}

impl NonRegular<'_> {
    /// Returns whether the entry `name` is of this kind and has the same link target or device number.
    #[must_use]
    pub fn matches_at(self, directory: &OwnedFd, name: &Name) -> bool {
        match self {
            Self::Symlink(target) => {
                let there = rustix::fs::readlinkat(directory, name.as_os_str(), Vec::new());
                there.is_ok_and(|there| there.as_bytes() == target)
            }
            Self::Special(special) => is_special_at(directory.as_fd(), name, special),
        }
    }
}

/// The result of making a name a hard link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    /// The link was created.
    Made,
    /// The name was already a link to the file.
    AlreadyLinked,
}

/// Makes `new` a hard link to `first`, if `first` is a regular file that `is_it` accepts as the expected file. Does not
/// follow symbolic links. If `replace` allows it, an existing entry is replaced atomically.
///
/// # Errors
/// Returns the system's error, `ESTALE` if `first` is missing or a different file, and `EISDIR` if `new` is a
/// directory.
pub fn place_link(
    lease: &Lease,
    first: NameAt<'_>,
    new: NameAt<'_>,
    is_it: impl Fn(&FileIdentity) -> bool,
    replace: Replace,
) -> io::Result<Linked> {
    // Another process may have replaced the file between the two checks.
    let is_it = |number: FileNumber| {
        let is_meant =
            |there: FileIdentity| there.inode == number.inode && there.regular && is_it(&there);
        FileIdentity::at(first.directory, first.name).is_ok_and(is_meant)
    };
    place(lease, first, new, is_it, replace)
}

/// Makes `new` a hard link to `first`, if `first` is the given kind of entry. If `replace` allows it, an existing entry
/// is replaced atomically.
///
/// # Errors
/// Returns the system's error, `ESTALE` if `first` is missing or a different entry, and `EISDIR` if `new` is a
/// directory.
pub fn place_link_to_non_regular(
    lease: &Lease,
    first: NameAt<'_>,
    new: NameAt<'_>,
    entry: NonRegular<'_>,
    replace: Replace,
) -> io::Result<Linked> {
    let is_it = |_number| entry.matches_at(first.directory, first.name);
    place(lease, first, new, is_it, replace)
}

fn place(
    lease: &Lease,
    NameAt {
        directory: from,
        name: first,
    }: NameAt<'_>,
    NameAt { directory, name }: NameAt<'_>,
    is_it: impl Fn(FileNumber) -> bool,
    replace: Replace,
) -> io::Result<Linked> {
    let number = number_at(from, first).map_err(|_missing| Errno::STALE)?;
    let is_there = |directory: &OwnedFd, name: &Name| {
        number_at(directory, name).is_ok_and(|there| there == number)
    };
    if !is_it(number) {
        return Err(Errno::STALE.into());
    }
    if is_there(directory, name) {
        return Ok(Linked::AlreadyLinked);
    }
    let link = |hidden: &Name| {
        rustix::fs::linkat(
            from,
            first.as_os_str(),
            directory,
            hidden.as_os_str(),
            AtFlags::empty(),
        )
    };
    let (hidden, ()) = make_hidden(directory.as_fd(), link)?;
    // Another process may have replaced the entry at the first name after the check.
    let placed = if is_there(directory, &hidden) {
        publish_file(lease, directory, &hidden, name, replace)
    } else {
        Err(Errno::STALE.into())
    };
    // If another thread has just created the same link, the rename has no effect and the hidden name still exists.
    let _gone_as_a_rule = unlink_at(directory, &hidden);
    placed.map(|()| Linked::Made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    fn place(home: &Path, first: &str, name: &str, replace: Replace) -> io::Result<Linked> {
        let directory = OwnedFd::from(File::open(home).unwrap());
        let of = |text: &str| Name::from_bytes(text.as_bytes()).unwrap();
        place_link(
            &Lease::constant(),
            NameAt::new(&directory, &of(first)),
            NameAt::new(&directory, &of(name)),
            |there| there.bytes == 1,
            replace,
        )
    }

    fn inode(home: &Path, name: &str) -> u64 {
        home.join(name).symlink_metadata().unwrap().ino()
    }

    #[test]
    fn a_name_is_made_replaced_and_left() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        std::fs::write(home.join("first"), "x").unwrap();
        std::fs::write(home.join("old"), "another").unwrap();
        std::os::unix::fs::symlink("first", home.join("link")).unwrap();
        for name in ["new", "old", "link"] {
            assert_eq!(
                place(home, "first", name, Replace::Existing).unwrap(),
                Linked::Made
            );
            assert_eq!(
                place(home, "first", name, Replace::Existing).unwrap(),
                Linked::AlreadyLinked
            );
            assert_eq!(inode(home, name), inode(home, "first"));
        }
        assert_eq!(
            std::fs::read_dir(home).unwrap().count(),
            4,
            "nothing else is left"
        );
        std::fs::write(home.join("stays"), "x").unwrap();
        let error = place(home, "first", "stays", Replace::Nothing).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::EXIST));
        std::fs::create_dir(home.join("directory")).unwrap();
        let error = place(home, "first", "directory", Replace::Existing).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::ISDIR));
        assert_eq!(
            std::fs::read_dir(home).unwrap().count(),
            6,
            "nothing else is left"
        );
    }

    #[test]
    fn nothing_but_the_file_that_is_meant_gets_a_name() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        std::fs::write(home.join("file"), "x").unwrap();
        std::fs::write(home.join("longer"), "xx").unwrap();
        std::fs::create_dir(home.join("directory")).unwrap();
        std::os::unix::fs::symlink("file", home.join("symlink")).unwrap();
        for first in ["longer", "directory", "symlink", "nothing"] {
            let error = place(home, first, "name", Replace::Existing).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::STALE), "{first}");
        }
        assert_eq!(std::fs::read_dir(home).unwrap().count(), 4);
    }

    #[test]
    fn a_file_that_is_put_under_the_first_name_between_look_and_link_gets_no_other() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        std::fs::write(home.join("first"), "x").unwrap();
        std::fs::write(home.join("other"), "y").unwrap();
        let directory = OwnedFd::from(File::open(home).unwrap());
        let of = |text: &str| Name::from_bytes(text.as_bytes()).unwrap();
        let swap =
            |_: &FileIdentity| std::fs::rename(home.join("other"), home.join("first")).is_ok();
        let placed = place_link(
            &Lease::constant(),
            NameAt::new(&directory, &of("first")),
            NameAt::new(&directory, &of("name")),
            swap,
            Replace::Existing,
        );
        assert_eq!(
            Errno::from_io_error(&placed.unwrap_err()),
            Some(Errno::STALE)
        );
        assert_eq!(
            std::fs::read_dir(home).unwrap().count(),
            1,
            "nothing else is left"
        );
    }
}
