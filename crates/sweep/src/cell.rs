//! One size: written, dropped from the page cache, read. Its files stay until the end: where many were just removed, file
//! systems are slower to make new ones.

mod groups;
mod large;
mod noise;
mod pace;
mod small;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use zmove_disk::{Direct, Disk};
use zmove_types::{GROUP_BYTES, Name, RelPath, Timestamp};

use crate::error::SweepError;
use crate::place::Place;
use crate::plan::Cell;
use crate::result::{Direction, Measured, Moved};
use large::LargeFiles;
use pace::Pace;
use small::SmallFiles;

/// What is needed to measure a cell.
pub(crate) struct Bench<'a> {
    pub(crate) cell: Cell,
    /// Which one it is.
    pub(crate) number: usize,
    pub(crate) place: &'a Place,
    pub(crate) disk: &'a Arc<dyn Disk>,
    pub(crate) direct: Direct,
    pub(crate) threads: usize,
    pub(crate) mtime: Timestamp,
    pub(crate) stop: &'a AtomicBool,
}

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

enum Files {
    Small(SmallFiles),
    Large(LargeFiles),
}

impl Bench<'_> {
    /// Measures the cell within a slice of time.
    pub(crate) fn measure(
        &self,
        slice: Duration,
        mut begin: impl FnMut(Direction),
    ) -> Result<Measured, SweepError> {
        let started = Instant::now();
        let name = Name::from_bytes(format!("c{}", self.number).as_bytes()).expect("a letter and digits");
        let directory = RelPath::root().join(&name).expect("one name is no long path");
        let made = self.place.tree().ensure_directory(&directory);
        let directory = made.map_err(self.cannot("make a directory in"))?;
        // what others have written is not to be flushed in this one's time
        rustix::fs::syncfs(self.place.tree().fd()).map_err(self.cannot("flush"))?;
        let mut measured = Measured::nothing(&self.cell);
        begin(Direction::Write);
        let (mut files, written) = self.write(directory, started + slice.mul_f64(WRITE_SHARE))?;
        measured.write = written;
        if written.is_some() {
            begin(Direction::Read);
            let left = (started + slice).saturating_duration_since(Instant::now());
            measured.read = self.read(&mut files, left.mul_f64(READ_SHARE).max(READ_MIN))?;
        }
        Ok(measured)
    }

    fn write(&self, directory: Arc<OwnedFd>, until: Instant) -> Result<(Files, Option<Moved>), SweepError> {
        let pace = Pace::new(until, self.stop, self.threads);
        let started = Instant::now();
        let files = std::thread::scope(|scope| {
            let root = self.place.tree().fd();
            let pace = &pace;
            scope.spawn(move || pace.flush_over_and_over(root, |error| self.cannot("flush")(error)));
            let written = if self.is_small() {
                Files::Small(SmallFiles::write(self, directory, pace))
            } else {
                Files::Large(LargeFiles::write(self, directory, pace))
            };
            pace.end();
            written
        });
        let time = started.elapsed();
        pace.failure()?;
        let (counted, way) = match &files {
            Files::Small(files) => (files.count(self.cell.file_bytes), files.way),
            Files::Large(files) => (files.count(self.cell.file_bytes), files.way),
        };
        let moved = Moved::new(self.cell.file_bytes, (counted.files, counted.bytes), time, way);
        Ok((files, moved))
    }

    fn read(&self, files: &mut Files, time: Duration) -> Result<Option<Moved>, SweepError> {
        let drop_pace = Pace::new(Instant::now() + time, self.stop, self.threads);
        let way = match files {
            Files::Small(files) => files.drop_cached(self, &drop_pace),
            Files::Large(files) => files.drop_cached(self)?,
        };
        drop_pace.failure()?;
        let started = Instant::now();
        let pace = Pace::new(started + time, self.stop, self.threads);
        let counted = match files {
            Files::Small(files) => files.read(self, &pace),
            Files::Large(files) => files.read(self, &pace),
        };
        let took = started.elapsed();
        pace.failure()?;
        Ok(Moved::new(self.cell.file_bytes, (counted.files, counted.bytes), took, way))
    }

    /// Files that a push has in batches, and not by groups.
    fn is_small(&self) -> bool {
        self.cell.file_bytes <= GROUP_BYTES
    }

    /// Runs `work` on every thread; what one of them cannot do ends all.
    pub(crate) fn on_threads(&self, pace: &Pace<'_>, work: impl Fn(usize) -> Result<(), SweepError> + Sync) {
        std::thread::scope(|scope| {
            for thread in 0..self.threads {
                let work = &work;
                scope.spawn(move || {
                    if let Err(error) = work(thread) {
                        pace.fail(error);
                    }
                });
            }
        });
    }

    /// Another for each thread of each cell.
    pub(crate) fn seed(&self, thread: usize) -> u64 {
        (self.number as u64) << 32 | thread as u64
    }

    /// Whether the page cache holds most of a file; where the kernel does not tell, it has let go of it.
    pub(crate) fn is_cached(&self, file: &File, bytes: u64) -> bool {
        zmove_disk::cached_bytes(file.as_fd(), 0..bytes).is_ok_and(|cached| cached > bytes / 2)
    }

    /// A file that is shorter than it was written.
    pub(crate) fn whole(&self, read: usize, wanted: usize) -> io::Result<()> {
        if read == wanted { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// For `map_err`.
    pub(crate) fn cannot<E: Into<io::Error>>(&self, operation: &'static str) -> impl FnOnce(E) -> SweepError {
        let path: &Path = self.place.path();
        SweepError::io(operation, path)
    }

    /// Whether it is to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The name of a file, or of a directory of small ones.
pub(crate) fn name_of(number: u64) -> Name {
    Name::from_bytes(number.to_string().as_bytes()).expect("digits")
}

/// Opens a file for reading.
pub(crate) fn open(directory: impl AsFd, number: u64) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name_of(number).as_os_str(), flags, Mode::empty())?.into())
}

/// Of every file.
pub(crate) const MODE: u32 = 0o600;
/// Of a slice; the last flush and reading have the rest.
const WRITE_SHARE: f64 = 0.5;
/// Of what is left then; dropping the page cache has the rest.
const READ_SHARE: f64 = 0.8;
/// Where writing has taken all the time.
const READ_MIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_disk::{Fault, FaultAt, Faulty, Request, Threads, Tree};

    fn measured(
        cell: Cell,
        disk: Arc<dyn Disk>,
        direct: Direct,
    ) -> (tempfile::TempDir, Result<Measured, SweepError>) {
        let home = tempfile::tempdir().unwrap();
        let place = Place::make_in(Tree::open(home.path()).unwrap(), home.path(), |_, _| {}).unwrap();
        let (stop, mtime) = (AtomicBool::new(false), Timestamp::default());
        let bench =
            Bench { cell, number: 0, place: &place, disk: &disk, direct, threads: 2, mtime, stop: &stop };
        let measured = bench.measure(Duration::from_secs(60), |_| {});
        place.remove(2).unwrap();
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
        (home, measured)
    }

    #[test]
    fn all_files_are_written_and_read_where_there_is_time() {
        for direct in [Direct::Auto, Direct::On, Direct::Off] {
            for (file_bytes, files) in [(1 << 10, 100), (1 << 20, 9), (4 << 20, 3), (9 << 20, 3)] {
                let cell = Cell { file_bytes, files };
                let measured = measured(cell, Arc::new(Threads), direct).1.unwrap();
                for moved in [measured.write, measured.read].map(Option::unwrap) {
                    assert_eq!(
                        (moved.files, moved.bytes),
                        (files, files * file_bytes),
                        "{measured:?} {direct:?}"
                    );
                    assert!(moved.bytes_per_second > 0.0);
                }
            }
        }
    }

    #[test]
    fn storage_that_fails_ends_it_with_its_error_and_nothing_is_left() {
        for request in [Request::Write, Request::Read] {
            let fault = FaultAt { request, number: 1, fault: Fault::Fails(28) };
            let disk = Faulty::new(Threads, [fault]);
            let cell = Cell { file_bytes: 9 << 20, files: 2 };
            let error = measured(cell, Arc::new(disk), Direct::Off).1.unwrap_err().to_string();
            assert!(error.contains("a file in '") && error.contains("No space left"), "{error}");
        }
    }

    #[test]
    fn a_slice_that_is_over_leaves_what_was_done() {
        let home = tempfile::tempdir().unwrap();
        let place = Place::make_in(Tree::open(home.path()).unwrap(), home.path(), |_, _| {}).unwrap();
        let (stop, disk): (_, Arc<dyn Disk>) = (AtomicBool::new(false), Arc::new(Threads));
        for (number, file_bytes) in [1 << 10, 64 << 20].into_iter().enumerate() {
            let cell = Cell { file_bytes, files: 1 << 40 };
            let (threads, mtime, direct) = (2, Timestamp::default(), Direct::Auto);
            let bench =
                Bench { cell, number, place: &place, disk: &disk, direct, threads, mtime, stop: &stop };
            let measured = bench.measure(Duration::from_secs(1), |_| {}).unwrap();
            let written = measured.write.unwrap();
            assert!(written.bytes > 0 && written.files < cell.files, "{written:?}");
            assert!(measured.read.unwrap().bytes <= written.bytes);
        }
    }
}
