//! Stores the number of threads that was useful on each slow file system, in the file `storage` next to the keys. The
//! next transfer on that file system starts with the stored number.
//!
//! Each line holds one task on one file system, such as `read:nfs4:server:/export`, and a number of threads. If more
//! threads than cores were not useful on a file system, it has no line.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::cache_file::{CacheFile, CacheValue, today};
use crate::opening::proc::{Mount, mounts};

use super::{StorageThreads, THREADS_MAX, Task, cores};

/// The stored numbers of threads for all file systems. The default value stores nothing.
#[derive(Clone, Debug, Default)]
pub struct ThreadCountCache(Option<PathBuf>);

/// The stored numbers of threads for one file system.
#[derive(Debug, Default)]
pub struct FileSystemThreadCounts(Option<(CacheFile<UsefulThreads>, String)>);

/// The kind of work of the threads on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageWork {
    /// Opening and reading small files.
    Read,
    /// Looking up entries.
    Look,
    /// Creating and writing entries.
    Write,
    /// Renaming entries to their final names.
    Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UsefulThreads {
    threads: usize,
    /// The day of the measurement, as days since 1970-01-01.
    day: u64,
}

impl ThreadCountCache {
    /// Returns the numbers of threads that are stored in the directory `home`.
    #[must_use]
    pub fn in_home(home: &Path) -> Self {
        Self(Some(home.join(FILE)))
    }

    /// Returns the numbers of threads for the file system at `path`. They are empty if the path cannot be opened.
    #[must_use]
    pub fn at(&self, path: &Path) -> FileSystemThreadCounts {
        let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        opened.map_or_else(
            |_nowhere| FileSystemThreadCounts::default(),
            |opened| self.of(opened),
        )
    }

    /// Returns the numbers of threads for the file system that contains `file`.
    #[must_use]
    pub fn of(&self, file: impl AsFd) -> FileSystemThreadCounts {
        let name = || Mount::of_open_file(&mounts(), file).map(|mount| name_of(&mount));
        let known = self
            .0
            .clone()
            .and_then(|path| Some((CacheFile::new(path, HEADER, LINES_MAX), name()?)));
        FileSystemThreadCounts(known)
    }
}

impl FileSystemThreadCounts {
    /// Returns the number of threads that was useful in an earlier transfer, if that number exceeded the number of
    /// cores.
    #[must_use]
    pub fn threads(&self, work: StorageWork) -> Option<usize> {
        let (remembered, file_system) = self.0.as_ref()?;
        let known = remembered.get(&key(work, file_system)).ok().flatten()?;
        (today().saturating_sub(known.day) <= DAYS_MAX).then_some(known.threads)
    }

    /// Starts `threads` with the number that was useful in an earlier transfer.
    pub fn recall(&self, work: StorageWork, threads: &StorageThreads) {
        if let Some(known) = self.threads(work) {
            threads.start_with(work.task(), known);
        }
    }

    /// Stores how many of `threads` were useful, if there was enough work to determine that.
    pub fn keep(&self, work: StorageWork, threads: &StorageThreads) {
        let Some(((remembered, file_system), found)) =
            self.0.as_ref().zip(threads.useful_threads(work.task()))
        else {
            return;
        };
        let is_slow = found > cores();
        let known = is_slow.then(|| UsefulThreads {
            threads: found,
            day: today(),
        });
        // The value is only a hint, so an error is ignored. Other code reports a home directory that is not writable.
        let _best_effort = remembered.put(&key(work, file_system), known);
    }
}

impl StorageWork {
    const fn task(self) -> Task {
        match self {
            Self::Read | Self::Look => Task::Read,
            Self::Write | Self::Name => Task::Write,
        }
    }
}

fn key(work: StorageWork, file_system: &str) -> String {
    let work = match work {
        StorageWork::Read => "read",
        StorageWork::Look => "look",
        StorageWork::Write => "write",
        StorageWork::Name => "name",
    };
    format!("{work}:{file_system}")
}

/// Returns the name of a mount's file system, which consists of its type and source. A network file system has the same
/// name at every mount point.
fn name_of(Mount { kind, source, .. }: &Mount) -> String {
    let no_blank = |letter: char| {
        if letter.is_whitespace() || letter.is_control() {
            '_'
        } else {
            letter
        }
    };
    format!("{kind}:{source}").chars().map(no_blank).collect()
}

impl CacheValue for UsefulThreads {
    fn is_plausible(&self) -> bool {
        (1..=THREADS_MAX).contains(&self.threads)
    }
}

const FILE: &str = "storage";
const HEADER: &str = "# zmove storage 2";
/// Maximum number of lines in the file. One file system has up to four lines.
const LINES_MAX: usize = 256;
/// Number of days for which a stored value is valid. Later, the storage may have been extended or replaced.
const DAYS_MAX: u64 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_on_late_storage_is_where_the_next_begin() {
        let home = tempfile::tempdir().unwrap();
        let memory = ThreadCountCache::in_home(home.path()).of(std::fs::File::open("/").unwrap());
        let (late, prompt, next) = (
            StorageThreads::default(),
            StorageThreads::default(),
            StorageThreads::default(),
        );
        late.state.lock().tasks[Task::Read as usize].width.find(96);
        memory.keep(StorageWork::Read, &late);
        memory.keep(StorageWork::Write, &late);
        memory.recall(StorageWork::Write, &next);
        assert!(!next.is_slow(Task::Write), "nothing was found of it");
        memory.recall(StorageWork::Read, &next);
        assert_eq!(
            next.state.lock().tasks[Task::Read as usize].width.threads(),
            96
        );
        let at = |path: &str| {
            ThreadCountCache::in_home(home.path())
                .at(Path::new(path))
                .threads(StorageWork::Read)
        };
        assert_eq!((at("/"), at("/nowhere")), (Some(96), None));
        let text = std::fs::read_to_string(home.path().join("storage")).unwrap();
        assert!(
            text.starts_with("# zmove storage 2\nread:") && text.lines().count() == 2,
            "{text}"
        );
        prompt.state.lock().tasks[Task::Read as usize].width.find(1);
        memory.keep(StorageWork::Read, &prompt);
        let text = std::fs::read_to_string(home.path().join("storage")).unwrap();
        assert_eq!(text, "# zmove storage 2\n", "it is not late any more");
    }

    #[test]
    fn a_file_system_is_known_by_what_is_mounted() {
        let mountinfo = b"36 35 0:51 / /data rw,relatime shared:1 - nfs4 server:/ex\\040port rw\n\
            37 35 0:52 / /other rw - xfs /dev/sdb1 rw\n";
        let names: Vec<_> = Mount::all(mountinfo).map(|mount| name_of(&mount)).collect();
        assert_eq!(names, ["nfs4:server:/ex_port", "xfs:/dev/sdb1"]);
    }

    #[test]
    fn a_line_without_a_sensible_number_and_day_is_refused() {
        let memory = CacheFile::<UsefulThreads>::new(PathBuf::new(), HEADER, 1);
        let parsed = |value| memory.parse(&format!("{HEADER}\nread:x {value}\n"));
        assert!(parsed(r#"{"threads":9,"day":1}"#).is_some());
        for value in [
            r#"{"threads":0,"day":1}"#,
            r#"{"threads":257,"day":1}"#,
            r#"{"threads":9}"#,
            r#"{"threads":9,"day":"x"}"#,
            "",
        ] {
            assert_eq!(parsed(value), None, "{value}");
        }
    }
}
