//! A port of another host that is reached through a login of ssh.
//!
//! The login's ssh process is a *master* (ssh_config(5), `ControlMaster`). Each connection is one request to it: a
//! forwarded channel, or if the server forwards nothing, a session with a program that connects to the port.
//!
//! **Invariant:** a connection ends with its request, and a request ends with this process. Nothing stays in the
//! master, and the file of its socket is not needed after [`ForwardedPort::open`].

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use tokio::net::UnixStream;
use zmove_types::Lock;

use multiplexing::{Carrier, request};

mod multiplexing;

/// A port that ssh reaches. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ForwardedPort {
    /// The socket for requests to the master.
    control: Arc<OwnedFd>,
    port: u16,
    carrier: Carrier,
    /// The connection that has shown that the carrier works. The first dial takes it.
    first: Arc<Lock<Option<UnixStream>>>,
}

impl ForwardedPort {
    /// Connects to `port` on the loopback interface of the other host, through the master that listens at `control`.
    /// `program` connects its standard input and output to that port.
    ///
    /// # Errors
    /// Returns an error if there is no such master, or if the server permits neither of both.
    pub async fn open(control: &Path, port: u16, program: String) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let control = Arc::new(rustix::fs::open(control, flags, Mode::empty())?);
        let mut reasons = Vec::new();
        for carrier in [Carrier::Channel(port), Carrier::Session(program)] {
            match request(connect_to(&control).await?, &carrier).await {
                Ok(first) => {
                    return Ok(Self {
                        control,
                        port,
                        carrier,
                        first: Arc::new(Lock::new(Some(first))),
                    });
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        reasons.dedup();
        Err(io::Error::other(reasons.join("; ")))
    }

    /// Returns whether the server forwards no channels, so that each connection is a session of the login.
    #[must_use]
    pub const fn needs_sessions(&self) -> bool {
        matches!(self.carrier, Carrier::Session(_))
    }

    /// Returns the maximum number of lanes that the server is expected to permit, or `None` if it has no limit.
    pub(crate) fn lanes_max(&self) -> Option<u16> {
        self.needs_sessions().then_some(SESSION_LANES)
    }

    /// Returns the address of the port, as the other host sees it.
    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Connects to the port.
    pub(super) async fn connect(&self) -> io::Result<UnixStream> {
        let first = self.first.lock().take();
        match first {
            Some(first) => Ok(first),
            None => request(connect_to(&self.control).await?, &self.carrier).await,
        }
    }
}

async fn connect_to(control: &OwnedFd) -> io::Result<UnixStream> {
    UnixStream::connect(format!("/proc/self/fd/{}", control.as_raw_fd())).await
}

/// OpenSSH's default of `MaxSessions`, less the sessions of the receiver and of control.
const SESSION_LANES: u16 = 8;
