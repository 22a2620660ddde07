//! Reads a journal: all complete records from its start, and the state that they describe.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read};

use zmove_types::{Cv, GroupSpan, Timestamp};

use super::record::{BODY_BYTES_MAX, BootId, CRC_BYTES, LENGTH_BYTES, MAGIC, Record, VERSION};
use super::{Begin, FILES_MAX, JournalError, PartFile, Unfinished, UnfinishedFile};

/// The state described by the records of a journal.
#[derive(Debug)]
pub(super) struct Replay {
    begin: Begin,
    boot: BootId,
    files: BTreeMap<u64, ReplayedFile>,
    /// The offset up to which records are known to be flushed.
    flushed: u64,
    /// The offset at which the last valid record ends.
    pub(super) end: u64,
}

#[derive(Debug)]
struct ReplayedFile {
    part: PartFile,
    /// Each group with its chaining value and the end offset of its record. The offset is zero for a group that was
    /// already flushed when it was recorded.
    groups: BTreeMap<u32, (Cv, u64)>,
    /// The change time of the part after its transfer had finished writing to it. `None` if a later record shows
    /// another write to the part.
    left: Option<Timestamp>,
}

/// Reads a journal up to its end or to the first incomplete record. Ignores everything after that record.
///
/// # Errors
/// The outer result contains a system error. The inner result contains the reason why the journal is unusable.
pub(super) fn replay(source: impl Read) -> io::Result<Result<Replay, JournalError>> {
    let mut records = Records {
        source: BufReader::new(source),
        position: 0,
    };
    let mut replay = match records.begin()? {
        Ok((begin, boot)) => Replay {
            begin,
            boot,
            files: BTreeMap::new(),
            flushed: 0,
            end: records.position,
        },
        Err(error) => return Ok(Err(error)),
    };
    loop {
        let start = records.position;
        let Some(record) = records.next()? else { break };
        if !replay.apply(record, start, records.position) {
            break;
        }
        replay.end = records.position;
        if replay.files.len() > FILES_MAX {
            return Ok(Err(JournalError::TooManyFiles { limit: FILES_MAX }));
        }
    }
    Ok(Ok(replay))
}

/// Returns the files of a journal that have flushed groups. Omits groups that were not flushed. Returns no files if the
/// journal is unusable.
///
/// # Errors
/// The system's error.
pub(crate) fn flushed_files(source: impl Read) -> io::Result<Vec<UnfinishedFile>> {
    let Ok(replay) = replay(source)? else {
        return Ok(Vec::new());
    };
    let mut files = replay.unfinished(BootId::current()).files;
    for file in &mut files {
        file.groups.retain(|_, (_, is_flushed)| *is_flushed);
    }
    files.retain(|file| !file.groups.is_empty());
    Ok(files)
}

/// Continues to read the journal of a session in a shared job, which that session may still be writing.
///
/// Calls `take` with each complete record and its end offset, and advances `position` to the end of each record. Yields
/// nothing if the first record is not valid.
///
/// # Errors
/// The system's error, or an error of `take`.
pub(crate) fn read_new_records(
    unread: impl Read,
    position: &mut u64,
    mut take: impl FnMut(Record, u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut records = Records {
        source: BufReader::new(unread),
        position: *position,
    };
    if *position == 0 {
        if records.begin()?.is_err() {
            return Ok(());
        }
        *position = records.position;
    }
    while let Some(record) = records.next()? {
        let is_expected = match &record {
            Record::Part(..) | Record::Groups { .. } => true,
            Record::Flushed { upto } => upto <= position,
            Record::Begin(..) | Record::Ended { .. } | Record::Left { .. } => false,
        };
        if !is_expected {
            break;
        }
        take(record, records.position)?;
        *position = records.position;
    }
    Ok(())
}

/// Reads only the first record of a journal.
///
/// # Errors
/// Same as [`replay`].
pub(super) fn begin(source: impl Read) -> io::Result<Result<Begin, JournalError>> {
    let mut records = Records {
        source: BufReader::new(source),
        position: 0,
    };
    Ok(records.begin()?.map(|(begin, _boot)| begin))
}

impl Replay {
    /// Returns the unfinished files. `now` is the ID of the current boot.
    pub(super) fn unfinished(self, now: BootId) -> Unfinished {
        let upto = self.flushed;
        let files = self.files.into_iter().map(|(file, replayed)| {
            let groups = replayed.groups.into_iter();
            let groups = groups
                .map(|(index, (cv, end))| (index, (cv, end <= upto)))
                .collect();
            UnfinishedFile {
                file,
                part: replayed.part,
                groups,
                left: replayed.left,
            }
        });
        let same_boot = self.boot == now && now != BootId::default();
        Unfinished {
            begin: self.begin,
            same_boot,
            files: files.collect(),
        }
    }

    /// Applies the record between `start` and `end`. Returns `false` if no writer would write such a record at that
    /// position.
    fn apply(&mut self, record: Record, start: u64, end: u64) -> bool {
        match record {
            Record::Begin(..) => return false,
            Record::Part(file, part) => {
                self.files.insert(
                    file,
                    ReplayedFile {
                        part,
                        groups: BTreeMap::new(),
                        left: None,
                    },
                );
            }
            Record::Groups {
                file,
                first,
                cvs,
                flushed,
            } => self.add_groups(file, first, &cvs, if flushed { 0 } else { end }),
            Record::Flushed { upto } if upto > start => return false,
            Record::Flushed { upto } => self.flushed = self.flushed.max(upto),
            Record::Ended { file } => {
                self.files.remove(&file);
            }
            Record::Left { file, ctime } => {
                if let Some(file) = self.files.get_mut(&file) {
                    file.left = Some(ctime);
                }
            }
        }
        true
    }

    /// Adds the values of groups. Ignores groups of a file that has ended, and groups beyond the end of the file.
    fn add_groups(&mut self, file: u64, first: u32, cvs: &[Cv], end: u64) {
        let Some(file) = self.files.get_mut(&file) else {
            return;
        };
        let bytes = file.part.source.bytes;
        file.left = None;
        for (index, &cv) in (first..=u32::MAX).zip(cvs) {
            if GroupSpan::of(bytes, index).is_none() {
                return;
            }
            // A group that is recorded again with the same contents keeps its durability.
            let known = file.groups.get(&index).filter(|(there, _)| *there == cv);
            let end = known.map_or(end, |&(_, before)| before.min(end));
            file.groups.insert(index, (cv, end));
        }
    }
}

/// Iterates over the records of a journal.
struct Records<R> {
    source: BufReader<R>,
    position: u64,
}

impl<R: Read> Records<R> {
    /// Reads the first record.
    fn begin(&mut self) -> io::Result<Result<(Begin, BootId), JournalError>> {
        let body = self.frame()?.unwrap_or_default();
        let body = body.strip_prefix(&MAGIC);
        let Some((version, body)) = body.and_then(<[u8]>::split_first_chunk) else {
            return Ok(Err(JournalError::Damaged));
        };
        let found = u32::from_le_bytes(*version);
        if found != VERSION {
            return Ok(Err(JournalError::OtherVersion { found }));
        }
        Ok(match Record::decode(body) {
            Some(Record::Begin(begin, boot)) => Ok((begin, boot)),
            _ => Err(JournalError::Damaged),
        })
    }

    fn next(&mut self) -> io::Result<Option<Record>> {
        Ok(self.frame()?.and_then(|body| Record::decode(&body)))
    }

    /// Reads the body of the next record. Returns `None` if there is no complete record with a valid checksum.
    fn frame(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut length = [0; LENGTH_BYTES];
        if !self.fill(&mut length)? {
            return Ok(None);
        }
        let bytes = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if bytes > BODY_BYTES_MAX {
            return Ok(None);
        }
        let mut body = vec![0; bytes];
        let mut checksum = [0; CRC_BYTES];
        if !self.fill(&mut body)? || !self.fill(&mut checksum)? {
            return Ok(None);
        }
        self.position += (LENGTH_BYTES + bytes + CRC_BYTES) as u64;
        let found = crc32c::crc32c_append(crc32c::crc32c(&length), &body);
        Ok((found == u32::from_le_bytes(checksum)).then_some(body))
    }

    /// Fills `bytes`. Returns `false` if the journal ends first.
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        match self.source.read_exact(bytes) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}
