//! The broker of one's own, which is there for as long as a push needs it.
//!
//! All pushes of a host by one cluster have one broker in common: the first starts it, and the last ends it, whoever
//! has started it and however that one has ended. Where it ends before, one of them starts another; what that has lost,
//! the heads make anew.
//!
//! **Invariant:** whoever uses the broker holds a shared lock, which the kernel takes from a process that is killed;
//! and only who has that lock alone ends the broker.

use std::convert::Infallible;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Error, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::listener::Listener;
use super::server::{START_MAX, Server, ServerConfig};

/// The broker that all pushes of this host have in common, for one that uses it: started where none is, and again where
/// it ends.
pub struct SharedBroker {
    config: Config,
    /// `None` where another push has started the broker.
    server: Option<Server>,
    /// Locked for as long as this lives.
    users: File,
}

/// The configuration as it is now: nodes may be invited while a push runs.
type Config = Arc<dyn Fn() -> io::Result<ServerConfig> + Send + Sync>;

impl SharedBroker {
    /// Starts a broker by what `config` returns, unless one is there.
    ///
    /// # Errors
    /// It cannot be started, or something else listens in its place.
    pub async fn start(
        config: impl Fn() -> io::Result<ServerConfig> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let now = config()?;
        let users = lock_file(&now, USERS)?;
        // whoever has it alone ends the broker
        lock(&users, FlockOperation::NonBlockingLockShared).await?;
        // who ends meanwhile leaves the broker to this one, also where this one fails or is given up
        let mut user = Self {
            config: Arc::new(config),
            server: None,
            users,
        };
        user.server = start_unless_there(now).await?;
        Ok(user)
    }

    /// Starts the broker again whenever it has ended; `tell` gets what becomes of it.
    pub async fn keep(&mut self, tell: impl Fn(String)) -> Infallible {
        let mut fails = false;
        loop {
            sleep(LOOK_EVERY).await;
            match self.look().await {
                Ok(None) => fails = false,
                Ok(Some(server)) => {
                    tell(format!(
                        "the broker at {} had ended: it has been started again",
                        server.url()
                    ));
                    self.server = Some(server);
                    fails = false;
                }
                Err(error) if !fails => {
                    tell(format!(
                        "the broker has ended, and cannot be started again yet: {error}"
                    ));
                    fails = true;
                }
                Err(_told) => {}
            }
        }
    }

    /// Starts the broker if it has ended, and no other push has.
    async fn look(&mut self) -> io::Result<Option<Server>> {
        if self.server.as_mut().is_some_and(Server::is_running) {
            return Ok(None);
        }
        self.server = None;
        let config = Arc::clone(&self.config);
        let look = move || config().map(|now| (now.running_pid().is_some(), now));
        let (is_running, now) = aside(look).await??;
        if is_running {
            Ok(None)
        } else {
            start_unless_there(now).await
        }
    }
}

impl Drop for SharedBroker {
    fn drop(&mut self) {
        let is_alone =
            match retry_on_intr(|| flock(&self.users, FlockOperation::NonBlockingLockExclusive)) {
                Ok(()) => true,
                // a file system that has no locks tells of no other user
                Err(error) => has_no_locks(error),
            };
        match self.server.take() {
            Some(server) if !is_alone => server.leave(),
            _killed_when_dropped => {}
        }
        if is_alone && let Ok(config) = (self.config)() {
            config.stop();
        }
    }
}

impl std::fmt::Debug for SharedBroker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedBroker")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Starts a broker; `None` where one runs by this configuration.
async fn start_unless_there(config: ServerConfig) -> io::Result<Option<Server>> {
    let starting = lock_file(&config, STARTING)?;
    // a process that was stopped while it held this is not waited for for ever
    if let Ok(locked) = timeout(
        START_MAX,
        lock(&starting, FlockOperation::NonBlockingLockExclusive),
    )
    .await
    {
        locked?;
    }
    let address = (config.address, config.port);
    // the lock goes along with what is done aside: nobody starts another before that is over
    let Ok(Ok(connection)) = timeout(ANSWER_MAX, TcpStream::connect(address)).await else {
        // one that does not listen is of no use: its push was killed while it began, or its address is another now
        let stop = move || {
            config.stop();
            (config, starting)
        };
        let (config, _starting) = aside(stop).await?;
        return config.start().await.map(Some);
    };
    // what has changed since it was started it takes from the file
    let (reloaded, config, _starting) = aside(move || (config.reload(), config, starting)).await?;
    if reloaded? {
        Ok(None)
    } else {
        Err(taken(&config, connection).await)
    }
}

/// Does what blocks where nobody else waits for it.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    Ok(timeout(ASIDE_MAX, spawn_blocking(work)).await??)
}

/// Why no broker can be started where this listens.
async fn taken(config: &ServerConfig, connection: TcpStream) -> Error {
    let address = SocketAddr::from((config.address, config.port));
    let listener = Listener::behind(connection).await;
    let what = match &config.name {
        Some(name) if listener.is(name) => {
            format!(
                "at {address} listens a broker of this cluster that no push of this host has started"
            )
        }
        _ => listener.in_place(address),
    };
    let text = format!(
        "{what}: end it ('ss -ltnp sport = :{}' names it), or make a cluster with another address ('zmove cluster init')",
        config.port
    );
    Error::new(ErrorKind::AddrInUse, text)
}

/// Opens a file for locks beside the configuration.
fn lock_file(config: &ServerConfig, name: &str) -> io::Result<File> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&config.directory)?;
    let path = config.directory.join(name);
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// Waits for a lock, held until the file is closed. Where the file system has no locks, goes on without.
async fn lock(file: &File, operation: FlockOperation) -> io::Result<()> {
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(error) if has_no_locks(error) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => sleep(LOCK_EVERY).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a file system says by this that it has no locks.
fn has_no_locks(error: Errno) -> bool {
    matches!(error, Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Locked by all who use the broker.
const USERS: &str = "users.lock";
/// Locked by who starts it.
const STARTING: &str = "starting.lock";

/// How often the broker is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a lock is asked for that another holds.
const LOCK_EVERY: Duration = Duration::from_millis(20);
/// How long whoever listens may take to take a connection.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long may be done aside: more than a broker may take to end, or to hear.
const ASIDE_MAX: Duration = Duration::from_secs(30);
