//! The storage engine's one shape: owned buffers in, owned buffers out.
//!
//! **Invariant:** the buffer comes back on every path, success or not; a read shows each slice once, in order; engines
//! differ in speed alone. What they share is here: the part of a move that can pass by the page cache does, the rest
//! (tails, refusals, files that are cached) goes through it.

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

/// Reads and writes at positions. An engine has the two calls that move bytes one way; the others are made of them.
pub trait FileIo: Send + Sync + fmt::Debug {
    /// Reads from the span's beginning on and shows each slice once. Returns how much it showed: less than the span at
    /// the end of the file, or where it cannot go on. The buffer's length is as it was.
    fn read_some(&self, way: Way<'_>, span: Span, buffer: Buffer, seen: Slices<'_>)
    -> Moved<usize>;

    /// Writes from the span's beginning on; returns how much: less than the span where it cannot go on.
    fn write_some(&self, way: Way<'_>, span: Span, buffer: Buffer) -> Moved<usize>;

    /// Reads a span, less only at the end of the file, and shows each slice to `seen` while it is in cache. Returns how
    /// much was read; what the buffer holds behind the span may be another then.
    ///
    /// # Panics
    /// When the span ends behind the buffer's room.
    fn read_part(
        &self,
        file: &DataFile,
        span: Span,
        mut buffer: Buffer,
        seen: Slices<'_>,
    ) -> Moved<usize> {
        let start = span.room().start;
        let len = span.len();
        assert!(
            span.room().end <= buffer.capacity(),
            "{span:?} into a buffer of {}",
            buffer.capacity()
        );
        let mut filled = 0;
        if let Some((way, padded)) = file.direct_read(&span, &mut buffer) {
            // Beyond `len` is what a growing file holds by now: it was not asked for and is not shown.
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
            let (outcome, back) = self.read_some(Way::Cached(file.cached()), rest, buffer, seen);
            buffer = back;
            match outcome {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(filled), buffer)
    }

    /// Writes a span of the buffer's content.
    fn write_part(&self, file: &DataFile, span: Span, mut buffer: Buffer) -> Moved<()> {
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
            let (outcome, back) =
                self.write_some(Way::Cached(file.cached()), span.part(written, len), buffer);
            buffer = back;
            match outcome {
                Ok(0) => return (Err(Errno::IO.into()), buffer),
                Ok(bytes) => written += bytes,
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    /// Reads up to `len` bytes from `offset`, fewer only at the end of the file, and shows each slice to
    /// `seen` while it is in cache. The buffer's length is set to what was read.
    ///
    /// # Panics
    /// When `len` is more than the buffer's capacity.
    fn read(
        &self,
        file: &DataFile,
        offset: u64,
        len: usize,
        buffer: Buffer,
        seen: Slices<'_>,
    ) -> Moved<()> {
        let (outcome, mut buffer) = self.read_part(file, Span::new(offset, 0..len), buffer, seen);
        let outcome = outcome.map(|read| buffer.set_len(read));
        (outcome, buffer)
    }

    /// Writes the whole buffer at `offset`.
    fn write(&self, file: &DataFile, offset: u64, buffer: Buffer) -> Moved<()> {
        let whole = Span::new(offset, 0..buffer.len());
        self.write_part(file, whole, buffer)
    }

    /// Another engine of this kind with everything of its own, so that storage that does not answer holds up only the
    /// users of one of them. `None` where the users of one engine share nothing that could run out, or no other can be
    /// started.
    fn anew(&self) -> Option<Arc<dyn FileIo>> {
        None
    }
}

/// The result of a request, and its buffer.
pub type Moved<T> = (io::Result<T>, Buffer);

/// Takes the slices of a read as they come.
pub type Slices<'a> = &'a mut dyn FnMut(&[u8]);

/// A descriptor of a file, by the way its bytes take.
#[derive(Clone, Copy, Debug)]
pub enum Way<'a> {
    /// Through the page cache.
    Cached(&'a Arc<File>),
    /// Past the page cache: what moves is aligned.
    Direct(&'a Arc<File>),
    /// Past the page cache, on a file system where the kernel takes the synchronous writes to a file one at a time.
    DirectInTurns(&'a Arc<File>),
}

impl<'a> Way<'a> {
    /// The descriptor.
    #[must_use]
    pub fn file(self) -> &'a Arc<File> {
        let (Self::Cached(file) | Self::Direct(file) | Self::DirectInTurns(file)) = self;
        file
    }
}
