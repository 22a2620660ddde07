//! GridFTP's programs, in clear and for anybody: two servers between which the client only speaks (third party), or one
//! to which it sends.
//!
//! They refuse to run where their own address has no name, so each gets `/etc/hosts` of its own in a mount namespace.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Stage, programs};
use crate::groups::Group;
use crate::hosts::{SOURCE_ADDRESS, TARGET_ADDRESS};
use crate::inside;

/// Writes the names of both hosts.
pub(super) fn write_names(path: &Path) -> Result<()> {
    let names =
        format!("127.0.0.1 localhost\n{SOURCE_ADDRESS} {SOURCE_NAME}\n{TARGET_ADDRESS} {TARGET_NAME}\n");
    fs::write(path, names).with_context(|| format!("failed to write {}", path.display()))
}

/// The server of the host with this address.
pub(super) fn server(stage: &Stage<'_>, address: &str) -> Result<Command> {
    let mut command = match address {
        SOURCE_ADDRESS => on_source(stage, "globus-gridftp-server")?,
        _ => program(stage, &stage.hosts.target, stage.target_group, TARGET_NAME, "globus-gridftp-server")?,
    };
    command.args(["-c", "/dev/null", "-home-dir", "/", "-p", &PORT.to_string()]);
    command.args(["-allow-anonymous", "-anonymous-user", "root", "-allow-root"]);
    command.args(["-control-interface", address, "-data-interface", address]);
    Ok(command)
}

/// The client, without its two URLs.
pub(super) fn client(stage: &Stage<'_>) -> Result<Command> {
    let mut command = on_source(stage, "globus-url-copy")?;
    command.args(FLAGS);
    Ok(command)
}

fn on_source(stage: &Stage<'_>, name: &str) -> Result<Command> {
    program(stage, &stage.hosts.source, stage.source_group, SOURCE_NAME, name)
}

fn program(stage: &Stage<'_>, namespace: &str, group: &Group, host: &str, name: &str) -> Result<Command> {
    let names = stage.homes.gridftp_names.display();
    let script = format!("mount --bind {names} /etc/hosts && exec \"$0\" \"$@\"");
    let mut command = inside::command(Some(namespace), Some(group), "unshare")?;
    command.env("GLOBUS_HOSTNAME", host).args(["--mount", "sh", "-c", &script]).arg(programs::path(name));
    Ok(command)
}

pub(super) const PORT: u16 = 2811;
const SOURCE_NAME: &str = "lab-source";
const TARGET_NAME: &str = "lab-target";
/// Directories whole, mode E with reuse of data channels, 8 of them for each of 8 connections, pipelined commands.
const FLAGS: [&str; 8] = ["-cd", "-r", "-fast", "-p", "8", "-cc", "8", "-pp"];
