//! Files of at most one group. They are created in the same way as by a receiver, one directory at a time. As by a
//! sender, each file is read as a whole.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use zmove_disk::{
    ContentsWriter, DataFile, DirectoryModes, Lease, Permit, Replace, StagingDirectory, Tree,
};
use zmove_types::{Lock, Metadata, Name};
use zmove_wire::FileTotal;

use crate::sweep::cell::noise::{Noise, group_buffer};
use crate::sweep::cell::pace::CellPace;
use crate::sweep::cell::{Bench, CellFiles, MODE, WrittenFiles, is_cached, name_of};
use crate::sweep::error::SweepError;
use crate::sweep::result::CacheUse;

/// The small files of a cell that were written.
pub(crate) struct SmallFiles {
    /// The directories, each with its number of files. The names of the files are consecutive numbers.
    directories: Vec<(Arc<OwnedFd>, u64)>,
}

/// State that all threads of a cell share.
struct Writers<'a> {
    bench: &'a Bench<'a>,
    parent: Arc<OwnedFd>,
    pace: &'a CellPace<'a>,
}

impl SmallFiles {
    /// Writes files until the time is over.
    pub(super) fn write(
        bench: &Bench<'_>,
        parent: Arc<OwnedFd>,
        pace: &CellPace<'_>,
    ) -> WrittenFiles {
        let each = files_each(bench.cell.files, bench.threads);
        let next = AtomicU64::new(0);
        let made = Lock::new(Vec::new());
        let direct = AtomicBool::new(false);
        let writers = Writers {
            bench,
            parent,
            pace,
        };
        bench.on_threads(pace, |thread| {
            let mut noise = Noise::new(bench.seed(thread));
            let contents = ContentsWriter::new(bench.direct);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let files = bench
                    .cell
                    .files
                    .saturating_sub(number.saturating_mul(each))
                    .min(each);
                if files == 0 || !pace.has_time() {
                    return Ok(());
                }
                let directory = writers.fill(number, files, &mut noise, &contents)?;
                if let Some((fd, _)) = &directory {
                    let first = bench.open(fd, 0);
                    let past =
                        first.is_ok_and(|file| contents.is_direct(&file, bench.cell.file_bytes));
                    direct.store(past, Ordering::Relaxed);
                }
                made.lock().extend(directory);
            }
        });
        let way = if direct.into_inner() {
            CacheUse::Direct
        } else {
            CacheUse::Buffered
        };
        let directories: Vec<(_, u64)> = made.into_inner();
        let files = directories.iter().map(|(_, files)| files).sum();
        let total = FileTotal {
            files,
            bytes: files * bench.cell.file_bytes,
        };
        let files = CellFiles::Small(Self { directories });
        WrittenFiles { files, total, way }
    }

    /// Drops the files from the page cache until the time of `pace` is over. Directories that were not reached by then
    /// are not read later.
    pub(crate) fn drop_cached(&mut self, bench: &Bench<'_>, pace: &CellPace<'_>) -> CacheUse {
        let next = AtomicUsize::new(0);
        let kept = AtomicUsize::new(0);
        bench.on_threads(pace, |_thread| {
            while pace.has_time() {
                let taken = next.fetch_add(1, Ordering::Relaxed);
                let Some((directory, files)) = self.directories.get(taken) else {
                    return Ok(());
                };
                for number in 0..*files {
                    let file = bench.open(directory, number)?;
                    bench.drop_cached(&file)?;
                    if number == 0 && is_cached(&file, bench.cell.file_bytes) {
                        kept.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Ok(())
        });
        let seen = next.into_inner().min(self.directories.len());
        self.directories.truncate(seen);
        if kept.into_inner() * 2 > seen {
            CacheUse::Cached
        } else {
            CacheUse::Buffered
        }
    }

    /// Reads the files until the time is over.
    pub(crate) fn read(&self, bench: &Bench<'_>, pace: &CellPace<'_>) -> FileTotal {
        let next = AtomicUsize::new(0);
        let read = AtomicU64::new(0);
        let file_bytes = bench.cell.file_bytes;
        bench.on_threads(pace, |_thread| {
            let mut buffer = group_buffer();
            while let Some((directory, files)) =
                self.directories.get(next.fetch_add(1, Ordering::Relaxed))
            {
                for number in 0..*files {
                    if !pace.has_time() {
                        return Ok(());
                    }
                    let file = bench.open(directory, number)?;
                    let len = usize::try_from(file_bytes)
                        .unwrap_or(usize::MAX)
                        .min(buffer.capacity());
                    buffer = bench.read_whole(&DataFile::new(file), 0, len, buffer)?;
                    read.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        });
        let files = read.into_inner();
        FileTotal {
            files,
            bytes: files * file_bytes,
        }
    }
}

impl Writers<'_> {
    /// Creates a directory with at most `files` files. It has fewer if the time runs out. Returns `None` if there was
    /// no time to write a file.
    fn fill(
        &self,
        number: u64,
        files: u64,
        noise: &mut Noise,
        contents: &ContentsWriter,
    ) -> Result<Option<(Arc<OwnedFd>, u64)>, SweepError> {
        let cannot = || self.bench.cannot("make a directory in");
        let name = name_of(number);
        let modes = DirectoryModes::default();
        Tree::create_new(&Lease::constant(), self.parent.as_fd(), &name, modes).map_err(cannot())?;
        let staging = StagingDirectory::begin(&self.parent, &name, modes).map_err(cannot())?;
        let bytes = self.bench.cell.file_bytes;
        let mut made = 0;
        while made < files && self.pace.admit(bytes) {
            let data = noise.take(usize::try_from(bytes).unwrap_or(usize::MAX));
            let outcome = self.make(&staging, &name_of(made), &data, contents);
            noise.give_back(data);
            self.pace.complete(bytes);
            outcome.map_err(self.bench.cannot("write a file in"))?;
            made += 1;
        }
        if made == 0 {
            return Ok(None);
        }
        staging
            .publish(&Lease::constant(), Replace::Existing)
            .map_err(cannot())?;
        Ok(Some((Arc::clone(staging.directory()), made)))
    }

    fn make(
        &self,
        staging: &StagingDirectory,
        name: &Name,
        data: &[u8],
        contents: &ContentsWriter,
    ) -> std::io::Result<()> {
        let file = staging.create(name, MODE)?;
        contents.write(&file, data)?;
        let metadata = Metadata::new(MODE, self.bench.mtime);
        let _not_kept = staging.new_files().set_metadata(
            Permit::for_hidden(),
            &file,
            &metadata,
            &self.bench.proven,
        )?;
        Ok(())
    }
}

/// Returns the number of files per directory, chosen so that each thread has several directories to fill.
fn files_each(files: u64, threads: usize) -> u64 {
    (files / (threads as u64 * 4)).clamp(8, DIRECTORY_FILES_MAX)
}

const DIRECTORY_FILES_MAX: u64 = 512;
