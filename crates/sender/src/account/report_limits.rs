//! How much a receiver may send: an honest one answers to what it was sent, and one that sends without end would fill
//! the user's terminal.
//!
//! **Invariant:** what a session reports to the user is bounded by what was sent in it, and [`FAULTS_BESIDE_MAX`] or,
//! where it removes, [`FAULTS_OF_REMOVAL_MAX`] faults beside that.

use std::sync::atomic::{AtomicUsize, Ordering};

use zmove_types::{AtomicCounter, GroupSpan, Name, RelPath};
use zmove_wire::limits::within;
use zmove_wire::{EntryGroup, Fault, Held, SourceKind, WireError, out_of_order};

/// What was sent to the receiver, and so what it may report about.
#[derive(Debug, Default)]
pub(crate) struct SentCounts {
    /// Entries of batches, as often as they were sent, and large files.
    entries: AtomicCounter,
    /// Large files.
    pub(crate) files: AtomicCounter,
    /// The longest path of a directory of these entries, in bytes.
    directory_bytes: AtomicUsize,
    /// Messages that the receiver may send about groups that it holds of files that it was asked about.
    held: AtomicCounter,
    /// Files that it was asked about.
    asked: AtomicCounter,
}

/// Counts of what the receiver has reported.
#[derive(Debug, Default)]
pub(crate) struct ReportCounts {
    faults: u64,
    faults_beside: u64,
    files: u64,
    held: u64,
    missed: u64,
}

/// The most faults of an entry: a directory may fail when its files get their names, and again when it gets its mode.
const FAULTS_PER_ENTRY: u64 = 2;
/// The most faults of paths that were not sent as such, for example of directories on the way.
const FAULTS_BESIDE_MAX: u64 = 4096;
/// The most faults of removing entries that only the target has: anything below a directory may fail to be removed.
const FAULTS_OF_REMOVAL_MAX: u64 = 1 << 20;
/// A fault counts once more for each so many bytes of its path.
const PATH_BYTES_PER_FAULT: u64 = 256;

impl SentCounts {
    /// Notes entries of a directory, below the target.
    pub(crate) fn entries(&self, entries: u64, directory: &RelPath) {
        self.entries.add(entries);
        self.directory_bytes
            .fetch_max(directory.as_bytes().len(), Ordering::Relaxed);
    }

    /// Notes a question which of these files are to be sent: the receiver may report a value for each group of them.
    pub(crate) fn ask(&self, groups: &[EntryGroup]) {
        for group in groups {
            self.asked.add(group.entries.len() as u64);
            self.directory_bytes
                .fetch_max(group.directory.as_bytes().len(), Ordering::Relaxed);
        }
        for entry in groups.iter().flat_map(|group| &group.entries) {
            if let SourceKind::File { bytes, .. } = entry.kind {
                // Once for an earlier transfer, once for another version, and the end of both.
                let values = u64::from(GroupSpan::count(bytes).unwrap_or(0));
                self.held.add(2 * values + 2);
            }
        }
    }
}

impl ReportCounts {
    /// Counts and checks a fault that belongs to no item, in a session that has asked for so many `removals`.
    pub(crate) fn fault(
        &mut self,
        sent: &SentCounts,
        fault: &Fault,
        removals: u64,
    ) -> Result<(), WireError> {
        self.faults += 1;
        let path_bytes = fault.path.as_bytes().len();
        let directory_bytes = sent.directory_bytes.load(Ordering::Relaxed);
        let is_of_an_entry = path_bytes <= directory_bytes + Name::BYTES_MAX + 1;
        if is_of_an_entry && self.faults <= FAULTS_PER_ENTRY * sent.entries.get() {
            return Ok(());
        }
        self.faults_beside += 1 + path_bytes as u64 / PATH_BYTES_PER_FAULT;
        let limit = if removals > 0 {
            FAULTS_OF_REMOVAL_MAX
        } else {
            FAULTS_BESIDE_MAX
        };
        within("faults", self.faults_beside, limit)
    }

    /// An entry that lacks something: it may be told for each time that it was sent or asked about.
    pub(crate) fn missed(&mut self, sent: &SentCounts, path: &RelPath) -> Result<(), WireError> {
        self.missed += 1 + path.as_bytes().len() as u64 / PATH_BYTES_PER_FAULT;
        let directory_bytes = sent.directory_bytes.load(Ordering::Relaxed) as u64;
        let weight = 1 + (directory_bytes + Name::BYTES_MAX as u64 + 1) / PATH_BYTES_PER_FAULT;
        within(
            "entries that lack something",
            self.missed,
            weight * (sent.entries.get() + sent.asked.get()),
        )
    }

    /// Checks the number of faults of a batch.
    pub(crate) fn entry_faults(faults: usize, entries: usize) -> Result<(), WireError> {
        within(
            "faults of a batch",
            faults as u64,
            FAULTS_PER_ENTRY * entries as u64,
        )
    }

    /// Counts and checks the end of a large file.
    pub(crate) fn file(&mut self, sent: &SentCounts) -> Result<(), WireError> {
        self.files += 1;
        within("ends of files", self.files, sent.files.get())
    }

    /// Counts and checks a message about the groups that the receiver holds of a file.
    pub(crate) fn held(&mut self, sent: &SentCounts, held: &Held) -> Result<(), WireError> {
        not_empty(!held.cvs.is_empty() || held.end)?;
        self.held += 1;
        within("words about what is held", self.held, sent.held.get())
    }
}

/// Checks that a message is not empty: an honest receiver sends no empty one.
pub(crate) fn not_empty(says: bool) -> Result<(), WireError> {
    if says {
        Ok(())
    } else {
        out_of_order("a message that says nothing")
    }
}

#[cfg(test)]
mod tests {
    use zmove_wire::{FaultCode, Operation};

    use super::*;

    /// The number of faults with such a path that are accepted after a thousand entries of directory `d`, 10,000 at
    /// most.
    fn taken(path_bytes: usize) -> usize {
        let name = |bytes| "n".repeat(bytes);
        let mut path = String::from("d");
        while path.len() < path_bytes {
            path = format!(
                "{path}/{}",
                name((path_bytes - path.len() - 1).min(Name::BYTES_MAX))
            );
        }
        let path = RelPath::from_bytes(path.as_bytes()).unwrap();
        assert_eq!(path.as_bytes().len(), path_bytes);
        let fault = Fault {
            path,
            operation: Operation::SetMetadata,
            code: FaultCode::Os(1),
        };
        let sent = SentCounts::default();
        sent.entries(1000, &RelPath::from_bytes(b"d").unwrap());
        let mut heard = ReportCounts::default();
        (0..10_000)
            .take_while(|_| heard.fault(&sent, &fault, 0).is_ok())
            .count()
    }

    #[test]
    fn each_entry_may_fail_twice_and_longer_paths_than_were_sent_count_as_several() {
        assert_eq!(taken(200), 2000 + 4096);
        assert_eq!(taken(257), 2000 + 4096 / 2);
        assert_eq!(taken(2560), 4096 / 11);
    }
}
