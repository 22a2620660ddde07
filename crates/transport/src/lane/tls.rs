//! A lane over TLS on TCP, or through ssh, with blocking calls. Each lane has its own thread, uses the full window, and
//! never waits for a reply.
//!
//! rustls establishes the connection. Then this module seals and opens records, many per system call (see
//! [`record`](crate::record)). The receiving end never writes, and the server sends no session tickets. So no unread
//! data remains that would reset the connection on close.

use std::fmt;
use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;

use socket2::Socket;
use zmove_types::{BufferPool, Stopwatch, ThreadState};

use crate::lane::rate_limiter::{RateLimiter, SharedRate};
use crate::lane::{Frame, LaneBreaker, LaneError, LaneSink, LaneSource};
use crate::path::{PathProbe, Transport};
use crate::record::{Opener, Sealer, traffic_keys};
use crate::tcp_tls::{Connection, ConnectionParts, UnsentLimit};

/// One end of a lane over TLS. Either the dialer or the acceptor sends.
pub struct TlsLane {
    /// The socket. The lane's breaker and probe share its descriptor.
    socket: Arc<Socket>,
    transport: Transport,
    unsent_limit: UnsentLimit,
    sealer: Sealer,
    opener: Opener,
    /// The limiter of the rate at which the lane sends or receives.
    limiter: RateLimiter,
}

impl TlsLane {
    /// Creates a lane on a connection whose greeting has been sent and flushed.
    ///
    /// # Errors
    /// Returns [`LaneError`] if the connection has ended or is in the middle of a record.
    pub fn new(connection: Connection, rate: SharedRate) -> Result<Self, LaneError> {
        let ConnectionParts {
            socket,
            transport,
            unsent_limit,
            session,
            secrets,
            plaintext,
            records,
        } = connection.into_parts()?;
        let (seal, open) = traffic_keys(session, &secrets)?;
        Ok(Self {
            socket: Arc::new(socket),
            transport,
            unsent_limit,
            sealer: Sealer::new(seal),
            opener: Opener::new(open, plaintext, &records),
            limiter: RateLimiter::new(rate),
        })
    }

    /// Seals all of `bytes`, and sends the buffer whenever it is full. The last records stay in the buffer and are sent
    /// together with the next ones.
    fn seal(&mut self, mut bytes: &[u8], watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        loop {
            bytes = &bytes[self.sealer.seal(bytes)..];
            if bytes.is_empty() {
                return Ok(());
            }
            self.flush(watch)?;
        }
    }

    fn flush(&mut self, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        watch.lap(ThreadState::Busy);
        for piece in self.sealer.waiting().chunks(self.limiter.piece_bytes()) {
            self.limiter.throttle_now(piece.len(), watch);
            (&*self.socket).write_all(piece)?;
            self.unsent_limit.note_written(&self.socket, piece.len());
            watch.lap(ThreadState::Blocked);
        }
        self.sealer.clear();
        Ok(())
    }

    /// Fills `out`. Returns the number of bytes filled, which is less than the length of `out` only at the end of the
    /// lane.
    fn fill(&mut self, out: &mut [u8], watch: &mut Stopwatch<'_>) -> Result<usize, LaneError> {
        let mut filled = 0;
        loop {
            filled += self.opener.read(&mut out[filled..])?;
            if filled == out.len() || self.opener.has_ended() {
                return Ok(filled);
            }
            watch.lap(ThreadState::Busy);
            let received = self.opener.receive(&mut &*self.socket)?;
            watch.lap(ThreadState::Starved);
            self.limiter.throttle(received, watch);
            if received == 0 {
                return Err(LaneError::Closed);
            }
        }
    }
}

/// Returns a breaker of a lane on this socket.
pub(crate) fn tcp_breaker(socket: &Arc<Socket>) -> LaneBreaker {
    let socket = Arc::clone(socket);
    // The shutdown fails if the connection has already ended, which is harmless.
    LaneBreaker::new(move || drop(socket.shutdown(Shutdown::Both)))
}

impl LaneSink for TlsLane {
    fn await_room(&mut self) -> Result<(), LaneError> {
        Ok(self.unsent_limit.wait(&self.socket)?)
    }

    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        // The header, the head and the data are sealed into separate records, so that the receiver can decrypt the data
        // directly into its buffer.
        self.seal(&frame.header.encode(), watch)?;
        self.seal(&frame.head, watch)?;
        self.seal(&frame.data, watch)?;
        self.flush(watch)
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        self.sealer.close();
        (&*self.socket).write_all(self.sealer.waiting())?;
        self.sealer.clear();
        Ok(self.socket.shutdown(Shutdown::Write)?)
    }

    fn set_rate(&mut self, rate: SharedRate) {
        self.limiter = RateLimiter::new(rate);
    }

    fn breaker(&self) -> LaneBreaker {
        LaneSource::breaker(self)
    }

    fn path(&self) -> PathProbe {
        LaneSource::path(self)
    }
}

impl LaneSource for TlsLane {
    fn receive(
        &mut self,
        pool: &BufferPool,
        watch: &mut Stopwatch<'_>,
    ) -> Result<Option<Frame>, LaneError> {
        Frame::receive_next(pool, watch, |out, watch| self.fill(out, watch))
    }

    fn breaker(&self) -> LaneBreaker {
        self.limiter.breaker(tcp_breaker(&self.socket))
    }

    fn path(&self) -> PathProbe {
        PathProbe::new(Arc::clone(&self.socket), self.transport)
    }
}

impl fmt::Debug for TlsLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsLane")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}
