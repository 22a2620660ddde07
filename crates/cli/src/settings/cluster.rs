//! A cluster as a file describes it: `clusters/NAME.toml` in the home directory.
//!
//! **Invariant:** the file is for its owner alone.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Chain, Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use zmove_cluster::jetstream::{Access, JobKey, LocalBroker};
use zmove_cluster::{Hindrance, WorkError};
use zmove_engine::{Remote, random};
use zmove_types::{Hex, from_hex};

use super::{Role, home};
use crate::value::exit::{Exit, failure, usage_error};

/// A cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cluster {
    pub(crate) name: String,
    /// The key that all nodes have and the broker does not: 64 hexadecimal digits.
    key: String,
    /// The addresses of the broker's servers, separated by commas.
    pub(crate) broker: String,
    /// The contents of the broker's credentials file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credentials: Option<String>,
    /// The certificates of the authorities that vouch for the broker, if not those of each host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) authorities: Option<String>,
    /// The address at which a push of this node starts the broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) local: Option<SocketAddr>,
    pub(crate) receivers: Vec<ClusterReceiver>,
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
    /// Makes a cluster without receivers and broker, with a key of its own.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let path = file(name)?;
        if path.exists() {
            return Err(usage_error(format!(
                "there is a cluster '{name}' already: remove '{}' to make it anew, or choose a name",
                path.display()
            )));
        }
        let key: [u8; JobKey::BYTES] = random().context("get random bytes")?;
        Ok(Self {
            name: name.to_owned(),
            key: Hex(&key).to_string(),
            broker: String::new(),
            credentials: None,
            authorities: None,
            local: None,
            receivers: Vec::new(),
        })
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
        // The rest of the error shows the line, which may be a key.
        let cluster: Self =
            toml::from_str(text).map_err(|error| anyhow!(error.message().to_owned()))?;
        cluster.key()?;
        file(&cluster.name)?;
        Ok(cluster)
    }

    /// Accepts an invitation and stores the cluster.
    pub(crate) fn join(text: &str) -> Result<Self> {
        let mut cluster = Self::read(text)?;
        // A node alone decides what it starts at its own addresses.
        cluster.local = None;
        let path = file(&cluster.name)?;
        if path.exists() {
            let there = Self::load(&cluster.name)?;
            if there.key != cluster.key {
                return Err(usage_error(format!(
                    "there is another cluster '{}' here already: remove '{}' to take part in this one instead",
                    cluster.name,
                    path.display()
                )));
            }
            cluster.local = there.local;
        }
        cluster.save()?;
        Ok(cluster)
    }

    /// The contents of an invitation: what another node needs.
    pub(crate) fn invitation(&self) -> Result<String> {
        let of_others = Self {
            local: None,
            ..self.clone()
        };
        Ok(toml::to_string(&of_others)?)
    }

    /// The key that all nodes have.
    pub(crate) fn key(&self) -> Result<JobKey> {
        let bytes = from_hex(self.key.as_bytes()).context("its key is no key")?;
        Ok(JobKey::new(bytes))
    }

    /// The way to the broker.
    pub(crate) fn access(&self) -> Access {
        Access {
            urls: self.broker.split(',').map(str::to_owned).collect(),
            credentials: self.credentials.clone(),
            authorities: self.authorities.clone(),
        }
    }

    /// The broker that a push of this node starts.
    pub(crate) fn local_broker(&self) -> Result<Option<LocalBroker>> {
        let (Some(address), Some(seed)) = (self.local, &self.credentials) else {
            return Ok(None);
        };
        Ok(Some(LocalBroker {
            directory: file(&self.name)?.with_extension("broker"),
            address,
            nkey: LocalBroker::nkey_of(seed)?,
        }))
    }

    /// The failure of a command that cannot use the broker.
    pub(crate) fn no_broker(&self, error: &WorkError) -> anyhow::Error {
        match error {
            WorkError::Hindered(refused @ Hindrance::Refused { .. }) => {
                failure(Exit::Authentication, refused.to_string())
            }
            error => failure(
                Exit::Connection,
                format!(
                    "the broker {} cannot be used: {}",
                    self.broker,
                    innermost(error)
                ),
            ),
        }
    }

    /// Writes the file of the cluster.
    pub(crate) fn save(&self) -> Result<()> {
        let path = file(&self.name)?;
        make_directory(&path)?;
        write_private(&path, &toml::to_string(self)?)
    }
}

/// The cause below all that says where an error has happened.
pub(crate) fn innermost(error: &WorkError) -> String {
    Chain::new(error)
        .last()
        .map_or_else(String::new, ToString::to_string)
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
