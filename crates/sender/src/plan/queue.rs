//! The work that waits for readers: packs of small entries, groups of large files, and work to send again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zmove_chunk::{Plan, Work};
use zmove_scan::Entry;
use zmove_types::{FileId, GroupSpan};

use crate::plan::pack::{Pack, PlanBasis};
use crate::read::read_ahead::ReadPack;
use crate::read::source::{LargeSource, SourceDirectory};
use crate::send::in_flight::InFlight;

/// The plan. Each unit of work is recorded as begun before a reader can take it.
pub(crate) struct Queue {
    pub(crate) plan: Plan<Parcel, Arc<LargeSource>>,
    in_flight: Arc<InFlight>,
    next_file: AtomicU64,
}

/// A waiting pack.
#[derive(Debug)]
pub(crate) enum Parcel {
    Unread(Pack),
    /// A pack that was read ahead.
    Read(Box<ReadPack>),
    /// Files already at the target, which are read for the manifest.
    Listed(Vec<(SourceDirectory, Entry)>),
}

/// Whether to wait for room in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoomWait {
    /// Wait, because the scan can pause.
    Wait,
    /// Do not wait. The caller is a reader, and a reader that waited for other readers could block forever.
    Skip,
}

impl Queue {
    pub(crate) fn new(in_flight: Arc<InFlight>) -> Self {
        let plan = Plan::new(ENTRIES_WAITING_MAX, FILES_WAITING_MAX);
        Self {
            plan,
            in_flight,
            next_file: AtomicU64::new(0),
        }
    }

    /// Creates a large file with a new ID, without adding the file to the plan.
    pub(crate) fn large_source(&self, directory: &SourceDirectory, entry: Entry) -> LargeSource {
        let id = FileId(self.next_file.fetch_add(1, Ordering::Relaxed));
        LargeSource::new(id, directory, entry)
    }

    /// Adds a pack. Waits while the plan is full.
    pub(crate) fn add_pack(&self, mut pack: Pack) {
        if self.plan.packs_waiting() > PACKS_OPEN_MAX {
            pack.close_directories();
        }
        let entries = pack.entry_count();
        self.add(Parcel::Unread(pack), entries);
    }

    /// Adds files that are already at the target. Waits while the plan is full.
    pub(crate) fn add_listed(&self, files: Vec<(SourceDirectory, Entry)>) {
        let entries = files.len();
        self.add(Parcel::Listed(files), entries);
    }

    fn add(&self, parcel: Parcel, entries: usize) {
        self.in_flight.begin(1);
        if self.plan.push_pack(parcel, entries).is_err() {
            self.in_flight.end_work();
        }
    }

    /// Adds a large file.
    pub(crate) fn add_file(&self, file: LargeSource, wait: RoomWait) {
        let file = Arc::new(file);
        let bytes = file.entry.size;
        let groups = file.groups();
        self.in_flight
            .begin_file(Arc::clone(&file), u64::from(groups.count()));
        match wait {
            RoomWait::Wait => drop(self.plan.push_file(file, bytes, groups)),
            RoomWait::Skip => self.plan.push_file_again(file, bytes),
        }
    }

    /// Adds a pack without waiting, for entries that turned out to be needed.
    pub(crate) fn add_now(&self, parcel: Parcel) {
        self.in_flight.begin(1);
        self.plan.push_again(Work::Pack(parcel));
    }

    /// Adds a pack to send again. The pack must already be recorded as begun.
    pub(crate) fn repeat_pack(&self, pack: Pack) {
        self.plan.push_again(Work::Pack(Parcel::Unread(pack)));
    }

    /// Adds a group to send again. The group must already be recorded as begun, unless it is the second copy of a late
    /// group.
    pub(crate) fn repeat_group(&self, file: Arc<LargeSource>, span: GroupSpan) {
        self.plan.push_again(Work::Group(file, span));
    }

    /// Removes all groups of a file before the group with this index from the plan, because they are a hole.
    pub(crate) fn skip_groups(&self, file: &Arc<LargeSource>, index: u32) {
        let skipped = self
            .plan
            .skip_groups(|planned| Arc::ptr_eq(planned, file), index);
        self.in_flight.skip_work(skipped);
    }

    /// Takes back the packs that were to be read ahead and have not been read yet.
    pub(crate) fn take_back_read_ahead(&self) -> Vec<Pack> {
        let is_read_ahead = |parcel: &Parcel| matches!(parcel, Parcel::Unread(pack) if pack.basis == PlanBasis::ReadAhead);
        let taken = self.plan.take_back(is_read_ahead);
        taken.iter().for_each(|_parcel| self.in_flight.end_work());
        let packs = taken.into_iter().filter_map(|parcel| match parcel {
            Parcel::Unread(pack) => Some(pack),
            Parcel::Read(_) | Parcel::Listed(_) => None,
        });
        packs.collect()
    }

    /// Records that the scan and the requests are complete.
    pub(crate) fn end(&self) {
        self.plan.end();
        self.in_flight.end_plan();
    }
}

/// Maximum number of small entries that wait to be read. The scan may be ahead of the readers by this number of
/// entries, which bridges pauses of the scan and shows the user early how large the push is. Maximum memory: about 200
/// bytes plus the name for each entry.
pub(crate) const ENTRIES_WAITING_MAX: usize = 262_144;
/// Maximum number of waiting packs that hold their directories open.
const PACKS_OPEN_MAX: usize = 16;
/// Maximum number of waiting large files: enough to find the largest files early, and few enough to use little memory.
pub(crate) const FILES_WAITING_MAX: usize = 65_536;
