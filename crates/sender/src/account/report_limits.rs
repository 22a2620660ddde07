//! Limits on how much a receiver may report. An honest receiver reports only on entries that it was sent. A faulty
//! receiver that keeps reporting would flood the user's terminal.
//!
//! **Invariant:** the amount that a session reports to the user is bounded by the amount that was sent in the session,
//! plus [`FAULTS_BESIDE_MAX`] faults. If the session removes entries, the bound is [`FAULTS_OF_REMOVAL_MAX`] faults
//! instead.

use std::sync::atomic::{AtomicUsize, Ordering};

use zmove_types::{AtomicCounter, GroupSpan, Name, RelPath};
use zmove_wire::limits::within;
use zmove_wire::{EntryGroup, Fault, Held, SourceKind, WireError, out_of_order};

/// Counts of entries and files sent to the receiver, which bound its reports.
#[derive(Debug, Default)]
pub(crate) struct SentCounts {
    /// Number of entries sent: large files, and entries of batches. An entry that is sent several times counts each
    /// time.
    entries: AtomicCounter,
    /// Large files.
    pub(crate) files: AtomicCounter,
    /// Length in bytes of the longest directory path of all entries sent or asked about.
    directory_bytes: AtomicUsize,
    /// Maximum number of messages in which the receiver may report groups that it already holds.
    held: AtomicCounter,
    /// Number of files that the receiver was asked about.
    asked: AtomicCounter,
}

/// Counts of the receiver's reports.
#[derive(Debug, Default)]
pub(crate) struct ReportCounts {
    faults: u64,
    faults_beside: u64,
    files: u64,
    held: u64,
    missed: u64,
}

/// Maximum number of faults per entry. A directory may fail when its files are renamed into place and again when its
/// mode is set.
const FAULTS_PER_ENTRY: u64 = 2;
/// Maximum number of faults for paths of entries that were not sent, for example of intermediate directories.
const FAULTS_BESIDE_MAX: u64 = 4096;
/// Maximum number of faults when removing entries that exist only at the target. The removal of anything below a
/// directory may fail.
const FAULTS_OF_REMOVAL_MAX: u64 = 1 << 20;
/// Number of path bytes for which a fault counts as one additional fault.
const PATH_BYTES_PER_FAULT: u64 = 256;

impl SentCounts {
    /// Counts entries of a directory, given by its path relative to the target.
    pub(crate) fn entries(&self, entries: u64, directory: &RelPath) {
        self.entries.add(entries);
        self.directory_bytes
            .fetch_max(directory.as_bytes().len(), Ordering::Relaxed);
    }

    /// Counts a request that asks whether the receiver needs these files. The receiver may report a value for each of
    /// their groups.
    pub(crate) fn ask(&self, groups: &[EntryGroup]) {
        for group in groups {
            self.asked.add(group.entries.len() as u64);
            self.directory_bytes
                .fetch_max(group.directory.as_bytes().len(), Ordering::Relaxed);
        }
        for entry in groups.iter().flat_map(|group| &group.entries) {
            if let SourceKind::File { bytes, .. } = entry.kind {
                // The receiver may report each group twice: as received in an earlier transfer, and as part of another
                // version of the file. A message that ends the report follows each time.
                let values = u64::from(GroupSpan::count(bytes).unwrap_or(0));
                self.held.add(2 * values + 2);
            }
        }
    }
}

impl ReportCounts {
    /// Counts and checks a fault that belongs to no item, in a session that has requested `removals` removals.
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

    /// Counts and checks a report that an entry lacks attributes. The receiver may send one such report each time that
    /// it is sent the entry or asked about it.
    pub(crate) fn missed(&mut self, sent: &SentCounts, path: &RelPath) -> Result<(), WireError> {
        self.missed += 1 + path.as_bytes().len() as u64 / PATH_BYTES_PER_FAULT;
        let directory_bytes = sent.directory_bytes.load(Ordering::Relaxed) as u64;
        let weight = 1 + (directory_bytes + Name::BYTES_MAX as u64 + 1) / PATH_BYTES_PER_FAULT;
        within(
            "number of entries with missing metadata",
            self.missed,
            weight * (sent.entries.get() + sent.asked.get()),
        )
    }

    /// Checks the number of faults of a batch.
    pub(crate) fn entry_faults(faults: usize, entries: usize) -> Result<(), WireError> {
        within(
            "number of faults of a batch",
            faults as u64,
            FAULTS_PER_ENTRY * entries as u64,
        )
    }

    /// Counts and checks the result of a large file.
    pub(crate) fn file(&mut self, sent: &SentCounts) -> Result<(), WireError> {
        self.files += 1;
        within("number of ends of files", self.files, sent.files.get())
    }

    /// Counts and checks a message about the groups of a file that the receiver holds.
    pub(crate) fn held(&mut self, sent: &SentCounts, held: &Held) -> Result<(), WireError> {
        not_empty(!held.cvs.is_empty() || held.end)?;
        self.held += 1;
        within(
            "number of reports about stored groups",
            self.held,
            sent.held.get(),
        )
    }
}

/// Checks that a message is not empty. An honest receiver sends no empty messages.
pub(crate) fn not_empty(says: bool) -> Result<(), WireError> {
    if says {
        Ok(())
    } else {
        out_of_order("an empty message")
    }
}

#[cfg(test)]
mod tests {
    use zmove_wire::{FaultCode, Operation};

    use super::*;

    /// Returns how many faults with a path of this length are accepted after a thousand entries of directory `d`, up to
    /// 10,000.
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
