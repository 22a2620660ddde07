//! A directory that several clients have mounted, with the costs that they cause each other. This is the model of a
//! cluster file system for `scale`.
//!
//! A change of a directory's entries waits for its turn at that directory. It takes longer if another client made the
//! previous change, because the lock of the directory is handed over. A write to an extent of a file whose last writer
//! was another client waits until that extent is handed over. The times are charged before the operation is executed on
//! the directory below.
//!
//! The model leaves out:
//!
//! - the caches of clients: nothing is cached, and every lookup and read finds the changes of other clients
//! - locks that are revoked by a read or by a query of attributes
//! - locks larger than an extent, which are granted while no other client asks
//! - striping over servers, the limits and rates of the servers, and the network to them
//! - the higher cost of an entry in a large directory
//!
//! Locks of programs (`flock`) are effective only among the programs of one client.
//!
//! **Invariant:** all clients of one [`Shared`] serve the same directory, so that its inode numbers identify its files.
//! If an inode number is reused within a run, the new file inherits the owners of the old one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::units::{ByteCount, RoundTrip};

/// The costs of the model.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    /// Time that a directory is busy with each entry that is created, removed, renamed or linked, in milliseconds.
    #[arg(
        long = "model-entry",
        value_name = "MS",
        default_value = "0.2",
        requires = "model"
    )]
    entry: RoundTrip,
    /// Additional time if another client made the previous change, in milliseconds.
    #[arg(
        long = "model-entry-handover",
        value_name = "MS",
        default_value = "1",
        requires = "model"
    )]
    entry_handover: RoundTrip,
    /// Size of an extent, which one client at a time owns.
    #[arg(long = "model-extent", value_name = "BYTES", default_value = "4MiB", requires = "model",
          value_parser = extent)]
    extent: ByteCount,
    /// Time that a write waits for an extent that another client has written last, in milliseconds.
    #[arg(
        long = "model-extent-handover",
        value_name = "MS",
        default_value = "1",
        requires = "model"
    )]
    extent_handover: RoundTrip,
}

fn extent(text: &str) -> anyhow::Result<ByteCount> {
    let bytes: ByteCount = text.parse()?;
    anyhow::ensure!(bytes.0 > 0, "an extent has some bytes");
    Ok(bytes)
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            entry,
            entry_handover,
            extent,
            extent_handover,
        } = self;
        write!(
            f,
            "{} ms for an entry, one after the other in its directory, {} ms more after another client; {} ms for \
             {} KiB of a file that another client wrote to last",
            entry.milliseconds(),
            entry_handover.milliseconds(),
            extent_handover.milliseconds(),
            extent.0 >> 10,
        )
    }
}

/// The charges so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Charges {
    /// Changes of directory entries.
    pub(crate) entries: u64,
    /// Changes that followed a change by another client.
    pub(crate) entry_handovers: u64,
    /// Writes to an extent that another client had written last.
    pub(crate) extent_handovers: u64,
}

/// The state that all clients of one directory share.
#[derive(Debug)]
pub(crate) struct Shared {
    costs: Costs,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// The last turns at directories, by inode number.
    directories: HashMap<u64, Turn>,
    /// The last turns at extents, by inode number and index of the extent.
    extents: HashMap<(u64, u64), Turn>,
    charges: Charges,
}

/// The last turn at a resource that one client at a time uses.
#[derive(Clone, Copy, Debug)]
struct Turn {
    client: u32,
    over_at: Instant,
}

/// A client of the shared directory.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    shared: Arc<Shared>,
    number: u32,
}

impl Shared {
    pub(crate) fn new(costs: Costs) -> Arc<Self> {
        Arc::new(Self {
            costs,
            books: Mutex::default(),
        })
    }

    /// Returns the client with this number.
    pub(crate) fn client(self: &Arc<Self>, number: u32) -> Client {
        Client {
            shared: Arc::clone(self),
            number,
        }
    }

    /// Resets all charges and owners.
    pub(crate) fn begin(&self) {
        *self.lock() = Books::default();
    }

    pub(crate) fn charges(&self) -> Charges {
        self.lock().charges
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// Charges a change of a directory entry. Returns the time from `now` until it is done.
    pub(super) fn change(&self, directory: u64, now: Instant) -> Duration {
        let Costs {
            entry,
            entry_handover,
            ..
        } = self.shared.costs;
        let mut books = self.shared.lock();
        let (handed_over, over_at) = take(
            &mut books.directories,
            directory,
            self.number,
            now,
            &[entry.0, entry_handover.0],
        );
        books.charges.entries += 1;
        books.charges.entry_handovers += u64::from(handed_over);
        over_at - now
    }

    /// Charges a write. Returns the time from `now` until this client owns all extents that it touches.
    pub(super) fn write(&self, file: u64, offset: u64, bytes: usize, now: Instant) -> Duration {
        let Costs {
            extent,
            extent_handover,
            ..
        } = self.shared.costs;
        let Some(last) = (bytes as u64).checked_sub(1) else {
            return Duration::ZERO;
        };
        let mut books = self.shared.lock();
        let mut owned_at = now;
        for number in offset / extent.0..=(offset + last) / extent.0 {
            let at = (file, number);
            let price = [Duration::ZERO, extent_handover.0];
            let (handed_over, over_at) = take(&mut books.extents, at, self.number, now, &price);
            books.charges.extent_handovers += u64::from(handed_over);
            owned_at = owned_at.max(over_at);
        }
        owned_at - now
    }
}

/// Takes the next turn. The turn costs the first price, plus the second price if another client had the previous turn.
/// Returns whether another client had it, and when this turn is over.
fn take<K: Eq + Hash>(
    turns: &mut HashMap<K, Turn>,
    at: K,
    client: u32,
    now: Instant,
    [each, handover]: &[Duration; 2],
) -> (bool, Instant) {
    let entry = turns.entry(at);
    let before = match &entry {
        Entry::Occupied(taken) => Some(*taken.get()),
        Entry::Vacant(_) => None,
    };
    let handed_over = before.is_some_and(|before| before.client != client);
    let begins_at = before.map_or(now, |before| before.over_at.max(now));
    let over_at = begins_at
        + *each
        + if handed_over {
            *handover
        } else {
            Duration::ZERO
        };
    entry.insert_entry(Turn { client, over_at });
    (handed_over, over_at)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Typed {
        #[arg(long)]
        model: bool,
        #[command(flatten)]
        costs: Costs,
    }

    /// Returns two clients. An entry costs 0.2 ms, a handover costs 1 ms, and extents have 4 MiB.
    fn two() -> (Arc<Shared>, Client, Client) {
        let shared = Shared::new(Typed::parse_from(["lab"]).costs);
        let (one, other) = (shared.client(1), shared.client(2));
        (shared, one, other)
    }

    #[test]
    fn entries_of_a_directory_come_one_after_the_other_and_cost_more_after_another_client() {
        let (shared, one, other) = two();
        let now = Instant::now();
        let waits =
            [&one, &one, &other, &other, &one].map(|client| client.change(7, now).as_micros());
        assert_eq!(waits, [200, 400, 1_600, 1_800, 3_000]);
        assert_eq!(
            other.change(8, now).as_micros(),
            200,
            "another directory is free"
        );
        let later = now + Duration::from_secs(1);
        assert_eq!(
            one.change(7, later).as_micros(),
            200,
            "nobody else has been there meanwhile"
        );
        assert_eq!(
            other.change(7, later + Duration::from_secs(1)).as_micros(),
            1_200
        );
        assert_eq!(
            shared.charges(),
            Charges {
                entries: 8,
                entry_handovers: 3,
                extent_handovers: 0
            }
        );
    }

    #[test]
    fn an_extent_is_handed_over_to_whoever_writes_after_another_and_the_first_writer_waits_for_nobody()
     {
        let (shared, one, other) = two();
        let now = Instant::now();
        let mib = |mib: u64| mib << 20;
        // `one` writes to the first two extents, and `other` to the third.
        for (client, offset) in [
            (&one, 0),
            (&one, 3),
            (&one, 4),
            (&one, 7),
            (&other, 8),
            (&other, 11),
        ] {
            assert_eq!(
                client.write(7, mib(offset), 1 << 20, now),
                Duration::ZERO,
                "{offset}"
            );
        }
        assert_eq!(
            shared.charges(),
            Charges::default(),
            "ranges of whole extents meet nowhere"
        );
        assert_eq!(
            other.write(7, mib(4) - 1, 1, now).as_millis(),
            1,
            "the last byte of the first extent"
        );
        assert_eq!(
            other.write(7, mib(4) - 1, 1, now).as_millis(),
            1,
            "while that is under way"
        );
        assert_eq!(
            one.write(7, mib(4) - 1, 2, now).as_millis(),
            2,
            "only the first of these two was taken away"
        );
        assert_eq!(one.write(8, 0, 1, now), Duration::ZERO, "another file");
        assert_eq!(
            other.write(8, 0, 0, now),
            Duration::ZERO,
            "nothing is written"
        );
        assert_eq!(
            shared.charges(),
            Charges {
                entries: 0,
                entry_handovers: 0,
                extent_handovers: 2
            }
        );
    }

    #[test]
    fn a_run_begins_with_no_owners_and_no_charges() {
        let (shared, one, other) = two();
        let now = Instant::now();
        one.change(7, now);
        one.write(8, 0, 1, now);
        shared.begin();
        assert_eq!(
            (other.change(7, now).as_micros(), other.write(8, 0, 1, now)),
            (200, Duration::ZERO)
        );
        assert_eq!(
            shared.charges(),
            Charges {
                entries: 1,
                ..Charges::default()
            }
        );
    }

    #[test]
    fn figures_are_told_as_they_are_typed_and_only_of_a_model() {
        let typed = Typed::parse_from([
            "lab",
            "--model",
            "--model-entry",
            "0.5",
            "--model-extent",
            "1MiB",
        ]);
        assert!(
            typed.model && typed.costs.to_string().starts_with("0.5 ms for an entry"),
            "{}",
            typed.costs
        );
        assert!(
            typed
                .costs
                .to_string()
                .contains("1 ms for 1024 KiB of a file"),
            "{}",
            typed.costs
        );
        for wrong in [
            &["lab", "--model-entry", "0.5"][..],
            &["lab", "--model", "--model-extent", "0"],
        ] {
            assert!(Typed::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
