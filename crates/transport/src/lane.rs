//! A lane over TLS on TCP, in blocking calls: one thread each, the kernel's full window, no reply awaited.
//!
//! Plaintext goes into TLS a quarter MiB at a time, so that one system call carries many records. The receiving end
//! never writes and the server sends no session tickets, so nothing is ever left unread to reset the connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use zmove_types::{Buffer, BufferPool, Doing, Stopwatch};
use zmove_wire::FrameHeader;

use crate::frame::{Frame, LaneBreaker, LaneError, LaneSink, LaneSource};

/// Plaintext that TLS takes before the socket is written.
const PLAINTEXT_BYTES_MAX: usize = 256 << 10;

/// One end of a lane over TLS on TCP; the dialler sends, the acceptor receives, or the other way round.
#[derive(Debug)]
pub struct TlsLane {
    socket: TcpStream,
    tls: rustls::Connection,
}

impl TlsLane {
    /// A lane on an established connection, whose greeting has passed.
    #[must_use]
    pub fn new(socket: TcpStream, mut tls: rustls::Connection) -> Self {
        // the limit counts queued records, which are a little longer than their plaintext
        tls.set_buffer_limit(Some(2 * PLAINTEXT_BYTES_MAX));
        Self { socket, tls }
    }

    fn encrypt_and_send(&mut self, mut bytes: &[u8], watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        while !bytes.is_empty() {
            let slice = &bytes[..bytes.len().min(PLAINTEXT_BYTES_MAX)];
            let taken = self.tls.writer().write(slice)?;
            bytes = &bytes[taken..];
            watch.lap(Doing::Busy);
            self.flush()?;
            watch.lap(Doing::Blocked);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    /// Fills `out`; returns how much of it was filled before the peer's orderly end.
    fn fill(&mut self, out: &mut [u8], watch: &mut Stopwatch<'_>) -> Result<usize, LaneError> {
        let mut filled = 0;
        while filled < out.len() {
            match self.tls.reader().read(&mut out[filled..]) {
                Ok(0) => break,
                Ok(taken) => filled += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.decrypt_more(watch)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(filled)
    }

    fn decrypt_more(&mut self, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        watch.lap(Doing::Busy);
        let taken = self.tls.read_tls(&mut self.socket)?;
        watch.lap(Doing::Starved);
        if taken == 0 {
            return Err(LaneError::Closed);
        }
        self.tls.process_new_packets()?;
        Ok(())
    }

    fn fill_all(&mut self, out: &mut [u8], watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        if self.fill(out, watch)? == out.len() { Ok(()) } else { Err(LaneError::Closed) }
    }

    fn tcp_breaker(&self) -> LaneBreaker {
        let socket = self.socket.try_clone();
        LaneBreaker::new(move || {
            // a socket that is already closed needs no breaking
            if let Ok(socket) = &socket {
                drop(socket.shutdown(Shutdown::Both));
            }
        })
    }
}

impl LaneSink for TlsLane {
    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        let mut opening = frame.header.encode().to_vec();
        opening.extend_from_slice(&frame.head);
        if opening.len() <= PLAINTEXT_BYTES_MAX / 2 && !frame.data.is_empty() {
            // stays queued, to leave with the first of the data
            self.tls.writer().write_all(&opening)?;
        } else {
            self.encrypt_and_send(&opening, watch)?;
        }
        self.encrypt_and_send(&frame.data, watch)
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        self.tls.send_close_notify();
        self.flush()?;
        Ok(self.socket.shutdown(Shutdown::Write)?)
    }

    fn breaker(&self) -> LaneBreaker {
        self.tcp_breaker()
    }
}

impl LaneSource for TlsLane {
    fn receive(&mut self, pool: &BufferPool, watch: &mut Stopwatch<'_>) -> Result<Option<Frame>, LaneError> {
        let mut header = [0; FrameHeader::BYTES];
        match self.fill(&mut header, watch)? {
            0 => return Ok(None),
            FrameHeader::BYTES => {}
            _ => return Err(LaneError::Closed),
        }
        let header = FrameHeader::decode(&header)?;
        let mut head = vec![0; header.head_bytes as usize];
        self.fill_all(&mut head, watch)?;
        let data = self.receive_data(header.data_bytes as usize, pool, watch)?;
        watch.lap(Doing::Busy);
        Ok(Some(Frame { header, head, data }))
    }

    fn breaker(&self) -> LaneBreaker {
        self.tcp_breaker()
    }
}

impl TlsLane {
    fn receive_data(
        &mut self,
        len: usize,
        pool: &BufferPool,
        watch: &mut Stopwatch<'_>,
    ) -> Result<Buffer, LaneError> {
        if len == 0 {
            return Ok(Buffer::empty());
        }
        watch.lap(Doing::Busy);
        let mut data = pool.take().ok_or(LaneError::Stopped)?;
        watch.lap(Doing::Blocked);
        self.fill_all(&mut data.room()[..len], watch)?;
        data.set_len(len);
        Ok(data)
    }
}
