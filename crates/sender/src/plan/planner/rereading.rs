//! Rereads directories that changed while the sources were walked.
//!
//! A walk may miss a file that is renamed during the walk: the new name appears after its directory was listed, and the
//! old name disappears before its directory is listed. A rename changes both directories. A walk therefore reads the
//! timestamps of each directory after its names. If any directory has changed since the walk began, another walk
//! follows once all entries found are at the target. It visits the entries of all changed directories and asks about
//! each file in them. Most of these files are already at the target.
//!
//! This is repeated up to [`REREADS_MAX`] times while directories change. After that, each directory that changed while
//! its names were read is in doubt. A file is missed without a report only if it is moved from one directory to another
//! during each of these walks.
//!
//! **Invariant:** nothing is removed at the target while a directory is in doubt.

use std::sync::Arc;

use zmove_scan::{Entry, EntryKind, ScanConfig, scan};

use super::{Inputs, Planner};
use crate::mirror::SourceWalk;
use crate::plan::requests::Requests;

/// Maximum number of walks after the first one.
const REREADS_MAX: usize = 4;

impl Planner<'_> {
    /// Rereads directories that have changed. Returns whether no directory is in doubt.
    pub(super) fn reread(&mut self, inputs: &mut Inputs<'_>) -> bool {
        let Some(SourceWalk { roots, config }) = &self.task.reread else {
            return true;
        };
        let Some(mut walked) = config.walk_record.clone() else {
            return true;
        };
        for _ in 0..REREADS_MAX {
            if !walked.has_changed() || self.session.in_flight.is_stopping() {
                return true;
            }
            self.settle(inputs);
            let again = Arc::new(walked.begin_reread());
            let config = ScanConfig {
                walk_record: Some(Arc::clone(&again)),
                reread: Some(walked),
                ..config.clone()
            };
            inputs.scan = Some(scan(roots.clone(), &config));
            let is_done = |planner: &Self| {
                planner.requests.as_ref().is_none_or(Requests::is_done) && planner.links.is_done()
            };
            self.plan_until(inputs, is_done);
            walked = again;
        }
        let unstable_directories = walked.unstable_directories();
        for path in &unstable_directories {
            self.session.account.report_unstable_directory(path);
        }
        unstable_directories.is_empty()
    }

    /// Waits until all planned entries are at the target, so that the receiver finds them when the planner asks about
    /// them again.
    fn settle(&mut self, inputs: &mut Inputs<'_>) {
        self.is_rereading = true;
        self.requests.get_or_insert_default();
        self.session.in_flight.withhold_end();
        self.session.in_flight.end_plan();
        let is_settled = |planner: &Self| {
            planner.session.in_flight.is_settled()
                && planner.session.account.totals.are_files_confirmed()
        };
        self.plan_until(inputs, is_settled);
    }

    /// Counts a file that a later walk has found again and that is sent.
    pub(super) fn count_found_again(&self, bytes: u64) {
        if self.is_rereading {
            self.session.account.find(1, bytes);
        }
    }

    /// Returns whether an entry is of a kind that is not sent.
    pub(super) fn is_left_out(&self, entry: &Entry) -> bool {
        match &entry.kind {
            EntryKind::Special(special) => !self.session.extras.kinds().has_any(special.kind()),
            EntryKind::File | EntryKind::Directory | EntryKind::Symlink(_) => false,
        }
    }

    pub(super) fn has_scan_errors(&self) -> bool {
        self.session.account.totals.scan_errors.get() > 0
    }
}
