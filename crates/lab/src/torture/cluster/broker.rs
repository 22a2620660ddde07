//! The broker of a round: its servers, and a small client that makes it lose data.
//!
//! The client implements the documented NATS client protocol, and the requests of JetStream that delete data.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use super::acts::Loss;
use crate::measurements::measure::race;

/// A broker with one or more servers, which accept all clients.
#[derive(Debug)]
pub(super) struct Broker {
    servers: Vec<Server>,
}

impl Broker {
    /// Creates the configurations of `count` servers.
    pub(super) fn of_lab(
        count: usize,
        directory: &Path,
        mut free_address: impl FnMut() -> Result<SocketAddr>,
    ) -> Result<Self> {
        fs::create_dir(directory).context("failed to make a directory for the broker")?;
        let mut addresses = || {
            (0..count)
                .map(|_| free_address())
                .collect::<Result<Vec<_>>>()
        };
        let clients = addresses()?;
        let routes = addresses()?;
        let servers = clients.into_iter().enumerate().map(|(number, address)| {
            let directory = directory.join(format!("server-{number}"));
            let cluster = match &*routes {
                [_alone] => String::new(),
                routes => cluster_of(number, routes),
            };
            Server::of_lab(address, directory, &cluster)
        });
        let servers = servers.collect::<Result<_>>()?;
        Ok(Self { servers })
    }

    /// Returns the URLs of the servers.
    pub(super) fn urls(&self) -> String {
        let urls = self
            .servers
            .iter()
            .map(|server| format!("nats://{}", server.address));
        urls.collect::<Vec<_>>().join(",")
    }

    pub(super) fn count(&self) -> usize {
        self.servers.len()
    }

    /// Returns one of its servers.
    pub(super) fn server(&self, which: usize) -> &Server {
        &self.servers[which]
    }

    pub(super) fn start(&self) -> Result<()> {
        self.servers.iter().try_for_each(Server::start)
    }

    pub(super) fn kill(&self) -> Result<()> {
        self.servers.iter().try_for_each(Server::kill)
    }

    /// Loses data, if it exists.
    pub(super) fn lose(&self, loss: Loss) -> Result<()> {
        if loss == Loss::Store {
            // All servers are killed first, so that none can restore the data of the others.
            self.kill()?;
            return self.servers.iter().try_for_each(Server::lose_store);
        }
        // A server that is not running or does not respond loses nothing now.
        for mut client in self
            .servers
            .iter()
            .filter_map(|server| server.client().ok())
        {
            if client.lose(loss).is_ok() {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the part of a server's configuration that lists the other servers.
fn cluster_of(number: usize, routes: &[SocketAddr]) -> String {
    let listen = routes[number];
    let routes = routes.iter().map(|route| format!("nats://{route}"));
    format!(
        "server_name: n{number}\ncluster {{ name: lab, listen: \"{listen}\", routes: [{}] }}\n",
        routes.collect::<Vec<_>>().join(", ")
    )
}

/// One server of the broker.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    /// The directory of its configuration and its data.
    directory: PathBuf,
}

impl Server {
    /// Creates its configuration, which includes `cluster`.
    fn of_lab(address: SocketAddr, directory: PathBuf, cluster: &str) -> Result<Self> {
        fs::create_dir(&directory).context("failed to make a directory for a server")?;
        let log = directory.join("nats-server.log");
        let text = format!(
            "host: \"{}\"\nport: {}\nlogfile: \"{}\"\njetstream {{ store_dir: \"{}\", max_file_store: {} }}\n{cluster}",
            address.ip(),
            address.port(),
            log.display(),
            directory.display(),
            8_u64 << 30,
        );
        let server = Self { address, directory };
        fs::write(server.configuration(), text)
            .context("failed to write the broker's configuration")?;
        Ok(server)
    }

    fn configuration(&self) -> PathBuf {
        self.directory.join("nats.conf")
    }

    /// Starts the server, if it is not running.
    pub(super) fn start(&self) -> Result<()> {
        let deadline = Instant::now() + START_MAX;
        loop {
            // A process that was found may be about to end.
            if self.processes()?.is_empty() {
                let mut command = Command::new(SERVER);
                command.arg("-c").arg(self.configuration());
                command
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null());
                let mut child = command.spawn().context("failed to start nats-server")?;
                // Wait for the process in a thread, so that it does not remain a zombie after it was killed.
                std::thread::spawn(move || drop(child.wait()));
            }
            if TcpStream::connect(self.address).is_ok() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the broker does not listen at {}", self.address);
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// Returns the processes of the server.
    fn processes(&self) -> Result<Vec<OwnedFd>> {
        let configuration = self.configuration();
        let wanted = configuration.as_os_str().as_encoded_bytes();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").context("failed to list processes")? {
            let name = entry.context("failed to list processes")?.file_name();
            let id = name
                .to_str()
                .and_then(|name| Pid::from_raw(name.parse().ok()?));
            let Some((id, handle)) =
                id.and_then(|id| Some((id, pidfd_open(id, PidfdFlags::empty()).ok()?)))
            else {
                continue;
            };
            let words =
                fs::read(format!("/proc/{}/cmdline", id.as_raw_nonzero())).unwrap_or_default();
            if words.split(|byte| *byte == 0).any(|word| word == wanted) {
                found.push(handle);
            }
        }
        Ok(found)
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        for handle in self.processes()? {
            let _ended_before = pidfd_send_signal(&handle, signal);
        }
        Ok(())
    }

    /// Kills the server with SIGKILL.
    pub(super) fn kill(&self) -> Result<()> {
        for handle in self.processes()? {
            let _ended_before = pidfd_send_signal(&handle, Signal::KILL);
            race::ends_by(&handle, Instant::now() + END_MAX)?;
        }
        Ok(())
    }

    fn lose_store(&self) -> Result<()> {
        loop {
            self.kill()?;
            match fs::remove_dir_all(self.directory.join("jetstream")) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                // The server has been restarted since it was killed.
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
                Err(error) => return Err(error).context("failed to empty the broker"),
            }
        }
    }

    fn client(&self) -> Result<Client> {
        Client::connect(self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("zmove-lab: {error:#}");
        }
    }
}

/// A connection to a broker.
struct Client {
    reader: BufReader<TcpStream>,
    inbox: String,
    requests: u64,
}

impl Client {
    fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, ANSWER_MAX)
            .context("failed to reach the broker")?;
        stream
            .set_read_timeout(Some(ANSWER_MAX))
            .context("failed to set a time")?;
        let mut client = Self {
            reader: BufReader::new(stream),
            inbox: "_INBOX.lab".to_owned(),
            requests: 0,
        };
        client
            .line()?
            .strip_prefix("INFO ")
            .context("no greeting")?;
        let words = json!({ "verbose": false, "pedantic": false, "lang": "lab", "version": "1" });
        let subscribed = format!("CONNECT {words}\r\nSUB {}.> 1\r\n", client.inbox);
        client
            .reader
            .get_mut()
            .write_all(subscribed.as_bytes())
            .context("failed to write to the broker")?;
        Ok(client)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self
            .reader
            .read_line(&mut line)
            .context("failed to read from the broker")?
            == 0
        {
            bail!("the broker has ended the connection");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Sends a request to JetStream and returns the response.
    fn ask(&mut self, what: &str, words: &Value) -> Result<Value> {
        self.requests += 1;
        let (inbox, words) = (
            format!("{}.{}", self.inbox, self.requests),
            words.to_string(),
        );
        let request = format!("PUB $JS.API.{what} {inbox} {}\r\n{words}\r\n", words.len());
        self.reader
            .get_mut()
            .write_all(request.as_bytes())
            .context("failed to write to the broker")?;
        loop {
            let line = self.line()?;
            if line == "PING" {
                self.reader
                    .get_mut()
                    .write_all(b"PONG\r\n")
                    .context("failed to write to the broker")?;
            }
            if let Some(error) = line.strip_prefix("-ERR ") {
                bail!("the broker says {error}");
            }
            let Some(message) = line.strip_prefix("MSG ") else {
                continue;
            };
            let bytes: usize = message.rsplit(' ').next().unwrap_or_default().parse()?;
            let mut body = vec![0; bytes + 2];
            self.reader
                .read_exact(&mut body)
                .context("failed to read from the broker")?;
            if message.starts_with(&inbox) {
                return Ok(serde_json::from_slice(&body)?);
            }
        }
    }

    fn queues(&mut self) -> Result<Vec<String>> {
        let answer = self.ask("STREAM.NAMES", &json!({ "offset": 0 }))?;
        let names = answer["streams"].as_array().cloned().unwrap_or_default();
        let names = names
            .iter()
            .filter_map(Value::as_str)
            .filter(|name| *name == QUEUE);
        Ok(names.map(str::to_owned).collect())
    }

    fn lose(&mut self, loss: Loss) -> Result<()> {
        for queue in self.queues()? {
            match loss {
                Loss::Stream => drop(self.ask(&format!("STREAM.DELETE.{queue}"), &json!({}))?),
                Loss::Consumers => self.lose_consumers(&queue)?,
                Loss::Store => {}
            }
        }
        Ok(())
    }

    fn lose_consumers(&mut self, queue: &str) -> Result<()> {
        let names = self.ask(&format!("CONSUMER.NAMES.{queue}"), &json!({ "offset": 0 }))?;
        for name in names["consumers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            self.ask(&format!("CONSUMER.DELETE.{queue}.{name}"), &json!({}))?;
        }
        Ok(())
    }
}

/// Path of the server. Debian installs it in a directory that is only on root's PATH.
const SERVER: &str = "/usr/sbin/nats-server";
/// The stream with the items of all jobs.
const QUEUE: &str = "zmove";
const START_MAX: Duration = Duration::from_secs(20);
const END_MAX: Duration = Duration::from_secs(20);
const ANSWER_MAX: Duration = Duration::from_secs(1);
