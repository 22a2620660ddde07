//! Small private files that several processes may write concurrently.
//!
//! Used for the key, the known hosts and the authorized keys. A file has at most [`FILE_BYTES_MAX`]. **Invariant:** a
//! file is created or replaced completely and flushed, or not at all, even if several processes write it.

use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::Path,
};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use tempfile::NamedTempFile;

use crate::error::KeyFileError;

/// Maximum size of a file that is read, in bytes.
pub(super) const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

const FILE_MODE: u32 = 0o600;
/// The mode of a list in a directory that all users can enter.
const LIST_MODE: u32 = 0o644;
const HOME_MODE: u32 = 0o700;

/// The contents and the mode of a file.
pub(super) struct Contents {
    pub(super) bytes: Vec<u8>,
    /// The permission bits.
    pub(super) mode: u32,
}

/// Reads a file. Returns `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Contents>, KeyFileError> {
    // `NONBLOCK` prevents the open from blocking on a FIFO.
    let opened = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path);
    let read = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.and_then(|file| read_open(&file)),
    };
    read.map(Some).map_err(|source| KeyFileError::Read {
        path: path.into(),
        source,
    })
}

/// Reads a file that determines which peers are trusted, or returns `None` if it does not exist. Fails if users other
/// than its owner can write to it.
pub(super) fn read_trusted(path: &Path) -> Result<Option<Vec<u8>>, KeyFileError> {
    match read(path)? {
        Some(Contents { mode, .. }) if mode & 0o022 != 0 => Err(KeyFileError::Writable {
            path: path.into(),
            mode,
        }),
        contents => Ok(contents.map(|contents| contents.bytes)),
    }
}

/// Reads an open file from its start. The mode is that of the same file.
pub(super) fn read_open(file: &File) -> io::Result<Contents> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mode = found.mode() & 0o7777;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(Contents { bytes, mode })
}

/// Returns a function that creates the error for a file that cannot be written, for use with `map_err`.
pub(super) fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> KeyFileError {
    |source| KeyFileError::Write {
        path: path.into(),
        source,
    }
}

/// Creates the home directory with access for this user only, unless it exists.
fn create_home_of(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(HOME_MODE)
        .create(directory_of(path))
}

/// Creates a file, unless it exists or another process creates it first.
pub(super) fn create(path: &Path, bytes: &[u8]) -> Result<(), KeyFileError> {
    let create = || {
        create_home_of(path)?;
        match write_temporary(path, bytes)?.persist_noclobber(path) {
            Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => Err(error.error),
            _ => sync_parent(path),
        }
    };
    create().map_err(unwritten(path))
}

/// Writes a file and replaces any file with the same name.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), KeyFileError> {
    replace_with(path, bytes, |_| Ok(()))
}

/// Writes a list that a daemon of another user reads. All users who can enter its directory can read it. In a directory
/// with the setgid bit, the file gets the directory's group.
pub(super) fn replace_list(path: &Path, bytes: &[u8]) -> Result<(), KeyFileError> {
    replace_with(path, bytes, |new| share(new, path))
}

/// Writes a file and replaces any file with the same name. Calls `prepare` with the new file before it is renamed into
/// place.
fn replace_with(
    path: &Path,
    bytes: &[u8],
    prepare: impl FnOnce(&File) -> io::Result<()>,
) -> Result<(), KeyFileError> {
    let replace = || {
        let temporary = write_temporary(path, bytes)?;
        prepare(temporary.as_file())?;
        temporary.persist(path)?;
        sync_parent(path)
    };
    replace().map_err(unwritten(path))
}

/// Opens a file for appending and [locks](lock) it. If another process has replaced the file before it was locked,
/// opens the new file instead. Does not follow a symbolic link, and rejects a file that has another owner or a second
/// hard link.
pub(super) fn open_locked(path: &Path) -> Result<File, KeyFileError> {
    let open = || {
        create_home_of(path)?;
        loop {
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let file = OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .mode(FILE_MODE)
                .custom_flags(flags.bits().cast_signed())
                .open(path)?;
            check_own(&file)?;
            if file.metadata()?.len() == 0 {
                share(&file, path)?;
            }
            lock(&file)?;
            if is_named(&file, path)? {
                return Ok(file);
            }
        }
    };
    open().map_err(unwritten(path))
}

/// Lets the users who can read a list's directory read the list.
fn share(file: &File, path: &Path) -> io::Result<()> {
    let directory = fs::metadata(directory_of(path))?.mode();
    file.set_permissions(Permissions::from_mode(FILE_MODE | (directory & LIST_MODE)))
}

/// Checks that a file is a regular file of this user without other hard links. Root accepts any owner, because root
/// uses only directories in which no other user can create entries.
fn check_own(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    let user = rustix::process::geteuid();
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if !user.is_root() && found.uid() != user.as_raw() {
        return Err(io::Error::other(format!(
            "it belongs to user {}",
            found.uid()
        )));
    }
    if found.nlink() > 1 {
        return Err(io::Error::other("it has a second name (a hard link)"));
    }
    Ok(())
}

fn is_named(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (held.dev(), held.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits for the exclusive lock on `file`, which is held until the file is closed. Continues without a lock if the file
/// system does not support locks.
fn lock(file: &File) -> io::Result<()> {
    loop {
        match flock(file, FlockOperation::LockExclusive) {
            Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
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

/// Writes and flushes a file under a temporary name next to `target`. Only this user has access to the temporary file.
/// It is locked, so that [`remove_unfinished`] keeps it, and removed when the result is dropped.
fn write_temporary(target: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    remove_unfinished(target);
    loop {
        let mut file = tempfile::Builder::new()
            .prefix(&unfinished(target))
            .tempfile_in(directory_of(target))?;
        lock(file.as_file())?;
        if !is_named(file.as_file(), file.path())? {
            continue;
        }
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        return Ok(file);
    }
}

/// Removes temporary files of `target` from killed processes. Removes nothing if the file system does not support
/// locks.
pub(super) fn remove_unfinished(target: &Path) {
    let prefix = unfinished(target);
    let entries = fs::read_dir(directory_of(target)).into_iter().flatten();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_unfinished = name
            .as_encoded_bytes()
            .starts_with(prefix.as_encoded_bytes());
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let open = || {
            File::options()
                .read(true)
                .write(true)
                .custom_flags(flags.bits().cast_signed())
                .open(entry.path())
        };
        if is_unfinished
            && let Ok(file) = open()
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            // If the removal fails, the next call tries again.
            let _best_effort = fs::remove_file(entry.path());
        }
    }
}

/// Returns the name prefix of the temporary files of `target`.
fn unfinished(target: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(target.file_name().unwrap_or_default());
    prefix.push(".new-");
    prefix
}

#[cfg(test)]
mod tests {
    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn a_file_of_a_process_that_was_killed_is_removed_and_one_that_is_written_stays() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("key.pem");
        let written = write_temporary(&path, b"new").unwrap();
        let killed = write_temporary(&path, b"secret").unwrap();
        let killed = killed.into_temp_path().keep().unwrap();
        let list = home.path().join(".authorized_keys.new-1");
        fs::write(&list, "").unwrap();
        remove_unfinished(&path);
        assert!(!killed.exists());
        assert!(list.exists() && written.path().exists());
        written.persist(&path).unwrap();
        replace(&list.with_file_name("authorized_keys"), b"").unwrap();
        assert!(!list.exists());
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

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

    #[test]
    fn a_list_can_be_read_by_whoever_may_read_its_directory() {
        let home = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        for (directory, expected) in [(0o700, 0o600), (0o2750, 0o640), (0o755, 0o644)] {
            fs::set_permissions(home.path(), Permissions::from_mode(directory)).unwrap();
            let [list, lock, key] = ["list", "lock", "key"].map(|name| home.path().join(name));
            replace_list(&list, b"x").unwrap();
            drop(open_locked(&lock).unwrap());
            create(&key, b"x").unwrap();
            assert_eq!(
                [mode(&list), mode(&lock), mode(&key)],
                [expected, expected, 0o600]
            );
            for path in [list, lock, key] {
                fs::remove_file(path).unwrap();
            }
        }
    }

    #[test]
    fn nothing_but_a_file_with_one_name_is_locked() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(at("other"), "other").unwrap();
        fs::set_permissions(at("other"), Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink("other", at("link")).unwrap();
        std::os::unix::fs::symlink("none", at("dangling")).unwrap();
        fs::hard_link(at("other"), at("hard")).unwrap();
        let fifo = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, at("fifo"), rustix::fs::FileType::Fifo, fifo, 0).unwrap();
        fs::create_dir(at("directory")).unwrap();
        for name in ["link", "dangling", "hard", "fifo", "directory"] {
            open_locked(&at(name)).unwrap_err();
        }
        assert!(!at("none").exists());
        for name in ["fifo", "directory"] {
            assert!(read(&at(name)).is_err(), "{name}");
        }
        fs::remove_file(at("hard")).unwrap();
        drop(open_locked(&at("other")).unwrap());
    }
}
