//! Socket options, which are the same on both sides.
//!
//! `TCP_NODELAY` is on, and keepalive detects peers that are gone. **Invariant:** `SO_RCVBUF` and `SO_SNDBUF` are never
//! set. Setting them would turn off the kernel's autotuning, which can use larger windows than a user may set.

use std::{net::SocketAddr, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpSocket;

use super::SegmentLimit;
use crate::error::SocketError;

/// Idle time before keepalive probes begin, and the interval between probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Number of unanswered keepalive probes after which the peer is considered gone.
const KEEPALIVE_PROBES: u32 = 5;

/// The settings of sockets.
#[derive(Clone, Debug, Default)]
pub struct SocketConfig {
    /// The congestion control, by its kernel name, such as `bbr`. Default: the system's default. Opening a socket fails
    /// if the kernel does not know the name or does not let users choose this congestion control.
    pub congestion: Option<String>,
    /// Maximum segment size of dialed connections, in both directions. Default: no limit other than the MTUs of both
    /// hosts. A dialer sets the limit when it finds that full-size packets are lost on the path. Clones of the settings
    /// share the limit.
    pub segment_limit: SegmentLimit,
}

impl SocketConfig {
    /// Opens a socket for `address` with all options set.
    pub(super) fn open(&self, address: SocketAddr) -> Result<TcpSocket, SocketError> {
        let socket = if address.is_ipv6() {
            TcpSocket::new_v6()
        } else {
            TcpSocket::new_v4()
        }?;
        let options = SockRef::from(&socket);
        self.apply(&options)?;
        // The SYN announces the limit to the peer, so that both directions are limited.
        if let Some(bytes) = self.segment_limit.get() {
            options.set_tcp_mss(bytes)?;
        }
        Ok(socket)
    }

    /// Sets the options that a listener also needs. Accepted connections inherit them.
    pub(super) fn apply(&self, options: &SockRef<'_>) -> Result<(), SocketError> {
        options.set_tcp_nodelay(true)?;
        options.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(KEEPALIVE)
                .with_interval(KEEPALIVE)
                .with_retries(KEEPALIVE_PROBES),
        )?;
        if let Some(algorithm) = &self.congestion {
            options
                .set_tcp_congestion(algorithm.as_bytes())
                .map_err(|source| SocketError::Congestion {
                    algorithm: algorithm.clone(),
                    source,
                })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any_address() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[tokio::test]
    async fn known_congestion_control_is_used() {
        let config = SocketConfig {
            congestion: Some("reno".into()),
            ..SocketConfig::default()
        };
        let socket = config.open(any_address()).unwrap();
        let used = SockRef::from(&socket).tcp_congestion().unwrap();
        assert!(used.starts_with(b"reno"), "{used:?}");
    }

    #[tokio::test]
    async fn limited_segments_are_small_in_both_directions() {
        let listener = tokio::net::TcpListener::bind(any_address()).await.unwrap();
        let config = SocketConfig {
            segment_limit: SegmentLimit::of(1_220),
            ..SocketConfig::default()
        };
        let address = listener.local_addr().unwrap();
        let near = config
            .open(address)
            .unwrap()
            .connect(address)
            .await
            .unwrap();
        let (far, _) = listener.accept().await.unwrap();
        for socket in [near, far] {
            let bytes = zmove_sockopt::tcp_info(&socket).unwrap().segment_bytes;
            assert!(bytes.is_some_and(|bytes| bytes <= 1_220), "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn unknown_congestion_control_is_an_error() {
        let config = SocketConfig {
            congestion: Some("no-such".into()),
            ..SocketConfig::default()
        };
        let error = config.open(any_address()).unwrap_err();
        assert!(
            matches!(&error, SocketError::Congestion { algorithm, .. } if algorithm == "no-such")
        );
    }
}
