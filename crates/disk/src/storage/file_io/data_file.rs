//! An open file whose contents are read or written, and whether they may pass by the page cache.
//!
//! A buffer begins at a page and groups are whole multiples of one, so a large file can be read and written by
//! `O_DIRECT` without a copy. Whether it is, is a property of the file, and the same for both engines. Such a file has
//! a second descriptor of the same inode, where the file system reports what that needs (`statx`; an older kernel, and
//! FUSE, reports nothing, and a page is tried), and none in memory or on a network file system with a client in the
//! kernel.
//!
//! By default large files are read past the page cache, and files of some size are written past it: smaller ones on
//! ext4 and XFS, which write in place, than elsewhere. A range that is mostly in the page cache (`cachestat`), or of
//! which the kernel reports nothing, is read from there. A last piece that is no page, a refusal at the first request,
//! an error: all of it goes on through the page cache, which returns the errors that are real.
//!
//! Before it is written past the page cache, a file on ext4 and XFS gets its blocks, so that its groups need not take
//! turns to allocate them, unless it would take more than half of what is free.
//!
//! **Invariant:** a page is written through one of the two descriptors, never through both; where a file system refuses
//! direct requests, everything goes through the first, and no error is returned.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, AtFlags, FallocateFlags, Mode, OFlags, StatVfs, StatxFlags};
use rustix::io::{Errno, retry_on_intr};
use zmove_types::{Buffer, DataRanges, PAGE_BYTES};
use zmove_uring::Span;

use crate::storage::file_io::Way;

/// Whether the contents of large files pass by the page cache (`O_DIRECT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Past the page cache where that pays.
    #[default]
    Auto,
    /// Past the page cache wherever the file system allows it, cached or not.
    On,
    /// Always through the page cache.
    Off,
}

/// An open file whose contents are read or written.
#[derive(Debug)]
pub struct DataFile {
    cached: Arc<File>,
    direct: Option<DirectFile>,
}

#[derive(Debug)]
struct DirectFile {
    file: Arc<File>,
    /// The alignment of offsets, lengths and addresses, in bytes.
    align: usize,
    /// Whether a range that is in the page cache is read from there.
    prefer_cache: bool,
    /// Whether the kernel takes the synchronous writes to this file one at a time.
    writes_in_turns: bool,
    refused: AtomicBool,
}

impl DataFile {
    /// A file whose contents go through the page cache.
    #[must_use]
    pub fn new(file: File) -> Self {
        Self {
            cached: Arc::new(file),
            direct: None,
        }
    }

    /// A file of `bytes` that will be read.
    #[must_use]
    pub fn for_reading(file: File, bytes: u64, direct: Direct) -> Self {
        let pays = match direct {
            Direct::Auto => bytes >= READ_DIRECT_BYTES_MIN,
            Direct::On => true,
            Direct::Off => false,
        };
        let mut data = Self::new(file);
        if pays {
            let prefer_cache = direct == Direct::Auto;
            data.direct = DirectFile::open(&data.cached, OFlags::RDONLY, prefer_cache);
        }
        data
    }

    /// A file that has its final size already and will be written, and whose contents may be read.
    ///
    /// # Errors
    /// The system's error.
    pub fn for_writing(file: File, direct: Direct) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        let mut data = Self::new(file);
        if write_pays(&data.cached, bytes, direct) {
            data.direct = DirectFile::open(&data.cached, OFlags::RDWR, false);
        }
        Ok(data)
    }

    /// Gives an empty file that will be written its final size, and the room for its `data`, or all of it, where its
    /// parts will come past the page cache: those come in any order, and allocating for each of them would take turns.
    ///
    /// # Errors
    /// The system's error.
    pub fn reserve(
        &mut self,
        bytes: u64,
        data: Option<&DataRanges>,
        direct: Direct,
    ) -> io::Result<()> {
        self.cached.set_len(bytes)?;
        let data_bytes = data.map_or(bytes, DataRanges::data_bytes);
        if !write_pays(&self.cached, data_bytes, direct) {
            return Ok(());
        }
        self.direct = DirectFile::open(&self.cached, OFlags::WRONLY, false);
        let allocate =
            self.direct.is_some() && data_bytes > 0 && allocation_pays(&self.cached, data_bytes);
        let whole = 0..bytes;
        let wanted = data.map_or(std::slice::from_ref(&whole), DataRanges::ranges);
        // Where that fails nothing is lost: the writes allocate, and return the errors.
        if allocate && wanted.iter().any(|range| self.allocate(range).is_err()) {
            // Give back what was taken before it failed, since others need it.
            self.cached.set_len(0)?;
            self.cached.set_len(bytes)?;
        }
        Ok(())
    }

    fn allocate(&self, range: &Range<u64>) -> io::Result<()> {
        let bytes = range.end - range.start;
        let allocate =
            || rustix::fs::fallocate(&self.cached, FallocateFlags::KEEP_SIZE, range.start, bytes);
        Ok(retry_on_intr(allocate)?)
    }

    /// Whether aligned requests pass by the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
            .as_ref()
            .is_some_and(|direct| !direct.refused.load(Ordering::Relaxed))
    }

    /// The file, through the page cache.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.cached
    }

    pub(crate) fn cached(&self) -> &Arc<File> {
        &self.cached
    }

    /// The way to read a range past the page cache, and the length to ask for: the end of a file need not be
    /// aligned, the request for it must be.
    pub(crate) fn direct_read(&self, span: &Span, buffer: &mut Buffer) -> Option<(Way<'_>, usize)> {
        let direct = self.direct.as_ref()?;
        let padded = span.len().next_multiple_of(direct.align);
        if !direct.takes(span, buffer) || span.room().start + padded > buffer.capacity() {
            return None;
        }
        if direct.prefer_cache && is_mostly_cached(&self.cached, span.offset(), span.len()) {
            return None;
        }
        Some((Way::Direct(&direct.file), padded))
    }

    /// The way to write a span past the page cache, and how much of it: what is left is less than a page. A span that
    /// does not begin at a page has none, so that a page with a hole in it is reached by the page cache alone.
    pub(crate) fn direct_write(
        &self,
        span: &Span,
        buffer: &mut Buffer,
    ) -> Option<(Way<'_>, usize)> {
        let direct = self.direct.as_ref()?;
        let body = span.len() - span.len() % direct.align;
        let way = if direct.writes_in_turns {
            Way::DirectInTurns(&direct.file)
        } else {
            Way::Direct(&direct.file)
        };
        (body > 0 && direct.takes(span, buffer)).then_some((way, body))
    }

    /// Drops clean pages, so that what was on the storage when the file was opened is read from there: after a
    /// write-back that failed the page cache holds, and calls clean, what the storage does not. Pages that are still to
    /// be written stay; should their write-back fail, the next flush of this file returns the error. Pages that
    /// somebody has mapped stay too.
    ///
    /// # Errors
    /// The system's error.
    pub fn drop_cached(&self) -> io::Result<()> {
        Ok(rustix::fs::fadvise(
            &self.cached,
            0,
            None,
            Advice::DontNeed,
        )?)
    }

    /// The same for the pages of `len` bytes from `offset` on: the kernel goes through all that are named, also those
    /// that it cannot drop.
    pub(crate) fn drop_cached_span(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fadvise(
            &self.cached,
            offset,
            NonZeroU64::new(len),
            Advice::DontNeed,
        )?)
    }

    /// Returns the error that closing the file would return, by closing a copy of each of its descriptors: some file
    /// systems report only there that data could not be stored.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn check_close(&self) -> io::Result<()> {
        let direct = self.direct.as_ref().map(|direct| &direct.file);
        direct
            .into_iter()
            .chain([&self.cached])
            .try_for_each(|file| zmove_uring::close(file.try_clone()?))
    }

    /// Remembers that the file system does not take direct requests after all. Other errors come again through the page
    /// cache, and are returned there.
    pub(crate) fn note_refusal(&self, error: &io::Error) {
        let refusal = matches!(
            Errno::from_io_error(error),
            Some(Errno::INVAL | Errno::OPNOTSUPP)
        );
        if let Some(direct) = &self.direct
            && refusal
        {
            direct.refused.store(true, Ordering::Relaxed);
        }
    }
}

impl DirectFile {
    /// Opens the same file once more; `None` where it cannot be read or written past the page cache.
    fn open(file: &File, access: OFlags, prefer_cache: bool) -> Option<Self> {
        let align = alignment(file)?;
        // By way of `/proc`: a name could lead elsewhere by now, and a file without a name has none.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = access | OFlags::DIRECT | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
        let writes_in_turns = kind_of(&file).is_ok_and(|kind| kind == FUSE);
        Some(Self {
            file: Arc::new(file),
            align,
            prefer_cache,
            writes_in_turns,
            refused: AtomicBool::new(false),
        })
    }

    fn takes(&self, span: &Span, buffer: &mut Buffer) -> bool {
        let aligned = span.offset().is_multiple_of(self.align as u64)
            && buffer.room()[span.room()]
                .as_ptr()
                .addr()
                .is_multiple_of(self.align);
        aligned && !self.refused.load(Ordering::Relaxed)
    }
}

/// Whether the contents of a file of `bytes` are to be written past the page cache, in whole pages.
pub(crate) fn takes_direct_writes(file: &File, bytes: u64, direct: Direct) -> bool {
    write_pays(file, bytes, direct) && alignment(file).is_some()
}

fn write_pays(file: &File, bytes: u64, direct: Direct) -> bool {
    match direct {
        Direct::Auto if bytes < WRITE_DIRECT_IN_PLACE_BYTES_MIN => false,
        Direct::Auto => bytes >= WRITE_DIRECT_BYTES_MIN || is_written_in_place(file),
        Direct::On => true,
        Direct::Off => false,
    }
}

/// Whether the file system overwrites where the data is, on a device of its own.
fn is_written_in_place(file: &File) -> bool {
    kind_of(file).is_ok_and(|kind| IN_PLACE.contains(&kind))
}

/// The alignment of direct requests: what the file system asks for, a page at least, so that no page is reached both
/// ways. `None` where direct requests gain nothing: in memory, or across a network whose client caches and keeps
/// several requests of one file in flight. FUSE does not: it takes buffered writes to a file one at a time, and reads
/// 128 KiB ahead.
fn alignment(file: &File) -> Option<usize> {
    let kind = kind_of(file).ok()?;
    if IN_MEMORY.contains(&kind) || (REMOTE.contains(&kind) && kind != FUSE) {
        return None;
    }
    let asked = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let told = asked
        .ok()
        .filter(|stat| stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    // An older kernel reports nothing: the first request shows whether a page will do.
    let Some(told) = told else {
        return Some(PAGE_BYTES);
    };
    let align = told.stx_dio_mem_align.max(told.stx_dio_offset_align) as usize;
    let possible = told.stx_dio_offset_align > 0 && told.stx_dio_mem_align > 0;
    (possible && align <= PAGE_BYTES).then_some(PAGE_BYTES)
}

/// How many bytes a process without privileges may still store in a file system.
#[must_use]
pub fn free_bytes(file_system: &StatVfs) -> u64 {
    file_system.f_bavail.saturating_mul(file_system.f_frsize)
}

/// Whether blocks for the whole file should be reserved: on file systems that then need no lock for each
/// write, and only while others are left as much room.
fn allocation_pays(file: &File, bytes: u64) -> bool {
    let has_room = |stat: &StatVfs| bytes <= free_bytes(stat) / 2;
    rustix::fs::fstatvfs(file).is_ok_and(|stat| has_room(&stat)) && is_written_in_place(file)
}

/// Whether a file is on a server, which may set its times later than the kernel here does.
pub(crate) fn is_remote(file: &File) -> bool {
    kind_of(file).is_ok_and(|kind| REMOTE.contains(&kind))
}

/// The `f_type` of the file system, which some architectures extend by their sign.
fn kind_of(file: &File) -> io::Result<u64> {
    let kind = rustix::fs::fstatfs(file)?.f_type;
    Ok(u64::try_from(kind & 0xffff_ffff).expect("32 bits"))
}

/// Whether most of a range is in the page cache; `true` where the kernel cannot tell, since the page cache is right for
/// every file.
fn is_mostly_cached(file: impl AsFd, offset: u64, len: usize) -> bool {
    let range = offset..offset + len as u64;
    zmove_uring::cached_bytes(file, range).map_or(true, |bytes| bytes >= len as u64 / 5 * 4)
}

/// The least size of files that are read past the page cache.
const READ_DIRECT_BYTES_MIN: u64 = 16 << 20;
/// The least size of files that are written past the page cache, where file systems copy on write or are not known.
const WRITE_DIRECT_BYTES_MIN: u64 = 16 << 20;
/// The least size of files that are written past the page cache, where file systems write in place.
const WRITE_DIRECT_IN_PLACE_BYTES_MIN: u64 = 128 << 10;
/// `f_type` of ext4 and XFS. Others copy on write, where room reserved is of no use, or have none to reserve.
const IN_PLACE: [u64; 2] = [0xef53, 0x5846_5342];
/// `f_type` of tmpfs and ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
/// `f_type` of NFS, SMB (two), CIFS, FUSE, 9P, Ceph and AFS.
const REMOTE: [u64; 8] = [
    0x6969,
    0x517b,
    0xfe53_4d42,
    0xff53_4d42,
    FUSE,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
];
const FUSE: u64 = 0x6573_5546;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileIo, StorageEngine};
    use std::os::unix::fs::FileExt;
    use zmove_types::BufferPool;

    #[test]
    fn a_refusal_at_the_first_request_is_remembered_and_not_told() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 10_000], 0).unwrap();
        let mut data = DataFile::for_reading(file, 10_000, Direct::On);
        let Some(direct) = data.direct.as_mut() else {
            return eprintln!("skipped: no O_DIRECT in the directory for temporary files");
        };
        // The alignment is as where a file system reports none, and takes fewer requests than that allows.
        direct.align = 1;
        let buffer = BufferPool::new(9_000, 1).take().unwrap();
        let mut shown = 0;
        let (outcome, buffer) =
            StorageEngine::Threads.read(&data, 3, 9_000, buffer, &mut |slice| shown += slice.len());
        outcome.unwrap();
        assert_eq!((*buffer).to_vec(), [7; 9_000]);
        assert_eq!(shown, 9_000);
        assert!(data.direct.unwrap().refused.into_inner());
    }

    /// A descriptor that can only be written would send each read through the page cache, where none of it is.
    #[test]
    fn what_a_file_to_be_written_holds_is_read_past_the_page_cache() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 100_000], 0).unwrap();
        file.sync_all().unwrap();
        let data = DataFile::for_writing(file, Direct::On).unwrap();
        let mut buffer = BufferPool::new(100_000, 1).take().unwrap();
        let Some((way, _padded)) = data.direct_read(&Span::new(0, 0..90_000), &mut buffer) else {
            return eprintln!("skipped: no O_DIRECT in the directory for temporary files");
        };
        assert!(
            rustix::fs::fcntl_getfl(way.file())
                .unwrap()
                .contains(OFlags::RDWR | OFlags::DIRECT)
        );
    }

    #[test]
    fn what_is_on_the_storage_is_dropped_from_the_page_cache() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 100_000], 0).unwrap();
        file.sync_all().unwrap();
        let data = DataFile::new(file);
        if IN_MEMORY.contains(&kind_of(data.file()).unwrap()) {
            return eprintln!("skipped: the directory for temporary files is in memory");
        }
        let cached = || zmove_uring::cached_bytes(data.file(), 0..100_000);
        if cached().is_err() {
            return eprintln!("skipped: the kernel does not tell what is cached");
        }
        data.drop_cached().unwrap();
        assert_eq!(cached().unwrap(), 0);
    }

    #[test]
    fn cached_ranges_are_read_from_the_cache() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 100_000], 0).unwrap();
        let mut buffer = BufferPool::new(100_000, 1).take().unwrap();
        let data = DataFile::for_reading(
            file.try_clone().unwrap(),
            READ_DIRECT_BYTES_MIN,
            Direct::Auto,
        );
        assert!(
            data.direct_read(&Span::new(0, 0..90_000), &mut buffer)
                .is_none()
        );
        let data = DataFile::for_reading(file, 100_000, Direct::Off);
        assert!(
            data.direct_read(&Span::new(0, 0..90_000), &mut buffer)
                .is_none()
        );
    }
}
