//! Makes the target a mirror of the sources (`--delete`). After everything has been sent and settled, the sources are
//! walked again for names only. Entries that exist in the corresponding directories of the target but not in the
//! sources are removed. The planner calls this module at its end, and the end of the transfer is announced only
//! afterwards.
//!
//! One thread walks the sources ([`SourceNames`]), so that the names of the first walk need not be kept. The receiver
//! compares the names with its directories. The sender holds the names of one directory at a time. The receiver holds
//! those of the messages in flight and of as many answers. The names to remove ([`ExtraneousList`]) are held until the
//! walk has succeeded. Their number is bounded; if there are more, another round follows.
//!
//! Only directories that the push owns are mirrored: those below a source that is a directory, and the target itself if
//! the contents of a source go into it. If nothing of the sources was at the target, there is nothing to compare. An
//! entry that this push has created, and that the source has lost since, is removed by the next run.
//!
//! An entry whose name has changed since the first walk has not been sent, and its copy under the old name may be the
//! only one. Entries that exist only at the target therefore stay during this run if the corresponding source directory
//! has changed since the first walk began (`WalkRecord` detects this).
//!
//! A removal counts as done once the sender has requested it. This also holds for the next session if the connection is
//! lost before the answer.
//!
//! **Invariant:** no removal is requested before all names of all sources have been read and all of their files that
//! were to be sent are at the target. If any of them could not be read or stored, nothing is removed unless the user
//! requests it. Even then, directories that could not be listed are left alone, and so are entries that rules exclude
//! from the push. Nothing is removed if a source is empty and the target is not, unless the user allows it, because the
//! file system of the source may not be mounted. Nothing is removed if a source is no longer the directory that was
//! pushed, or if a file system that was mounted in it has been unmounted. Nothing is removed from a directory whose
//! source has changed since the push began.

mod extraneous;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use zmove_scan::{DirectoryNames, ScanConfig, ScanError, ScanRoot, SourceNames};
use zmove_types::{Change, ChangeKind, EntryForm, Event, FileNumber, Name, RelPath};
use zmove_wire::limits::{
    LISTED_NAME_BYTES_MAX, LISTED_NAMES_MAX, LISTINGS_OUTSTANDING_MAX, REMOVE_NAME_BYTES_MAX,
    REMOVE_NAMES_MAX, REMOVES_OUTSTANDING_MAX,
};
use zmove_wire::{
    AfterErrors, EmptySources, ExtraneousNames, Fault, Intent, NameRange, Operation, Question,
    RemovalOrder, Remove, RemoveGroup, Request, ToReceiver,
};

use self::extraneous::{DirectoryKind, ExtraneousEntries, ExtraneousList, TakenEntries};
use crate::account::PushAccount;
use crate::account::failure::FileError;
use crate::control::replies::CountedReply;
use crate::push::session::Session;

/// The settings of a mirror.
#[derive(Clone, Debug)]
pub(crate) struct Mirror {
    /// The sources. Names that their selection excludes are not removed at the target.
    pub(crate) sources: SourceWalk,
    pub(crate) removals: Removals,
    pub(crate) intent: Intent,
}

/// The sources of a push, and the configuration of the first walk.
#[derive(Clone, Debug)]
pub(crate) struct SourceWalk {
    pub(crate) roots: Vec<ScanRoot>,
    pub(crate) config: ScanConfig,
}

/// The rules for removing entries that exist only at the target.
#[derive(Clone, Debug, Default)]
pub struct Removals {
    /// The user's settings for removals.
    pub order: RemovalOrder,
    /// The guard that is asked for permission before anything is removed. Default: none.
    pub guard: Option<Arc<dyn RemovalGuard>>,
    /// Directories that this program itself changes during the push and that may lie in the sources. Changes of these
    /// directories are ignored.
    pub own_directories: Vec<FileNumber>,
}

/// A guard that may object to removals because of events since the push began.
pub trait RemovalGuard: fmt::Debug + Send + Sync {
    /// Returns the reason why nothing may be removed, if there is one.
    fn objection(&self) -> Option<String>;
}

/// Makes the target a mirror of the sources. `answers` delivers the receiver's answers about names at the target.
pub(crate) fn run(session: &Session, answers: &Receiver<CountedReply>, mirror: &Mirror) {
    run_rounds(session, answers, mirror);
    let kept = session.account.totals.counters.source_changed_kept.get();
    if kept > 0 {
        let (entries, them) = if kept == 1 {
            ("entry was not removed", "it")
        } else {
            ("entries were not removed", "them")
        };
        session.account.warn(format!(
            "{kept} {entries} at the target, because the source changed during the push; run the command again to \
             remove {them}"
        ));
    }
}

fn run_rounds(session: &Session, answers: &Receiver<CountedReply>, mirror: &Mirror) {
    loop {
        if refuse_removals(&session.account, mirror) {
            return;
        }
        let mut round = MirrorRound::new(session, answers, mirror);
        if !round.walk() {
            return;
        }
        // Large files are renamed into place after they have settled.
        round.wait_until(|round| {
            round.mirror.intent == Intent::Inspect || session.account.totals.are_files_confirmed()
        });
        if session.in_flight.is_stopping() || refuse_removals(&session.account, mirror) {
            return;
        }
        if let Some(path) = round.emptied {
            return session.account.fail(&FileError::EmptySource { path });
        }
        if let Some(why) = mirror
            .removals
            .guard
            .as_ref()
            .and_then(|guard| guard.objection())
        {
            return session.account.fail(&FileError::Guarded { why });
        }
        let counters = &session.account.totals.counters;
        let failed = counters.failed.get();
        let removed = counters.removed.get();
        let more = round.full;
        round.remove_extraneous();
        let spared = counters.max_delete_kept.get();
        if spared > 0 {
            let entries = if spared == 1 {
                "entry was not removed"
            } else {
                "entries were not removed"
            };
            session.account.warn(format!(
                "--max-delete stopped the removal at the target: {spared} more {entries}"
            ));
        }
        if !more || spared > 0 || counters.failed.get() > failed || mirror.intent == Intent::Inspect
        {
            return;
        }
        if counters.removed.get() == removed {
            return session.account.warn(
                "some entries were not removed: too many directories contain excluded entries"
                    .to_owned(),
            );
        }
    }
}

/// Returns `true` if nothing may be removed, and then reports the reason.
fn refuse_removals(account: &PushAccount, mirror: &Mirror) -> bool {
    let unread = account.totals.source_errors();
    let errors = unread + account.totals.unplaced.get();
    if errors == 0 || mirror.removals.order.after_errors == AfterErrors::Remove {
        return false;
    }
    let why = if unread > 0 {
        "the source could not be read completely"
    } else {
        "some entries could not be stored there"
    };
    let message = format!(
        "nothing was removed at the target: {why} ({errors} {}); use --ignore-errors to remove anyway",
        if errors == 1 { "error" } else { "errors" }
    );
    if account.files().report_once(&message) {
        account.warn(message);
    }
    true
}

/// One walk of the sources and the removals that follow from it.
struct MirrorRound<'a> {
    session: &'a Session,
    /// The receiver's answers about names at the target.
    answers: &'a Receiver<CountedReply>,
    mirror: &'a Mirror,
    next: u64,
    gathered: Vec<NameRange>,
    /// The kind of directories in `gathered`.
    directory_kind: DirectoryKind,
    load: MessageLoad,
    outstanding: HashMap<u64, OpenRequest>,
    removing: usize,
    extraneous: ExtraneousList,
    /// Whether the number of entries to remove exceeds the number that can be stored. Another walk of the sources
    /// removes the rest.
    full: bool,
    /// Empty sources whose mirrors must not be emptied. The key is the source's directory at the target.
    empty: HashMap<RelPath, PathBuf>,
    /// An empty source whose mirror has entries that would be removed.
    emptied: Option<PathBuf>,
}

/// The number of names in a message and their total length in bytes.
#[derive(Default)]
struct MessageLoad {
    names: usize,
    name_bytes: usize,
}

struct OpenRequest {
    ranges: Vec<NameRange>,
    directory_kind: DirectoryKind,
}

/// Maximum number of names gathered for a message. Small messages keep both sides busy, and only a large directory
/// fills a message to its limit.
const GATHERED_NAMES_MAX: usize = 4096;
/// Maximum number of directories gathered for a message; see [`GATHERED_NAMES_MAX`].
const GATHERED_RANGES_MAX: usize = 1024;
const PATIENCE: Duration = Duration::from_millis(20);

impl<'a> MirrorRound<'a> {
    fn new(session: &'a Session, answers: &'a Receiver<CountedReply>, mirror: &'a Mirror) -> Self {
        Self {
            session,
            answers,
            mirror,
            next: 0,
            gathered: Vec::new(),
            directory_kind: DirectoryKind::Source,
            load: MessageLoad::default(),
            outstanding: HashMap::new(),
            removing: 0,
            extraneous: ExtraneousList::new(
                mirror.sources.config.selection.clone(),
                // A preview counts the same entries that the receiver counts when it removes them.
                mirror.removals.order.entries_max.is_some() || mirror.intent == Intent::Inspect,
            ),
            full: false,
            empty: HashMap::new(),
            emptied: None,
        }
    }

    /// Lists all sources, and asks the receiver for names that exist only at the target. Returns whether the sources
    /// are still the directories that were pushed.
    fn walk(&mut self) -> bool {
        let mut are_those_pushed = true;
        // Each walk of the sources counts these entries again.
        self.session
            .account
            .totals
            .counters
            .source_changed_kept
            .set(0);
        // The first walk has reported the entries that could not be read.
        let told = self.session.account.totals.scan_errors.get() > 0;
        let SourceWalk { roots, config } = &self.mirror.sources;
        let listings = SourceNames::of(roots, config.clone());
        for listing in listings {
            if self.session.in_flight.is_stopping() {
                return are_those_pushed;
            }
            match listing {
                Ok(listing) => self.keep(listing),
                Err(error @ (ScanError::RootReplaced { .. } | ScanError::MountGone { .. })) => {
                    self.session.account.fail(&FileError::OtherSource(error));
                    are_those_pushed = false;
                    break;
                }
                Err(_) if told => {}
                Err(error) => self.session.account.fail_scan(error),
            }
            while let Ok(answer) = self.answers.try_recv() {
                self.take(answer);
            }
        }
        self.settle();
        are_those_pushed
    }

    /// Waits until all requests are answered, including requests about extraneous directories.
    fn settle(&mut self) {
        self.ask();
        while !self.session.in_flight.is_stopping()
            && (self.extraneous.has_unlisted() || !self.outstanding.is_empty())
        {
            self.wait_until(|round| round.outstanding.len() < LISTINGS_OUTSTANDING_MAX);
            match self.extraneous.next_unlisted() {
                Some(ranges) => self.send(ranges, DirectoryKind::Extraneous),
                None => self.wait_until(|round| {
                    round.outstanding.is_empty() || round.extraneous.has_unlisted()
                }),
            }
        }
    }

    fn keep(
        &mut self,
        DirectoryNames {
            directory,
            names,
            changed,
            empty_source,
        }: DirectoryNames,
    ) {
        if self.mirror.removals.order.empty_sources == EmptySources::Refuse
            && let Some(source) = empty_source
        {
            self.empty.insert(directory.clone(), source);
        }
        let directory_kind = if changed {
            DirectoryKind::ChangedSource
        } else {
            DirectoryKind::Source
        };
        if directory_kind != self.directory_kind {
            self.ask();
            self.directory_kind = directory_kind;
        }
        let mut after = None;
        let mut rest = names.into_iter().peekable();
        loop {
            let mut piece = Vec::new();
            let mut bytes = directory.as_bytes().len();
            while piece.len() < LISTED_NAMES_MAX && bytes < LISTED_NAME_BYTES_MAX {
                let Some(name) = rest.next() else { break };
                bytes += name.as_bytes().len();
                piece.push(name);
            }
            let open = rest.peek().is_none();
            let last = piece.last().cloned();
            self.gather(
                NameRange {
                    directory: directory.clone(),
                    after,
                    names: piece,
                    open,
                },
                bytes,
            );
            if open {
                return;
            }
            after = last;
        }
    }

    fn gather(&mut self, range: NameRange, name_bytes: usize) {
        if self.full {
            return;
        }
        let names = self.load.names + range.names.len();
        if names > LISTED_NAMES_MAX || self.load.name_bytes + name_bytes > LISTED_NAME_BYTES_MAX {
            self.ask();
        }
        self.load.names += range.names.len();
        self.load.name_bytes += name_bytes;
        self.gathered.push(range);
        let full =
            self.gathered.len() >= GATHERED_RANGES_MAX || self.load.names >= GATHERED_NAMES_MAX;
        if full || self.load.name_bytes >= LISTED_NAME_BYTES_MAX / 4 {
            self.ask();
        }
    }

    /// Sends the gathered request, after waiting until fewer requests are outstanding than the limit.
    fn ask(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        self.wait_until(|round| round.outstanding.len() < LISTINGS_OUTSTANDING_MAX);
        let ranges = std::mem::take(&mut self.gathered);
        self.load = MessageLoad::default();
        self.send(ranges, self.directory_kind);
    }

    fn send(&mut self, ranges: Vec<NameRange>, directory_kind: DirectoryKind) {
        let number = self.next;
        self.next += 1;
        self.outstanding.insert(
            number,
            OpenRequest {
                ranges: ranges.clone(),
                directory_kind,
            },
        );
        self.session.in_flight.send(ToReceiver::Request(Request {
            number,
            question: Question::Extraneous(ranges),
        }));
    }

    fn wait_until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) && !self.session.in_flight.is_stopping() {
            match self.answers.recv_timeout(PATIENCE) {
                Ok(answer) => self.take(answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, reply: CountedReply) {
        match reply {
            CountedReply::Extraneous(request, names) => self.take_extra(request, names),
            CountedReply::Removed(entries) => {
                self.removing = self.removing.saturating_sub(1);
                self.session.account.totals.counters.removed.add(entries);
            }
            CountedReply::Hashes(..) => {}
        }
    }

    fn take_extra(
        &mut self,
        request: u64,
        ExtraneousNames {
            names,
            rest,
            faults,
        }: ExtraneousNames,
    ) {
        let Some(OpenRequest {
            ranges,
            directory_kind,
        }) = self.outstanding.remove(&request)
        else {
            return;
        };
        let directory = |range: u32| ranges.get(range as usize).map(|range| &range.directory);
        for (range, code) in faults {
            if let Some(path) = directory(range).cloned() {
                if directory_kind == DirectoryKind::Extraneous {
                    self.extraneous.spare(&path);
                }
                self.session.account.fail(&FileError::Receiver(Fault {
                    path,
                    operation: Operation::List,
                    code,
                }));
            }
        }
        for extra in names {
            // Names that were not requested are ignored.
            let asked = ranges
                .get(extra.range as usize)
                .filter(|range| range.is_extra(&extra.name));
            if let Some(range) = asked {
                let form = if extra.directory {
                    EntryForm::Directory
                } else {
                    EntryForm::File
                };
                let room = !self.full && !self.extraneous.is_full();
                let names = self.extraneous.names();
                self.full |=
                    !self
                        .extraneous
                        .add(&range.directory, extra.name, form, directory_kind, room);
                if self.emptied.is_none() && self.extraneous.names() > names {
                    self.emptied = self.empty.get(&range.directory).cloned();
                }
            }
        }
        if self.full && self.mirror.intent == Intent::Inspect {
            return;
        }
        let Some((number, after)) = rest else { return };
        let mut ranges = ranges.into_iter().skip(number as usize);
        let Some(mut first) = ranges
            .next()
            .filter(|range| range.after.as_ref().is_none_or(|a| *a < after))
        else {
            return;
        };
        first.names.retain(|name| *name > after);
        first.after = Some(after);
        let first = Some(first).filter(|first| first.open || !first.names.is_empty());
        self.send(first.into_iter().chain(ranges).collect(), directory_kind);
    }

    /// Takes as many extraneous entries as may still be removed in this run. These entries count as removed from now
    /// on. If the connection were lost, the sender would not know which of them the receiver has removed.
    fn take_extraneous(&mut self) -> TakenEntries {
        let totals = &self.session.account.totals;
        let before = totals.extraneous.get();
        let room = self
            .mirror
            .removals
            .order
            .entries_max
            .map(|max| max.saturating_sub(before));
        let taken = self.extraneous.take(room.unwrap_or(u64::MAX));
        totals.extraneous.add(taken.entries);
        totals.counters.max_delete_kept.add(taken.spared);
        totals.counters.source_changed_kept.add(taken.kept);
        taken
    }

    /// Requests the removal of the extraneous entries, or reports which would be removed.
    fn remove_extraneous(mut self) {
        if self.mirror.intent == Intent::Inspect {
            return self.list();
        }
        let mut groups = Vec::<RemoveGroup>::new();
        let mut load = MessageLoad::default();
        for ExtraneousEntries {
            directory, names, ..
        } in self.take_extraneous().extraneous
        {
            for (name, _) in names {
                if load.names >= REMOVE_NAMES_MAX || load.name_bytes >= REMOVE_NAME_BYTES_MAX {
                    self.remove(std::mem::take(&mut groups));
                    load = MessageLoad::default();
                }
                load.names += 1;
                load.name_bytes += name.as_bytes().len();
                match groups.last_mut() {
                    Some(group) if group.directory == directory => group.names.push(name),
                    _ => {
                        load.name_bytes += directory.as_bytes().len();
                        groups.push(RemoveGroup {
                            directory: directory.clone(),
                            names: vec![name],
                        });
                    }
                }
            }
        }
        self.remove(groups);
        self.wait_until(|round| round.removing == 0);
    }

    fn remove(&mut self, groups: Vec<RemoveGroup>) {
        if groups.is_empty() {
            return;
        }
        self.wait_until(|round| round.removing < REMOVES_OUTSTANDING_MAX);
        self.removing += 1;
        let remove = self.next;
        self.next += 1;
        self.session
            .in_flight
            .send(ToReceiver::Remove(Remove { remove, groups }));
    }

    fn list(&mut self) {
        if self.full {
            let message = "the preview lists only part of the entries that would be removed";
            self.session.account.warn(message.to_owned());
        }
        let TakenEntries {
            extraneous,
            entries,
            ..
        } = self.take_extraneous();
        self.session.account.totals.counters.removed.add(entries);
        for ExtraneousEntries {
            directory, names, ..
        } in extraneous
        {
            let change = |(name, form): (Name, EntryForm)| {
                let path = directory.join(&name).ok()?;
                Some(Change {
                    kind: ChangeKind::Removed,
                    path,
                    form,
                })
            };
            let changes: Vec<_> = names.into_iter().filter_map(change).collect();
            self.session.account.report(Event::Listed { changes });
        }
    }
}
