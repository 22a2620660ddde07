//! Owned payload buffers and the bounded pool they come from.
//!
//! A buffer moves disk → queue → lane and returns to its pool when dropped, so the pool's size is the bound
//! on payload memory. **Invariant:** a pool never hands out more than its `buffers_max` at once.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Bytes that belong to one owner; goes back to its pool when dropped.
pub struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    pool: Option<Arc<Shared>>,
}

/// A fixed number of equal buffers, made when first needed and reused.
#[derive(Clone)]
pub struct BufferPool(Arc<Shared>);

struct Shared {
    buffer_bytes: usize,
    buffers_max: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    free: Vec<Vec<u8>>,
    made: usize,
    closed: bool,
}

impl BufferPool {
    /// A pool of at most `buffers_max` buffers of `buffer_bytes` each.
    #[must_use]
    pub fn new(buffer_bytes: usize, buffers_max: usize) -> Self {
        let state = Mutex::default();
        Self(Arc::new(Shared { buffer_bytes, buffers_max, state, returned: Condvar::new() }))
    }

    /// Waits for a free buffer; `None` once the pool is [closed](Self::close).
    #[must_use]
    pub fn take(&self) -> Option<Buffer> {
        let mut state = self.0.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(bytes) = state.take_or_make(&self.0) {
                drop(state);
                let bytes = bytes.unwrap_or_else(|| vec![0; self.0.buffer_bytes]);
                return Some(Buffer { bytes, len: 0, pool: Some(Arc::clone(&self.0)) });
            }
            state = self.0.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes and refuses everybody who waits for a buffer, now and later.
    pub fn close(&self) {
        self.0.lock().closed = true;
        self.0.returned.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A free buffer, or leave (`Some(None)`) to make one, or `None` when all are out.
    fn take_or_make(&mut self, shared: &Shared) -> Option<Option<Vec<u8>>> {
        if let Some(bytes) = self.free.pop() {
            return Some(Some(bytes));
        }
        (self.made < shared.buffers_max).then(|| {
            self.made += 1;
            None
        })
    }
}

impl Buffer {
    /// A buffer of no pool that holds nothing.
    #[must_use]
    pub fn empty() -> Self {
        Self { bytes: Vec::new(), len: 0, pool: None }
    }

    /// How many bytes fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Declares the first `len` bytes to be the content.
    ///
    /// # Panics
    /// When `len` is more than the [`capacity`](Self::capacity).
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.bytes.len(), "{len} bytes in a buffer of {}", self.bytes.len());
        self.len = len;
    }

    /// The whole room, to be filled before [`set_len`](Self::set_len).
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.lock().free.push(std::mem::take(&mut self.bytes));
            pool.returned.notify_one();
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} of {} B)", self.len, self.bytes.len())
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferPool({} × {} B)", self.0.buffers_max, self.0.buffer_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_wakes_the_one_who_waits() {
        let pool = BufferPool::new(8, 1);
        let first = pool.take().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.take().map(|buffer| buffer.capacity()));
            drop(first);
            assert_eq!(waiter.join().unwrap(), Some(8));
        });
    }

    #[test]
    fn a_closed_pool_refuses() {
        let pool = BufferPool::new(8, 1);
        let held = pool.take();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.take().is_none());
            pool.close();
            assert!(waiter.join().unwrap());
        });
        drop(held);
    }
}
