//! Owned payload buffers and the bounded pool that allocates them.
//!
//! A buffer travels from the disk through a queue to a lane and returns to its pool when it is dropped. The size of the
//! pool therefore bounds the payload memory.
//!
//! **Invariant:** at most `buffers_max` buffers of a pool exist at a time, and only [`BufferPool::raise`] changes that
//! number. Each buffer starts at a page boundary, as direct I/O (reads and writes that bypass the page cache) requires.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Condvar, PoisonError, Weak};

use crate::lock::Lock;

/// A byte buffer with a single owner. It returns to its pool when dropped.
pub struct Buffer {
    memory: Memory,
    len: usize,
    pool: Option<Arc<Shared>>,
}

/// The identity of a buffer's memory. It shows whether two buffers share the same memory, even if one of them was
/// dropped long ago. It does not keep the memory allocated.
#[derive(Clone, Debug)]
pub struct MemoryId(Weak<()>);

/// Alignment of buffers in memory, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// A page-aligned block of memory that is never moved or resized.
#[derive(Default)]
struct Memory {
    bytes: Vec<u8>,
    start: usize,
    room_bytes: usize,
    id: Option<Arc<()>>,
}

/// A pool with a bounded number of equally sized buffers, which are allocated on first use and then reused.
#[derive(Clone)]
pub struct BufferPool(Arc<Shared>);

struct Shared {
    buffer_bytes: usize,
    state: Lock<State>,
    returned: Condvar,
}

struct State {
    buffers_max: usize,
    free: Vec<Memory>,
    made: usize,
    closed: bool,
    /// Number of times that a thread has waited for a buffer.
    #[cfg(test)]
    waits: usize,
}

impl BufferPool {
    /// Creates a pool of at most `buffers_max` buffers of `buffer_bytes` each.
    #[must_use]
    pub fn new(buffer_bytes: usize, buffers_max: usize) -> Self {
        let state = Lock::new(State {
            buffers_max,
            free: Vec::new(),
            made: 0,
            closed: false,
            #[cfg(test)]
            waits: 0,
        });
        Self(Arc::new(Shared {
            buffer_bytes,
            state,
            returned: Condvar::new(),
        }))
    }

    /// Raises the maximum number of buffers to `buffers_max`. Does nothing if the maximum is already that high.
    pub fn raise(&self, buffers_max: usize) {
        let mut state = self.0.state.lock();
        state.buffers_max = state.buffers_max.max(buffers_max);
        self.0.returned.notify_all();
    }

    /// Waits for a free buffer. Returns `None` once the pool is [closed](Self::close).
    #[must_use]
    pub fn take(&self) -> Option<Buffer> {
        let mut state = self.0.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(memory) = state.take_or_make() {
                drop(state);
                let memory = memory.unwrap_or_else(|| Memory::new(self.0.buffer_bytes));
                return Some(Buffer {
                    memory,
                    len: 0,
                    pool: Some(Arc::clone(&self.0)),
                });
            }
            #[cfg(test)]
            {
                state.waits += 1;
            }
            state = self
                .0
                .returned
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes the pool: current and later calls of [`take`](Self::take) return `None`.
    pub fn close(&self) {
        self.0.state.lock().closed = true;
        self.0.returned.notify_all();
    }
}

impl State {
    /// Returns a free buffer, `Some(None)` if the caller may allocate a new one, or `None` if all buffers are in use.
    fn take_or_make(&mut self) -> Option<Option<Memory>> {
        if let Some(memory) = self.free.pop() {
            return Some(Some(memory));
        }
        (self.made < self.buffers_max).then(|| {
            self.made += 1;
            None
        })
    }
}

impl Memory {
    fn new(room_bytes: usize) -> Self {
        let bytes = vec![0; room_bytes + PAGE_BYTES];
        // `align_offset` may fail to find a page boundary. The block is then used unaligned, because alignment only
        // affects speed.
        let start =
            Some(bytes.as_ptr().align_offset(PAGE_BYTES)).filter(|&start| start < PAGE_BYTES);
        Self {
            bytes,
            start: start.unwrap_or(0),
            room_bytes,
            id: Some(Arc::default()),
        }
    }
}

impl Buffer {
    /// Returns an empty buffer that belongs to no pool.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            memory: Memory::default(),
            len: 0,
            pool: None,
        }
    }

    /// Returns a buffer with a copy of `bytes` that belongs to no pool.
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        let mut buffer = Self {
            memory: Memory::new(bytes.len()),
            len: bytes.len(),
            pool: None,
        };
        buffer.room().copy_from_slice(bytes);
        buffer
    }

    /// Returns the capacity of the buffer, in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.room_bytes
    }

    /// Returns the identity of this buffer's memory.
    #[must_use]
    pub fn memory_id(&self) -> MemoryId {
        MemoryId(
            self.memory
                .id
                .as_ref()
                .map_or_else(Weak::new, Arc::downgrade),
        )
    }

    /// Sets the length of the content to the first `len` bytes.
    ///
    /// # Panics
    /// Panics if `len` exceeds the [`capacity`](Self::capacity).
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.capacity(),
            "{len} bytes in a buffer of {}",
            self.capacity()
        );
        self.len = len;
    }

    /// Returns the whole capacity as a slice, to be filled before [`set_len`](Self::set_len).
    pub fn room(&mut self) -> &mut [u8] {
        let Memory {
            bytes,
            start,
            room_bytes,
            ..
        } = &mut self.memory;
        &mut bytes[*start..*start + *room_bytes]
    }
}

impl MemoryId {
    /// Returns whether the memory has been freed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl PartialEq for MemoryId {
    fn eq(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Eq for MemoryId {}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory.bytes[self.memory.start..self.memory.start + self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.state
                .lock()
                .free
                .push(std::mem::take(&mut self.memory));
            pool.returned.notify_one();
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} B)", self.len, self.capacity())
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "BufferPool({} × {} B)",
            self.0.state.lock().buffers_max,
            self.0.buffer_bytes
        )
    }
}

#[cfg(test)]
mod tests {
    use std::thread::ScopedJoinHandle;

    use super::*;

    fn until_it_waits<T>(waiter: &ScopedJoinHandle<'_, T>, pool: &BufferPool) {
        while pool.0.state.lock().waits == 0 {
            assert!(!waiter.is_finished());
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_dropped_buffer_wakes_the_one_who_waits() {
        let pool = BufferPool::new(8, 1);
        let first = pool.take().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.take().map(|buffer| buffer.capacity()));
            until_it_waits(&waiter, &pool);
            drop(first);
            assert_eq!(waiter.join().unwrap(), Some(8));
        });
    }

    #[test]
    fn buffers_begin_at_a_page_and_keep_their_memory() {
        let pool = BufferPool::new(5000, 2);
        let (mut first, second) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!(first.room().as_ptr().align_offset(PAGE_BYTES), 0);
        assert_eq!(
            (first.room().len(), first.capacity(), first.len()),
            (5000, 5000, 0)
        );
        let id = first.memory_id();
        assert_ne!(id, second.memory_id());
        drop(first);
        assert_eq!(pool.take().unwrap().memory_id(), id);
        drop((pool, second));
        assert!(id.is_gone());
    }

    #[test]
    fn a_raised_pool_has_room_for_the_one_who_waits() {
        let pool = BufferPool::new(8, 1);
        let held = pool.take();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.take().is_some());
            until_it_waits(&waiter, &pool);
            pool.raise(2);
            pool.raise(1);
            assert!(waiter.join().unwrap());
        });
        drop(held);
    }

    #[test]
    fn a_closed_pool_refuses() {
        let pool = BufferPool::new(8, 1);
        let held = pool.take();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.take().is_none());
            until_it_waits(&waiter, &pool);
            pool.close();
            assert!(waiter.join().unwrap());
        });
        drop(held);
    }
}
