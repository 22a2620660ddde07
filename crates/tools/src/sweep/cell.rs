//! Measures one file size. The files are written, dropped from the page cache, and read. They are kept until the end of
//! the sweep, because file systems create files more slowly after many files were removed.

mod groups;
mod large;
mod noise;
mod pace;
mod small;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, Mode, OFlags};
use zmove_disk::{DataFile, Direct, FileIo, ProvenKinds};
use zmove_types::{Buffer, GROUP_BYTES, Name, RelPath, Timestamp};
use zmove_wire::FileTotal;

use crate::sweep::error::SweepError;
use crate::sweep::place::SweepDirectory;
use crate::sweep::plan::Cell;
use crate::sweep::result::{CacheUse, IoDirection, Measured, Throughput};
use large::LargeFiles;
use pace::CellPace;
use small::SmallFiles;

/// The context for measuring a cell.
pub(crate) struct Bench<'a> {
    pub(crate) cell: Cell,
    /// The index of the cell in the sweep.
    pub(crate) number: usize,
    pub(crate) place: &'a SweepDirectory,
    pub(crate) file_io: &'a Arc<dyn FileIo>,
    pub(crate) direct: Direct,
    pub(crate) threads: usize,
    pub(crate) mtime: Timestamp,
    /// The kinds of metadata that the file system is known to preserve.
    pub(crate) proven: ProvenKinds,
    pub(crate) stop: &'a AtomicBool,
}

enum CellFiles {
    Small(SmallFiles),
    Large(LargeFiles),
}

/// The files that were written.
struct WrittenFiles {
    files: CellFiles,
    /// Number of complete files, and number of bytes of all files.
    total: FileTotal,
    way: CacheUse,
}

impl Bench<'_> {
    /// Measures the cell. `slice` is the time available for it.
    pub(crate) fn measure(
        &self,
        slice: Duration,
        mut begin: impl FnMut(IoDirection),
    ) -> Result<Measured, SweepError> {
        let started = Instant::now();
        let name =
            Name::from_bytes(format!("c{}", self.number).as_bytes()).expect("a letter and digits");
        let directory = RelPath::root()
            .join(&name)
            .expect("one name is no long path");
        let made = self.place.tree.ensure_directory(&directory);
        let directory = made.map_err(self.cannot("make a directory in"))?;
        // Flush data that other processes have written. The flush of that data must not count as time of this cell.
        rustix::fs::syncfs(self.place.tree.fd()).map_err(self.cannot("flush"))?;
        let mut measured = Measured::nothing(&self.cell);
        begin(IoDirection::Write);
        let (mut files, written) = self.write(directory, started + slice.mul_f64(WRITE_SHARE))?;
        measured.write = written;
        if written.is_some() {
            begin(IoDirection::Read);
            let left = (started + slice).saturating_duration_since(Instant::now());
            measured.read = self.read(&mut files, left.mul_f64(READ_SHARE).max(READ_MIN))?;
        }
        Ok(measured)
    }

    fn write(
        &self,
        directory: Arc<OwnedFd>,
        until: Instant,
    ) -> Result<(CellFiles, Option<Throughput>), SweepError> {
        let pace = CellPace::new(until, self.stop, self.threads);
        let started = Instant::now();
        let WrittenFiles { files, total, way } = std::thread::scope(|scope| {
            let root = self.place.tree.fd();
            let pace = &pace;
            scope.spawn(move || pace.flush_repeatedly(root, |error| self.cannot("flush")(error)));
            // As in a push, files of up to one group are written in batches, and larger files group by group.
            let written = if self.cell.file_bytes <= GROUP_BYTES {
                SmallFiles::write(self, directory, pace)
            } else {
                LargeFiles::write(self, directory, pace)
            };
            pace.end();
            written
        });
        let time = started.elapsed();
        pace.failure()?;
        let moved = Throughput::new(self.cell.file_bytes, total, time, way);
        Ok((files, moved))
    }

    fn read(
        &self,
        files: &mut CellFiles,
        time: Duration,
    ) -> Result<Option<Throughput>, SweepError> {
        let drop_pace = CellPace::new(Instant::now() + time, self.stop, self.threads);
        let way = match files {
            CellFiles::Small(files) => files.drop_cached(self, &drop_pace),
            CellFiles::Large(files) => files.drop_cached(self)?,
        };
        drop_pace.failure()?;
        let started = Instant::now();
        let pace = CellPace::new(started + time, self.stop, self.threads);
        let counted = match files {
            CellFiles::Small(files) => files.read(self, &pace),
            CellFiles::Large(files) => files.read(self, &pace),
        };
        let took = started.elapsed();
        pace.failure()?;
        Ok(Throughput::new(self.cell.file_bytes, counted, took, way))
    }

    /// Runs `work` on every thread. The first error is recorded and makes all threads stop.
    fn on_threads(
        &self,
        pace: &CellPace<'_>,
        work: impl Fn(usize) -> Result<(), SweepError> + Sync,
    ) {
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

    /// Returns the seed of a thread's noise, which is different for each thread of each cell.
    fn seed(&self, thread: usize) -> u64 {
        (self.number as u64) << 32 | thread as u64
    }

    /// Drops a file from the page cache.
    fn drop_cached(&self, file: &File) -> Result<(), SweepError> {
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)
            .map_err(self.cannot("drop the cache of"))
    }

    /// Opens a file for reading.
    fn open(&self, directory: &OwnedFd, number: u64) -> Result<File, SweepError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened =
            rustix::fs::openat(directory, name_of(number).as_os_str(), flags, Mode::empty());
        opened
            .map(File::from)
            .map_err(self.cannot("open a file in"))
    }

    /// Reads `len` bytes of a file and returns the buffer. Fails if the file is too short.
    fn read_whole(
        &self,
        file: &DataFile,
        offset: u64,
        len: usize,
        buffer: Buffer,
    ) -> Result<Buffer, SweepError> {
        let (outcome, buffer) = self.file_io.read(file, offset, len, buffer, &mut |_| {});
        let whole = if buffer.len() == len {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        };
        outcome.and(whole).map_err(self.cannot("read a file in"))?;
        Ok(buffer)
    }

    /// Returns a closure for `map_err` that adds the operation and the sweep's path to an error.
    fn cannot<E: Into<io::Error>>(&self, operation: &'static str) -> impl FnOnce(E) -> SweepError {
        SweepError::io(operation, &self.place.path)
    }
}

/// Returns whether the page cache holds most of a file. `false` if the kernel does not report it.
fn is_cached(file: &File, bytes: u64) -> bool {
    zmove_disk::cached_bytes(file.as_fd(), 0..bytes).is_ok_and(|cached| cached > bytes / 2)
}

/// Returns the name of a file, or of a directory of small files.
fn name_of(number: u64) -> Name {
    Name::from_bytes(number.to_string().as_bytes()).expect("digits")
}

/// The mode of every file.
const MODE: u32 = 0o600;
/// The fraction of a cell's time for writing. The rest is for the last flush and for reading.
const WRITE_SHARE: f64 = 0.5;
/// The fraction of the remaining time for reading. The rest is for dropping files from the page cache.
const READ_SHARE: f64 = 0.8;
/// The minimum time for reading, even if writing has used up the time of the cell.
const READ_MIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use zmove_disk::{FaultAt, Faulty, InjectedFault, RequestKind, StorageEngine, Tree};

    fn measured(
        cell: Cell,
        file_io: Arc<dyn FileIo>,
        direct: Direct,
    ) -> (tempfile::TempDir, Result<Measured, SweepError>) {
        let home = tempfile::tempdir().unwrap();
        let place =
            SweepDirectory::make_in(Tree::open(home.path()).unwrap(), home.path(), &mut |_| {})
                .unwrap();
        let (stop, mtime) = (AtomicBool::new(false), Timestamp::default());
        let bench = Bench {
            cell,
            number: 0,
            place: &place,
            file_io: &file_io,
            direct,
            threads: 2,
            mtime,
            proven: ProvenKinds::default(),
            stop: &stop,
        };
        let measured = bench.measure(Duration::from_secs(600), |_| {});
        place.remove(2).unwrap();
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
        (home, measured)
    }

    #[test]
    fn all_files_are_written_and_read_where_there_is_time() {
        for direct in [Direct::Auto, Direct::On, Direct::Off] {
            for (file_bytes, files) in [(1 << 10, 100), (1 << 20, 9), (4 << 20, 3), (9 << 20, 2)] {
                let cell = Cell { file_bytes, files };
                let measured = measured(cell, Arc::new(StorageEngine::Threads), direct)
                    .1
                    .unwrap();
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
        for request in [RequestKind::Write, RequestKind::Read] {
            let fault = FaultAt {
                request,
                number: 1,
                fault: InjectedFault::Fails(28),
            };
            let file_io = Faulty::new([fault]);
            let cell = Cell {
                file_bytes: 9 << 20,
                files: 2,
            };
            let error = measured(cell, Arc::new(file_io), Direct::Off)
                .1
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("a file in '") && error.contains("No space left"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_slice_that_is_over_leaves_what_was_done() {
        let home = tempfile::tempdir().unwrap();
        let place =
            SweepDirectory::make_in(Tree::open(home.path()).unwrap(), home.path(), &mut |_| {})
                .unwrap();
        let stop = AtomicBool::new(false);
        let file_io: Arc<dyn FileIo> = Arc::new(StorageEngine::Threads);
        for (number, file_bytes) in [1 << 10, 64 << 20].into_iter().enumerate() {
            let cell = Cell {
                file_bytes,
                files: 1 << 40,
            };
            let (threads, mtime, direct) = (2, Timestamp::default(), Direct::Auto);
            let bench = Bench {
                cell,
                number,
                place: &place,
                file_io: &file_io,
                direct,
                threads,
                mtime,
                proven: ProvenKinds::default(),
                stop: &stop,
            };
            // On a busy machine, nothing may be written within a short time.
            let mut slices = [100, 1000, 8000, 64_000]
                .map(Duration::from_millis)
                .into_iter();
            let measure = |slice| {
                let measured = bench.measure(slice, |_| {}).unwrap();
                Some(measured).filter(|it| it.write.is_some() && it.read.is_some())
            };
            let measured = slices.find_map(measure).expect("something is written");
            let written = measured.write.unwrap();
            assert!(
                written.bytes > 0 && written.files < cell.files,
                "{written:?}"
            );
            assert!(measured.read.unwrap().bytes <= written.bytes);
        }
    }
}
