//! The identity of the file system that a path lies on, by which an earlier sweep of it is found again.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};
use rustix::io::Errno;
use zmove_disk::Mount;

use crate::sweep::result::Storage;

impl Storage {
    /// The storage at a path that exists.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let asked = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::MNT_ID);
        Ok(Self::found(rustix::fs::statvfs(&path)?.f_fsid, asked, path))
    }

    /// The storage of an open directory; `path`, which should lead to it, is for people.
    pub(crate) fn of(directory: BorrowedFd<'_>, path: &Path) -> io::Result<Self> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let asked = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        Ok(Self::found(
            rustix::fs::fstatvfs(directory)?.f_fsid,
            asked,
            path,
        ))
    }

    fn found(id: u64, asked: Result<Statx, Errno>, path: PathBuf) -> Self {
        let id = format!("{id:x}");
        let mount_id = asked
            .ok()
            .filter(|stat| stat.stx_mask & StatxFlags::MNT_ID.bits() != 0);
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mount = find(&mounts, mount_id.map(|stat| stat.stx_mnt_id), &path);
        let (kind, source) =
            mount.map_or_else(Default::default, |mount| (mount.kind, mount.source));
        Self {
            path: path.to_string_lossy().into_owned(),
            kind,
            source,
            id,
        }
    }

    /// Whether both are the same file system.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.kind, &self.source, &self.id) == (&other.kind, &other.source, &other.id)
    }
}

/// The mount with that number; where the kernel does not report it, the innermost one that the path lies in.
fn find(mounts: &[u8], id: Option<u64>, path: &Path) -> Option<Mount> {
    let numbered = id.and_then(|id| Mount::all(mounts).find(|mount| mount.id == id));
    numbered.or_else(|| Mount::around(mounts, path))
}

/// The text with only such letters as may stand in a file's name.
pub(crate) fn plain_name(text: &str) -> String {
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let plain = text
        .as_bytes()
        .iter()
        .map(|byte| if letter(byte) { char::from(*byte) } else { '_' });
    plain.take(NAME_LETTERS_MAX).collect()
}

const NAME_LETTERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const MOUNTS: &[u8] = b"22 1 253:0 / / rw - ext4 /dev/vda rw\n\
        30 22 0:40 / /data rw,nosuid shared:7 - nfs4 host:/export rw,vers=4.2\n\
        31 22 0:41 / /data rw - tmpfs tmpfs rw\n";

    #[test]
    fn a_mount_is_found_by_its_number_or_by_the_path() {
        let found = |id, path: &str| find(MOUNTS, id, Path::new(path)).map(|mount| mount.id);
        assert_eq!(found(Some(30), "/"), Some(30));
        assert_eq!(
            (found(None, "/data/x"), found(Some(77), "/database")),
            (Some(31), Some(22))
        );
        assert_eq!(find(b"", None, Path::new("/")), None);
    }

    #[test]
    fn two_paths_of_one_file_system_are_the_same_storage() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("a")).unwrap();
        let (one, other) = (
            Storage::at(home.path()).unwrap(),
            Storage::at(&home.path().join("a")).unwrap(),
        );
        assert!(one.is_same(&other) && one != other);
        let opened = std::fs::File::open(home.path()).unwrap();
        assert_eq!(Storage::of(opened.as_fd(), home.path()).unwrap(), one);
        assert!(!one.is_same(&Storage::at(Path::new("/proc")).unwrap()));
        assert!(!one.kind.is_empty() && Storage::at(&home.path().join("b")).is_err());
    }
}
