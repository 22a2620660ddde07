//! Ports at which nobody listens.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// An address of this host at which nobody listens, and which nobody else gets: it is outside the range from which the
/// kernel takes ports for connections and for listeners that name none.
pub(crate) fn free_address() -> SocketAddr {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    // Other processes that test at the same time begin elsewhere.
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

/// Binds without listening: a process that another case starts at this moment inherits the socket until it runs its
/// program, and a socket that does not listen is in nobody's way.
fn is_free(address: SocketAddr) -> bool {
    let (inet, stream) = (AddressFamily::INET, SocketType::STREAM);
    let socket = socket_with(inet, stream, SocketFlags::CLOEXEC, None).unwrap();
    set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &address).is_ok()
}

/// The port of such an address.
pub(crate) fn free_port() -> u16 {
    free_address().port()
}

/// Linux begins to number connections at 32768.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 12_000;
