//! Leases of targets that other processes of the same user see: locked files in a directory that all of them know.
//!
//! **Invariant:** a lease file counts while its process has locked it, and no longer: one that a dead process has left
//! is removed by the next that looks.

use std::ffi::OsStr;
use std::fs::DirEntry;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::resume::journal::{LockedFile, ensure_directory};

/// The directory of lease files.
#[derive(Debug)]
pub(super) struct LeaseFiles {
    directory: PathBuf,
}

/// A locked lease file; removed when dropped.
#[derive(Debug)]
pub(super) struct LeaseFile(Option<LockedFile>);

impl LeaseFiles {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Makes and locks a lease file; `None` where the directory cannot be written, and other processes do not wait.
    pub(super) fn create(&self, target: &[u8]) -> Option<LeaseFile> {
        ensure_directory(&self.directory).ok()?;
        // Try several names: a process that looks before the new file is locked takes it for one that was left behind.
        let held = (0..TRIES_MAX).find_map(|_| {
            let mut random = [0; 8];
            getrandom(&mut random[..], GetRandomFlags::empty()).ok()?;
            let name = format!("{}{:016x}", prefix(target), u64::from_le_bytes(random));
            LockedFile::create(&self.directory.join(name)).ok()
        });
        held.map(|held| LeaseFile(Some(held)))
    }

    /// Whether a session to this target is ending; `false` where the directory cannot be read.
    pub(super) fn contain(&self, target: &[u8]) -> bool {
        let Ok(entries) = std::fs::read_dir(&self.directory) else {
            return false;
        };
        let prefix = prefix(target);
        let concerns = |name: &OsStr| name.as_bytes().starts_with(prefix.as_bytes());
        entries
            .flatten()
            .filter(|entry| concerns(&entry.file_name()))
            .any(|entry| is_leased(&entry))
    }
}

/// Whether a process holds the lease; otherwise removes its file.
fn is_leased(entry: &DirEntry) -> bool {
    match LockedFile::take(&entry.path()) {
        Ok(Some(left_behind)) => left_behind.remove().is_err(),
        // The file is locked, or being removed, as the next look will show.
        Ok(None) => true,
        Err(_) => false,
    }
}

/// The prefix of the names of all lease files of a target on this host; several hosts may share a home.
fn prefix(target: &[u8]) -> String {
    let mut place = blake3::Hasher::new();
    place
        .update(rustix::system::uname().nodename().to_bytes_with_nul())
        .update(target);
    format!("{}-", place.finalize().to_hex())
}

const TRIES_MAX: usize = 4;

impl Drop for LeaseFile {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            // A file that could not be removed is not locked any more.
            let _removed = held.remove();
        }
    }
}
