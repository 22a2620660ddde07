//! Checks of the target after a power cut.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use super::plan::Neighbour;
use crate::torture::trees::metadata::Kind;
use crate::torture::trees::tree::Tree;

/// Returns the files that existed in the target before the push, were flushed, and are also files in the source. Some
/// version of each must exist at all times.
pub(crate) fn standing(tree: &Tree, target: &Path) -> Vec<PathBuf> {
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file());
    let files = tree
        .entries()
        .iter()
        .filter(|(_, kind)| *kind == Kind::File);
    files
        .map(|(path, _)| path.clone())
        .filter(|path| is_file(&target.join(path)))
        .collect()
}

/// Returns the files with the length and time of the source but different contents. The next run would treat them as
/// equal.
pub(crate) fn impostors(tree: &Tree, target: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for (path, _) in tree
        .entries()
        .iter()
        .filter(|(_, kind)| *kind == Kind::File)
    {
        let (from, to) = (tree.root().join(path), target.join(path));
        let Ok(there) = fs::symlink_metadata(&to) else {
            continue;
        };
        let expected =
            fs::symlink_metadata(&from).with_context(|| format!("failed to look at {path:?}"))?;
        let look =
            |metadata: &fs::Metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
        if there.is_file() && look(&there) == look(&expected) {
            let same = fs::read(&to)
                .is_ok_and(|bytes| fs::read(&from).is_ok_and(|source| source == bytes));
            if !same {
                found.push(path.clone());
            }
        }
    }
    Ok(found)
}

/// Other programs that use the same file system. They end when this value is dropped.
#[derive(Debug)]
pub(crate) struct Company {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Company {
    /// Starts the threads. One thread syncs a small file, so that the journal commits. The other writes out dirty
    /// pages, as the kernel does every few seconds.
    pub(crate) fn start(neighbour: Neighbour, mount: &Path) -> Result<Self> {
        let mut company = Self {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        if neighbour == Neighbour::Busy {
            let mut file = File::create(mount.join("neighbour"))
                .context("failed to create a neighbour's file")?;
            let root = File::open(mount).context("failed to open the mount")?;
            company.repeat(COMMIT_PAUSE, move || {
                let _the_power_may_be_gone = file
                    .write_all(b"something else\n")
                    .and_then(|()| file.sync_all());
            });
            company.repeat(WRITE_BACK_PAUSE, move || {
                let _the_power_may_be_gone = rustix::fs::syncfs(&root);
            });
        }
        Ok(company)
    }

    fn repeat(&mut self, pause: Duration, mut work: impl FnMut() + Send + 'static) {
        let stop = Arc::clone(&self.stop);
        self.threads.push(thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                work();
                thread::sleep(pause);
            }
        }));
    }
}

impl Drop for Company {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                eprintln!("zmove-lab: the neighbour panicked");
            }
        }
    }
}

const COMMIT_PAUSE: Duration = Duration::from_millis(3);
const WRITE_BACK_PAUSE: Duration = Duration::from_millis(20);
