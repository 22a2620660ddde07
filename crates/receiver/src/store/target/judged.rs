//! The files that were compared by their contents, with their identity at that time: the sender may report later that
//! they need only a mode and a time, and somebody else may have written to them by then.
//!
//! A file is known by its number, since a name of it may lead to another file by then, and another name to the same.
//! Each file takes a few bytes, which are booked, until the end of the transfer.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use zmove_disk::{FileIdentity, number_at};
use zmove_types::{FileNumber, Name};

use crate::quota::{Held, Quota};

/// The files that were compared; see the module.
#[derive(Debug)]
pub(crate) struct Judged {
    state: Mutex<State>,
    hashes: RandomState,
}

#[derive(Debug)]
struct State {
    /// The hash of each file's identity when it was compared.
    looks: HashMap<FileNumber, u64>,
    held: Held,
}

/// The memory of a file in the map, with the map's spare room.
const FILE_BYTES: usize = 2 * size_of::<(FileNumber, u64)>();

impl Judged {
    pub(crate) fn new(quota: &Quota) -> Self {
        let state = State { looks: HashMap::new(), held: quota.nothing() };
        Self { state: Mutex::new(state), hashes: RandomState::new() }
    }

    /// Remembers what a compared file looks like; `false` where that fails, and the file must not count as equal.
    pub(crate) fn remember(&self, directory: &OwnedFd, name: &Name, look: &FileIdentity) -> bool {
        let Ok(number) = number_at(directory, name.as_os_str()) else { return false };
        if is_just_changed(look) {
            return false;
        }
        let hash = self.hash(look);
        let mut state = self.lock();
        if !state.looks.contains_key(&number) && state.held.grow(FILE_BYTES).is_err() {
            return false;
        }
        state.looks.insert(number, hash);
        true
    }

    /// Whether a file still looks as it did when it was compared. One that was not compared is as the sender reports
    /// it.
    pub(crate) fn is_as_judged(&self, directory: &OwnedFd, name: &Name, look: &FileIdentity) -> bool {
        let number = number_at(directory, name.as_os_str());
        let hash = self.hash(look);
        number.is_ok_and(|number| self.lock().looks.get(&number).is_none_or(|judged| *judged == hash))
    }

    /// Notes the new identity of a file that has got its mode and time.
    pub(crate) fn is_done(&self, directory: &OwnedFd, name: &Name) -> io::Result<()> {
        let number = number_at(directory, name.as_os_str())?;
        let look = FileIdentity::at(directory, name)?;
        let hash = self.hash(&look);
        if let Some(judged) = self.lock().looks.get_mut(&number) {
            *judged = hash;
        }
        Ok(())
    }

    fn hash(&self, look: &FileIdentity) -> u64 {
        let FileIdentity { bytes, mtime, ctime, inode, mode, .. } = *look;
        self.hashes.hash_one((bytes, (mtime.seconds, mtime.nanos), (ctime.seconds, ctime.nanos), inode, mode))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a file was changed so recently that another change might leave it the same times: kernels before 6.13, and
/// some file systems, count them in ticks.
fn is_just_changed(look: &FileIdentity) -> bool {
    let changed = look.ctime.to_system_time();
    let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
    age.is_none_or(|age| age < TICK_MAX)
}

/// Two ticks of the slowest clock that kernels are built with (`CONFIG_HZ=100`).
const TICK_MAX: Duration = Duration::from_millis(20);
