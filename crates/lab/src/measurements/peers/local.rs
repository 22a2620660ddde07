//! The tools that copy within the source's host, from one directory to another: what they do without a path.
//!
//! Beside them stand two that show what storage takes: a program that does no more than a push must, with many
//! threads, and fio, which reads or writes as many bytes and copies nothing.

use std::process::Command;

use anyhow::{Context, Result};

use super::client::Client;
use super::homes::Homes;
use super::programs;

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// This project's mover.
    Zmove,
    /// cp, one file after the other.
    Cp,
    /// rsync.
    Rsync,
    /// Many rsyncs, each with a share of the files.
    Fpsync,
    /// One tar into another.
    Tar,
    /// rclone.
    Rclone,
    /// [`crate::measurements::late::bare`]: files under their names.
    BareCreate,
    /// The same, under other names first.
    BareReplace,
    /// fio reads the source.
    FioRead,
    /// fio writes into the target.
    FioWrite,
}

impl Local {
    /// The command, whose end is the end of the copy.
    pub(super) fn command(self, client: &Client<'_>) -> Result<Command> {
        let (source, target, further) = (&client.source, &client.target, client.further());
        match self {
            Self::Zmove => {
                let mut command = client.on_source(&client.homes.zmove.binary)?;
                command.env("ZMOVE_HOME", &client.homes.zmove_source).arg("push");
                command.args(&client.tool.arguments).args([source, target]);
                Ok(command)
            }
            Self::Cp => client.shell(&format!("cp -r {further} {source}. {target}")),
            Self::Rsync => client.shell(&format!("rsync -a --whole-file {further} {source} {target}")),
            Self::Fpsync => {
                let mut command = client.fpsync_of(&FPSYNC_JOBS)?;
                command.args(&client.tool.arguments).args([source, target]);
                Ok(command)
            }
            Self::Tar => client.shell(&format!("tar cf - . | tar xf - -C {target}")),
            Self::Rclone => {
                client.shell(&format!("rclone copy {RCLONE_FLAGS} {further} {source} {target}"))
            }
            Self::BareCreate => bare(client, "create"),
            Self::BareReplace => bare(client, "replace"),
            Self::FioRead => client.shell(&format!("fio {FIO_FLAGS} --rw=read --opendir={source} {further}")),
            Self::FioWrite => client.shell(&format!(
                "fio {FIO_FLAGS} --rw=write --directory={target} --size=$(du -sb . | cut -f1) --fallocate=truncate \
                 --end_fsync=1 {further}"
            )),
        }
    }

    /// The programs that it needs.
    pub(super) fn needed(self) -> &'static [&'static str] {
        match self {
            Self::Zmove | Self::BareCreate | Self::BareReplace => &[],
            Self::Cp => &["cp"],
            Self::Rsync => &["rsync"],
            Self::Fpsync => &["fpsync", "fpart", "rsync"],
            Self::Tar => &["tar"],
            Self::Rclone => &["rclone"],
            Self::FioRead | Self::FioWrite => &["fio"],
        }
    }

    /// What the tool says of its version.
    pub(super) fn version(self, homes: &Homes) -> String {
        match self {
            Self::Zmove => programs::version(&homes.zmove.binary, "--version"),
            Self::BareCreate | Self::BareReplace => "part of this lab".to_owned(),
            Self::Fpsync => programs::version("rsync", "--version"),
            _ => self
                .needed()
                .first()
                .map_or_else(String::new, |name| programs::version(name, "--version")),
        }
    }
}

fn bare(client: &Client<'_>, operation: &str) -> Result<Command> {
    let lab = std::env::current_exe().context("failed to find this program")?;
    let mut command = client.on_source(
        lab.to_str()
            .context("the path of this program is not UTF-8")?,
    )?;
    command.args(["bare", operation, &client.target, "--from", &client.source]);
    command.args(&client.tool.arguments);
    Ok(command)
}

/// Sixteen at a time, and parts so small that all have work.
const FPSYNC_JOBS: [&str; 4] = ["-n", "16", "-f", "300"];
const RCLONE_FLAGS: &str =
    "--config /dev/null --transfers 16 --checkers 16 --multi-thread-streams 8 --quiet";
/// Enough bytes at a time to keep storage busy that takes milliseconds for each request.
const FIO_FLAGS: &str = "--name=lab --bs=1M --iodepth=32 --ioengine=libaio --direct=1";
