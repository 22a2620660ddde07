//! The server of XRootD, unencrypted and without authentication, and its two clients: xrdcp with its own protocol, and
//! davix with WebDAV.
//!
//! The server refuses to run as root, so its user becomes the owner of the target before each run.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Stage, programs};
use crate::processes::{inside, run};

/// Returns the command of the target's server, which supports both protocols.
pub(super) fn server(stage: &Stage<'_>) -> Result<Command> {
    let (home, target) = (&stage.homes.xrootd, stage.target);
    let root = target.parent().context("a run's directory has a parent")?;
    let config_file = home.join("xrootd.cf");
    fs::write(&config_file, config(root, home))
        .with_context(|| format!("failed to write {}", config_file.display()))?;
    for place in [home.as_path(), target] {
        run::output(
            "chown",
            &[
                "-R",
                USER,
                place.to_str().context("the session's paths are UTF-8")?,
            ],
        )?;
    }
    let xrootd = programs::path("xrootd");
    let mut command =
        inside::command(Some(&stage.hosts.target), Some(stage.target_group), &xrootd)?;
    command.args(["-R", USER, "-c"]).arg(config_file);
    Ok(command)
}

fn config(root: &Path, home: &Path) -> String {
    let (root, home) = (root.display(), home.display());
    format!(
        "xrd.port {PORT}\nxrd.protocol http:{HTTP_PORT} libXrdHttp.so\nall.export /\noss.localroot {root}\n\
         all.adminpath {home}\nall.pidpath {home}\n"
    )
}

pub(super) const PORT: u16 = 1_094;
pub(super) const HTTP_PORT: u16 = 8_094;
/// The user that Debian's package creates.
const USER: &str = "xrootd";
/// Options of xrdcp: parallel files, and the maximum number of connections to a server.
pub(super) const XRDCP_FLAGS: [&str; 6] = [
    "--recursive",
    "--silent",
    "--parallel",
    "16",
    "--streams",
    "15",
];
/// Options of davix-put: sixteen threads for trees, and no extra round trip before each file.
pub(super) const DAVIX_FLAGS: &str = "-r 16 --no-100-continue";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_exports_the_target_by_both_protocols() {
        let config = config(
            Path::new("/run/lab/7/target"),
            Path::new("/run/lab/7/xrootd"),
        );
        for line in [
            "xrd.port 1094",
            "xrd.protocol http:8094 libXrdHttp.so",
            "oss.localroot /run/lab/7/target",
        ] {
            assert!(
                config.lines().any(|other| other == line),
                "{line} is not in {config}"
            );
        }
    }
}
