//! The bytes of a journal's records.
//!
//! A record is the length of its body (u32), its type (u8), the body, and the CRC32C of all that. All numbers are
//! little-endian. **Invariant:** the first record's frame, magic and version have the same place in every version.

use zmove_disk::boot_id;
use zmove_types::{Cv, Name, RelPath, Timestamp, TransferId};

use super::{Begin, JournalError, OWNER_BYTES_MAX, PartFile, SourceVersion, TARGET_BYTES_MAX};

/// The format that is written and read here.
pub(super) const VERSION: u32 = 1;
/// The first bytes in the body of a journal's first record.
pub(super) const MAGIC: [u8; 8] = *b"zmv-jrnl";
/// The bytes of a record's length and type.
pub(super) const HEAD_BYTES: usize = 5;
/// The bytes of the checksum at a record's end.
pub(super) const CRC_BYTES: usize = 4;
/// The longest body, in bytes; checked before anything is allocated.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;
/// The most groups in one record.
pub(super) const GROUPS_MAX: usize = 8192;

const NANOS_MAX: u32 = 999_999_999;

/// The identifier of one run of the system; zeros where the kernel has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BootId(pub(super) [u8; 16]);

impl BootId {
    /// The identifier of this run of the system.
    pub(super) fn current() -> Self {
        boot_id().map_or_else(Self::default, Self::of)
    }

    fn of(number: u128) -> Self {
        let mut bytes = number.to_le_bytes();
        // The digits stay in the order in which the kernel writes them.
        bytes.reverse();
        Self(bytes)
    }
}

/// One record of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The first record of a journal, and never another one.
    Begin(Begin, BootId),
    /// A large file begins.
    Part(u64, PartFile),
    /// Groups from `first` on that have been written, or had been `flushed` before they came into this journal.
    Groups {
        file: u64,
        first: u32,
        cvs: Vec<Cv>,
        flushed: bool,
    },
    /// All groups in records that end at or before this offset have been flushed.
    Flushed { upto: u64 },
    /// A file has its name or is given up.
    Ended { file: u64 },
    /// The transfer writes no more to the part of a file, which it has left with this change time.
    Left { file: u64, ctime: Timestamp },
}

const BEGIN: u8 = 1;
const PART: u8 = 2;
const GROUPS: u8 = 3;
const FLUSHED: u8 = 4;
const ENDED: u8 = 5;
const KEPT: u8 = 6;
const LEFT: u8 = 7;

impl Record {
    /// The record's bytes.
    ///
    /// # Errors
    /// [`JournalError::TooLong`] when a field cannot be carried.
    pub(super) fn encode(&self) -> Result<Vec<u8>, JournalError> {
        let mut body = Vec::new();
        let kind = match self {
            Self::Begin(begin, boot) => {
                put_begin(&mut body, begin, *boot)?;
                BEGIN
            }
            Self::Part(file, part) => {
                body.extend(file.to_le_bytes());
                put_part(&mut body, part)?;
                PART
            }
            Self::Groups {
                file,
                first,
                cvs,
                flushed,
            } => {
                put_groups(&mut body, *file, *first, cvs);
                if *flushed { KEPT } else { GROUPS }
            }
            Self::Flushed { upto } => {
                body.extend(upto.to_le_bytes());
                FLUSHED
            }
            Self::Ended { file } => {
                body.extend(file.to_le_bytes());
                ENDED
            }
            Self::Left { file, ctime } => {
                body.extend(file.to_le_bytes());
                put_time(&mut body, *ctime);
                LEFT
            }
        };
        frame(kind, &body)
    }

    /// Decodes a type and a body whose checksum was right; `None` where they are malformed.
    pub(super) fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let record = match kind {
            BEGIN => fields.begin()?,
            PART => Self::Part(fields.u64()?, fields.part()?),
            GROUPS | KEPT => Self::Groups {
                file: fields.u64()?,
                first: fields.u32()?,
                cvs: fields.cvs()?,
                flushed: kind == KEPT,
            },
            FLUSHED => Self::Flushed {
                upto: fields.u64()?,
            },
            ENDED => Self::Ended {
                file: fields.u64()?,
            },
            LEFT => Self::Left {
                file: fields.u64()?,
                ctime: fields.time()?,
            },
            _ => return None,
        };
        fields.0.is_empty().then_some(record)
    }
}

/// The format version in a journal's first record, also one unknown here; `None` for any other record.
pub(super) fn version(kind: u8, body: &[u8]) -> Option<u32> {
    let mut fields = Fields(body);
    let magic = fields.array::<8>()?;
    (kind == BEGIN && magic == MAGIC)
        .then(|| fields.u32())
        .flatten()
}

/// The checksum over a record's head and body.
pub(super) fn checksum(head: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), body)
}

fn frame(kind: u8, body: &[u8]) -> Result<Vec<u8>, JournalError> {
    fits("a record", body.len(), BODY_BYTES_MAX)?;
    let length = u32::try_from(body.len()).expect("it was just held against the limit");
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len() + CRC_BYTES);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(body);
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

fn put_begin(body: &mut Vec<u8>, begin: &Begin, boot: BootId) -> Result<(), JournalError> {
    body.extend(MAGIC);
    body.extend(VERSION.to_le_bytes());
    body.extend(boot.0);
    body.extend(begin.transfer.0);
    for number in [begin.device, begin.inode, begin.begun] {
        body.extend(number.to_le_bytes());
    }
    put_text(body, "the owner", &begin.owner, OWNER_BYTES_MAX)?;
    put_text(body, "the target", &begin.target, TARGET_BYTES_MAX)
}

fn put_part(body: &mut Vec<u8>, part: &PartFile) -> Result<(), JournalError> {
    let path = part.path.as_bytes();
    let name = part.part.as_bytes();
    body.extend(part.inode.to_le_bytes());
    put_time(body, part.born);
    put_source(body, &part.source);
    put_text(body, "the path", path, RelPath::BYTES_MAX)?;
    put_text(body, "the part's name", name, Name::BYTES_MAX)
}

fn put_groups(body: &mut Vec<u8>, file: u64, first: u32, cvs: &[Cv]) {
    body.reserve_exact(12 + 32 * cvs.len());
    body.extend(file.to_le_bytes());
    body.extend(first.to_le_bytes());
    cvs.iter().for_each(|cv| body.extend(cv.0));
}

fn put_source(body: &mut Vec<u8>, source: &SourceVersion) {
    body.extend(source.bytes.to_le_bytes());
    put_time(body, source.mtime);
    put_time(body, source.ctime);
    body.extend(source.inode.to_le_bytes());
}

fn put_time(body: &mut Vec<u8>, time: Timestamp) {
    body.extend(time.seconds.to_le_bytes());
    // The reader refuses more, and what is written must be readable.
    body.extend(time.nanos.min(NANOS_MAX).to_le_bytes());
}

fn put_text(
    body: &mut Vec<u8>,
    what: &'static str,
    text: &[u8],
    limit: usize,
) -> Result<(), JournalError> {
    fits(what, text.len(), limit)?;
    let length = u16::try_from(text.len()).expect("every limit is below 64 KiB");
    body.extend(length.to_le_bytes());
    body.extend_from_slice(text);
    Ok(())
}

fn fits(what: &'static str, bytes: usize, limit: usize) -> Result<(), JournalError> {
    if bytes > limit {
        Err(JournalError::TooLong { what, bytes, limit })
    } else {
        Ok(())
    }
}

/// Takes fields off the front of a body.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn time(&mut self) -> Option<Timestamp> {
        let seconds = self.array().map(i64::from_le_bytes)?;
        let nanos = self.u32()?;
        (nanos <= NANOS_MAX).then_some(Timestamp { seconds, nanos })
    }

    fn text(&mut self, limit: usize) -> Option<&'a [u8]> {
        let length = usize::from(self.array().map(u16::from_le_bytes)?);
        (length <= limit).then(|| self.bytes(length)).flatten()
    }

    fn begin(&mut self) -> Option<Record> {
        let _magic = self.array::<8>()?;
        let _version = self.u32()?;
        let boot = BootId(self.array()?);
        let transfer = TransferId(self.array()?);
        let device = self.u64()?;
        let inode = self.u64()?;
        let begun = self.u64()?;
        let begin = Begin {
            transfer,
            owner: self.text(OWNER_BYTES_MAX)?.to_vec(),
            target: self.text(TARGET_BYTES_MAX)?.to_vec(),
            device,
            inode,
            begun,
        };
        Some(Record::Begin(begin, boot))
    }

    fn part(&mut self) -> Option<PartFile> {
        Some(PartFile {
            inode: self.u64()?,
            born: self.time()?,
            source: self.source()?,
            path: RelPath::from_bytes(self.text(RelPath::BYTES_MAX)?).ok()?,
            part: Name::from_bytes(self.text(Name::BYTES_MAX)?).ok()?,
        })
    }

    fn source(&mut self) -> Option<SourceVersion> {
        Some(SourceVersion {
            bytes: self.u64()?,
            mtime: self.time()?,
            ctime: self.time()?,
            inode: self.u64()?,
        })
    }

    fn cvs(&mut self) -> Option<Vec<Cv>> {
        let (cvs, rest) = self.0.as_chunks::<32>();
        let fits = (1..=GROUPS_MAX).contains(&cvs.len()) && rest.is_empty();
        self.0 = rest;
        fits.then(|| cvs.iter().copied().map(Cv).collect())
    }
}

#[cfg(test)]
mod tests;
