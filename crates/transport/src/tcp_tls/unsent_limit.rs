//! The limit on unsent bytes in a lane's socket.
//!
//! The kernel alone makes room for two windows, as large as they ever were, so that a lane which has become slow would
//! hold several chunks that others could take. For the same reason a lane takes no frame before its socket has room. In
//! the beginning the limit is lower: little may be sent before the receiver opens the transfer, and a lane that gets
//! none of it begins its slow start a round trip after the others.
//!
//! **Invariant:** at most [`UNSENT_BYTES_MAX`] wait in the socket beyond what the path has been given, and a lane that
//! waits for room has taken nothing that it could not send.

use std::io;
use std::net::TcpStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// The most unsent bytes (`TCP_NOTSENT_LOWAT`, tcp(7)); the kernel lets a lane go on at half of it.
const UNSENT_BYTES_MAX: u32 = 1 << 20;

/// The most unsent bytes while a lane has hardly begun. The first files are few, and its first flight is what TCP
/// allows without an acknowledgement from the peer (RFC 6928): lanes that had them all in their sockets would leave
/// others with nothing to begin their slow start with.
const FIRST_UNSENT_BYTES_MAX: u32 = 64 << 10;

/// The bytes after which a lane has begun: two first flights of a large MTU, or more of a small one.
const BEGUN_BYTES: usize = 192 << 10;

/// The limit of one lane's socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnsentLimit {
    /// The bytes that are left to [`BEGUN_BYTES`].
    to_begin: usize,
}

impl UnsentLimit {
    pub(crate) fn new(socket: &TcpStream) -> Self {
        set_unsent_max(socket, FIRST_UNSENT_BYTES_MAX);
        Self {
            to_begin: BEGUN_BYTES,
        }
    }

    /// Waits until the socket takes more.
    ///
    /// # Errors
    /// The connection is gone.
    pub(crate) fn wait(self, socket: &TcpStream) -> io::Result<()> {
        let mut polled = [PollFd::new(socket, PollFlags::OUT)];
        loop {
            match poll(&mut polled, None) {
                Ok(_)
                    if polled[0]
                        .revents()
                        .intersects(PollFlags::ERR | PollFlags::HUP) =>
                {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Notes that so many bytes were written to the socket.
    pub(crate) fn note_written(&mut self, socket: &TcpStream, bytes: usize) {
        if self.to_begin > 0 {
            self.to_begin = self.to_begin.saturating_sub(bytes);
            if self.to_begin == 0 {
                set_unsent_max(socket, UNSENT_BYTES_MAX);
            }
        }
    }
}

fn set_unsent_max(socket: &TcpStream, bytes: u32) {
    // A kernel without this option lets a slow lane hold more, and that is all.
    let _advice = socket2::SockRef::from(socket).set_tcp_notsent_lowat(bytes);
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (sender, listener.accept().unwrap().0)
    }

    fn has_room(socket: &impl AsFd) -> bool {
        poll(
            &mut [PollFd::new(socket, PollFlags::OUT)],
            Some(&rustix::event::Timespec::default()),
        )
        .unwrap()
            == 1
    }

    /// The number of bytes that a peer which reads nothing is given before there is no room.
    fn filled(sender: &mut TcpStream) -> usize {
        let mut bytes = 0;
        sender.set_nonblocking(true).unwrap();
        while has_room(sender) {
            bytes += sender.write(&[0; 16 << 10]).unwrap();
        }
        sender.set_nonblocking(false).unwrap();
        bytes
    }

    #[test]
    fn a_lane_that_has_begun_may_leave_more_unsent() {
        let (mut sender, _receiver) = pair();
        let mut limit = UnsentLimit::new(&sender);
        filled(&mut sender);
        limit.note_written(&sender, BEGUN_BYTES - 1);
        // A late acknowledgement may have made room.
        filled(&mut sender);
        assert!(!has_room(&sender));
        limit.note_written(&sender, 1);
        assert!(has_room(&sender));
        limit.wait(&sender).unwrap();
    }

    #[test]
    fn there_is_room_when_the_peer_reads() {
        let (mut sender, mut receiver) = pair();
        let limit = UnsentLimit::new(&sender);
        filled(&mut sender);
        let reader = std::thread::spawn(move || io::copy(&mut receiver, &mut io::sink()));
        limit.wait(&sender).unwrap();
        drop(sender);
        reader.join().unwrap().unwrap();
    }

    #[test]
    fn who_waits_for_room_hears_that_the_connection_is_gone() {
        let (mut sender, receiver) = pair();
        let limit = UnsentLimit::new(&sender);
        filled(&mut sender);
        let waiting = std::thread::spawn({
            let sender = sender.try_clone().unwrap();
            move || limit.wait(&sender)
        });
        sender.shutdown(std::net::Shutdown::Both).unwrap();
        waiting.join().unwrap().unwrap_err();
        // Unread data makes this close a reset.
        drop(receiver);
    }
}
