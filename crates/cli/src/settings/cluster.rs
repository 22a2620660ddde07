//! The settings of a cluster, stored in `clusters/NAME.toml` in the home directory.
//!
//! **Invariant:** only the owner of the file can read it.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Chain, Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use zmove_cluster::jetstream::{Access, JetStream, JobKey, LocalBroker, NoticeBoard, Settings};
use zmove_cluster::{BrokerMismatch, NodeRole, WorkError};
use zmove_engine::{Remote, random};
use zmove_types::{Hex, SharedJobId, from_hex};

use super::home;
use crate::value::exit::{Exit, failure, usage_error};

/// A cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cluster {
    pub(crate) name: String,
    /// The secret key as 64 hexadecimal digits. All nodes have this key, but the broker does not.
    key: String,
    /// Addresses of the broker's servers, separated by commas.
    pub(crate) broker: String,
    /// Contents of the broker's credentials file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credentials: Option<String>,
    /// CA certificates that verify the broker. If `None`, each host uses the certificates of its system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) authorities: Option<String>,
    /// Address at which a push of this node starts the broker. `None` if no push of this node starts a broker.
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
    /// Key of the receiver.
    pub(crate) key: String,
}

impl ClusterReceiver {
    /// Returns the receiver as a remote location with this path.
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
    /// Creates a cluster with a new key. The cluster has no receivers and no broker yet.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let path = file(name)?;
        if path.exists() {
            return Err(usage_error(format!(
                "cluster '{name}' already exists: remove '{}' to create it again, or choose another name",
                path.display()
            )));
        }
        let key: [u8; JobKey::BYTES] = random().context("get random bytes")?;
        Ok(Self {
            name: name.to_owned(),
            key: Hex(&key).to_string(),
            ..Self::default()
        })
    }

    /// Loads a cluster that this node has created or joined.
    pub(crate) fn load(name: &str) -> Result<Self> {
        let path = file(name)?;
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(usage_error(format!(
                    "cluster '{name}' does not exist on this host: create it with 'zmove cluster init', or join it \
                     with 'zmove cluster join'"
                )));
            }
            read => read.map_err(anyhow::Error::from),
        };
        let cluster = text.and_then(|text| Self::read(&text));
        cluster.with_context(|| format!("read '{}'", path.display()))
    }

    fn read(text: &str) -> Result<Self> {
        // Only the first part of the error is shown, because the rest quotes a line that may contain a key.
        let cluster: Self =
            toml::from_str(text).map_err(|error| anyhow!(error.message().to_owned()))?;
        cluster.read_key().context("its key is invalid")?;
        file(&cluster.name)?;
        Ok(cluster)
    }

    /// Accepts an invitation and stores the cluster.
    pub(crate) fn join(text: &str) -> Result<Self> {
        let mut cluster = Self::read(text)?;
        // The invitation must not make this node start a broker. Each node configures this for itself.
        cluster.local = None;
        let path = file(&cluster.name)?;
        if path.exists() {
            let there = Self::load(&cluster.name)?;
            if there.key != cluster.key {
                return Err(usage_error(format!(
                    "this host already has another cluster '{}': remove '{}' to join this one instead",
                    cluster.name,
                    path.display()
                )));
            }
            cluster.local = there.local;
        }
        cluster.save()?;
        Ok(cluster)
    }

    /// Returns the contents of an invitation for other nodes.
    pub(crate) fn invitation(&self) -> Result<String> {
        let of_others = Self {
            local: None,
            ..self.clone()
        };
        Ok(toml::to_string(&of_others)?)
    }

    fn read_key(&self) -> Option<JobKey> {
        from_hex(self.key.as_bytes()).map(JobKey::new)
    }

    /// Returns the key that all nodes have.
    fn key(&self) -> JobKey {
        let key = self.read_key();
        key.expect("it was checked when it was read")
    }

    /// Returns the settings for connecting to the broker.
    pub(crate) fn access(&self) -> Access {
        Access {
            urls: self.broker.split(',').map(str::to_owned).collect(),
            credentials: self.credentials.clone(),
            authorities: self.authorities.clone(),
        }
    }

    /// Connects to the broker. Over this connection, the nodes exchange notices.
    pub(crate) async fn notices(&self) -> Result<NoticeBoard, WorkError> {
        NoticeBoard::open(&self.access(), &self.key()).await
    }

    /// Connects to the queue of a job. If the broker is unreachable, retries for at most `patience`.
    pub(crate) async fn queue(
        &self,
        role: NodeRole,
        job: SharedJobId,
        patience: Duration,
    ) -> Result<JetStream, WorkError> {
        let settings = Settings {
            patience,
            ..Settings::new(role, job, self.key().of_job(job))
        };
        JetStream::open(&self.access(), settings).await
    }

    /// Returns the broker that a push of this node starts. Returns `None` if the node is not configured to start one.
    pub(crate) fn local_broker(&self) -> Result<Option<LocalBroker>> {
        let Some((address, seed)) = self.local.zip(self.credentials.as_ref()) else {
            return Ok(None);
        };
        Ok(Some(LocalBroker {
            directory: file(&self.name)?.with_extension("broker"),
            address,
            nkey: LocalBroker::nkey_of(seed)?,
        }))
    }

    /// Converts an error about the broker to an error of the command.
    pub(crate) fn no_broker(&self, error: WorkError) -> anyhow::Error {
        match error {
            WorkError::UnusableServer(refused @ BrokerMismatch::Refused(_)) => {
                failure(Exit::Authentication, refused.to_string())
            }
            error => {
                let why = innermost(&error);
                let text = format!("the broker {} cannot be used: {why}", self.broker);
                failure(Exit::Connection, text)
            }
        }
    }

    /// Writes the file of the cluster.
    pub(crate) fn save(&self) -> Result<()> {
        let path = file(&self.name)?;
        let new = path.with_extension("new");
        let directory = path.parent().expect("it is in a directory");
        let mut make = DirBuilder::new();
        let made = make.recursive(true).mode(0o700).create(directory);
        made.with_context(|| format!("make '{}'", directory.display()))?;
        // A command that was killed may have left this temporary file.
        let _there_is_none = std::fs::remove_file(&new);
        write_new(&new, &toml::to_string(self)?)?;
        std::fs::rename(&new, &path).with_context(|| format!("write '{}'", path.display()))
    }
}

/// Returns the innermost cause of an error, without its context.
pub(crate) fn innermost(error: &WorkError) -> String {
    Chain::new(error)
        .last()
        .map_or_else(String::new, ToString::to_string)
}

/// Returns the path of a cluster's file.
fn file(name: &str) -> Result<PathBuf> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() || name.len() > 64 || !name.bytes().all(is_part) {
        return Err(usage_error(format!(
            "'{name}' is not a valid cluster name: use letters, digits, '-' and '_', at most 64"
        )));
    }
    Ok(home(super::Role::Client)?
        .join("clusters")
        .join(name)
        .with_extension("toml"))
}

/// Writes a new file that only its owner can read.
///
/// # Errors
/// Returns an error if the file exists already or cannot be written.
pub(crate) fn write_new(path: &Path, text: &str) -> Result<()> {
    let mut new = OpenOptions::new();
    let opened = new.write(true).create_new(true).mode(0o600).open(path);
    let written = opened.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.with_context(|| format!("write '{}'", path.display()))
}
