//! The errors of key files and connections, one enum per operation.
//!
//! Variants are sorted by cause: a misbehaving peer, an incompatible peer, a local problem, an unreachable peer. Each
//! message completes the sentence "failed to …" and states the remedy. **Invariant:** an error is `retryable` if and
//! only if a later attempt may succeed with the same settings.

use std::{fmt, io, net::SocketAddr, time::Duration};

use zmove_wire::GreetingError;

use crate::endpoint::Endpoint;
use crate::trust::{CertificateFault, Fingerprint};

mod trust;

pub use trust::{
    AuthorityError, AuthorizedKeysError, IdentityError, KeyFileError, KnownHostsError,
};

/// The reason why a socket cannot be configured. Always a local problem.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The kernel rejects the requested congestion control.
    #[error(
        "use congestion control '{algorithm}' ('sysctl net.ipv4.tcp_allowed_congestion_control' lists the names)"
    )]
    Congestion {
        /// The requested name.
        algorithm: String,
        /// The system's error.
        source: io::Error,
    },
    /// The socket cannot be created, or rejects an option that every kernel supports.
    #[error("set up a socket")]
    Setup(#[from] io::Error),
}

/// The reason why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address is in use, does not belong to this host, or is reserved.
    #[error("listen on {address}")]
    Listen {
        /// The address to listen on.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The socket cannot be configured.
    #[error("listen on {address}")]
    Socket {
        /// The address to listen on.
        address: SocketAddr,
        /// The configuration error.
        source: SocketError,
    },
    /// An inherited socket cannot be used.
    #[error("listen on the inherited sockets")]
    Inherited(#[source] io::Error),
}

/// The stage that a connection attempt has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialStage {
    /// Waiting for the TCP connection.
    Connecting,
    /// Waiting for the TLS handshake.
    Handshaking,
}

impl DialStage {
    /// Returns a question that helps the user to find the cause of a timeout.
    const fn hint(self) -> &'static str {
        match self {
            Self::Connecting => "does a firewall drop this port?",
            Self::Handshaking => "does a firewall drop this port, or does the receiver hang?",
        }
    }
}

impl fmt::Display for DialStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "no connection",
            Self::Handshaking => "no answer",
        })
    }
}

/// The reason why a client could not connect to a host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    // Misbehaving peers, or attacks.
    /// The host presents a key that differs from its pinned key.
    #[error(
        "verify the key of {host}: it shows {found}, but {expected} is pinned; somebody may be intercepting the \
         connection, or the host has a new key: ask its administrator, then remove the old key from known_hosts with \
         'zmove trust remove {host}'"
    )]
    HostKeyChanged {
        /// The host that was dialed.
        host: Endpoint,
        /// The pinned key.
        expected: Fingerprint,
        /// The key that the host presented.
        found: Fingerprint,
    },
    /// The host presents a key but cannot sign with the private key that belongs to it.
    #[error(
        "verify the key of {host}: it cannot prove that it holds the key it shows; somebody may be intercepting the \
         connection: ask its administrator"
    )]
    HostKeyUnproven {
        /// The host that was dialed.
        host: Endpoint,
    },
    /// The host's certificate should have been issued by the site's authority, but it is not valid.
    #[error("verify {host}: {fault}")]
    HostCertificate {
        /// The host that was dialed.
        host: Endpoint,
        /// The reason why the certificate is not valid.
        fault: CertificateFault,
    },
    /// The TLS handshake failed for another reason.
    #[error("complete the TLS handshake with {host}")]
    Handshake {
        /// The host that was dialed.
        host: Endpoint,
        /// The error of the TLS library.
        source: rustls::Error,
    },

    // Incompatible peers.
    /// The server does not speak TLS. It may be an ssh or web server.
    #[error(
        "connect to {host}: the program there is not zmove (it does not speak TLS); is the port right?"
    )]
    NotTls {
        /// The host that was dialed.
        host: Endpoint,
    },
    /// The server speaks TLS, but not this protocol or not TLS 1.3.
    #[error(
        "connect to {host}: the program there is not zmove (it speaks TLS, but not the zmove protocol); is the port \
         right?"
    )]
    NotZmove {
        /// The host that was dialed.
        host: Endpoint,
    },
    /// The server speaks another version of the zmove protocol.
    #[error("connect to {host}: {fault}")]
    OtherVersion {
        /// The host that was dialed.
        host: Endpoint,
        /// The error, which contains the versions.
        fault: GreetingError,
    },

    // Local settings and decisions.
    /// The host's key is unknown, and unknown hosts must be refused.
    #[error(
        "verify the key of {host}: {fingerprint} is not in known_hosts; compare it with the key that 'zmove serve' \
         printed there, then run 'zmove trust {host}'"
    )]
    UnknownHost {
        /// The host that was dialed.
        host: Endpoint,
        /// The key that the host presented. The host has not yet proved that it holds this key.
        fingerprint: Fingerprint,
    },
    /// The socket cannot be configured.
    #[error("connect to {host}")]
    Socket {
        /// The host that was dialed.
        host: Endpoint,
        /// The configuration error.
        source: SocketError,
    },
    /// The name has no address.
    #[error("find the address of '{host}' (is the name right?)")]
    Resolve {
        /// The name that was looked up.
        host: String,
        /// The error of the resolver.
        source: io::Error,
    },

    // Unreachable peers.
    /// No process listens on the port.
    #[error(
        "connect to {}: refused; is the port right, and is 'zmove serve' running there?",
        format_target(host, address)
    )]
    Refused {
        /// The host that was dialed.
        host: Endpoint,
        /// The address that refused the connection.
        address: SocketAddr,
    },
    /// No TCP connection could be established.
    #[error(
        "connect to {}; is the host up, and does a firewall let this port through?",
        format_target(host, address)
    )]
    Connect {
        /// The host that was dialed.
        host: Endpoint,
        /// The address that was tried.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The connection ended during the handshake.
    #[error("connect to {host}: it closed the connection; it may be full or restarting")]
    Closed {
        /// The host that was dialed.
        host: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// ssh accepted the connection and closed it before the host answered.
    #[error(
        "connect to {host} through ssh: the ssh server there does not forward connections to this port (its \
         administrator can permit them with 'AllowTcpForwarding local' and 'PermitOpen any' in sshd_config, if the \
         key's line in authorized_keys does not forbid them)"
    )]
    NotForwarded {
        /// The host that was dialed.
        host: Endpoint,
    },
    /// Neither TCP nor QUIC could establish a connection.
    #[error(
        "connect to {host}: by TCP it failed to {}; by QUIC it failed to {}",
        with_causes(tcp),
        with_causes(quic)
    )]
    Neither {
        /// The host that was dialed.
        host: Endpoint,
        /// The error of TCP.
        tcp: Box<Self>,
        /// The error of QUIC.
        quic: Box<Self>,
    },
    /// The deadline passed.
    #[error("connect to {host}: {stage} within {} s ({})", waited.as_secs_f64(), stage.hint())]
    TimedOut {
        /// The host that was dialed.
        host: Endpoint,
        /// The stage that the attempt had reached.
        stage: DialStage,
        /// The time limit.
        waited: Duration,
    },
}

impl DialError {
    /// Returns whether another attempt may succeed with the same settings.
    #[must_use]
    pub const fn retryable(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. }
                | Self::Connect { .. }
                | Self::Closed { .. }
                | Self::TimedOut { .. }
                | Self::Neither { .. }
        )
    }

    /// Returns whether another server responds instead of the host: a captive portal, the gateway of a previous
    /// network, or an attacker. These cases cannot be distinguished. Such a server receives no data.
    #[must_use]
    pub const fn is_other_server(&self) -> bool {
        matches!(
            self,
            Self::HostKeyChanged { .. }
                | Self::HostKeyUnproven { .. }
                | Self::HostCertificate { .. }
                | Self::Handshake { .. }
                | Self::NotTls { .. }
                | Self::NotZmove { .. }
        )
    }

    /// Returns the more informative of the errors of two addresses. A response from a host, even a refusal, is more
    /// informative than no response.
    pub(crate) fn or_more_informative(self, earlier: Option<Self>) -> Self {
        match earlier {
            Some(
                Self::Socket { .. }
                | Self::Connect { .. }
                | Self::Closed { .. }
                | Self::TimedOut { .. },
            )
            | None => self,
            Some(earlier) => earlier,
        }
    }
}

/// Returns the host as the user typed it, followed by the address that was tried if it is different.
fn format_target(host: &Endpoint, address: &SocketAddr) -> String {
    let given = host.to_string();
    let address = address.to_string();
    if given == address {
        given
    } else {
        format!("{given} at {address}")
    }
}

/// Returns the text of an error and all its causes.
fn with_causes(error: &DialError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The reason why a daemon drops an incoming connection. The daemon itself is not at fault and continues to run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    // Misbehaving peers.
    /// The client presents a key but cannot prove that it holds the private key.
    #[error("accept a client: it cannot prove that it holds the key it shows")]
    ClientKeyUnproven,
    /// The client presents no key.
    #[error("accept a client: it shows no key")]
    NoClientKey,
    /// The TLS handshake failed for another reason.
    #[error("complete the TLS handshake with a client")]
    Handshake(#[source] rustls::Error),

    // Incompatible peers.
    /// The client does not speak TLS.
    #[error("accept a client: it does not speak TLS")]
    NotTls(#[source] rustls::Error),
    /// The client speaks TLS, but not this protocol or not TLS 1.3.
    #[error("accept a client: it speaks TLS without the zmove protocol")]
    NotZmove,
    /// The client speaks another version of the zmove protocol.
    #[error("accept a client: it is a zmove that speaks another version of the protocol")]
    OtherVersion,
    /// The QUIC handshake failed.
    #[error("complete the QUIC handshake with a client")]
    Quic(#[source] io::Error),
    /// The client does not trust this daemon's key.
    #[error("accept a client: it does not trust this host's key")]
    HostKeyRefused,

    /// The client closed a connection that it did not need, or that it used only to check the path.
    #[error("accept a client: it closed the connection without a request")]
    Unused,

    // Unreachable peers.
    /// The connection ended during the handshake.
    #[error("accept a client: it closed the connection")]
    Closed(#[source] io::Error),
    /// The client disconnected before the handshake began.
    #[error("accept a connection: the client has closed it already")]
    Gone(#[source] io::Error),
    /// The deadline passed.
    #[error("accept a client: no handshake within {waited:?}")]
    TimedOut {
        /// The time limit.
        waited: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_once() {
        let refused = |host: &str, address: &str| {
            DialError::Refused {
                host: Endpoint::new(host, 7000),
                address: address.parse().unwrap(),
            }
            .to_string()
        };
        assert!(
            refused("10.0.0.2", "10.0.0.2:7000").starts_with("connect to 10.0.0.2:7000: refused")
        );
        assert!(
            refused("2001:db8::1", "[2001:db8::1]:7000")
                .starts_with("connect to [2001:db8::1]:7000: refused")
        );
        assert!(
            refused("dtn", "10.0.0.2:7000")
                .starts_with("connect to dtn:7000 at 10.0.0.2:7000: refused")
        );
    }
}
