//! Every decoder of zmove, run on any bytes: by libFuzzer, and over a kept corpus by `cargo test`.
//!
//! A [`Target`] is a function that takes bytes and panics when a decoder breaks a promise. `.ci/fuzz` runs
//! all of them; docs/RELIABILITY.md says how. **Invariant:** a run of a target that
//! takes more memory than the target may is stopped as one that panics is.

mod memory;
mod seeds;
mod target;
mod wire;

pub use target::{TARGETS, Target, list_targets};
pub use wire::decodes;
