//! The broker of a push for which the user named no broker: a `nats-server` child process that ends with the push.
//!
//! Several pushes of one cluster on the same host share the server of the first push. The server is not monitored.
//! **Invariant:** at most one server uses a directory. Its standard input is a locked file, and the kernel releases the
//! lock when the process ends.

use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Error, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use nkeys::KeyPair;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

/// The configuration of a local broker.
#[derive(Clone, Debug)]
pub struct LocalBroker {
    /// Directory for the server's configuration, log and streams.
    pub directory: PathBuf,
    /// Address on which the server listens.
    pub address: SocketAddr,
    /// Public nkey of the nodes that the server allows.
    pub nkey: String,
}

/// A local broker that is ready for connections. If this push has started the process, it is killed when this value is
/// dropped.
#[derive(Debug)]
pub struct LocalServer(Option<Child>);

impl LocalBroker {
    /// Returns the public nkey of a seed.
    ///
    /// # Errors
    /// The seed is invalid.
    pub fn nkey_of(seed: &str) -> io::Result<String> {
        let pair = KeyPair::from_seed(seed).map_err(Error::other)?;
        Ok(pair.public_key())
    }

    /// Generates the seed of an nkey.
    ///
    /// # Errors
    /// The system cannot provide random numbers.
    pub fn new_seed() -> io::Result<String> {
        KeyPair::new_user().seed().map_err(Error::other)
    }

    /// Starts the server, unless another push on this host has already started it. `command` must run [`program`] with
    /// [`ARGUMENTS`]. Returns when the server accepts connections.
    ///
    /// # Errors
    /// The server cannot be started, ends, or is not ready in time, or another program listens on the address.
    pub async fn start(&self, command: impl Fn() -> Command) -> io::Result<LocalServer> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)?;
        let until = Instant::now() + START_MAX;
        let mut server = LocalServer(None);
        loop {
            if server.0.is_none()
                && let Some(lock) = self.lock()?
            {
                if self.is_taken().await {
                    let taken = format!("another program is listening on {}", self.address);
                    return Err(Error::new(ErrorKind::AddrInUse, taken));
                }
                server.0 = Some(self.spawn(command(), lock)?);
            }
            if let Some(child) = &mut server.0
                && let Some(status) = child.try_wait()?
            {
                return Err(self.failed(&status));
            }
            if self.is_taken().await {
                return Ok(server);
            }
            if Instant::now() > until {
                return Err(self.failed(&"the program is not listening"));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn spawn(&self, mut command: Command, lock: File) -> io::Result<Child> {
        match fs::remove_dir_all(self.directory.join(STORE)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let text = format!(
            "# zmove writes this file at each start\n\
             listen: \"{}\"\n\
             jetstream {{ store_dir: \"{STORE}\", max_file_store: 8GB }}\n\
             authorization {{ users: [{{ nkey: {} }}] }}\n",
            self.address, self.nkey
        );
        fs::write(self.directory.join(ARGUMENTS[1]), text)?;
        let log = File::create(self.directory.join(LOG))?;
        command
            .current_dir(&self.directory)
            .stdin(lock)
            .stdout(log.try_clone()?)
            .stderr(log);
        // A terminal signal is meant for the push, which still needs the broker to close its job.
        command.process_group(0).spawn()
    }

    /// Locks the directory. Returns `None` if a server holds the lock. On a file system without locks, the lock is
    /// always granted.
    fn lock(&self) -> io::Result<Option<File>> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.directory.join("lock"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn is_taken(&self) -> bool {
        TcpStream::connect(self.address).await.is_ok()
    }

    fn failed(&self, error: &dyn Display) -> Error {
        let path = self.directory.join(LOG);
        let log = fs::read_to_string(&path).unwrap_or_default();
        let last = log.lines().last().unwrap_or_default();
        Error::other(format!("{error} (log in '{}'): {last}", path.display()))
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        if let Some(server) = &mut self.0 {
            let _has_ended = server.kill();
            let _ended_in_any_case = server.wait();
        }
    }
}

/// Returns the command for the `nats-server` of this host. Debian installs it in a directory that only root has in its
/// `PATH`.
#[must_use]
pub fn program() -> Command {
    let debian = Path::new("/usr/sbin/nats-server");
    Command::new(if debian.exists() {
        debian
    } else {
        Path::new("nats-server")
    })
}

/// Arguments of the program. The configuration is in the directory of the local broker.
pub const ARGUMENTS: [&str; 2] = ["-c", "nats.conf"];
const STORE: &str = "store";
const LOG: &str = "nats-server.log";
/// Time limit for a server to accept connections.
const START_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);
