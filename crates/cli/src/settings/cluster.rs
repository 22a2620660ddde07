//! A cluster as a file describes it: `clusters/NAME.toml` in the home directory, with the seed of its nkey beside it.
//!
//! **Invariant:** both files are for their owner alone.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use zmove_cluster::jetstream::{Access, JobKey, Nkey, Role as NodeRole, ServerConfig, User};
use zmove_cluster::{Hindrance, WorkError};
use zmove_engine::{Remote, random};
use zmove_transport::Fingerprint;
use zmove_types::{Hex, from_hex};

use super::{Role, home};
use crate::value::exit::{Exit, failure, usage_error};

/// A cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cluster {
    pub(crate) name: String,
    /// What all nodes know, and the broker does not: 64 hexadecimal digits.
    key: String,
    /// The broker's address.
    pub(crate) broker: String,
    /// Where a push of this node has the broker listen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<SocketAddr>,
    /// The public part of this node's nkey, for a broker that the cluster's first node makes.
    #[serde(skip_serializing_if = "Option::is_none")]
    nkey: Option<String>,
    /// The seed of that nkey, in an invitation alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
    /// The public parts of the nkeys that this node has made for others, one for each invitation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    invited: Vec<String>,
    pub(crate) receivers: Vec<ClusterReceiver>,
    /// The key of the node that has come by each invitation first, by the public part of its nkey.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    nodes: BTreeMap<String, String>,
}

/// A receiver of a cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterReceiver {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The receiver's key.
    pub(crate) key: String,
}

impl ClusterReceiver {
    /// The receiver, with a path there.
    pub(crate) fn remote(&self, path: &[u8]) -> Remote {
        Remote {
            host: self.host.clone(),
            port: self.port,
            path: path.to_vec(),
            login: None,
        }
    }
}

impl Cluster {
    /// Makes a cluster, with keys of its own.
    pub(crate) fn make(
        name: &str,
        receivers: Vec<ClusterReceiver>,
        broker: Option<String>,
        listen: Option<SocketAddr>,
    ) -> Result<Self> {
        let path = file(name)?;
        if path.exists() {
            let path = path.display();
            let text = format!(
                "there is a cluster '{name}' already: remove '{path}' to make it anew, or choose a name"
            );
            return Err(usage_error(text));
        }
        let bytes: [u8; JobKey::BYTES] = random().context("get random bytes")?;
        let nkey = match listen {
            Some(_) => {
                make_directory(&path)?;
                let nkey = Nkey::new().context("make an nkey")?;
                // one may be left of a cluster that is no more
                write_private(&seed_file(name)?, &nkey.seed)?;
                Some(nkey.public_key)
            }
            None => None,
        };
        let listens = listen.map(|listen| format!("nats://{listen}"));
        let broker = broker.or(listens).unwrap_or_default();
        let (name, key) = (name.to_owned(), Hex(&bytes).to_string());
        let (invited, nodes) = (Vec::new(), BTreeMap::new());
        let cluster = Self {
            name,
            key,
            broker,
            listen,
            nkey,
            seed: None,
            invited,
            receivers,
            nodes,
        };
        cluster.save()?;
        Ok(cluster)
    }

    /// Reads a cluster that this node has made or joined.
    pub(crate) fn load(name: &str) -> Result<Self> {
        let path = file(name)?;
        let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => usage_error(format!(
                "there is no cluster '{name}' here: 'zmove cluster init' makes one, and 'zmove cluster join' joins one"
            )),
            _ => anyhow::Error::new(error).context(format!("read '{}'", path.display())),
        })?;
        Self::read(&text).with_context(|| format!("read '{}'", path.display()))
    }

    fn read(text: &str) -> Result<Self> {
        // the rest of the error shows the line, which may be a key
        let cluster: Self =
            toml::from_str(text).map_err(|error| anyhow!(error.message().to_owned()))?;
        cluster.key()?;
        file(&cluster.name)?;
        Ok(cluster)
    }

    /// Takes an invitation, and keeps it.
    pub(crate) fn join(text: &str) -> Result<Self> {
        let mut cluster = Self::read(text)?;
        let seed = cluster.seed.take();
        // where a broker listens, and whom it lets in, is for its own node to say
        cluster.listen = None;
        cluster.invited = Vec::new();
        cluster.nodes = BTreeMap::new();
        if file(&cluster.name)?.exists() {
            let there = Self::load(&cluster.name)?;
            if there.key != cluster.key {
                return Err(usage_error(format!(
                    "there is another cluster '{}' here already: remove '{}' to take part in this one in its place",
                    cluster.name,
                    file(&cluster.name)?.display()
                )));
            }
            if there.listen.is_some() {
                return Err(usage_error(format!(
                    "this node has made the cluster '{}': an invitation is for another node",
                    cluster.name
                )));
            }
        }
        cluster.save()?;
        if let Some(seed) = seed {
            write_private(&seed_file(&cluster.name)?, &seed)?;
        }
        Ok(cluster)
    }

    /// What another node needs. Where the broker is made here, each invitation has an nkey of its own, which the broker
    /// knows from here on.
    pub(crate) fn invite(&mut self) -> Result<String> {
        self.refuse_to_lead()?;
        let nkey = self
            .nkey
            .as_ref()
            .map(|_| Nkey::new())
            .transpose()
            .context("make an nkey")?;
        if let Some(nkey) = &nkey {
            self.change(|cluster| {
                cluster.invited.push(nkey.public_key.clone());
                cluster.save()?;
                match cluster.server()? {
                    Some(server) => server
                        .reload()
                        .map(drop)
                        .context("tell the broker of another node"),
                    None => Ok(()),
                }
            })?;
        }
        let (seed, nkey) = nkey.map(|nkey| (nkey.seed, nkey.public_key)).unzip();
        let (invited, nodes) = (Vec::new(), BTreeMap::new());
        let invitation = Self {
            listen: None,
            seed,
            nkey,
            invited,
            nodes,
            ..self.clone()
        };
        Ok(toml::to_string(&invitation)?)
    }

    /// Whether the node of this key may take part by the invitation with this nkey: the first that comes by it, from
    /// then on. Where the broker is not made here, invitations have no nkey.
    pub(crate) fn admits(&mut self, nkey: &str, key: &Fingerprint) -> Result<bool> {
        let is_own = self.nkey.as_deref() == Some(nkey);
        if self.listen.is_none() || is_own {
            return Ok(true);
        }
        let key = key.to_string();
        if let Some(first) = self.nodes.get(nkey) {
            return Ok(*first == key);
        }
        self.change(|cluster| {
            let first = cluster
                .nodes
                .entry(nkey.to_owned())
                .or_insert_with(|| key.clone());
            let is_first = *first == key;
            cluster.save()?;
            Ok(is_first)
        })
    }

    /// Changes what is in the file now, which no other process changes meanwhile.
    fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let _locked = lock(&file(&self.name)?.with_extension("lock"))?;
        *self = Self::load(&self.name)?;
        change(self)
    }

    /// Refuses what the broker lets the node alone do that makes it.
    pub(crate) fn refuse_to_lead(&self) -> Result<()> {
        if self.nkey.is_some() && self.listen.is_none() {
            let name = &self.name;
            return Err(usage_error(format!(
                "this node has been invited to the cluster '{name}': what it sends and whom it invites is for the node that \
                 has made it"
            )));
        }
        Ok(())
    }

    /// The key that all nodes have.
    pub(crate) fn key(&self) -> Result<JobKey> {
        let bytes = from_hex(self.key.as_bytes()).context("its key is no key")?;
        Ok(JobKey::new(bytes))
    }

    /// How the broker is reached.
    pub(crate) fn access(&self) -> Result<Access> {
        let nkey_seed = self
            .nkey
            .is_some()
            .then(|| seed_file(&self.name))
            .transpose()?;
        let name = self.own_broker_name()?;
        Ok(Access {
            urls: vec![self.broker.clone()],
            nkey_seed,
            name,
            ..Access::default()
        })
    }

    /// The name of the broker, where the node makes it that has made the cluster.
    fn own_broker_name(&self) -> Result<Option<String>> {
        self.nkey
            .as_ref()
            .map(|_| Ok(self.key()?.broker_name()))
            .transpose()
    }

    /// The failure of a command that finds the broker of no use.
    pub(crate) fn no_broker(&self, error: &WorkError) -> anyhow::Error {
        match error {
            WorkError::Hindered(refused @ Hindrance::Refused { .. }) => {
                let hint = match self.nkey {
                    Some(_) => format!(
                        "; its invitation is good no more: 'zmove cluster invite {}' on the node that has made the \
                         cluster makes another",
                        self.name
                    ),
                    None => String::new(),
                };
                failure(Exit::Authentication, format!("{refused}{hint}"))
            }
            WorkError::Hindered(another) => failure(Exit::Connection, another.to_string()),
            error => failure(
                Exit::Connection,
                format!("the broker {} cannot be used: {error}", self.broker),
            ),
        }
    }

    /// The broker that a push of this node starts; `None` where one runs already.
    pub(crate) fn server(&self) -> Result<Option<ServerConfig>> {
        let (Some(listen), Some(public_key)) = (self.listen, &self.nkey) else {
            return Ok(None);
        };
        let head = User {
            public_key: public_key.clone(),
            role: NodeRole::Head,
        };
        let mover = |public_key: &String| User {
            public_key: public_key.clone(),
            role: NodeRole::Mover,
        };
        let users = std::iter::once(head)
            .chain(self.invited.iter().map(mover))
            .collect();
        let usual = ServerConfig::on_loopback(file(&self.name)?.with_extension("broker"));
        let (address, port, name) = (listen.ip(), listen.port(), self.own_broker_name()?);
        Ok(Some(ServerConfig {
            address,
            port,
            name,
            users,
            ..usual
        }))
    }

    /// The same, of the cluster of this name as its file is now.
    pub(crate) fn server_now(name: &str) -> io::Result<ServerConfig> {
        let server = Self::load(name)
            .and_then(|cluster| cluster.server())
            .map_err(io::Error::other)?;
        server.ok_or_else(|| io::Error::other("the cluster's broker is not of this node any more"))
    }

    fn save(&self) -> Result<()> {
        let path = file(&self.name)?;
        make_directory(&path)?;
        write_private(&path, &toml::to_string(self)?)
    }
}

fn make_directory(file: &Path) -> Result<()> {
    let directory = file.parent().expect("it is in a directory");
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.with_context(|| format!("make '{}'", directory.display()))
}

/// The file of a cluster.
fn file(name: &str) -> Result<PathBuf> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > 64 || !name.bytes().all(is_part) {
        return Err(usage_error(format!(
            "'{name}' is no name of a cluster: letters, digits, '-' and '_', 64 at most"
        )));
    }
    Ok(home(Role::Client)?
        .join("clusters")
        .join(name)
        .with_extension("toml"))
}

fn seed_file(name: &str) -> Result<PathBuf> {
    Ok(file(name)?.with_extension("seed"))
}

/// Writes a new file for its owner alone.
///
/// # Errors
/// It is there already, or cannot be written.
pub(crate) fn write_new(path: &Path, text: &str) -> Result<()> {
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().with_context(|| format!("write '{}'", path.display()))
}

/// Waits for the lock on a file, which is made where it is not there, until what is returned is dropped. Where the file
/// system has no locks, goes on without.
fn lock(path: &Path) -> Result<File> {
    let lock = || -> io::Result<File> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => return Ok(file),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    };
    lock().with_context(|| format!("lock '{}'", path.display()))
}

/// Writes a file for its owner alone, by way of another.
fn write_private(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    write().with_context(|| format!("write '{}'", path.display()))
}
