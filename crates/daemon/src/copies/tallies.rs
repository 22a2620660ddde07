//! What the sessions by a grant have done, kept so that a killed daemon still counts it in the receipt.
//!
//! **Invariant:** what the sender has been told stands in the tally before. A tally is written in one piece into the
//! page cache, which outlives the process; nothing is flushed, so after a power cut less may be counted than has come.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zmove_types::Hex;
use zmove_wire::GrantToken;

/// What the sessions by a grant have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Files that got their names, and their bytes.
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Bytes of contents and entries that count against the limits of the grant.
    pub(super) taken_bytes: u64,
    pub(super) entries: u64,
    /// Entries that were removed.
    pub(super) removed: u64,
}

/// The directory of all tallies, where there is one.
#[derive(Debug)]
pub(super) struct Tallies(Option<PathBuf>);

/// The tally of one grant.
#[derive(Debug)]
pub(super) struct Tally(File);

/// The length of a tally: five numbers.
const TALLY_BYTES: usize = 5 * 8;

impl Counts {
    /// The larger of both, number by number: either may be the older one.
    pub(super) fn most(self, other: Self) -> Self {
        let mut numbers = self.numbers();
        numbers
            .iter_mut()
            .zip(other.numbers())
            .for_each(|(most, other)| *most = other.max(*most));
        Self::of(numbers)
    }

    const fn numbers(self) -> [u64; 5] {
        [
            self.files,
            self.bytes,
            self.taken_bytes,
            self.entries,
            self.removed,
        ]
    }

    const fn of([files, bytes, taken_bytes, entries, removed]: [u64; 5]) -> Self {
        Self {
            files,
            bytes,
            taken_bytes,
            entries,
            removed,
        }
    }
}

impl Tallies {
    pub(super) const fn new(directory: Option<PathBuf>) -> Self {
        Self(directory)
    }

    fn path(&self, token: &GrantToken) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(Hex(token).to_string()))
    }

    /// What stands in the tally of a grant; nothing where there is none, or a power cut has left none.
    pub(super) fn read(&self, token: &GrantToken) -> Counts {
        let Some(path) = self.path(token) else {
            return Counts::default();
        };
        let mut bytes = [0; TALLY_BYTES];
        let read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0));
        let number =
            |at: usize| u64::from_le_bytes(bytes[8 * at..][..8].try_into().expect("8 bytes"));
        read.map_or(Counts::default(), |()| {
            Counts::of(std::array::from_fn(number))
        })
    }

    /// The tally of a grant; without it, less is counted after a kill than there is.
    pub(super) fn open(&self, token: &GrantToken) -> Option<Tally> {
        let path = self.path(token)?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path.parent()?)
            .ok()?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.open(path).ok().map(Tally)
    }

    /// Removes the tally of a grant that is gone.
    pub(super) fn forget(&self, token: &GrantToken) {
        // one that stays is of a few bytes, and of no grant
        let _best_effort = self.path(token).map(fs::remove_file);
    }
}

impl Tally {
    pub(super) fn write(&self, counts: Counts) -> io::Result<()> {
        self.0
            .write_all_at(&counts.numbers().map(u64::to_le_bytes).concat(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_holds_what_was_written_last_until_it_is_forgotten() {
        let home = tempfile::tempdir().unwrap();
        let tallies = Tallies::new(Some(home.path().join("tallies")));
        let counts = |files| Counts {
            files,
            bytes: 2,
            taken_bytes: 3,
            entries: 4,
            removed: 5,
        };
        assert_eq!(tallies.read(&[1; 32]), Counts::default());
        let tally = tallies.open(&[1; 32]).unwrap();
        tally.write(counts(1)).unwrap();
        tally.write(counts(9)).unwrap();
        assert_eq!(
            tallies.open(&[1; 32]).map(|_| tallies.read(&[1; 32])),
            Some(counts(9))
        );
        let older = Counts {
            files: 1,
            bytes: 7,
            ..Counts::default()
        };
        assert_eq!(
            counts(9).most(older),
            Counts {
                bytes: 7,
                ..counts(9)
            }
        );
        tallies.forget(&[1; 32]);
        assert_eq!(tallies.read(&[1; 32]), Counts::default());
    }
}
