//! The environment of the programs that run for jobs. It contains only the variables that locate the user's files and
//! settings, because the runner's own environment may contain secrets of unrelated programs.

use std::ffi::{OsStr, OsString};

/// Returns the variables of this process that are passed to child processes.
pub(crate) fn passed_variables() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| is_passed(name))
}

fn is_passed(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    NAMES.contains(&name)
        || FAMILIES.iter().any(|family| name.starts_with(family))
            && !name.starts_with(PRIVATE_PREFIX)
}

const NAMES: [&str; 11] = [
    "HOME",
    "KRB5CCNAME",
    "LANG",
    "LANGUAGE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "SSH_AUTH_SOCK",
    "TMPDIR",
    "TZ",
    "USER",
];
const FAMILIES: [&str; 3] = ["LC_", "XDG_", "ZMOVE_"];
/// Prefix of variables that are meant only for the process that started the runner.
const PRIVATE_PREFIX: &str = "ZMOVE_JOB_";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_handed_on() {
        for (name, expected) in [
            ("PATH", true),
            ("LC_ALL", true),
            ("XDG_RUNTIME_DIR", true),
            ("ZMOVE_JOBS", true),
            ("ZMOVE_JOB_BATCH", false),
            ("AWS_SECRET_ACCESS_KEY", false),
            ("NOTIFY_SOCKET", false),
            ("LD_PRELOAD", false),
            ("PATHS", false),
        ] {
            assert_eq!(is_passed(OsStr::new(name)), expected, "{name}");
        }
    }
}
