//! The tools that are compared: how to start each one's server and client.
//!
//! Each client copies the contents of `Stage::source` into the empty directory `Stage::target`. Programs keep their
//! keys and settings in the session's directory and touch nothing of the user's.

mod homes;

use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Result, bail};

use crate::groups::Group;
use crate::hosts::{Hosts, TARGET_ADDRESS};
use crate::inside;
use crate::run;

use self::homes::SSH_PORT;
pub(crate) use self::homes::{Homes, ZmoveProgram};

/// One tool with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    /// As typed, which names it in reports.
    pub(crate) label: String,
    pub(crate) kind: Kind,
    arguments: Vec<String>,
}

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// This project's mover.
    Zmove,
    /// rsync over ssh.
    Rsync,
    /// rsync to its daemon, in clear.
    RsyncDaemon,
    /// tar through ssh.
    TarSsh,
    /// tar through netcat, in clear.
    TarNetcat,
}

impl FromStr for Tool {
    type Err = anyhow::Error;

    /// `NAME` or `NAME:ARGUMENTS`, the arguments separated by spaces and given to the client.
    fn from_str(text: &str) -> Result<Self> {
        let (name, arguments) = text.split_once(':').unwrap_or((text, ""));
        let kind = match name {
            "zmove" => Kind::Zmove,
            "rsync" => Kind::Rsync,
            "rsyncd" => Kind::RsyncDaemon,
            "tarssh" => Kind::TarSsh,
            "tarnc" => Kind::TarNetcat,
            _ => bail!("no tool {name}; there are zmove, rsync, rsyncd, tarssh and tarnc"),
        };
        if !arguments.is_empty() && matches!(kind, Kind::TarSsh | Kind::TarNetcat) {
            bail!("{name} takes no arguments");
        }
        let arguments = arguments.trim_matches('"').split_whitespace().map(str::to_owned).collect();
        Ok(Self { label: text.to_owned(), kind, arguments })
    }
}

/// Everything a tool needs to know for one run.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) hosts: &'a Hosts,
    pub(crate) homes: &'a Homes,
    pub(crate) source_group: &'a Group,
    pub(crate) target_group: &'a Group,
    pub(crate) source: &'a Path,
    pub(crate) target: &'a Path,
}

impl Tool {
    /// The same tool; zmove gets further arguments, which the label does not show.
    pub(crate) fn with_zmove_arguments(mut self, arguments: &str) -> Self {
        if self.kind == Kind::Zmove {
            self.arguments.extend(arguments.split_whitespace().map(str::to_owned));
        }
        self
    }

    /// The server, which listens on [`Tool::port`].
    pub(crate) fn server(&self, stage: &Stage<'_>) -> Result<Command> {
        let homes = stage.homes;
        let on_target =
            |program| inside::command(Some(&stage.hosts.target), Some(stage.target_group), program);
        let command = match self.kind {
            Kind::Rsync | Kind::TarSsh => {
                let mut command = on_target("/usr/sbin/sshd")?;
                command.args(["-D", "-e", "-f"]).arg(homes.ssh.join("sshd_config"));
                command
            }
            Kind::RsyncDaemon => {
                let mut command = on_target("rsync")?;
                command.args(["--daemon", "--no-detach", "--config"]).arg(&homes.rsyncd_config);
                command
            }
            Kind::TarNetcat => {
                let port = self.port();
                let target = stage.target.display();
                shell(on_target("bash")?, &format!("nc -l {TARGET_ADDRESS} {port} | tar xf - -C {target}"))
            }
            Kind::Zmove => {
                let mut command = on_target(&homes.zmove.binary)?;
                command.env("ZMOVE_HOME", &homes.zmove_target).arg("serve");
                command.args(["--listen", &format!("{TARGET_ADDRESS}:{}", self.port())]);
                command.args(&homes.zmove.serve_arguments);
                command
            }
        };
        Ok(command)
    }

    /// The client, whose end is the end of the copy.
    pub(crate) fn client(&self, stage: &Stage<'_>) -> Result<Command> {
        let homes = stage.homes;
        let source = format!("{}/", stage.source.display());
        let target = format!("{}/", stage.target.display());
        let on_source =
            |program| inside::command(Some(&stage.hosts.source), Some(stage.source_group), program);
        let port = self.port();
        let command = match self.kind {
            Kind::Rsync => {
                let mut command = on_source("rsync")?;
                command.args(["-a", "--whole-file", "-e", &homes.ssh_line()]).args(&self.arguments);
                command.args([source, format!("root@{TARGET_ADDRESS}:{target}")]);
                command
            }
            Kind::RsyncDaemon => {
                let mut command = on_source("rsync")?;
                command.args(["-a", "--whole-file"]).args(&self.arguments).arg(source);
                command.arg(format!("rsync://{TARGET_ADDRESS}:{port}/target/{RUN_DIRECTORY}/"));
                command
            }
            Kind::TarSsh => {
                let ssh = homes.ssh_line();
                let line = format!("tar cf - . | {ssh} root@{TARGET_ADDRESS} tar xf - -C {target}");
                shell(on_source("bash")?, &line)
            }
            Kind::TarNetcat => {
                shell(on_source("bash")?, &format!("tar cf - . | nc -N {TARGET_ADDRESS} {port}"))
            }
            Kind::Zmove => {
                let mut command = on_source(&homes.zmove.binary)?;
                command.env("ZMOVE_HOME", &homes.zmove_source).args(["push", "--accept-new"]);
                command.args(&self.arguments).arg(source);
                command.arg(format!("{TARGET_ADDRESS}:{port}:{}", stage.target.display()));
                command
            }
        };
        let mut command = command;
        command.current_dir(stage.source);
        Ok(command)
    }

    pub(crate) fn port(&self) -> u16 {
        match self.kind {
            Kind::Rsync | Kind::TarSsh => SSH_PORT,
            Kind::RsyncDaemon => 8_730,
            Kind::TarNetcat => 9_000,
            Kind::Zmove => 7_000,
        }
    }

    /// Whether the server ends by itself, and the copy with it.
    pub(crate) fn server_ends(&self) -> bool {
        self.kind == Kind::TarNetcat
    }

    /// What the tool says of its version.
    pub(crate) fn version(&self, homes: &Homes) -> String {
        let (program, argument) = match self.kind {
            Kind::Zmove => (homes.zmove.binary.as_str(), "--version"),
            Kind::Rsync | Kind::RsyncDaemon => ("rsync", "--version"),
            Kind::TarSsh | Kind::TarNetcat => ("tar", "--version"),
        };
        let said = run::output(program, &[argument]).unwrap_or_else(|_| "not found".to_owned());
        said.lines().next().unwrap_or_default().to_owned()
    }
}

fn shell(mut command: Command, line: &str) -> Command {
    command.args(["-c", &format!("set -o pipefail; {line}")]);
    command
}

/// Directory below the target's root that a run fills.
pub(crate) const RUN_DIRECTORY: &str = "run";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_may_carry_arguments() {
        let tool: Tool = "zmove:--streams 4".parse().unwrap();
        assert_eq!((tool.kind, tool.arguments), (Kind::Zmove, vec!["--streams".to_owned(), "4".to_owned()]));
        assert_eq!(tool.label, "zmove:--streams 4");
    }

    #[test]
    fn unknown_tools_are_refused() {
        assert!("robocopy".parse::<Tool>().is_err());
        assert!("tarnc:-v".parse::<Tool>().is_err());
    }
}
