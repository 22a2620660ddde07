//! The socket below TLS: a TCP connection, or a connection to a port that ssh forwards.
//!
//! Either is a byte stream with the same calls. **Invariant:** only this file and the dialer distinguish them. A lane
//! takes the socket over as a [`socket2::Socket`], and options of TCP have no effect on a forwarded connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::Socket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

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

trait ByteStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> ByteStream for S {}

impl AsFd for StreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Forwarded(socket) => socket.as_fd(),
        }
    }
}

impl AsyncRead for StreamSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(context, out)
    }
}

impl AsyncWrite for StreamSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }
}
