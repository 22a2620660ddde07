//! Directories that changed while the sources were walked are read again.
//!
//! A walk may miss a file that is renamed meanwhile: the new name comes too late for the listing of its directory, and
//! the old one goes too early. A rename changes both directories. So a walk reads the times of each directory after its
//! names. If any had changed since the walk began, another walk follows when all that was found is at the target, and
//! visits the entries of all directories that have changed. It asks about each file in them, and most are there.
//!
//! That is repeated while directories change, [`REREADS_MAX`] times. Then each directory that has changed while its
//! names were read is in doubt. Only a file that is moved from one directory to another during each of these walks is
//! missed without a report.
//!
//! **Invariant:** nothing is removed at the target while a directory is in doubt.

use std::sync::Arc;

use zmove_scan::{Entry, EntryKind, ScanConfig, scan};

use super::{Inputs, Planner};
use crate::mirror::SourceWalk;
use crate::plan::requests::Requests;

/// The maximum number of walks after the first one.
const REREADS_MAX: usize = 4;

impl Planner<'_> {
    /// Reads directories again that have changed; returns whether none is in doubt.
    pub(super) fn reread(&mut self, inputs: &mut Inputs<'_>) -> bool {
        let Some(SourceWalk { roots, config }) = &self.task.reread else {
            return true;
        };
        let Some(mut walked) = config.first_walk.clone() else {
            return true;
        };
        for _ in 0..REREADS_MAX {
            if !walked.has_changed() || self.session.in_flight.is_stopping() {
                return true;
            }
            self.settle(inputs);
            let again = Arc::new(walked.begin_again());
            let config = ScanConfig {
                first_walk: Some(Arc::clone(&again)),
                reread: Some(walked),
                ..config.clone()
            };
            inputs.scan = Some(scan(roots.clone(), &config));
            let is_done = |planner: &Self| {
                planner.requests.as_ref().is_none_or(Requests::is_done) && planner.links.is_done()
            };
            self.take(inputs, is_done);
            walked = again;
        }
        let restless = walked.restless();
        for path in &restless {
            self.session.account.doubt(path);
        }
        restless.is_empty()
    }

    /// Waits until all that was planned is at the target, so that the receiver finds it there.
    fn settle(&mut self, inputs: &mut Inputs<'_>) {
        self.is_again = true;
        self.requests.get_or_insert_default();
        self.session.in_flight.withhold_end();
        self.session.in_flight.end_plan();
        let is_settled = |planner: &Self| {
            planner.session.in_flight.is_settled()
                && planner.session.account.totals.are_files_told()
        };
        self.take(inputs, is_settled);
    }

    /// Counts a file that a walk has found again and that is sent.
    pub(super) fn find_again(&self, bytes: u64) {
        if self.is_again {
            self.session.account.find(1, bytes);
        }
    }

    /// Whether an entry is of a kind that is not sent.
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
