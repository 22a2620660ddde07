//! The commands that copy, one for each tool. They run on the source's host, or on the target's host if they pull.

use std::process::Command;

use anyhow::Result;

use super::homes::Homes;
use super::{Kind, MBUFFER_FLAGS, RUN_DIRECTORY, Stage, Tool, gridftp, programs, shell, xrootd};
use crate::processes::inside;

/// The parameters of all commands.
pub(super) struct Client<'a> {
    pub(super) tool: &'a Tool,
    stage: &'a Stage<'a>,
    pub(super) homes: &'a Homes,
    /// The address of the target's host.
    address: &'a str,
    port: u16,
    /// The paths of the source and the target, both with a trailing slash.
    pub(super) source: String,
    pub(super) target: String,
}

impl<'a> Client<'a> {
    pub(super) fn of(tool: &'a Tool, stage: &'a Stage<'a>) -> Self {
        Self {
            tool,
            stage,
            homes: stage.homes,
            address: &stage.hosts.target_address,
            // A tool without a server does not use the port.
            port: tool.port().unwrap_or_default(),
            source: format!("{}/", stage.source.display()),
            target: format!("{}/", stage.target.display()),
        }
    }

    /// Returns the command.
    pub(super) fn command(&self) -> Result<Command> {
        let (address, port, target) = (self.address, self.port, &self.target);
        match self.tool.kind {
            Kind::Rsync => self.rsync(
                &["-a", "--whole-file", "-e", &self.homes.ssh.line()],
                self.over_ssh(),
            ),
            Kind::RsyncSimple => self.rsync(
                &["-av", "-e", &self.homes.ssh.line_of_choice()],
                self.over_ssh(),
            ),
            Kind::RsyncDaemon => self.rsync(&["-a", "--whole-file"], self.daemon_url()),
            Kind::Fpsync => self.fpsync(),
            Kind::TarSsh => {
                let ssh = self.homes.ssh.line();
                self.shell(&format!(
                    "tar cf - . | {ssh} root@{address} tar xf - -C {target}"
                ))
            }
            Kind::Scp => self.shell(&format!(
                "{} -r -p -q * root@{address}:{target}",
                self.homes.ssh.scp_line()
            )),
            Kind::TarNetcat => self.shell(&format!("tar cf - . | nc -N {address} {port}")),
            Kind::TarMbuffer => self.shell(&format!(
                "tar cf - . | mbuffer {MBUFFER_FLAGS} -O {address}:{port}"
            )),
            Kind::Rclone => self.rclone(),
            Kind::Syq => self.syq(),
            Kind::GridFtp => {
                self.gridftp(&format!("ftp://{}:{port}", self.stage.hosts.source_address))
            }
            Kind::GridFtpDirect => self.gridftp("file://"),
            Kind::Xrdcp => self.xrdcp(),
            Kind::Davix => self.davix(),
            Kind::Rcp => self.rcp(),
            Kind::Qcp => self.qcp(),
            Kind::Local(local) => local.command(self),
            Kind::Zmove => {
                let target = format!("{address}:{port}:{}", self.stage.target.display());
                self.zmove(&["--accept-new"], target)
            }
            Kind::ZmovePull => {
                let mut command = self.on_target(&self.homes.zmove.binary)?;
                command
                    .env("ZMOVE_HOME", &self.homes.zmove_target)
                    .args(["pull", "--accept-new"]);
                let source = format!("{}:{port}:{}", self.stage.hosts.source_address, self.source);
                command.args(&self.tool.arguments).args([&source, target]);
                Ok(command)
            }
            Kind::RsyncPull => {
                let mut command = self.on_target("rsync")?;
                command
                    .args(["-a", "--whole-file", "-e", &self.homes.ssh.line()])
                    .args(&self.tool.arguments);
                let source = format!("root@{}:{}", self.stage.hosts.source_address, self.source);
                command.args([&source, target]);
                Ok(command)
            }
            Kind::ZmoveSsh => {
                let (ssh, program) = (self.homes.ssh.line(), &self.homes.zmove.binary);
                let target = format!("root@{address}:{}", self.stage.target.display());
                self.zmove(&["--ssh-command", &ssh, "--remote-zmove", program], target)
            }
        }
    }

    pub(super) fn on_source(&self, program: &str) -> Result<Command> {
        inside::command(
            Some(&self.stage.hosts.source),
            Some(self.stage.source_group),
            program,
        )
    }

    fn on_target(&self, program: &str) -> Result<Command> {
        inside::command(
            Some(&self.stage.hosts.target),
            Some(self.stage.target_group),
            program,
        )
    }

    /// Returns the tool's own arguments, for a shell.
    pub(super) fn further(&self) -> String {
        self.tool.arguments.join(" ")
    }

    pub(super) fn shell(&self, line: &str) -> Result<Command> {
        Ok(shell(self.on_source("bash")?, line))
    }

    /// Returns the target in the syntax of ssh.
    fn over_ssh(&self) -> String {
        format!("root@{}:{}", self.address, self.target)
    }

    /// Returns the URL of the run's directory in the daemon's module.
    fn daemon_url(&self) -> String {
        format!(
            "rsync://{}:{}/target/{RUN_DIRECTORY}/",
            self.address, self.port
        )
    }

    fn rsync(&self, flags: &[&str], target: String) -> Result<Command> {
        let mut command = self.on_source("rsync")?;
        command
            .args(flags)
            .args(&self.tool.arguments)
            .args([&self.source, &target]);
        Ok(command)
    }

    fn fpsync(&self) -> Result<Command> {
        let mut command = self.fpsync_of(&FPSYNC_JOBS)?;
        command
            .args(&self.tool.arguments)
            .args([&self.source, &self.daemon_url()]);
        Ok(command)
    }

    /// Returns the fpsync command without the tool's own arguments, the source and the target.
    pub(super) fn fpsync_of(&self, jobs: &[&str]) -> Result<Command> {
        let mut command = self.on_source("fpsync")?;
        command
            .arg("-t")
            .arg(self.homes.fpsync.join(RUN_DIRECTORY))
            .args(FPSYNC_PARTS);
        command.args(["-o", FPSYNC_OPTIONS]).args(jobs);
        Ok(command)
    }

    fn rclone(&self) -> Result<Command> {
        let mut command = self.on_source("rclone")?;
        command
            .args(["copy", "--config", "/dev/null"])
            .args(RCLONE_FLAGS);
        command.args([
            "--sftp-host",
            self.address,
            "--sftp-port",
            &self.port.to_string(),
        ]);
        command
            .args(["--sftp-user", "root", "--sftp-key-file"])
            .arg(self.homes.ssh.user_key());
        command
            .args(&self.tool.arguments)
            .args([&self.source, &format!(":sftp:{}", self.target)]);
        Ok(command)
    }

    fn syq(&self) -> Result<Command> {
        let syq = programs::path("syq");
        let mut command = self.on_source(&syq)?;
        command
            .env("HOME", &self.homes.syq)
            .env("SYQ_TUNING_CACHE", "")
            .env("SYQ_NO_UPDATE_CHECK", "1");
        command
            .args(["cp", "--rsh", &self.homes.ssh.line(), "--syq-path", &syq])
            .args(SYQ_FLAGS);
        command
            .args(&self.tool.arguments)
            .args(["--srcs-in", &self.source]);
        command.args([
            "--to",
            &format!("root@{}", self.address),
            "--into",
            &self.target,
        ]);
        Ok(command)
    }

    fn gridftp(&self, source_host: &str) -> Result<Command> {
        let mut command = gridftp::client(self.stage)?;
        let (from, to) = (
            format!("{source_host}{}", self.source),
            format!("ftp://{}:{}{}", self.address, self.port, self.target),
        );
        command.args(&self.tool.arguments).args([from, to]);
        Ok(command)
    }

    /// Returns the command of XRootD's client, which copies the contents of a directory only if the directory is given
    /// as `.`.
    fn xrdcp(&self) -> Result<Command> {
        let mut command = self.on_source("xrdcp")?;
        command.args(xrootd::XRDCP_FLAGS).args(&self.tool.arguments);
        command.args([
            ".",
            &format!("root://{}:{}//{RUN_DIRECTORY}/", self.address, self.port),
        ]);
        Ok(command)
    }

    /// Returns the command of davix. It ends with exit code 255 after every tree, even if the copy succeeded, so only
    /// the comparison shows the result.
    fn davix(&self) -> Result<Command> {
        let (flags, further, source) = (xrootd::DAVIX_FLAGS, self.further(), &self.source);
        let url = format!("http://{}:{}/{RUN_DIRECTORY}", self.address, self.port);
        self.shell(&format!(
            "davix-put {flags} {further} {source} {url} || test $? = 255"
        ))
    }

    /// Returns the command of rcp. rcp has no option for ssh, accepts a single source, and copies into an existing
    /// directory only if it may overwrite.
    fn rcp(&self) -> Result<Command> {
        let (flags, further) = (RCP_FLAGS, self.further());
        let (source, target) = (self.source.trim_end_matches('/'), self.over_ssh());
        let target = target.trim_end_matches('/');
        let master = &self.stage.hosts.source_address;
        let mut command = self.shell(&format!(
            "rcp {flags} --bind-ip {master} {further} {source} {target}"
        ))?;
        command.env("PATH", self.homes.ssh.path()?);
        Ok(command)
    }

    /// Returns the command of qcp, which derives its windows from the given round-trip time.
    fn qcp(&self) -> Result<Command> {
        let (further, target) = (self.further(), self.over_ssh());
        let rtt_ms = self.stage.hosts.round_trip().milliseconds().ceil();
        let ssh = self.homes.ssh.arguments().replace(' ', " -S ");
        self.shell(&format!(
            "qcp {QCP_FLAGS} --rtt {rtt_ms} -S {ssh} {further} * {target}"
        ))
    }

    fn zmove(&self, flags: &[&str], target: String) -> Result<Command> {
        let mut command = self.on_source(&self.homes.zmove.binary)?;
        command
            .env("ZMOVE_HOME", &self.homes.zmove_source)
            .arg("push")
            .args(flags);
        command
            .args(&self.tool.arguments)
            .args([&self.source, &target]);
        Ok(command)
    }
}

/// Options of rclone that its manual recommends, both for many files and for large files. Modes cannot be preserved
/// over SFTP.
const RCLONE_FLAGS: [&str; 8] = [
    "--transfers",
    "16",
    "--checkers",
    "16",
    "--multi-thread-streams",
    "8",
    "--sftp-disable-hashcheck",
    "--quiet",
];
/// Options of rcp, which preserve modes. The number of files in flight is set explicitly, because the default depends
/// on the number of cores.
const RCP_FLAGS: &str = "--preserve-settings=all --overwrite --max-files-in-flight=64";
/// Options of qcp. They copy trees with their modes, several files at a time. The rate is 10 Gbit/s (given in bytes per
/// second), whatever the rate of the path, and the datagrams have the maximum size.
const QCP_FLAGS: &str = "-r -p -q --parallel 16 --tx 1250M --max-mtu 8972";
/// Options of fpsync for eight jobs at a time.
const FPSYNC_JOBS: [&str; 2] = ["-n", "8"];
/// The size of the parts into which fpsync divides a tree: files and bytes.
pub(crate) const FPSYNC_PARTS: [&str; 4] = ["-f", "1000", "-s", "64M"];
/// The default rsync options of fpsync, without the list of files, and whole files.
pub(crate) const FPSYNC_OPTIONS: &str = "-lptgoD --numeric-ids --whole-file";
/// Options of syq. Sixteen connections were the fastest setting in this lab. Without a tuning cache, runs are
/// independent of each other.
const SYQ_FLAGS: [&str; 4] = [
    "--no-progress",
    "--preserve=permissions",
    "--performance-tuning",
    "workers=16",
];
