//! zmove as its users run it: whole programs and whole pipelines, one file per theme.
//!
//! Every case that can runs twice, against a daemon over TCP and TLS and against a local directory through
//! the memory transport. Cases run concurrently; a case that measures takes the machine for itself
//! ([`support::quiet_machine`]). What a machine cannot show is skipped with its reason on stderr, unless
//! `ZMOVE_REQUIRE_LAB=1` forbids that.

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
