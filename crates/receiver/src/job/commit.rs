//! The commit of a large file that several receivers have written, exactly once, by whichever is asked.
//!
//! ```text
//!  journals ──► a group missing? told          part there ──► metadata, flush ──► rename ──► parent flushed, recorded
//!     │                                        │                                  │ gone
//!     └──► the name has the inode of a part ◄──┴──────── looked at again ◄────────┘
//!          all groups of which count: it is committed
//! ```
//!
//! **Invariant:** a file gets its name only when each of its groups has been flushed by who wrote it into the very
//! inode that gets the name, as journals of this epoch say. Whoever comes second, or repeats an order whose answer was
//! lost, finds that inode under the name.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use zmove_disk::{FileIdentity, NewFiles, OVERTAKEN};
use zmove_types::{GROUP_BYTES, GroupSpan, Name, RelPath, Root};
use zmove_wire::limits::MISSING_RANGES_MAX;
use zmove_wire::{FaultCode, FileHead, JobResult, Operation};

use crate::job::journals;
use crate::job::session::JobSession;
use crate::quota::Quota;
use crate::resume::journal::{Committed, JobJournal, SourceVersion};
use crate::resume::parts::{shared_name, source_of};
use crate::store::failure::{ALREADY_THERE, Failure, failed_to};
use crate::store::large_files::came::Came;
use crate::store::target::keeper::At;
use crate::store::transfer::Transfer;

/// The groups that count, by the inodes that they were written to.
type Groups = HashMap<u64, Came>;

impl JobSession {
    /// Gives a file its name.
    pub(super) fn commit(
        &self,
        transfer: &Transfer,
        head: &FileHead,
        named: Option<Root>,
    ) -> Result<JobResult, Failure> {
        let path = transfer.target.final_path(head);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err((Operation::Rename, Errno::ISDIR.into()));
        };
        let source = source_of(head);
        let groups = self.groups(&path, &source, &transfer.quota).map_err(failed_to(Operation::Read))?;
        let directory =
            transfer.target.tree.ensure_directory(&parent).map_err(failed_to(Operation::MakeDirectory))?;
        self.epoch.check(&directory).map_err(failed_to(Operation::MakeDirectory))?;
        let committed = |inode| Committed { path: path.clone(), source, inode };
        let is_there = || {
            let there = FileIdentity::at(&directory, &name).ok()?;
            let is_it = there.regular && there.bytes == head.bytes;
            let came = groups.get(&there.inode).filter(|_| is_it)?;
            missing(head, came).is_empty().then_some(there.inode)
        };
        if let Some(inode) = is_there() {
            return self.record(transfer, &directory, committed(inode));
        }
        let part_name = shared_name(&path, &source);
        let found = self.epoch.find_part(&part_name).map_err(failed_to(Operation::Create))?;
        let Some(part) = found else {
            return match is_there() {
                Some(inode) => self.record(transfer, &directory, committed(inode)),
                None => {
                    self.check(Operation::Rename)?;
                    // one that is all holes has to be begun as well
                    Ok(match missing(head, &Came::new(&transfer.quota)) {
                        none if none.is_empty() => {
                            JobResult::Failed(Operation::Verify, FaultCode::Incomplete)
                        }
                        missing => JobResult::Missing(missing),
                    })
                }
            };
        };
        let inode = FileIdentity::of(&part).map_err(failed_to(Operation::Read))?.inode;
        let nothing = Came::new(&transfer.quota);
        let came = groups.get(&inode).unwrap_or(&nothing);
        let missing = missing(head, came);
        if !missing.is_empty() {
            return Ok(JobResult::Missing(missing));
        }
        if let (Some(named), Some(found)) = (named, came.root(head.bytes))
            && named != found
        {
            return Ok(JobResult::Failed(Operation::Verify, FaultCode::OtherRoot));
        }
        finish(transfer, (&part, head), &directory, (&path, &name))?;
        if transfer.target.may_not_be_replaced(&directory, &name, head.metadata.mtime) {
            let (operation, code) = ALREADY_THERE;
            return Ok(JobResult::Failed(operation, code));
        }
        let replace = transfer.target.rules.replaces();
        match self.epoch.publish_part(&part_name, (&directory, &name), replace) {
            Ok(()) => {
                let path = || Some(head.path.clone());
                transfer.stored(head.bytes, path, named.or_else(|| came.root(head.bytes)));
            }
            Err(error) => {
                // Another was first, perhaps this one itself, whose request was repeated by a server.
                let has_it = FileIdentity::at(&directory, &name).is_ok_and(|there| there.inode == inode);
                if !has_it {
                    let is_gone = matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::STALE));
                    let error = if is_gone && self.epoch.is_overtaken() { OVERTAKEN.into() } else { error };
                    return Err((Operation::Rename, error));
                }
            }
        }
        self.record(transfer, &directory, committed(inode))
    }

    /// The groups of a file that count in this epoch.
    fn groups(&self, path: &RelPath, source: &SourceVersion, quota: &Quota) -> io::Result<Groups> {
        let mut groups = Groups::new();
        let is_wanted = |other: &RelPath, version: &SourceVersion| other == path && version == source;
        let take = |journal: JobJournal| {
            for file in journal.files {
                let came = groups.entry(file.part.inode).or_insert_with(|| Came::new(quota));
                for (index, (cv, is_flushed)) in file.groups {
                    if is_flushed {
                        came.note(index, cv).map_err(|_over_limit| Errno::NOMEM)?;
                    }
                }
            }
            Ok(())
        };
        let epoch = |epoch| epoch == self.number;
        journals::read(self.directory.fd(), epoch, is_wanted, |_end| Ok(()), take)?;
        Ok(groups)
    }

    /// Flushes the directory in which a file has its name, and records that it has.
    fn record(
        &self,
        transfer: &Transfer,
        directory: &OwnedFd,
        committed: Committed,
    ) -> Result<JobResult, Failure> {
        let inode = committed.inode;
        let recorded = || -> io::Result<()> {
            rustix::fs::fsync(directory)?;
            transfer.target.file_systems.flush_to_the_end()?;
            transfer.parts.record_work(|journal| journal.committed(committed))
        };
        recorded().map_err(failed_to(Operation::Flush))?;
        Ok(JobResult::Committed { inode })
    }
}

/// Gives a part all its metadata, before it has its name.
fn finish(
    transfer: &Transfer,
    (part, head): (&File, &FileHead),
    directory: &OwnedFd,
    (path, name): (&RelPath, &Name),
) -> Result<(), Failure> {
    let metadata = transfer.target.rules.of_file(&head.metadata);
    let parent = path.parent().unwrap_or_else(RelPath::root);
    let made = (part, &NewFiles::default(), directory);
    transfer.target.set_new_metadata(made, &metadata, At(&parent, Some(name)))?;
    transfer.target.file_systems.note(directory.as_fd()).map_err(failed_to(Operation::Flush))?;
    part.sync_all().map_err(failed_to(Operation::Flush))
}

/// The groups with data that do not count, in ranges. A file may have a thousand million groups: only those are gone
/// through that count.
fn missing(head: &FileHead, came: &Came) -> Vec<(u32, u32)> {
    let mut counted: Vec<_> = came.values.keys().copied().collect();
    counted.sort_unstable();
    let mut counted = counted.into_iter().peekable();
    let mut ranges = Vec::new();
    for wanted in wanted(head) {
        let mut next = wanted.start;
        while next < wanted.end && ranges.len() < MISSING_RANGES_MAX {
            while counted.next_if(|index| *index < next).is_some() {}
            let end = counted.peek().copied().unwrap_or(wanted.end).min(wanted.end);
            if end > next {
                ranges.push((next, end - next));
            }
            next = end.saturating_add(1);
        }
    }
    ranges
}

/// The groups with data, in ascending ranges that do not overlap.
fn wanted(head: &FileHead) -> Vec<Range<u32>> {
    let groups = GroupSpan::count(head.bytes).unwrap_or(0);
    let Some(data) = &head.data else { return std::iter::once(0..groups).collect() };
    let group = |offset: u64| u32::try_from(offset / GROUP_BYTES).unwrap_or(groups);
    let mut wanted: Vec<Range<u32>> = Vec::new();
    for range in data.ranges().iter().filter(|range| !range.is_empty()) {
        let (first, end) = (group(range.start), group(range.end - 1) + 1);
        match wanted.last_mut() {
            Some(last) if first <= last.end => last.end = end,
            _ => wanted.push(first..end),
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use zmove_types::{Cv, DataRanges, Metadata, Timestamp};

    fn missing_of(groups: u64, data: Option<&[Range<u64>]>, counted: &[u32]) -> Vec<(u32, u32)> {
        let bytes = groups * GROUP_BYTES;
        let data = data.map(|ranges| Arc::new(DataRanges::new(bytes, ranges.to_vec()).unwrap()));
        let path = RelPath::from_bytes(b"f").unwrap();
        let (metadata, ctime) = (Metadata::default(), Timestamp::default());
        let head = FileHead { path, metadata, bytes, ctime, inode: 0, data };
        let mut came = Came::new(&Quota::default());
        counted.iter().for_each(|index| came.note(*index, Cv([0; 32])).unwrap());
        missing(&head, &came)
    }

    #[test]
    fn groups_that_do_not_count_are_told_in_ranges() {
        assert_eq!(missing_of(5, None, &[]), [(0, 5)]);
        assert_eq!(missing_of(5, None, &[0, 2, 4]), [(1, 1), (3, 1)]);
        assert_eq!(missing_of(5, None, &[1, 2]), [(0, 1), (3, 2)]);
        assert_eq!(missing_of(5, None, &[4, 3, 2, 1, 0]), []);
        // nobody counts to the end of it
        assert_eq!(missing_of(4_000_000_000, None, &[7]), [(0, 7), (8, 3_999_999_992)]);
        let every_other: Vec<_> = (0..5000).map(|index| 2 * index).collect();
        assert_eq!(missing_of(10_000, None, &every_other).len(), MISSING_RANGES_MAX);
    }

    #[test]
    fn groups_of_holes_are_not_missed() {
        let data = [5..6, 7..8, 2 * GROUP_BYTES - 1..2 * GROUP_BYTES + 1, 9 * GROUP_BYTES..10 * GROUP_BYTES];
        assert_eq!(missing_of(20, Some(&data), &[]), [(0, 3), (9, 1)]);
        assert_eq!(missing_of(20, Some(&data), &[0, 1, 9]), [(2, 1)]);
        assert_eq!(missing_of(20, Some(&[]), &[]), []);
    }
}
