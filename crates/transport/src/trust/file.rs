//! Small private files that several processes may write at once.
//!
//! Used for the key, the known hosts and the authorized keys; none is larger than [`FILE_BYTES_MAX`].
//! **Invariant:** a file is created or replaced whole and flushed, or not at all, also where several processes write.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::error::KeyFileError;

/// The largest of these files that is read.
pub(super) const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

const FILE_MODE: u32 = 0o600;
const HOME_MODE: u32 = 0o700;

/// The contents and the mode of a file.
pub(super) struct Contents {
    pub(super) bytes: Vec<u8>,
    /// The permission bits.
    pub(super) mode: u32,
}

/// Reads a file; `None` where there is none.
pub(super) fn read(path: &Path) -> Result<Option<Contents>, KeyFileError> {
    let read = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.and_then(|file| read_open(&file)),
    };
    read.map(Some).map_err(|source| KeyFileError::Read {
        path: path.into(),
        source,
    })
}

/// Reads a file, if it exists, by which peers are trusted: only its owner may be able to write to it.
pub(super) fn read_trusted(path: &Path) -> Result<Option<Vec<u8>>, KeyFileError> {
    match read(path)? {
        Some(Contents { mode, .. }) if mode & 0o022 != 0 => Err(KeyFileError::Writable {
            path: path.into(),
            mode,
        }),
        contents => Ok(contents.map(|contents| contents.bytes)),
    }
}

/// Reads a file from its start; the mode is that of the very file that is read.
pub(super) fn read_open(file: &File) -> io::Result<Contents> {
    let mode = file.metadata()?.permissions().mode() & 0o7777;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(Contents { bytes, mode })
}

/// The error for a file that cannot be written, for use in `map_err`.
pub(super) fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> KeyFileError {
    |source| KeyFileError::Write {
        path: path.into(),
        source,
    }
}

/// Makes the home directory, for this user alone, unless it exists.
fn create_home_of(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(HOME_MODE)
        .create(directory_of(path))
}

/// Stores a file that does not exist yet; a file that another process stored meanwhile stays as it is.
pub(super) fn create(path: &Path, bytes: &[u8]) -> Result<(), KeyFileError> {
    let create = || {
        create_home_of(path)?;
        let temporary = Temporary::write(path, bytes)?;
        match publish(&temporary.path, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => sync_parent(path),
        }
    };
    create().map_err(unwritten(path))
}

/// Stores a file in the place of any that has its name.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), KeyFileError> {
    let replace = || {
        let temporary = Temporary::write(path, bytes)?;
        fs::rename(&temporary.path, path)?;
        sync_parent(path)
    };
    replace().map_err(unwritten(path))
}

/// Opens a file to append to it, and holds its [`lock`]. A file that has been replaced meanwhile is left for the one
/// that has its name now.
pub(super) fn open_locked(path: &Path) -> Result<File, KeyFileError> {
    let open = || {
        create_home_of(path)?;
        loop {
            let owner = Owner::of(path);
            let file = OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .mode(FILE_MODE)
                .open(path)?;
            owner.take_over(&file)?;
            lock(&file)?;
            if is_named(&file, path)? {
                return Ok(file);
            }
        }
    };
    open().map_err(unwritten(path))
}

fn is_named(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (held.dev(), held.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits for the exclusive lock on `file`, held until it is closed. Where the file system has no locks, goes on
/// without.
fn lock(file: &File) -> io::Result<()> {
    loop {
        match flock(file, FlockOperation::LockExclusive) {
            Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Gives `temporary` the name `path` unless that is taken.
/// A hard link works on NFS, where `RENAME_NOREPLACE` does not; other file systems have it the other way round.
fn publish(temporary: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(temporary, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Ok(renameat_with(
            CWD,
            temporary,
            CWD,
            path,
            RenameFlags::NOREPLACE,
        )?),
        outcome => outcome,
    }
}

fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(directory_of(path))?.sync_all()
}

fn directory_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// A flushed file under a temporary name, which is removed when this is dropped.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn write(target: &Path, bytes: &[u8]) -> io::Result<Self> {
        let path = temporary_name(target)?;
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .open(&path)?;
        let temporary = Self { path };
        Owner::of(target).take_over(&file)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(temporary)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename the name is gone already; a leftover is private and harmless.
        drop(fs::remove_file(&self.path));
    }
}

/// The owner that a file has, or is to have: that of the directory where the file does not exist yet. A file that root
/// writes for a daemon with another user stays that user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner(Option<(u32, u32)>);

impl Owner {
    fn of(path: &Path) -> Self {
        let there = fs::symlink_metadata(path).or_else(|_| fs::metadata(directory_of(path)));
        Self(there.ok().map(|there| (there.uid(), there.gid())))
    }

    /// Changes the owner of a file to this one, if this process may do that.
    fn take_over(self, file: &File) -> io::Result<()> {
        let is = file.metadata()?;
        let Some((user, group)) = self.0.filter(|(user, _)| *user != is.uid()) else {
            return Ok(());
        };
        match fchown(file, Some(user), Some(group)) {
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
            _ => Ok(()),
        }
    }
}

fn temporary_name(target: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    aws_lc_rs::rand::fill(&mut random).map_err(|_| io::Error::other("no random bytes"))?;
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{:016x}", u64::from_le_bytes(random)));
    Ok(target.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_keeps_what_is_there() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        create(&path, b"first").unwrap();
        create(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn replace_leaves_one_private_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        replace(&path, b"first").unwrap();
        replace(&path, b"second").unwrap();
        let contents = read(&path).unwrap().unwrap();
        assert_eq!(
            (contents.bytes.as_slice(), contents.mode),
            (b"second".as_slice(), 0o600)
        );
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn missing_file_is_none() {
        let home = tempfile::tempdir().unwrap();
        assert!(read(&home.path().join("file")).unwrap().is_none());
    }
}
