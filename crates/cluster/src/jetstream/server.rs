//! A broker of one's own: a configuration for `nats-server`, and the process.
//!
//! **Invariant:** a node that is a mover may take, acknowledge and put in, and can neither make nor remove a stream,
//! nor listen to another node's answers.

use std::fmt::{self, Write as _};
use std::fs::{self, DirBuilder};
use std::io::{self, Error, ErrorKind};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::Role;
use super::connection::inbox;
use super::notices::{SUBJECTS, subject_of};

/// How a `nats-server` is run.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The program.
    pub program: PathBuf,
    /// The directory for its configuration, its log and its streams, made for its owner alone.
    pub directory: PathBuf,
    /// Where it listens.
    pub address: IpAddr,
    /// The port; 0 for one that is free.
    pub port: u16,
    /// The name by which nodes know the server, as [`JobKey::broker_name`](super::JobKey::broker_name) returns it;
    /// without one it makes one up.
    pub name: Option<String>,
    /// The nodes that are let in. If there is none, everybody is: only for tests, on loopback.
    pub users: Vec<User>,
    /// If the connection is to be encrypted. The bodies of items are in any case.
    pub tls: Option<ServerTls>,
    /// The most bytes of all streams.
    pub bytes_max: u64,
}

/// A node that is let in.
#[derive(Clone, Debug)]
pub struct User {
    /// The node's public nkey, as of an [`Nkey`].
    pub public_key: String,
    /// What it may do.
    pub role: Role,
}

/// Files for TLS, all PEM.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The private key of it.
    pub key: PathBuf,
    /// The certificates of who vouches for the nodes' certificates; then each node must show one.
    pub authority: Option<PathBuf>,
}

/// A `nats-server`, killed when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    url: String,
}

#[derive(Deserialize)]
struct Ports {
    nats: Vec<String>,
}

/// An nkey that is kept nowhere yet.
pub struct Nkey {
    /// The secret part.
    pub seed: String,
    /// The public part.
    pub public_key: String,
}

impl Nkey {
    /// Makes one.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn new() -> io::Result<Self> {
        let key = nkeys::KeyPair::new_user();
        Ok(Self {
            seed: key.seed().map_err(Error::other)?,
            public_key: key.public_key(),
        })
    }
}

impl fmt::Debug for Nkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nkey")
            .field("public_key", &self.public_key)
            .finish_non_exhaustive()
    }
}

impl ServerConfig {
    /// A server on this host alone, on a free port, that lets everybody in.
    #[must_use]
    pub fn on_loopback(directory: PathBuf) -> Self {
        Self {
            program: program(),
            directory,
            address: IpAddr::from([127, 0, 0, 1]),
            port: 0,
            name: None,
            users: Vec::new(),
            tls: None,
            // eight queues, and the ends of jobs, for which a server that starts finds room after the queues
            bytes_max: (8 << 30) + (64 << 20),
        }
    }

    /// Writes the configuration; returns its path.
    ///
    /// # Errors
    /// The directory or the file cannot be written, or a path does not fit into a configuration.
    pub fn write(&self) -> io::Result<PathBuf> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)?;
        let (path, new) = (self.config_path(), self.directory.join("nats.conf.new"));
        fs::write(&new, self.text()?)?;
        fs::rename(new, &path)?;
        Ok(path)
    }

    /// Starts the server, and returns when it listens.
    ///
    /// # Errors
    /// It cannot be started, ends at once, or does not listen in time. The log in the directory has more.
    pub async fn start(&self) -> io::Result<Server> {
        let config = self.write()?;
        let mut command = Command::new(&self.program);
        command
            .arg("-c")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // a signal of the terminal is for the push, which needs the broker to end its job
        command.process_group(0);
        let child = command
            .spawn()
            .map_err(|error| Error::new(error.kind(), self.failed(&error)))?;
        let ports = self
            .directory
            .join(format!("nats-server_{}.ports", child.id()));
        let mut server = Server {
            child,
            url: String::new(),
        };
        let until = Instant::now() + START_MAX;
        // the server tells in no other way where it listens
        while server.url.is_empty() {
            if let Some(status) = server.child.try_wait()? {
                return Err(Error::other(self.failed(&status)));
            }
            if Instant::now() > until {
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    self.failed(&"it does not listen"),
                ));
            }
            sleep(LOOK_EVERY).await;
            let read: Option<Ports> = fs::read(&ports)
                .ok()
                .and_then(|text| serde_json::from_slice(&text).ok());
            server.url = read
                .and_then(|ports| ports.nats.into_iter().next())
                .unwrap_or_default();
        }
        fs::remove_file(ports)?;
        Ok(server)
    }

    /// Has a server that runs by this configuration take what has changed in it; returns whether one runs. Blocks, for
    /// some seconds at most.
    ///
    /// # Errors
    /// The configuration cannot be written, or the server does not hear.
    pub fn reload(&self) -> io::Result<bool> {
        self.write()?;
        let Some(pid) = self.running_pid() else {
            return Ok(false);
        };
        let mut command = Command::new(&self.program);
        command.args(["--signal", &format!("reload={pid}")]);
        let telling = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let told = wait_for(telling)?;
        if told.success() {
            Ok(true)
        } else {
            Err(Error::other(self.failed(&told)))
        }
    }

    /// The process that runs by this configuration, whoever has started it: a number that another has by now is none,
    /// and one that could not listen has left its number in place of that of the one that does.
    pub(super) fn running_pid(&self) -> Option<u32> {
        let noted = fs::read_to_string(self.directory.join(PID))
            .ok()
            .and_then(|pid| pid.trim().parse().ok());
        let all = fs::read_dir("/proc").into_iter().flatten();
        let all = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        noted
            .into_iter()
            .chain(all)
            .find(|pid| self.is_run_by(*pid))
    }

    fn is_run_by(&self, pid: u32) -> bool {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0).skip(1);
        words.next() == Some(b"-c")
            && words.next() == Some(self.config_path().as_os_str().as_bytes())
    }

    /// Kills the server that runs by this configuration, and waits at most one second for its end.
    ///
    /// An ending process loses its command line before its sockets. Only its descriptor shows that its port is free.
    pub(super) fn stop(&self) {
        let until = Instant::now() + STOP_MAX;
        while let Some(pid) = self.running_pid() {
            let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
                return;
            };
            // Some systems have no process descriptors.
            let descriptor = pidfd_open(process, PidfdFlags::empty());
            let _ended_meanwhile = kill_process(process, Signal::KILL);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            match descriptor {
                Ok(process) => {
                    let left = Timespec::try_from(left).ok();
                    // If a signal interrupts the wait, the next turn looks for the process again.
                    let _ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], left.as_ref());
                }
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn config_path(&self) -> PathBuf {
        self.directory.join("nats.conf")
    }

    fn failed(&self, error: &dyn fmt::Display) -> String {
        let log = self.directory.join(LOG);
        format!(
            "start {} (log in {}): {error}",
            self.program.display(),
            log.display()
        )
    }

    fn text(&self) -> io::Result<String> {
        let directory = quoted(&self.directory)?;
        let port = if self.port == 0 {
            -1
        } else {
            i32::from(self.port)
        };
        let mut text = format!(
            "# made by zmove; a change is overwritten\n\
             host: \"{}\"\n\
             port: {port}\n\
             ports_file_dir: {directory}\n\
             pid_file: {}\n\
             logfile: {}\n\
             logfile_size_limit: 10MB\n\
             max_payload: {PAYLOAD_MAX}\n\
             jetstream {{ store_dir: {directory}, max_memory_store: 64MB, max_file_store: {} }}\n",
            self.address,
            quoted(&self.directory.join(PID))?,
            quoted(&self.directory.join(LOG))?,
            self.bytes_max,
        );
        if let Some(name) = &self.name {
            writeln!(text, "server_name: \"{name}\"").expect("a string grows");
        }
        if let Some(tls) = &self.tls {
            let (certificate, key) = (quoted(&tls.certificate)?, quoted(&tls.key)?);
            write!(text, "tls {{ cert_file: {certificate}, key_file: {key}")
                .expect("a string grows");
            if let Some(authority) = &tls.authority {
                write!(text, ", ca_file: {}, verify: true", quoted(authority)?)
                    .expect("a string grows");
            }
            text.push_str(" }\n");
        }
        if !self.users.is_empty() {
            let users: Vec<_> = self.users.iter().map(user).collect();
            writeln!(text, "authorization {{ users: [\n{}] }}", users.concat())
                .expect("a string grows");
        }
        Ok(text)
    }
}

/// Waits for a process that has little to do, and kills it where it takes too long.
fn wait_for(mut child: Child) -> io::Result<ExitStatus> {
    let until = Instant::now() + RELOAD_MAX;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > until {
            child.kill()?;
            return child.wait();
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

impl Server {
    /// Whether there is a `nats-server` on this host.
    #[must_use]
    pub fn is_installed() -> bool {
        let asked = Command::new(program())
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        !asked.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    }
}

/// Debian has it where only root looks for programs.
fn program() -> PathBuf {
    let debian = PathBuf::from("/usr/sbin/nats-server");
    if debian.exists() {
        debian
    } else {
        PathBuf::from("nats-server")
    }
}

fn user(user: &User) -> String {
    let key = &user.public_key;
    let publish = match user.role {
        Role::Head => HEAD_PUBLISHES,
        Role::Mover => MOVER_PUBLISHES,
    };
    let publish = publish
        .iter()
        .map(ToString::to_string)
        .chain([subject_of(key)]);
    let publish: Vec<_> = publish.map(|subject| format!("\"{subject}\"")).collect();
    format!(
        "  {{ nkey: {key}, permissions: {{ publish: [{}], subscribe: [\"{}.>\", \"zmove.*.*.news\", \"{SUBJECTS}\"] }} }}\n",
        publish.join(", "),
        inbox(key),
    )
}

fn quoted(path: &Path) -> io::Result<String> {
    let text = path
        .to_str()
        .filter(|text| !text.contains(['"', '\\', '$']) && !text.contains(char::is_control));
    let unfit = || {
        Error::new(
            ErrorKind::InvalidInput,
            format!("{}: not for a configuration", path.display()),
        )
    };
    text.map(|text| format!("\"{text}\"")).ok_or_else(unfit)
}

impl Server {
    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The number of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Leaves the server to others that use it.
    pub(super) fn leave(self) {
        std::mem::forget(self);
    }

    /// Whether the server runs.
    pub(super) fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
    }

    /// Kills the server without a word.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // it has ended already, or is killed
        let _ended_in_any_case = self.kill();
    }
}

const HEAD_PUBLISHES: &[&str] = &["zmove.>", "$JS.API.>", "$JS.ACK.>"];

const MOVER_PUBLISHES: &[&str] = &[
    "zmove.*.*.data",
    "zmove.*.*.walk",
    "zmove.*.*.news",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.MSG.GET.zmove-ended",
    "$JS.API.CONSUMER.NAMES.*",
    "$JS.API.CONSUMER.INFO.*.*",
    "$JS.API.CONSUMER.MSG.NEXT.*.*",
    "$JS.ACK.>",
];

/// The most bytes of a message. What surely goes: an item is half as long at most.
const PAYLOAD_MAX: usize = 1 << 20;

const LOG: &str = "nats-server.log";
const PID: &str = "nats-server.pid";

/// How long a server may take to listen. It reads what its streams hold before.
pub(super) const START_MAX: Duration = Duration::from_secs(30);

/// How long one that is killed may take to go.
const STOP_MAX: Duration = Duration::from_secs(1);

/// How long it may take to tell a server that its configuration has changed.
const RELOAD_MAX: Duration = Duration::from_secs(5);

/// How often a process is looked at that begins, or ends.
const LOOK_EVERY: Duration = Duration::from_millis(5);
