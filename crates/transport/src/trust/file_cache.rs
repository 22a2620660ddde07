//! A cache of parsed files, which are parsed again only when they have changed.
//!
//! A daemon needs the files for every connection, including those of unknown peers. The amount of work that an unknown
//! peer can cause must not depend on the size of the files. **Invariant:** a result reflects the contents of the files
//! at the time of the request or later.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use zmove_types::Lock;

use super::strict_modes;
use crate::error::KeyFileError;

/// The parsed contents of some files at the last check.
#[derive(Debug)]
pub(super) struct FileCache<T, E>(Lock<Option<CachedFiles<T, E>>>);

#[derive(Debug)]
struct CachedFiles<T, E> {
    stamps: Vec<Stamp>,
    outcome: Result<Arc<T>, Arc<E>>,
}

/// The state of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

/// Resolution of the kernel's clock for file timestamps. If a file changes twice within this time, the second change
/// may not affect its timestamps.
const TICK: Duration = Duration::from_millis(50);
/// Like [`TICK`], but for file systems whose timestamps have a resolution of one or two seconds.
const TICK_COARSE: Duration = Duration::from_secs(2);

impl<T, E> Default for FileCache<T, E> {
    fn default() -> Self {
        Self(Lock::new(None))
    }
}

impl<T, E> FileCache<T, E> {
    /// Returns the result of `parse` for the current state of `files`. Caches an error if `lasting` returns true for
    /// it, which means that a retry would fail too.
    fn get(
        &self,
        files: &[&Path],
        parse: impl FnOnce() -> Result<T, E>,
        lasting: impl FnOnce(&E) -> bool,
    ) -> Result<Arc<T>, Arc<E>> {
        let mut seen = self.0.lock();
        // The state is read before parsing, so the contents are never older than the state.
        let stamps: Option<Vec<_>> = files.iter().map(|file| Stamp::of(file)).collect();
        if let Some(seen) = &*seen
            && stamps.as_ref() == Some(&seen.stamps)
        {
            return seen.outcome.clone();
        }
        let outcome = parse().map(Arc::new).map_err(Arc::new);
        let lasts = outcome.as_ref().err().is_none_or(|error| lasting(error));
        let settled = stamps.filter(|stamps| lasts && stamps.iter().all(Stamp::is_settled));
        *seen = settled.map(|stamps| CachedFiles {
            stamps,
            outcome: outcome.clone(),
        });
        outcome
    }
}

impl<T, E: From<KeyFileError>> FileCache<T, E> {
    /// Reads files like [`get`](Self::get), but fails if any user other than root and this user can change them.
    pub(super) fn get_strict(
        &self,
        files: &[&Path],
        parse: impl FnOnce() -> Result<T, E>,
        lasting: impl FnOnce(&E) -> bool,
    ) -> Result<Arc<T>, Arc<E>> {
        // The directories above the files determine who can change the files, and may change even if the files do not.
        files
            .iter()
            .try_for_each(|file| strict_modes::check(file))
            .map_err(E::from)?;
        self.get(files, parse, lasting)
    }
}

impl Stamp {
    /// Returns the state of a file, or `None` if it does not exist or cannot be read.
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.size(),
            mtime: (found.mtime(), found.mtime_nsec()),
            ctime: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// Returns whether every future change of the file will also change its timestamps.
    fn is_settled(&self) -> bool {
        let (seconds, nanos) = self.ctime;
        let since = Duration::new(
            u64::try_from(seconds).unwrap_or(0),
            u32::try_from(nanos).unwrap_or(0),
        );
        let tick = if nanos == 0 { TICK_COARSE } else { TICK };
        let changed = SystemTime::UNIX_EPOCH + since;
        SystemTime::now()
            .duration_since(changed)
            .is_ok_and(|age| age > tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the file until the result is cached, which means that the file system's clock has advanced.
    fn settle(cache: &FileCache<String, std::io::Error>, path: &Path) -> String {
        loop {
            let mut parsed = false;
            let parse = || {
                parsed = true;
                fs::read_to_string(path)
            };
            let said = cache.get(&[path], parse, |_| false).unwrap();
            if !parsed {
                return (*said).clone();
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_file_is_parsed_again_when_it_has_changed_and_only_then() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("f");
        let cache = FileCache::default();
        for text in ["one", "two", "six"] {
            // The new text has the same length and inode, and is written during the same clock tick.
            fs::write(&path, text).unwrap();
            let said = cache
                .get(&[&path], || fs::read_to_string(&path), |_| false)
                .unwrap();
            assert_eq!(*said, text);
        }
        assert_eq!(settle(&cache, &path), "six");
        fs::write(&path, "ten").unwrap();
        assert_eq!(settle(&cache, &path), "ten");
        fs::remove_file(&path).unwrap();
        assert!(
            cache
                .get(&[&path], || fs::read_to_string(&path), |_| false)
                .is_err()
        );
    }

    #[test]
    fn an_error_is_remembered_if_it_lies_in_the_file() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("f");
        fs::write(&path, "wrong").unwrap();
        settle(&FileCache::default(), &path);
        let cache = FileCache::<(), u32>::default();
        for (lasting, expected) in [(false, 1), (false, 2), (true, 3), (true, 3)] {
            assert_eq!(
                *cache
                    .get(&[&path], || Err(expected), |_| lasting)
                    .unwrap_err(),
                expected
            );
        }
        assert_eq!(*cache.get(&[&path], || Err(4), |_| true).unwrap_err(), 3);
    }
}
