//! What the keys of channels have in common, of whatever kind.

use std::net::IpAddr;

/// An error of a table, on one line: where in the text it was is not known any more.
pub(super) fn plain(error: &toml::de::Error) -> String {
    error.message().lines().collect::<Vec<_>>().join("; ")
}

/// The host of an address as people write it.
pub(super) fn literal(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[')
        .trim_end_matches(']')
        .parse()
        .ok()
}

/// How long a try may take, where the file does not say it.
pub(super) fn timeout_seconds() -> u64 {
    30
}
