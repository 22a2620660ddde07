//! Runs every decoder of zmove on arbitrary bytes: with libFuzzer, and on a saved corpus with `cargo test`.
//!
//! A [`Target`] is a function that takes bytes and panics if a decoder violates one of its guarantees. `.ci/fuzz` runs
//! all targets, as docs/RELIABILITY.md describes. **Invariant:** a run that needs more memory than its target allows is
//! aborted, which counts as a failure like a panic.

mod memory;
mod seeds;
mod target;
mod wire;

pub use target::{TARGETS, Target, list_targets};
pub use wire::decodes;
