//! Tests of a queue at a real `nats-server`.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, helpers included, a panic is the report"
)]

mod access;
mod end;
mod lab;
mod local;
mod operations;
mod outages;
#[path = "../../../../tests/e2e/support/ports.rs"]
mod ports;
mod queue;
mod rate;
mod server;
mod three;
