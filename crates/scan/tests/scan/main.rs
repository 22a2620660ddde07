//! Scans of real trees through the public interface.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod descriptors;
mod list;
mod selection;
mod support;
mod walk;
