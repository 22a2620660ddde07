//! The receive window of a fresh connection.

use std::io;
use std::os::fd::AsFd;

use crate::sys;

/// Lets an established connection's receive buffer hold `bytes` at once, instead of what the kernel starts with
/// (`net.ipv4.tcp_rmem`, second figure, mostly 128 KiB), and leaves autotuning on: the buffer still grows past `bytes`.
/// The kernel caps it at half of the third figure of `tcp_rmem`. No memory is taken until data arrives.
///
/// Autotuning alone opens the window only when more than the initial window was read within one round trip. With jumbo
/// frames that may never happen: of a window of 61,440 bytes a sender with segments of 8,948 bytes uses six, 53,688
/// bytes, and the window stays as it is: some 5 Mbit/s at 90 ms. `SO_RCVBUF` would turn autotuning off for good.
///
/// The kernel enlarges the buffer for what `SO_RCVLOWAT` asks for, and keeps it when the mark goes back to one byte.
///
/// # Errors
/// The kernel refuses the option, or the connection is gone.
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
