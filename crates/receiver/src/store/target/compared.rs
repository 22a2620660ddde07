//! The files whose contents were compared, with their identity at that time. Later, the sender may report that such a
//! file needs only a new mode and time. Another process may have written to the file in the meantime, so the identity
//! is checked first.
//!
//! A file is identified by its inode number, because a name may lead to a different file later, and two names may lead
//! to the same file. The record of a file uses a few bytes, which are charged to the quota until the end of the
//! transfer.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use zmove_disk::{FileIdentity, number_at};
use zmove_types::{FileNumber, Lock, Name, Timestamp};

use crate::rights::quota::{Charge, Quota};

/// The files whose contents were compared. See the module documentation.
#[derive(Debug)]
pub(crate) struct ComparedFiles {
    state: Lock<State>,
    hashes: RandomState,
}

#[derive(Debug)]
struct State {
    identities: HashMap<FileNumber, IdentityHash>,
    held: Charge,
}

/// The hash of a file's identity when it was compared.
#[derive(Clone, Copy, Debug)]
struct IdentityHash {
    hash: u64,
    /// Whether the file had several names when it was compared. If so, the hash excludes the change time, because
    /// removing a name changes it.
    is_shared: bool,
}

/// Memory in bytes for one file in the map, including the map's spare capacity.
const FILE_BYTES: usize = 2 * size_of::<(FileNumber, IdentityHash)>();

impl ComparedFiles {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self {
            state: Lock::new(State {
                identities: HashMap::new(),
                held: quota.empty_charge(),
            }),
            hashes: RandomState::new(),
        }
    }

    /// Remembers the identity of a compared file. Returns `false` if the identity cannot be remembered. The caller must
    /// then not treat the file as equal.
    pub(crate) fn remember(
        &self,
        directory: &OwnedFd,
        name: &Name,
        identity: &FileIdentity,
    ) -> bool {
        let Ok(number) = number_at(directory, name) else {
            return false;
        };
        if is_just_changed(identity, SystemTime::now()) {
            return false;
        }
        let is_shared = identity.names > 1;
        let hash = self.hash(identity, is_shared);
        let mut state = self.state.lock();
        if !state.identities.contains_key(&number) && state.held.grow(FILE_BYTES).is_err() {
            return false;
        }
        state
            .identities
            .insert(number, IdentityHash { hash, is_shared });
        true
    }

    /// Returns whether a file still has the identity that it had when it was compared. Returns `true` if the file was
    /// never compared, because the sender's report is then trusted.
    pub(crate) fn is_as_compared(
        &self,
        directory: &OwnedFd,
        name: &Name,
        identity: &FileIdentity,
    ) -> bool {
        let number = number_at(directory, name);
        let compared = number.map(|number| self.state.lock().identities.get(&number).copied());
        compared.is_ok_and(|compared| {
            compared.is_none_or(|compared| compared.hash == self.hash(identity, compared.is_shared))
        })
    }

    /// Updates the remembered identity of a file after its mode and time were set.
    pub(crate) fn record_update(&self, directory: &OwnedFd, name: &Name) -> io::Result<()> {
        let number = number_at(directory, name)?;
        let identity = FileIdentity::at(directory, name)?;
        if let Some(compared) = self.state.lock().identities.get_mut(&number) {
            compared.hash = self.hash(&identity, compared.is_shared);
        }
        Ok(())
    }

    fn hash(&self, identity: &FileIdentity, is_shared: bool) -> u64 {
        let FileIdentity {
            bytes,
            mtime,
            inode,
            mode,
            ..
        } = *identity;
        let ctime = if is_shared {
            Timestamp::default()
        } else {
            identity.ctime
        };
        self.hashes.hash_one((
            bytes,
            (mtime.seconds, mtime.nanos),
            (ctime.seconds, ctime.nanos),
            inode,
            mode,
        ))
    }
}

/// Returns whether a file was changed so shortly before `now` that a further change might not alter its timestamps.
/// Kernels before 6.13 and some file systems update timestamps only once per clock tick.
fn is_just_changed(identity: &FileIdentity, now: SystemTime) -> bool {
    let changed = identity.ctime.to_system_time();
    let age = changed.and_then(|changed| now.duration_since(changed).ok());
    age.is_none_or(|age| age < TICK_MAX)
}

/// Duration of two ticks of the slowest clock with which kernels are built (`CONFIG_HZ=100`).
const TICK_MAX: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_changed_within_two_ticks_is_just_changed() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("f"), "x").unwrap();
        let directory = OwnedFd::from(std::fs::File::open(home.path()).unwrap());
        let identity = FileIdentity::at(&directory, &Name::from_bytes(b"f").unwrap()).unwrap();
        let changed = identity.ctime.to_system_time().unwrap();
        let is_just_changed =
            |age| is_just_changed(&identity, changed + Duration::from_millis(age));
        assert_eq!([0, 19, 20].map(is_just_changed), [true, true, false]);
    }

    #[test]
    fn a_file_whose_change_is_in_the_future_is_not_remembered() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("f"), "x").unwrap();
        let directory = OwnedFd::from(std::fs::File::open(home.path()).unwrap());
        let name = Name::from_bytes(b"f").unwrap();
        let identity = FileIdentity::at(&directory, &name).unwrap();
        let compared = ComparedFiles::new(&Quota::default());
        // If the clock was set back after the change, the change time is in the future, and the change may be very
        // recent.
        for (seconds, is_remembered) in [(-3600, true), (3600, false)] {
            let ctime = Timestamp {
                seconds: identity.ctime.seconds + seconds,
                ..identity.ctime
            };
            let identity = FileIdentity { ctime, ..identity };
            assert_eq!(
                compared.remember(&directory, &name, &identity),
                is_remembered,
                "{seconds}"
            );
        }
    }
}
