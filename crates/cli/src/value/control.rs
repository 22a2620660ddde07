//! What `zmove status`, `stop`, `drain` and `allow remove --now` ask a daemon of this host, and its answers: one JSON
//! object a line each way, over a Unix socket that only the daemon's user and root can open.

use serde::{Deserialize, Serialize};
use zmove_daemon::TransferStatus;

/// The version of the objects that a status has; it grows when a field changes its meaning or goes.
pub(crate) const SCHEMA: u32 = 1;

/// The longest request, in bytes.
pub(crate) const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// The longest answer that is read, in bytes.
pub(crate) const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// A question or an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// What is going on?
    Status,
    /// End the transfer whose id begins with these digits.
    Stop(String),
    /// End what these keys have under way.
    EndKeys(Vec<Removed>),
    /// Take no new transfers, and end with the last.
    Drain,
}

impl Request {
    /// The purpose of the request, for a message.
    pub(crate) fn purpose(&self) -> &'static str {
        match self {
            Self::Status => "for its status",
            Self::Stop(_) => "to stop a transfer",
            Self::EndKeys(_) => "to stop the transfers of removed keys",
            Self::Drain => "to drain",
        }
    }
}

/// A key that was removed: its name, and its fingerprint unless it is known by a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Removed {
    pub(crate) name: String,
    pub(crate) key: Option<String>,
}

/// What a daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Status(DaemonStatus),
    /// These transfers are being ended.
    Ended(Vec<TransferStatus>),
    /// Nothing was done: the digits fit several transfers.
    Ambiguous(Vec<TransferStatus>),
    /// So many transfers go on to their end.
    Draining(usize),
    /// The request makes no sense.
    Nonsense(String),
}

/// A daemon at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DaemonStatus {
    pub(crate) schema: u32,
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) key: String,
    pub(crate) listen: String,
    /// In seconds since 1970.
    pub(crate) since: u64,
    pub(crate) draining: bool,
    pub(crate) transfers: Vec<TransferStatus>,
}
