//! Transfers that are opened by a grant: the right is that of somebody else than the sender, and holds for so many
//! bytes and entries.
//!
//! **Invariant:** what is over the limits is refused before it is stored. What comes again, since it was damaged or
//! lost on its way, counts once. A directory counts once in a session when it is first named, as an entry or on the way
//! to one, since it is made where it is missing.

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
    /// Whether an opening is made by one of them: it names it, or the peer may open nothing else.
    fn are_for(&self, open: &Open) -> bool {
        open.grant.is_some()
    }

    /// Takes up the grant by which an opening is made. May block on files.
    ///
    /// # Errors
    /// There is none, or it is not for this peer, this opening or this time.
    fn take_up(&self, open: &Open) -> Result<TakenUp, Refusal>;

    /// Notes what a session has stored until now, so that it counts also when this process is killed. May block on
    /// files.
    fn note(&self, _stored: Stored) {}

    /// What this side signs of a session that has come to its good end, with so many faults. May block on files.
    fn receipt(&self, _stored: Stored, _faults: u64) -> Option<SignedReceipt> {
        None
    }

    /// Notes what a session has stored that has ended in any way. May block on files.
    fn ended(&self, _stored: Stored) {}
}

/// The files of one session that got their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The number of files.
    pub files: u64,
    /// The sum of their sizes.
    pub bytes: u64,
}

/// What the sender of a transfer may do.
#[derive(Clone, Debug)]
pub struct Rights {
    /// Where it may write. Default: anywhere.
    pub access: WriteAccess,
    /// The owner of its journals: the fingerprint of its key. Default: empty, as within one process.
    pub owner: String,
    /// Whether files keep their setuid and setgid bits. Default: no.
    pub set_ids: SetIds,
    /// Whether entries may get owners, devices be made, and attributes be set that take rights. Default: no.
    pub owning: Owning,
    /// Whether it may open jobs that several receivers write together. Default: yes, as within one process.
    pub leading: Leading,
    /// The rate that its lanes are held to: senders that can keep it by themselves are told. Default: none.
    pub rate_max: Option<RateLimit>,
}

impl Default for Rights {
    fn default() -> Self {
        Self {
            access: WriteAccess::Anywhere,
            owner: String::new(),
            set_ids: SetIds::default(),
            owning: Owning::default(),
            leading: Leading::default(),
            rate_max: None,
        }
    }
}

/// Whether files may have setuid and setgid bits. Those of directories, and the sticky bit, lend no rights
/// and are always carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetIds {
    /// The bits are dropped: ownership is not carried over, so they would lend the rights of the receiver's user.
    #[default]
    Dropped,
    /// The bits are carried, as the grant allows.
    Carried,
}

/// Whether a key may lead jobs that several receivers write together. The head of a job begins it, ends it and signs
/// the grants of its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leading {
    /// Every opening of such a job by this right is refused.
    Denied,
    /// The key may lead such jobs.
    #[default]
    Allowed,
}

/// Whether entries may get owners, and what else takes rights: devices, and the attributes that lend them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owning {
    /// All belongs to the receiver's user.
    #[default]
    Denied,
    /// Allowed as far as the receiver's user may.
    Allowed,
}

/// A grant that was taken up: what a session by it may do.
#[derive(Clone, Debug)]
pub struct TakenUp {
    /// The rights of whoever has given it.
    pub rights: Rights,
    /// The quota on which all is booked that the session keeps.
    pub quota: Quota,
    /// The names that may come to the top of the target.
    pub top_names: TopNames,
    /// What may still be stored; `None`: no limit.
    pub allowance: Option<Arc<Allowance>>,
    /// What may still be removed.
    pub removals: Arc<RemovalBudget>,
}

/// So many bytes and entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes of contents.
    pub bytes: u64,
    /// Entries.
    pub entries: u64,
}

/// What the sessions by one grant may store, and have stored.
#[derive(Debug)]
pub struct Allowance {
    most: Amount,
    book: Lock<AllowanceBook>,
    /// With a key of its own, so that nobody can name directories of equal hashes.
    hashes: RandomState,
}

/// The memory of a directory that has been named.
pub(crate) const DIRECTORY_BYTES: usize = 32;

#[derive(Debug)]
struct AllowanceBook {
    stored: Amount,
    /// What has come and is not stored yet, by item or large file, and in all.
    coming: HashMap<Coming, Received>,
    sum: Amount,
    /// The hashes of the paths of directories that have been named.
    directories: HashSet<u64>,
}

/// Something that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Coming {
    Item(u64),
    File(u64),
}

/// What has come with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// The bytes of each entry; nothing for a directory, which counts by its path.
    Batch(Box<[Option<u32>]>),
    /// The bytes of a group.
    Group(u64),
    /// A large file, whose bytes come in groups.
    File,
}

/// What has become of something that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate<'a> {
    Stored,
    /// A batch is stored but for the entries of these faults, such as files that were guessed and are there already.
    StoredBut(&'a [EntryFault]),
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

    /// What of it has been stored.
    fn stored(&self, fate: Fate<'_>) -> Amount {
        let faults = match fate {
            Fate::Dropped => return Amount::default(),
            Fate::Stored => &[],
            Fate::StoredBut(faults) => faults,
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
    /// An allowance for `most` in all, of which so much has been `stored` before.
    #[must_use]
    pub fn new(most: Amount, stored: Amount) -> Self {
        Self {
            most,
            book: Lock::new(AllowanceBook {
                stored,
                coming: HashMap::new(),
                sum: Amount::default(),
                directories: HashSet::new(),
            }),
            hashes: RandomState::new(),
        }
    }

    /// What has been stored by now.
    #[must_use]
    pub fn stored(&self) -> Amount {
        self.book.lock().stored
    }

    /// Notes what has come, unless it is too much.
    pub(crate) fn take(&self, what: Coming, taken: Received) -> Result<(), WireError> {
        let mut book = self.book.lock();
        self.check(book.stored.with(book.sum).with(taken.amount()))?;
        book.sum = book.sum.with(taken.amount());
        if let Some(before) = book.coming.insert(what, taken) {
            book.sum = book.sum.without(before.amount());
        }
        Ok(())
    }

    /// Notes the directories that a batch names; returns how many there were not before. Without a limit none is noted.
    pub(crate) fn take_directories(&self, batch: &Batch) -> Result<usize, WireError> {
        if self.most.entries == u64::MAX {
            return Ok(0);
        }
        let mut book = self.book.lock();
        let before = book.directories.len();
        for DirectoryGroup { directory, entries } in &batch.groups {
            let mut path = self.hashes.build_hasher();
            for name in directory.components() {
                self.take_directory(&mut book, &mut path, name)?;
            }
            for entry in entries {
                if let BatchEntry::Directory(name, _) = entry {
                    self.take_directory(&mut book, &mut path.clone(), name.as_bytes())?;
                }
            }
        }
        Ok(book.directories.len() - before)
    }

    /// Notes the directory of this name in `path`, and goes on to it.
    fn take_directory(
        &self,
        book: &mut AllowanceBook,
        path: &mut DefaultHasher,
        name: &[u8],
    ) -> Result<(), WireError> {
        path.write(name);
        path.write_u8(b'/');
        if book.directories.insert(path.finish()) {
            book.stored = book.stored.with(Amount {
                bytes: 0,
                entries: 1,
            });
            self.check(book.stored.with(book.sum))?;
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

    /// Notes what has become of something; what is not stored comes again, if at all.
    pub(crate) fn settle(&self, what: Coming, fate: Fate<'_>) {
        let mut book = self.book.lock();
        let Some(taken) = book.coming.remove(&what) else {
            return;
        };
        book.sum = book.sum.without(taken.amount());
        book.stored = book.stored.with(taken.stored(fate));
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

    /// H1 may name a directory by the path of what is in it alone, of nothing, or of what fails then.
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
            allowance.take_directories(&Batch {
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
        allowance.take(Coming::Item(1), batch(&[6])).unwrap();
        let error = WireError::OverLimit {
            what: "number of bytes of this copy",
            value: 11,
            limit: 10,
        };
        assert_eq!(allowance.take(Coming::Item(2), batch(&[4])), Err(error));
        allowance.settle(Coming::Item(1), Fate::Dropped);
        allowance.take(Coming::Item(2), batch(&[6])).unwrap();
        assert_eq!(allowance.stored(), before);
        allowance.settle(Coming::Item(2), Fate::Stored);
        allowance.settle(Coming::Item(2), Fate::Stored);
        assert_eq!(
            allowance.stored(),
            Amount {
                bytes: 7,
                entries: 2
            }
        );
        allowance.take(Coming::File(2), Received::File).unwrap();
        allowance.take(Coming::Item(3), Received::Group(3)).unwrap();
        let error = WireError::OverLimit {
            what: "number of entries of this copy",
            value: 4,
            limit: 3,
        };
        assert_eq!(allowance.take(Coming::File(3), Received::File), Err(error));
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
        allowance.take(Coming::Item(1), batch(&[1, 2, 4])).unwrap();
        let fault = |entry| EntryFault {
            entry,
            operation: Operation::Rename,
            code: FaultCode::AlreadyThere,
        };
        allowance.settle(
            Coming::Item(1),
            Fate::StoredBut(&[fault(1), fault(1), fault(9)]),
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
