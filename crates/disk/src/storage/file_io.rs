//! The common interface of storage engines, which take and return owned buffers.
//!
//! **Invariant:** every request returns its buffer, whether the request succeeds or fails. A read passes each slice to
//! its callback once and in order. Engines differ only in speed.
//!
//! This module contains the code that all engines share. Aligned requests bypass the page cache if possible. The page
//! cache is used for the end of a file, for cached files, and if the file system refuses direct I/O.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use zmove_types::Buffer;
use zmove_uring::Span;

pub(crate) mod contents;
pub(crate) mod data_file;
pub(crate) mod fault;
pub(crate) mod storage_engine;
pub(crate) mod storage_reader;

use data_file::DataFile;

/// Reads and writes at file offsets. An engine implements `read_some` and `write_some`, on which the other methods are
/// based.
pub trait FileIo: Send + Sync + fmt::Debug {
    /// Reads from the start of the span and passes each slice to `seen` once. Returns the number of bytes passed to
    /// `seen`. This number is less than the span at the end of the file or if the engine cannot continue. Does not
    /// change the length of the buffer.
    fn read_some(
        &self,
        way: IoMode<'_>,
        span: Span,
        buffer: Buffer,
        seen: SliceCallback<'_>,
    ) -> IoResult<usize>;

    /// Writes from the start of the span. Returns the number of bytes written, which is less than the span if the
    /// engine cannot continue.
    fn write_some(&self, way: IoMode<'_>, span: Span, buffer: Buffer) -> IoResult<usize>;

    /// Reads a span and passes each slice to `seen` while the slice is in the CPU cache. Returns the number of bytes
    /// read, which is less than the span only at the end of the file. Bytes of the buffer behind the span may be
    /// overwritten.
    ///
    /// # Panics
    /// Panics if the span ends beyond the capacity of the buffer.
    fn read_part(
        &self,
        file: &DataFile,
        span: Span,
        mut buffer: Buffer,
        seen: SliceCallback<'_>,
    ) -> IoResult<usize> {
        let start = span.room().start;
        let len = span.len();
        assert!(
            span.room().end <= buffer.capacity(),
            "{span:?} into a buffer of {}",
            buffer.capacity()
        );
        let mut filled = 0;
        if let Some((way, padded)) = file.direct_read(&span, &mut buffer) {
            // Bytes after `len` exist only if the file has grown. They were not requested and are not passed to `seen`.
            let mut shown = 0;
            let show = &mut |slice: &[u8]| {
                let wanted = slice.len().min(len - shown);
                if wanted > 0 {
                    seen(&slice[..wanted]);
                }
                shown += wanted;
            };
            let padded = Span::new(span.offset(), start..start + padded);
            let (outcome, back) = self.read_some(way, padded, buffer, show);
            buffer = back;
            match outcome {
                Ok(_) => filled = shown,
                Err(error) => file.note_refusal(&error),
            }
        }
        while filled < len {
            let rest = span.part(filled, len);
            let (outcome, back) = self.read_some(IoMode::Cached(file.cached()), rest, buffer, seen);
            buffer = back;
            match outcome {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(filled), buffer)
    }

    /// Writes a span of the buffer's contents.
    fn write_part(&self, file: &DataFile, span: Span, mut buffer: Buffer) -> IoResult<()> {
        let len = span.len();
        let mut written = 0;
        if let Some((way, body)) = file.direct_write(&span, &mut buffer) {
            let (outcome, back) = self.write_some(way, span.part(0, body), buffer);
            buffer = back;
            match outcome {
                Ok(bytes) => written = bytes,
                Err(error) => file.note_refusal(&error),
            }
        }
        while written < len {
            let (outcome, back) = self.write_some(
                IoMode::Cached(file.cached()),
                span.part(written, len),
                buffer,
            );
            buffer = back;
            match outcome {
                Ok(0) => return (Err(Errno::IO.into()), buffer),
                Ok(bytes) => written += bytes,
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    /// Reads up to `len` bytes from `offset` and passes each slice to `seen` while the slice is in the CPU cache. Fewer
    /// bytes are read only at the end of the file. Sets the length of the buffer to the number of bytes read.
    ///
    /// # Panics
    /// Panics if `len` exceeds the capacity of the buffer.
    fn read(
        &self,
        file: &DataFile,
        offset: u64,
        len: usize,
        buffer: Buffer,
        seen: SliceCallback<'_>,
    ) -> IoResult<()> {
        let (outcome, mut buffer) = self.read_part(file, Span::new(offset, 0..len), buffer, seen);
        let outcome = outcome.map(|read| buffer.set_len(read));
        (outcome, buffer)
    }

    /// Writes the whole buffer at `offset`.
    fn write(&self, file: &DataFile, offset: u64, buffer: Buffer) -> IoResult<()> {
        let whole = Span::new(offset, 0..buffer.len());
        self.write_part(file, whole, buffer)
    }

    /// Returns another engine of the same kind that shares no resources with this one, so that unresponsive storage
    /// blocks only the users of one engine. Returns `None` if engines of this kind have no limited resources, or if no
    /// other engine can be started.
    fn new_independent(&self) -> Option<Arc<dyn FileIo>> {
        None
    }
}

/// The result of a request, together with its buffer.
pub type IoResult<T> = (io::Result<T>, Buffer);

/// A callback that receives the slices of a read in order.
pub type SliceCallback<'a> = &'a mut dyn FnMut(&[u8]);

/// A file descriptor, with the kind of I/O to use on it.
#[derive(Clone, Copy, Debug)]
pub enum IoMode<'a> {
    /// I/O through the page cache.
    Cached(&'a Arc<File>),
    /// Aligned I/O that bypasses the page cache.
    Direct(&'a Arc<File>),
    /// Aligned I/O that bypasses the page cache, on a file system for which the kernel serializes synchronous writes to
    /// a file.
    DirectSerialized(&'a Arc<File>),
}

impl<'a> IoMode<'a> {
    /// Returns the descriptor.
    #[must_use]
    pub fn file(self) -> &'a Arc<File> {
        let (Self::Cached(file) | Self::Direct(file) | Self::DirectSerialized(file)) = self;
        file
    }
}
