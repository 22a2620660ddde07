//! Connections on loopback: accepted and refused peers, and lanes over TLS on TCP, in cleartext on TCP, and over QUIC.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, helpers included, a panic is the report"
)]

mod authority;
mod frames;
mod lane;
mod party;
mod path_check;
mod quic;
mod trust;
mod trust_all;
