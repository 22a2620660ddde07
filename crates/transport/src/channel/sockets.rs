//! The sockets of a listener. They are separate from its key, because another process may bind them, or this process
//! may bind them before it drops its privileges.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use zmove_wire::TransportChoice;

use crate::error::BindError;
use crate::quic;
use crate::tcp_tls::{self, SocketConfig};

/// Bound sockets.
#[derive(Debug, Default)]
pub struct Inherited {
    /// A listening TCP socket.
    pub tcp: Option<TcpListener>,
    /// A UDP socket for QUIC.
    pub udp: Option<UdpSocket>,
}

impl Inherited {
    /// Binds sockets for the transports in `choice` to `address`, both on the same port. Port 0 selects a free port. A
    /// process with root privileges gets large UDP buffers.
    ///
    /// # Errors
    /// Returns an error if the address cannot be used, or if the socket cannot be configured.
    pub fn bind(
        address: SocketAddr,
        choice: TransportChoice,
        socket: &SocketConfig,
    ) -> Result<Self, BindError> {
        let mut tries_left = if address.port() == 0 {
            PORTS_TRIED_MAX
        } else {
            1
        };
        loop {
            tries_left -= 1;
            let tcp = match choice {
                TransportChoice::Quic => None,
                _ => Some(tcp_tls::listen(address, socket)?),
            };
            if choice == TransportChoice::Tcp {
                return Ok(Self { tcp, udp: None });
            }
            let failed = |source: io::Error| BindError::Listen { address, source };
            let shared = tcp
                .as_ref()
                .map_or(Ok(address), TcpListener::local_addr)
                .map_err(failed)?;
            match quic::bind(shared) {
                Ok(udp) => {
                    return Ok(Self {
                        tcp,
                        udp: Some(udp),
                    });
                }
                // The port that was chosen for TCP is not free for UDP, so another port is tried.
                Err(_) if tries_left > 0 => {}
                Err(source) => {
                    return Err(BindError::Listen {
                        address: shared,
                        source,
                    });
                }
            }
        }
    }
}

/// Number of ports to try if the port is not given.
const PORTS_TRIED_MAX: u32 = 16;
