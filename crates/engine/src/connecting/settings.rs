//! Settings for connecting to a receiver.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zmove_transport::{DialOptions, Fingerprint, Identity};
use zmove_types::RateLimit;
use zmove_wire::{Cipher, SignedJobGrant};

use crate::connecting::location::Remote;
use crate::error::BoxError;

/// Settings for connecting to a receiver.
#[derive(Clone, Debug, Default)]
pub struct DialSettings {
    /// The only accepted host key. Default: the key pinned in the home directory.
    pub key: Option<Fingerprint>,
    /// Identity of this side. Default: the key in the home directory.
    pub identity: Option<Identity>,
    /// Grant of a multi-node job, presented by this side. Default: none, so that the receiver must allow this side's
    /// own key.
    pub job_grant: Option<Arc<SignedJobGrant>>,
    /// Treatment of a host whose key is not known. Default: refuse it.
    pub unknown_host: UnknownHost,
    /// Number of lanes, 1 to 64. By default, the round trip time and the number of cores determine the initial number,
    /// and lanes are added while that raises the rate. An explicit number is fixed: neither the path memory nor loss
    /// changes it. A low `limit` reduces the number in either case.
    pub streams: Option<u16>,
    /// Transport, socket options and congestion control. Default: TCP, and QUIC if TCP cannot connect.
    pub reach: DialOptions,
    /// Encryption of the lanes. Default: TLS. Without encryption, names and contents are sent in clear, but are still
    /// authenticated.
    pub cipher: Cipher,
    /// Rate limit of the sender for all lanes together. Default: none. With a limit, the number of lanes stays at its
    /// initial value.
    pub limit: Option<RateLimit>,
    /// Settings for starting a receiver with ssh. Used if the location has a login.
    pub ssh: SshSettings,
    /// Kind of lanes that are dialed later. Default: more lanes of the same set.
    pub more: LaterLanes,
    /// When the path is checked for a black hole. Default: when the lanes stall.
    pub path_check: PathCheck,
}

/// Settings for starting a receiver with ssh.
#[derive(Clone, Debug)]
pub struct SshSettings {
    /// Program, never empty. Default: `ssh`, searched in `PATH`.
    pub program: String,
    /// Arguments before the host. Default: none.
    pub arguments: Vec<String>,
    /// Command that runs zmove on the host, interpreted by its shell. Default: `zmove`, or the helper if there is none.
    pub remote_zmove: Option<String>,
    /// The helper program for hosts without zmove. Default: none.
    pub helper: Option<FarHelper>,
    /// Ports on which the receiver may listen, for firewalls. Default: any free port.
    pub ports: Option<PortRange>,
    /// The path of the data. Default: the receiver's port, and ssh if the port does not answer.
    pub method: ConnectionMethod,
    /// Directory for the sockets of a session, best in memory. Default: none, which means `/tmp`.
    pub socket_directory: Option<PathBuf>,
}

/// The path of the data between this host and a receiver that ssh started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionMethod {
    /// The receiver's port, or ssh if the port does not answer.
    #[default]
    Auto,
    /// Only the receiver's port.
    Direct,
    /// Only ssh.
    Ssh,
}

impl Default for SshSettings {
    fn default() -> Self {
        Self {
            program: "ssh".into(),
            arguments: Vec::new(),
            remote_zmove: None,
            helper: None,
            ports: None,
            method: ConnectionMethod::Auto,
            socket_directory: None,
        }
    }
}

impl SshSettings {
    /// Returns the command that runs zmove on the host.
    pub(crate) fn remote_zmove(&self) -> &str {
        self.remote_zmove.as_deref().unwrap_or("zmove")
    }
}

/// The helper program for hosts without zmove.
#[derive(Clone, Debug)]
pub struct FarHelper {
    /// The program on this host. It is static.
    pub path: PathBuf,
    /// Asks before the program is sent.
    pub consent: Arc<dyn ConfirmHelper>,
}

/// The helper program, as it will be stored on a host.
#[derive(Clone, Debug)]
pub struct HelperOffer {
    /// The host.
    pub remote: String,
    /// Path of the program there.
    pub path: PathBuf,
    /// Size of the program.
    pub bytes: u64,
    /// SHA-256 of the program in hexadecimal digits.
    pub digest: String,
}

/// Asks whether the helper program may be sent to a host.
pub trait ConfirmHelper: Debug + Send + Sync {
    /// Asks the user and waits for the answer. Called on a thread that may block.
    ///
    /// # Errors
    /// The user refuses, or there is no user to ask.
    fn confirm(&self, offer: &HelperOffer) -> Result<(), BoxError>;
}

/// The kind of lanes that are dialed later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaterLanes {
    /// More lanes of the same set, as a push requests them.
    #[default]
    SameSet,
    /// A new set on each request, numbered from 0. Used for the rounds of a probe.
    NewSet,
}

/// When to check a path for a black hole, in which full-size packets vanish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathCheck {
    /// When the lanes stall. A black hole ends the session, and the next one uses small segments.
    #[default]
    OnStall,
    /// When the lanes stall, and also before the session, which takes a few round trips. Used if no other session will
    /// follow.
    First,
}

/// The treatment of a host whose key is neither known nor certified by an authority.
#[derive(Clone, Debug, Default)]
pub enum UnknownHost {
    /// Refuse the host.
    #[default]
    Refuse,
    /// Pin the host's key once the host has proved that it owns the key.
    Pin,
    /// Ask the user, and pin the key if the user accepts it.
    Ask(Arc<dyn Confirm>),
}

/// Asks whether a key belongs to a host.
pub trait Confirm: Debug + Send + Sync {
    /// Asks the user and waits for the answer. Called on a thread that may block.
    ///
    /// # Errors
    /// The user refuses the key, or there is no user to ask.
    fn confirm(&self, remote: &Remote, key: Fingerprint) -> Result<(), BoxError>;
}

/// A range of ports that a firewall allows, including both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u16, u16)", into = "(u16, u16)")]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Returns the ports of the range.
    #[must_use]
    pub fn ports(self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl TryFrom<(u16, u16)> for PortRange {
    type Error = String;

    fn try_from((first, last): (u16, u16)) -> Result<Self, String> {
        if first == 0 || last < first {
            return Err(format!(
                "{first}-{last} is not a port range: write FROM-TO, for example 50000-50100"
            ));
        }
        Ok(Self { first, last })
    }
}

impl From<PortRange> for (u16, u16) {
    fn from(range: PortRange) -> Self {
        (range.first, range.last)
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) => (first, last).try_into(),
            _ => Err(format!(
                "'{text}' is not a port range: write FROM-TO, for example 50000-50100"
            )),
        }
    }
}

/// Time limit for establishing a connection.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_nonsense_is_not() {
        let ports = |text: &str| text.parse::<PortRange>().map(|range| range.ports().count());
        assert_eq!((ports("50000-50100"), ports("7")), (Ok(101), Ok(1)));
        for text in ["", "-", "0-7", "9-8", "1-70000", "a-b", "1-2-3"] {
            assert!(ports(text).is_err(), "{text}");
        }
    }
}
