//! A storage engine with scripted faults, for tests.
//!
//! The program itself never creates this engine, and no option or environment variable enables it. **Invariant:**
//! requests are counted from 0 in order of arrival, with separate counts for reads and writes. So a script hits the
//! same request in every run if each side has one thread.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use zmove_types::Buffer;
use zmove_uring::Span;

use crate::storage::file_io::storage_engine::StorageEngine;
use crate::storage::file_io::{FileIo, IoMode, IoResult, SliceCallback};

/// Plain system calls that fail according to a script.
///
/// ```
/// use zmove_disk::{FaultAt, Faulty, InjectedFault, RequestKind};
/// let no_space = FaultAt { request: RequestKind::Write, number: 3, fault: InjectedFault::Fails(28) };
/// let disk = Faulty::new([no_space]);
/// assert_eq!(disk.requests(RequestKind::Write), 0);
/// ```
#[derive(Debug)]
pub struct Faulty {
    script: Vec<FaultAt>,
    reads: AtomicU64,
    writes: AtomicU64,
}

/// One entry of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultAt {
    /// The kind of requests that `number` counts.
    pub request: RequestKind,
    /// The number of the request that fails, counting from 0.
    pub number: u64,
    /// The fault.
    pub fault: InjectedFault,
}

/// The kind of a request. A read or write may consist of several requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// The request reads from a file.
    Read,
    /// The request writes to a file.
    Write,
}

/// The fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// The request fails with this `errno` and has no effect.
    Fails(i32),
    /// The request transfers half of its bytes, but at least one.
    IsShort,
    /// The request transfers half of its bytes, and then the process aborts.
    StopsTheProcess,
}

impl Faulty {
    /// Creates an engine with the faults of `script`.
    pub fn new(script: impl IntoIterator<Item = FaultAt>) -> Self {
        Self {
            script: script.into_iter().collect(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        }
    }

    /// Returns the number of requests so far.
    pub fn requests(&self, kind: RequestKind) -> u64 {
        self.counter(kind).load(Ordering::Relaxed)
    }

    fn counter(&self, kind: RequestKind) -> &AtomicU64 {
        match kind {
            RequestKind::Read => &self.reads,
            RequestKind::Write => &self.writes,
        }
    }

    /// Counts a request and returns its fault, if the script has one.
    fn next(&self, kind: RequestKind) -> Option<InjectedFault> {
        let number = self.counter(kind).fetch_add(1, Ordering::Relaxed);
        let at = self
            .script
            .iter()
            .find(|at| at.request == kind && at.number == number);
        at.map(|at| at.fault)
    }

    /// Passes a request to `inner`, unless the script has a fault for this request.
    fn serve(
        &self,
        kind: RequestKind,
        span: Span,
        buffer: Buffer,
        inner: impl FnOnce(Span, Buffer) -> IoResult<usize>,
    ) -> IoResult<usize> {
        match self.next(kind) {
            None => inner(span, buffer),
            Some(InjectedFault::Fails(errno)) => {
                (Err(Errno::from_raw_os_error(errno).into()), buffer)
            }
            Some(fault) => {
                let half = inner(span.part(0, (span.len() / 2).max(1)), buffer);
                if fault == InjectedFault::StopsTheProcess {
                    std::process::abort();
                }
                half
            }
        }
    }
}

impl FileIo for Faulty {
    fn read_some(
        &self,
        way: IoMode<'_>,
        span: Span,
        buffer: Buffer,
        seen: SliceCallback<'_>,
    ) -> IoResult<usize> {
        let read = |span, buffer| StorageEngine::Threads.read_some(way, span, buffer, seen);
        self.serve(RequestKind::Read, span, buffer, read)
    }

    fn write_some(&self, way: IoMode<'_>, span: Span, buffer: Buffer) -> IoResult<usize> {
        let write = |span, buffer| StorageEngine::Threads.write_some(way, span, buffer);
        self.serve(RequestKind::Write, span, buffer, write)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::storage::file_io::FileIo;
    use crate::storage::file_io::data_file::DataFile;

    const CONTENTS: &[u8] = b"0123456789";

    fn faulty(request: RequestKind, number: u64, fault: InjectedFault) -> Faulty {
        Faulty::new([FaultAt {
            request,
            number,
            fault,
        }])
    }

    fn file() -> (tempfile::TempDir, DataFile) {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("f");
        std::fs::write(&path, CONTENTS).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        (home, DataFile::new(file))
    }

    fn read(file_io: &impl FileIo, file: &DataFile) -> Result<Vec<u8>, Option<i32>> {
        let mut seen = Vec::new();
        let mut see = |slice: &[u8]| seen.extend_from_slice(slice);
        let (outcome, buffer) =
            file_io.read(file, 0, CONTENTS.len(), Buffer::copied(&[0; 10]), &mut see);
        outcome.map_err(|error| error.raw_os_error())?;
        assert_eq!(seen, buffer[..]);
        Ok(seen)
    }

    #[test]
    fn the_request_of_that_number_fails_and_no_other() {
        let (_home, file) = file();
        let file_io = faulty(RequestKind::Read, 1, InjectedFault::Fails(5));
        assert_eq!(read(&file_io, &file), Ok(CONTENTS.to_vec()));
        assert_eq!(read(&file_io, &file), Err(Some(5)));
        assert_eq!(read(&file_io, &file), Ok(CONTENTS.to_vec()));
        assert_eq!(file_io.requests(RequestKind::Read), 3);
    }

    #[test]
    fn writes_are_counted_apart_and_one_that_fails_writes_nothing() {
        let (_home, file) = file();
        let file_io = faulty(RequestKind::Write, 0, InjectedFault::Fails(28));
        assert!(read(&file_io, &file).is_ok());
        let (outcome, buffer) = file_io.write(&file, 0, Buffer::copied(b"ab"));
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(28));
        assert_eq!(&buffer[..], b"ab");
        assert_eq!(read(&file_io, &file), Ok(CONTENTS.to_vec()));
    }

    #[test]
    fn a_short_request_is_continued() {
        let (_home, file) = file();
        let file_io = faulty(RequestKind::Read, 0, InjectedFault::IsShort);
        assert_eq!(read(&file_io, &file), Ok(CONTENTS.to_vec()));
        assert_eq!(file_io.requests(RequestKind::Read), 2);
        let file_io = faulty(RequestKind::Write, 0, InjectedFault::IsShort);
        file_io.write(&file, 3, Buffer::copied(b"abc")).0.unwrap();
        assert_eq!(file_io.requests(RequestKind::Write), 2);
        let mut there = [0; 10];
        file.file().read_exact_at(&mut there, 0).unwrap();
        assert_eq!(&there, b"012abc6789");
    }
}
