//! Keys and settings of the tools, created once per comparison in the session's directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::ssh::{SSH_PORT, Ssh};
use super::{Kind, Tool};
use crate::processes::session::Session;

/// The keys and settings of all tools.
#[derive(Debug)]
pub(crate) struct Homes {
    pub(super) ssh: Ssh,
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
    /// Creates the keys and settings that `tools` need to copy from `sources` to directories below `target_root`.
    pub(crate) fn prepare(
        session: &Session,
        tools: &[Tool],
        sources: &Path,
        target_root: &Path,
        zmove: ZmoveProgram,
    ) -> Result<Self> {
        let homes = Self {
            ssh: Ssh::new(session)?,
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
            let (syq, zmove) = (homes.syq.display(), homes.zmove_target.display());
            let environment =
                format!("XDG_CACHE_HOME={syq} SYQ_NO_UPDATE_CHECK=1 ZMOVE_HOME={zmove}");
            homes.ssh.prepare(&environment)?;
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
            fs::create_dir_all(sources)
                .with_context(|| format!("failed to make {}", sources.display()))?;
            homes.allow_zmove(
                (&homes.zmove_target, &homes.zmove_source),
                &["--read", "--root"],
                sources,
            )?;
        }
        Ok(homes)
    }

    fn prepare_rsyncd(&self, target_root: &Path) -> Result<()> {
        let config = format!(
            "port = 8730\nuse chroot = no\nmax connections = 0\nlog file = /dev/null\n\
             [target]\npath = {}\nuid = 0\ngid = 0\nread only = no\n",
            target_root.display()
        );
        fs::write(&self.rsyncd_config, config).context("failed to write rsyncd.conf")
    }

    /// Authorizes the key in the home `client` below a root at the daemon of the home `server`.
    fn allow_zmove(
        &self,
        (client, server): (&Path, &Path),
        right: &[&str],
        root: &Path,
    ) -> Result<()> {
        let shown = Command::new(&self.zmove.binary)
            .env("ZMOVE_HOME", client)
            .args(["key", "show"])
            .output()
            .with_context(|| format!("failed to start {}", self.zmove.binary))?;
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        let fingerprint = text
            .split_whitespace()
            .rfind(|word| word.starts_with("SHA256:"));
        let fingerprint = fingerprint.with_context(|| {
            format!(
                "zmove key show: no fingerprint; {}",
                String::from_utf8_lossy(&shown.stderr).trim()
            )
        })?;
        let allowed = Command::new(&self.zmove.binary)
            .env("ZMOVE_HOME", server)
            .args(["allow", fingerprint, "--name", "lab"])
            .args(right)
            .arg(root)
            .output()?;
        if !allowed.status.success() {
            bail!(
                "zmove allow failed: {}",
                String::from_utf8_lossy(&allowed.stderr).trim()
            );
        }
        Ok(())
    }
}

/// The zmove program, and the arguments of its server.
#[derive(Debug)]
pub(crate) struct ZmoveProgram {
    pub(super) binary: String,
    pub(super) serve_arguments: Vec<String>,
}

impl ZmoveProgram {
    /// Finds the binary, and splits the server's additional arguments at spaces.
    pub(crate) fn find(asked: Option<&Path>, serve_arguments: &str) -> Result<Self> {
        let serve_arguments = serve_arguments
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        Ok(Self {
            binary: zmove_binary(asked)?,
            serve_arguments,
        })
    }

    /// Returns the path of the program.
    pub(crate) fn path(&self) -> &str {
        &self.binary
    }
}

/// Returns the requested binary, or else the one next to this program, in target/release or on the PATH.
pub(crate) fn zmove_binary(asked: Option<&Path>) -> Result<String> {
    let beside = std::env::current_exe()?.with_file_name("zmove");
    let built = Path::new("target/release/zmove");
    let found = match asked {
        Some(path) => path
            .canonicalize()
            .with_context(|| format!("failed to find {}", path.display()))?,
        None if beside.is_file() => beside,
        None if built.is_file() => built.canonicalize()?,
        None => PathBuf::from("zmove"),
    };
    Ok(found
        .to_str()
        .context("the path of zmove is not UTF-8")?
        .to_owned())
}
