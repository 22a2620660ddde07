//! Work that has been sent, described well enough to do it again.

use std::collections::HashSet;
use std::sync::Arc;

use zmove_scan::SharedFileId;
use zmove_types::{GroupSpan, RelPath, Root};
use zmove_wire::session::{LastWord, Load};
use zmove_wire::{EntryFault, FaultCode, FrameKind, Operation};

use crate::account::manifest::Known;
use crate::plan::links::Word;
use crate::plan::pack::{Pack, PackEntry, PackGroup};
use crate::read::source::{FileLook, LargeSource};

/// Work in flight, described well enough to do it again.
#[derive(Debug)]
pub(crate) enum Sent {
    Batch(SentBatch),
    /// A group, and the kind of frame that stands for it: [`FrameKind::Same`] where the target has the bytes.
    Group(Arc<LargeSource>, GroupSpan, FrameKind),
}

/// A batch in flight, or stored and without names.
#[derive(Debug)]
pub(crate) struct SentBatch {
    pub(crate) pack: Pack,
    pub(crate) files: Vec<SentFile>,
    /// The faults of entries that could not be stored, where the batch does not end with that.
    pub(crate) faults: Vec<EntryFault>,
}

/// A small file of such a batch.
#[derive(Debug)]
pub(crate) struct SentFile {
    pub(crate) path: RelPath,
    /// The hash of its contents, where they were read.
    pub(crate) root: Option<Root>,
    pub(crate) look: FileLook,
    /// How the file is known to be as its root says, once the receiver has confirmed it.
    pub(crate) known: Known,
    /// How many bytes of it are sent: what is not a hole.
    pub(crate) data_bytes: u64,
    /// Whether no contents are sent: the file was there already, or this is another name of one.
    pub(crate) retouched: bool,
    /// Which name it is of a file that has several.
    pub(crate) part: NamePart,
}

/// The part of a name among those of its file.
#[derive(Clone, Debug)]
pub(crate) enum NamePart {
    /// The only name, or one that travels by itself.
    Alone,
    /// The name that may be the first of others.
    First(SharedFileId),
    /// A name that is to lead to the same file as the first one.
    Link,
}

impl Sent {
    /// The payload bytes of the work.
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

    /// The receiver's report with which the work is done.
    pub(crate) fn last_word(&self) -> LastWord {
        match self {
            Self::Batch(SentBatch { pack, .. }) => LastWord::Published(Load {
                entries: pack.entry_count() as u64,
                name_bytes: pack.name_bytes(),
            }),
            Self::Group(..) => LastWord::Stored,
        }
    }

    /// What the faults of a batch's storing tell of links, all of which have been made by then, or not.
    pub(crate) fn words(&self) -> Vec<Word> {
        let Self::Batch(batch) = self else {
            return Vec::new();
        };
        let links = batch
            .files
            .iter()
            .filter(|file| matches!(file.part, NamePart::Link))
            .count();
        let others = batch.pack.shared_beside_files();
        let links = links
            + others
                .filter(|(what, ..)| matches!(what, PackEntry::Link(..)))
                .count();
        let back = batch
            .faults
            .iter()
            .filter_map(|fault| batch.coming_back(fault));
        back.chain((links > 0).then_some(Word::Heard(links)))
            .collect()
    }

    /// Books the faults of a batch's storing; returns how many bytes of it are stored.
    pub(crate) fn store(&mut self, faults: &[EntryFault]) -> Option<u64> {
        let Self::Batch(batch) = self else {
            return None;
        };
        batch.faults = faults.to_vec();
        Some(batch.stored_bytes())
    }
}

impl SentBatch {
    /// The files that were sent, without those that have failed.
    pub(crate) fn stored_files(&self) -> impl Iterator<Item = &SentFile> {
        self.placed_files().filter(|file| !file.retouched)
    }

    /// The files that were sent and the links to others, without those that have failed.
    pub(crate) fn placed_files(&self) -> impl Iterator<Item = &SentFile> {
        let failed = self
            .faults
            .iter()
            .filter_map(|fault| self.pack.target_path(fault.entry));
        let failed: HashSet<_> = failed.collect();
        let is_placed = |file: &SentFile| !file.retouched || matches!(file.part, NamePart::Link);
        self.files
            .iter()
            .filter(move |file| is_placed(file) && !failed.contains(&file.path))
    }

    /// An entry that has failed in a way for which it is to be sent as a file: a link that could not be made, or the
    /// first name of a file that was to stay, and that has lost or got names since.
    pub(crate) fn coming_back(
        &self,
        EntryFault {
            entry,
            operation,
            code,
        }: &EntryFault,
    ) -> Option<Word> {
        let (directory, entry) = self.pack.entry(*entry)?;
        let is_left = *code == FaultCode::AlreadyThere;
        match entry {
            PackEntry::Link(entry, first) if *operation == Operation::Link && !is_left => Some(
                Word::Unlinked(directory.clone(), entry.clone(), Arc::clone(first), *code),
            ),
            PackEntry::Retouch(entry) | PackEntry::Compare(entry, _)
                if entry.shared.is_some() && *code == FaultCode::Changed =>
            {
                Some(Word::Changed(directory.clone(), entry.clone()))
            }
            _ => None,
        }
    }

    /// Confirms the entries to the pieces that they belong to, but for those that have failed or come back.
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
                Some(entry) if there.contains(&number) => piece.confirm_there(entry),
                Some(entry) => piece.confirm(entry),
            }
        }
    }

    /// The bytes of these files.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored_files().map(|file| file.data_bytes).sum()
    }
}
