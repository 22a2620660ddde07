//! One read or write of an owned buffer, split into parts that are in flight concurrently.
//!
//! ```text
//!  caller ──RingRequest──► ring: RingPart ──slot──► kernel ──► RingPart ──Landed──► caller: all parts back → buffer
//! ```
//!
//! **Invariant:** each [`RingPart`] holds a reference to its [`Op`], and the op holds the file and the buffer. The
//! buffer becomes accessible again only after every part has completed.
#![expect(
    unsafe_code,
    reason = "buffers are shown in parts while the kernel fills others"
)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use crossbeam_channel::Sender;
use io_uring::{opcode, squeue, types::Fd};
use zmove_types::{Buffer, MemoryId};

/// A range of bytes in a buffer's room (the memory that it can use) and the offset of these bytes in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    offset: u64,
    room: Range<usize>,
}

impl Span {
    /// Creates a span of the bytes `room` of the buffer. The first of these bytes is at `offset` in the file.
    #[must_use]
    pub fn new(offset: u64, room: Range<usize>) -> Self {
        Self { offset, room }
    }

    /// Returns the part of the span that begins at byte `start` and holds at most `len_max` bytes.
    ///
    /// # Panics
    /// Panics if `start` exceeds the length of the span.
    #[must_use]
    pub fn part(&self, start: usize, len_max: usize) -> Self {
        assert!(start <= self.len(), "byte {start} of {self:?}");
        let room = self.room.start + start..self.room.end.min(self.room.start + start + len_max);
        Self {
            offset: self.offset + start as u64,
            room,
        }
    }

    /// Returns the offset of the first byte in the file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the range of bytes in the buffer's room.
    #[must_use]
    pub fn room(&self) -> Range<usize> {
        self.room.clone()
    }

    /// Returns the number of bytes to move.
    #[must_use]
    pub fn len(&self) -> usize {
        self.room.len()
    }

    /// Returns whether the span is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.room.is_empty()
    }
}

/// The direction of a transfer of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoDirection {
    Read,
    Write,
}

/// A read or write of one buffer.
#[derive(Debug)]
pub(crate) struct Op {
    direction: IoDirection,
    file: Arc<File>,
    span: Span,
    part_bytes: usize,
    /// The start of the buffer's room. Between [`Op::new`] and [`Op::into_buffer`] the room is accessed only through
    /// this pointer.
    base: *mut u8,
    room_bytes: usize,
    buffer: Buffer,
}

// SAFETY: `base` points into the heap memory of `buffer`, which the op owns and which may move between threads. Access
// to the bytes is governed by the parts, not by the thread.
unsafe impl Send for Op {}
// SAFETY: a shared op only reads the memory, and only bytes that the kernel no longer writes (see `Op::part_content`).
unsafe impl Sync for Op {}

/// An operation that a caller submits to the ring.
#[derive(Debug)]
pub(crate) struct RingRequest {
    op: Arc<Op>,
    next: usize,
    results: Sender<PartResult>,
}

/// A part of an operation that is submitted to the kernel.
#[derive(Debug)]
pub(crate) struct RingPart {
    op: Arc<Op>,
    index: usize,
    moved: usize,
    results: Sender<PartResult>,
}

/// A completed part, which still holds a reference to its operation.
#[derive(Debug)]
pub(crate) struct PartResult {
    pub(crate) index: usize,
    pub(crate) outcome: io::Result<usize>,
    op: Arc<Op>,
}

/// The action that follows a completion.
#[derive(Debug)]
pub(crate) enum PartCompletion {
    /// The kernel moved fewer bytes than requested. The rest must be requested again.
    Resubmit(RingPart),
    /// The result has been sent to the caller.
    Done,
}

impl Op {
    /// Creates an operation that moves the span in parts of `part_bytes`.
    ///
    /// # Panics
    /// Panics if the span is outside the buffer's room, or if `part_bytes` is zero or exceeds [`PART_BYTES_MAX`].
    pub(crate) fn new(
        direction: IoDirection,
        file: &Arc<File>,
        span: Span,
        part_bytes: usize,
        mut buffer: Buffer,
    ) -> Self {
        let room = buffer.room();
        assert!(
            span.room.start <= span.room.end && span.room.end <= room.len(),
            "{span:?} of {}",
            room.len()
        );
        assert!(
            (1..=PART_BYTES_MAX).contains(&part_bytes),
            "parts of {part_bytes} bytes"
        );
        let base = room.as_mut_ptr();
        let room_bytes = room.len();
        Self {
            direction,
            file: Arc::clone(file),
            span,
            part_bytes,
            base,
            room_bytes,
            buffer,
        }
    }

    pub(crate) fn direction(&self) -> IoDirection {
        self.direction
    }

    /// Returns the number of parts.
    pub(crate) fn parts(&self) -> usize {
        self.span.len().div_ceil(self.part_bytes)
    }

    /// Returns the number of bytes that a part is to move.
    pub(crate) fn part_len(&self, index: usize) -> usize {
        self.part_bytes
            .min(self.span.len() - index * self.part_bytes)
    }

    /// Returns the offset of a part in the buffer's room.
    fn part_start(&self, index: usize) -> usize {
        self.span.room.start + index * self.part_bytes
    }

    /// Returns the first `len` bytes of a part that has been read.
    pub(crate) fn part_content(&self, results: &PartResult, len: usize) -> &[u8] {
        assert!(
            std::ptr::eq(self, &raw const *results.op),
            "the part is one of this operation"
        );
        assert!(
            len <= self.part_len(results.index),
            "{len} bytes of part {}",
            results.index
        );
        // SAFETY: the start of a part lies in the room of the buffer (checked in `new`).
        let start = unsafe { self.base.add(self.part_start(results.index)) };
        // SAFETY: the bytes lie in the room and were initialized when the pool allocated it. Nobody writes them while
        // this borrow of the op lives: the `PartResult` proves that the kernel has finished this part, parts do not
        // overlap, and the buffer itself is inaccessible until `into_buffer`.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Returns the identity and the address range of the whole memory, for registration with a ring.
    pub(crate) fn memory(&self) -> (MemoryId, libc::iovec) {
        (
            self.buffer.memory_id(),
            libc::iovec {
                iov_base: self.base.cast(),
                iov_len: self.room_bytes,
            },
        )
    }

    /// Takes the buffer out of the operation after all parts have completed.
    pub(crate) fn into_buffer(self: Arc<Self>) -> Buffer {
        Arc::into_inner(self)
            .expect("every part has come back and let go")
            .buffer
    }
}

impl RingRequest {
    pub(crate) fn new(op: Arc<Op>, results: Sender<PartResult>) -> Self {
        Self {
            op,
            next: 0,
            results,
        }
    }

    /// Returns whether all parts have been handed out.
    pub(crate) fn is_spent(&self) -> bool {
        self.next >= self.op.parts()
    }

    /// Returns the next part, or `None` if all parts have been handed out.
    pub(crate) fn part(&mut self) -> Option<RingPart> {
        let index = self.next;
        (index < self.op.parts()).then(|| {
            self.next += 1;
            RingPart {
                op: Arc::clone(&self.op),
                index,
                moved: 0,
                results: self.results.clone(),
            }
        })
    }
}

impl RingPart {
    pub(crate) fn op(&self) -> &Op {
        &self.op
    }

    /// Builds the kernel request for the bytes that have not been moved yet. `registered` is the index of the buffer if
    /// it is registered. The memory and the descriptor that the entry refers to live at least as long as this part.
    pub(crate) fn entry(&self, registered: Option<u16>) -> squeue::Entry {
        let op = &*self.op;
        let fd = Fd(op.file.as_raw_fd());
        let offset = op.span.offset + (self.index * op.part_bytes + self.moved) as u64;
        let len = u32::try_from(op.part_len(self.index) - self.moved).expect("a part is short");
        let address = op.base.wrapping_add(op.part_start(self.index) + self.moved);
        match (op.direction, registered) {
            (IoDirection::Read, None) => opcode::Read::new(fd, address, len).offset(offset).build(),
            (IoDirection::Write, None) => {
                opcode::Write::new(fd, address, len).offset(offset).build()
            }
            (IoDirection::Read, Some(index)) => opcode::ReadFixed::new(fd, address, len, index)
                .offset(offset)
                .build(),
            (IoDirection::Write, Some(index)) => opcode::WriteFixed::new(fd, address, len, index)
                .offset(offset)
                .build(),
        }
    }

    /// Processes the result of a completion. If a part failed after some of its bytes were moved, the result is a short
    /// part instead of an error. A caller that requests the remaining bytes then receives the error.
    pub(crate) fn complete(mut self, result: i32) -> PartCompletion {
        let outcome = match usize::try_from(result) {
            Ok(bytes) => {
                self.moved += bytes;
                if bytes > 0 && self.moved < self.op.part_len(self.index) {
                    return PartCompletion::Resubmit(self);
                }
                Ok(self.moved)
            }
            Err(_) if result == -libc::EINTR => return PartCompletion::Resubmit(self),
            Err(_) if self.moved > 0 => Ok(self.moved),
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        };
        // The send fails if the caller has unwound. The operation is then freed with this last reference.
        let _unwound = self.results.send(PartResult {
            index: self.index,
            outcome,
            op: self.op,
        });
        PartCompletion::Done
    }
}

/// Maximum number of bytes of one request. The kernel's own limit is one page less than 2 GiB.
const PART_BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use zmove_types::BufferPool;

    fn request(bytes: usize) -> (RingRequest, crossbeam_channel::Receiver<PartResult>) {
        let (results_in, results) = crossbeam_channel::bounded(9);
        let file = Arc::new(tempfile::tempfile().unwrap());
        let buffer = BufferPool::new(100, 1).take().unwrap();
        let op = Op::new(IoDirection::Read, &file, Span::new(0, 0..bytes), 40, buffer);
        (RingRequest::new(Arc::new(op), results_in), results)
    }

    pub(crate) fn part() -> RingPart {
        request(1).0.part().unwrap()
    }

    #[test]
    fn parts_cover_the_span_once() {
        let (mut request, _landed) = request(100);
        assert!(!request.is_spent());
        let parts: Vec<_> = std::iter::from_fn(|| request.part()).collect();
        let places: Vec<_> = parts
            .iter()
            .map(|part| (part.op.part_start(part.index), part.op.part_len(part.index)))
            .collect();
        assert_eq!(places, [(0, 40), (40, 40), (80, 20)]);
        assert!(request.is_spent());
    }

    #[test]
    fn a_short_result_is_asked_for_again_until_nothing_comes() {
        let (mut request, results) = request(40);
        let PartCompletion::Resubmit(part) = request.part().unwrap().complete(10) else {
            panic!("not again")
        };
        let PartCompletion::Resubmit(part) = part.complete(-libc::EINTR) else {
            panic!("not again")
        };
        assert!(matches!(part.complete(0), PartCompletion::Done));
        assert_eq!(results.recv().unwrap().outcome.unwrap(), 10);
    }

    #[test]
    fn an_error_counts_only_where_nothing_moved() {
        for (before, expected) in [(None, Err(Some(libc::EIO))), (Some(10), Ok(10))] {
            let (mut request, results) = request(40);
            let mut part = request.part().unwrap();
            if let Some(before) = before {
                let PartCompletion::Resubmit(rest) = part.complete(before) else {
                    panic!("not again")
                };
                part = rest;
            }
            assert!(matches!(part.complete(-libc::EIO), PartCompletion::Done));
            let outcome = results.recv().unwrap().outcome;
            assert_eq!(outcome.map_err(|error| error.raw_os_error()), expected);
        }
    }
}
