//! The lab's sshd and ssh. Their keys, settings and command lines are separate from those of the user.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::programs;
use crate::processes::run;
use crate::processes::session::Session;

/// The directory of keys and settings.
#[derive(Debug)]
pub(crate) struct Ssh {
    home: PathBuf,
}

impl Ssh {
    pub(crate) fn new(session: &Session) -> Result<Self> {
        Ok(Self {
            home: session.subdirectory("ssh")?,
        })
    }

    /// Creates keys and settings. `environment` has variables for the programs that sshd starts, as NAME=VALUE
    /// separated by spaces.
    pub(crate) fn prepare(&self, environment: &str) -> Result<()> {
        let home = self.home.display();
        for key in [HOST_KEY, USER_KEY] {
            run::output(
                "ssh-keygen",
                &[
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-f",
                    &format!("{home}/{key}"),
                ],
            )?;
        }
        fs::copy(
            self.home.join("user_key.pub"),
            self.home.join("authorized_keys"),
        )?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create("/run/sshd")
            .context("failed to create /run/sshd")?;
        self.write_ssh_of_path()?;
        let mut config = format!("Port {SSH_PORT}\n");
        write!(
            config,
            "HostKey {home}/{HOST_KEY}\nAuthorizedKeysFile {home}/authorized_keys\n"
        )?;
        config.push_str(
            "PidFile none\nPermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\n",
        );
        config.push_str("Subsystem sftp internal-sftp\n");
        config.push_str("MaxStartups 1000\nMaxSessions 1000\nUseDNS no\nLogLevel ERROR\n");
        if !environment.is_empty() {
            writeln!(config, "SetEnv {environment}")?;
        }
        fs::write(self.home.join(CONFIG), config).context("failed to write sshd_config")
    }

    /// Writes an `ssh` script for programs that use the first ssh on the PATH and pass no options to it.
    fn write_ssh_of_path(&self) -> Result<()> {
        let script = format!(
            "#!/bin/sh\nexec {} {} \"$@\"\n",
            programs::path("ssh"),
            self.arguments()
        );
        let path = self.program();
        fs::create_dir_all(self.bin())
            .and_then(|()| fs::write(&path, script))
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
            .with_context(|| format!("failed to write {}", path.display()))
    }

    fn bin(&self) -> PathBuf {
        self.home.join("bin")
    }

    /// Returns the path of that `ssh`, which needs only the host and the command as arguments.
    pub(crate) fn program(&self) -> PathBuf {
        self.bin().join("ssh")
    }

    /// Returns the PATH with the directory of that `ssh` before all others.
    pub(crate) fn path(&self) -> Result<OsString> {
        let places = env::var_os("PATH").unwrap_or_default();
        let places = std::iter::once(self.bin()).chain(env::split_paths(&places));
        env::join_paths(places).context("the session's directory has no colon")
    }

    /// Returns the program and the arguments of the server, which stays in the foreground.
    pub(crate) fn daemon(&self) -> (String, [OsString; 4]) {
        let config = self.home.join(CONFIG).into_os_string();
        (
            programs::path("sshd"),
            ["-D".into(), "-e".into(), "-f".into(), config],
        )
    }

    /// Returns the path of the key that servers accept.
    pub(super) fn user_key(&self) -> PathBuf {
        self.home.join(USER_KEY)
    }

    /// Returns the arguments of ssh, with its fastest cipher.
    pub(super) fn arguments(&self) -> String {
        format!("-p {SSH_PORT} {} {FASTEST_CIPHER}", self.options())
    }

    /// Returns the ssh command as one line, for rsync's `-e` and for shells, with its fastest cipher.
    pub(super) fn line(&self) -> String {
        format!("ssh {}", self.arguments())
    }

    /// Returns the ssh command as one line, with the default cipher.
    pub(super) fn line_of_choice(&self) -> String {
        format!("ssh -p {SSH_PORT} {}", self.options())
    }

    /// Returns the scp command as one line, with the fastest cipher.
    pub(super) fn scp_line(&self) -> String {
        format!("scp -P {SSH_PORT} {} {FASTEST_CIPHER}", self.options())
    }

    fn options(&self) -> String {
        format!(
            "-F none -i {} -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
             -o Compression=no -o LogLevel=ERROR",
            self.user_key().display()
        )
    }
}

/// The port of the lab's ssh servers.
pub(crate) const SSH_PORT: u16 = 2222;
const HOST_KEY: &str = "host_key";
const USER_KEY: &str = "user_key";
const CONFIG: &str = "sshd_config";
const FASTEST_CIPHER: &str = "-c aes128-gcm@openssh.com";
