//! Applies the selection to the names of one directory during a walk.
//!
//! **Invariant:** if there is no selection, no name is copied, matched or counted.

use std::ffi::CStr;

use crate::directory::Directory;
use crate::entry::{Entry, EntryKind};
use crate::selection::{Effect, PathKind, RuleEffect, Selection};

/// A filter for the entries of one directory.
#[derive(Debug)]
pub(crate) struct DirectoryFilter<'a> {
    selection: Option<&'a Selection>,
    directory: &'a Directory,
    /// A buffer for the target path of a name, reused for each name.
    path: Vec<u8>,
    matches: Vec<usize>,
    /// The effect of the rules on the last name that was checked.
    answer: RuleEffect,
    /// The number of excluded entries.
    pub(crate) left_out: u64,
}

impl<'a> DirectoryFilter<'a> {
    pub(crate) fn new(selection: Option<&'a Selection>, directory: &'a Directory) -> Self {
        let answer = RuleEffect {
            directory: Effect::Include,
            other: Effect::Include,
        };
        Self {
            selection,
            directory,
            path: Vec::new(),
            matches: Vec::new(),
            answer,
            left_out: 0,
        }
    }

    /// Returns whether `name` must be looked up. This is the case if the rules include the name for at least one kind
    /// of entry.
    pub(crate) fn may_admit(&mut self, name: &CStr) -> bool {
        let Some(selection) = self.selection.filter(|selection| selection.has_rules()) else {
            return true;
        };
        self.directory
            .write_target_of(name.to_bytes(), &mut self.path);
        self.answer = selection.match_rules(&self.path, &mut self.matches);
        selection.record_matches(&self.matches);
        let wanted = self.answer
            != RuleEffect {
                directory: Effect::Exclude,
                other: Effect::Exclude,
            };
        self.left_out += u64::from(!wanted);
        wanted
    }

    /// Returns whether the entry is included. Its name must be the last name that was checked.
    pub(crate) fn admits(&mut self, entry: &Entry) -> bool {
        let Some(selection) = self.selection else {
            return true;
        };
        let kind = match entry.kind {
            EntryKind::Directory => PathKind::Directory,
            _ => PathKind::Other,
        };
        let size_fits = entry.kind != EntryKind::File || selection.admits_size(entry.size);
        let wanted = self.answer.of(kind) == Effect::Include && size_fits;
        self.left_out += u64::from(!wanted);
        wanted
    }
}
