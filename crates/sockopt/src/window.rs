//! The receive window of a new connection.

use std::io;
use std::os::fd::AsFd;

use crate::sys;

/// Lets the receive buffer of an established connection hold `bytes` immediately, instead of the kernel's initial size
/// (the second value of `net.ipv4.tcp_rmem`, usually 128 KiB). Autotuning stays on, so the buffer can still grow past
/// `bytes`. The kernel limits the size to half of the third value of `tcp_rmem`. No memory is allocated until data
/// arrives.
///
/// Autotuning alone opens the window only after more than the initial window was read in one round trip. With jumbo
/// frames this may never happen. For example, a sender with segments of 8,948 bytes uses only 53,688 bytes (six
/// segments) of a window of 61,440 bytes. The window then never grows, which limits the rate to about 5 Mbit/s at 90
/// ms. `SO_RCVBUF` is no alternative, because it turns autotuning off permanently.
///
/// The kernel enlarges the buffer when `SO_RCVLOWAT` is raised, and keeps the size when `SO_RCVLOWAT` is set back to
/// one byte.
///
/// # Errors
/// Returns an error if the kernel refuses the option or the connection is closed.
pub fn open_receive_window(socket: &impl AsFd, bytes: u32) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    sys::set_integer(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)?;
    sys::set_integer(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[expect(
        clippy::host_endian_bytes,
        reason = "the kernel of this host wrote them"
    )]
    fn receive_buffer(socket: &TcpStream) -> i32 {
        let mut room = [0; size_of::<i32>()];
        sys::bytes(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &mut room).unwrap();
        i32::from_ne_bytes(room)
    }

    #[test]
    fn the_buffer_is_raised_and_reads_still_return_early() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let before = receive_buffer(&receiver);
        open_receive_window(&receiver, 1 << 20).unwrap();
        assert!(
            receive_buffer(&receiver) > before.max(1 << 20),
            "{before} → {}",
            receive_buffer(&receiver)
        );
        io::Write::write_all(&mut sender, b"x").unwrap();
        let mut byte = [0];
        io::Read::read_exact(&mut receiver, &mut byte).unwrap();
    }
}
