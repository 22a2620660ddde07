//! A cap on the rate at which a connection sends.

use std::io;
use std::os::fd::AsFd;

use crate::sys;

/// Caps the rate at which the kernel sends on a connection, evenly and not in bursts. No queueing discipline is needed:
/// where `fq` is missing, TCP paces itself.
///
/// # Errors
/// The kernel refuses the option, or the connection is gone.
pub fn set_pacing_rate_max(socket: &impl AsFd, bytes_per_second: u64) -> io::Result<()> {
    sys::set_long(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes_per_second)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_rate_is_kept_by_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_pacing_rate_max(&socket, 12_500_000).unwrap();
        let kept = sys::integer(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE).unwrap();
        assert_eq!(kept, 12_500_000);
        // 80 Gbit/s, more than a C int holds.
        set_pacing_rate_max(&socket, 10_000_000_000).unwrap();
    }
}
