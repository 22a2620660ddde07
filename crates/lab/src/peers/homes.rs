//! Keys and settings of the tools, made once per comparison in the session's directory.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Kind, Tool, programs};
use crate::processes::run;
use crate::processes::session::Session;

/// What the tools need.
#[derive(Debug)]
pub(crate) struct Homes {
    pub(super) ssh: PathBuf,
    pub(super) rsyncd_config: PathBuf,
    pub(super) fpsync: PathBuf,
    pub(super) syq: PathBuf,
    pub(super) gridftp_names: PathBuf,
    pub(super) xrootd: PathBuf,
    pub(super) zmove: ZmoveProgram,
    pub(super) zmove_source: PathBuf,
    pub(super) zmove_target: PathBuf,
}

impl Homes {
    /// Prepares what `tools` need for copies to below `target_root`.
    pub(crate) fn prepare(
        session: &Session,
        tools: &[Tool],
        target_root: &Path,
        zmove: ZmoveProgram,
    ) -> Result<Self> {
        let homes = Self {
            ssh: session.subdirectory("ssh")?,
            rsyncd_config: session.directory().join("rsyncd.conf"),
            fpsync: session.subdirectory("fpsync")?,
            syq: session.subdirectory("syq")?,
            gridftp_names: session.directory().join("gridftp.hosts"),
            xrootd: session.subdirectory("xrootd")?,
            zmove,
            zmove_source: session.subdirectory("zmove-source")?,
            zmove_target: session.subdirectory("zmove-target")?,
        };
        let uses = |kind| tools.iter().any(|tool| tool.kind == kind);
        if tools.iter().any(|tool| tool.port() == Some(SSH_PORT)) {
            homes.prepare_ssh()?;
        }
        if uses(Kind::RsyncDaemon) || uses(Kind::Fpsync) {
            homes.prepare_rsyncd(target_root)?;
        }
        if uses(Kind::Zmove) {
            homes.allow_zmove(
                (&homes.zmove_source, &homes.zmove_target),
                &["--write", "--root"],
                target_root,
            )?;
        }
        if uses(Kind::ZmovePull) {
            // a set of data may lie anywhere
            let root = Path::new("/");
            homes.allow_zmove((&homes.zmove_target, &homes.zmove_source), &["--read", "--root"], root)?;
        }
        Ok(homes)
    }

    fn prepare_ssh(&self) -> Result<()> {
        let home = self.ssh.display();
        for key in ["host_key", "user_key"] {
            run::output("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &format!("{home}/{key}")])?;
        }
        fs::copy(self.ssh.join("user_key.pub"), self.ssh.join("authorized_keys"))?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create("/run/sshd")
            .context("failed to create /run/sshd")?;
        self.write_ssh_of_path()?;
        let mut config = format!("Port {SSH_PORT}\n");
        write!(config, "HostKey {home}/host_key\nAuthorizedKeysFile {home}/authorized_keys\n")?;
        config.push_str("PidFile none\nPermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\n");
        config.push_str("Subsystem sftp internal-sftp\n");
        config.push_str("MaxStartups 1000\nMaxSessions 1000\nUseDNS no\nLogLevel ERROR\n");
        let (syq, zmove) = (self.syq.display(), self.zmove_target.display());
        writeln!(config, "SetEnv XDG_CACHE_HOME={syq} SYQ_NO_UPDATE_CHECK=1 ZMOVE_HOME={zmove}")?;
        fs::write(self.ssh.join("sshd_config"), config).context("failed to write sshd_config")
    }

    /// An `ssh` for programs that take the first one on the path and pass it no options of theirs.
    fn write_ssh_of_path(&self) -> Result<()> {
        let script = format!("#!/bin/sh\nexec {} {} \"$@\"\n", programs::path("ssh"), self.ssh_arguments());
        let path = self.ssh_of_path().join("ssh");
        fs::create_dir_all(self.ssh_of_path())
            .and_then(|()| fs::write(&path, script))
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
            .with_context(|| format!("failed to write {}", path.display()))
    }

    /// The directory of that `ssh`.
    pub(super) fn ssh_of_path(&self) -> PathBuf {
        self.ssh.join("bin")
    }

    /// The command-line arguments of ssh, with its fastest cipher.
    pub(super) fn ssh_arguments(&self) -> String {
        format!("-p {SSH_PORT} {} {FASTEST_CIPHER}", self.ssh_options())
    }

    /// The ssh client as one line, for rsync's `-e` and for shells, with its fastest cipher.
    pub(super) fn ssh_line(&self) -> String {
        format!("ssh {}", self.ssh_arguments())
    }

    /// The ssh client as one line, with the cipher that ssh chooses.
    pub(super) fn ssh_line_of_choice(&self) -> String {
        format!("ssh -p {SSH_PORT} {}", self.ssh_options())
    }

    /// scp as one line, with the fastest cipher.
    pub(super) fn scp_line(&self) -> String {
        format!("scp -P {SSH_PORT} {} {FASTEST_CIPHER}", self.ssh_options())
    }

    fn ssh_options(&self) -> String {
        let key = self.ssh.join("user_key");
        format!(
            "-F none -i {} -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
             -o Compression=no -o LogLevel=ERROR",
            key.display()
        )
    }

    fn prepare_rsyncd(&self, target_root: &Path) -> Result<()> {
        let config = format!(
            "port = 8730\nuse chroot = no\nmax connections = 0\nlog file = /dev/null\n\
             [target]\npath = {}\nuid = 0\ngid = 0\nread only = no\n",
            target_root.display()
        );
        fs::write(&self.rsyncd_config, config).context("failed to write rsyncd.conf")
    }

    /// Lets the key in the home `client` do something below a root at the daemon of the home `server`.
    fn allow_zmove(&self, (client, server): (&Path, &Path), right: &[&str], root: &Path) -> Result<()> {
        let shown = Command::new(&self.zmove.binary)
            .env("ZMOVE_HOME", client)
            .args(["key", "show"])
            .output()
            .with_context(|| format!("failed to start {}", self.zmove.binary))?;
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        let fingerprint = text.split_whitespace().rfind(|word| word.starts_with("SHA256:"));
        let fingerprint = fingerprint.with_context(|| {
            format!("zmove key show: no fingerprint; {}", String::from_utf8_lossy(&shown.stderr).trim())
        })?;
        let allowed = Command::new(&self.zmove.binary)
            .env("ZMOVE_HOME", server)
            .args(["allow", fingerprint, "--name", "lab"])
            .args(right)
            .arg(root)
            .output()?;
        if !allowed.status.success() {
            bail!("zmove allow failed: {}", String::from_utf8_lossy(&allowed.stderr).trim());
        }
        Ok(())
    }
}

/// This project's program and how its server is run.
#[derive(Debug)]
pub(crate) struct ZmoveProgram {
    pub(super) binary: String,
    pub(super) serve_arguments: Vec<String>,
}

impl ZmoveProgram {
    /// Finds the binary and splits the server's further arguments at spaces.
    pub(crate) fn find(asked: Option<&Path>, serve_arguments: &str) -> Result<Self> {
        let serve_arguments = serve_arguments.split_whitespace().map(str::to_owned).collect();
        Ok(Self { binary: zmove_binary(asked)?, serve_arguments })
    }

    /// Where the program is.
    pub(crate) fn path(&self) -> &str {
        &self.binary
    }
}

/// The binary asked for; else beside this program, else in target/release, else on the PATH.
pub(crate) fn zmove_binary(asked: Option<&Path>) -> Result<String> {
    let beside = std::env::current_exe()?.with_file_name("zmove");
    let built = Path::new("target/release/zmove");
    let found = match asked {
        Some(path) => path.canonicalize().with_context(|| format!("failed to find {}", path.display()))?,
        None if beside.is_file() => beside,
        None if built.is_file() => built.canonicalize()?,
        None => PathBuf::from("zmove"),
    };
    Ok(found.to_str().context("the path of zmove is not UTF-8")?.to_owned())
}

pub(super) const SSH_PORT: u16 = 2222;
const FASTEST_CIPHER: &str = "-c aes128-gcm@openssh.com";
