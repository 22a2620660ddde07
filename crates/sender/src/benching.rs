//! The part of this crate that `benches/plan.rs` measures: turning scanned entries into packs and groups, and passing
//! them through the plan.
//!
//! The program never calls these functions, so they are not in its binary.

use std::sync::Arc;
use std::thread;

use zmove_chunk::{Groups, Plan, Work};
use zmove_scan::EntryBatch;
use zmove_types::{FileId, GROUP_BYTES};

use crate::plan::pack::{Pack, PackEntry, PackSizes, Packer};
use crate::plan::queue::{ENTRIES_WAITING_MAX, FILES_WAITING_MAX};
use crate::read::source::{LargeSource, SourceDirectory};

/// The work that a reader has taken from the plan.
#[derive(Debug, Default)]
pub struct Planned {
    packs: Vec<Pack>,
    groups: u64,
}

impl Planned {
    /// Returns the number of small entries in all packs.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.packs.iter().map(Pack::entry_count).sum()
    }

    /// Returns the number of groups of large files.
    #[must_use]
    pub fn groups(&self) -> u64 {
        self.groups
    }
}

/// Plans entries that are all needed, while one reader takes the work.
///
/// # Panics
/// Panics if the reader panics.
#[must_use]
pub fn plan(batches: Vec<EntryBatch>) -> Planned {
    let plan = Plan::new(ENTRIES_WAITING_MAX, FILES_WAITING_MAX);
    thread::scope(|scope| {
        let reader = scope.spawn(|| take_all(&plan));
        fill(&plan, batches);
        plan.end();
        reader
            .join()
            .expect("nothing in a plan makes a reader panic")
    })
}

fn fill(plan: &Plan<Pack, Arc<LargeSource>>, batches: Vec<EntryBatch>) {
    let mut packer = Packer::new(PackSizes::ForLanes);
    let push = |pack: Pack| {
        let entries = pack.entry_count();
        plan.push_pack(pack, entries)
            .expect("the plan has not ended");
    };
    let mut ids = (0..).map(FileId);
    for batch in batches {
        let directory = SourceDirectory::held_open(&batch.directory);
        for entry in batch.entries {
            if entry.size > GROUP_BYTES {
                let id = ids.next().expect("there are fewer files");
                let bytes = entry.size;
                let source = Arc::new(LargeSource::new(id, &directory, entry));
                plan.push_file(source, bytes, Groups::all(bytes))
                    .expect("the plan has not ended");
            } else {
                packer
                    .add(&directory, PackEntry::Within(entry))
                    .into_iter()
                    .for_each(push);
            }
        }
    }
    packer.take().into_iter().for_each(push);
}

fn take_all(plan: &Plan<Pack, Arc<LargeSource>>) -> Planned {
    let mut planned = Planned::default();
    while let Some(work) = plan.take(|ended| ended) {
        match work {
            Work::Pack(pack) => planned.packs.push(pack),
            Work::Group(..) => planned.groups += 1,
        }
    }
    planned
}
