//! Helpers for tests of the walk: trees, consumers, and threads that run as another user.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use zmove_scan::{Entry, Scan, ScanConfig, ScanError, ScanItem, ScanRoot, scan};
use zmove_types::RelPath;

/// Everything that a scan emitted.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The entries by their source path below the root.
    pub(crate) entries: BTreeMap<Vec<u8>, Entry>,
    /// Target paths of all entries.
    pub(crate) targets: Vec<Vec<u8>>,
    /// Target path and mode of each root directory.
    pub(crate) roots: Vec<(Vec<u8>, u32)>,
    pub(crate) errors: Vec<ScanError>,
    pub(crate) batch_entries_most: usize,
}

impl Found {
    /// Collects all items. Panics if an entry is emitted twice or before its directory.
    pub(crate) fn collect(stream: Scan) -> Self {
        let mut found = Self::default();
        for item in stream {
            match item {
                ScanItem::Root {
                    directory,
                    metadata,
                    ..
                } => {
                    found
                        .roots
                        .push((directory.target_path().as_bytes().to_vec(), metadata.mode));
                }
                ScanItem::Batch(batch) => found.add(&batch),
                ScanItem::Error(error) => found.errors.push(error),
            }
        }
        found
    }

    fn add(&mut self, batch: &zmove_scan::EntryBatch) {
        let directory = &batch.directory;
        let path = directory.source_path();
        assert!(
            path.is_root() || self.entries.contains_key(path.as_bytes()),
            "{path} is not announced"
        );
        self.batch_entries_most = self.batch_entries_most.max(batch.entries.len());
        for entry in &batch.entries {
            self.targets.push(
                directory
                    .target_of(&entry.name)
                    .unwrap()
                    .as_bytes()
                    .to_vec(),
            );
            let path = path.join(&entry.name).unwrap();
            assert!(
                self.entries
                    .insert(path.as_bytes().to_vec(), entry.clone())
                    .is_none(),
                "{path} came twice"
            );
        }
    }
}

pub(crate) fn walk(tree: &Path, config: &ScanConfig) -> Found {
    walk_root(root_of(tree, ""), config)
}

pub(crate) fn walk_root(root: ScanRoot, config: &ScanConfig) -> Found {
    Found::collect(scan(vec![root], config))
}

pub(crate) fn root_of(source: &Path, prefix: &str) -> ScanRoot {
    ScanRoot::new(source, RelPath::from_bytes(prefix.as_bytes()).unwrap())
}

pub(crate) fn one_thread() -> ScanConfig {
    ScanConfig {
        threads: 1,
        ..ScanConfig::default()
    }
}

pub(crate) fn small_batches() -> ScanConfig {
    ScanConfig {
        threads: 2,
        batch_entries_max: 4,
        queue_batches_max: 1,
        ..ScanConfig::default()
    }
}

/// A chain of directories whose path exceeds the maximum length of a path.
#[derive(Debug)]
pub(crate) struct Deep(PathBuf);

impl Deep {
    pub(crate) fn new(name: &str, depth: usize) -> Self {
        let top = tempfile::tempdir().unwrap().keep();
        let mut fd = openat(CWD, &top, OFlags::DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&fd, name, Mode::RWXU).unwrap();
            fd = openat(&fd, name, OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        Self(top)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Deep {
    /// Runs `rm`, because `remove_dir_all` would keep a descriptor open per level.
    fn drop(&mut self) {
        let removed = Command::new("rm").arg("-rf").arg(&self.0).status();
        assert!(removed.is_ok_and(|status| status.success()));
    }
}

/// Runs `job` on a thread of a user other than root. Threads that `job` starts run as that user too.
pub(crate) fn as_nobody<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    let run = move || {
        if rustix::process::geteuid().is_root() {
            let nobody = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        job()
    };
    std::thread::spawn(run).join().unwrap()
}
