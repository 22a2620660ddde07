//! Ports on which no process listens.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// Returns an address of this host on which no process listens and that no other caller gets. The port is outside the
/// ephemeral range of the kernel.
pub(crate) fn free_address() -> SocketAddr {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    // Concurrent test processes begin at different ports.
    let first = std::process::id() * 97;
    loop {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        assert!(tried < PORTS, "no port is free");
        let number = (first + u32::from(tried)) % u32::from(PORTS);
        let port = FIRST_PORT + u16::try_from(number).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if is_free(address) {
            return address;
        }
    }
}

/// Binds without listening. A process that another case starts concurrently inherits the socket until it runs its
/// program, and a socket that does not listen does no harm.
fn is_free(address: SocketAddr) -> bool {
    let (inet, stream) = (AddressFamily::INET, SocketType::STREAM);
    let socket = socket_with(inet, stream, SocketFlags::CLOEXEC, None).unwrap();
    set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &address).is_ok()
}

/// Returns the port of a free address.
pub(crate) fn free_port() -> u16 {
    free_address().port()
}

/// The kernel's ephemeral ports begin at 32768.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;
