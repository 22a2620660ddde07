//! Starts and ends the programs under test: a daemon that is restarted on the same port, and clients, each with a
//! deadline.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::dice::Dice;
use super::options::Direction;
use crate::measurements::measure::race;

/// The directory of the keys and logs of a round's programs.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) zmove: String,
    pub(crate) directory: PathBuf,
}

/// A running `zmove serve`.
#[derive(Debug)]
pub(crate) struct Daemon {
    home: &'static str,
    address: SocketAddr,
    options: Vec<&'static str>,
    log: PathBuf,
    running: Running,
}

/// The transfer that a client runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer<'a> {
    /// The home directory of the client's keys.
    pub(crate) home: &'a str,
    pub(crate) direction: Direction,
    pub(crate) options: &'a [&'a str],
    /// The directory whose entries are transferred.
    pub(crate) source: &'a Path,
    pub(crate) target: &'a Path,
    /// The daemon at the other end as `HOST:PORT`, or several separated by commas. `None`: both ends are on this host.
    pub(crate) daemon: Option<&'a str>,
    /// The daemon that has the source, in a copy.
    pub(crate) sender: Option<&'a str>,
}

/// A running program, which is killed when dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    handle: OwnedFd,
}

impl Place {
    /// Creates keys, and authorizes the client for `grants` below `root`.
    pub(crate) fn prepare(
        zmove: &str,
        directory: &Path,
        root: &Path,
        grants: &[&str],
    ) -> Result<Self> {
        let place = Self {
            zmove: zmove.to_owned(),
            directory: directory.to_owned(),
        };
        for home in [CLIENT_HOME, DAEMON_HOME] {
            fs::create_dir(directory.join(home)).context("failed to make a home")?;
        }
        place.allow(
            (DAEMON_HOME, CLIENT_HOME),
            grants,
            &[OsStr::new("--root"), root.as_os_str()],
        )?;
        Ok(place)
    }

    /// Creates the keys of another daemon, and authorizes the client to have it send data below `root` to `to`.
    pub(crate) fn prepare_sender(&self, root: &Path, to: SocketAddr) -> Result<()> {
        self.prepare_another_sender(SENDER_HOME, root, to)
    }

    /// Creates the keys of a sending daemon like `prepare_sender`, but in `home`.
    pub(crate) fn prepare_another_sender(
        &self,
        home: &str,
        root: &Path,
        to: SocketAddr,
    ) -> Result<()> {
        fs::create_dir(self.directory.join(home)).context("failed to make a home")?;
        let to = to.to_string();
        let words = [
            "--read-root".as_ref(),
            root.as_os_str(),
            "--to".as_ref(),
            to.as_ref(),
        ];
        self.allow((home, CLIENT_HOME), &[], &words)
    }

    /// Creates the keys of another daemon, and authorizes the client for `grants` below `root`.
    pub(crate) fn prepare_another(&self, home: &str, root: &Path, grants: &[&str]) -> Result<()> {
        fs::create_dir(self.directory.join(home)).context("failed to make a home")?;
        self.allow(
            (home, CLIENT_HOME),
            grants,
            &[OsStr::new("--root"), root.as_os_str()],
        )
    }

    /// Creates the keys of another client, and authorizes it for `grants` below `root` at the daemons of `homes`.
    pub(crate) fn prepare_client(
        &self,
        client: &str,
        homes: &[&str],
        root: &Path,
        grants: &[&str],
    ) -> Result<()> {
        fs::create_dir(self.directory.join(client)).context("failed to make a home")?;
        let to = [OsStr::new("--root"), root.as_os_str()];
        homes
            .iter()
            .try_for_each(|home| self.allow((home, client), grants, &to))
    }

    /// Authorizes a client at the daemon of a home.
    fn allow(&self, (home, client): (&str, &str), grants: &[&str], to: &[&OsStr]) -> Result<()> {
        let shown = self.command(client).args(["key", "show"]).output();
        let shown = shown.with_context(|| format!("failed to start {}", self.zmove))?;
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
        let mut allow = self.command(home);
        allow
            .args(["allow", fingerprint, "--name", client])
            .args(grants)
            .args(to);
        let allowed = allow.output().context("failed to start zmove allow")?;
        if !allowed.status.success() {
            bail!(
                "zmove allow failed: {}",
                String::from_utf8_lossy(&allowed.stderr).trim()
            );
        }
        Ok(())
    }

    /// Returns a `zmove` command with the keys of a home. It runs as the user who owns the home.
    pub(crate) fn command(&self, home: &str) -> Command {
        let home = self.directory.join(home);
        let mut command = Command::new(&self.zmove);
        if let Ok(owner) = fs::metadata(&home)
            && owner.uid() != rustix::process::geteuid().as_raw()
        {
            command.uid(owner.uid()).gid(owner.gid());
        }
        command.env("ZMOVE_HOME", home).stdin(Stdio::null());
        command
    }

    /// Returns the journal directory of the receiver in this direction.
    pub(crate) fn journal(&self, direction: Direction) -> PathBuf {
        let home = match direction {
            Direction::Push | Direction::Copy => DAEMON_HOME,
            Direction::Pull => CLIENT_HOME,
        };
        self.directory.join(home).join("journal")
    }

    /// Returns the logs of all programs.
    pub(crate) fn logs(&self) -> [PathBuf; 3] {
        ["client.log", "serve.log", "sender.log"].map(|log| self.directory.join(log))
    }

    /// Starts a client that transfers the contents of `source` to `target`. The daemon at `address` has one of them.
    /// Without a daemon, both are on this host. In a copy, the daemon `sender` has the source.
    pub(crate) fn client(
        &self,
        direction: Direction,
        options: &[&str],
        source: &Path,
        (address, sender): (Option<SocketAddr>, Option<SocketAddr>),
        target: &Path,
    ) -> Result<Running> {
        let address = address.map(|address| address.to_string());
        let sender = sender.map(|sender| sender.to_string());
        self.start(&Transfer {
            home: CLIENT_HOME,
            direction,
            options,
            source,
            target,
            daemon: address.as_deref(),
            sender: sender.as_deref(),
        })
    }

    /// Starts the client of a transfer.
    pub(crate) fn start(&self, transfer: &Transfer<'_>) -> Result<Running> {
        let [log, ..] = self.logs();
        let source = transfer.source.join("");
        let target = transfer.target;
        let at = |daemon: Option<&str>, path: &Path| {
            let mut there = daemon.map_or_else(OsString::new, |daemon| format!("{daemon}:").into());
            there.push(path);
            there
        };
        let there = |path: &Path| at(transfer.daemon, path);
        let mut command = self.command(transfer.home);
        match transfer.direction {
            Direction::Push => command.arg("push").arg(source).arg(there(target)),
            Direction::Pull => command.arg("pull").arg(there(&source)).arg(target),
            Direction::Copy => command
                .arg("copy")
                .arg(at(transfer.sender, &source))
                .arg(there(target)),
        };
        command
            .args(["--accept-new", "--quiet"])
            .args(transfer.options);
        if transfer.options.contains(&"--ssh") {
            command
                .arg("--ssh-command")
                .arg(self.stand_in_for_ssh()?)
                .args(["--remote-zmove", &self.zmove]);
        }
        let log = append(&log)?;
        command.stdout(log.try_clone()?).stderr(log);
        Running::start(&mut command)
    }

    /// Writes a substitute for ssh, which runs the remote command on this host with the daemon's keys.
    fn stand_in_for_ssh(&self) -> Result<PathBuf> {
        let script = self.directory.join("ssh");
        let (home, started) = (self.directory.join(DAEMON_HOME), self.started_by_ssh());
        let text = format!(
            "#!/bin/sh\ncase \" $* \" in *' -G '*) echo hostname 127.0.0.1; exit;; esac\n\
             for command; do :; done\necho $$ >>'{}'\nexport ZMOVE_HOME='{}'\nexec $command\n",
            started.display(),
            home.display()
        );
        fs::write(&script, text).context("failed to write a stand-in for ssh")?;
        fs::set_permissions(&script, Permissions::from_mode(0o700))
            .context("failed to write a stand-in for ssh")?;
        Ok(script)
    }

    /// Returns the file that contains the pids of the processes started by ssh.
    fn started_by_ssh(&self) -> PathBuf {
        self.directory.join("started-by-ssh")
    }

    /// Returns the running processes that ssh has started.
    fn running_by_ssh(&self) -> Result<Vec<OwnedFd>> {
        let path = self.started_by_ssh();
        if !path.exists() {
            return Ok(Vec::new());
        }
        let text = fs::read_to_string(&path).context("failed to read what ssh has started")?;
        let ids = text
            .lines()
            .filter_map(|line| Pid::from_raw(line.parse().ok()?));
        let open = |id: Pid| {
            let handle = pidfd_open(id, PidfdFlags::empty()).ok()?;
            // The pid may have been reused by another process.
            let home = fs::read(format!("/proc/{}/environ", id.as_raw_nonzero())).ok()?;
            let is_ours = home.split(|byte| *byte == 0).any(|variable| {
                variable.strip_prefix(b"ZMOVE_HOME=")
                    == Some(self.directory.join(DAEMON_HOME).as_os_str().as_bytes())
            });
            is_ours.then_some(handle)
        };
        Ok(ids.filter_map(open).collect())
    }

    /// Sends a signal to the processes that ssh has started.
    pub(crate) fn signal_started_by_ssh(&self, signal: Signal) -> Result<()> {
        for handle in self.running_by_ssh()? {
            let _ended_before = pidfd_send_signal(&handle, signal);
        }
        Ok(())
    }

    /// Waits until all processes started by ssh have ended. Returns `false` if that takes too long.
    pub(crate) fn wait_for_started_by_ssh(&self, patience: Duration) -> Result<bool> {
        let deadline = Instant::now() + patience;
        for handle in self.running_by_ssh()? {
            if !race::ends_by(&handle, deadline)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Starts the daemon.
    pub(crate) fn serve(&self, address: SocketAddr, options: &[&'static str]) -> Result<Daemon> {
        let [_, log, _] = self.logs();
        self.serve_from(DAEMON_HOME, address, options, log)
    }

    /// Starts the daemon that has the source of a copy.
    pub(crate) fn serve_source(
        &self,
        address: SocketAddr,
        options: &[&'static str],
    ) -> Result<Daemon> {
        let [.., log] = self.logs();
        self.serve_from(SENDER_HOME, address, options, log)
    }

    /// Starts the daemon whose keys are in `home`.
    pub(crate) fn serve_from(
        &self,
        home: &'static str,
        address: SocketAddr,
        options: &[&'static str],
        log: PathBuf,
    ) -> Result<Daemon> {
        let (running, options) = (
            self.start_daemon(home, address, options, &log)?,
            options.to_vec(),
        );
        Ok(Daemon {
            home,
            address,
            options,
            log,
            running,
        })
    }

    fn start_daemon(
        &self,
        home: &str,
        address: SocketAddr,
        options: &[&str],
        log: &Path,
    ) -> Result<Running> {
        let mut command = self.command(home);
        command
            .args(["serve", "--listen", &address.to_string()])
            .args(options);
        command.stdout(Stdio::piped()).stderr(append(log)?);
        let mut running = Running::start(&mut command)?;
        let mut ready = String::new();
        let output = running
            .child
            .stdout
            .take()
            .context("the daemon has no output")?;
        BufReader::new(output)
            .read_line(&mut ready)
            .context("failed to read from the daemon")?;
        if !ready.contains("listening on") {
            bail!(
                "the daemon does not listen: {}",
                fs::read_to_string(log).unwrap_or_default().trim()
            );
        }
        Ok(running)
    }

    /// Starts a daemon again with the same address and settings.
    pub(crate) fn serve_again(&self, daemon: &mut Daemon) -> Result<()> {
        daemon.running =
            self.start_daemon(daemon.home, daemon.address, &daemon.options, &daemon.log)?;
        Ok(())
    }
}

impl Daemon {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn running(&mut self) -> &mut Running {
        &mut self.running
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.running.id()
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let child = command.spawn().context("failed to start zmove")?;
        let id = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("a process has a number")?;
        let handle = pidfd_open(id, PidfdFlags::empty()).context("failed to open the process")?;
        Ok(Self { child, handle })
    }

    /// Sends a signal. Does nothing if the process has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ended_before = pidfd_send_signal(&self.handle, signal);
    }

    /// Returns the exit status, if the process has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("failed to ask for a process")
    }

    /// Waits until the process has ended, at most for `patience`.
    pub(crate) fn wait(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        race::wait_until(&mut self.child, Instant::now() + patience)
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the process ends within `patience`. Its data in `/proc` stays available until [`Running::wait`].
    pub(crate) fn ends(&self, patience: Duration) -> Result<bool> {
        race::ends_by(&self.handle, Instant::now() + patience)
    }

    /// Returns the pidfd, which becomes readable when the process ends.
    pub(crate) fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Kills the process, if it has not ended.
    pub(crate) fn kill(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::KILL);
        self.child.wait().context("failed to wait for a process")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("zmove-lab: {error:#}");
        }
    }
}

/// Returns an unused address of this host. The port is outside the range of outgoing connections, so no outgoing
/// connection takes it while a daemon is not running.
pub(crate) fn free_address(dice: &mut Dice) -> Result<SocketAddr> {
    free_address_of(Ipv4Addr::LOCALHOST, dice)
}

/// Returns an unused address with a given IP address of this host.
pub(crate) fn free_address_of(host: Ipv4Addr, dice: &mut Dice) -> Result<SocketAddr> {
    for _ in 0..PORTS_TRIED_MAX {
        let port = u16::try_from(dice.within(10_000..=30_000)).context("a port")?;
        let address = SocketAddr::from((host, port));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port is free")
}

/// Opens a log for appending.
pub(crate) fn append(log: &Path) -> Result<File> {
    let open = OpenOptions::new().create(true).append(true).open(log);
    open.with_context(|| format!("failed to open {}", log.display()))
}

/// Home directories of the two sides.
pub(crate) const CLIENT_HOME: &str = "client";
pub(crate) const DAEMON_HOME: &str = "daemon";
const SENDER_HOME: &str = "sender";
const PORTS_TRIED_MAX: usize = 50;
