//! Remembers hosts whose receivers do not answer on their own ports, so that the next session uses ssh immediately.
//!
//! Each line of the file `closed-ports`, in the directory of the keys, contains one login, `HOST:PORT`. The entry is
//! valid for a day, and only in the network in which it was made: this host's address towards the receiver is compared.
//! The file is only advice, like the [path memory](super::path_memory).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use serde::{Deserialize, Serialize};
use tokio::net::{UdpSocket, lookup_host};
use zmove_disk::{CacheFile, CacheValue};
use zmove_types::unix_now;

use super::location::{Login, Remote};
use crate::notice::{Listener, Notice};

/// The memory of one login from the current network.
pub(super) struct ClosedPortMemory {
    ports: CacheFile<ClosedPort>,
    login: String,
    /// This host's address towards the receiver, or `None` if there is no route.
    here: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ClosedPort {
    /// This host's address towards the receiver.
    here: IpAddr,
    /// Time at which the port did not answer, in seconds since 1970.
    at: u64,
}

impl CacheValue for ClosedPort {
    fn is_plausible(&self) -> bool {
        true
    }
}

impl ClosedPort {
    /// Returns whether the entry is still valid. An entry from the future is not: the clock was set back.
    fn is_recent(self, now: u64) -> bool {
        now.checked_sub(self.at).is_some_and(|age| age <= AGE_MAX)
    }
}

impl ClosedPortMemory {
    /// Opens the memory in the directory `home`. `receiver` is the host name or address of the receiver's port.
    pub(super) async fn open(home: &Path, remote: &Remote, login: &Login, receiver: &str) -> Self {
        let host = remote.host.to_ascii_lowercase();
        Self {
            ports: CacheFile::new(home.join(FILE), HEADER, PORTS_MAX),
            login: format!("{host}:{}", login.port.unwrap_or(SSH_PORT)),
            here: source_address(receiver).await,
        }
    }

    /// Returns whether the port did not answer recently, from the current network.
    pub(super) fn is_closed(&self, listener: &dyn Listener) -> bool {
        let known = self.ports.get(&self.login).unwrap_or_else(|source| {
            let file = self.ports.file();
            listener.hear(&Notice::PathsUnread { file, source });
            None
        });
        known.is_some_and(|known| {
            Some(known.here) == self.here && known.is_recent(unix_now().as_secs())
        })
    }

    /// Stores whether the port has answered now.
    pub(super) fn keep(&self, is_closed: bool, listener: &dyn Listener) {
        let at = unix_now().as_secs();
        let port = self
            .here
            .filter(|_| is_closed)
            .map(|here| ClosedPort { here, at });
        if let Err(source) = self.ports.put(&self.login, port) {
            let file = self.ports.file();
            listener.hear(&Notice::PathsUnwritten { file, source });
        }
    }
}

/// Returns this host's address towards another host. Sends nothing.
async fn source_address(host: &str) -> Option<IpAddr> {
    let there = lookup_host((host, SSH_PORT)).await.ok()?.next()?;
    let any = match there.ip() {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0)).await.ok()?;
    socket.connect(there).await.ok()?;
    Some(socket.local_addr().ok()?.ip())
}

const FILE: &str = "closed-ports";
const HEADER: &str = "# zmove closed ports 1";
/// Maximum number of logins in the file.
const PORTS_MAX: usize = 256;
/// Maximum age of an entry, in seconds: one day.
const AGE_MAX: u64 = 24 * 60 * 60;
const SSH_PORT: u16 = 22;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::NoListener;

    #[tokio::test]
    async fn a_closed_port_is_remembered_for_a_day_in_its_network() {
        let home = tempfile::tempdir().unwrap();
        let remote = Remote::parse_endpoint("dtn:1").unwrap();
        let login = Login::default();
        let memory = ClosedPortMemory::open(home.path(), &remote, &login, "127.0.0.1").await;
        assert_eq!(memory.here, Some(Ipv4Addr::LOCALHOST.into()));
        assert!(!memory.is_closed(&NoListener));
        memory.keep(true, &NoListener);
        assert!(memory.is_closed(&NoListener));
        let elsewhere = ClosedPortMemory {
            here: Some([192, 0, 2, 7].into()),
            ..ClosedPortMemory::open(home.path(), &remote, &login, "127.0.0.1").await
        };
        assert!(!elsewhere.is_closed(&NoListener));
        memory.keep(false, &NoListener);
        assert!(!memory.is_closed(&NoListener));
    }

    #[test]
    fn old_and_future_entries_are_not_used() {
        let now = 2 * AGE_MAX;
        let made = |at| ClosedPort {
            here: Ipv4Addr::LOCALHOST.into(),
            at,
        };
        assert!(made(now - AGE_MAX).is_recent(now) && made(now).is_recent(now));
        assert!(!made(now - AGE_MAX - 1).is_recent(now) && !made(now + 1).is_recent(now));
    }
}
