//! Requests from `zmove status`, `stop`, `drain` and `allow remove --now` to the daemon of this host, and the daemon's
//! responses. Each request or response is a JSON object on one line. The Unix socket for these messages can be opened
//! only by the daemon's user and root.

use serde::{Deserialize, Serialize};
use zmove_daemon::TransferStatus;

/// Version of the status format. The version increases when a field is removed or changes its meaning.
pub(crate) const SCHEMA: u32 = 1;

/// Maximum size of a request, in bytes.
pub(crate) const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// Maximum size of a response, in bytes.
pub(crate) const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// A query or a command for the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Requests the daemon's status.
    Status,
    /// Stops the transfer whose ID starts with these digits.
    Stop(String),
    /// Stops the running transfers of these keys.
    EndKeys(Vec<Removed>),
    /// Refuses new transfers, and shuts the daemon down after the last running transfer.
    Drain,
}

impl Request {
    /// Returns the purpose of the request, for error messages.
    pub(crate) fn purpose(&self) -> &'static str {
        match self {
            Self::Status => "for its status",
            Self::Stop(_) => "to stop a transfer",
            Self::EndKeys(_) => "to stop the transfers of removed keys",
            Self::Drain => "to drain",
        }
    }
}

/// A removed key, with its name and its fingerprint. The fingerprint is missing if the key was allowed by a
/// certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Removed {
    pub(crate) name: String,
    pub(crate) key: Option<String>,
}

/// The response of a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Status(DaemonStatus),
    /// These transfers are being stopped.
    Ended(Vec<TransferStatus>),
    /// No transfer was stopped, because several transfers have IDs that start with the given digits.
    Ambiguous(Vec<TransferStatus>),
    /// The daemon is draining. Number of transfers that still run.
    Draining(usize),
    /// The request is invalid.
    Nonsense(String),
}

/// The status of a daemon at one point in time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DaemonStatus {
    pub(crate) schema: u32,
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) key: String,
    pub(crate) listen: String,
    /// Start time of the daemon, in seconds since 1970.
    pub(crate) since: u64,
    pub(crate) draining: bool,
    pub(crate) transfers: Vec<TransferStatus>,
}
