//! The identity of a file system, which is used to find an earlier sweep of the same file system.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use zmove_disk::{Mount, mounts};

use crate::sweep::result::Storage;

impl Storage {
    /// Returns the storage at an existing path.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Self::of(opened.as_fd(), path)
    }

    /// Returns the storage of an open directory. `path` should be the path of that directory and is used only for
    /// display.
    pub(crate) fn of(directory: BorrowedFd<'_>, path: &Path) -> io::Result<Self> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mount = Mount::of(&mounts(), directory, &path);
        let (kind, source) =
            mount.map_or_else(Default::default, |mount| (mount.kind, mount.source));
        Ok(Self {
            path: path.to_string_lossy().into_owned(),
            kind,
            source,
            id: format!("{:x}", rustix::fs::fstatvfs(directory)?.f_fsid),
        })
    }

    /// Returns whether both are the same file system.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.kind, &self.source, &self.id) == (&other.kind, &other.source, &other.id)
    }
}

/// Replaces all characters of a text that may not appear in a portable file name.
pub(crate) fn plain_name(text: &str) -> String {
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let plain = text
        .as_bytes()
        .iter()
        .map(|byte| if letter(byte) { char::from(*byte) } else { '_' });
    plain.take(NAME_LETTERS_MAX).collect()
}

const NAME_LETTERS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_paths_of_one_file_system_are_the_same_storage() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("a")).unwrap();
        let one = Storage::at(home.path()).unwrap();
        let other = Storage::at(&home.path().join("a")).unwrap();
        assert!(one.is_same(&other) && one != other);
        let opened = std::fs::File::open(home.path()).unwrap();
        assert_eq!(Storage::of(opened.as_fd(), home.path()).unwrap(), one);
        assert!(!one.is_same(&Storage::at(Path::new("/proc")).unwrap()));
        assert!(!one.kind.is_empty() && Storage::at(&home.path().join("b")).is_err());
    }
}
