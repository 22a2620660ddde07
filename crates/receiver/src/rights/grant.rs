//! Transfers opened by a grant. Such a transfer uses the permissions of the key that issued the grant instead of the
//! sender's. The grant also limits the number of bytes and entries.
//!
//! **Invariant:** data beyond the limits is refused before it is stored. Data that is resent because it was damaged or
//! lost in transit counts once. A directory counts once per session, as an entry or as a parent in the path of an
//! entry, because the receiver creates missing directories.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::sync::Arc;

use zmove_disk::RemovalBudget;
use zmove_types::{Lock, RateLimit};
use zmove_wire::{
    Batch, BatchEntry, DirectoryGroup, EntryFault, Open, Refusal, SignedReceipt, WireError,
};

use crate::rights::quota::Quota;
use crate::rights::top_names::TopNames;
use crate::store::target::WriteAccess;

/// The grants that the peer of one session may use.
pub trait Grants: fmt::Debug + Send + Sync {
    /// Returns whether an opening uses one of these grants. This is the case if the opening names a grant, or if the
    /// peer may not open a transfer without one.
    fn covers(&self, open: &Open) -> bool {
        open.grant.is_some()
    }

    /// Redeems the grant that an opening uses. May block on file access.
    ///
    /// # Errors
    /// The grant does not exist, or it is not valid for this peer, this opening or the current time.
    fn redeem(&self, open: &Open) -> Result<RedeemedGrant, Refusal>;

    /// Records the files that a session has stored so far, so that they are counted even if this process is killed. May
    /// block on file access.
    fn note(&self, _stored: Stored) {}

    /// Returns a signed receipt for a session that has completed, with its number of faults. May block on file access.
    fn receipt(&self, _stored: Stored, _faults: u64) -> Option<SignedReceipt> {
        None
    }

    /// Records the files that a session has stored, when it has ended for any reason. May block on file access.
    fn ended(&self, _stored: Stored) {}
}

/// Totals of the files of one session that were renamed into place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Number of files.
    pub files: u64,
    /// Total size in bytes.
    pub bytes: u64,
}

/// The permissions of a transfer's sender.
#[derive(Clone, Debug)]
pub struct Rights {
    /// The directories to which the sender may write. Default: all.
    pub access: WriteAccess,
    /// The owner of the sender's journals: the fingerprint of its key. Default: empty, for transfers within one
    /// process.
    pub owner: String,
    /// Whether files keep their setuid and setgid bits. Default: no.
    pub set_ids: SetIds,
    /// Whether the sender may set owners, create devices and set privileged attributes. Default: no.
    pub owning: OwnerPermission,
    /// Whether the sender may lead jobs of several receivers. Default: yes, for transfers within one process.
    pub leading: LeaderPermission,
    /// Maximum rate of the sender's lanes. The sender is informed of it, so that it can limit itself. Default: none.
    pub rate_max: Option<RateLimit>,
}

impl Default for Rights {
    fn default() -> Self {
        Self {
            access: WriteAccess::Anywhere,
            owner: String::new(),
            set_ids: SetIds::default(),
            owning: OwnerPermission::default(),
            leading: LeaderPermission::default(),
            rate_max: None,
        }
    }
}

/// Whether files may have setuid and setgid bits. Directories always keep these bits and the sticky bit, because there
/// they grant no privileges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetIds {
    /// The bits are dropped. Because ownership is not preserved, they would grant the privileges of the receiver's
    /// user.
    #[default]
    Dropped,
    /// The bits are preserved, because the grant permits them.
    Carried,
}

/// Whether a key may lead jobs of several receivers. The node that leads a job begins it, ends it, and signs the grants
/// of the other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaderPermission {
    /// Openings of such jobs are refused.
    Denied,
    /// The key may lead such jobs.
    #[default]
    Allowed,
}

/// Whether a sender may set owners, create devices and set attributes that grant privileges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnerPermission {
    /// All entries belong to the receiver's user.
    #[default]
    Denied,
    /// Allowed to the extent that the receiver's user is permitted to do so.
    Allowed,
}

/// A redeemed grant, with the permissions of the session that uses it.
#[derive(Clone, Debug)]
pub struct RedeemedGrant {
    /// The permissions of the key that issued the grant.
    pub rights: Rights,
    /// The quota that is charged for the session's resources.
    pub quota: Quota,
    /// The names that the sender may use as the first component of a path in the target.
    pub top_names: TopNames,
    /// The limit on data that may be stored, or `None` for no limit.
    pub allowance: Option<Arc<Allowance>>,
    /// Number of entries that may still be removed.
    pub removals: Arc<RemovalBudget>,
}

/// An amount of data: a number of bytes and of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes of file contents.
    pub bytes: u64,
    /// Number of entries.
    pub entries: u64,
}

/// The amount that the sessions of one grant may store, and the amount stored so far.
#[derive(Debug)]
pub struct Allowance {
    most: Amount,
    state: Lock<AllowanceState>,
    /// The random hash keys. They prevent a sender from choosing directory names with equal hashes.
    hashes: RandomState,
}

/// Memory used to remember a directory.
pub(crate) const DIRECTORY_BYTES: usize = 32;

#[derive(Debug)]
struct AllowanceState {
    stored: Amount,
    /// Received data that was not stored yet, by item or large file. `sum` is the total.
    pending: HashMap<PendingId, Received>,
    sum: Amount,
    /// Hashes of the paths of directories that were counted.
    directories: HashSet<u64>,
}

/// The item or large file to which received data belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PendingId {
    Item(u64),
    File(u64),
}

/// Data received for an item or a large file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// The size of each entry in bytes, or `None` for a directory, because directories are counted by their paths.
    Batch(Box<[Option<u32>]>),
    /// The size of a group in bytes.
    Group(u64),
    /// A large file. Its bytes are counted by group.
    File,
}

/// Whether received data was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate<'a> {
    Stored,
    /// A batch was stored, except for the entries with these faults. An example is a guessed file that already exists.
    StoredExcept(&'a [EntryFault]),
    Dropped,
}

impl Received {
    fn amount(&self) -> Amount {
        match self {
            Self::Batch(bytes) => {
                let counted = || bytes.iter().flatten();
                Amount {
                    bytes: counted().map(|bytes| u64::from(*bytes)).sum(),
                    entries: counted().count() as u64,
                }
            }
            Self::Group(bytes) => Amount {
                bytes: *bytes,
                entries: 0,
            },
            Self::File => Amount {
                bytes: 0,
                entries: 1,
            },
        }
    }

    /// Returns the amount of this data that was stored.
    fn stored(&self, fate: Fate<'_>) -> Amount {
        let faults = match fate {
            Fate::Dropped => return Amount::default(),
            Fate::Stored => &[],
            Fate::StoredExcept(faults) => faults,
        };
        let all = self.amount();
        let Self::Batch(bytes) = self else {
            return all;
        };
        let failed: BTreeSet<_> = faults.iter().map(|fault| fault.entry as usize).collect();
        let failed = failed
            .iter()
            .filter_map(|entry| bytes.get(*entry).copied())
            .collect();
        all.without(Self::Batch(failed).amount())
    }
}

impl Allowance {
    /// Creates an allowance of `most` in total, of which `stored` is already used.
    #[must_use]
    pub fn new(most: Amount, stored: Amount) -> Self {
        Self {
            most,
            state: Lock::new(AllowanceState {
                stored,
                pending: HashMap::new(),
                sum: Amount::default(),
                directories: HashSet::new(),
            }),
            hashes: RandomState::new(),
        }
    }

    /// Returns the amount stored so far.
    #[must_use]
    pub fn stored(&self) -> Amount {
        self.state.lock().stored
    }

    /// Charges the allowance for received data. Fails if this would exceed the allowance.
    pub(crate) fn charge(&self, what: PendingId, taken: Received) -> Result<(), WireError> {
        let mut state = self.state.lock();
        self.check(state.stored.with(state.sum).with(taken.amount()))?;
        state.sum = state.sum.with(taken.amount());
        if let Some(before) = state.pending.insert(what, taken) {
            state.sum = state.sum.without(before.amount());
        }
        Ok(())
    }

    /// Records the directories in a batch and returns the number of new ones. Records none if entries are not limited.
    pub(crate) fn charge_directories(&self, batch: &Batch) -> Result<usize, WireError> {
        if self.most.entries == u64::MAX {
            return Ok(0);
        }
        let mut state = self.state.lock();
        let before = state.directories.len();
        for DirectoryGroup { directory, entries } in &batch.groups {
            let mut path = self.hashes.build_hasher();
            for name in directory.components() {
                self.charge_directory(&mut state, &mut path, name)?;
            }
            for entry in entries {
                if let BatchEntry::Directory(name, _) = entry {
                    self.charge_directory(&mut state, &mut path.clone(), name.as_bytes())?;
                }
            }
        }
        Ok(state.directories.len() - before)
    }

    /// Records the subdirectory `name` of `path`, and appends the name to `path`.
    fn charge_directory(
        &self,
        state: &mut AllowanceState,
        path: &mut DefaultHasher,
        name: &[u8],
    ) -> Result<(), WireError> {
        path.write(name);
        path.write_u8(b'/');
        if state.directories.insert(path.finish()) {
            state.stored = state.stored.with(Amount {
                bytes: 0,
                entries: 1,
            });
            self.check(state.stored.with(state.sum))?;
        }
        Ok(())
    }

    fn check(&self, Amount { bytes, entries }: Amount) -> Result<(), WireError> {
        let over = |what, value, limit| WireError::OverLimit { what, value, limit };
        if bytes > self.most.bytes {
            return Err(over("number of bytes of this copy", bytes, self.most.bytes));
        }
        if entries > self.most.entries {
            return Err(over(
                "number of entries of this copy",
                entries,
                self.most.entries,
            ));
        }
        Ok(())
    }

    /// Records whether received data was stored. Data that was not stored is charged again if it is sent again.
    pub(crate) fn settle(&self, what: PendingId, fate: Fate<'_>) {
        let mut state = self.state.lock();
        let Some(taken) = state.pending.remove(&what) else {
            return;
        };
        state.sum = state.sum.without(taken.amount());
        state.stored = state.stored.with(taken.stored(fate));
    }
}

impl Amount {
    fn with(self, other: Self) -> Self {
        let Self { bytes, entries } = self;
        Self {
            bytes: bytes.saturating_add(other.bytes),
            entries: entries.saturating_add(other.entries),
        }
    }

    fn without(self, other: Self) -> Self {
        let Self { bytes, entries } = self;
        Self {
            bytes: bytes.saturating_sub(other.bytes),
            entries: entries.saturating_sub(other.entries),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_types::{Metadata, Name, RelPath};
    use zmove_wire::{FaultCode, Operation};

    fn batch(bytes: &[u32]) -> Received {
        Received::Batch(bytes.iter().copied().map(Some).collect())
    }

    /// A sender can cause a directory to be created without sending an entry for it. The directory may occur in the
    /// path of another entry (even one that fails), or in a group without entries.
    #[test]
    fn a_directory_counts_once_as_an_entry_or_on_the_way_to_one() {
        let allowance = Allowance::new(
            Amount {
                bytes: 10,
                entries: 3,
            },
            Amount::default(),
        );
        let take = |directory: &str, named: Option<&str>| {
            let directory = RelPath::from_bytes(directory.as_bytes()).unwrap();
            let name = |text: &str| Name::from_bytes(text.as_bytes()).unwrap();
            let entries = named.map(|text| BatchEntry::Directory(name(text), Metadata::default()));
            let entries = entries.into_iter().collect();
            allowance.charge_directories(&Batch {
                groups: vec![DirectoryGroup { directory, entries }],
            })
        };
        assert_eq!(take("a/b", None), Ok(2));
        assert_eq!(
            (take("a", Some("b")), take("a/b", None), take("", Some("a"))),
            (Ok(0), Ok(0), Ok(0))
        );
        assert_eq!(take("a", Some("c")), Ok(1));
        let over = WireError::OverLimit {
            what: "number of entries of this copy",
            value: 4,
            limit: 3,
        };
        assert_eq!(take("b", None), Err(over));
    }

    #[test]
    fn what_comes_again_counts_once_and_what_is_too_much_is_refused() {
        let before = Amount {
            bytes: 1,
            entries: 1,
        };
        let allowance = Allowance::new(
            Amount {
                bytes: 10,
                entries: 3,
            },
            before,
        );
        allowance.charge(PendingId::Item(1), batch(&[6])).unwrap();
        let error = WireError::OverLimit {
            what: "number of bytes of this copy",
            value: 11,
            limit: 10,
        };
        assert_eq!(
            allowance.charge(PendingId::Item(2), batch(&[4])),
            Err(error)
        );
        allowance.settle(PendingId::Item(1), Fate::Dropped);
        allowance.charge(PendingId::Item(2), batch(&[6])).unwrap();
        assert_eq!(allowance.stored(), before);
        allowance.settle(PendingId::Item(2), Fate::Stored);
        allowance.settle(PendingId::Item(2), Fate::Stored);
        assert_eq!(
            allowance.stored(),
            Amount {
                bytes: 7,
                entries: 2
            }
        );
        allowance
            .charge(PendingId::File(2), Received::File)
            .unwrap();
        allowance
            .charge(PendingId::Item(3), Received::Group(3))
            .unwrap();
        let error = WireError::OverLimit {
            what: "number of entries of this copy",
            value: 4,
            limit: 3,
        };
        assert_eq!(
            allowance.charge(PendingId::File(3), Received::File),
            Err(error)
        );
    }

    #[test]
    fn entries_that_were_not_stored_do_not_count() {
        let allowance = Allowance::new(
            Amount {
                bytes: 10,
                entries: 3,
            },
            Amount::default(),
        );
        allowance
            .charge(PendingId::Item(1), batch(&[1, 2, 4]))
            .unwrap();
        let fault = |entry| EntryFault {
            entry,
            operation: Operation::Rename,
            code: FaultCode::AlreadyThere,
        };
        allowance.settle(
            PendingId::Item(1),
            Fate::StoredExcept(&[fault(1), fault(1), fault(9)]),
        );
        assert_eq!(
            allowance.stored(),
            Amount {
                bytes: 5,
                entries: 2
            }
        );
    }
}
