//! The commit of a large file that several receivers have written, exactly once, by whichever is asked.
//!
//! ```text
//!  journals ──► look ─┬─ named ────────────────────────────────────────────────────────────┐
//!                     ├─ part ──► a group missing? told ──► metadata, flush ──► rename ──► parent flushed
//!                     └─ neither ──► all groups are told as missing
//! ```
//!
//! *Named* is a file the inode of which was a part, all groups of which count. It is looked for before the part and
//! after it: the part may get its name between the two.
//!
//! **Invariant:** a file gets its name only when each of its groups has been flushed by who wrote it into the very
//! inode that gets the name, as journals of this epoch say. Whoever comes second, or repeats an order whose answer was
//! lost, finds that inode under the name.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zmove_disk::{FileIdentity, NewFiles, set_file_mtime};
use zmove_types::{Cv, GROUP_BYTES, GroupSpan, Name, RelPath, Root, Timestamp};
use zmove_wire::limits::MISSING_RANGES_MAX;
use zmove_wire::{FaultCode, FileHead, Operation, SharedJobResult};

use crate::quota::{Booking, Quota};
use crate::resume::journal::{SourceVersion, UnfinishedFile, birth_of};
use crate::resume::parts::shared::shared_name;
use crate::resume::parts::source_of;
use crate::shared_job::flushing::flush_file_systems;
use crate::shared_job::journals;
use crate::shared_job::session::SharedJobSession;
use crate::store::failure::{ALREADY_THERE, Failure, failed_to};
use crate::store::large_files::came::Came;
use crate::store::target::keeper::At;
use crate::store::transfer::Transfer;

/// What there is of a file.
#[derive(Debug)]
enum Found {
    /// The file has its name, and this inode.
    Named(u64),
    /// The part of the file.
    Part(File),
    Neither,
}

/// Where a file gets its name, and the name of its part.
struct Place {
    path: RelPath,
    directory: Arc<OwnedFd>,
    name: Name,
    part: Name,
}

/// The groups that count, by the files that they were written to. An inode alone may be another file's by now.
struct Groups<'a> {
    of: Vec<(Written, Vec<(u32, Cv)>)>,
    quota: &'a Quota,
    held: Booking,
}

/// A file by its inode and when it was made, zero where the file system does not tell.
#[derive(Clone, Copy)]
struct Written {
    inode: u64,
    born: Timestamp,
}

impl Written {
    fn of(file: impl AsFd) -> io::Result<Self> {
        let file = file.as_fd();
        Ok(Self { inode: FileIdentity::of(file)?.inode, born: birth_of(file) })
    }

    fn may_be(self, other: Self) -> bool {
        let unknown = Timestamp::default();
        self.inode == other.inode
            && (self.born == other.born || self.born == unknown || other.born == unknown)
    }
}

impl Groups<'_> {
    /// The groups of a file; nothing where no journal tells that it was a part.
    fn of(&self, file: Written) -> io::Result<Option<Came>> {
        let mut found = self.of.iter().filter(|(written, _)| written.may_be(file)).peekable();
        if found.peek().is_none() {
            return Ok(None);
        }
        let mut came = Came::new(self.quota);
        for (index, cv) in found.flat_map(|(_, groups)| groups) {
            came.note(*index, *cv).map_err(|_over_limit| Errno::NOMEM)?;
        }
        Ok(Some(came))
    }
}

impl SharedJobSession {
    /// Gives a file its name.
    pub(super) fn commit(
        &self,
        transfer: &Transfer,
        head: &FileHead,
        named: Option<Root>,
    ) -> Result<SharedJobResult, Failure> {
        let path = transfer.target.final_path(head);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err((Operation::Rename, Errno::ISDIR.into()));
        };
        let source = source_of(head);
        let groups = self.groups(&path, &source, &transfer.quota).map_err(failed_to(Operation::Read))?;
        let directory =
            transfer.target.tree.ensure_directory(&parent).map_err(failed_to(Operation::MakeDirectory))?;
        self.epoch.check(&directory).map_err(failed_to(Operation::MakeDirectory))?;
        let place = Place { part: shared_name(&path, &source), path, directory, name };
        match self.look(&place, head, &groups).map_err(failed_to(Operation::Read))? {
            Found::Named(inode) => flush_name(transfer, &place, inode),
            Found::Part(part) => self.publish(transfer, (head, named), &place, (&part, &groups)),
            Found::Neither => {
                self.check(Operation::Rename)?;
                let missing = missing(head, &Came::new(&transfer.quota));
                // one that is all holes has to be begun as well
                Ok(if missing.is_empty() {
                    SharedJobResult::Failed(Operation::Verify, FaultCode::Incomplete)
                } else {
                    SharedJobResult::Missing(missing)
                })
            }
        }
    }

    fn look(&self, place: &Place, head: &FileHead, groups: &Groups<'_>) -> io::Result<Found> {
        if let Some(inode) = named(place, head, groups)? {
            return Ok(Found::Named(inode));
        }
        if let Some(part) = self.epoch.find_part(&place.part)? {
            return Ok(Found::Part(part));
        }
        Ok(named(place, head, groups)?.map_or(Found::Neither, Found::Named))
    }

    /// Gives a part the name of its file, if all its groups count.
    fn publish(
        &self,
        transfer: &Transfer,
        (head, named): (&FileHead, Option<Root>),
        place: &Place,
        (part, groups): (&File, &Groups<'_>),
    ) -> Result<SharedJobResult, Failure> {
        let written = Written::of(part).map_err(failed_to(Operation::Read))?;
        let (inode, came) = (written.inode, groups.of(written).map_err(failed_to(Operation::Read))?);
        let came = came.unwrap_or_else(|| Came::new(&transfer.quota));
        let missing = missing(head, &came);
        if !missing.is_empty() {
            return Ok(SharedJobResult::Missing(missing));
        }
        if let (Some(named), Some(found)) = (named, came.root(head.bytes))
            && named != found
        {
            return Ok(SharedJobResult::Failed(Operation::Verify, FaultCode::OtherRoot));
        }
        finish(transfer, (part, head), place)?;
        let Place { directory, name, .. } = place;
        if transfer.target.may_not_be_replaced(directory, name, head.metadata.mtime) {
            let (operation, code) = ALREADY_THERE;
            return Ok(SharedJobResult::Failed(operation, code));
        }
        let replace = transfer.target.rules.replaces();
        match self.epoch.publish_part((&place.part, part), (directory, name), replace) {
            Ok(()) => {
                // who has written while the part had both names believes that it was not committed
                set_file_mtime(part, source_of(head).mtime).map_err(failed_to(Operation::SetMetadata))?;
                let path = || Some(head.path.clone());
                transfer.stored(head.bytes, path, named.or_else(|| came.root(head.bytes)));
            }
            Err(error) => {
                // Another was first, perhaps this one itself, whose request was repeated by a server.
                let has_it = FileIdentity::at(directory, name).is_ok_and(|there| there.inode == inode);
                if !has_it {
                    return Err((Operation::Rename, error));
                }
            }
        }
        flush_name(transfer, place, inode)
    }

    /// The groups of a file that count in this epoch.
    fn groups<'a>(&self, path: &RelPath, source: &SourceVersion, quota: &'a Quota) -> io::Result<Groups<'a>> {
        let mut groups = Groups { of: Vec::new(), quota, held: quota.book_nothing() };
        let is_wanted = |other: &RelPath, version: &SourceVersion| other == path && version == source;
        let take = |files: Vec<UnfinishedFile>| {
            for file in files {
                let flushed = file.groups.into_iter().filter(|(_, (_, is_flushed))| *is_flushed);
                let flushed: Vec<_> = flushed.map(|(index, (cv, _))| (index, cv)).collect();
                let bytes = size_of_val(&flushed[..]);
                groups.held.grow(bytes).map_err(|_over_limit| Errno::NOMEM)?;
                groups.of.push((Written { inode: file.part.inode, born: file.part.born }, flushed));
            }
            Ok(())
        };
        let epoch = |epoch| epoch == self.number;
        journals::read(self.directory.fd(), epoch, is_wanted, |_end| Ok(()), take)?;
        Ok(groups)
    }
}

/// Flushes the directory in which a file has its name.
fn flush_name(transfer: &Transfer, place: &Place, inode: u64) -> Result<SharedJobResult, Failure> {
    let flushed = rustix::fs::fsync(&place.directory).map_err(io::Error::from);
    flushed.and_then(|()| flush_file_systems(transfer)).map_err(failed_to(Operation::Flush))?;
    Ok(SharedJobResult::Committed { inode })
}

/// The inode of the file that has the name, where that is this file. A name that nothing has is no error; what cannot
/// be looked at may be the file itself.
fn named(place: &Place, head: &FileHead, groups: &Groups<'_>) -> io::Result<Option<u64>> {
    let look = || -> io::Result<Option<u64>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let named = rustix::fs::openat(&place.directory, place.name.as_os_str(), flags, Mode::empty())?;
        let there = FileIdentity::of(&named)?;
        if !there.regular || there.bytes != head.bytes {
            return Ok(None);
        }
        let came = groups.of(Written::of(&named)?)?;
        Ok(came.filter(|came| missing(head, came).is_empty()).map(|_whole| there.inode))
    };
    match look() {
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => Ok(None),
            _ => Err(error),
        },
        found => found,
    }
}

/// Gives a part all its metadata, before it has its name.
fn finish(transfer: &Transfer, (part, head): (&File, &FileHead), place: &Place) -> Result<(), Failure> {
    let metadata = transfer.target.rules.of_file(&head.metadata);
    let parent = place.path.parent().unwrap_or_else(RelPath::root);
    let made = (part, &NewFiles::default(), &*place.directory);
    transfer.target.set_new_metadata(made, &metadata, At(&parent, Some(&place.name)))?;
    transfer.target.file_systems.note(place.directory.as_fd()).map_err(failed_to(Operation::Flush))?;
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
    use crate::quota::Quotas;
    use crate::quota::limits::Limits;
    use zmove_transport::Fingerprint;
    use zmove_types::{ByteCount, DataRanges, Metadata};

    fn head_of(groups: u64, data: Option<&[Range<u64>]>) -> FileHead {
        let bytes = groups * GROUP_BYTES;
        let data = data.map(|ranges| Arc::new(DataRanges::new(bytes, ranges.to_vec()).unwrap()));
        let path = RelPath::from_bytes(b"f").unwrap();
        let (metadata, ctime) = (Metadata::default(), Timestamp::default());
        FileHead { path, metadata, bytes, ctime, inode: 0, data }
    }

    fn missing_of(groups: u64, data: Option<&[Range<u64>]>, counted: &[u32]) -> Vec<(u32, u32)> {
        let head = head_of(groups, data);
        let mut came = Came::new(&Quota::default());
        counted.iter().for_each(|index| came.note(*index, Cv([0; 32])).unwrap());
        missing(&head, &came)
    }

    /// A name that cannot be looked at is not one that nothing has: all of a committed file would be asked for again.
    #[test]
    fn a_name_that_cannot_be_looked_at_is_an_error_and_only_one_that_nothing_has_is_none() {
        let home = tempfile::tempdir().unwrap();
        let head = head_of(2, None);
        let there = File::create(home.path().join("f")).unwrap();
        there.set_len(head.bytes).unwrap();
        let find = |name: &str, limit: u64| {
            let key = Limits { memory_per_identity: ByteCount(limit), ..Limits::default() };
            let quota = Quotas::default().of(Fingerprint([1; 32]), &key);
            let of = vec![(Written::of(&there).unwrap(), vec![(0, Cv([1; 32])), (1, Cv([2; 32]))])];
            let groups = Groups { of, quota: &quota, held: quota.book_nothing() };
            let directory = Arc::new(OwnedFd::from(File::open(home.path()).unwrap()));
            let [name, part] = [name, "part"].map(|name| Name::from_bytes(name.as_bytes()).unwrap());
            named(&Place { path: head.path.clone(), directory, name, part }, &head, &groups)
        };
        let inode = FileIdentity::of(&there).unwrap().inode;
        assert_eq!(find("f", 1 << 30).unwrap(), Some(inode));
        assert_eq!(find("g", 1 << 30).unwrap(), None);
        assert!(find("f", 0).is_err(), "no memory to find out");
    }

    /// What has been removed leaves its inode to the next that is made.
    #[test]
    fn groups_of_a_file_that_has_gone_are_none_of_another_with_its_inode() {
        let born = |seconds| Timestamp { seconds, nanos: 1 };
        let written = |inode, born| Written { inode, born };
        let quota = Quota::default();
        let of = vec![(written(7, born(1)), vec![(0, Cv([1; 32]))]), (written(7, born(2)), vec![])];
        let groups = Groups { of, quota: &quota, held: quota.book_nothing() };
        let count = |file| groups.of(file).unwrap().map(|came| came.values.len());
        assert_eq!(count(written(7, born(1))), Some(1));
        assert_eq!(count(written(7, born(2))), Some(0));
        assert_eq!(count(written(7, Timestamp::default())), Some(1), "nobody knows");
        assert_eq!((count(written(7, born(3))), count(written(8, born(1)))), (None, None));
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
