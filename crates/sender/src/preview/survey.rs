//! The thread of a preview: turns what the scan finds into inquiries, many at once, and the answers into a list.

use std::collections::HashMap;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, never, select};
use zmove_scan::{Beside, Entry, EntryBatch, EntryKind, Scan, ScanItem};
use zmove_types::{Change, ChangeKind, EntryForm, Event, Kinds, Metadata, RelPath};
use zmove_wire::limits::{INQUIRED_ENTRIES_MAX, INQUIRED_NAME_BYTES_MAX, INQUIRIES_OUTSTANDING_MAX};
use zmove_wire::{
    Compare, Differences, Fault, Finding, Findings, InquireWith, InquiredEntry, InquiredGroup, InquiredKind,
    InquiredMetadata, Inquiry, ToReceiver,
};

use crate::account::failure::FileError;
use crate::control::replies::Replies;
use crate::mirror;
use crate::plan::gathered::{Gathered, MessageLoad};
use crate::plan::links::{FirstName, Links, Made, Part};
use crate::plan::pack::PackEntry;
use crate::plan::planner::Task;
use crate::push::session::Session;
use crate::read::extras::{Extras, Form};
use crate::read::source::{Look, SourceDirectory};

/// A preview of one push.
struct Survey<'a> {
    session: &'a Session,
    task: &'a Task,
    gathered: Gathered<Inquired>,
    outstanding: HashMap<u64, Vec<Inquired>>,
    links: Links,
}

/// An entry that is asked about.
struct Inquired {
    directory: SourceDirectory,
    what: PackEntry,
}

/// Asks and lists until the scan has ended and every inquiry is answered.
pub(super) fn run(session: &Session, scan: &Scan, replies: &Replies, task: &Task) {
    let most = MessageLoad { names: INQUIRED_ENTRIES_MAX, name_bytes: INQUIRED_NAME_BYTES_MAX };
    let gathered = Gathered::new(most);
    let mut survey = Survey { session, task, gathered, outstanding: HashMap::new(), links: Links::default() };
    survey.take_scan(scan, &replies.findings);
    survey.take_last(&replies.findings);
    if let Some(mirror) = &task.mirror {
        mirror::run(session, &replies.mirror, mirror);
    }
    session.in_flight.end_plan();
}

/// How long an inquiry that is not full waits for more while the scan finds nothing.
const PATIENCE: Duration = Duration::from_millis(20);

impl Survey<'_> {
    fn take_scan(&mut self, scan: &Scan, findings: &Receiver<Findings>) {
        let nothing = never();
        while !self.session.in_flight.is_stopping() {
            let items = if self.may_ask() { scan.receiver() } else { &nothing };
            select! {
                recv(items) -> item => match item {
                    Ok(item) => self.take_item(item),
                    Err(_) => break,
                },
                recv(findings) -> answer => match answer {
                    Ok(answer) => self.take_answer(answer),
                    Err(_) => return,
                },
                default(PATIENCE) => self.ask(),
            }
        }
        self.session.account.observer.on(&Event::ScanEnded);
    }

    fn take_last(&mut self, findings: &Receiver<Findings>) {
        self.ask();
        let is_done = |survey: &Self| survey.gathered.is_empty() && survey.outstanding.is_empty();
        while !self.session.in_flight.is_stopping() && !is_done(self) {
            match findings.recv_timeout(PATIENCE) {
                Ok(answer) => self.take_answer(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.ask();
        }
    }

    /// Whether another inquiry may be outstanding.
    fn may_ask(&self) -> bool {
        self.outstanding.len() < INQUIRIES_OUTSTANDING_MAX
    }

    fn take_item(&mut self, item: ScanItem) {
        match item {
            ScanItem::Root { directory, metadata, beside } => {
                let directory = SourceDirectory::held_open(&directory).closed();
                self.gather(Inquired { directory, what: PackEntry::Itself(metadata, beside) });
            }
            ScanItem::Batch(batch) => self.take_batch(batch),
            ScanItem::Error(error) => self.session.account.fail_scan(error),
        }
    }

    fn take_batch(&mut self, batch: EntryBatch) {
        let directory = SourceDirectory::held_open(&batch.directory).closed();
        for entry in batch.entries {
            if !self.session.account.can_carry(&self.session.extras, &directory, &entry) {
                continue;
            }
            if entry.kind == EntryKind::File {
                self.session.account.observer.on(&Event::Found { files: 1, bytes: entry.size });
            }
            let what = self.part(&directory, entry);
            self.gather(Inquired { directory: directory.clone(), what });
        }
    }

    /// An entry as it would travel; of a file with several names the first is taken to arrive at once.
    fn part(&mut self, directory: &SourceDirectory, entry: Entry) -> PackEntry {
        let extras = &self.session.extras;
        let Some(shared) = entry.shared.filter(|_| extras.kinds().has_any(Kinds::LINKS)) else {
            return PackEntry::Within(entry);
        };
        match self.links.take(directory, entry.clone(), shared, Made::WherePossible) {
            Part::File(entry) => {
                let path = directory.target_path().join(&entry.name).unwrap_or_else(|_| RelPath::root());
                self.links.named(shared.number, FirstName { path, root: None });
                PackEntry::Within(entry)
            }
            Part::Link(entry, first) => PackEntry::Link(entry, first),
            Part::Copy(entry, _) => PackEntry::Within(entry),
            Part::Waits => PackEntry::Within(entry),
        }
    }

    fn gather(&mut self, asked: Inquired) {
        let name_bytes = asked.directory.target_path().as_bytes().len() + asked.what.text_bytes();
        self.gathered.add(asked, name_bytes);
        if self.gathered.is_full() {
            self.ask();
        }
    }

    /// Sends the gathered inquiries, as far as they may be outstanding.
    fn ask(&mut self) {
        while !self.gathered.is_empty() && self.may_ask() {
            let (inquiry, asked) = self.gathered.take();
            let Session { in_flight, extras, .. } = self.session;
            let inquiry = Inquiry { inquiry, groups: groups(&asked, extras) };
            self.outstanding.insert(inquiry.inquiry, asked);
            in_flight.tell(if extras.speaks() {
                ToReceiver::InquireWith(InquireWith(inquiry))
            } else {
                ToReceiver::Inquire(inquiry)
            });
        }
    }

    fn take_answer(&mut self, answer: Findings) {
        let Some(asked) = self.outstanding.remove(&answer.inquiry) else { return };
        // An entry without a finding would be made.
        let findings = answer.findings.into_iter().chain(std::iter::repeat(Finding::New));
        let changes = asked.iter().zip(findings).filter_map(|(asked, finding)| self.judge(asked, finding));
        let changes: Vec<_> = changes.collect();
        self.session.account.observer.on(&Event::Listed { changes });
    }

    /// Counts what would be done with one entry; returns the line to print, if there is one.
    fn judge(&self, asked: &Inquired, finding: Finding) -> Option<Change> {
        let finding = match finding {
            Finding::Contents(differences, root) => self.compare_contents(asked, differences, root)?,
            finding => finding,
        };
        let totals = &self.session.account.totals;
        let (kind, moves) = match finding {
            Finding::New => (Some(ChangeKind::Added), true),
            Finding::Differs(differences) => {
                let kind = ChangeKind::Changed(differences.to_string());
                (Some(kind), differences.has_any(moving(self.task.compare)))
            }
            Finding::Fails(operation, code) => {
                let path = self.final_path(asked);
                self.session.account.fail(&FileError::Receiver(Fault { path, operation, code }));
                return None;
            }
            Finding::Same | Finding::Stays | Finding::Contents(..) => (None, false),
        };
        if let Some(entry) = asked.what.entry().filter(|entry| entry.kind == EntryKind::File) {
            // A file that cannot be opened would keep everything at the target.
            if moves && self.task.mirror.is_some() {
                let opened = asked.directory.open_file(&entry.name);
                opened.inspect_err(|error| self.session.account.fail(error)).ok()?;
            }
            if moves {
                let is_link = matches!(asked.what, PackEntry::Link(..));
                totals.files.add(1);
                totals.linked.add(u64::from(is_link));
                totals.bytes.add(if is_link { 0 } else { entry.size });
            } else {
                self.session.account.skipped(&asked.target_path(), Look::of(entry));
            }
        }
        let kind = kind?;
        let counter = if kind == ChangeKind::Added { &totals.added } else { &totals.changed };
        counter.add(1);
        Some(Change { kind, path: self.final_path(asked), form: asked.form() })
    }

    /// The path that an entry has at the target.
    fn final_path(&self, asked: &Inquired) -> RelPath {
        self.session.account.files().renamed().unwrap_or_else(|| asked.target_path())
    }

    /// Reads our own file and compares; `None` where it cannot be read, which has then been reported.
    fn compare_contents(
        &self,
        asked: &Inquired,
        differences: Differences,
        root: [u8; 32],
    ) -> Option<Finding> {
        let Some(entry) = asked.what.entry() else { return Some(Finding::Same) };
        let own = asked.directory.open_file(&entry.name).and_then(|(file, there)| {
            let path = || asked.directory.display(&entry.name);
            let stop = || self.session.in_flight.is_stopping();
            let extras = &self.session.extras;
            extras
                .contents_root(&file, there.bytes, stop)
                .map_err(|source| FileError::Read { path: path(), source })
        });
        let own = own.inspect_err(|error| self.session.account.fail(error)).ok().flatten()?;
        let differences = if own.0 == root { differences } else { differences.and(Differences::CONTENTS) };
        Some(if differences.is_empty() { Finding::Same } else { Finding::Differs(differences) })
    }
}

/// The differences by which a file's data is sent.
fn moving(compare: Compare) -> Differences {
    let moving = Differences::TYPE.and(Differences::SIZE).and(Differences::CONTENTS).and(Differences::LINKS);
    match compare {
        Compare::Quick => moving.and(Differences::TIME),
        Compare::Checksum => moving,
    }
}

impl Inquired {
    fn form(&self) -> EntryForm {
        if let PackEntry::Link(_, first) = &self.what {
            return EntryForm::Link(first.path.clone());
        }
        match self.what.entry().map(|entry| &entry.kind) {
            Some(EntryKind::Symlink(target)) => EntryForm::Symlink(target.clone()),
            Some(EntryKind::File | EntryKind::Special(_)) => EntryForm::File,
            _ => EntryForm::Directory,
        }
    }

    fn target_path(&self) -> RelPath {
        self.what.target_path(&self.directory)
    }
}

/// A group for each directory; one that is asked about itself begins it.
fn groups(asked: &[Inquired], extras: &Extras) -> Vec<InquiredGroup> {
    let one = |before: &Inquired, asked: &Inquired| {
        before.directory.is(&asked.directory) && asked.what.entry().is_some()
    };
    let group = |asked: &[Inquired]| {
        let directory = asked[0].directory.target_path().clone();
        let mut group = InquiredGroup { directory, itself: None, entries: Vec::new() };
        for Inquired { what, .. } in asked {
            match what {
                PackEntry::Itself(metadata, beside) => {
                    group.itself = Some(inquired_metadata(extras, Form::Directory, metadata, beside));
                }
                PackEntry::Within(entry) | PackEntry::Compare(entry, _) | PackEntry::Retouch(entry) => {
                    group.entries.push(inquired_entry(entry, extras))
                }
                PackEntry::Link(entry, first) => {
                    let kind = InquiredKind::Link { bytes: entry.size, first: first.path.clone() };
                    group.entries.push(InquiredEntry { kind, ..inquired_entry(entry, extras) });
                }
            }
        }
        group
    };
    asked.chunk_by(one).map(group).collect()
}

fn inquired_entry(entry: &Entry, extras: &Extras) -> InquiredEntry {
    let kind = match &entry.kind {
        EntryKind::Directory => InquiredKind::Directory,
        EntryKind::Symlink(target) => InquiredKind::Symlink { target: target.to_vec() },
        EntryKind::File => InquiredKind::File { bytes: entry.size },
        EntryKind::Special(special) => InquiredKind::Special(*special),
    };
    let metadata = inquired_metadata(extras, Form::of(&entry.kind), &entry.metadata, &entry.beside);
    InquiredEntry { name: entry.name.clone(), kind, metadata }
}

fn inquired_metadata(extras: &Extras, form: Form, metadata: &Metadata, beside: &Beside) -> InquiredMetadata {
    let (metadata, xattrs) = extras.seen(form, metadata, beside);
    InquiredMetadata(metadata, xattrs)
}
