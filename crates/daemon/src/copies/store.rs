//! A directory of small files, each of which is written whole and flushed, or not at all. Without a directory nothing
//! is kept beyond the end of the process.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use zmove_types::Lock;
use zmove_wire::limits::MESSAGE_BYTES_MAX;
use zmove_wire::{decode_message, encode_message};

/// See the module.
#[derive(Debug)]
pub(super) struct Store {
    directory: Option<PathBuf>,
    /// Held while a file is written or removed.
    writing: Lock<()>,
}

/// How the names of files begin that are being written.
const UNFINISHED: &str = ".new-";

impl Store {
    /// The files of a directory, which is made for this user alone when there is something to write.
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self {
            directory,
            writing: Lock::default(),
        }
    }

    /// All that is there and can be understood.
    pub(super) fn read<T: DeserializeOwned>(&self) -> io::Result<Vec<T>> {
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
            read.extend(decode_message(&bytes));
        }
        Ok(read)
    }

    /// Writes the file of this name as it is to be, or removes it. `wanted` is asked when no other thread writes, so
    /// that the file is what was wanted last, although no lock over what is kept in memory, by which connections are
    /// let in, is held while the disk works.
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
            None => {
                // one that cannot be removed is read again after a restart, and is too old then
                let _best_effort = fs::remove_file(directory.join(name));
                Ok(())
            }
        }
    }
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
    // a length before it would only repeat the file's
    file.write_all(&encode_message(contents)[4..])?;
    file.sync_all()?;
    fs::rename(&new, directory.join(name))?;
    File::open(directory)?.sync_all()
}
