//! The tools to compare, and how to start the server and the client of each.
//!
//! Each client copies the contents of `Stage::source` into the empty directory `Stage::target`. The programs keep all
//! their keys and settings in the session's directory, and do not use or change the user's own.

mod client;
mod gridftp;
mod homes;
mod local;
mod programs;
mod ssh;
mod xrootd;

use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Result, bail};

use crate::data::trees::Modes;
use crate::network::hosts::Hosts;
use crate::processes::groups::Group;
use crate::processes::inside;

use self::client::Client;
pub(crate) use self::client::{FPSYNC_OPTIONS, FPSYNC_PARTS};
pub(crate) use self::homes::{Homes, ZmoveProgram, zmove_binary};
pub(crate) use self::local::Local;
pub(crate) use self::programs::absent;
pub(crate) use self::ssh::{SSH_PORT, Ssh};

/// A tool with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    /// The tool as typed, which is its name in reports.
    pub(crate) label: String,
    pub(crate) kind: Kind,
    arguments: Vec<String>,
}

/// The kind of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// zmove.
    Zmove,
    /// zmove with a receiver that is started over ssh.
    ZmoveSsh,
    /// zmove with the client at the target, which pulls.
    ZmovePull,
    /// rsync over ssh.
    Rsync,
    /// rsync over ssh with the client at the target.
    RsyncPull,
    /// rsync over ssh as most people use it: only the option `-av`, and the default cipher of ssh.
    RsyncSimple,
    /// rsync to its daemon, unencrypted.
    RsyncDaemon,
    /// tar through ssh.
    TarSsh,
    /// scp, which uses SFTP.
    Scp,
    /// rclone over SFTP.
    Rclone,
    /// Several rsync processes to the daemon, unencrypted, each with a part of the files.
    Fpsync,
    /// tar through netcat, unencrypted.
    TarNetcat,
    /// tar through mbuffer, unencrypted.
    TarMbuffer,
    /// syq: encrypted TCP connections in addition to ssh.
    Syq,
    /// GridFTP between two servers, unencrypted.
    GridFtp,
    /// GridFTP from the client to a server, unencrypted.
    GridFtpDirect,
    /// XRootD's copy program to its server, unencrypted.
    Xrdcp,
    /// WebDAV to XRootD's server, unencrypted.
    Davix,
    /// rcp of the rcp tools: TLS connections in addition to ssh.
    Rcp,
    /// qcp: QUIC in addition to ssh.
    Qcp,
    /// A tool that copies within the source's host, without a server.
    Local(Local),
}

/// The names of the tools on the command line.
const NAMES: [(&str, Kind); 30] = [
    ("zmove", Kind::Zmove),
    ("zmovessh", Kind::ZmoveSsh),
    ("zmovepull", Kind::ZmovePull),
    ("rsync", Kind::Rsync),
    ("rsyncpull", Kind::RsyncPull),
    ("rsync-av", Kind::RsyncSimple),
    ("rsyncd", Kind::RsyncDaemon),
    ("tarssh", Kind::TarSsh),
    ("scp", Kind::Scp),
    ("rclone", Kind::Rclone),
    ("fpsync", Kind::Fpsync),
    ("tarnc", Kind::TarNetcat),
    ("tarmbuffer", Kind::TarMbuffer),
    ("syq", Kind::Syq),
    ("gridftp", Kind::GridFtp),
    ("gridftp-direct", Kind::GridFtpDirect),
    ("xrdcp", Kind::Xrdcp),
    ("davix", Kind::Davix),
    ("rcp", Kind::Rcp),
    ("qcp", Kind::Qcp),
    ("zmove-local", Kind::Local(Local::Zmove)),
    ("cp", Kind::Local(Local::Cp)),
    ("rsync-local", Kind::Local(Local::Rsync)),
    ("fpsync-local", Kind::Local(Local::Fpsync)),
    ("tar-local", Kind::Local(Local::Tar)),
    ("rclone-local", Kind::Local(Local::Rclone)),
    ("bare-create", Kind::Local(Local::BareCreate)),
    ("bare-replace", Kind::Local(Local::BareReplace)),
    ("fio-read", Kind::Local(Local::FioRead)),
    ("fio-write", Kind::Local(Local::FioWrite)),
];

impl FromStr for Tool {
    type Err = anyhow::Error;

    /// Parses `NAME` or `NAME:ARGUMENTS`. The arguments are separated by spaces and passed to the client.
    fn from_str(text: &str) -> Result<Self> {
        let (name, arguments) = text.split_once(':').unwrap_or((text, ""));
        let Some((_, kind)) = NAMES.into_iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = NAMES.iter().map(|(known, _)| *known).collect();
            bail!("no tool {name}; there are {}", known.join(", "));
        };
        if !arguments.is_empty()
            && matches!(kind, Kind::TarSsh | Kind::TarNetcat | Kind::TarMbuffer)
        {
            bail!("{name} takes no arguments");
        }
        let arguments = arguments
            .trim_matches('"')
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        Ok(Self {
            label: text.to_owned(),
            kind,
            arguments,
        })
    }
}

/// The parameters of one run.
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
    /// Returns the same tool with additional arguments if it is zmove. The label does not show them.
    pub(crate) fn with_zmove_arguments(mut self, arguments: &str) -> Self {
        if matches!(
            self.kind,
            Kind::Zmove | Kind::ZmovePull | Kind::ZmoveSsh | Kind::Local(Local::Zmove)
        ) {
            self.arguments
                .extend(arguments.split_whitespace().map(str::to_owned));
        }
        self
    }

    /// Returns the programs of this tool that are not installed. `None` if all are installed.
    pub(crate) fn missing(&self) -> Option<String> {
        programs::missing(self.kind)
    }

    /// Returns the servers. The first one is at the target and may be the process whose end is the end of the copy.
    pub(crate) fn servers<'a>(&self, stage: &Stage<'a>) -> Result<Vec<Server<'a>>> {
        let hosts = stage.hosts;
        let Some(port) = self.port() else {
            return Ok(Vec::new());
        };
        if self.pulls() {
            return Ok(vec![Server {
                command: self.server(stage, port)?,
                namespace: &hosts.source,
                port,
            }]);
        }
        let on_target = Server {
            command: self.server(stage, port)?,
            namespace: &hosts.target,
            port,
        };
        let mut servers = vec![on_target];
        if self.kind == Kind::GridFtp {
            let command = gridftp::at_source(stage)?;
            servers.push(Server {
                command,
                namespace: &hosts.source,
                port: gridftp::PORT,
            });
        }
        if self.kind == Kind::Rcp {
            // The remote end, which is at the source, is also started over ssh.
            let command = sshd(&hosts.source, stage.source_group, stage.homes)?;
            servers.push(Server {
                command,
                namespace: &hosts.source,
                port: SSH_PORT,
            });
        }
        Ok(servers)
    }

    fn server(&self, stage: &Stage<'_>, port: u16) -> Result<Command> {
        let (homes, address) = (stage.homes, &stage.hosts.target_address);
        let on_target = |program: &str| {
            inside::command(Some(&stage.hosts.target), Some(stage.target_group), program)
        };
        let command = match self.kind {
            Kind::Rsync
            | Kind::RsyncSimple
            | Kind::TarSsh
            | Kind::Scp
            | Kind::Rclone
            | Kind::Syq
            | Kind::Rcp
            | Kind::Qcp
            | Kind::ZmoveSsh => sshd(&stage.hosts.target, stage.target_group, homes)?,
            Kind::RsyncPull => sshd(&stage.hosts.source, stage.source_group, homes)?,
            Kind::RsyncDaemon | Kind::Fpsync => {
                let mut command = on_target("rsync")?;
                command
                    .args(["--daemon", "--no-detach", "--config"])
                    .arg(&homes.rsyncd_config);
                command
            }
            Kind::TarNetcat => {
                let target = stage.target.display();
                shell(
                    on_target("bash")?,
                    &format!("nc -l {address} {port} | tar xf - -C {target}"),
                )
            }
            Kind::TarMbuffer => {
                let target = stage.target.display();
                let line = format!("mbuffer {MBUFFER_FLAGS} -I {} | tar xf - -C {target}", port);
                shell(on_target("bash")?, &line)
            }
            Kind::GridFtp | Kind::GridFtpDirect => gridftp::on_target(stage)?,
            Kind::Xrdcp | Kind::Davix => xrootd::server(stage)?,
            Kind::Local(_) => bail!("{} has no server", self.label),
            Kind::Zmove => {
                let mut command = on_target(&homes.zmove.binary)?;
                command.env("ZMOVE_HOME", &homes.zmove_target).arg("serve");
                command.args(["--listen", &format!("{address}:{}", port)]);
                command.args(self.zmove_serve_arguments(&homes.zmove));
                command
            }
            Kind::ZmovePull => {
                let (namespace, group) = (Some(&*stage.hosts.source), Some(stage.source_group));
                let mut command = inside::command(namespace, group, &homes.zmove.binary)?;
                command.env("ZMOVE_HOME", &homes.zmove_source).arg("serve");
                command.args([
                    "--listen",
                    &format!("{}:{port}", stage.hosts.source_address),
                ]);
                command.args(self.zmove_serve_arguments(&homes.zmove));
                command
            }
        };
        Ok(command)
    }

    /// Returns whether the client is at the target and the server at the source.
    fn pulls(&self) -> bool {
        matches!(self.kind, Kind::ZmovePull | Kind::RsyncPull)
    }

    /// Returns the arguments of `zmove serve`. A server rejects unencrypted pushes unless an option allows them.
    fn zmove_serve_arguments(&self, zmove: &ZmoveProgram) -> Vec<String> {
        let mut arguments = zmove.serve_arguments.clone();
        let clear = self
            .arguments
            .windows(2)
            .any(|pair| pair == ["--cipher", "none"])
            || self
                .arguments
                .iter()
                .any(|argument| argument == "--cipher=none");
        if clear && !arguments.iter().any(|argument| argument == ALLOW_CLEAR) {
            arguments.push(ALLOW_CLEAR.to_owned());
        }
        arguments
    }

    /// Returns the command of the client. The copy ends when the client does.
    pub(crate) fn client(&self, stage: &Stage<'_>) -> Result<Command> {
        let mut command = Client::of(self, stage).command()?;
        command.current_dir(stage.source);
        Ok(command)
    }

    /// Returns the port of its server. `None` if it has no server.
    fn port(&self) -> Option<u16> {
        let port = match self.kind {
            Kind::Rsync
            | Kind::RsyncSimple
            | Kind::TarSsh
            | Kind::Scp
            | Kind::Rclone
            | Kind::Syq
            | Kind::Rcp
            | Kind::Qcp
            | Kind::RsyncPull
            | Kind::ZmoveSsh => SSH_PORT,
            Kind::RsyncDaemon | Kind::Fpsync => 8_730,
            Kind::TarNetcat | Kind::TarMbuffer => 9_000,
            Kind::GridFtp | Kind::GridFtpDirect => gridftp::PORT,
            Kind::Xrdcp => xrootd::PORT,
            Kind::Davix => xrootd::HTTP_PORT,
            Kind::Zmove | Kind::ZmovePull => 7_000,
            Kind::Local(_) => return None,
        };
        Some(port)
    }

    /// Returns whether the server ends by itself when the copy is complete.
    pub(crate) fn server_ends(&self) -> bool {
        matches!(self.kind, Kind::TarNetcat | Kind::TarMbuffer)
    }

    /// Returns whether modes are compared. WebDAV does not support modes, and the server creates directories without
    /// access for others.
    pub(crate) fn modes(&self) -> Modes {
        if self.kind == Kind::Davix {
            Modes::Ignored
        } else {
            Modes::Compared
        }
    }

    /// Returns whether the tool copies the source, so that the target equals the source after a run.
    pub(crate) fn copies(&self) -> bool {
        !matches!(self.kind, Kind::Local(Local::FioRead | Local::FioWrite))
    }

    /// Returns the version that the tool reports.
    pub(crate) fn version(&self, homes: &Homes) -> String {
        if let Some(missing) = self.missing() {
            return format!("not installed ({missing})");
        }
        match self.kind {
            Kind::Zmove | Kind::ZmovePull | Kind::ZmoveSsh => {
                programs::version(&homes.zmove.binary, "--version")
            }
            Kind::Rsync
            | Kind::RsyncPull
            | Kind::RsyncSimple
            | Kind::RsyncDaemon
            | Kind::Fpsync => programs::version("rsync", "--version"),
            Kind::Scp => programs::version("ssh", "-V"),
            Kind::Rclone => programs::version("rclone", "--version"),
            Kind::TarMbuffer => programs::version("mbuffer", "--version"),
            Kind::TarSsh | Kind::TarNetcat => programs::version("tar", "--version"),
            Kind::Syq => programs::version(&programs::path("syq"), "--version"),
            Kind::GridFtp | Kind::GridFtpDirect => programs::version("globus-url-copy", "-version"),
            Kind::Xrdcp => programs::version("xrdcp", "--version"),
            Kind::Davix => programs::version("davix-put", "--version"),
            Kind::Rcp => programs::version("rcp", "--version"),
            Kind::Qcp => programs::version("qcp", "--version"),
            Kind::Local(local) => local.version(homes),
        }
    }
}

/// A server of a tool, which is ready when it listens.
#[derive(Debug)]
pub(crate) struct Server<'a> {
    pub(crate) command: Command,
    pub(crate) namespace: &'a str,
    pub(crate) port: u16,
}

fn sshd(namespace: &str, group: &Group, homes: &Homes) -> Result<Command> {
    let (program, arguments) = homes.ssh.daemon();
    let mut command = inside::command(Some(namespace), Some(group), &program)?;
    command.args(arguments);
    Ok(command)
}

fn shell(mut command: Command, line: &str) -> Command {
    command.args(["-c", &format!("set -o pipefail; {line}")]);
    command
}

/// Returns the command line of a command of [`inside::command`] as a user would type it. The program has no path, and
/// `$LAB` replaces the session's directory.
pub(crate) fn typed(command: &Command, session: &Path) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy());
    let mut words = words.skip_while(|word| word != "--").skip(1);
    let program = words.next().unwrap_or_default();
    let name = Path::new(&*program)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let words: Vec<_> = std::iter::once(name).chain(words).collect();
    words
        .join(" ")
        .replace(&session.display().to_string(), "$LAB")
}

/// The directory below the target's root into which a run copies.
pub(crate) const RUN_DIRECTORY: &str = "run";
/// The memory at each end, and the size of its blocks, which is larger than the writes of tar.
const MBUFFER_FLAGS: &str = "-q -m 128M -s 256k";
const ALLOW_CLEAR: &str = "--allow-clear";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_may_carry_arguments() {
        let tool: Tool = "zmove:--streams 4".parse().unwrap();
        assert_eq!(
            (tool.kind, tool.arguments),
            (Kind::Zmove, vec!["--streams".to_owned(), "4".to_owned()])
        );
        assert_eq!(tool.label, "zmove:--streams 4");
    }

    #[test]
    fn a_command_is_shown_as_it_could_be_typed() {
        let mut command = Command::new("/opt/lab");
        command.args([
            "inside",
            "--namespace",
            "a",
            "--",
            "/opt/bin/zmove",
            "push",
            "/run/lab/7/key",
            ".",
        ]);
        assert_eq!(
            typed(&command, Path::new("/run/lab/7")),
            "zmove push $LAB/key ."
        );
    }

    #[test]
    fn a_copy_within_the_host_has_no_server() {
        let port = |tool: &str| tool.parse::<Tool>().unwrap().port();
        assert_eq!(
            (port("cp"), port("zmove-local"), port("fpsync")),
            (None, None, Some(8_730))
        );
    }

    #[test]
    fn unknown_tools_are_refused() {
        assert!("robocopy".parse::<Tool>().is_err());
        assert!("tarnc:-v".parse::<Tool>().is_err());
    }

    #[test]
    fn only_a_push_in_clear_has_a_server_that_allows_it() {
        let serve = |tool: &str, told: &str| {
            let tool: Tool = tool.parse().unwrap();
            let zmove = ZmoveProgram::find(Some(Path::new("/bin/sh")), told).unwrap();
            tool.with_zmove_arguments("--streams 4")
                .zmove_serve_arguments(&zmove)
        };
        assert_eq!(serve("zmove:--cipher none", ""), ["--allow-clear"]);
        assert_eq!(
            serve("zmove:--cipher=none", "--allow-clear"),
            ["--allow-clear"]
        );
        assert_eq!(
            serve("zmove:--cipher tls", "--direct off"),
            ["--direct", "off"]
        );
    }
}
