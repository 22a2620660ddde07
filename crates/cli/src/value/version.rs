//! The output of `zmove --version`.

use std::sync::LazyLock;

use zmove_wire::PROTOCOL_VERSION;

/// The release, the commit if `build.rs` knows it, and the protocol version.
pub(crate) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("ZMOVE_COMMIT")
        .map(|commit| format!(" (commit {commit})"))
        .unwrap_or_default();
    format!(
        "{}{commit}, protocol version {PROTOCOL_VERSION}",
        env!("CARGO_PKG_VERSION"),
    )
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_says_release_and_protocol_and_nothing_else_but_the_commit() {
        let rest = VERSION.strip_prefix(env!("CARGO_PKG_VERSION")).unwrap();
        let (commit, protocol) = rest.split_once(", ").unwrap();
        assert_eq!(protocol, "protocol version 1");
        assert_eq!(
            commit,
            option_env!("ZMOVE_COMMIT").map_or(String::new(), |hash| format!(" (commit {hash})"))
        );
    }
}
