//! The settings by which a receiver is reached.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zmove_transport::{Fingerprint, Identity, Reach};
use zmove_types::RateLimit;
use zmove_wire::{Cipher, SignedJobGrant};

use crate::connecting::location::Remote;
use crate::error::BoxError;

/// The settings by which a receiver is reached.
#[derive(Clone, Debug, Default)]
pub struct DialSettings {
    /// The only key that the host may have. Default: the one that is pinned in the home directory.
    pub key: Option<Fingerprint>,
    /// The key of this side. Default: the one in the home directory.
    pub identity: Option<Identity>,
    /// The grant of a job of many nodes, which this side shows. Default: none, so that its own key has to be let in.
    pub job_grant: Option<Arc<SignedJobGrant>>,
    /// The answer to a host whose key is not known. Default: it is refused.
    pub unknown_host: UnknownHost,
    /// The number of lanes, 1 to 64. Default: by round trip and cores, then as many as help. A number that is set is
    /// kept: neither what is remembered of the path nor its losses change it. With a low `limit` there are fewer.
    pub streams: Option<u16>,
    /// Transport, socket options and congestion control. Default: TCP, and QUIC where TCP cannot be connected.
    pub reach: Reach,
    /// Encryption of the lanes. Default: TLS. Without it names and contents go in clear, still authenticated.
    pub cipher: Cipher,
    /// The rate that the sender will keep, over all lanes together. Default: none. The number of lanes then stays as
    /// it was at first.
    pub limit: Option<RateLimit>,
    /// The settings by which ssh starts a receiver, where the location has a login.
    pub ssh: SshSettings,
    /// The kind of lanes that are dialled later. Default: more of the same.
    pub more: MoreLanes,
    /// When the path is checked for a black hole. Default: when the lanes stand still.
    pub path_check: PathCheck,
}

/// The settings by which ssh starts a receiver.
#[derive(Clone, Debug)]
pub struct SshSettings {
    /// The program, never empty. Default: `ssh`, found by `PATH`.
    pub program: String,
    /// The words before those that name the host. Default: none.
    pub arguments: Vec<String>,
    /// The zmove to start on that host, as its shell understands it. Default: `zmove`.
    pub remote_zmove: String,
    /// The ports at which that receiver may listen, for firewalls. Default: any free port.
    pub ports: Option<PortRange>,
}

impl Default for SshSettings {
    fn default() -> Self {
        Self {
            program: "ssh".into(),
            arguments: Vec::new(),
            remote_zmove: "zmove".into(),
            ports: None,
        }
    }
}

/// The kind of lanes that are asked for later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MoreLanes {
    /// More of the same, as a push wants them.
    #[default]
    Others,
    /// A new set each time, numbered from the first lane on: the rounds of a probe.
    Sets,
}

/// When a path is checked for a black hole, in which full-size packets vanish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathCheck {
    /// When the lanes stand still. A black hole ends the session, and the next one has small segments.
    #[default]
    WhenStill,
    /// Before the session too, which takes a few round trips: no other session follows this one.
    First,
}

/// The treatment of a host whose key is not known, and for which no authority vouches.
#[derive(Clone, Debug, Default)]
pub enum UnknownHost {
    /// The host is refused.
    #[default]
    Refuse,
    /// The host's key is remembered once the host has proved it.
    Pin,
    /// Somebody is asked, and the key is remembered after a yes.
    Ask(Arc<dyn Confirm>),
}

/// A way to ask somebody whether a key is that of a host.
pub trait Confirm: Debug + Send + Sync {
    /// Waits for the answer, on a thread that may block.
    ///
    /// # Errors
    /// The answer is no, or there is nobody to give one.
    fn confirm(&self, remote: &Remote, key: Fingerprint) -> Result<(), BoxError>;
}

/// A range of ports that a firewall lets through: from one to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u16, u16)", into = "(u16, u16)")]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// The ports of the range, one after the other.
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
                "{first}-{last} are no ports: write FROM-TO, as 50000-50100"
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
                "'{text}' are no ports: write FROM-TO, as 50000-50100"
            )),
        }
    }
}

/// How long a connection may take to be ready.
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
