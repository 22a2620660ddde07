//! Single entries: written with contents that a seed repeats, and given their mode and time.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT};

use super::dice::Dice;
use super::versions::Version;

/// What a file will hold.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    pub(crate) bytes: u64,
    pub(crate) dice: Dice,
}

/// A time of modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) seconds: i64,
    pub(crate) nanos: u32,
}

impl Contents {
    /// What a file of these contents is.
    pub(crate) fn version(&self) -> Version {
        let mut hasher = blake3::Hasher::new();
        self.for_each_block(|block| {
            hasher.update(block);
            Ok(())
        })
        .expect("hashing does not fail");
        Version::File(self.bytes, *hasher.finalize().as_bytes())
    }

    /// A new file with them.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let failed = || format!("failed to write {}", path.display());
        let mut file = File::create_new(path).with_context(failed)?;
        self.for_each_block(|block| file.write_all(block)).with_context(failed)
    }

    fn for_each_block(&self, mut take: impl FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
        let mut dice = self.dice.clone();
        let mut left = self.bytes;
        let mut block = vec![0; BLOCK_BYTES];
        while left > 0 {
            let taken = BLOCK_BYTES.min(usize::try_from(left).unwrap_or(BLOCK_BYTES));
            dice.fill(&mut block[..taken]);
            take(&block[..taken])?;
            left -= taken as u64;
        }
        Ok(())
    }
}

impl Moment {
    /// Mostly of the last years; sometimes one that is easily taken for something else.
    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let seconds = match dice.within(0..=9) {
            0 => *dice.pick(&[0, 1, -1, -1_000_000_000, 4_000_000_000]),
            _ => 1_000_000_000 + i64::from(u32::try_from(dice.within(0..=700_000_000)).unwrap_or(0)),
        };
        let nanos = match dice.within(0..=3) {
            0 => *dice.pick(&[0, 1, 999_999_999]),
            _ => u32::try_from(dice.within(0..=999_999_999)).unwrap_or(0),
        };
        Self { seconds, nanos }
    }

    /// A time that cannot be taken for `other`: one second later if both lie in the same second. Files of the
    /// same length and time count as equal, also where a file system has cut the time to whole seconds.
    pub(crate) fn unlike(self, other: Self) -> Self {
        if self.seconds == other.seconds { Self { seconds: self.seconds + 1, ..self } } else { self }
    }

    /// When an entry was modified.
    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        let nanos = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
        Self { seconds: metadata.mtime(), nanos }
    }

    /// Sets it on any entry, a link itself included.
    pub(crate) fn set(self, path: &Path) -> Result<()> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: self.seconds, tv_nsec: self.nanos.into() },
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

/// A symbolic link.
pub(crate) fn link(path: &Path, to: &std::ffi::OsStr) -> Result<()> {
    symlink(to, path).with_context(|| format!("failed to link {}", path.display()))
}

const BLOCK_BYTES: usize = 1 << 20;
