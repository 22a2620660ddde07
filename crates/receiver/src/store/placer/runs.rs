//! The entries of one batch that wait for a thread to place them, in runs of one directory.
//!
//! A thread stays with its directory as long as no other directory has fewer threads: the kernel makes files in one
//! directory one after the other, and each thread opens the directories that it puts something into.

use std::sync::Arc;

use zmove_types::RelPath;
use zmove_wire::{BatchEntry, DirectoryGroup};

use crate::store::placer::side::SideDirectories;
use crate::store::target::open_directories::Opened;
use zmove_types::Lock;

/// The entries that wait, by directory; see the module.
pub(super) struct Runs<'d>(Lock<Vec<WaitingDirectory<'d>>>);

struct WaitingDirectory<'d> {
    path: Arc<RelPath>,
    files: DirectoryFiles,
    entries: std::vec::IntoIter<PlacedEntry<'d>>,
    threads: usize,
    side_directories: Arc<SideDirectories>,
    /// The directory, as long as a thread has it open.
    opened: Option<Opened>,
}

/// An entry that is being placed.
pub(super) struct PlacedEntry<'d> {
    /// The entry's number in the batch.
    pub(super) number: u32,
    /// The contents, or what there is of them beside holes, where the entry is a file.
    pub(super) bytes: &'d [u8],
    pub(super) entry: BatchEntry,
}

/// Entries of one directory for one thread.
pub(super) struct Run<'d> {
    group: usize,
    pub(super) path: Arc<RelPath>,
    pub(super) files: DirectoryFiles,
    pub(super) entries: Vec<PlacedEntry<'d>>,
    pub(super) side_directories: Arc<SideDirectories>,
    /// The directory, where another thread has it open.
    pub(super) opened: Option<Opened>,
}

/// The files of a directory that came in one batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectoryFiles {
    pub(super) count: usize,
    /// Whether it is the last directory of the batch: the batch was full there, so that others of its files are likely
    /// to follow.
    pub(super) may_go_on: bool,
}

impl DirectoryFiles {
    /// Whether they are as many as a staging directory pays for, or are likely to be with those that follow: these find
    /// a directory in use where it was not begun for the first.
    pub(super) const fn are_many(self) -> bool {
        self.count >= TOGETHER_FILES_MIN || self.may_go_on
    }
}

/// The least number of files for which a staging directory pays.
const TOGETHER_FILES_MIN: usize = 8;

/// The entries of one run: few, so that threads that join in find something to do, and enough that a thread seldom has
/// to look for more.
const ENTRIES_PER_RUN: usize = 8;

impl<'d> Runs<'d> {
    /// The entries of these groups; the contents of the files stand one after the other in `data`.
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
                    may_go_on: number == last,
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

    /// The next entries for a thread that has placed those of `done`.
    pub(super) fn next(&self, done: Option<Run<'_>>) -> Option<Run<'d>> {
        let last = done.as_ref().map(|done| done.group);
        self.leave(done);
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

    /// Notes that a thread has placed these entries.
    pub(super) fn leave(&self, done: Option<Run<'_>>) {
        if let Some(Run { group, .. }) = done {
            let group = &mut self.0.lock()[group];
            group.threads -= 1;
            if group.threads == 0 {
                group.opened = None;
            }
        }
    }

    /// Has other threads use a directory that one has opened for a run.
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
