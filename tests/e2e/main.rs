//! End-to-end tests: complete programs and pipelines as users run them, one file per theme.
//!
//! Most cases run twice: against a daemon over TCP and TLS, and against a local directory through the memory transport.
//! Cases run concurrently. A case that measures gets the machine exclusively ([`support::quiet_machine`]). A case that
//! this machine cannot run is skipped with the reason on stderr. With `ZMOVE_REQUIRE_LAB=1` it fails instead.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, helpers included, a panic is the report"
)]

mod commands;
mod connections;
mod lanes;
mod operation;
mod security;
mod several;
mod sources;
mod support;
mod targets;
