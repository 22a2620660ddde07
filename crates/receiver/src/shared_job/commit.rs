//! Commits a large file that several receivers have written. A file is committed exactly once, by the receiver that
//! gets the sender's order. A *part* is the temporary file that holds the received groups.
//!
//! ```text
//!  part ─┬─ committed ────────────────────────────────────────────────────────────────────────┐
//!        ├─ exists ──► a group missing? reported ──► mark set ──► metadata, flush ──► rename ─┴─► parent flushed
//!        ├─ given up for lack of space ──► reported
//!        └─ not begun ──► all groups are reported as missing
//! ```
//!
//! **Invariant:** a file is renamed into place only if the journals of the job list each of its groups as flushed into
//! exactly this part. A part is created only once in a job. Before the rename, a mark (a marker file) replaces the
//! name of the part. A second receiver may commit the file, or an order may be repeated because its answer was lost.
//! In these cases, [`JobSession::find_part`](zmove_disk::JobSession) finds the mark, and also the part until it is
//! renamed. A part that has been renamed is never found again, because other users may have changed the file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use zmove_disk::{FileIdentity, NameAt, NewFiles, PartState};
use zmove_types::{Counters, GROUP_BYTES, GroupSpan, Name, RelPath};
use zmove_wire::limits::MISSING_RANGES_MAX;
use zmove_wire::{FaultCode, FileHead, GroupRange, Operation, SharedJobResult};

use crate::resume::parts::shared::shared_name;
use crate::resume::parts::source_of;
use crate::shared_job::flush_file_systems;
use crate::shared_job::groups::PartKey;
use crate::shared_job::session::SharedJobSession;
use crate::store::failure::{
    Failure, FaultCause, KEPT_EXISTING, with_entry_operation, with_operation,
};
use crate::store::large_files::received_hashes::ReceivedHashes;
use crate::store::target::metadata_policy::EntryLocation;
use crate::store::target::tree::NewFile;
use crate::store::transfer::Transfer;

/// A large file to commit, and the directory and names that the commit needs.
struct Commit<'a> {
    head: &'a FileHead,
    parent: RelPath,
    directory: Arc<OwnedFd>,
    name: Name,
    part: Name,
}

impl SharedJobSession {
    /// Commits a large file that several receivers have written: renames it into place if all groups were received.
    pub(crate) fn commit(
        &self,
        transfer: &Transfer,
        head: &FileHead,
    ) -> Result<SharedJobResult, Failure> {
        let path = transfer.target.final_path(head);
        let Some((parent, name)) = path.split() else {
            return Err((Operation::Rename, Errno::ISDIR.into()));
        };
        if let Err(failed) = self.flush_parts(transfer) {
            self.check(Operation::Rename)?;
            return Err(failed);
        }
        let directory = transfer
            .target
            .tree
            .ensure_directory(&parent)
            .map_err(with_entry_operation(&transfer.target.tree, &parent))?;
        self.session
            .check_device(&directory)
            .map_err(with_operation(Operation::MakeDirectory))?;
        let place = Commit {
            head,
            part: shared_name(&path, &source_of(head)),
            parent,
            directory,
            name,
        };
        match self
            .session
            .find_part(&place.part)
            .map_err(with_operation(Operation::Read))?
        {
            PartState::Committed => self.committed(transfer, &place),
            PartState::GivenUp { errno } => {
                self.check(Operation::Write)?;
                Err(given_up(errno))
            }
            PartState::Part(part) => self.publish(transfer, &place, &part),
            PartState::Nothing => {
                self.check(Operation::Rename)?;
                let missing = missing(head, None);
                // A file that consists only of holes needs a part too. Without a part, the file is reported as
                // incomplete.
                Ok(if missing.is_empty() {
                    SharedJobResult::Failed(Operation::Verify, FaultCode::Incomplete)
                } else {
                    SharedJobResult::Missing(missing)
                })
            }
        }
    }

    /// Renames a part (the temporary file that holds the received groups) into place if all of its groups have been
    /// flushed.
    fn publish(
        &self,
        transfer: &Transfer,
        place: &Commit<'_>,
        part: &File,
    ) -> Result<SharedJobResult, Failure> {
        let inode = FileIdentity::of(part)
            .map_err(with_operation(Operation::Read))?
            .inode;
        let key = (place.part.clone(), inode);
        let missing = self
            .missing_of(place.head, &key)
            .map_err(with_operation(Operation::Read))?;
        if !missing.is_empty() {
            let not_whole = SharedJobResult::Missing(missing);
            return self.unless_committed(transfer, place, Ok(not_whole));
        }
        let Commit {
            head,
            directory,
            name,
            ..
        } = place;
        // After `retire_part`, no other job can take over the part. A session of this job that still writes to the part
        // restores the modification time.
        let lease = transfer.target.tree.lease();
        let permit = lease.permit();
        drop(permit.map_err(|error| (Operation::SetMetadata, error.into()))?);
        self.session
            .retire_part(&place.part, part)
            .map_err(with_operation(Operation::Rename))?;
        finish(transfer, part, place)?;
        let mtime = head.metadata.mtime;
        if transfer.target.may_not_be_replaced(directory, name, mtime) {
            let FaultCause { operation, code } = KEPT_EXISTING;
            return Ok(SharedJobResult::Failed(operation, code));
        }
        let replace = transfer.target.view.policy.rules.replaces();
        let to: NameAt<'_> = NameAt::new(directory, name);
        if let Err(error) = self
            .session
            .publish_part(lease, &place.part, part, to, replace)
        {
            return self.unless_committed(transfer, place, Err((Operation::Rename, error)));
        }
        // The file is not counted here, because the sender that has ordered the commit counts it.
        let counters = Counters::default();
        transfer.stored(head.bytes, &counters, || Some(head.path.clone()), None);
        self.committed(transfer, place)
    }

    /// Returns `answer`, the result of a failed commit. If another receiver has committed or given up the file in the
    /// meantime, returns that result instead.
    fn unless_committed(
        &self,
        transfer: &Transfer,
        place: &Commit<'_>,
        answer: Result<SharedJobResult, Failure>,
    ) -> Result<SharedJobResult, Failure> {
        match self.session.find_part(&place.part) {
            Ok(PartState::Committed) => self.committed(transfer, place),
            Ok(PartState::GivenUp { errno }) => Err(given_up(errno)),
            _ => answer,
        }
    }

    /// Flushes the directory that contains the committed file, and returns the answer for the sender.
    fn committed(
        &self,
        transfer: &Transfer,
        place: &Commit<'_>,
    ) -> Result<SharedJobResult, Failure> {
        self.groups.lock().forget(&place.part);
        let flushed = transfer.target.file_systems.flush_entry(&place.directory);
        flushed
            .and_then(|()| flush_file_systems(transfer))
            .map_err(with_operation(Operation::Flush))?;
        Ok(SharedJobResult::Done)
    }

    /// Returns the groups that the journals do not list as flushed into this part (temporary file).
    fn missing_of(&self, head: &FileHead, part: &PartKey) -> io::Result<Vec<GroupRange>> {
        let mut groups = self.groups.lock();
        groups.read_new_records(self.directory.fd(), &self.session)?;
        Ok(missing(head, groups.of(part)))
    }
}

/// Returns the failure to report for a file that a receiver has given up after a write error.
fn given_up(errno: i32) -> Failure {
    (Operation::Write, io::Error::from_raw_os_error(errno))
}

/// Sets all metadata of a part before it is renamed into place.
fn finish(transfer: &Transfer, part: &File, place: &Commit<'_>) -> Result<(), Failure> {
    let named = NameAt::new(&place.directory, &place.name);
    let metadata = transfer.target.of_file(named, &place.head.metadata);
    let made = NewFile {
        file: part,
        new_files: &NewFiles::default(),
        directory: &place.directory,
    };
    // The lease is checked again. If this session was suspended for a long time, another receiver may have renamed the
    // part into place.
    let permit = transfer.target.tree.lease().permit();
    let permit = permit.map_err(|error| (Operation::SetMetadata, error.into()))?;
    transfer.target.set_new_metadata(
        permit,
        made,
        &metadata,
        EntryLocation(&place.parent, Some(&place.name)),
    )?;
    transfer
        .target
        .file_systems
        .note(place.directory.as_fd())
        .map_err(with_operation(Operation::Flush))?;
    part.sync_all().map_err(with_operation(Operation::Flush))
}

/// Returns the ranges of groups with data that are missing from `received`. A file may have a billion groups, so this
/// function iterates only over the groups in `received`.
fn missing(head: &FileHead, received: Option<&ReceivedHashes>) -> Vec<GroupRange> {
    let mut counted: Vec<_> = received
        .iter()
        .flat_map(|received| received.values.keys())
        .copied()
        .collect();
    counted.sort_unstable();
    let mut counted = counted.into_iter().peekable();
    let mut ranges = Vec::new();
    for wanted in wanted(head) {
        let mut next = wanted.start;
        while next < wanted.end && ranges.len() < MISSING_RANGES_MAX {
            while counted.next_if(|index| *index < next).is_some() {}
            let end = counted
                .peek()
                .copied()
                .unwrap_or(wanted.end)
                .min(wanted.end);
            if end > next {
                ranges.push(GroupRange::new(next, end - next));
            }
            next = end.saturating_add(1);
        }
    }
    ranges
}

/// Returns the groups with data in ascending, disjoint ranges.
fn wanted(head: &FileHead) -> Vec<Range<u32>> {
    let groups = GroupSpan::count(head.bytes).unwrap_or(0);
    let Some(data) = &head.data else {
        return std::iter::once(0..groups).collect();
    };
    let group = |offset: u64| u32::try_from(offset / GROUP_BYTES).unwrap_or(groups);
    let mut wanted: Vec<Range<u32>> = Vec::new();
    for range in data.ranges().iter().filter(|range| !range.is_empty()) {
        let first = group(range.start);
        let end = group(range.end - 1) + 1;
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
    use crate::rights::quota::Quota;
    use zmove_types::{Cv, DataRanges, Metadata, Timestamp};

    fn head_of(groups: u64, data: Option<&[Range<u64>]>) -> FileHead {
        let bytes = groups * GROUP_BYTES;
        let data = data.map(|ranges| Arc::new(DataRanges::new(bytes, ranges.to_vec()).unwrap()));
        let path = RelPath::from_bytes(b"f").unwrap();
        let (metadata, ctime) = (Metadata::default(), Timestamp::default());
        FileHead {
            path,
            metadata,
            bytes,
            ctime,
            inode: 0,
            data,
        }
    }

    fn missing_of(groups: u64, data: Option<&[Range<u64>]>, counted: &[u32]) -> Vec<(u32, u32)> {
        let head = head_of(groups, data);
        let mut received = ReceivedHashes::new(&Quota::default());
        counted
            .iter()
            .for_each(|index| received.note(*index, Cv([0; 32])).unwrap());
        missing(&head, Some(&received))
            .into_iter()
            .map(|range| (range.first, range.count))
            .collect()
    }

    #[test]
    fn groups_that_do_not_count_are_told_in_ranges() {
        assert_eq!(missing_of(5, None, &[]), [(0, 5)]);
        assert_eq!(missing_of(5, None, &[0, 2, 4]), [(1, 1), (3, 1)]);
        assert_eq!(missing_of(5, None, &[1, 2]), [(0, 1), (3, 2)]);
        assert_eq!(missing_of(5, None, &[4, 3, 2, 1, 0]), []);
        // There are only two missing ranges, so the function cannot have iterated over all groups.
        assert_eq!(
            missing_of(4_000_000_000, None, &[7]),
            [(0, 7), (8, 3_999_999_992)]
        );
        let every_other: Vec<_> = (0..5000).map(|index| 2 * index).collect();
        assert_eq!(
            missing_of(10_000, None, &every_other).len(),
            MISSING_RANGES_MAX
        );
    }

    #[test]
    fn groups_of_holes_are_not_missed() {
        let data = [
            5..6,
            7..8,
            2 * GROUP_BYTES - 1..2 * GROUP_BYTES + 1,
            9 * GROUP_BYTES..10 * GROUP_BYTES,
        ];
        assert_eq!(missing_of(20, Some(&data), &[]), [(0, 3), (9, 1)]);
        assert_eq!(missing_of(20, Some(&data), &[0, 1, 9]), [(2, 1)]);
        assert_eq!(missing_of(20, Some(&[]), &[]), []);
    }
}
