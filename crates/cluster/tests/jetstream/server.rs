//! A `nats-server` for a test, in its own directory.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::time::sleep;
use zmove_cluster::jetstream::program;

use crate::ports::free_port;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerConfig {
    /// Directory of the server's configuration and streams.
    pub(crate) directory: PathBuf,
    /// Port on the loopback address.
    pub(crate) port: u16,
    /// Additional lines of the configuration.
    pub(crate) more: String,
}

/// A server, which is killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    url: String,
}

impl ServerConfig {
    /// Returns the configuration of a server without authentication.
    pub(crate) fn on_loopback(directory: PathBuf) -> Self {
        Self {
            directory,
            port: free_port(),
            more: String::new(),
        }
    }

    /// Starts the server, and returns when it accepts connections.
    pub(crate) async fn start(&self) -> io::Result<Server> {
        fs::create_dir_all(&self.directory)?;
        let configuration = self.directory.join("nats.conf");
        let text = format!(
            "listen: \"127.0.0.1:{}\"\njetstream {{ store_dir: {:?}, max_file_store: 8GB }}\n{}\n",
            self.port, self.directory, self.more
        );
        fs::write(&configuration, text)?;
        let mut command = program();
        command.arg("-c").arg(configuration);
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let url = format!("nats://127.0.0.1:{}", self.port);
        let mut server = Server { child, url };
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            if let Some(status) = server.child.try_wait()? {
                return Err(io::Error::other(format!("nats-server: {status}")));
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(server)
    }
}

impl Server {
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops the server regularly, so that it writes its files.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        self.child.wait().map(drop)
    }

    /// Kills the server.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The kill fails if the server has already ended, so the error is ignored.
        let _ended_in_any_case = self.kill();
    }
}
