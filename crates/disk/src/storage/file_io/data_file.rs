//! An open file whose contents are read or written, optionally bypassing the page cache.
//!
//! Buffers are page-aligned and groups are multiples of a page, so `O_DIRECT` can read and write a large file without a
//! copy. Whether it is used depends only on the file, not on the engine. A file with direct I/O has a second descriptor
//! of the same inode. Requests on it have the alignment that the file system reports (`statx`). Older kernels and FUSE
//! report no alignment, so page alignment is assumed. Files in memory, and on network file systems with a client in the
//! kernel, have no second descriptor.
//!
//! By default, reads of large files bypass the page cache, and so do writes of files above a certain size. That size is
//! smaller on ext4 and XFS, which write in place. A range is read through the page cache if most of it is cached
//! (`cachestat`), or if the kernel does not report whether it is cached. The page cache also serves the last partial
//! page of a file. If the file system refuses direct requests, or a direct request fails, the request is repeated
//! through the page cache, which returns the error if it persists.
//!
//! Before a file on ext4 or XFS is written by direct I/O, its blocks are allocated. Otherwise, writes of different
//! groups would wait for each other's block allocation. The allocation is skipped if it would take more than half of
//! the free space.
//!
//! **Invariant:** a page is written through one of the two descriptors, never through both. If a file system refuses
//! direct requests, everything goes through the first descriptor and no error is returned.

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

use crate::storage::file_io::IoMode;

/// Whether the contents of large files bypass the page cache (`O_DIRECT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Bypass the page cache when that is faster.
    #[default]
    Auto,
    /// Bypass the page cache whenever the file system allows it, even if the data is cached.
    On,
    /// Always use the page cache.
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
    /// The required alignment of offsets, lengths and addresses, in bytes.
    align: usize,
    /// Whether ranges in the page cache are read from the cache.
    prefer_cache: bool,
    /// Whether the kernel serializes synchronous writes to this file.
    writes_in_turns: bool,
    refused: AtomicBool,
}

impl DataFile {
    /// Creates a file whose contents go through the page cache.
    #[must_use]
    pub fn new(file: File) -> Self {
        Self {
            cached: Arc::new(file),
            direct: None,
        }
    }

    /// Prepares a file of `bytes` for reading.
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

    /// Prepares a file that already has its final size for writing. Its contents may be read too.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn for_writing(file: File, direct: Direct) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        let mut data = Self::new(file);
        if is_direct_write_faster(&data.cached, bytes, direct) {
            data.direct = DirectFile::open(&data.cached, OFlags::RDWR, false);
        }
        Ok(data)
    }

    /// Sets the final size of an empty file that is about to be written. If the file will be written by direct I/O,
    /// also allocates space for `data`, or for the whole file. The groups of the file arrive in any order, and their
    /// writes would otherwise wait for each other's block allocation.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn reserve(
        &mut self,
        bytes: u64,
        data: Option<&DataRanges>,
        direct: Direct,
    ) -> io::Result<()> {
        self.cached.set_len(bytes)?;
        let data_bytes = data.map_or(bytes, DataRanges::data_bytes);
        if !is_direct_write_faster(&self.cached, data_bytes, direct) {
            return Ok(());
        }
        self.direct = DirectFile::open(&self.cached, OFlags::WRONLY, false);
        let allocate = self.direct.is_some()
            && data_bytes > 0
            && is_allocation_useful(&self.cached, data_bytes);
        let whole = 0..bytes;
        let wanted = data.map_or(std::slice::from_ref(&whole), DataRanges::ranges);
        // A failed allocation is not an error: the writes allocate the space and return any errors.
        if allocate && wanted.iter().any(|range| self.allocate(range).is_err()) {
            // Frees the space that was allocated before the failure, because other files may need it.
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

    /// Returns whether aligned requests bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
            .as_ref()
            .is_some_and(|direct| !direct.refused.load(Ordering::Relaxed))
    }

    /// Returns the descriptor that uses the page cache.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.cached
    }

    pub(crate) fn cached(&self) -> &Arc<File> {
        &self.cached
    }

    /// Returns the descriptor for a direct read of a range, and the length to request. The length of a request must be
    /// aligned even if the end of the file is not. Returns `None` if the range must be read through the page cache.
    pub(crate) fn direct_read(
        &self,
        span: &Span,
        buffer: &mut Buffer,
    ) -> Option<(IoMode<'_>, usize)> {
        let direct = self.direct.as_ref()?;
        let padded = span.len().next_multiple_of(direct.align);
        if !direct.accepts(span, buffer) || span.room().start + padded > buffer.capacity() {
            return None;
        }
        if direct.prefer_cache && is_mostly_cached(&self.cached, span.offset(), span.len()) {
            return None;
        }
        Some((IoMode::Direct(&direct.file), padded))
    }

    /// Returns the descriptor for a direct write of a span, and the number of bytes to write with it. The remaining
    /// bytes are less than a page. A span that does not start at a page boundary is not written directly, so a page
    /// that is partly a hole is only written through the page cache.
    pub(crate) fn direct_write(
        &self,
        span: &Span,
        buffer: &mut Buffer,
    ) -> Option<(IoMode<'_>, usize)> {
        let direct = self.direct.as_ref()?;
        let body = span.len() - span.len() % direct.align;
        let way = if direct.writes_in_turns {
            IoMode::DirectSerialized(&direct.file)
        } else {
            IoMode::Direct(&direct.file)
        };
        (body > 0 && direct.accepts(span, buffer)).then_some((way, body))
    }

    /// Drops clean pages from the page cache, so that later reads return the stored data. After a failed write-back,
    /// the kernel marks pages as clean although the storage does not have their data. Dirty pages are kept: if their
    /// write-back fails, the next flush of this file returns the error. Pages that a process has mapped are kept too.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn drop_cached(&self) -> io::Result<()> {
        Ok(rustix::fs::fadvise(
            &self.cached,
            0,
            None,
            Advice::DontNeed,
        )?)
    }

    /// Drops the clean pages of `len` bytes from `offset`. The range limits the cost, because the kernel visits all
    /// pages in it, including those that it cannot drop.
    pub(crate) fn drop_cached_span(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fadvise(
            &self.cached,
            offset,
            NonZeroU64::new(len),
            Advice::DontNeed,
        )?)
    }

    /// Returns the error that closing the file would return, by closing a duplicate of each of its descriptors. Some
    /// file systems report only on close that they could not store data.
    ///
    /// # Errors
    /// Returns the system's error.
    pub(crate) fn check_close(&self) -> io::Result<()> {
        let direct = self.direct.as_ref().map(|direct| &direct.file);
        direct
            .into_iter()
            .chain([&self.cached])
            .try_for_each(|file| zmove_uring::close(file.try_clone()?))
    }

    /// Records that the file system does not support direct requests. Other errors need not be recorded: the request is
    /// repeated through the page cache, which returns them if they persist.
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
    /// Opens a second descriptor of the file for direct I/O. Returns `None` if the file does not support it.
    fn open(file: &File, access: OFlags, prefer_cache: bool) -> Option<Self> {
        let align = alignment(file)?;
        // Opens the file through `/proc`, because the file may have no name, or its name may now belong to another
        // file.
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

    fn accepts(&self, span: &Span, buffer: &mut Buffer) -> bool {
        let aligned = span.offset().is_multiple_of(self.align as u64)
            && buffer.room()[span.room()]
                .as_ptr()
                .addr()
                .is_multiple_of(self.align);
        aligned && !self.refused.load(Ordering::Relaxed)
    }
}

/// Returns whether the whole pages of a file of `bytes` should be written by direct I/O.
pub(crate) fn can_write_directly(file: &File, bytes: u64, direct: Direct) -> bool {
    is_direct_write_faster(file, bytes, direct) && alignment(file).is_some()
}

fn is_direct_write_faster(file: &File, bytes: u64, direct: Direct) -> bool {
    match direct {
        Direct::Auto if bytes < WRITE_DIRECT_IN_PLACE_BYTES_MIN => false,
        Direct::Auto => bytes >= WRITE_DIRECT_BYTES_MIN || is_written_in_place(file),
        Direct::On => true,
        Direct::Off => false,
    }
}

/// Returns whether the file system overwrites data in place, on a local device.
fn is_written_in_place(file: &File) -> bool {
    kind_of(file).is_ok_and(|kind| IN_PLACE.contains(&kind))
}

/// Returns the alignment of direct requests. It is the alignment that the file system requires, but at least a page, so
/// that no page is accessed both directly and through the page cache. Returns `None` if direct requests have no
/// benefit. This is the case for files in memory, and on a network file system whose client caches data and keeps
/// several requests per file in flight. It is not the case for FUSE, which serializes buffered writes to a file and
/// reads only 128 KiB ahead.
fn alignment(file: &File) -> Option<usize> {
    let kind = kind_of(file).ok()?;
    if IN_MEMORY.contains(&kind) || (REMOTE.contains(&kind) && kind != FUSE) {
        return None;
    }
    let asked = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let told = asked
        .ok()
        .filter(|stat| stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    // An older kernel reports no alignment. The first request shows whether page alignment is sufficient.
    let Some(told) = told else {
        return Some(PAGE_BYTES);
    };
    let align = told.stx_dio_mem_align.max(told.stx_dio_offset_align) as usize;
    let possible = told.stx_dio_offset_align > 0 && told.stx_dio_mem_align > 0;
    (possible && align <= PAGE_BYTES).then_some(PAGE_BYTES)
}

/// Returns the number of bytes that an unprivileged process can still store in a file system.
#[must_use]
pub fn free_bytes(file_system: &StatVfs) -> u64 {
    file_system.f_bavail.saturating_mul(file_system.f_frsize)
}

/// Returns whether a file system has free space but no free inodes. File systems that create inodes on demand report a
/// total of 0.
#[must_use]
pub fn lacks_inodes(file_system: &StatVfs) -> bool {
    file_system.f_files > 0 && file_system.f_favail == 0 && free_bytes(file_system) > 0
}

/// Returns whether to allocate the blocks of the whole file in advance. This is useful only on file systems where it
/// avoids a lock for each write. At least the same amount of space must remain free for other files.
fn is_allocation_useful(file: &File, bytes: u64) -> bool {
    let has_room = |stat: &StatVfs| bytes <= free_bytes(stat) / 2;
    rustix::fs::fstatvfs(file).is_ok_and(|stat| has_room(&stat)) && is_written_in_place(file)
}

/// Returns whether a file is on a remote file system, whose server may set the file's times later.
pub(crate) fn is_remote(file: &File) -> bool {
    kind_of(file).is_ok_and(|kind| REMOTE.contains(&kind))
}

/// Returns the `f_type` of the file system. Some architectures sign-extend it.
fn kind_of(file: &File) -> io::Result<u64> {
    let kind = rustix::fs::fstatfs(file)?.f_type;
    Ok(u64::try_from(kind & 0xffff_ffff).expect("32 bits"))
}

/// Returns whether most of a range is in the page cache. Also returns `true` if the kernel cannot tell, because a read
/// through the page cache is always possible.
fn is_mostly_cached(file: impl AsFd, offset: u64, len: usize) -> bool {
    let range = offset..offset + len as u64;
    zmove_uring::cached_bytes(file, range).map_or(true, |bytes| bytes >= len as u64 / 5 * 4)
}

/// Minimum size of files that are read by direct I/O.
const READ_DIRECT_BYTES_MIN: u64 = 16 << 20;
/// Minimum size of files that are written by direct I/O on copy-on-write or unknown file systems.
const WRITE_DIRECT_BYTES_MIN: u64 = 16 << 20;
/// Minimum size of files that are written by direct I/O on file systems that write in place.
const WRITE_DIRECT_IN_PLACE_BYTES_MIN: u64 = 128 << 10;
/// `f_type` of ext4 and XFS. Other file systems either copy on write, so that allocating space in advance is useless,
/// or cannot allocate space in advance.
const IN_PLACE: [u64; 2] = [0xef53, 0x5846_5342];
/// `f_type` of tmpfs and ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
/// `f_type` of NFS, SMB (two values), CIFS, FUSE, 9P, Ceph and AFS.
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
        // Simulates a file system that reports no alignment and refuses requests that the assumed alignment permits.
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

    /// A write-only descriptor would force each read through the page cache, which does not hold the data.
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
