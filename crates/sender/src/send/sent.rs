//! Work that has been sent, with everything needed to send it again.

use std::collections::HashSet;
use std::sync::Arc;

use zmove_scan::HardLinkedFileId;
use zmove_types::{GroupSpan, RelPath, Root};
use zmove_wire::session::{FinalReport, UnpublishedLoad};
use zmove_wire::{EntryFault, FaultCode, FrameKind, Operation};

use crate::account::manifest::ProofMethod;
use crate::plan::links::LinkOutcome;
use crate::plan::pack::{Pack, PackEntry, PackGroup};
use crate::read::source::{LargeSource, SizeAndMtime};

/// Work in flight, with everything needed to send it again.
#[derive(Debug)]
pub(crate) enum Sent {
    Batch(SentBatch),
    /// A group and the kind of its frame, which is [`FrameKind::Same`] if the target already has the bytes.
    Group(Arc<LargeSource>, GroupSpan, FrameKind),
}

/// A batch that is in flight, or stored but not yet renamed into place.
#[derive(Debug)]
pub(crate) struct SentBatch {
    pub(crate) pack: Pack,
    pub(crate) files: Vec<SentFile>,
    /// The faults of entries that could not be stored. Set only while the batch waits for its files to be renamed into
    /// place.
    pub(crate) faults: Vec<EntryFault>,
}

/// A small file of a batch.
#[derive(Debug)]
pub(crate) struct SentFile {
    pub(crate) path: RelPath,
    /// Hash of the contents, if they were read.
    pub(crate) root: Option<Root>,
    pub(crate) size_and_mtime: SizeAndMtime,
    /// The proof that `root` is the file's hash, valid once the receiver has confirmed the file.
    pub(crate) known: ProofMethod,
    /// Number of the file's bytes that are sent. Holes are not sent.
    pub(crate) data_bytes: u64,
    /// Whether no contents are sent. This is the case if the target already has the contents, or if this name is linked
    /// to another name of the file.
    pub(crate) retouched: bool,
    /// The role of this name if the file has several names.
    pub(crate) part: NameRole,
}

/// The role of a name among the names of its file.
#[derive(Clone, Debug)]
pub(crate) enum NameRole {
    /// The only name, or a name that is sent independently.
    Alone,
    /// A name that may become the first name of a file with several names.
    First(HardLinkedFileId),
    /// A name that is linked to the file of the first name.
    Link,
}

impl Sent {
    /// Returns the payload bytes of the work.
    pub(crate) fn data_bytes(&self) -> u64 {
        match self {
            Self::Batch(batch) => batch
                .files
                .iter()
                .filter(|file| !file.retouched)
                .map(|file| file.data_bytes)
                .sum(),
            Self::Group(_, _, FrameKind::Same) => 0,
            Self::Group(file, span, _) => file.data_bytes_within(*span),
        }
    }

    /// Returns the kind of receiver report that completes the work.
    pub(crate) fn completing_report(&self) -> FinalReport {
        match self {
            Self::Batch(SentBatch { pack, .. }) => FinalReport::Published(UnpublishedLoad {
                entries: pack.entry_count() as u64,
                name_bytes: pack.name_bytes(),
            }),
            Self::Group(..) => FinalReport::Stored,
        }
    }

    /// Returns the outcomes of the links in a stored batch, derived from the faults of the batch. Each link of a stored
    /// batch has been made or has failed.
    pub(crate) fn link_outcomes(&self) -> Vec<LinkOutcome> {
        let Self::Batch(batch) = self else {
            return Vec::new();
        };
        let links = batch
            .files
            .iter()
            .filter(|file| matches!(file.part, NameRole::Link))
            .count();
        let others = batch.pack.shared_non_files();
        let links = links
            + others
                .filter(|(what, ..)| matches!(what, PackEntry::Link(..)))
                .count();
        let back = batch
            .faults
            .iter()
            .filter_map(|fault| batch.outcome_of_fault(fault));
        back.chain((links > 0).then_some(LinkOutcome::LinksSettled(links)))
            .collect()
    }

    /// Records the faults of a stored batch. Returns the number of bytes of the batch that are stored.
    pub(crate) fn store(&mut self, faults: &[EntryFault]) -> Option<u64> {
        let Self::Batch(batch) = self else {
            return None;
        };
        batch.faults = faults.to_vec();
        Some(batch.stored_bytes())
    }
}

impl SentBatch {
    /// Returns the files that were sent and have not failed.
    pub(crate) fn stored_files(&self) -> impl Iterator<Item = &SentFile> {
        self.placed_files().filter(|file| !file.retouched)
    }

    /// Returns the files that were sent and the links that were made to other files. Entries that have failed are left
    /// out.
    pub(crate) fn placed_files(&self) -> impl Iterator<Item = &SentFile> {
        let failed = self
            .faults
            .iter()
            .filter_map(|fault| self.pack.target_path(fault.entry));
        let failed: HashSet<_> = failed.collect();
        let is_placed = |file: &SentFile| !file.retouched || matches!(file.part, NameRole::Link);
        self.files
            .iter()
            .filter(move |file| is_placed(file) && !failed.contains(&file.path))
    }

    /// Returns the outcome for a failed entry that must be sent as a file instead. Such an entry is a link that could
    /// not be made. It may also be the first name of a file that was to stay unchanged but has gained or lost names
    /// since.
    pub(crate) fn outcome_of_fault(
        &self,
        EntryFault {
            entry,
            operation,
            code,
        }: &EntryFault,
    ) -> Option<LinkOutcome> {
        let (directory, entry) = self.pack.entry(*entry)?;
        let is_left = *code == FaultCode::AlreadyThere;
        match entry {
            PackEntry::Link(entry, first) if *operation == Operation::Link && !is_left => Some(
                LinkOutcome::LinkFailed(directory.clone(), entry.clone(), Arc::clone(first), *code),
            ),
            PackEntry::Retouch(entry) | PackEntry::Compare(entry, _)
                if entry.shared.is_some() && *code == FaultCode::Changed =>
            {
                Some(LinkOutcome::FirstChanged(directory.clone(), entry.clone()))
            }
            _ => None,
        }
    }

    /// Confirms each entry to the piece that it belongs to, except entries that have failed or will be sent again.
    pub(crate) fn confirm_pieces(&self) {
        let is_there = |fault: &EntryFault| fault.code == FaultCode::AlreadyThere;
        let of = |are_there: bool| {
            let some = self
                .faults
                .iter()
                .filter(move |fault| is_there(fault) == are_there);
            some.map(|fault| fault.entry).collect::<HashSet<_>>()
        };
        let there = of(true);
        let failed = of(false);
        let entries = self
            .pack
            .groups
            .iter()
            .flat_map(|PackGroup { directory, entries }| {
                entries.iter().map(move |entry| (directory.piece(), entry))
            });
        for (number, (piece, entry)) in (0..).zip(entries) {
            let Some(piece) = piece.filter(|_| !failed.contains(&number)) else {
                continue;
            };
            match entry.entry() {
                None => piece.confirm_without_data(),
                Some(entry) if there.contains(&number) => piece.confirm_existing(entry),
                Some(entry) => piece.confirm(entry),
            }
        }
    }

    /// Returns the data bytes of the stored files.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored_files().map(|file| file.data_bytes).sum()
    }
}
