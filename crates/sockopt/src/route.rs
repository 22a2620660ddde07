//! Properties of the path to a peer, as the kernel knows them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use crate::sys;

/// Returns the path MTU of a socket in bytes: the largest IP packet that the path can carry, as far as the kernel
/// knows. This is the MTU of the first link until the kernel discovers a smaller one. The socket must be connected to
/// `peer`.
///
/// # Errors
/// Returns an error if the socket is not connected.
#[expect(
    clippy::host_endian_bytes,
    reason = "the kernel of this host wrote them"
)]
pub fn path_mtu(socket: &impl AsFd, peer: SocketAddr) -> io::Result<u32> {
    let (level, option) = match peer {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mut room = [0; size_of::<u32>()];
    sys::bytes(socket.as_fd(), level, option, &mut room)?;
    Ok(u32::from_ne_bytes(room))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn loopback_carries_large_packets() {
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let peer = far.local_addr().unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(path_mtu(&near, peer).is_err());
        near.connect(peer).unwrap();
        assert!(path_mtu(&near, peer).unwrap() >= 1500);
    }
}
