//! A host and a port, as entered by users, displayed, and stored in known_hosts.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The address on which a daemon listens: a host name or an IP address, and a port. An IPv6 address has no brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The host name or address.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Endpoint {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// Returns the canonical form, which is used for comparisons: the host in lower case, or the IP address in its
    /// standard notation. Returns `None` if the host could not be parsed again from a line of known_hosts.
    pub(crate) fn canonical(host: &str, port: u16) -> Option<Self> {
        let legal =
            |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '[' | ']' | '#' | '/');
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Self {
                host: address.to_canonical().to_string(),
                port,
            });
        }
        let scoped = host
            .split_once('%')
            .is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
        let plain = !host.is_empty() && host.chars().all(legal) && (scoped || !host.contains(':'));
        plain.then(|| Self {
            host: host.to_ascii_lowercase(),
            port,
        })
    }

    /// Parses a displayed endpoint into its canonical form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = match host.strip_prefix('[') {
            Some(bracketed) => bracketed.strip_suffix(']')?,
            None if host.contains(':') => return None,
            None => host,
        };
        let all_digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| all_digits)?;
        Self::canonical(host, port)
    }
}

/// Formats `HOST:PORT`, with an IPv6 address in brackets.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

/// Returns the unspecified address with port 0, in the address family of `peer`.
pub(crate) fn unspecified(peer: SocketAddr) -> SocketAddr {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    (any, 0).into()
}
