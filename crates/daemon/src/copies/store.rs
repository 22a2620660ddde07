//! A directory of small files. Each file is written completely and flushed, or not written at all. Without a directory,
//! all contents are lost when the process ends.
//!
//! A file consists of one line with the version of its format, followed by a message.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use zmove_types::{Escaped, Lock};
use zmove_wire::limits::MESSAGE_BYTES_MAX;
use zmove_wire::{decode_message, encode_message};

/// A directory of small files. The module documentation describes the format.
#[derive(Debug)]
pub(super) struct Store {
    directory: Option<PathBuf>,
    /// Locked while a file is written or removed.
    writing: Lock<()>,
}

const NAME: &[u8] = b"zmove copy ";
const VERSION: &[u8] = b"1";
/// The first line of a file.
const HEADER: &[u8] = b"zmove copy 1\n";
/// Prefix of the names of files that are being written.
const UNFINISHED: &str = ".new-";

impl Store {
    /// Creates a store. The directory is created for this user only, at the first write.
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self {
            directory,
            writing: Lock::default(),
        }
    }

    /// Reads the contents of all files. Damaged files are skipped.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or has another format version.
    pub(super) fn read<T: Serialize + DeserializeOwned>(&self) -> io::Result<Vec<T>> {
        let mut read = Vec::new();
        let Some(directory) = &self.directory else {
            return Ok(read);
        };
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(read),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(UNFINISHED.as_bytes())
            {
                let _best_effort = fs::remove_file(entry.path());
                continue;
            }
            let mut bytes = Vec::new();
            File::open(entry.path())?
                .take(MESSAGE_BYTES_MAX as u64)
                .read_to_end(&mut bytes)?;
            if let Some(contents) =
                contents(&bytes).map_err(|found| other(&entry.path(), &found))?
            {
                read.extend(decode_message(contents));
            }
        }
        Ok(read)
    }

    /// Writes or removes the file `name`. `wanted` returns the contents, or `None` to remove the file. It is called
    /// while no other thread writes, so the file always has the latest contents. Authorization needs the lock on the
    /// state in memory, so this lock is not held during disk I/O.
    ///
    /// # Errors
    /// Returns the system's error. A file that could not be removed is read again after a restart.
    pub(super) fn update<T: Serialize>(
        &self,
        name: &str,
        wanted: impl FnOnce() -> Option<T>,
    ) -> io::Result<()> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let _alone = self.writing.lock();
        match wanted() {
            Some(contents) => write(directory, name, &contents),
            None => remove(directory, name),
        }
    }
}

/// Returns the contents of a file, or `None` if the file is damaged.
///
/// # Errors
/// Returns the version of the file if it is not the current version.
fn contents(bytes: &[u8]) -> Result<Option<&[u8]>, String> {
    let line = bytes
        .iter()
        .position(|byte| *byte == b'\n')
        .map(|end| &bytes[..end]);
    let Some(version) = line.and_then(|line| line.strip_prefix(NAME)) else {
        return Ok(None);
    };
    if version != VERSION {
        return Err(Escaped(version).to_string());
    }
    Ok(Some(&bytes[HEADER.len()..]))
}

fn other(path: &Path, found: &str) -> io::Error {
    let path = Escaped::path(path);
    let known = Escaped(VERSION);
    io::Error::other(format!(
        "'{path}' has format version {found}, and this zmove reads {known}"
    ))
}

fn write(directory: &Path, name: &str, contents: &impl Serialize) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let new = directory.join(format!("{UNFINISHED}{name}"));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(HEADER)?;
    // The length prefix is omitted, because the size of the file implies it.
    file.write_all(&encode_message(contents)[4..])?;
    file.sync_all()?;
    fs::rename(&new, directory.join(name))?;
    File::open(directory)?.sync_all()
}

/// Removes a file if it exists. The directory is flushed, so that the file does not return after a power loss.
fn remove(directory: &Path, name: &str) -> io::Result<()> {
    let removed = fs::remove_file(directory.join(name));
    match removed.and_then(|()| File::open(directory)?.sync_all()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_version_is_an_error_that_names_it_and_a_damaged_one_is_left_out() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(Some(home.path().to_owned()));
        store.update("one", || Some(7_u64)).unwrap();
        let path = home.path().join("other");
        for damaged in ["", "x", "zmove copy 1", "zmove copy 1\n"] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(store.read::<u64>().unwrap(), [7], "{damaged:?}");
        }
        fs::write(&path, "zmove copy 2\n\x08").unwrap();
        assert_eq!(
            store.read::<u64>().unwrap_err().to_string(),
            format!(
                "'{}' has format version 2, and this zmove reads 1",
                path.display()
            )
        );
    }

    #[test]
    fn a_file_that_cannot_be_removed_is_an_error_and_a_missing_one_is_not() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(Some(home.path().join("store")));
        let remove = || store.update("one", || None::<u64>);
        remove().unwrap();
        store.update("one", || Some(7_u64)).unwrap();
        remove().unwrap();
        assert!(store.read::<u64>().unwrap().is_empty());
        remove().unwrap();
        // A directory cannot be removed as a file, not even by root.
        fs::create_dir(home.path().join("store/one")).unwrap();
        assert!(remove().is_err());
    }
}
