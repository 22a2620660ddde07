//! `lane`: a connection of a transfer, started over ssh if the ssh server forwards no connections.
//!
//! It copies bytes between ssh and the receiver's port. TLS between the two zmoves protects them, as on any connection.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::thread;

use anyhow::{Context, Result};

/// Connects standard input and output to a port of this host, until the receiver closes the connection.
///
/// # Errors
/// The port does not answer, or ssh has closed the output.
pub fn connect(port: u16) -> Result<()> {
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connect to zmove")?;
    socket.set_nodelay(true).context("set up the connection")?;
    // Not the buffered standard output, because parts of a message must not wait.
    let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let to_receiver = socket.try_clone().context("set up the connection")?;
    // This process does not wait for the end of its input, because ssh closes it last.
    thread::spawn(move || {
        let _lost_or_ended = copy(input, &to_receiver);
        let _may_be_closed = to_receiver.shutdown(Shutdown::Write);
    });
    copy(&socket, output).context("copy from the receiver to ssh")
}

fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

const BUFFER_BYTES: usize = 256 << 10;
