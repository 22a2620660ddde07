//! The programs of GridFTP, unencrypted and without authentication. The client controls a transfer between two servers
//! (third party), or sends to one server.
//!
//! The programs refuse to run if their own address has no name, so each has its own `/etc/hosts` in a mount namespace.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Stage, programs};
use crate::processes::groups::Group;
use crate::processes::inside;

/// Returns the command of the target's server.
pub(super) fn on_target(stage: &Stage<'_>) -> Result<Command> {
    let name = "globus-gridftp-server";
    let command = program(
        stage,
        &stage.hosts.target,
        stage.target_group,
        TARGET_NAME,
        name,
    )?;
    server(stage, command, &stage.hosts.target_address)
}

/// Returns the command of the source's server.
pub(super) fn at_source(stage: &Stage<'_>) -> Result<Command> {
    server(
        stage,
        on_source(stage, "globus-gridftp-server")?,
        &stage.hosts.source_address,
    )
}

fn server(stage: &Stage<'_>, mut command: Command, address: &str) -> Result<Command> {
    write_names(stage)?;
    command.args(["-c", "/dev/null", "-home-dir", "/", "-p", &PORT.to_string()]);
    command.args(["-allow-anonymous", "-anonymous-user", "root", "-allow-root"]);
    command.args(["-control-interface", address, "-data-interface", address]);
    Ok(command)
}

/// Writes the names of both hosts to the file that replaces `/etc/hosts`.
fn write_names(stage: &Stage<'_>) -> Result<()> {
    let (hosts, path) = (stage.hosts, &stage.homes.gridftp_names);
    let (source, target) = (&hosts.source_address, &hosts.target_address);
    let names = format!("127.0.0.1 localhost\n{source} {SOURCE_NAME}\n{target} {TARGET_NAME}\n");
    fs::write(path, names).with_context(|| format!("failed to write {}", path.display()))
}

/// Returns the command of the client, without its two URLs.
pub(super) fn client(stage: &Stage<'_>) -> Result<Command> {
    let mut command = on_source(stage, "globus-url-copy")?;
    command.args(FLAGS);
    Ok(command)
}

fn on_source(stage: &Stage<'_>, name: &str) -> Result<Command> {
    program(
        stage,
        &stage.hosts.source,
        stage.source_group,
        SOURCE_NAME,
        name,
    )
}

fn program(
    stage: &Stage<'_>,
    namespace: &str,
    group: &Group,
    host: &str,
    name: &str,
) -> Result<Command> {
    let names = stage.homes.gridftp_names.display();
    let script = format!("mount --bind {names} /etc/hosts && exec \"$0\" \"$@\"");
    let mut command = inside::command(Some(namespace), Some(group), "unshare")?;
    command
        .env("GLOBUS_HOSTNAME", host)
        .args(["--mount", "sh", "-c", &script])
        .arg(programs::path(name));
    Ok(command)
}

pub(super) const PORT: u16 = 2811;
const SOURCE_NAME: &str = "lab-source";
const TARGET_NAME: &str = "lab-target";
/// Options of the GridFTP client. They copy whole directories in mode E with reused data channels, 8 data channels for
/// each of 8 connections, and pipelined commands.
const FLAGS: [&str; 8] = ["-cd", "-r", "-fast", "-p", "8", "-cc", "8", "-pp"];
