//! The planner of an inspection, which passes the entries of the scan to a [`Listing`] and plans nothing.

use crossbeam_channel::{Receiver, RecvError, never};
use zmove_scan::{Entry, HardLinkedFile, Scan};

use super::{Inputs, Planner, Task};
use crate::control::replies::{CountedReply, QueuedReply, Replies};
use crate::inspect::hashing::{HashResult, Hashing};
use crate::inspect::listing::Listing;
use crate::mirror;
use crate::plan::links::{FirstName, NamePlan};
use crate::plan::pack::{PackEntry, PackSizes, Packer};
use crate::push::session::Session;
use crate::read::source::SourceDirectory;

/// Asks the receiver about every entry that the scan finds, and lists the changes until every request is answered. For
/// a mirror, then lists the entries that would be removed. If `hashing` is given, also verifies the contents of files.
pub(crate) fn inspect_all(
    session: &Session,
    scan: &Scan,
    replies: &Replies,
    task: &Task,
    hashing: Option<Hashing>,
) {
    // No request is sent before the receiver has opened the session and reported the state of its target.
    if replies.entries.recv().map(QueuedReply::take).is_err() {
        return;
    }
    let mut planner = Planner {
        listing: Some(Listing::new(session, task.mirror.is_some(), hashing)),
        ..Planner::new(session, task, Packer::new(PackSizes::LocalCopy))
    };
    let mut inputs = Inputs {
        replies,
        scan: Some(scan.clone()),
        unread: None,
    };
    planner.plan_until(&mut inputs, |planner| {
        planner.listing.as_ref().is_none_or(Listing::is_done)
    });
    if let Some(mirror) = &task.mirror {
        mirror::run(session, &replies.counted, mirror);
    }
    session.in_flight.end_plan();
}

impl Planner<'_> {
    /// Returns the channel on which this side's hashing threads deliver their results in a verification.
    pub(super) fn own_hashes(&self) -> Receiver<HashResult> {
        self.listing.as_ref().map_or_else(never, Listing::done)
    }

    pub(super) fn handle_own_hashes(&mut self, done: Result<HashResult, RecvError>) {
        if let Some(listing) = &mut self.listing
            && let Ok(done) = done
        {
            listing.handle_hash_result(done);
        }
    }

    pub(super) fn handle_hashes(&mut self, reply: CountedReply) {
        if let Some(listing) = &mut self.listing
            && let CountedReply::Hashes(request, hashes) = reply
        {
            listing.handle_hashes(request, hashes);
        }
    }

    pub(super) fn plan_itself(&mut self, directory: &SourceDirectory, itself: PackEntry) {
        match &mut self.listing {
            Some(listing) => listing.add(directory, itself),
            None => self.pack(directory, itself),
        }
    }

    /// Asks the receiver about an entry in the form in which the entry would be sent. Assumes that the first name of a
    /// file with several names arrives immediately.
    pub(super) fn list_entry(
        &mut self,
        directory: &SourceDirectory,
        entry: Entry,
        shared: Option<HardLinkedFile>,
    ) {
        let Some(listing) = &mut self.listing else {
            return;
        };
        let Some(shared) = shared else {
            return listing.add(directory, PackEntry::Within(entry));
        };
        let what = match self.links.take(directory, entry.clone(), shared) {
            NamePlan::File(entry) => {
                let path = directory.target_of(&entry.name);
                let first = FirstName { path, root: None };
                self.links.note_first_published(shared.id, first);
                PackEntry::Within(entry)
            }
            NamePlan::Link(entry, first) => PackEntry::Link(entry, first),
            NamePlan::Copy(entry, _) => PackEntry::Within(entry),
            NamePlan::Waits => PackEntry::Within(entry),
        };
        listing.add(directory, what);
    }
}
