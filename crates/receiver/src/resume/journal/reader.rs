//! Reads a journal back: all whole records from its beginning, and the state that they add up to.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read};

use zmove_types::{Cv, GroupSpan, Timestamp};

use super::record::{BODY_BYTES_MAX, BootId, CRC_BYTES, LENGTH_BYTES, MAGIC, Record, VERSION};
use super::{Begin, FILES_MAX, JournalError, PartFile, Unfinished, UnfinishedFile};

/// The state that the records of a journal add up to.
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
    /// Each group with the offset at which its record ends; zero for a group that was already flushed.
    groups: BTreeMap<u32, (Cv, u64)>,
    /// The change time with which the part was left, if nothing was written to it after that.
    left: Option<Timestamp>,
}

/// Reads a journal from its beginning to its end or to the first record that is not whole; nothing after that is used.
///
/// # Errors
/// The outer result has the system's error, the inner one the reason why the journal cannot be used.
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

/// The files of a journal that have flushed groups, with these groups alone. A journal that cannot be used has none.
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

/// Reads on from a position in the journal of a session in a shared job, which that may be writing: each record that is
/// whole, with the offset at which it ends. The position is behind the last one that has been taken. A journal without
/// a beginning tells nothing.
///
/// # Errors
/// The system's error, and that of `take`.
pub(crate) fn read_on(
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

/// Reads no more than the first record of a journal.
///
/// # Errors
/// As [`replay`].
pub(super) fn begin(source: impl Read) -> io::Result<Result<Begin, JournalError>> {
    let mut records = Records {
        source: BufReader::new(source),
        position: 0,
    };
    Ok(records.begin()?.map(|(begin, _boot)| begin))
}

impl Replay {
    /// The unfinished files, as seen in the run of the system `now`.
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

    /// Applies the record from `start` to `end`; `false` for one that no writer puts there.
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

    /// Adds the values of groups. Those of a file that has ended meanwhile are ignored, and so are those
    /// beyond the end of the file.
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
            // Writing the same contents again makes what is stored no less safe.
            let known = file.groups.get(&index).filter(|(there, _)| *there == cv);
            let end = known.map_or(end, |&(_, before)| before.min(end));
            file.groups.insert(index, (cv, end));
        }
    }
}

/// The records of a journal, one after the other.
struct Records<R> {
    source: BufReader<R>,
    position: u64,
}

impl<R: Read> Records<R> {
    /// The first record.
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

    /// A record's body, or `None` where none that is whole begins.
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

    /// Fills `bytes`; `false` when the journal ends before.
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        match self.source.read_exact(bytes) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }
}
