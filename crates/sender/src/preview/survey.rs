//! The thread of a preview: turns what the scan finds into inquiries, many at once, and the answers into a list.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use crossbeam_channel::{Receiver, never, select};
use zmove_scan::{Beside, Entry, EntryBatch, EntryKind, Scan, ScanItem};
use zmove_types::{
    Change, ChangeKind, EntryForm, Event, GROUP_BYTES, Kinds, Metadata, RelPath, Root,
};
use zmove_wire::limits::{
    REQUESTED_ENTRIES_MAX, REQUESTED_NAME_BYTES_MAX, REQUESTS_OUTSTANDING_MAX,
};
use zmove_wire::{
    Differences, EntryGroup, Fault, GroupHashes, Question, Request, SourceEntry, SourceKind,
    SourceMetadata, ToReceiver, Verdict,
};

use crate::account::failure::FileError;
use crate::control::replies::{EntryReply, QueuedReply, Replies};
use crate::mirror;
use crate::plan::gathered::{Gathered, MessageLoad};
use crate::plan::links::{FirstName, Links, Part};
use crate::plan::pack::PackEntry;
use crate::plan::planner::Task;
use crate::preview::hashing::{Done, Hashing, Source};
use crate::preview::verification::{LargeFile, Taken, Verification};
use crate::push::session::Session;
use crate::read::extras::{Extras, Form};
use crate::read::holes::Holes;
use crate::read::source::{Look, SourceDirectory};

/// A preview of one push.
struct Survey<'a> {
    session: &'a Session,
    task: &'a Task,
    gathered: Gathered<Inquired>,
    /// The bytes of the small files gathered: those of one inquiry are hashed by one thread.
    gathered_bytes: u64,
    outstanding: HashMap<u64, Outstanding>,
    links: Links,
    verification: Option<Verification>,
}

/// An inquiry that has not been judged.
struct Outstanding {
    asked: Vec<Inquired>,
    /// The answer, where small files are still to be hashed here.
    answer: Option<Vec<Verdict>>,
}

/// An entry that is asked about.
struct Inquired {
    directory: SourceDirectory,
    what: PackEntry,
}

/// Asks and lists until the scan has ended and every inquiry is answered; verifies where there is something that
/// hashes.
pub(super) fn run(
    session: &Session,
    scan: &Scan,
    replies: &Replies,
    task: &Task,
    hashing: Option<Hashing>,
) {
    let most = MessageLoad {
        names: REQUESTED_ENTRIES_MAX,
        name_bytes: REQUESTED_NAME_BYTES_MAX,
    };
    let mut survey = Survey {
        session,
        task,
        gathered: Gathered::new(most),
        gathered_bytes: 0,
        outstanding: HashMap::new(),
        links: Links::default(),
        verification: hashing.map(Verification::new),
    };
    survey.ask_all(scan, replies);
    if let Some(mirror) = &task.mirror {
        mirror::run(session, &replies.mirror, mirror);
    }
    session.in_flight.end_plan();
}

/// How long an inquiry that is not full waits for more while the scan finds nothing.
const PATIENCE: Duration = Duration::from_millis(20);

impl Survey<'_> {
    /// Asks about what the scan finds, and takes answers, until nothing is left to be asked or answered.
    fn ask_all(&mut self, scan: &Scan, replies: &Replies) {
        let nothing = never();
        let mut scanning = true;
        while !self.session.in_flight.is_stopping() && (scanning || !self.is_done()) {
            let items = if scanning && self.may_ask() {
                scan.receiver()
            } else {
                &nothing
            };
            let done = self.done();
            select! {
                recv(items) -> item => match item {
                    Ok(item) => self.take_item(item),
                    Err(_) => {
                        scanning = false;
                        self.session.account.end_scan(&scan.parts());
                    }
                },
                recv(replies.entries) -> reply => match reply {
                    Ok(reply) => self.take_reply(reply),
                    Err(_) => return,
                },
                recv(replies.hashes) -> hashes => match hashes {
                    Ok((order, hashes)) => self.take_hashes(order, hashes),
                    Err(_) => return,
                },
                recv(done) -> done => self.take_done(done.expect("the threads that hash outlive this")),
                default(PATIENCE) => self.ask(),
            }
            if !scanning {
                self.ask();
            }
        }
        if scanning {
            self.session.account.end_scan(&scan.parts());
        }
    }

    fn is_done(&self) -> bool {
        let verified = self.verification.as_ref().is_none_or(Verification::is_done);
        self.gathered.is_empty() && self.outstanding.is_empty() && verified
    }

    /// What has been hashed here.
    fn done(&self) -> Receiver<Done> {
        self.verification
            .as_ref()
            .map_or_else(never, |verification| verification.hashing.done.clone())
    }

    /// Whether another inquiry may be outstanding.
    fn may_ask(&self) -> bool {
        let is_full = self
            .verification
            .as_ref()
            .is_some_and(Verification::is_full);
        self.outstanding.len() < REQUESTS_OUTSTANDING_MAX && !is_full
    }

    fn take_item(&mut self, item: ScanItem) {
        match item {
            ScanItem::Root {
                directory,
                metadata,
                beside,
            } => {
                let directory = SourceDirectory::held_open(&directory).closed();
                self.gather(Inquired {
                    directory,
                    what: PackEntry::Itself(metadata, beside),
                });
            }
            ScanItem::Batch(batch) => self.take_batch(batch),
            ScanItem::Error(error) => self.session.account.fail_scan(error),
        }
    }

    fn take_batch(&mut self, batch: EntryBatch) {
        let opened = SourceDirectory::held_open(&batch.directory);
        let directory = opened.closed();
        for entry in batch.entries {
            let entry = match opened.measured(entry) {
                Ok(entry) => entry,
                Err(error) => {
                    self.session.account.fail(&error);
                    continue;
                }
            };
            if !self
                .session
                .account
                .can_carry(&self.session.extras, &directory, &entry)
            {
                continue;
            }
            if entry.kind == EntryKind::File {
                self.session.account.observer.on(&Event::Found {
                    files: 1,
                    bytes: entry.size,
                });
            }
            let what = self.part(&directory, entry);
            self.gather(Inquired {
                directory: directory.clone(),
                what,
            });
        }
    }

    /// An entry as it would travel; of a file with several names the first is taken to arrive at once.
    fn part(&mut self, directory: &SourceDirectory, entry: Entry) -> PackEntry {
        let extras = &self.session.extras;
        let Some(shared) = entry
            .shared
            .filter(|_| extras.kinds().has_any(Kinds::LINKS))
        else {
            return PackEntry::Within(entry);
        };
        match self.links.take(directory, entry.clone(), shared) {
            Part::File(entry) => {
                let path = directory.target_of(&entry.name);
                self.links
                    .named(shared.number, FirstName { path, root: None });
                PackEntry::Within(entry)
            }
            Part::Link(entry, first) => PackEntry::Link(entry, first),
            Part::Copy(entry, _) => PackEntry::Within(entry),
            Part::Waits => PackEntry::Within(entry),
        }
    }

    fn gather(&mut self, asked: Inquired) {
        let name_bytes = asked.directory.target_path().as_bytes().len() + asked.what.text_bytes();
        self.gathered_bytes += if asked.is_small_file() {
            asked.what.data_bytes()
        } else {
            0
        };
        self.gathered.add(asked, name_bytes);
        let hashes_enough = self.verification.is_some() && self.gathered_bytes >= HASHED_BYTES_MAX;
        if self.gathered.is_full() || hashes_enough {
            self.ask();
        }
    }

    /// Sends the gathered inquiries, as far as they may be outstanding.
    fn ask(&mut self) {
        while !self.gathered.is_empty() && self.may_ask() {
            let (inquiry, asked) = self.gathered.take();
            let Session {
                in_flight, extras, ..
            } = self.session;
            self.gathered_bytes = 0;
            if let Some(verification) = &self.verification {
                verification.hash_small(inquiry, small_files(&asked));
            }
            let request = Request {
                number: inquiry,
                question: Question::Report(groups(&asked, extras)),
            };
            self.outstanding.insert(
                inquiry,
                Outstanding {
                    asked,
                    answer: None,
                },
            );
            in_flight.tell(ToReceiver::Request(request));
        }
        self.order();
    }

    /// Asks for groups of large files, as far as that may be.
    fn order(&mut self) {
        if let Some(verification) = &mut self.verification {
            verification.order(|message| self.session.in_flight.tell(message));
        }
    }

    fn take_reply(&mut self, queued: QueuedReply) {
        let (EntryReply::Verdicts(request, verdicts), _booked) = queued.take() else {
            return;
        };
        if let Some(open) = self.outstanding.get_mut(&request) {
            open.answer = Some(verdicts);
            self.judge_inquiry(request);
        }
    }

    fn take_hashes(&mut self, order: u64, hashes: GroupHashes) {
        if let Some(verification) = &mut self.verification {
            let taken = verification.take_theirs(order, hashes);
            self.go_on(taken);
        }
    }

    fn take_done(&mut self, done: Done) {
        if let Some(verification) = &mut self.verification {
            let taken = verification.take_ours(done);
            self.go_on(taken);
        }
    }

    fn go_on(&mut self, taken: Taken) {
        match taken {
            Taken::Nothing => {}
            Taken::Inquiry(inquiry) => self.judge_inquiry(inquiry),
            Taken::Large(file) => {
                let changes = self.judge_large(*file).into_iter().collect();
                self.session.account.observer.on(&Event::Listed { changes });
            }
        }
        self.order();
    }

    /// Judges the entries of an inquiry once it has been answered, and what it takes has been hashed here.
    fn judge_inquiry(&mut self, inquiry: u64) {
        let is_hashed = |verification: &Verification| verification.has_roots(inquiry);
        let is_ready = self.verification.as_ref().is_none_or(is_hashed)
            && self
                .outstanding
                .get(&inquiry)
                .is_some_and(|open| open.answer.is_some());
        if !is_ready {
            return;
        }
        let Some(Outstanding {
            asked,
            answer: Some(answer),
        }) = self.outstanding.remove(&inquiry)
        else {
            return;
        };
        // An entry without a verdict would be made.
        let verdicts = answer.into_iter().chain(std::iter::repeat(Verdict::New));
        let mut changes = Vec::new();
        for (place, (asked, verdict)) in asked.into_iter().zip(verdicts).enumerate() {
            changes.extend(self.compare(&asked, verdict, (inquiry, place)));
        }
        if let Some(verification) = &mut self.verification {
            verification.forget(inquiry);
        }
        self.session.account.observer.on(&Event::Listed { changes });
        self.order();
    }

    /// Compares contents where they decide, and judges; what is compared group by group is judged later.
    fn compare(
        &mut self,
        asked: &Inquired,
        verdict: Verdict,
        (inquiry, place): (u64, usize),
    ) -> Option<Change> {
        let Some(verification) = &mut self.verification else {
            let verdict = match verdict {
                Verdict::Contents(differences, root) => {
                    self.compare_contents(asked, differences, root)?
                }
                verdict => verdict,
            };
            return self.judge(asked, verdict, String::new());
        };
        let own = verification.take_root(inquiry, place);
        let verdict = match (verdict, asked.large_file(), verdict.beside_contents()) {
            // another name of a file that is compared under its first one
            (Verdict::Contents(differences, _), ..)
                if matches!(asked.what, PackEntry::Link(..)) =>
            {
                Verdict::compared(differences, true)
            }
            // the receiver has a hash alone
            (Verdict::Contents(differences, root), Some(source), _) => {
                verification.add_large(source, asked.target_path(), differences, Some(Root(root)));
                return None;
            }
            (Verdict::Contents(differences, root), None, _) => {
                let own = own.unwrap_or_else(|| Err(asked.changed()));
                let own = own
                    .inspect_err(|error| self.session.account.fail(error))
                    .ok()?;
                Verdict::compared(differences, own.0 == root)
            }
            (_, Some(source), Some(differences)) => {
                verification.add_large(source, asked.target_path(), differences, None);
                return None;
            }
            (verdict, ..) => verdict,
        };
        self.judge(asked, verdict, String::new())
    }

    /// Judges a file whose groups have been compared.
    fn judge_large(&self, file: LargeFile) -> Option<Change> {
        if let Some(error) = &file.failed {
            self.session.account.fail(error);
            return None;
        }
        let is_same = file.is_same();
        let where_not = if file.differing.is_empty() {
            String::new()
        } else {
            format!(" {}", file.differing.shown())
        };
        let verdict = Verdict::compared(file.differences, is_same);
        let Source { directory, entry } = file.source;
        self.judge(
            &Inquired {
                directory,
                what: PackEntry::Within(entry),
            },
            verdict,
            where_not,
        )
    }

    /// Counts what would be done with one entry; returns the line to print, if there is one. `where_not` says where
    /// contents differ.
    fn judge(&self, asked: &Inquired, verdict: Verdict, where_not: String) -> Option<Change> {
        let totals = &self.session.account.totals;
        let changed = |differences: Differences| {
            ChangeKind::Changed(differences.with_detail(Differences::CONTENTS, &where_not))
        };
        let (kind, moves) = match verdict {
            Verdict::New => (Some(ChangeKind::Added), true),
            Verdict::Replace(differences) => (Some(changed(differences)), true),
            Verdict::Set(differences) => (Some(changed(differences)), false),
            Verdict::Fails(operation, code) => {
                let renamed = self.session.account.files().renamed();
                let path =
                    renamed.unwrap_or_else(|| asked.what.failed_path(&asked.directory, operation));
                self.session.account.fail(&FileError::Receiver(Fault {
                    path,
                    operation,
                    code,
                }));
                return None;
            }
            Verdict::Same
            | Verdict::Stays
            | Verdict::Contents(..)
            | Verdict::Resume
            | Verdict::Delta => (None, false),
        };
        if let Some(entry) = asked
            .what
            .entry()
            .filter(|entry| entry.kind == EntryKind::File)
        {
            // A file that cannot be opened would keep everything at the target.
            if moves && self.task.mirror.is_some() {
                let opened = asked.directory.open_file(&entry.name);
                opened
                    .inspect_err(|error| self.session.account.fail(error))
                    .ok()?;
            }
            if moves {
                let is_link = matches!(asked.what, PackEntry::Link(..));
                totals.counters.files.add(1);
                totals.counters.hard_links.add(u64::from(is_link));
                if !is_link {
                    totals.counters.bytes.add(self.data_bytes(asked, entry));
                    self.session.account.need_room(totals.counters.bytes.get());
                }
            } else {
                self.session
                    .account
                    .skipped(&asked.target_path(), Look::of(entry), None);
            }
        }
        let kind = kind?;
        let counter = if kind == ChangeKind::Added {
            &totals.counters.added
        } else {
            &totals.counters.changed
        };
        counter.add(1);
        Some(Change {
            kind,
            path: self.final_path(asked),
            form: asked.form(),
        })
    }

    /// How many bytes of a file are data, as a transfer finds them. A file that cannot be opened counts whole: the
    /// transfer fails it.
    fn data_bytes(&self, asked: &Inquired, entry: &Entry) -> u64 {
        let holes = self.session.extras.holes();
        if holes != Holes::Kept || !entry.may_have_holes {
            return entry.size;
        }
        let Ok((file, identity)) = asked.directory.open_file(&entry.name) else {
            return entry.size;
        };
        let stop = || self.session.in_flight.is_stopping();
        let (data, _) = holes.find((&file, identity.bytes), true, stop);
        data.map_or(entry.size, |data| data.data_bytes())
    }

    /// The path that an entry has at the target.
    fn final_path(&self, asked: &Inquired) -> RelPath {
        self.session
            .account
            .files()
            .renamed()
            .unwrap_or_else(|| asked.target_path())
    }

    /// Reads our own file and compares; `None` where it cannot be read, which has then been reported.
    fn compare_contents(
        &self,
        asked: &Inquired,
        differences: Differences,
        root: [u8; 32],
    ) -> Option<Verdict> {
        let Some(entry) = asked.what.entry() else {
            return Some(Verdict::Same);
        };
        let own = asked
            .directory
            .open_file(&entry.name)
            .and_then(|(file, there)| {
                let stop = || self.session.in_flight.is_stopping();
                let extras = &self.session.extras;
                extras
                    .contents_root(&file, there.bytes, stop)
                    .map_err(asked.directory.unreadable(&entry.name))
            });
        let own = own
            .inspect_err(|error| self.session.account.fail(error))
            .ok()
            .flatten()?;
        Some(Verdict::compared(differences, own.0 == root))
    }
}

/// The most bytes of small files in one inquiry of a verification: one thread hashes them at either end.
const HASHED_BYTES_MAX: u64 = 16 << 20;

/// The files of one group or less, with their places in the inquiry.
fn small_files(asked: &[Inquired]) -> Vec<(usize, Source)> {
    let files = asked
        .iter()
        .enumerate()
        .filter(|(_, asked)| asked.is_small_file());
    files
        .filter_map(|(place, asked)| Some((place, asked.source()?)))
        .collect()
}

impl Inquired {
    /// The file, where the entry is one, under its first name.
    fn source(&self) -> Option<Source> {
        match &self.what {
            PackEntry::Within(entry) if entry.kind == EntryKind::File => Some(Source {
                directory: self.directory.clone(),
                entry: entry.clone(),
            }),
            _ => None,
        }
    }

    fn large_file(&self) -> Option<Source> {
        self.source()
            .filter(|source| source.entry.size > GROUP_BYTES)
    }

    fn is_small_file(&self) -> bool {
        self.source()
            .is_some_and(|source| source.entry.size <= GROUP_BYTES)
    }

    fn changed(&self) -> FileError {
        let name = self.what.entry().map(|entry| &entry.name);
        let path = name.map_or_else(PathBuf::new, |name| self.directory.display(name));
        FileError::Changed { path }
    }

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
fn groups(asked: &[Inquired], extras: &Extras) -> Vec<EntryGroup> {
    let one = |before: &Inquired, asked: &Inquired| {
        before.directory.is(&asked.directory) && asked.what.entry().is_some()
    };
    let group = |asked: &[Inquired]| {
        let directory = asked[0].directory.target_path().clone();
        let mut group = EntryGroup {
            directory,
            itself: None,
            entries: Vec::new(),
        };
        for Inquired { what, .. } in asked {
            match what {
                PackEntry::Itself(metadata, beside) => {
                    group.itself =
                        Some(inquired_metadata(extras, Form::Directory, metadata, beside));
                }
                PackEntry::Within(entry)
                | PackEntry::Compare(entry, _)
                | PackEntry::Retouch(entry) => group.entries.push(inquired_entry(entry, extras)),
                PackEntry::Link(entry, first) => {
                    let kind = SourceKind::Link {
                        bytes: entry.size,
                        first: first.path.clone(),
                    };
                    group.entries.push(SourceEntry {
                        kind,
                        ..inquired_entry(entry, extras)
                    });
                }
            }
        }
        group
    };
    asked.chunk_by(one).map(group).collect()
}

fn inquired_entry(entry: &Entry, extras: &Extras) -> SourceEntry {
    let kind = match &entry.kind {
        EntryKind::Directory => SourceKind::Directory,
        EntryKind::Symlink(target) => SourceKind::Symlink {
            target: target.to_vec(),
        },
        EntryKind::File => SourceKind::File {
            bytes: entry.size,
            mark: None,
        },
        EntryKind::Special(special) => SourceKind::Special(*special),
    };
    let metadata = inquired_metadata(
        extras,
        Form::of(&entry.kind),
        &entry.metadata,
        &entry.beside,
    );
    SourceEntry {
        name: entry.name.clone(),
        kind,
        metadata,
    }
}

fn inquired_metadata(
    extras: &Extras,
    form: Form,
    metadata: &Metadata,
    beside: &Beside,
) -> SourceMetadata {
    let (metadata, xattrs) = extras.seen(form, metadata, beside);
    SourceMetadata { metadata, xattrs }
}
