//! The socket below TLS: a TCP connection, or a connection to a port that ssh forwards.
//!
//! Either is a byte stream with the same calls. **Invariant:** only this file and the dialer distinguish them. A lane
//! takes the socket over as a [`socket2::Socket`], and options of TCP have no effect on a forwarded connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;

use socket2::Socket;
use tokio::net::{TcpStream, UnixStream};

use crate::byte_stream::{ByteStream, delegate_stream};
use crate::path::Transport;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum StreamSocket {
    Tcp(TcpStream),
    /// A Unix socket whose other end is ssh.
    Forwarded(UnixStream),
}

impl StreamSocket {
    /// Returns the transport of a connection on this socket.
    pub(super) const fn transport(&self) -> Transport {
        match self {
            Self::Tcp(_) => Transport::Tcp,
            Self::Forwarded(_) => Transport::Ssh,
        }
    }

    /// Converts the socket for blocking calls.
    pub(super) fn into_blocking(self) -> io::Result<Socket> {
        let socket = match self {
            Self::Tcp(socket) => Socket::from(socket.into_std()?),
            Self::Forwarded(socket) => Socket::from(socket.into_std()?),
        };
        socket.set_nonblocking(false)?;
        Ok(socket)
    }

    fn stream(&mut self) -> Pin<&mut dyn ByteStream> {
        match self {
            Self::Tcp(socket) => Pin::new(socket),
            Self::Forwarded(socket) => Pin::new(socket),
        }
    }
}

impl AsFd for StreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Forwarded(socket) => socket.as_fd(),
        }
    }
}

delegate_stream!(StreamSocket);
