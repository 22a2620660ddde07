//! The programs that each tool needs, and their paths.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Kind;

/// Returns the programs of a tool that are not installed. `None` if all are installed.
pub(super) fn missing(kind: Kind) -> Option<String> {
    absent(needed(kind))
}

/// Returns which of these programs are not installed. `None` if all are installed.
pub(crate) fn absent(names: &[&str]) -> Option<String> {
    let absent: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| find(name).is_none())
        .collect();
    if absent.is_empty() {
        None
    } else {
        Some(format!("no {}", absent.join(", no ")))
    }
}

/// Returns the path of a program, or its name if it is not installed.
pub(super) fn path(name: &str) -> String {
    find(name)
        .and_then(|path| path.to_str().map(str::to_owned))
        .unwrap_or_else(|| name.to_owned())
}

/// Returns the first line of the version that a program reports, on either stream.
pub(super) fn version(program: &str, argument: &str) -> String {
    let Ok(said) = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .output()
    else {
        return "not found".to_owned();
    };
    let words = [said.stdout, said.stderr].concat();
    String::from_utf8_lossy(&words)
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn needed(kind: Kind) -> &'static [&'static str] {
    match kind {
        // `ZmoveProgram` finds zmove. Without zmove there is nothing to compare.
        Kind::Zmove | Kind::ZmovePull => &[],
        Kind::ZmoveSsh => &["ssh", "sshd"],
        Kind::Rsync | Kind::RsyncPull | Kind::RsyncSimple => &["rsync", "ssh", "sshd"],
        Kind::RsyncDaemon => &["rsync"],
        Kind::TarSsh => &["tar", "ssh", "sshd"],
        Kind::Scp => &["scp", "ssh", "sshd"],
        Kind::Rclone => &["rclone", "sshd"],
        Kind::Fpsync => &["fpsync", "fpart", "rsync"],
        Kind::TarNetcat => &["tar", "nc"],
        Kind::TarMbuffer => &["tar", "mbuffer"],
        Kind::Syq => &["syq", "ssh", "sshd"],
        Kind::GridFtp | Kind::GridFtpDirect => {
            &["globus-gridftp-server", "globus-url-copy", "unshare"]
        }
        Kind::Xrdcp => &["xrdcp", "xrootd"],
        Kind::Davix => &["davix-put", "xrootd"],
        Kind::Rcp => &["rcp", "rcpd", "ssh", "sshd"],
        Kind::Qcp => &["qcp", "ssh", "sshd"],
        Kind::Local(local) => local.needed(),
    }
}

/// Finds a program on the PATH and in the directories of daemons, which are often not on a user's PATH.
fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let daemons = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(daemons)
        .map(|directory| directory.join(name))
        .find(|candidate| is_program(candidate))
}

fn is_program(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_where_they_are() {
        assert!(path("sh").ends_with("/sh"));
        assert_eq!(path("no-such-program-anywhere"), "no-such-program-anywhere");
        assert_eq!(absent(&["sh"]), None);
        assert_eq!(
            absent(&["nope-1", "sh", "nope-2"]).as_deref(),
            Some("no nope-1, no nope-2")
        );
    }
}
