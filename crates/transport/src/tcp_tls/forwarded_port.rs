//! A port of another host to which ssh forwards the connections of a Unix socket on this host.
//!
//! **Invariant:** the socket's file is not needed after [`ForwardedPort::open`]. The caller removes it immediately, so
//! that even a killed process leaves no file behind.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use tokio::net::UnixStream;

/// A forwarded port. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ForwardedPort {
    /// The Unix socket on which ssh listens.
    socket: Arc<OwnedFd>,
    port: u16,
}

impl ForwardedPort {
    /// Opens the Unix socket at `path`, on which ssh already listens. ssh forwards its connections to `port` on the
    /// loopback interface of the other host.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn open(path: &Path, port: u16) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self {
            socket: Arc::new(socket),
            port,
        })
    }

    /// Returns the address of the port, as the other host sees it.
    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Connects to ssh, which then connects to the port. A success does not show that ssh may forward the connection.
    pub(super) async fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(format!("/proc/self/fd/{}", self.socket.as_raw_fd())).await
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn the_socket_is_reached_after_its_file_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let port = ForwardedPort::open(&path, 1).unwrap();
        directory.close().unwrap();
        let mut near = port.connect().await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        near.write_all(b"x").await.unwrap();
        assert_eq!(far.read_u8().await.unwrap(), b'x');
    }
}
