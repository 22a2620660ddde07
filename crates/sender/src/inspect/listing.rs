//! The list of changes that an inspection produces. It asks the receiver how entries differ, many at a time, and lists
//! the changes as the answers arrive.

use std::collections::HashMap;
use std::path::PathBuf;

use crossbeam_channel::{Receiver, never};
use zmove_scan::{Entry, EntryKind};
use zmove_types::{Change, ChangeKind, EntryForm, Event, GROUP_BYTES, RelPath, Root};
use zmove_wire::limits::REQUESTS_OUTSTANDING_MAX;
use zmove_wire::{Differences, Fault, GroupHashes, Question, Request, ToReceiver, Verdict};

use crate::account::failure::FileError;
use crate::inspect::hashing::{HashJob, HashResult, HashedSource, Hashing};
use crate::inspect::verification::{ComparedFile, Verification};
use crate::plan::asked::{AskedEntry, entry_groups};
use crate::plan::gathered::RequestBacklog;
use crate::plan::pack::PackEntry;
use crate::push::session::Session;
use crate::read::holes::HoleHandling;
use crate::read::source::{SizeAndMtime, SourceDirectory};

/// The state of one inspection: the entries that wait for a request, for the receiver's answer or for hashes.
pub(crate) struct Listing<'a> {
    session: &'a Session,
    /// Whether entries that exist only at the target would be removed.
    is_mirror: bool,
    gathered: RequestBacklog,
    /// Total bytes of the gathered small files. One thread hashes all small files of a request.
    gathered_bytes: u64,
    outstanding: HashMap<u64, PendingRequest>,
    verification: Option<Verification>,
}

/// A request whose entries cannot be compared yet, because answers or hashes are missing.
struct PendingRequest {
    asked: Vec<AskedEntry>,
    answer: Option<Vec<Verdict>>,
    /// The roots of small files, by their indices in the request, once this side has hashed them.
    roots: Option<SmallRoots>,
}

impl<'a> Listing<'a> {
    /// Creates a listing. If `hashing` is given, the listing also verifies contents.
    pub(crate) fn new(session: &'a Session, is_mirror: bool, hashing: Option<Hashing>) -> Self {
        Self {
            session,
            is_mirror,
            gathered: RequestBacklog::default(),
            gathered_bytes: 0,
            outstanding: HashMap::new(),
            verification: hashing.map(Verification::new),
        }
    }

    /// Returns whether the receiver has been asked about every entry and has answered every request.
    pub(crate) fn is_done(&self) -> bool {
        let verified = self.verification.as_ref().is_none_or(Verification::is_done);
        self.gathered.is_empty() && self.outstanding.is_empty() && verified
    }

    /// Returns the channel on which this side's hashing threads deliver their results.
    pub(crate) fn done(&self) -> Receiver<HashResult> {
        self.verification
            .as_ref()
            .map_or_else(never, |verification| verification.hashing.done.clone())
    }

    /// Returns whether the number of outstanding requests is below the limit.
    pub(crate) fn may_ask(&self) -> bool {
        let is_full = self
            .verification
            .as_ref()
            .is_some_and(Verification::is_full);
        self.outstanding.len() < REQUESTS_OUTSTANDING_MAX && !is_full
    }

    /// Adds an entry to ask the receiver about.
    pub(crate) fn add(&mut self, directory: &SourceDirectory, what: PackEntry) {
        let asked = AskedEntry::new(directory, what);
        if is_small_file(&asked) {
            self.gathered_bytes += asked.what.data_bytes();
        }
        self.gathered.add(asked);
        let hashes_enough = self.verification.is_some() && self.gathered_bytes >= HASHED_BYTES_MAX;
        if self.gathered.is_full() || hashes_enough {
            self.ask();
        }
    }

    /// Asks the receiver about the gathered entries, up to the limit of outstanding requests.
    pub(crate) fn ask(&mut self) {
        while !self.gathered.is_empty() && self.may_ask() {
            let (number, asked) = self.gathered.take();
            let Session {
                in_flight, extras, ..
            } = self.session;
            self.gathered_bytes = 0;
            let roots = match &self.verification {
                Some(verification) => {
                    let files = small_files(&asked);
                    verification.hashing.hash(HashJob::Files(number, files));
                    None
                }
                None => Some(SmallRoots::new()),
            };
            let question = Question::Report(entry_groups(&asked, extras));
            in_flight.send(ToReceiver::Request(Request { number, question }));
            let outstanding = PendingRequest {
                asked,
                answer: None,
                roots,
            };
            self.outstanding.insert(number, outstanding);
        }
        self.order();
    }

    /// Asks the receiver for the hashes of groups of large files, up to the limit of outstanding orders.
    fn order(&mut self) {
        if let Some(verification) = &mut self.verification {
            verification.order(|message| self.session.in_flight.send(message));
        }
    }

    /// Processes the verdicts on the entries of a request.
    pub(crate) fn take_verdicts(&mut self, request: u64, verdicts: Vec<Verdict>) {
        if let Some(open) = self.outstanding.get_mut(&request) {
            open.answer = Some(verdicts);
            self.judge_request(request);
        }
    }

    /// Processes values that the receiver has hashed.
    pub(crate) fn handle_hashes(&mut self, order: u64, hashes: GroupHashes) {
        if let Some(verification) = &mut self.verification {
            let compared = verification.add_receiver_hashes(order, hashes);
            self.judge_large(compared);
        }
    }

    /// Processes values that this side has hashed.
    pub(crate) fn handle_hash_result(&mut self, done: HashResult) {
        match done {
            HashResult::Files(request, roots) => {
                if let Some(open) = self.outstanding.get_mut(&request) {
                    open.roots = Some(roots.into_iter().collect());
                    self.judge_request(request);
                }
            }
            HashResult::Groups(order, values) => {
                if let Some(verification) = &mut self.verification {
                    let compared = verification.add_own_hashes(order, values);
                    self.judge_large(compared);
                }
            }
        }
    }

    /// Determines the changes to the entries of a request, once the receiver has answered it and this side has hashed
    /// the files that must be compared.
    fn judge_request(&mut self, request: u64) {
        let is_ready = |open: &PendingRequest| open.answer.is_some() && open.roots.is_some();
        if !self.outstanding.get(&request).is_some_and(is_ready) {
            return;
        }
        let Some(PendingRequest {
            asked,
            answer: Some(answer),
            roots: Some(mut roots),
        }) = self.outstanding.remove(&request)
        else {
            return;
        };
        // An entry without a verdict would be created.
        let verdicts = answer.into_iter().chain(std::iter::repeat(Verdict::New));
        let mut changes = Vec::new();
        for (place, (asked, verdict)) in asked.into_iter().zip(verdicts).enumerate() {
            changes.extend(self.compare(&asked, verdict, roots.remove(&place)));
        }
        self.session.account.report(Event::Listed { changes });
        self.order();
    }

    /// Compares the contents of an entry if the verdict depends on them. Returns the change to list, if there is one.
    /// An entry that is compared group by group is listed later.
    fn compare(
        &mut self,
        asked: &AskedEntry,
        verdict: Verdict,
        own: Option<Result<Root, FileError>>,
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
        let verdict = match (
            verdict,
            large_file(asked),
            verdict.non_content_differences(),
        ) {
            // This entry is another name of a file whose contents are compared under its first name.
            (Verdict::Contents(differences, _), ..)
                if matches!(asked.what, PackEntry::Link(..)) =>
            {
                Verdict::compared(differences, true)
            }
            // The receiver has only a hash of the file.
            (Verdict::Contents(differences, root), Some(source), _) => {
                verification.add_large(source, asked.target_path(), differences, Some(Root(root)));
                return None;
            }
            (Verdict::Contents(differences, root), None, _) => {
                let own = own.unwrap_or_else(|| Err(changed(asked)));
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

    /// Lists the change to `compared`, if a file is given, and requests the groups of other files.
    fn judge_large(&mut self, compared: Option<ComparedFile>) {
        if let Some(file) = compared {
            let changes = self.judge_groups(file).into_iter().collect();
            self.session.account.report(Event::Listed { changes });
        }
        self.order();
    }

    fn judge_groups(&self, file: ComparedFile) -> Option<Change> {
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
        let HashedSource { directory, entry } = file.source;
        self.judge(
            &AskedEntry {
                directory,
                what: PackEntry::Within(entry),
            },
            verdict,
            where_not,
        )
    }

    /// Counts the change that the push would make to one entry. Returns the change to print, or `None` if no line is
    /// printed for the entry. `where_not` describes the ranges in which the contents differ.
    fn judge(&self, asked: &AskedEntry, verdict: Verdict, where_not: String) -> Option<Change> {
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
            // A push that cannot open this file removes nothing at the target.
            if moves && self.is_mirror {
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
                    self.session.account.check_room(totals.counters.bytes.get());
                }
            } else {
                self.session
                    .account
                    .skipped(&asked.target_path(), SizeAndMtime::of(entry), None);
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
            form: form_of(asked),
        })
    }

    /// Returns the number of data bytes that a transfer would find in a file. For a file that cannot be opened, returns
    /// the full size, because the transfer reports the failure.
    fn data_bytes(&self, asked: &AskedEntry, entry: &Entry) -> u64 {
        let holes = self.session.extras.holes();
        if holes != HoleHandling::Kept || !entry.may_have_holes {
            return entry.size;
        }
        let Ok((file, identity)) = asked.directory.open_file(&entry.name) else {
            return entry.size;
        };
        let stop = || self.session.in_flight.is_stopping();
        let (data, _) = holes.find(&file, identity.bytes, true, stop);
        data.map_or(entry.size, |data| data.data_bytes())
    }

    /// Returns the path of the entry at the target.
    fn final_path(&self, asked: &AskedEntry) -> RelPath {
        self.session
            .account
            .files()
            .renamed()
            .unwrap_or_else(|| asked.target_path())
    }

    /// Reads the source file and compares it. If the file cannot be read, reports the failure and returns `None`.
    fn compare_contents(
        &self,
        asked: &AskedEntry,
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

type SmallRoots = HashMap<usize, Result<Root, FileError>>;

/// Maximum bytes of small files in one request of a verification, which a single thread hashes on each side.
const HASHED_BYTES_MAX: u64 = 16 << 20;

/// Returns the files of at most one group, with their indices in the request.
fn small_files(asked: &[AskedEntry]) -> Vec<(usize, HashedSource)> {
    let files = asked
        .iter()
        .enumerate()
        .filter(|(_, asked)| is_small_file(asked));
    files
        .filter_map(|(place, asked)| Some((place, source_of(asked)?)))
        .collect()
}

/// Returns the file of the entry. Returns `None` if the entry is not a file, or is another name of a file that is
/// compared under its first name.
fn source_of(asked: &AskedEntry) -> Option<HashedSource> {
    match &asked.what {
        PackEntry::Within(entry) if entry.kind == EntryKind::File => Some(HashedSource {
            directory: asked.directory.clone(),
            entry: entry.clone(),
        }),
        _ => None,
    }
}

fn large_file(asked: &AskedEntry) -> Option<HashedSource> {
    source_of(asked).filter(|source| source.entry.size > GROUP_BYTES)
}

fn is_small_file(asked: &AskedEntry) -> bool {
    source_of(asked).is_some_and(|source| source.entry.size <= GROUP_BYTES)
}

fn changed(asked: &AskedEntry) -> FileError {
    let name = asked.what.entry().map(|entry| &entry.name);
    let path = name.map_or_else(PathBuf::new, |name| asked.directory.display(name));
    FileError::Changed { path }
}

fn form_of(asked: &AskedEntry) -> EntryForm {
    if let PackEntry::Link(_, first) = &asked.what {
        return EntryForm::Link(first.path.clone());
    }
    match asked.what.entry().map(|entry| &entry.kind) {
        Some(EntryKind::Symlink(target)) => EntryForm::Symlink(target.clone()),
        Some(EntryKind::File | EntryKind::Special(_)) => EntryForm::File,
        _ => EntryForm::Directory,
    }
}
