//! The errors of keeping keys and making connections, one enum per operation.
//!
//! Variants are sorted by fault: the peer misbehaves, the peer is incompatible, something local, the peer is out of
//! reach. Messages are fragments that fit "failed to …" and advise the user. **Invariant:** an error that a later
//! attempt may cure, and only such a one, is `retryable`.

use std::{fmt, io, net::SocketAddr, time::Duration};

use zmove_wire::GreetingError;

use crate::endpoint::Endpoint;
use crate::trust::{CertificateFault, Fingerprint};

mod trust;

pub use trust::{
    AuthorityError, AuthorizedKeysError, IdentityError, KeyFileError, KnownHostsError,
};

/// Why a socket cannot be set up as configured. Always local.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The kernel refuses the congestion control that was asked for.
    #[error("use congestion control {algorithm:?}; see net.ipv4.tcp_allowed_congestion_control")]
    Congestion {
        /// The name that was asked for.
        algorithm: String,
        /// The system's error.
        source: io::Error,
    },
    /// The socket cannot be made, or refuses an option that every kernel has.
    #[error("set up a socket")]
    Setup(#[from] io::Error),
}

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address is taken, not of this host, or reserved.
    #[error("listen on {address}")]
    Listen {
        /// The address to listen on.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The socket cannot be set up.
    #[error("listen on {address}")]
    Socket {
        /// The address to listen on.
        address: SocketAddr,
        /// The error of setting it up.
        source: SocketError,
    },
    /// A socket that was handed over cannot be used.
    #[error("listen on the sockets that were handed over")]
    Inherited(#[source] io::Error),
}

/// The stage that a connection had reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialStage {
    /// Waiting for the TCP connection.
    Connecting,
    /// Waiting for the TLS handshake.
    Handshaking,
}

impl fmt::Display for DialStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connecting => "no connection (does a firewall drop this port?)",
            Self::Handshaking => {
                "no answer (does a firewall drop this port, or does the receiver hang?)"
            }
        })
    }
}

/// Why a client could not connect to a host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    // The peer misbehaves, or somebody is in between.
    /// The host shows another key than the one pinned for it.
    #[error(
        "trust {host}: it shows the key {found} where {expected} is pinned; somebody may be intercepting, or the host \
         has a new key: ask its administrator, then take the old one out of known_hosts with `zmove trust remove {host}`"
    )]
    HostKeyChanged {
        /// The host that was dialled.
        host: Endpoint,
        /// The pinned key.
        expected: Fingerprint,
        /// The key that it shows.
        found: Fingerprint,
    },
    /// The host shows a key without being able to sign with it.
    #[error(
        "trust {host}: it cannot prove that it holds the key it shows; somebody may be intercepting"
    )]
    HostKeyUnproven {
        /// The host that was dialled.
        host: Endpoint,
    },
    /// The site's authority does not vouch for the host's certificate, which should be one of its own.
    #[error("trust {host}: {fault}")]
    HostCertificate {
        /// The host that was dialled.
        host: Endpoint,
        /// What is wrong with the certificate.
        fault: CertificateFault,
    },
    /// The TLS handshake failed in another way.
    #[error("agree on a TLS connection with {host}")]
    Handshake {
        /// The host that was dialled.
        host: Endpoint,
        /// The error of the TLS library.
        source: rustls::Error,
    },

    // The peer is incompatible.
    /// What answers is not TLS, for example an ssh or web server.
    #[error(
        "talk to {host}: what answers there is not zmove (it does not speak TLS); is the port right?"
    )]
    NotTls {
        /// The host that was dialled.
        host: Endpoint,
    },
    /// What answers speaks TLS, but not this protocol or not TLS 1.3.
    #[error(
        "talk to {host}: what answers there is not zmove (TLS without its protocol); is the port right?"
    )]
    NotZmove {
        /// The host that was dialled.
        host: Endpoint,
    },
    /// What answers is a zmove that speaks another version of the protocol.
    #[error("talk to {host}: {fault}")]
    OtherVersion {
        /// The host that was dialled.
        host: Endpoint,
        /// The error, which names both versions.
        fault: GreetingError,
    },

    // Local: settings and decisions of this side.
    /// The host's key is not known yet, and unknown hosts are to be refused.
    #[error(
        "trust {host}: its key {fingerprint} is not in known_hosts; compare it with what `zmove serve` printed there"
    )]
    UnknownHost {
        /// The host that was dialled.
        host: Endpoint,
        /// The key that it shows; not yet proved to be its own.
        fingerprint: Fingerprint,
    },
    /// The socket cannot be set up as configured.
    #[error("connect to {host}")]
    Socket {
        /// The host that was dialled.
        host: Endpoint,
        /// The error of setting it up.
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

    // Out of reach.
    /// Nobody listens at the port.
    #[error(
        "connect to {}: refused; is `zmove serve` running there?",
        tried(host, address)
    )]
    Refused {
        /// The host that was dialled.
        host: Endpoint,
        /// The address that refused.
        address: SocketAddr,
    },
    /// No TCP connection could be made.
    #[error(
        "connect to {}; is the host up, and does a firewall let this port through?",
        tried(host, address)
    )]
    Connect {
        /// The host that was dialled.
        host: Endpoint,
        /// The address that was tried.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The connection ended during the handshake.
    #[error("connect to {host}: it closed the connection; it may be full or restarting")]
    Closed {
        /// The host that was dialled.
        host: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// No connection could be made, neither by TCP nor by QUIC.
    #[error(
        "connect to {host}: by TCP it failed to {}; by QUIC it failed to {}",
        whole(tcp),
        whole(quic)
    )]
    Neither {
        /// The host that was dialled.
        host: Endpoint,
        /// The error of TCP.
        tcp: Box<Self>,
        /// The error of QUIC.
        quic: Box<Self>,
    },
    /// The deadline passed.
    #[error("connect to {host}: {stage} within {} s", waited.as_secs_f64())]
    TimedOut {
        /// The host that was dialled.
        host: Endpoint,
        /// The stage that the connection had reached.
        stage: DialStage,
        /// The time that was allowed.
        waited: Duration,
    },
}

impl DialError {
    /// Whether dialling again may succeed without a change of settings.
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

    /// Whether something answers that is not the host: a captive portal, the gateway of a network that was left, or
    /// somebody who intercepts. Which of these it is cannot be told, and none of them gets any data.
    #[must_use]
    pub const fn is_of_another(&self) -> bool {
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

    /// The failure of two addresses' that is more informative: a host's answer, even a refusal, before silence.
    pub(crate) fn or_more_telling(self, earlier: Option<Self>) -> Self {
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

/// A host as it was given, with the address that was tried where that is another text.
fn tried(host: &Endpoint, address: &SocketAddr) -> String {
    let given = host.to_string();
    let address = address.to_string();
    if given == address {
        given
    } else {
        format!("{given} at {address}")
    }
}

/// The text of an error with all its causes.
fn whole(error: &DialError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Why a daemon drops an incoming connection. None of these is the daemon's fault or ends it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    // The peer misbehaves.
    /// The client shows a key without being able to sign with it.
    #[error("accept a client: it cannot prove that it holds the key it shows")]
    ClientKeyUnproven,
    /// The client shows no key.
    #[error("accept a client: it shows no key")]
    NoClientKey,
    /// The TLS handshake failed in another way.
    #[error("agree on a TLS connection with a client")]
    Handshake(#[source] rustls::Error),

    // The peer is incompatible.
    /// The client does not speak TLS.
    #[error("accept a client: it does not speak TLS")]
    NotTls(#[source] rustls::Error),
    /// The client speaks TLS, but not this protocol or not TLS 1.3.
    #[error("accept a client: it speaks TLS without the zmove protocol")]
    NotZmove,
    /// The client is a zmove that speaks another version of the protocol.
    #[error("accept a client: it is a zmove that speaks another version of the protocol")]
    OtherVersion,
    /// The QUIC handshake failed.
    #[error("agree on a QUIC connection with a client")]
    Quic(#[source] io::Error),
    /// The client refuses this daemon's key.
    #[error("accept a client: it does not trust this host's key")]
    HostKeyRefused,

    /// The client has ended a connection that it turned out not to need, or has checked the path.
    #[error("accept a client: it has nothing to say")]
    Unused,

    // Out of reach.
    /// The connection ended during the handshake.
    #[error("accept a client: it closed the connection")]
    Closed(#[source] io::Error),
    /// The client was gone before the handshake began.
    #[error("accept a connection: it is gone already")]
    Gone(#[source] io::Error),
    /// The deadline passed.
    #[error("accept a client within {waited:?}")]
    TimedOut {
        /// The time that was allowed.
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
