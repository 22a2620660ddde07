//! The groups of large files that count: those that a journal of the job says are flushed, by the part that they
//! were written to.
//!
//! They are kept from the first commit that a session is asked for until their file has its name. Where there is no
//! memory for more, those go whose file has got its name by another receiver, or has been given up.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zmove_disk::{JobSession, PartFound};
use zmove_types::{Cv, GroupSpan, Name};
use zmove_wire::WireError;

use crate::resume::journal::Record;
use crate::rights::quota::{Booking, Quota};
use crate::shared_job::journals::Journals;
use crate::store::large_files::came::Came;

/// A part, by its name and inode.
pub(crate) type PartKey = (Name, u64);

/// The groups that count.
#[derive(Debug)]
pub(crate) struct FlushedGroups {
    journals: Journals<HashMap<u64, Written>>,
    groups: GroupsByPart,
}

#[derive(Debug)]
struct GroupsByPart {
    of: HashMap<PartKey, Came>,
    quota: Quota,
    held: Booking,
}

/// A part that a session writes to.
#[derive(Debug)]
struct Written {
    part: PartKey,
    bytes: u64,
    /// The groups that no flush has covered, as they came.
    unflushed: VecDeque<UnflushedGroup>,
}

#[derive(Debug)]
struct UnflushedGroup {
    index: u32,
    cv: Cv,
    /// The offset in the journal at which its record ends.
    end: u64,
}

/// The memory of a part that a session writes to.
const WRITTEN_BYTES: usize = 256;
/// The memory of a group that no flush has covered, in a queue that has just grown.
const GROUP_BYTES: usize = 2 * size_of::<UnflushedGroup>();

impl FlushedGroups {
    pub(crate) fn new(quota: &Quota) -> Self {
        Self {
            journals: Journals::new(quota.book_nothing()),
            groups: GroupsByPart {
                of: HashMap::new(),
                quota: quota.clone(),
                held: quota.book_nothing(),
            },
        }
    }

    /// Reads what the journals say by now.
    pub(crate) fn read_on(&mut self, directory: &OwnedFd, session: &JobSession) -> io::Result<()> {
        match self.try_to_read_on(directory) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOMEM) => {
                if !self.forget_gone(session) {
                    return Err(error);
                }
                self.try_to_read_on(directory)
            }
            read => read,
        }
    }

    pub(crate) fn try_to_read_on(&mut self, directory: &OwnedFd) -> io::Result<()> {
        let groups = &mut self.groups;
        self.journals.read_on(directory, |files, record, end| {
            groups
                .take(files, record, end)
                .map_err(|_over_limit| Errno::NOMEM.into())
        })
    }

    /// The groups of a part that count.
    pub(crate) fn of(&self, part: &PartKey) -> Option<&Came> {
        self.groups.of.get(part)
    }

    /// Forgets those of a part that has got its name.
    pub(crate) fn forget(&mut self, part: &PartKey) {
        self.groups.of.remove(part);
    }

    /// Returns whether there was anything to forget.
    fn forget_gone(&mut self, session: &JobSession) -> bool {
        let before = self.groups.of.len();
        let is_gone = |name: &Name| {
            matches!(
                session.find_part(name),
                Ok(PartFound::Committed { .. } | PartFound::GivenUp { .. })
            )
        };
        self.groups.of.retain(|(name, _inode), _| !is_gone(name));
        self.groups.of.len() < before
    }
}

impl GroupsByPart {
    /// Takes a record of a journal that tells of these files. One that fails may be taken again.
    fn take(
        &mut self,
        files: &mut HashMap<u64, Written>,
        record: Record,
        end: u64,
    ) -> Result<(), WireError> {
        match record {
            Record::Part(file, part) => {
                if let Some(before) = files.remove(&file) {
                    self.held
                        .shrink(WRITTEN_BYTES + GROUP_BYTES * before.unflushed.len());
                }
                self.held.grow(WRITTEN_BYTES)?;
                let written = Written {
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
                    .for_each(|group| self.uncount_if_changed(&written.part, group));
                written.unflushed.extend(groups);
            }
            Record::Groups {
                file,
                first,
                cvs,
                flushed: true,
            } => {
                if let Some(written) = files.get(&file) {
                    let came = self
                        .of
                        .entry(written.part.clone())
                        .or_insert_with(|| Came::new(&self.quota));
                    for (index, cv) in (first..).zip(cvs) {
                        came.note(index, cv)?;
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

    /// A group that was written with other bytes counts when these are flushed, and not before.
    fn uncount_if_changed(&mut self, part: &PartKey, group: &UnflushedGroup) {
        if let Some(came) = self.of.get_mut(part)
            && came
                .values
                .get(&group.index)
                .is_some_and(|before| *before != group.cv)
        {
            came.forget(group.index);
        }
    }

    /// All that stands before an offset in the journal has been flushed.
    fn flushed(&mut self, written: &mut Written, upto: u64) -> Result<(), WireError> {
        let is_covered = |group: &&UnflushedGroup| group.end <= upto;
        if written.unflushed.front().filter(is_covered).is_none() {
            return Ok(());
        }
        let came = self
            .of
            .entry(written.part.clone())
            .or_insert_with(|| Came::new(&self.quota));
        while let Some(group) = written.unflushed.front().filter(is_covered) {
            came.note(group.index, group.cv)?;
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
    use zmove_transport::Fingerprint;
    use zmove_types::{ByteCount, GROUP_BYTES as BYTES, RelPath, Timestamp};

    struct World {
        groups: GroupsByPart,
        files: HashMap<u64, Written>,
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
                held: quota.book_nothing(),
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
            let came = self.groups.of.get(&(part().part, 7));
            let values = came.iter().flat_map(|came| &came.values);
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
        // the same bytes again are no less safe, and others are
        world.write(0, &[1, 9]).unwrap();
        assert_eq!(world.counted(), [(0, 1), (2, 3)]);
        world.flush(world.end).unwrap();
        assert_eq!(world.counted(), [(0, 1), (1, 9), (2, 3)]);
    }

    /// Whoever may write to the job's directory can put a journal of any length there.
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
}
