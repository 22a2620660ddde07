//! The groups of large files that count as received in a job, by the part (the temporary file) to which they were
//! written. A group counts if a journal of the job lists it as flushed.
//!
//! A session reads the groups at the first order to commit a file, and keeps them until their file is renamed into
//! place. If there is no memory for more groups, it forgets the groups of files that another receiver has renamed into
//! place or given up.
//!
//! Other sessions continue to write to their journals, and the sender repeats a commit until all groups exist. So the
//! session remembers the position up to which it has read each journal. An incomplete record at the end of a journal is
//! read later.
//!
//! **Invariant:** one order reads at most [`JOURNALS_MAX`] files and [`BYTES_MAX`] bytes, one record at a time. The
//! key's quota is charged for the memory of a record before the next record is read.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zmove_disk::{JobSession, PartState};
use zmove_types::{Cv, GroupSpan, Name};
use zmove_wire::WireError;

use crate::resume::journal::{Record, read_new_records};
use crate::rights::quota::{Charge, Quota};
use crate::shared_job::journals::{OpenedJournal, journals_in};
use crate::store::large_files::received_hashes::ReceivedHashes;

/// The key of a part (the temporary file of a large file): its name and inode number.
pub(crate) type PartKey = (Name, u64);

/// The groups that count as received because a journal of the job lists them as flushed.
#[derive(Debug)]
pub(crate) struct FlushedGroups {
    /// The journals that were read, by name.
    journals: HashMap<Name, JournalCursor>,
    groups: GroupsByPart,
}

#[derive(Debug, Default)]
struct JournalCursor {
    position: u64,
    files: HashMap<u64, JournaledPart>,
}

#[derive(Debug)]
struct GroupsByPart {
    of: HashMap<PartKey, ReceivedHashes>,
    quota: Quota,
    held: Charge,
}

/// A part (the temporary file of a large file) to which a session writes, as described by the session's journal.
#[derive(Debug)]
struct JournaledPart {
    part: PartKey,
    bytes: u64,
    /// The unflushed groups, in the order of their records.
    unflushed: VecDeque<UnflushedGroup>,
}

#[derive(Debug)]
struct UnflushedGroup {
    index: u32,
    cv: Cv,
    /// Offset in the journal at which the record of the group ends.
    end: u64,
}

/// Maximum number of journals in one job. It is lower in tests, which create that many journals.
const JOURNALS_MAX: usize = if cfg!(test) { 1 << 9 } else { 1 << 16 };
/// Maximum number of journal bytes to read for one order. The limit can be far above the total size of any job's
/// journals: reading delays only orders of the same session, and its memory is charged.
const BYTES_MAX: u64 = 1 << 40;
/// Memory for one journal that was read, without its records, in bytes.
const JOURNAL_BYTES: usize = 256;
/// Memory for one part (temporary file) to which a session writes, in bytes.
const JOURNALED_PART_BYTES: usize = 256;
/// Memory for one unflushed group, in bytes. It includes the spare capacity of a queue that has just grown.
const GROUP_BYTES: usize = 2 * size_of::<UnflushedGroup>();

impl FlushedGroups {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self {
            journals: HashMap::new(),
            groups: GroupsByPart {
                of: HashMap::new(),
                quota: quota.clone(),
                held: quota.empty_charge(),
            },
        }
    }

    /// Reads the records that were added to the journals since the last call.
    pub(crate) fn read_new_records(
        &mut self,
        directory: &OwnedFd,
        session: &JobSession,
    ) -> io::Result<()> {
        match self.try_read_new_records(directory) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOMEM) => {
                if !self.forget_ended(session) {
                    return Err(error);
                }
                self.try_read_new_records(directory)
            }
            read => read,
        }
    }

    pub(crate) fn try_read_new_records(&mut self, directory: &OwnedFd) -> io::Result<()> {
        let Self { journals, groups } = self;
        let no_memory = |_over_limit| Errno::NOMEM;
        let mut bytes = 0;
        for (count, journal) in (1..).zip(journals_in(directory)?) {
            let OpenedJournal {
                name,
                mut file,
                length,
            } = journal?;
            if !journals.contains_key(&name) {
                groups.held.grow(JOURNAL_BYTES).map_err(no_memory)?;
            }
            let JournalCursor { position, files } = journals.entry(name).or_default();
            let unread = length.saturating_sub(*position);
            bytes += unread;
            if count > JOURNALS_MAX || bytes > BYTES_MAX {
                return Err(Errno::FBIG.into());
            }
            if unread > 0 {
                file.seek(SeekFrom::Start(*position))?;
                // If a record cannot be processed, the next call reads the record again.
                let take = |record, end| Ok(groups.take(files, record, end).map_err(no_memory)?);
                read_new_records(file.take(unread), position, take)?;
            }
        }
        Ok(())
    }

    /// Returns the groups of a part that count as received.
    pub(crate) fn of(&self, part: &PartKey) -> Option<&ReceivedHashes> {
        self.groups.of.get(part)
    }

    /// Forgets the groups of a part (temporary file) after it was renamed into place.
    pub(crate) fn forget(&mut self, part: &Name) {
        self.groups.of.retain(|(name, _inode), _| name != part);
    }

    /// Forgets the groups of all parts whose file was committed or given up. Returns whether any groups were forgotten.
    fn forget_ended(&mut self, session: &JobSession) -> bool {
        let before = self.groups.of.len();
        let is_gone = |name: &Name| {
            matches!(
                session.find_part(name),
                Ok(PartState::Committed | PartState::GivenUp { .. })
            )
        };
        self.groups.of.retain(|(name, _inode), _| !is_gone(name));
        self.groups.of.len() < before
    }
}

impl GroupsByPart {
    /// Processes one record of the journal with these files. If that fails, the caller may process the record again.
    fn take(
        &mut self,
        files: &mut HashMap<u64, JournaledPart>,
        record: Record,
        end: u64,
    ) -> Result<(), WireError> {
        match record {
            Record::Part(file, part) => {
                if let Some(before) = files.remove(&file) {
                    self.held
                        .shrink(JOURNALED_PART_BYTES + GROUP_BYTES * before.unflushed.len());
                }
                self.held.grow(JOURNALED_PART_BYTES)?;
                let written = JournaledPart {
                    part: (part.part, part.inode),
                    bytes: part.source.bytes,
                    unflushed: VecDeque::new(),
                };
                files.insert(file, written);
            }
            Record::Groups {
                file,
                first,
                cvs,
                flushed: false,
            } => {
                let Some(written) = files.get_mut(&file) else {
                    return Ok(());
                };
                let are_there = GroupSpan::count(written.bytes)
                    .unwrap_or(0)
                    .saturating_sub(first);
                let groups = (first..).zip(cvs).take(are_there as usize);
                let groups: Vec<_> = groups
                    .map(|(index, cv)| UnflushedGroup { index, cv, end })
                    .collect();
                self.held.grow(GROUP_BYTES * groups.len())?;
                groups
                    .iter()
                    .for_each(|group| self.drop_changed_group(&written.part, group));
                written.unflushed.extend(groups);
            }
            Record::Groups {
                file,
                first,
                cvs,
                flushed: true,
            } => {
                if let Some(written) = files.get(&file) {
                    let received = self
                        .of
                        .entry(written.part.clone())
                        .or_insert_with(|| ReceivedHashes::new(&self.quota));
                    for (index, cv) in (first..).zip(cvs) {
                        received.note(index, cv)?;
                    }
                }
            }
            Record::Flushed { upto } => {
                files
                    .values_mut()
                    .try_for_each(|written| self.flushed(written, upto))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes a received group that was written again with different bytes. The group counts again after the new bytes
    /// were flushed.
    fn drop_changed_group(&mut self, part: &PartKey, group: &UnflushedGroup) {
        if let Some(received) = self.of.get_mut(part)
            && received
                .values
                .get(&group.index)
                .is_some_and(|before| *before != group.cv)
        {
            received.forget(group.index);
        }
    }

    /// Records that the journal is flushed up to the offset `upto`. All groups whose records end at or before this
    /// offset count as received.
    fn flushed(&mut self, written: &mut JournaledPart, upto: u64) -> Result<(), WireError> {
        let is_covered = |group: &&UnflushedGroup| group.end <= upto;
        if written.unflushed.front().filter(is_covered).is_none() {
            return Ok(());
        }
        let received = self
            .of
            .entry(written.part.clone())
            .or_insert_with(|| ReceivedHashes::new(&self.quota));
        while let Some(group) = written.unflushed.front().filter(is_covered) {
            received.note(group.index, group.cv)?;
            written.unflushed.pop_front();
            self.held.shrink(GROUP_BYTES);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resume::journal::{PartFile, SourceVersion};
    use crate::rights::quota::Quotas;
    use crate::rights::quota::limits::Limits;
    use std::fs::File;
    use zmove_transport::Fingerprint;
    use zmove_types::{ByteCount, GROUP_BYTES as BYTES, RelPath, Timestamp};

    struct World {
        groups: GroupsByPart,
        files: HashMap<u64, JournaledPart>,
        end: u64,
    }

    fn part() -> PartFile {
        PartFile {
            path: RelPath::from_bytes(b"f").unwrap(),
            part: Name::from_bytes(b"part-1").unwrap(),
            source: SourceVersion {
                bytes: 3 * BYTES,
                ..SourceVersion::default()
            },
            inode: 7,
            born: Timestamp::default(),
        }
    }

    impl World {
        fn new(memory: u64) -> Self {
            let limits = Limits {
                memory_per_identity: ByteCount(memory),
                ..Limits::default()
            };
            let quota = Quotas::default().of(Fingerprint([1; 32]), &limits);
            let groups = GroupsByPart {
                of: HashMap::new(),
                held: quota.empty_charge(),
                quota,
            };
            let mut world = Self {
                groups,
                files: HashMap::new(),
                end: 0,
            };
            world.take(Record::Part(1, part())).unwrap();
            world
        }

        fn take(&mut self, record: Record) -> Result<(), WireError> {
            self.end += 1;
            self.groups.take(&mut self.files, record, self.end)
        }

        fn write(&mut self, first: u32, cvs: &[u8]) -> Result<(), WireError> {
            self.take(Record::Groups {
                file: 1,
                first,
                cvs: cvs.iter().map(|byte| Cv([*byte; 32])).collect(),
                flushed: false,
            })
        }

        fn flush(&mut self, upto: u64) -> Result<(), WireError> {
            self.take(Record::Flushed { upto })
        }

        fn counted(&self) -> Vec<(u32, u8)> {
            let received = self.groups.of.get(&(part().part, 7));
            let values = received.iter().flat_map(|received| &received.values);
            let mut counted: Vec<_> = values.map(|(index, cv)| (*index, cv.0[0])).collect();
            counted.sort_unstable();
            counted
        }
    }

    #[test]
    fn groups_count_from_their_flush_on_and_those_beyond_the_file_never() {
        let mut world = World::new(1 << 20);
        world.write(0, &[1]).unwrap();
        world.write(1, &[2, 3, 4, 5]).unwrap();
        assert_eq!(world.counted(), []);
        world.flush(2).unwrap();
        assert_eq!(world.counted(), [(0, 1)]);
        world.flush(3).unwrap();
        assert_eq!(world.counted(), [(0, 1), (1, 2), (2, 3)]);
        // A group still counts if the same bytes are written again, but not if other bytes are written.
        world.write(0, &[1, 9]).unwrap();
        assert_eq!(world.counted(), [(0, 1), (2, 3)]);
        world.flush(world.end).unwrap();
        assert_eq!(world.counted(), [(0, 1), (1, 9), (2, 3)]);
    }

    /// Anyone with write access to the job's directory can create a journal of any length there.
    #[test]
    fn what_a_journal_says_is_booked_before_it_is_kept_and_given_back() {
        let mut world = World::new(10_000);
        let quota = world.groups.quota.clone();
        let before = quota.memory_held();
        while world.write(0, &[1, 2, 3]).is_ok() {
            assert!(quota.memory_held() <= 10_000);
        }
        let kept = world.files[&1].unflushed.len();
        assert!((30..100).contains(&kept), "{kept} groups");
        world.take(Record::Part(1, part())).unwrap();
        assert_eq!(quota.memory_held(), before);
        world.write(0, &[1, 2, 3]).unwrap();
        world.flush(world.end).unwrap();
        assert_eq!(world.counted().len(), 3);
        world.groups.of.clear();
        assert_eq!(quota.memory_held(), before);
    }

    fn read_all(directory: &tempfile::TempDir, quota: &Quota) -> io::Result<()> {
        let fd = OwnedFd::from(File::open(directory.path())?);
        FlushedGroups::new(quota).try_read_new_records(&fd)
    }

    fn error_of(read: io::Result<()>) -> Option<Errno> {
        read.err().and_then(|error| Errno::from_io_error(&error))
    }

    #[test]
    fn no_more_than_so_many_bytes_of_all_journals_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let set_length = |name: &str, bytes| {
            File::create(directory.path().join(name))
                .unwrap()
                .set_len(bytes)
                .unwrap();
        };
        set_length("journal-1-a", BYTES_MAX - 1);
        set_length("heartbeat-a", BYTES_MAX);
        set_length("journal-1-b", 1);
        assert_eq!(error_of(read_all(&directory, &Quota::default())), None);
        set_length("journal-1-b", 2);
        assert_eq!(
            error_of(read_all(&directory, &Quota::default())),
            Some(Errno::FBIG)
        );
    }

    #[test]
    fn no_more_than_so_many_journals_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let create = |number| {
            drop(File::create(directory.path().join(format!("journal-1-{number}"))).unwrap())
        };
        (0..JOURNALS_MAX).for_each(create);
        assert_eq!(error_of(read_all(&directory, &Quota::default())), None);
        create(JOURNALS_MAX);
        assert_eq!(
            error_of(read_all(&directory, &Quota::default())),
            Some(Errno::FBIG)
        );
    }

    #[test]
    fn a_journal_that_is_known_is_booked_once() {
        let directory = tempfile::tempdir().unwrap();
        let limits = Limits {
            memory_per_identity: ByteCount(2 * JOURNAL_BYTES as u64),
            ..Limits::default()
        };
        let quota = Quotas::default().of(Fingerprint([1; 32]), &limits);
        let fd = OwnedFd::from(File::open(directory.path()).unwrap());
        let mut groups = FlushedGroups::new(&quota);
        let mut read_with = |name: &str| {
            std::fs::write(directory.path().join(name), "").unwrap();
            error_of(groups.try_read_new_records(&fd))
        };
        assert_eq!(
            ["journal-1-a", "journal-2-a", "journal-2-a"].map(&mut read_with),
            [None; 3]
        );
        assert_eq!(read_with("journal-3-a"), Some(Errno::NOMEM));
    }
}
