//! Connections on loopback: which peers get one, and lanes on them, by TLS on TCP, in clear after it, and by QUIC.

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
