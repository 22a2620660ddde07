//! Single entries, created with reproducible contents, with holes, and with their mode and time.

use std::fs::{self, File};
use std::iter;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT};

use super::versions::Version;
use crate::torture::dice::Dice;

/// The contents of a file.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    pub(crate) bytes: u64,
    pub(crate) dice: Dice,
    /// The ranges with data, in ascending order. The rest of the file consists of holes.
    pub(crate) data: Vec<Range<u64>>,
}

/// A modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

impl Contents {
    /// Returns contents without holes.
    pub(crate) fn whole(bytes: u64, dice: Dice) -> Self {
        Self {
            bytes,
            dice,
            data: iter::once(0..bytes).collect(),
        }
    }

    /// Draws contents that have holes if the file is large enough.
    pub(crate) fn draw(bytes: u64, dice: &mut Dice) -> Self {
        let mut contents = Self::whole(bytes, dice.fork());
        if bytes >= HOLES_FROM_BYTES && dice.one_in(2) {
            contents.data = draw_ranges(bytes, dice);
        }
        contents
    }

    /// Returns the version of a file with these contents.
    pub(crate) fn version(&self) -> Version {
        let mut hasher = blake3::Hasher::new();
        let zeros = vec![0; BLOCK_BYTES];
        let mut end = 0;
        self.for_each_block(|at, block| {
            hash_zeros(&mut hasher, at - end, &zeros);
            hasher.update(block);
            end = at + block.len() as u64;
            Ok(())
        })
        .expect("hashing does not fail");
        hash_zeros(&mut hasher, self.bytes - end, &zeros);
        Version::File(self.bytes, *hasher.finalize().as_bytes())
    }

    /// Creates a file with these contents.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let failed = || format!("failed to write {}", path.display());
        let file = File::create_new(path).with_context(failed)?;
        file.set_len(self.bytes).with_context(failed)?;
        self.for_each_block(|at, block| file.write_all_at(block, at))
            .with_context(failed)
    }

    /// Calls `take` for each block of data with its offset.
    fn for_each_block(
        &self,
        mut take: impl FnMut(u64, &[u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut dice = self.dice.clone();
        let mut block = vec![0; BLOCK_BYTES];
        for Range { start, end } in self.data.iter().cloned() {
            let mut at = start;
            while at < end {
                let taken = BLOCK_BYTES.min(usize::try_from(end - at).unwrap_or(BLOCK_BYTES));
                dice.fill(&mut block[..taken]);
                take(at, &block[..taken])?;
                at += taken as u64;
            }
        }
        Ok(())
    }
}

impl Moment {
    /// Draws a time. Most are from recent years, and some are values that are often misinterpreted.
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let seconds = match dice.within(0..=9) {
            0 => *dice.pick(&[0, 1, -1, -1_000_000_000, 4_000_000_000]),
            _ => {
                1_000_000_000 + i64::from(u32::try_from(dice.within(0..=700_000_000)).unwrap_or(0))
            }
        };
        let nanos = match dice.within(0..=3) {
            0 => *dice.pick(&[0, 1, 999_999_999]),
            _ => u32::try_from(dice.within(0..=999_999_999)).unwrap_or(0),
        };
        Self { seconds, nanos }
    }

    /// Returns a time that is different from `other`: one second later if both are in the same second. Files with the
    /// same length and time count as equal, even on a file system that truncates times to whole seconds.
    pub(crate) fn unlike(self, other: Self) -> Self {
        if self.seconds == other.seconds {
            Self {
                seconds: self.seconds + 1,
                ..self
            }
        } else {
            self
        }
    }

    /// Returns the modification time of an entry.
    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        let nanos = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
        Self {
            seconds: metadata.mtime(),
            nanos,
        }
    }

    /// Sets the time of an entry. Symbolic links are not followed.
    pub(crate) fn set(self, path: &Path) -> Result<()> {
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: self.seconds,
                tv_nsec: self.nanos.into(),
            },
        };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .with_context(|| format!("failed to set the time of {}", path.display()))
    }
}

/// Sets the mode of a file or directory.
pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("failed to set the mode of {}", path.display()))
}

/// Creates a symbolic link.
pub(crate) fn link(path: &Path, to: &std::ffi::OsStr) -> Result<()> {
    symlink(to, path).with_context(|| format!("failed to link {}", path.display()))
}

fn hash_zeros(hasher: &mut blake3::Hasher, bytes: u64, zeros: &[u8]) {
    let mut left = bytes;
    while left > 0 {
        let some = zeros
            .len()
            .min(usize::try_from(left).unwrap_or(zeros.len()));
        hasher.update(&zeros[..some]);
        left -= some as u64;
    }
}

/// Draws data ranges with borders at page boundaries, many of them near group boundaries. There may be no ranges at
/// all.
fn draw_ranges(bytes: u64, dice: &mut Dice) -> Vec<Range<u64>> {
    let mut borders: Vec<u64> = (0..dice.within(0..=HOLES_MAX))
        .map(|_| draw_border(bytes, dice))
        .collect();
    borders.push(if dice.one_in(2) {
        0
    } else {
        draw_border(bytes, dice)
    });
    if dice.one_in(2) {
        borders.push(bytes);
    }
    borders.sort_unstable();
    borders.dedup();
    borders
        .chunks_exact(2)
        .map(|ends| ends[0]..ends[1])
        .collect()
}

fn draw_border(bytes: u64, dice: &mut Dice) -> u64 {
    let page = match dice.within(0..=1) {
        0 => dice.within(0..=bytes / GROUP_BYTES) * (GROUP_BYTES / PAGE_BYTES) + dice.within(0..=2),
        _ => dice.within(0..=bytes / PAGE_BYTES) + 1,
    };
    (page.saturating_sub(1) * PAGE_BYTES).min(bytes)
}

/// Returns the data ranges of a file.
pub(crate) fn data_ranges(file: &File) -> rustix::io::Result<Vec<Range<u64>>> {
    use rustix::fs::SeekFrom::{Data, Hole};
    let mut ranges = Vec::new();
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(file, Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(ranges),
            Err(error) => return Err(error),
        };
        at = rustix::fs::seek(file, Hole(start))?;
        ranges.push(start..at);
    }
}

/// Copies a file with its mode and its holes.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("failed to copy {}", from.display());
    let source = File::open(from).with_context(failed)?;
    let target = File::create_new(to).with_context(failed)?;
    let metadata = source.metadata().with_context(failed)?;
    target.set_len(metadata.len()).with_context(failed)?;
    for Range { start, end } in data_ranges(&source).with_context(failed)? {
        let mut data = vec![0; usize::try_from(end - start).context("a range fits into memory")?];
        source
            .read_exact_at(&mut data, start)
            .with_context(failed)?;
        target.write_all_at(&data, start).with_context(failed)?;
    }
    set_mode(to, metadata.mode() & 0o777)
}

/// The size of the groups by which large files are hashed.
pub(crate) const GROUP_BYTES: u64 = 4 << 20;
/// Minimum size of a file with holes.
const HOLES_FROM_BYTES: u64 = 2 * PAGE_BYTES;
const HOLES_MAX: u64 = 12;
const PAGE_BYTES: u64 = 4096;
const BLOCK_BYTES: usize = 1 << 20;
