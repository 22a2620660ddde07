//! Positional reads and writes of owned buffers through io_uring, behind a safe interface.
//!
//! All unsafe code of the mover but that of socket options is here. A [`Ring`] is a thread with a ring of its own;
//! callers hand it a buffer and wait until it comes back. **Invariant:** memory and descriptor that the kernel was
//! given belong to the slot of that request until its completion has been seen, whatever becomes of the caller.
//!
//! ```
//! use std::sync::Arc;
//! use zmove_types::BufferPool;
//! use zmove_uring::{Ring, RingConfig, Span};
//! let Ok(ring) = Ring::start(RingConfig::default()) else { return Ok(()) };
//! let file = Arc::new(std::fs::File::open("/proc/self/exe")?);
//! let buffer = BufferPool::new(1 << 20, 1).take().unwrap();
//! let mut shown = 0;
//! let (outcome, _buffer) = ring.read(&file, Span::new(0, 0..1 << 20), buffer, &mut |slice| shown += slice.len());
//! assert_eq!(outcome?, shown);
//! # Ok::<(), std::io::Error>(())
//! ```

mod cache;
mod close;
mod op;
mod probe;
mod registered_buffers;
mod ring;
mod slot;
mod xattr_names;

pub use cache::cached_bytes;
pub use close::close;
pub use op::Span;
pub use probe::Unavailable;
pub use ring::{Ring, RingConfig};
pub use xattr_names::list_xattrs_at;
