//! The counts of the sessions that used a grant, stored so that a daemon that was killed still includes them in the
//! receipt.
//!
//! **Invariant:** counts are written to the tally before they are reported to the sender. A tally is written to the
//! page cache in one call and survives the death of the process. It is not flushed, so after a power loss the tally may
//! count less than was received.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use zmove_types::Hex;
use zmove_wire::GrantToken;

/// The counts of the sessions that used a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Number of files renamed into place. The next field is their size in bytes.
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Bytes and entries charged against the limits of the grant.
    pub(super) taken_bytes: u64,
    pub(super) entries: u64,
    /// Removed entries.
    pub(super) removed: u64,
}

/// The directory of all tallies. `None` if tallies are not stored.
#[derive(Debug)]
pub(super) struct Tallies(Option<PathBuf>);

/// The tally of one grant.
#[derive(Debug)]
pub(super) struct Tally(File);

/// Length of a tally in bytes: five numbers.
const TALLY_BYTES: usize = 5 * 8;

impl Counts {
    /// Returns the larger value of each count, because it is unknown which of the two operands is newer.
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

    /// Reads the tally of a grant. Returns zeros if there is no tally or it is incomplete, for example after a power
    /// loss.
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

    /// Opens the tally of a grant. Without a tally, the counts of a killed daemon's sessions are lost.
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

    /// Removes the tally of a grant that no longer exists.
    pub(super) fn forget(&self, token: &GrantToken) {
        // A leftover tally takes a few bytes and belongs to no grant.
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
