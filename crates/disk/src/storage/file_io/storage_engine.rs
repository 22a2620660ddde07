//! The storage engines: plain system calls, io_uring, or the faster engine for each file.
//!
//! With io_uring, several requests for one group are in flight. The first bytes of the group are hashed while later
//! bytes are still being read. If the user requests io_uring, the program tests the setup of a ring and a first read.
//! If the test fails, the program uses plain system calls and prints the reason in one line.
//!
//! By default, the engine uses plain system calls, which are as fast on local disks (`docs/PERFORMANCE.md`). It uses
//! io_uring only if plain system calls are slower, which is the case for writes to a large file on FUSE. The kernel
//! locks the file until the server has completed a synchronous write, even for direct I/O, so concurrent `pwrite` calls
//! are serialized. Asynchronous requests through a ring are not.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use zmove_types::Buffer;
use zmove_uring::{Ring, RingConfig, Span};

use crate::storage::file_io::{FileIo, IoMode, IoResult, SliceCallback};

/// The storage engine that the program uses.
#[derive(Debug)]
pub enum StorageEngine {
    /// `pread` and `pwrite` on the calling thread.
    Threads,
    /// Requests that are submitted to a ring's thread.
    Uring(Ring),
    /// `pread` and `pwrite`, or a ring if only a ring can keep several writes to one file in flight. The first such
    /// write starts the ring. The inner value is `None` if the system refuses io_uring.
    Auto(OnceLock<Option<Ring>>),
}

impl Default for StorageEngine {
    fn default() -> Self {
        Self::Auto(OnceLock::new())
    }
}

/// The size of one read from the page cache. It is large enough to amortize the system call, and small enough that the
/// data is hashed from the L2 cache.
const SLICE_BYTES: usize = 256 << 10;

impl FileIo for StorageEngine {
    fn read_some(
        &self,
        way: IoMode<'_>,
        span: Span,
        mut buffer: Buffer,
        seen: SliceCallback<'_>,
    ) -> IoResult<usize> {
        if let Self::Uring(ring) = self {
            return ring.read(way.file(), span, buffer, seen);
        }
        let slice_bytes = match way {
            IoMode::Cached(_) => SLICE_BYTES,
            // A single request covers the whole span, because each request waits for the device.
            IoMode::Direct(_) | IoMode::DirectSerialized(_) => span.len(),
        };
        let mut moved = 0;
        while moved < span.len() {
            let slice = span.part(moved, slice_bytes);
            let room = &mut buffer.room()[slice.room()];
            match way.file().read_at(room, slice.offset()) {
                Ok(0) => break,
                Ok(taken) => {
                    seen(&room[..taken]);
                    moved += taken;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if moved == 0 => return (Err(error), buffer),
                Err(_told_to_the_next_call) => break,
            }
        }
        (Ok(moved), buffer)
    }

    fn write_some(&self, way: IoMode<'_>, span: Span, buffer: Buffer) -> IoResult<usize> {
        let ring = match (self, way) {
            (Self::Uring(ring), _) => Some(ring),
            (Self::Auto(ring), IoMode::DirectSerialized(_)) => ring
                .get_or_init(|| Ring::start(RingConfig::default()).ok())
                .as_ref(),
            _ => None,
        };
        if let Some(ring) = ring {
            return ring.write(way.file(), span, buffer);
        }
        loop {
            match way.file().write_at(&buffer[span.room()], span.offset()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return (outcome, buffer),
            }
        }
    }

    /// Returns an engine with a separate ring. A ring has few slots, and requests to unresponsive storage occupy their
    /// slots.
    fn new_independent(&self) -> Option<Arc<dyn FileIo>> {
        Some(Arc::new(match self {
            Self::Threads => return None,
            Self::Uring(ring) => Self::Uring(Ring::start(ring.config()).ok()?),
            Self::Auto(_) => Self::default(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use zmove_types::BufferPool;

    use super::*;
    use crate::DataFile;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_read_of_nothing_ends_at_once() {
        let ring = match Ring::start(RingConfig::default()) {
            Ok(ring) => ring,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut buffer = BufferPool::new(4096, 1).take().unwrap();
        // If a ring passed the request to its thread, it would often still be busy when the caller continues.
        for _ in 0..10_000 {
            let (outcome, back) = ring.read(&file, Span::new(0, 0..0), buffer, &mut |_| ());
            assert_eq!(outcome.unwrap(), 0);
            buffer = back;
        }
    }

    /// A pipe without a writer simulates unresponsive storage.
    #[test]
    fn a_ring_whose_storage_hangs_holds_up_no_other() {
        let depth = 4;
        let one = match Ring::start(RingConfig {
            depth,
            ..RingConfig::default()
        }) {
            Ok(ring) => StorageEngine::Uring(ring),
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let other = one.new_independent().expect("there is room for two");
        let (hanging, mut end) = io::pipe().unwrap();
        let hanging = DataFile::new(File::from(OwnedFd::from(hanging)));
        let (home, (done_in, done)) = (tempfile::tempdir().unwrap(), std::sync::mpsc::channel());
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(home.path().join("f"))
            .unwrap();
        let file = DataFile::new(file);
        let pool = BufferPool::new(4096, usize::from(depth) + 1);
        std::thread::scope(|scope| {
            for _ in 0..depth {
                let (buffer, one, hanging) = (pool.take().unwrap(), &one, &hanging);
                scope.spawn(move || one.read(hanging, 0, 1, buffer, &mut |_| ()).0.unwrap());
            }
            let mut buffer = pool.take().unwrap();
            buffer.set_len(4096);
            scope.spawn(|| done_in.send(other.write(&file, 0, buffer).0).unwrap());
            let written = done.recv_timeout(PATIENCE);
            end.write_all(&vec![0; usize::from(depth)]).unwrap();
            written.expect("it does not wait for the other").unwrap();
        });
    }
}
