//! The target's file system: an XFS (or ext4) image on a tmpfs, all of which is written once before measurements.
//!
//! A disk with discard makes file creation erratic, and the first access to memory is slow. This setup has stable
//! performance. The mounts are below the session's directory, so the session removes them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::syncfs;

use crate::measurements::peers::RUN_DIRECTORY;
use crate::processes::run;
use crate::processes::session::Session;
use crate::units::ByteCount;

/// A mounted image.
#[derive(Debug)]
pub(crate) struct Volume {
    root: PathBuf,
    kind: &'static str,
}

impl Volume {
    /// Creates and mounts an image of `size`.
    pub(crate) fn create(session: &Session, size: ByteCount) -> Result<Self> {
        let memory = session.subdirectory("memory")?;
        let root = session.subdirectory("target")?;
        let limit = size.0 + SPARE_BYTES;
        run::line(&format!(
            "mount -t tmpfs -o size={limit} zmove-lab {}",
            memory.display()
        ))?;
        let image = memory.join("image");
        write_zeros(&image, size.0).context("failed to write the target image")?;
        let kind = make_file_system(&image)?;
        run::line(&format!(
            "mount -o loop {} {}",
            image.display(),
            root.display()
        ))?;
        Ok(Self { root, kind })
    }

    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the root of the mounted file system.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the directory into which a run copies.
    pub(crate) fn run_directory(&self) -> PathBuf {
        self.root.join(RUN_DIRECTORY)
    }

    /// Returns an empty directory for a run. Data of an earlier run is removed, and the removal is synced.
    pub(crate) fn fresh_directory(&self) -> Result<PathBuf> {
        let path = self.run_directory();
        if path.exists() {
            fs::remove_dir_all(&path)
                .with_context(|| format!("failed to remove {}", path.display()))?;
        }
        fs::create_dir(&path).with_context(|| format!("failed to create {}", path.display()))?;
        self.sync()?;
        Ok(path)
    }

    /// Copies `source` to the volume and removes the copy. Otherwise the time of the first tool would
    /// include the first access to the memory of the volume, which is slow.
    pub(crate) fn warm(&self, source: &Path) -> Result<()> {
        self.filled_directory(source)?;
        self.fresh_directory().map(drop)
    }

    /// Returns a directory for a run that contains a copy of the contents of `source`.
    pub(crate) fn filled_directory(&self, source: &Path) -> Result<PathBuf> {
        let path = self.fresh_directory()?;
        run::line(&format!("cp -a {}/. {}", source.display(), path.display()))?;
        self.sync()?;
        Ok(path)
    }

    /// Returns a directory for a run that contains the directories of `source`, but no files.
    pub(crate) fn directories_of(&self, source: &Path) -> Result<PathBuf> {
        let path = self.fresh_directory()?;
        let from = source.display();
        run::line(&format!(
            "rsync -a --include=*/ --exclude=* {from}/ {}",
            path.display()
        ))?;
        self.sync()?;
        Ok(path)
    }

    /// Waits until all written data is on the image.
    pub(crate) fn sync(&self) -> Result<()> {
        let root = File::open(&self.root).context("failed to open the target's root")?;
        syncfs(&root).context("failed to sync the target")
    }
}

fn write_zeros(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let block = vec![0; BLOCK_BYTES];
    for _ in 0..bytes.div_ceil(BLOCK_BYTES as u64) {
        file.write_all(&block)?;
    }
    Ok(())
}

/// Creates the file system. Neither program may discard blocks, because that would release the memory of the image.
fn make_file_system(image: &Path) -> Result<&'static str> {
    let image = image.display();
    if run::line(&format!("mkfs.xfs -q -K -f {image}")).is_ok() {
        return Ok("xfs");
    }
    run::line(&format!(
        "mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 {image}"
    ))?;
    Ok("ext4")
}

const BLOCK_BYTES: usize = 1 << 20;
const SPARE_BYTES: u64 = 64 << 20;
