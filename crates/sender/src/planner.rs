//! The planner: one thread that turns what the scan finds into work, asking the receiver first where files may be there.
//!
//! An empty target needs everything, so entries go straight to the plan. Otherwise regular files are offered by the
//! thousand, many offers at once; directories and links are always sent, because placing one that is there is no work.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, never, select};
use zmove_scan::{Entry, EntryBatch, EntryKind, Scan, ScanError, ScanItem};
use zmove_types::{Event, FileId, GROUP_BYTES, GroupSpan, RelPath, Root};
use zmove_wire::limits::{OFFER_FILES_MAX, OFFER_NAME_BYTES_MAX, OFFERS_OUTSTANDING_MAX, SYMLINK_BYTES_MAX};
use zmove_wire::{Answer, Offer, OfferedFile, OfferedGroup, TargetState, ToReceiver, Verdict};

use crate::error::FileError;
use crate::pack::{PackEntry, Packer};
use crate::shared::{Shared, When};
use crate::source::{LargeSource, SourceDirectory};

/// Plans until the scan has ended and every offer is answered.
pub(crate) fn plan_all(shared: &Shared, scan: &Scan, answers: &Receiver<Answer>, state: TargetState) {
    let mut planner = Planner {
        shared,
        packer: Packer::new(shared.config.batch_files_max),
        offering: (state == TargetState::Populated).then(Offering::default),
    };
    planner.take_scan(scan, answers);
    planner.take_last_answers(answers);
    planner.flush_pack();
    shared.end_plan();
}

/// How long a pack that is not full waits for more while the scan finds nothing.
const PACK_PATIENCE: Duration = Duration::from_millis(20);

struct Planner<'a> {
    shared: &'a Shared,
    packer: Packer,
    offering: Option<Offering>,
}

/// Files that are being asked about.
#[derive(Default)]
struct Offering {
    next: u64,
    name_bytes: usize,
    open: Vec<(SourceDirectory, Entry)>,
    outstanding: HashMap<u64, Vec<(SourceDirectory, Entry)>>,
}

impl Planner<'_> {
    fn take_scan(&mut self, scan: &Scan, answers: &Receiver<Answer>) {
        let (items, nothing) = (scan.receiver(), never());
        while !self.shared.is_stopping() {
            let full = self.offering.as_ref().is_some_and(|o| o.outstanding.len() >= OFFERS_OUTSTANDING_MAX);
            let items = if full { &nothing } else { items };
            select! {
                recv(items) -> item => match item {
                    Ok(item) => self.take_item(item),
                    Err(_) => break,
                },
                recv(answers) -> answer => match answer {
                    Ok(answer) => self.take_answer(&answer),
                    Err(_) => break,
                },
                default(PACK_PATIENCE) => {
                    self.flush_pack();
                    self.flush_offers();
                }
            }
        }
        self.shared.observer.on(&Event::ScanEnded);
    }

    fn take_last_answers(&mut self, answers: &Receiver<Answer>) {
        self.flush_offers();
        while !self.shared.is_stopping() && self.offering.as_ref().is_some_and(|o| !o.is_done()) {
            match answers.recv_timeout(PACK_PATIENCE) {
                Ok(answer) => {
                    self.take_answer(&answer);
                    self.flush_offers();
                }
                Err(RecvTimeoutError::Timeout) => self.flush_pack(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    fn take_item(&mut self, item: ScanItem) {
        match item {
            ScanItem::Root { directory, metadata } => {
                self.pack(&SourceDirectory::held_open(&directory), PackEntry::Itself(metadata));
            }
            ScanItem::Batch(batch) => self.take_batch(batch),
            ScanItem::Error(error) => self.take_error(error),
        }
    }

    fn take_error(&mut self, error: ScanError) {
        if matches!(error, ScanError::Vanished { .. }) {
            self.shared.counters.vanished.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.fail(&FileError::Scan(error));
    }

    fn take_batch(&mut self, batch: EntryBatch) {
        let directory = SourceDirectory::held_open(&batch.directory);
        let regular = batch.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File));
        let (files, bytes) = regular.fold((0, 0), |(files, bytes), entry| (files + 1, bytes + entry.size));
        self.shared.observer.on(&Event::Found { files, bytes });
        for entry in batch.entries {
            self.take_entry(&directory, entry);
        }
    }

    fn take_entry(&mut self, directory: &SourceDirectory, entry: Entry) {
        match &entry.kind {
            EntryKind::Special => {
                self.shared.counters.specials.fetch_add(1, Ordering::Relaxed);
            }
            EntryKind::Symlink(target) if target.is_empty() || target.len() > SYMLINK_BYTES_MAX => {
                self.shared.fail(&FileError::LinkTarget { path: directory.display(&entry.name) });
            }
            EntryKind::File if GroupSpan::count(entry.size).is_none() => {
                self.shared.fail(&FileError::TooLarge { path: directory.display(&entry.name) });
            }
            EntryKind::File if self.offering.is_some() => self.offer(directory, entry),
            _ => self.need(directory, entry),
        }
    }

    /// Puts an entry that must move into the plan.
    fn need(&mut self, directory: &SourceDirectory, entry: Entry) {
        if matches!(entry.kind, EntryKind::File) && entry.size > GROUP_BYTES {
            let id = self.shared.fresh_file_id();
            self.shared.plan_file(Arc::new(large_source(id, directory, entry)), When::Room);
        } else if let Some(entry) = PackEntry::from_scan(entry) {
            self.pack(directory, entry);
        }
    }

    fn pack(&mut self, directory: &SourceDirectory, entry: PackEntry) {
        if let Some(pack) = self.packer.add(directory, entry) {
            self.shared.plan_pack(pack);
        }
    }

    fn flush_pack(&mut self) {
        if let Some(pack) = self.packer.take() {
            self.shared.plan_pack(pack);
        }
    }

    fn offer(&mut self, directory: &SourceDirectory, entry: Entry) {
        let Some(offering) = &mut self.offering else { return };
        let mut directory = directory.clone();
        directory.put_off();
        offering.name_bytes += name_bytes_of(&directory, &entry);
        offering.open.push((directory, entry));
        if offering.is_full() {
            self.flush_offers();
        }
    }

    /// Offers what has been gathered, as far as offers may be outstanding.
    fn flush_offers(&mut self) {
        let Some(offering) = &mut self.offering else { return };
        while !offering.open.is_empty() && offering.outstanding.len() < OFFERS_OUTSTANDING_MAX {
            self.shared.send(ToReceiver::Offer(offering.close()));
        }
    }

    fn take_answer(&mut self, answer: &Answer) {
        let offered = self.offering.as_mut().and_then(|offering| offering.outstanding.remove(&answer.offer));
        // a verdict that is missing must not lose a file
        let verdicts = answer.verdicts.iter().copied().chain(std::iter::repeat(Verdict::Need));
        for ((directory, entry), verdict) in offered.unwrap_or_default().into_iter().zip(verdicts) {
            match verdict {
                Verdict::Need => self.need(&directory, entry),
                Verdict::Compare(root) => self.pack(&directory, PackEntry::Compare(entry, Root(root))),
                Verdict::Skip => {
                    self.shared.counters.skipped.fetch_add(1, Ordering::Relaxed);
                    self.shared.observer.on(&Event::Skipped { files: 1, bytes: entry.size });
                }
            }
        }
    }
}

impl Offering {
    /// Whether an offer's worth has been gathered.
    fn is_full(&self) -> bool {
        self.open.len() >= OFFER_FILES_MAX || self.name_bytes >= OFFER_NAME_BYTES_MAX
    }

    /// Whether everything has been offered and answered.
    fn is_done(&self) -> bool {
        self.open.is_empty() && self.outstanding.is_empty()
    }

    /// Makes the first of the gathered files an offer.
    fn close(&mut self) -> Offer {
        let mut name_bytes = 0;
        let fits = self.open.iter().take(OFFER_FILES_MAX).take_while(|(directory, entry)| {
            let before = name_bytes;
            name_bytes += name_bytes_of(directory, entry);
            before < OFFER_NAME_BYTES_MAX
        });
        let count = fits.count();
        let files: Vec<_> = self.open.drain(..count).collect();
        self.name_bytes = self.open.iter().map(|(directory, entry)| name_bytes_of(directory, entry)).sum();
        let mut groups: Vec<OfferedGroup> = Vec::new();
        let mut previous: Option<&SourceDirectory> = None;
        for (directory, entry) in &files {
            if !previous.is_some_and(|previous| previous.is(directory)) {
                groups.push(OfferedGroup { directory: directory.target_path().clone(), files: Vec::new() });
            }
            previous = Some(directory);
            groups.last_mut().expect("one was just pushed").files.push(offered(entry));
        }
        let offer = self.next;
        self.next += 1;
        self.outstanding.insert(offer, files);
        Offer { offer, groups }
    }
}

fn name_bytes_of(directory: &SourceDirectory, entry: &Entry) -> usize {
    directory.target_path().as_bytes().len() + entry.name.as_bytes().len()
}

fn offered(entry: &Entry) -> OfferedFile {
    OfferedFile {
        name: entry.name.clone(),
        bytes: entry.size,
        mode: entry.metadata.mode,
        mtime_seconds: entry.metadata.mtime.seconds,
        mtime_nanos: entry.metadata.mtime.nanos,
    }
}

/// A large file as the reader will want it.
pub(crate) fn large_source(id: FileId, directory: &SourceDirectory, entry: Entry) -> LargeSource {
    let target = directory.target_path().join(&entry.name).unwrap_or_else(|_| RelPath::root());
    let mut directory = directory.clone();
    directory.put_off();
    LargeSource::new(id, directory, entry, target)
}
