//! Tools that copy between two directories on the source's host, without a path.
//!
//! Two more programs show the limits of the storage. One performs only the operations that a push needs, with many
//! threads. The other is fio, which reads or writes the same number of bytes without copying.

use std::process::Command;

use anyhow::{Context, Result};

use super::client::Client;
use super::homes::Homes;
use super::programs;

/// The kind of a local tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// zmove.
    Zmove,
    /// cp, which copies one file after the other.
    Cp,
    /// rsync.
    Rsync,
    /// Several rsync processes, each with a part of the files.
    Fpsync,
    /// One tar that writes to another.
    Tar,
    /// rclone.
    Rclone,
    /// [`crate::measurements::late::bare`], which creates files under their final names.
    BareCreate,
    /// [`crate::measurements::late::bare`], which creates files under other names and renames them.
    BareReplace,
    /// fio reads the source.
    FioRead,
    /// fio writes into the target.
    FioWrite,
}

impl Local {
    /// Returns the command. The copy ends when the command does.
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

    /// Returns the programs that the tool needs.
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

    /// Returns the version that the tool reports.
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

/// Options of fpsync: sixteen jobs, and parts that are small enough to keep all of them busy.
const FPSYNC_JOBS: [&str; 4] = ["-n", "16", "-f", "300"];
const RCLONE_FLAGS: &str =
    "--config /dev/null --transfers 16 --checkers 16 --multi-thread-streams 8 --quiet";
/// Options of fio. They keep enough bytes in flight for storage that takes milliseconds for each request.
const FIO_FLAGS: &str = "--name=lab --bs=1M --iodepth=32 --ioengine=libaio --direct=1";
