//! Keeps a broker of one's own there for as long as a job needs it.
//!
//! Another push of this host may have started the one that listens, and ends it before this job has ended: then this
//! push starts one in its place. What a server that is started again has lost, the head makes anew.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::server::{Server, ServerConfig};

/// A broker that is started where none is, and again where it ends; killed when this is dropped.
#[derive(Debug)]
pub struct Keeper {
    config: ServerConfig,
    /// `None` while another's listens there.
    server: Option<Server>,
}

impl Keeper {
    /// Starts a broker, unless one is there.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(config: ServerConfig) -> io::Result<Self> {
        let server = if listens(&config).await { None } else { Some(config.start().await?) };
        Ok(Self { config, server })
    }

    /// Starts the broker again whenever it has ended; `tell` gets what becomes of it.
    pub async fn keep(&mut self, tell: impl Fn(String)) -> Infallible {
        let mut fails = false;
        loop {
            sleep(LOOK_EVERY).await;
            if self.is_there().await {
                continue;
            }
            self.server = None;
            match self.config.start().await {
                Ok(server) => {
                    tell(format!("the broker at {} had ended: it has been started again", server.url()));
                    self.server = Some(server);
                    fails = false;
                }
                Err(error) if !fails => {
                    tell(format!("the broker has ended, and cannot be started again yet: {error}"));
                    fails = true;
                }
                Err(_told) => {}
            }
        }
    }

    async fn is_there(&mut self) -> bool {
        match &mut self.server {
            Some(server) => server.is_running(),
            None => listens(&self.config).await,
        }
    }
}

/// Whether somebody listens where the broker is to.
async fn listens(config: &ServerConfig) -> bool {
    let connecting = TcpStream::connect((config.address, config.port));
    timeout(CONNECT_MAX, connecting).await.is_ok_and(|connected| connected.is_ok())
}

/// How often the broker is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a broker that is there may take to take a connection.
const CONNECT_MAX: Duration = Duration::from_secs(1);
