//! Which file system a path lies on, so that a sweep is found again.

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};
use rustix::io::Errno;

use crate::result::Storage;

impl Storage {
    /// The storage at a path that is there.
    ///
    /// # Errors
    /// What the system says.
    pub fn at(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let asked = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::MNT_ID);
        Ok(Self::found(rustix::fs::statvfs(&path)?.f_fsid, asked, path))
    }

    /// The storage of an open directory, which `path` leads to if that can be said.
    pub(crate) fn of(directory: BorrowedFd<'_>, path: &Path) -> io::Result<Self> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let asked = rustix::fs::statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        Ok(Self::found(rustix::fs::fstatvfs(directory)?.f_fsid, asked, path))
    }

    fn found(id: u64, asked: Result<Statx, Errno>, path: PathBuf) -> Self {
        let id = format!("{id:x}");
        let mount_id = asked.ok().filter(|stat| stat.stx_mask & StatxFlags::MNT_ID.bits() != 0);
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mount = find(&mounts, mount_id.map(|stat| stat.stx_mnt_id), &path).unwrap_or_default();
        let shown = |bytes: Vec<u8>| OsString::from_vec(bytes).to_string_lossy().into_owned();
        let path = path.to_string_lossy().into_owned();
        Self { path, kind: shown(mount.kind), source: shown(mount.source), id }
    }

    /// Whether another path is on the same file system.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.kind, &self.source, &self.id) == (&other.kind, &other.source, &other.id)
    }
}

/// A line of `mountinfo`.
#[derive(Debug, Default, PartialEq)]
struct Mount {
    id: u64,
    point: PathBuf,
    kind: Vec<u8>,
    source: Vec<u8>,
}

/// The mount with that number; where the kernel does not tell it, the deepest that the path lies below.
fn find(mounts: &[u8], id: Option<u64>, path: &Path) -> Option<Mount> {
    let mounts: Vec<_> = mounts.split(|byte| *byte == b'\n').filter_map(parse).collect();
    let above = |mount: &&Mount| path.starts_with(&mount.point);
    let deepest = || mounts.iter().filter(above).max_by_key(|mount| mount.point.components().count());
    let found = id.and_then(|id| mounts.iter().find(|mount| mount.id == id)).or_else(deepest)?;
    Some(Mount {
        id: found.id,
        point: found.point.clone(),
        kind: found.kind.clone(),
        source: found.source.clone(),
    })
}

/// `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [OPTIONAL...] - KIND SOURCE OPTIONS`
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let point = OsString::from_vec(unescaped(fields.nth(3)?)).into();
    fields.find(|field| *field == b"-")?;
    let (kind, source) = (unescaped(fields.next()?), unescaped(fields.next()?));
    Some(Mount { id, point, kind, source })
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// Letters that may stand in a file's name, for any text.
pub(crate) fn plain_name(text: &str) -> String {
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let bytes = OsString::from(text);
    let plain = bytes.as_bytes().iter().map(|byte| if letter(byte) { char::from(*byte) } else { '_' });
    plain.take(NAME_LETTERS_MAX).collect()
}

const NAME_LETTERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const MOUNTS: &[u8] = b"22 1 253:0 / / rw - ext4 /dev/vda rw\n\
        30 22 0:40 / /data\\040one rw,nosuid shared:7 - nfs4 host:/export\\134x rw,vers=4.2\n\
        31 22 0:41 / /data\\040one rw - tmpfs tmpfs rw\nbroken\n";

    #[test]
    fn a_mount_is_found_by_its_number_or_by_the_path() {
        let found = find(MOUNTS, Some(30), Path::new("/")).unwrap();
        assert_eq!((found.kind.as_slice(), found.source.as_slice()), (&b"nfs4"[..], &b"host:/export\\x"[..]));
        let below = |path: &str| find(MOUNTS, None, Path::new(path)).unwrap().id;
        assert_eq!(
            (below("/data one/x"), below("/data")),
            (31, 22),
            "what is mounted last hides what is below"
        );
        assert_eq!(find(b"", None, Path::new("/")), None);
    }

    #[test]
    fn two_paths_of_one_file_system_are_the_same_storage() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("a")).unwrap();
        let (one, other) = (Storage::at(home.path()).unwrap(), Storage::at(&home.path().join("a")).unwrap());
        assert!(one.is_same(&other) && one != other);
        let opened = std::fs::File::open(home.path()).unwrap();
        assert_eq!(Storage::of(opened.as_fd(), home.path()).unwrap(), one);
        assert!(!one.is_same(&Storage::at(Path::new("/proc")).unwrap()));
        assert!(!one.kind.is_empty() && Storage::at(&home.path().join("b")).is_err());
    }
}
