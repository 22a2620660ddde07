//! Positional reads and writes of owned buffers through io_uring, behind a safe interface.
//!
//! All unsafe code of the mover is in this crate, except for socket options. A [`Ring`] owns a thread and an io_uring
//! instance. Callers hand the ring a buffer and wait until the ring returns it. **Invariant:** the memory and the
//! descriptor of a request belong to the request's slot until its completion has been reaped, even if the caller is
//! gone.
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
mod exit;
mod op;
mod probe;
mod registered_buffers;
mod ring;
mod slot;
mod xattr_names;

pub use cache::cached_bytes;
pub use close::close;
pub use exit::exit_without_destructors;
pub use op::Span;
pub use probe::Unavailable;
pub use ring::{Ring, RingConfig};
pub use xattr_names::list_xattrs_at;
