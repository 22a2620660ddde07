//! An unencrypted lane: plain frames, with each header authenticated by a keyed hash. Only `push --cipher none` to a
//! daemon with `--allow-clear` uses such lanes, and only over TCP. Control stays in TLS.
//!
//! The connection begins with TLS, which authenticates both ends and carries the greeting. The TLS exporter derives a
//! key for each direction of the lane. After that, neither end uses TLS records. A frame is sent with one `writev`
//! call, and its data is read directly into its buffer.
//!
//! A frame is authenticated by a keyed BLAKE3 hash of its sequence number and its header. The header contains the
//! digest of the frame's head and data. As on any lane, the receiver checks this digest before it stores the data. So
//! the keyed hash only covers the header, and the data is not hashed twice.
//!
//! **Invariant:** no field of a header is used before the header has been authenticated together with its sequence
//! number. The end of the lane counts only if the peer has authenticated it.

use std::fmt;
use std::io::{self, BufReader, Chain, Cursor, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use rustls::Side;
use socket2::Socket;
use zmove_types::{BufferPool, Stopwatch, ThreadState};
use zmove_wire::FrameHeader;

use crate::lane::rate_limiter::{RateLimiter, SharedRate};
use crate::lane::tls::tcp_breaker;
use crate::lane::{Frame, LaneBreaker, LaneError, LaneSink, LaneSource};
use crate::path::{PathProbe, Transport};
use crate::tcp_tls::{Connection, ConnectionParts, UnsentLimit};

/// One end of an unencrypted lane. Either the dialer or the acceptor sends.
pub struct ClearLane {
    incoming: BufReader<Chain<Cursor<Vec<u8>>, SharedSocket>>,
    transport: Transport,
    unsent_limit: UnsentLimit,
    sealing: FrameSequence,
    checking: FrameSequence,
    ended: bool,
    /// The limiter of the rate at which the lane sends or receives.
    limiter: RateLimiter,
}

/// The lane's socket. The breaker and the probe share its descriptor.
struct SharedSocket(Arc<Socket>);

impl Read for SharedSocket {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(out)
    }
}

/// The frames of one direction: the key and the next sequence number.
struct FrameSequence {
    key: [u8; blake3::KEY_LEN],
    sequence: u64,
}

impl ClearLane {
    /// Creates a lane on a connection whose greeting has been sent and flushed. TLS must not carry anything after the
    /// greeting.
    ///
    /// # Errors
    /// Returns [`LaneError`] if the connection has ended, or if TLS carried more than the greeting.
    pub fn new(connection: Connection, rate: SharedRate) -> Result<Self, LaneError> {
        let ConnectionParts {
            socket,
            transport,
            unsent_limit,
            session,
            plaintext,
            records,
            ..
        } = connection.into_parts()?;
        if !plaintext.is_empty() {
            return Err(LaneError::Forged);
        }
        let (own, peer) = match session {
            rustls::Connection::Client(_) => (Side::Client, Side::Server),
            rustls::Connection::Server(_) => (Side::Server, Side::Client),
        };
        // Bytes that were already read from the socket precede the bytes that are still in the socket.
        let arrived = Cursor::new(records);
        Ok(Self {
            incoming: BufReader::with_capacity(
                ARRIVED_BYTES_MAX,
                arrived.chain(SharedSocket(Arc::new(socket))),
            ),
            transport,
            unsent_limit,
            sealing: FrameSequence::of(&session, own)?,
            checking: FrameSequence::of(&session, peer)?,
            ended: false,
            limiter: RateLimiter::new(rate),
        })
    }

    /// Writes all parts. Uses a single system call if the socket accepts all bytes at once.
    fn write_all(&mut self, mut parts: &mut [IoSlice<'_>]) -> Result<(), LaneError> {
        let mut socket = &*self.incoming.get_ref().get_ref().1.0;
        // Removes empty slices at the start, so that the next write has at least one byte to write.
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            match socket.write_vectored(parts) {
                Ok(0) => return Err(LaneError::Closed),
                Ok(written) => {
                    self.unsent_limit.note_written(socket, written);
                    IoSlice::advance_slices(&mut parts, written);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Fills `out`. Long pieces are read directly from the socket into `out`. The end of the connection is an error,
    /// because only an authenticated message from the peer ends the lane.
    fn fill(&mut self, out: &mut [u8], watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        watch.lap(ThreadState::Busy);
        for piece in out.chunks_mut(self.limiter.piece_bytes()) {
            self.incoming.read_exact(piece)?;
            watch.lap(ThreadState::Starved);
            self.limiter.throttle(piece.len(), watch);
        }
        Ok(())
    }

    /// Reads and authenticates the next header. Returns `None` if the peer has ended the lane.
    fn receive_header(
        &mut self,
        watch: &mut Stopwatch<'_>,
    ) -> Result<Option<FrameHeader>, LaneError> {
        let mut header = [0; FrameHeader::BYTES];
        let mut mac = [0; blake3::OUT_LEN];
        self.fill(&mut header, watch)?;
        self.fill(&mut mac, watch)?;
        // This comparison takes constant time.
        if self.checking.next(&header) != blake3::Hash::from_bytes(mac) {
            return Err(LaneError::Forged);
        }
        if header == END {
            Ok(None)
        } else {
            Ok(Some(FrameHeader::decode(&header)?))
        }
    }

    fn socket(&self) -> &Arc<Socket> {
        &self.incoming.get_ref().get_ref().1.0
    }
}

impl FrameSequence {
    /// Returns the sequence of frames that `sender` authenticates.
    fn of(session: &rustls::Connection, sender: Side) -> Result<Self, rustls::Error> {
        let direction: &[u8] = match sender {
            Side::Client => b"client",
            Side::Server => b"server",
        };
        let key =
            session.export_keying_material([0; blake3::KEY_LEN], KEY_LABEL, Some(direction))?;
        Ok(Self { key, sequence: 0 })
    }

    /// Returns the hash that authenticates `header` at the next position of the sequence.
    fn next(&mut self, header: &[u8; FrameHeader::BYTES]) -> blake3::Hash {
        let mut sealed = [0; SEQUENCE_BYTES + FrameHeader::BYTES];
        sealed[..SEQUENCE_BYTES].copy_from_slice(&self.sequence.to_le_bytes());
        sealed[SEQUENCE_BYTES..].copy_from_slice(header);
        self.sequence += 1;
        blake3::keyed_hash(&self.key, &sealed)
    }
}

/// The label of the exported key. It separates this use of the connection's secrets from all other uses.
const KEY_LABEL: &[u8] = b"EXPORTER-zmove lane clear 1";
const SEQUENCE_BYTES: usize = size_of::<u64>();
/// The header that ends the lane. No frame has this header, because there is no frame of kind 0.
const END: [u8; FrameHeader::BYTES] = [0; FrameHeader::BYTES];
/// Size of the buffer for headers and heads. Data is read directly into its destination, except for a last piece that
/// fits into this buffer.
const ARRIVED_BYTES_MAX: usize = 16 << 10;

impl LaneSink for ClearLane {
    fn await_room(&mut self) -> Result<(), LaneError> {
        Ok(self.unsent_limit.wait(self.socket())?)
    }

    fn send(&mut self, frame: Frame, watch: &mut Stopwatch<'_>) -> Result<(), LaneError> {
        let header = frame.header.encode();
        let mac = self.sealing.next(&header);
        let parts = [&header[..], mac.as_bytes(), &frame.head, &frame.data];
        watch.lap(ThreadState::Busy);
        let piece_bytes = self.limiter.piece_bytes();
        if self.limiter.rate.is_set() {
            for piece in parts.iter().flat_map(|part| part.chunks(piece_bytes)) {
                self.limiter.throttle_now(piece.len(), watch);
                self.write_all(&mut [IoSlice::new(piece)])?;
            }
        } else {
            self.write_all(&mut parts.map(IoSlice::new))?;
        }
        watch.lap(ThreadState::Blocked);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), LaneError> {
        let mac = self.sealing.next(&END);
        self.write_all(&mut [&END[..], mac.as_bytes()].map(IoSlice::new))?;
        Ok(self.socket().shutdown(Shutdown::Write)?)
    }

    fn path(&self) -> PathProbe {
        LaneSource::path(self)
    }

    fn set_rate(&mut self, rate: SharedRate) {
        self.limiter = RateLimiter::new(rate);
    }

    fn breaker(&self) -> LaneBreaker {
        LaneSource::breaker(self)
    }
}

impl LaneSource for ClearLane {
    fn receive(
        &mut self,
        pool: &BufferPool,
        watch: &mut Stopwatch<'_>,
    ) -> Result<Option<Frame>, LaneError> {
        if self.ended {
            return Ok(None);
        }
        let Some(header) = self.receive_header(watch)? else {
            self.ended = true;
            return Ok(None);
        };
        Frame::receive(header, pool, watch, |out, watch| self.fill(out, watch)).map(Some)
    }

    fn breaker(&self) -> LaneBreaker {
        self.limiter.breaker(tcp_breaker(self.socket()))
    }

    fn path(&self) -> PathProbe {
        PathProbe::new(Arc::clone(self.socket()), self.transport)
    }
}

impl fmt::Debug for ClearLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClearLane")
            .field("socket", self.socket())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use zmove_types::{ItemId, StageClock};
    use zmove_wire::FrameKind;

    use super::*;

    const KEY: [u8; blake3::KEY_LEN] = [5; blake3::KEY_LEN];
    const OTHER_KEY: [u8; blake3::KEY_LEN] = [6; blake3::KEY_LEN];
    const HEAD: &[u8] = b"head";
    const DATA: &[u8] = b"some data";
    const OVERHEAD: usize = FrameHeader::BYTES + blake3::OUT_LEN;

    fn sockets() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near.into(), listener.accept().unwrap().0.into())
    }

    fn lane(
        socket: Socket,
        seal: [u8; blake3::KEY_LEN],
        check: [u8; blake3::KEY_LEN],
    ) -> ClearLane {
        let row = |key| FrameSequence { key, sequence: 0 };
        let unsent_limit = UnsentLimit::new(&socket);
        let nothing = Cursor::new(Vec::new());
        ClearLane {
            incoming: BufReader::with_capacity(
                ARRIVED_BYTES_MAX,
                nothing.chain(SharedSocket(Arc::new(socket))),
            ),
            transport: Transport::Tcp,
            unsent_limit,
            sealing: row(seal),
            checking: row(check),
            ended: false,
            limiter: RateLimiter::default(),
        }
    }

    fn frame(number: u64) -> Frame {
        let mut data = BufferPool::new(DATA.len(), 1).take().unwrap();
        data.room().copy_from_slice(DATA);
        data.set_len(DATA.len());
        let header = FrameHeader {
            kind: FrameKind::Batch,
            head_bytes: u32::try_from(HEAD.len()).unwrap(),
            data_bytes: u32::try_from(DATA.len()).unwrap(),
            item: ItemId(number),
            digest: [7; 32],
            ..FrameHeader::default()
        };
        Frame {
            header,
            head: HEAD.to_vec(),
            data,
        }
    }

    /// Returns the bytes that a sender writes for three frames and the end of the lane. Each frame is one item, and the
    /// last item is the end.
    fn said(key: [u8; blake3::KEY_LEN]) -> Vec<Vec<u8>> {
        let (near, mut far) = sockets();
        let mut sink = lane(near, key, OTHER_KEY);
        let clock = StageClock::default();
        (0..3).for_each(|number| sink.send(frame(number), &mut clock.start()).unwrap());
        sink.finish().unwrap();
        let mut bytes = Vec::new();
        far.read_to_end(&mut bytes).unwrap();
        let pieces = bytes
            .chunks(OVERHEAD + HEAD.len() + DATA.len())
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>();
        assert_eq!((pieces.len(), pieces[3].len()), (4, OVERHEAD));
        pieces
    }

    /// Returns the number of frames in `pieces`, which may have been modified, that a receiver accepts. Also returns
    /// the result at the end of the lane.
    fn heard(pieces: &[Vec<u8>]) -> (u64, Result<(), LaneError>) {
        let (frames, ended) = heard_frames(pieces);
        (frames.len() as u64, ended)
    }

    /// Returns the frames in `pieces` that a receiver accepts, and the result at the end of the lane.
    fn heard_frames(pieces: &[Vec<u8>]) -> (Vec<Frame>, Result<(), LaneError>) {
        let (mut near, far) = sockets();
        near.write_all(&pieces.concat()).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
        let mut source = lane(far, OTHER_KEY, KEY);
        let (pool, clock) = (BufferPool::new(DATA.len(), 3), StageClock::default());
        let mut frames = Vec::new();
        loop {
            match source.receive(&pool, &mut clock.start()) {
                Ok(Some(frame)) => {
                    assert_eq!(frame.header.item, ItemId(frames.len() as u64));
                    frames.push(frame);
                }
                Ok(None) => return (frames, Ok(())),
                Err(error) => return (frames, Err(error)),
            }
        }
    }

    #[track_caller]
    fn assert_forged_after(frames: u64, pieces: &[Vec<u8>]) {
        let (heard, ended) = heard(pieces);
        assert!(
            heard == frames && matches!(ended, Err(LaneError::Forged)),
            "after {heard}: {ended:?}"
        );
    }

    #[test]
    fn bytes_are_pinned() {
        let header = frame(0).header.encode();
        let mac = blake3::keyed_hash(&KEY, &[&[0; 8][..], &header].concat());
        let expected = [&header[..], mac.as_bytes(), HEAD, DATA].concat();
        let end = blake3::keyed_hash(&KEY, &[&[3, 0, 0, 0, 0, 0, 0, 0][..], &[0; 72]].concat());
        let pieces = said(KEY);
        assert_eq!(pieces[0], expected);
        assert_eq!(pieces[3], [&[0; 72][..], end.as_bytes()].concat());
        assert!(matches!(heard(&pieces), (3, Ok(()))));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_refused() {
        let mut pieces = said(KEY);
        for (piece, frames) in [(1, 1), (3, 3)] {
            for bit in 0..8 * OVERHEAD {
                pieces[piece][bit / 8] ^= 1 << (bit % 8);
                assert_forged_after(frames, &pieces);
                pieces[piece][bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    /// The test changes the data of a frame but not its digest. The receiver compares the two later.
    #[test]
    fn flipped_contents_keep_their_digest() {
        let mut pieces = said(KEY);
        pieces[1][OVERHEAD] ^= 1;
        let (frames, ended) = heard_frames(&pieces);
        ended.unwrap();
        assert_eq!(frames.len(), 3);
        assert_eq!(frames[1].header.digest, [7; 32]);
        assert_ne!(frames[1].head, HEAD);
    }

    #[test]
    fn repeated_swapped_and_missing_frames_are_refused() {
        let orders: [(u64, &[usize]); 6] = [
            (1, &[0, 0, 1, 2, 3]),
            (0, &[1, 0, 2, 3]),
            (1, &[0, 2, 3]),
            (0, &[1, 2, 3]),
            (2, &[0, 1, 3]),
            (0, &[3]),
        ];
        for (frames, order) in orders {
            let pieces = said(KEY);
            let order: Vec<_> = order.iter().map(|index| pieces[*index].clone()).collect();
            assert_forged_after(frames, &order);
        }
    }

    #[test]
    fn frames_of_another_lane_or_direction_are_refused() {
        let (mut pieces, other) = (said(KEY), said(OTHER_KEY));
        pieces[2].clone_from(&other[2]);
        assert_forged_after(2, &pieces);
        assert_forged_after(0, &other);
    }

    #[test]
    fn truncation_is_no_end() {
        let whole = said(KEY).concat();
        for bytes in 0..whole.len() {
            let (_, ended) = heard(&[whole[..bytes].to_vec()]);
            assert!(
                matches!(ended, Err(LaneError::Closed)),
                "{bytes} bytes: {ended:?}"
            );
        }
    }

    #[test]
    fn nothing_is_read_after_the_end() {
        let pieces = said(KEY);
        assert!(matches!(
            heard(&[&pieces[..], &pieces[..1]].concat()),
            (3, Ok(()))
        ));
    }
}
