//! The queue of one batch's entries. Threads take the entries of a directory in runs of a few entries.
//!
//! A thread takes its next run from the same directory, unless fewer threads work in another directory. There are two
//! reasons: the kernel serializes the creation of files in a directory, and a thread must open each directory to which
//! it adds entries.

use std::sync::Arc;

use zmove_disk::Turn;
use zmove_types::{Lock, RelPath};
use zmove_wire::{BatchEntry, DirectoryGroup};

use crate::store::placer::side::SideDirectories;
use crate::store::target::open_directories::Opened;
use crate::store::transfer::Transfer;

/// The queued entries, by directory. See the module documentation.
pub(super) struct Runs<'d>(Lock<Vec<WaitingDirectory<'d>>>);

struct WaitingDirectory<'d> {
    path: Arc<RelPath>,
    files: DirectoryFiles,
    entries: std::vec::IntoIter<PlacedEntry<'d>>,
    threads: usize,
    side_directories: Arc<SideDirectories>,
    /// The open directory, if a thread is already placing entries in it.
    opened: Option<Opened>,
}

/// An entry that is being placed.
pub(super) struct PlacedEntry<'d> {
    /// Index of the entry in the batch.
    pub(super) number: u32,
    /// The contents without holes, if the entry is a file.
    pub(super) bytes: &'d [u8],
    pub(super) entry: BatchEntry,
}

/// A few entries of one directory, which one thread places.
pub(super) struct Run<'d> {
    group: usize,
    pub(super) path: Arc<RelPath>,
    pub(super) files: DirectoryFiles,
    pub(super) entries: Vec<PlacedEntry<'d>>,
    pub(super) side_directories: Arc<SideDirectories>,
    /// The open directory, if another thread has already opened it.
    pub(super) opened: Option<Opened>,
}

/// The files of a directory in one batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectoryFiles {
    pub(super) count: usize,
    /// Whether this is the last directory of the batch. If the batch was full, the next batch probably contains more
    /// files of this directory.
    pub(super) may_continue: bool,
}

impl DirectoryFiles {
    /// Returns whether a staging directory is useful. This is the case if there are enough files, or if the next batch
    /// probably has more of them. A staging directory cannot be created later, when the directory is already in use.
    pub(super) const fn is_worth_staging(self) -> bool {
        self.count >= STAGED_FILES_MIN || self.may_continue
    }
}

/// The turns (shares of CPU time) of a thread that places entries.
pub(super) struct PlacingTurns<'a> {
    pub(super) own: &'a Turn<'a>,
    /// The turn (permission to run) of the writer whose batch is being placed.
    pub(super) writer: &'a Turn<'a>,
}

impl PlacingTurns<'_> {
    /// Starts another writer if more work is queued. Otherwise starts another thread for this batch.
    pub(super) fn start_helper(&self, transfer: &Transfer) {
        let turn = if transfer.meter.has_queued() {
            self.writer
        } else {
            self.own
        };
        turn.start_helper();
    }
}

/// Minimum number of files for which a staging directory pays off.
const STAGED_FILES_MIN: usize = 8;

/// Maximum number of entries in one run. It is low, so that threads that start later find work, but high enough that
/// threads rarely compete for the lock.
const ENTRIES_PER_RUN: usize = 8;

impl<'d> Runs<'d> {
    /// Queues the entries of a batch. `data` contains the contents of the files, one after another.
    pub(super) fn new(groups: Vec<DirectoryGroup>, data: &'d [u8]) -> Self {
        let mut rest = data;
        let mut numbers = 0..;
        let last = groups.len().saturating_sub(1);
        let mut group = |(number, group): (usize, DirectoryGroup)| {
            let count = group
                .entries
                .iter()
                .filter(|entry| matches!(entry, BatchEntry::File(_)))
                .count();
            let entries: Vec<_> = numbers
                .by_ref()
                .zip(group.entries)
                .map(|(number, entry)| PlacedEntry {
                    number,
                    bytes: take_data(&entry, &mut rest),
                    entry,
                })
                .collect();
            WaitingDirectory {
                path: Arc::new(group.directory),
                files: DirectoryFiles {
                    count,
                    may_continue: number == last,
                },
                entries: entries.into_iter(),
                threads: 0,
                side_directories: Arc::default(),
                opened: None,
            }
        };
        Self(Lock::new(
            groups.into_iter().enumerate().map(&mut group).collect(),
        ))
    }

    /// Returns the next run for a thread. `done` is the run that this thread has just finished, if any.
    pub(super) fn next(&self, done: Option<Run<'_>>) -> Option<Run<'d>> {
        let last = done.as_ref().map(|done| done.group);
        self.finish_run(done);
        let mut groups = self.0.lock();
        let waiting = groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.entries.len() > 0);
        let (number, _) =
            waiting.min_by_key(|(number, group)| (group.threads, Some(*number) != last))?;
        let group = &mut groups[number];
        group.threads += 1;
        Some(Run {
            group: number,
            path: Arc::clone(&group.path),
            files: group.files,
            entries: group.entries.by_ref().take(ENTRIES_PER_RUN).collect(),
            side_directories: Arc::clone(&group.side_directories),
            opened: group.opened.clone(),
        })
    }

    /// Records that a thread has finished the run `done`.
    pub(super) fn finish_run(&self, done: Option<Run<'_>>) {
        if let Some(Run { group, .. }) = done {
            let group = &mut self.0.lock()[group];
            group.threads -= 1;
            if group.threads == 0 {
                group.opened = None;
            }
        }
    }

    /// Lets other threads use the directory that a thread has opened for `run`.
    pub(super) fn share(&self, run: &Run<'_>, opened: &Opened) {
        self.0.lock()[run.group].opened = Some(opened.clone());
    }
}

fn take_data<'d>(entry: &BatchEntry, data: &mut &'d [u8]) -> &'d [u8] {
    let BatchEntry::File(file) = entry else {
        return &[];
    };
    let (bytes, rest) = data.split_at(file.data_bytes());
    *data = rest;
    bytes
}
