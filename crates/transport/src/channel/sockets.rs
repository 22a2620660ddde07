//! The sockets of a listener, without its key: they may be bound by another process, or with more rights than their
//! later use has.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use zmove_wire::TransportChoice;

use crate::error::BindError;
use crate::quic;
use crate::tcp_tls::{self, SocketConfig};

/// Sockets that are bound.
#[derive(Debug, Default)]
pub struct Inherited {
    /// A listening TCP socket.
    pub tcp: Option<TcpListener>,
    /// A UDP socket for QUIC.
    pub udp: Option<UdpSocket>,
}

impl Inherited {
    /// Binds sockets for the transports of `choice` to `address`, both at the same port; port 0 stands for any free
    /// one. With the rights of root the buffers of UDP are large.
    ///
    /// # Errors
    /// The address cannot be used, or the socket cannot be set up as configured.
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
                // The port that TCP was given is not free for UDP.
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

/// The number of ports that are tried where any will do.
const PORTS_TRIED_MAX: u32 = 16;
