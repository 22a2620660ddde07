//! Files larger than one group. They are written in the same way as by a receiver, and read in the same way as by a
//! sender.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zmove_disk::{DataFile, Descriptor, Direct, Lease, Permit, Replace, Staged, WantedMetadata};
use zmove_types::{Lock, Metadata};
use zmove_wire::FileTotal;

use crate::sweep::cell::groups::{Groups, OpenFile};
use crate::sweep::cell::noise::{Noise, group_buffer};
use crate::sweep::cell::pace::CellPace;
use crate::sweep::cell::{Bench, CellFiles, MODE, WrittenFiles, is_cached, name_of};
use crate::sweep::error::SweepError;
use crate::sweep::result::CacheUse;

/// The large files of a cell that were written.
pub(crate) struct LargeFiles {
    directory: Arc<OwnedFd>,
    /// The index and the length of each file.
    files: Vec<(u64, u64)>,
}

impl LargeFiles {
    /// Writes files until the time is over. The last files may be incomplete.
    pub(super) fn write(
        bench: &Bench<'_>,
        directory: Arc<OwnedFd>,
        pace: &CellPace<'_>,
    ) -> WrittenFiles {
        let files = Lock::new(Vec::new());
        let direct = AtomicBool::new(true);
        let file_bytes = bench.cell.file_bytes;
        let open = |number: u64| {
            if number >= bench.cell.files || !pace.has_time() {
                return Ok(None);
            }
            let staged = Staged::create(&directory, MODE).and_then(|mut staged| {
                staged.reserve(file_bytes, None, bench.direct)?;
                Ok(staged)
            });
            let staged = staged.map_err(bench.cannot("create a file in"))?;
            direct.fetch_and(staged.data().is_direct(), Ordering::Relaxed);
            Ok(Some((staged, file_bytes)))
        };
        let end = |written: Arc<OpenFile<Staged>>| match Arc::into_inner(written) {
            Some(whole) => finish(bench, whole).map(|file| {
                files.lock().extend(file);
            }),
            None => Ok(()),
        };
        let groups = Groups::new(open);
        bench.on_threads(pace, |thread| {
            let mut noise = Noise::new(bench.seed(thread));
            while let Some((file, span)) = groups.next(|bytes| pace.admit(bytes))? {
                let buffer = noise.take(span.len as usize);
                let (outcome, buffer) =
                    bench.file_io.write(file.file.data(), span.offset(), buffer);
                noise.give_back(buffer);
                outcome.map_err(bench.cannot("write a file in"))?;
                file.moved.fetch_add(u64::from(span.len), Ordering::Relaxed);
                if file.file.data().is_direct() {
                    pace.complete_flushed(u64::from(span.len));
                } else {
                    pace.complete(u64::from(span.len));
                }
                end(file)?;
            }
            Ok(())
        });
        if let Err(error) = groups.into_open().map_or(Ok(()), end) {
            pace.fail(error);
        }
        let way = if direct.into_inner() {
            CacheUse::Direct
        } else {
            CacheUse::Buffered
        };
        let files: Vec<(u64, u64)> = files.into_inner();
        let whole = files.iter().filter(|(_, bytes)| *bytes == file_bytes);
        let total = FileTotal {
            files: whole.count() as u64,
            bytes: files.iter().map(|(_, bytes)| bytes).sum(),
        };
        let files = CellFiles::Large(Self { directory, files });
        WrittenFiles { files, total, way }
    }

    /// Drops the files from the page cache. Returns the way in which they will be read.
    pub(crate) fn drop_cached(&self, bench: &Bench<'_>) -> Result<CacheUse, SweepError> {
        let mut way = CacheUse::Direct;
        for (number, bytes) in &self.files {
            let file = bench.open(&self.directory, *number)?;
            bench.drop_cached(&file)?;
            let cached = is_cached(&file, *bytes);
            if !DataFile::for_reading(file, *bytes, read_direct(bench)).is_direct() {
                way = if cached {
                    CacheUse::Cached
                } else {
                    CacheUse::Buffered
                };
            }
        }
        Ok(way)
    }

    /// Reads the files until the time is over.
    pub(crate) fn read(&self, bench: &Bench<'_>, pace: &CellPace<'_>) -> FileTotal {
        let files = AtomicU64::new(0);
        let bytes = AtomicU64::new(0);
        let open = |number: u64| {
            let there = usize::try_from(number)
                .ok()
                .and_then(|number| self.files.get(number));
            let Some((number, bytes)) = there.filter(|_| pace.has_time()) else {
                return Ok(None);
            };
            let file = bench.open(&self.directory, *number)?;
            let file = DataFile::for_reading(file, *bytes, read_direct(bench));
            Ok(Some((file, *bytes)))
        };
        let groups = Groups::new(open);
        bench.on_threads(pace, |_thread| {
            let mut buffer = group_buffer();
            while let Some((file, span)) = groups.next(|_| pace.has_time())? {
                let len = span.len as usize;
                buffer = bench.read_whole(&file.file, span.offset(), len, buffer)?;
                bytes.fetch_add(len as u64, Ordering::Relaxed);
                let read = file.moved.fetch_add(len as u64, Ordering::Relaxed) + len as u64;
                let whole = read == file.bytes && read == bench.cell.file_bytes;
                files.fetch_add(u64::from(whole), Ordering::Relaxed);
            }
            Ok(())
        });
        FileTotal {
            files: files.into_inner(),
            bytes: bytes.into_inner(),
        }
    }
}

/// Finishes a large file: sets the modification time, flushes the file and renames it into place. An incomplete file is
/// truncated to the bytes that were written. A file without bytes is dropped.
fn finish(bench: &Bench<'_>, written: OpenFile<Staged>) -> Result<Option<(u64, u64)>, SweepError> {
    let OpenFile {
        number,
        file: staged,
        moved,
        ..
    } = written;
    let bytes = moved.into_inner();
    if bytes == 0 {
        return Ok(None);
    }
    let finished = staged.file().set_len(bytes).and_then(|()| {
        let wanted = WantedMetadata::mode_and_time(&Metadata::new(MODE, bench.mtime));
        let entry = Descriptor::Open(staged.file().as_fd());
        let _not_kept = wanted.set(Permit::for_hidden(), entry, &bench.proven)?;
        staged.file().sync_data()?;
        staged.commit(&Lease::constant(), &name_of(number), Replace::Existing)
    });
    finished.map_err(bench.cannot("finish a file in"))?;
    Ok(Some((number, bytes)))
}

/// Returns whether reads bypass the page cache: always, unless direct I/O is turned off for the sweep.
fn read_direct(bench: &Bench<'_>) -> Direct {
    if bench.direct == Direct::Off {
        Direct::Off
    } else {
        Direct::On
    }
}
