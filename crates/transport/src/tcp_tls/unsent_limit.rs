//! The limit on unsent bytes in a lane's socket.
//!
//! By default, the kernel buffers up to twice the largest window that the connection has reached. A lane that has
//! become slow would then hold several chunks that other lanes could send. For the same reason, a lane does not take a
//! frame until its socket has space. At the start, the limit is lower, because only little data may be sent before the
//! receiver opens the transfer. A lane without any of this data would begin its slow start one round trip later than
//! the other lanes.
//!
//! **Invariant:** at most [`UNSENT_BYTES_MAX`] are buffered in the socket in addition to the bytes in flight. A lane
//! that waits for space holds no frame.

use std::io;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use socket2::Socket;

/// Maximum number of unsent bytes (`TCP_NOTSENT_LOWAT`, tcp(7)). The kernel wakes a lane when the number of unsent
/// bytes has fallen to half of this limit.
const UNSENT_BYTES_MAX: u32 = 1 << 20;

/// Maximum number of unsent bytes at the start of a lane. It is about the first flight, which TCP may send without an
/// acknowledgment (RFC 6928). At the start there is little data. If some lanes buffered all of it in their sockets, the
/// other lanes could not begin their slow start.
const FIRST_UNSENT_BYTES_MAX: u32 = 64 << 10;

/// Number of written bytes after which the regular limit applies. With a large MTU, this is two first flights. With a
/// small MTU, it is more.
const BEGUN_BYTES: usize = 192 << 10;

/// The limit of one lane's socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnsentLimit {
    /// Number of bytes left until [`BEGUN_BYTES`] have been written.
    to_begin: usize,
}

impl UnsentLimit {
    pub(crate) fn new(socket: &Socket) -> Self {
        set_unsent_max(socket, FIRST_UNSENT_BYTES_MAX);
        Self {
            to_begin: BEGUN_BYTES,
        }
    }

    /// Waits until the socket accepts more data.
    ///
    /// # Errors
    /// Returns an error if the connection is lost.
    pub(crate) fn wait(self, socket: &Socket) -> io::Result<()> {
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

    /// Records that this number of bytes was written to the socket.
    pub(crate) fn note_written(&mut self, socket: &Socket, bytes: usize) {
        if self.to_begin > 0 {
            self.to_begin = self.to_begin.saturating_sub(bytes);
            if self.to_begin == 0 {
                set_unsent_max(socket, UNSENT_BYTES_MAX);
            }
        }
    }
}

fn set_unsent_max(socket: &Socket, bytes: u32) {
    // Without this option, as through ssh, a slow lane buffers more bytes, which is acceptable.
    let _advice = socket.set_tcp_notsent_lowat(bytes);
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    fn pair() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (sender.into(), listener.accept().unwrap().0.into())
    }

    fn has_room(socket: &impl AsFd) -> bool {
        poll(
            &mut [PollFd::new(socket, PollFlags::OUT)],
            Some(&rustix::event::Timespec::default()),
        )
        .unwrap()
            == 1
    }

    /// Fills the socket of a peer that reads nothing. Returns the number of bytes written until there was no room left.
    fn filled(sender: &mut Socket) -> usize {
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
        // A late acknowledgment may have freed space in the socket, so it is filled again.
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
        // The receiver has unread data, so the kernel resets the connection on close.
        drop(receiver);
    }
}
