//! The thread of a preview: turns what the scan finds into inquiries, many at once, and the answers into a list.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, never, select};
use zmove_chunk::read_root;
use zmove_scan::{Entry, EntryBatch, EntryKind, Scan, ScanItem};
use zmove_types::{Change, ChangeKind, EntryForm, Event, GroupSpan, Metadata, Name, RelPath};
use zmove_wire::limits::{
    INQUIRED_ENTRIES_MAX, INQUIRED_NAME_BYTES_MAX, INQUIRIES_OUTSTANDING_MAX, SYMLINK_BYTES_MAX,
};
use zmove_wire::{
    Compare, Differences, Fault, Finding, Findings, InquiredEntry, InquiredGroup, InquiredKind,
    InquiredMetadata, Inquiry, ToReceiver,
};

use crate::account::Account;
use crate::account::failure::FileError;
use crate::control::outgoing::Outgoing;
use crate::control::replies::Replies;
use crate::control::stop::Stop;
use crate::mirror::{self, Mirror, MirrorContext};
use crate::plan::queue::Queue;
use crate::read::source::{Look, SourceDirectory};

/// Whom a survey asks and tells.
pub(crate) struct SurveyContext {
    pub(crate) account: Arc<Account>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) outgoing: Outgoing,
    pub(crate) stop: Stop,
}

/// A preview of one push.
pub(crate) struct Survey {
    context: SurveyContext,
    compare: Compare,
    single_name: Option<Name>,
    /// A file that cannot be opened would keep everything at the target, so each that would move is tried.
    mirrored: bool,
    next: u64,
    gathered: Vec<Inquired>,
    name_bytes: usize,
    outstanding: HashMap<u64, Vec<Inquired>>,
}

/// What is asked about.
struct Inquired {
    directory: SourceDirectory,
    what: What,
}

enum What {
    Itself(Metadata),
    Entry(Entry),
}

/// Asks and lists until the scan has ended and every inquiry is answered.
pub(crate) fn run(mut survey: Survey, scan: &Scan, replies: &Replies, mirror: Option<&Mirror>) {
    survey.mirrored = mirror.is_some();
    survey.take_scan(scan, &replies.findings);
    survey.take_last(&replies.findings);
    if let Some(mirror) = mirror {
        let SurveyContext { account, outgoing, stop, .. } = &survey.context;
        mirror::run(MirrorContext { account, outgoing, stop, answers: &replies.mirror }, mirror);
    }
    survey.context.queue.end();
}

/// How long an inquiry that is not full waits for more while the scan finds nothing.
const PATIENCE: Duration = Duration::from_millis(20);

impl Survey {
    pub(crate) fn new(context: SurveyContext, compare: Compare, single_name: Option<Name>) -> Self {
        let gathered = Vec::new();
        let outstanding = HashMap::new();
        let mirrored = false;
        Self { context, compare, single_name, mirrored, next: 0, gathered, name_bytes: 0, outstanding }
    }

    fn take_scan(&mut self, scan: &Scan, findings: &Receiver<Findings>) {
        let nothing = never();
        while !self.context.stop.is_raised() {
            let items = if self.is_full() { &nothing } else { scan.receiver() };
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
        self.context.account.observer.on(&Event::ScanEnded);
    }

    fn take_last(&mut self, findings: &Receiver<Findings>) {
        self.ask();
        while !self.context.stop.is_raised() && !self.is_done() {
            match findings.recv_timeout(PATIENCE) {
                Ok(answer) => self.take_answer(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.ask();
        }
    }

    fn is_done(&self) -> bool {
        self.gathered.is_empty() && self.outstanding.is_empty()
    }

    fn is_full(&self) -> bool {
        self.outstanding.len() >= INQUIRIES_OUTSTANDING_MAX
    }

    fn take_item(&mut self, item: ScanItem) {
        match item {
            ScanItem::Root { directory, metadata } => {
                let mut directory = SourceDirectory::held_open(&directory);
                directory.put_off();
                self.gather(Inquired { directory, what: What::Itself(metadata) });
            }
            ScanItem::Batch(batch) => self.take_batch(batch),
            ScanItem::Error(error) => self.context.account.fail_scan(error),
        }
    }

    fn take_batch(&mut self, batch: EntryBatch) {
        let mut directory = SourceDirectory::held_open(&batch.directory);
        directory.put_off();
        for entry in batch.entries {
            match &entry.kind {
                EntryKind::Special => {
                    self.context.account.totals.specials.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                EntryKind::Symlink(target) if target.is_empty() || target.len() > SYMLINK_BYTES_MAX => {
                    self.context
                        .account
                        .fail(&FileError::LinkTarget { path: directory.display(&entry.name) });
                    continue;
                }
                EntryKind::File if GroupSpan::count(entry.size).is_none() => {
                    self.context.account.fail(&FileError::TooLarge { path: directory.display(&entry.name) });
                    continue;
                }
                EntryKind::File => {
                    self.context.account.observer.on(&Event::Found { files: 1, bytes: entry.size });
                }
                _ => {}
            }
            self.gather(Inquired { directory: directory.clone(), what: What::Entry(entry) });
        }
    }

    fn gather(&mut self, asked: Inquired) {
        self.name_bytes += asked.name_bytes();
        self.gathered.push(asked);
        if self.gathered.len() >= INQUIRED_ENTRIES_MAX || self.name_bytes >= INQUIRED_NAME_BYTES_MAX {
            self.ask();
        }
    }

    /// Asks about what has been gathered, as far as inquiries may be outstanding.
    fn ask(&mut self) {
        while !self.gathered.is_empty() && !self.is_full() {
            let mut name_bytes = 0;
            let fits = self.gathered.iter().take(INQUIRED_ENTRIES_MAX).take_while(|asked| {
                let before = name_bytes;
                name_bytes += asked.name_bytes();
                before < INQUIRED_NAME_BYTES_MAX
            });
            let count = fits.count();
            let asked: Vec<_> = self.gathered.drain(..count).collect();
            self.name_bytes = self.gathered.iter().map(Inquired::name_bytes).sum();
            let inquiry = self.next;
            self.next += 1;
            let groups = groups(&asked);
            self.outstanding.insert(inquiry, asked);
            self.context.outgoing.send(ToReceiver::Inquire(Inquiry { inquiry, groups }));
        }
    }

    fn take_answer(&mut self, answer: Findings) {
        let Some(asked) = self.outstanding.remove(&answer.inquiry) else { return };
        // what is not told has to be made
        let findings = answer.findings.into_iter().chain(std::iter::repeat(Finding::New));
        let changes = asked.iter().zip(findings).filter_map(|(asked, finding)| self.judge(asked, finding));
        let changes: Vec<_> = changes.collect();
        self.context.account.observer.on(&Event::Listed { changes });
    }

    /// Counts what would be done with one entry; the line that is to be told, if there is one.
    fn judge(&self, asked: &Inquired, finding: Finding) -> Option<Change> {
        let finding = match finding {
            Finding::Contents(differences, root) => self.compare_contents(asked, differences, root)?,
            finding => finding,
        };
        let totals = &self.context.account.totals;
        let file = asked.file();
        let (kind, moves) = match finding {
            Finding::New => (Some(ChangeKind::Added), true),
            Finding::Differs(differences) => {
                let kind = ChangeKind::Changed(differences.to_string());
                (Some(kind), differences.has_any(moving(self.compare)))
            }
            Finding::Fails(operation, code) => {
                let path = final_path(self.single_name.as_ref(), &asked.target_path());
                self.context.account.fail(&FileError::Receiver(Fault { path, operation, code }));
                return None;
            }
            Finding::Same | Finding::Stays | Finding::Contents(..) => (None, false),
        };
        if let Some(entry) = file {
            if moves && self.mirrored {
                let opened = asked.directory.open_file(&entry.name);
                opened.inspect_err(|error| self.context.account.fail(error)).ok()?;
            }
            if moves {
                totals.files.fetch_add(1, Ordering::Relaxed);
                totals.bytes.fetch_add(entry.size, Ordering::Relaxed);
            } else {
                self.context.account.skipped(&asked.target_path(), Look::of(entry));
            }
        }
        let kind = kind?;
        let counter = if kind == ChangeKind::Added { &totals.added } else { &totals.changed };
        counter.fetch_add(1, Ordering::Relaxed);
        let path = final_path(self.single_name.as_ref(), &asked.target_path());
        Some(Change { kind, path, form: asked.form() })
    }

    /// Reads our own file; `None` when it cannot be read, which has been told then.
    fn compare_contents(
        &self,
        asked: &Inquired,
        differences: Differences,
        root: [u8; 32],
    ) -> Option<Finding> {
        let What::Entry(entry) = &asked.what else { return Some(Finding::Same) };
        let own = asked.directory.open_file(&entry.name).and_then(|(file, _)| {
            let path = || asked.directory.display(&entry.name);
            read_root(&file, || self.context.stop.is_raised())
                .map_err(|source| FileError::Read { path: path(), source })
        });
        match own {
            Ok(Some(own)) if own.0 == root && differences.is_empty() => Some(Finding::Same),
            Ok(Some(own)) if own.0 == root => Some(Finding::Differs(differences)),
            Ok(Some(_)) => Some(Finding::Differs(differences.and(Differences::CONTENTS))),
            Ok(None) => None,
            Err(error) => {
                self.context.account.fail(&error);
                None
            }
        }
    }
}

/// What makes a file's data move.
fn moving(compare: Compare) -> Differences {
    let moving = Differences::TYPE.and(Differences::SIZE).and(Differences::CONTENTS);
    match compare {
        Compare::Quick => moving.and(Differences::TIME),
        Compare::Checksum => moving,
    }
}

impl Inquired {
    fn name_bytes(&self) -> usize {
        let own = match &self.what {
            What::Itself(_) => 0,
            What::Entry(Entry { name, kind: EntryKind::Symlink(target), .. }) => {
                name.as_bytes().len() + target.len()
            }
            What::Entry(entry) => entry.name.as_bytes().len(),
        };
        self.directory.target_path().as_bytes().len() + own
    }

    fn file(&self) -> Option<&Entry> {
        match &self.what {
            What::Entry(entry) if entry.kind == EntryKind::File => Some(entry),
            _ => None,
        }
    }

    fn form(&self) -> EntryForm {
        match &self.what {
            What::Entry(Entry { kind: EntryKind::Symlink(target), .. }) => EntryForm::Symlink(target.clone()),
            What::Entry(Entry { kind: EntryKind::File, .. }) => EntryForm::File,
            What::Entry(_) | What::Itself(_) => EntryForm::Directory,
        }
    }

    fn target_path(&self) -> RelPath {
        let directory = self.directory.target_path();
        match &self.what {
            What::Itself(_) => directory.clone(),
            What::Entry(entry) => directory.join(&entry.name).unwrap_or_else(|_| directory.clone()),
        }
    }
}

fn groups(asked: &[Inquired]) -> Vec<InquiredGroup> {
    let mut groups: Vec<InquiredGroup> = Vec::new();
    let mut previous: Option<&SourceDirectory> = None;
    for Inquired { directory, what } in asked {
        let same = previous.is_some_and(|previous| previous.is(directory));
        if !same || matches!(what, What::Itself(_)) {
            let directory = directory.target_path().clone();
            groups.push(InquiredGroup { directory, itself: None, entries: Vec::new() });
        }
        previous = Some(directory);
        let group = groups.last_mut().expect("one was just pushed");
        match what {
            What::Itself(metadata) => group.itself = Some(inquired(metadata)),
            What::Entry(entry) => group.entries.push(inquired_entry(entry)),
        }
    }
    groups
}

/// The path that an entry has at the target: a single entry may have been given the target's own name.
fn final_path(single_name: Option<&Name>, path: &RelPath) -> RelPath {
    let renamed = single_name.and_then(|name| RelPath::root().join(name).ok());
    renamed.unwrap_or_else(|| path.clone())
}

fn inquired_entry(entry: &Entry) -> InquiredEntry {
    let kind = match &entry.kind {
        EntryKind::Directory => InquiredKind::Directory,
        EntryKind::Symlink(target) => InquiredKind::Symlink { target: target.to_vec() },
        EntryKind::File | EntryKind::Special => InquiredKind::File { bytes: entry.size },
    };
    InquiredEntry { name: entry.name.clone(), kind, metadata: inquired(&entry.metadata) }
}

fn inquired(Metadata { mode, mtime }: &Metadata) -> InquiredMetadata {
    InquiredMetadata { mode: *mode, mtime_seconds: mtime.seconds, mtime_nanos: mtime.nanos }
}
