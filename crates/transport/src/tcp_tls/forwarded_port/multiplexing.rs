//! Requests to a master of ssh, as in OpenSSH's `PROTOCOL.mux`, version 4.
//!
//! Each message has its length in front. Numbers have 32 bits, big-endian. The descriptors of a request follow it, one
//! with each byte.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;

/// The channel of ssh that carries a connection.
#[derive(Clone, Debug)]
pub(super) enum Carrier {
    /// A channel to this port on the loopback interface of the server.
    Channel(u16),
    /// A session that runs this command.
    Session(String),
}

/// Requests a connection from the master at the other end of `master`.
pub(super) async fn request(mut master: UnixStream, carrier: &Carrier) -> io::Result<UnixStream> {
    let (near, far) = UnixStream::pair()?;
    let far = far.into_std()?;
    let errors = File::options().write(true).open("/dev/null")?;
    let mut message = framed(&numbers(&[HELLO, VERSION]));
    message.extend(framed(&encoded(carrier)));
    master.write_all(&message).await?;
    let descriptors = [far.as_fd(), far.as_fd(), errors.as_fd()];
    let count = match carrier {
        Carrier::Channel(_) => 2,
        Carrier::Session(_) => 3,
    };
    for descriptor in &descriptors[..count] {
        send_descriptor(&master, *descriptor).await?;
    }
    drop(far);
    await_opened(&mut master).await?;
    // The master ends the connection when `master` closes, and closes it after the end of the connection.
    tokio::spawn(async move { tokio::io::copy(&mut master, &mut tokio::io::sink()).await });
    Ok(near)
}

fn encoded(carrier: &Carrier) -> Vec<u8> {
    match carrier {
        Carrier::Channel(port) => {
            let mut message = numbers(&[NEW_STDIO_FORWARD, REQUEST_ID]);
            message.extend(text(""));
            message.extend(text("127.0.0.1"));
            message.extend(numbers(&[u32::from(*port)]));
            message
        }
        Carrier::Session(command) => {
            let mut message = numbers(&[NEW_SESSION, REQUEST_ID]);
            message.extend(text(""));
            let terminal = 0;
            let x11 = 0;
            let agent = 0;
            let subsystem = 0;
            message.extend(numbers(&[terminal, x11, agent, subsystem, NO_ESCAPE]));
            message.extend(text(""));
            message.extend(text(command));
            message
        }
    }
}

/// Reads the answers to the request until the channel is open.
async fn await_opened(master: &mut UnixStream) -> io::Result<()> {
    loop {
        let length = master.read_u32().await?;
        if !(4..=MESSAGE_BYTES_MAX).contains(&length) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let kind = master.read_u32().await?;
        let mut rest = vec![0; length as usize - 4];
        master.read_exact(&mut rest).await?;
        match kind {
            SESSION_OPENED => return Ok(()),
            PERMISSION_DENIED | FAILURE => {
                // The identifier of the request and the length of the reason.
                let reason = rest.get(8..).unwrap_or_default();
                return Err(io::Error::other(
                    String::from_utf8_lossy(reason).into_owned(),
                ));
            }
            _ => {}
        }
    }
}

async fn send_descriptor(master: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let sent = master.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let byte = [IoSlice::new(&[0])];
        Ok(sendmsg(master, &byte, &mut ancillary, SendFlags::NOSIGNAL)?)
    });
    sent.await.map(drop)
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a command is short");
    [&numbers(&[length]), message].concat()
}

fn text(text: &str) -> Vec<u8> {
    framed(text.as_bytes())
}

fn numbers(numbers: &[u32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_be_bytes())
        .collect()
}

const HELLO: u32 = 1;
const VERSION: u32 = 4;
const NEW_SESSION: u32 = 0x1000_0002;
const NEW_STDIO_FORWARD: u32 = 0x1000_0008;
const PERMISSION_DENIED: u32 = 0x8000_0002;
const FAILURE: u32 = 0x8000_0003;
const SESSION_OPENED: u32 = 0x8000_0006;
const REQUEST_ID: u32 = 0;
/// The value of the escape character that turns it off.
const NO_ESCAPE: u32 = u32::MAX - 1;
/// Upper bound of the length of an answer.
const MESSAGE_BYTES_MAX: u32 = 64 << 10;

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;

    /// Reads a request as ssh does, and returns its first descriptor.
    fn take(master: &mut std::os::unix::net::UnixStream, expected: &[u8]) -> File {
        let mut found = vec![0; expected.len()];
        master.read_exact(&mut found).unwrap();
        assert_eq!(found, expected);
        let mut descriptors = Vec::new();
        for _ in 0..2 {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let mut slices = [io::IoSliceMut::new(&mut byte)];
            recvmsg(&*master, &mut slices, &mut ancillary, RecvFlags::empty()).unwrap();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message {
                    descriptors.extend(received);
                }
            }
        }
        descriptors.swap_remove(0).into()
    }

    #[tokio::test]
    async fn a_master_gets_both_ends_of_a_channel_and_its_refusal_has_a_reason() {
        let port = Carrier::Channel(0x1234);
        let expected = b"\0\0\0\x08\0\0\0\x01\0\0\0\x04\
            \0\0\0\x1d\x10\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\x09127.0.0.1\0\0\x12\x34";
        for refuses in [false, true] {
            let (near, master) = UnixStream::pair().unwrap();
            let mut master = master.into_std().unwrap();
            master.set_nonblocking(false).unwrap();
            let serving = tokio::task::spawn_blocking(move || {
                let mut end = take(&mut master, expected);
                let mut answer = numbers(&[if refuses { FAILURE } else { SESSION_OPENED }, 0]);
                answer.extend(text("no"));
                io::Write::write_all(&mut master, &framed(&numbers(&[HELLO, VERSION]))).unwrap();
                io::Write::write_all(&mut master, &framed(&answer)).unwrap();
                if !refuses {
                    rustix::io::ioctl_fionbio(&end, false).unwrap();
                    let mut byte = [0];
                    end.read_exact(&mut byte).unwrap();
                    assert_eq!(byte, *b"x");
                }
                // The request ends with the connection that made it.
                drop(end);
                drop(master);
            });
            let opened = request(near, &port).await;
            if refuses {
                assert_eq!(opened.unwrap_err().to_string(), "no");
            } else {
                opened.unwrap().write_all(b"x").await.unwrap();
            }
            serving.await.unwrap();
        }
    }
}
