//! Inspects the target while it is being written. Every entry under a final name must be complete.
//!
//! **Invariant:** a file is read again if its inode, its size or one of its times has changed since it was inspected.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::trees::versions::{Version, Versions};

/// Inspects the target.
#[derive(Debug)]
pub(crate) struct Inspector {
    target: PathBuf,
    versions: Versions,
    files: Files,
    seen: HashMap<PathBuf, Look>,
    block: Vec<u8>,
    found: Vec<String>,
    passes: u64,
    commits: Commits,
}

/// The inodes that each large file has had under its final name. A single push must rename such a file into place only
/// once.
#[derive(Debug, Default)]
struct Commits {
    /// Whether the first inode existed before the push, and the inodes.
    files: HashMap<PathBuf, (bool, Vec<(u64, u64)>)>,
    is_before: bool,
}

/// The entries that may exist under the final name of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Files {
    /// Complete versions only.
    Whole,
    /// Anything, because the file may be updated in place.
    Changing,
}

/// The properties by which a file that was found complete is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    inode: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A thread that inspects the target repeatedly. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Inspector {
    pub(crate) fn new(target: &Path, versions: Versions, files: Files) -> Self {
        Self {
            target: target.to_owned(),
            versions,
            files,
            seen: HashMap::new(),
            block: vec![0; BLOCK_BYTES],
            found: Vec::new(),
            passes: 0,
            commits: Commits::default(),
        }
    }

    /// Expects from now on that each large file is renamed into place at most once.
    pub(crate) fn expect_one_commit(&mut self) {
        self.commits = Commits {
            is_before: true,
            ..Commits::default()
        };
        self.pass();
        self.commits.is_before = false;
    }

    /// Describes the large files that were renamed into place more than once.
    pub(crate) fn take_doubled(&mut self) -> Vec<String> {
        let is_doubled = |(_, (was_there, files)): &(_, &(bool, Vec<_>))| {
            files.len() > 1 + usize::from(*was_there)
        };
        let doubled = self.commits.files.iter().filter(is_doubled);
        let doubled = doubled
            .map(|(path, (_, files))| format!("{path:?} was {files:?}"))
            .collect();
        self.commits
            .files
            .values_mut()
            .for_each(|(_, files)| files.truncate(1));
        doubled
    }

    /// Returns the versions that may exist, so that more can be added.
    pub(crate) fn versions(&mut self) -> &mut Versions {
        &mut self.versions
    }

    /// Inspects the whole target once.
    pub(crate) fn pass(&mut self) {
        self.passes += 1;
        self.directory(Path::new(""));
    }

    /// Returns the problems found since the last call. Each is reported once.
    pub(crate) fn take_found(&mut self) -> Vec<String> {
        std::mem::take(&mut self.found)
    }

    pub(crate) fn passes(&self) -> u64 {
        self.passes
    }

    fn directory(&mut self, path: &Path) {
        // A directory that has disappeared will be found under its other name.
        let Ok(entries) = fs::read_dir(self.target.join(path)) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if !is_hidden(&name) {
                self.entry(&path.join(name));
            }
        }
    }

    fn entry(&mut self, path: &Path) {
        let whole = self.target.join(path);
        let Ok(metadata) = fs::symlink_metadata(&whole) else {
            return;
        };
        if self.versions.of(path).is_empty() {
            return self.tell(format!(
                "{path:?} is neither in the source nor was it in the target"
            ));
        }
        if metadata.is_dir() {
            self.directory(path);
        } else if metadata.is_symlink() {
            let Ok(to) = fs::read_link(&whole) else {
                return;
            };
            let known = |version: &Version| matches!(version, Version::Link(known) if *known == to);
            if !self.versions.of(path).iter().any(known) {
                self.tell(format!("{path:?} leads to {to:?}, as it never did"));
            }
        } else if !metadata.is_file() {
            let special = Version::of_special(&metadata);
            if !self.versions.of(path).contains(&special) {
                self.tell(format!("{path:?} is {special:?}, as it never was"));
            }
        } else {
            self.commits.note(path, &metadata);
            if self.files == Files::Whole && self.seen.get(path) != Some(&Look::of(&metadata)) {
                self.file(path, &whole);
            }
        }
    }

    fn file(&mut self, path: &Path, whole: &Path) {
        // A FIFO may have replaced the file, and opening it would block without a writer. A link may have replaced it
        // too, and must not be followed.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let opened = rustix::fs::open(whole, flags, Mode::empty()).map(File::from);
        let mut file = match opened {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP) => return,
            Err(error) => return self.tell(format!("{path:?} cannot be opened: {error}")),
        };
        let Ok(before) = file.metadata() else { return };
        if !before.is_file() {
            return;
        }
        let version = match Version::of_file(&mut file, &mut self.block) {
            Ok(version) => version,
            Err(error) => return self.tell(format!("{path:?} cannot be read: {error}")),
        };
        if self.versions.of(path).contains(&version) {
            self.seen.insert(path.to_owned(), Look::of(&before));
        } else {
            self.tell(format!(
                "{path:?} holds {} bytes that are no whole version of it",
                before.len()
            ));
        }
    }

    fn tell(&mut self, what: String) {
        if !self.found.contains(&what) {
            self.found.push(what);
        }
    }
}

impl Commits {
    fn note(&mut self, path: &Path, metadata: &Metadata) {
        if metadata.len() < LARGE_BYTES_MIN {
            return;
        }
        let file = (metadata.dev(), metadata.ino());
        match self.files.get_mut(path) {
            Some((_, files)) if files.contains(&file) => {}
            Some((_, files)) => files.push(file),
            None => drop(
                self.files
                    .insert(path.to_owned(), (self.is_before, vec![file])),
            ),
        }
    }
}

impl Look {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Watch {
    /// Starts to inspect the target.
    pub(crate) fn start(inspector: &Arc<Mutex<Inspector>>) -> Self {
        let (stop, stopped) = mpsc::channel();
        let inspector = Arc::clone(inspector);
        let thread = thread::spawn(move || {
            while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                inspector
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .pass();
            }
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            eprintln!("zmove-lab: the watching thread panicked");
        }
    }
}

/// Returns whether a name is one of zmove's hidden names, whose contents are not checked.
pub(crate) fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".zmove-")
}

const BLOCK_BYTES: usize = 1 << 20;
/// Minimum size of a file that is divided into ranges.
const LARGE_BYTES_MIN: u64 = 64 << 20;
/// The pause between two inspections of the target.
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn inspector(contents: &[&[u8]]) -> (tempfile::TempDir, Inspector) {
        let home = tempfile::tempdir().unwrap();
        let mut versions = Versions::default();
        for contents in contents {
            let version = Version::File(contents.len() as u64, *blake3::hash(contents).as_bytes());
            versions.add(Path::new("f"), version);
        }
        let inspector = Inspector::new(home.path(), versions, Files::Whole);
        (home, inspector)
    }

    fn found_after(inspector: &mut Inspector) -> usize {
        inspector.pass();
        inspector.take_found().len()
    }

    #[test]
    fn each_whole_version_may_stand_there_and_no_part_of_one() {
        let (home, mut inspector) = inspector(&[b"old", b"newer"]);
        for (contents, found) in [("old", 0), ("newer", 0), ("newe", 1), ("older", 1), ("", 1)] {
            fs::write(home.path().join("f"), contents).unwrap();
            assert_eq!(found_after(&mut inspector), found, "{contents}");
        }
    }

    #[test]
    fn a_name_that_is_nobodys_is_found_unless_it_is_hidden() {
        let (home, mut inspector) = inspector(&[b"x"]);
        fs::create_dir(home.path().join(".zmove-1.2.3-4-5-6-7-8-9")).unwrap();
        fs::write(home.path().join(".zmove-1.2.3-4-5-6-7-8-9/f"), "half").unwrap();
        assert_eq!(found_after(&mut inspector), 0);
        fs::write(home.path().join("stray"), "").unwrap();
        assert_eq!(found_after(&mut inspector), 1);
    }
}
