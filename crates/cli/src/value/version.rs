//! What `zmove --version` says.

use std::sync::LazyLock;

use zmove_types::TransferId;
use zmove_wire::{Greeting, Role};

/// The release, the commit that it was built from, where `build.rs` knows one, and the protocol versions.
pub(crate) static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("ZMOVE_COMMIT")
        .map(|commit| format!(" (commit {commit})"))
        .unwrap_or_default();
    format!(
        "{}{commit}, protocol {}",
        env!("CARGO_PKG_VERSION"),
        our_protocols()
    )
});

/// The protocol versions that this side speaks.
pub(crate) fn our_protocols() -> String {
    protocols(&Greeting::new(Role::Control, TransferId([0; 16])))
}

/// The protocol versions that a greeting offers.
pub(crate) fn protocols(greeting: &Greeting) -> String {
    if greeting.version_min == greeting.version_max {
        format!("version {}", greeting.version_max)
    } else {
        format!(
            "versions {} to {}",
            greeting.version_min, greeting.version_max
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_says_release_and_protocol_and_nothing_else_but_the_commit() {
        let rest = VERSION.strip_prefix(env!("CARGO_PKG_VERSION")).unwrap();
        let (commit, protocol) = rest.split_once(", ").unwrap();
        assert_eq!(protocol, "protocol versions 1 to 4");
        assert_eq!(
            commit,
            option_env!("ZMOVE_COMMIT").map_or(String::new(), |hash| format!(" (commit {hash})"))
        );
    }
}
