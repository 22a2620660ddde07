//! Opens records and decrypts their plaintext directly into the buffer of the reader.
//!
//! If the reader's slice is too short for the plaintext of a record, the record is decrypted into a spill buffer for
//! one record. Bytes after the peer's end of the stream are ignored, as RFC 8446 §6.1 requires.

use std::io::{self, Read};
use std::ops::Range;

use super::{
    ALERT, APPLICATION_DATA, BODY_BYTES_MAX, CLOSE_NOTIFY, HANDSHAKE, HEADER_BYTES, KEY_UPDATE,
    RecordError, TAG_BYTES, TrafficKey,
};

/// Maximum number of bytes per system call. More bytes would not stay in the CPU cache. Fewer bytes would require more
/// calls.
const ARRIVED_BYTES_MAX: usize = 256 << 10;

/// Opens received records.
pub(crate) struct Opener {
    key: TrafficKey,
    /// Bytes received from the socket. The range `unopened` holds records, the last of which may be incomplete.
    arrived: Vec<u8>,
    unopened: Range<usize>,
    /// Decrypted plaintext that did not fit into the reader's slice.
    spill: Vec<u8>,
    unread: Range<usize>,
    ended: bool,
}

impl Opener {
    /// Creates an opener for a connection that is taken over from rustls. `plaintext` was decrypted by rustls.
    /// `arrived` contains records that were not opened yet.
    pub(crate) fn new(key: TrafficKey, mut plaintext: Vec<u8>, arrived: &[u8]) -> Self {
        let unread = 0..plaintext.len();
        plaintext.resize(plaintext.len().max(BODY_BYTES_MAX), 0);
        let mut room = vec![0; arrived.len() + ARRIVED_BYTES_MAX];
        room[..arrived.len()].copy_from_slice(arrived);
        Self {
            key,
            arrived: room,
            unopened: 0..arrived.len(),
            spill: plaintext,
            unread,
            ended: false,
        }
    }

    /// Fills `out` from the received records. Returns the number of bytes filled.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> Result<usize, RecordError> {
        let mut filled = self.read_spill(out);
        while filled < out.len() && !self.ended {
            let Some(body) = self.next_body()? else { break };
            filled += self.open(body, &mut out[filled..])?;
        }
        Ok(filled)
    }

    /// Returns whether the peer has ended the stream and all of its plaintext has been read.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended && self.unread.is_empty()
    }

    /// Receives bytes from `socket`. Call this only if [`read`](Self::read) needs more bytes. Returns 0 at the end of
    /// the socket.
    pub(crate) fn receive(&mut self, socket: &mut impl Read) -> io::Result<usize> {
        self.make_room();
        loop {
            match socket.read(&mut self.arrived[self.unopened.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(taken) => {
                    self.unopened.end += taken;
                    return Ok(taken);
                }
            }
        }
    }

    /// Moves the incomplete record to the front if half of the buffer is used, so that there is enough free space for
    /// large system calls.
    fn make_room(&mut self) {
        if self.unopened.is_empty() {
            self.unopened = 0..0;
        } else if self.unopened.start > self.arrived.len() / 2 {
            self.arrived.copy_within(self.unopened.clone(), 0);
            self.unopened = 0..self.unopened.len();
        }
    }

    fn read_spill(&mut self, out: &mut [u8]) -> usize {
        let taken = out.len().min(self.unread.len());
        out[..taken].copy_from_slice(&self.spill[self.unread.clone()][..taken]);
        self.unread.start += taken;
        taken
    }

    /// Returns the range of the next record's body, or `None` if the record is incomplete.
    #[expect(clippy::big_endian_bytes, reason = "TLS is big-endian")]
    fn next_body(&self) -> Result<Option<Range<usize>>, RecordError> {
        let unopened = &self.arrived[self.unopened.clone()];
        let Some(&[content_type, _, _, high, low]) = unopened.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let bytes = usize::from(u16::from_be_bytes([high, low]));
        match bytes {
            _ if content_type != APPLICATION_DATA => Err(RecordError::Unexpected { content_type }),
            ..=TAG_BYTES => Err(RecordError::Undersized { bytes }),
            _ if bytes > BODY_BYTES_MAX => Err(RecordError::Oversized { bytes }),
            _ if HEADER_BYTES + bytes > unopened.len() => Ok(None),
            _ => {
                let start = self.unopened.start + HEADER_BYTES;
                Ok(Some(start..start + bytes))
            }
        }
    }

    /// Opens the record with this body. Returns the number of bytes of plaintext written to `out`.
    fn open(&mut self, body: Range<usize>, out: &mut [u8]) -> Result<usize, RecordError> {
        self.unopened.start = body.end;
        let inner_bytes = body.len() - TAG_BYTES;
        let header = *self.arrived[..body.start]
            .last_chunk()
            .expect("a header precedes a body");
        let fits = inner_bytes <= out.len();
        let inner = if fits {
            &mut out[..inner_bytes]
        } else {
            &mut self.spill[..inner_bytes]
        };
        self.key.open(header, &self.arrived[body], inner)?;
        // The last nonzero byte is the content type. The zeros after it are padding.
        let last = inner
            .iter()
            .rposition(|byte| *byte != 0)
            .ok_or(RecordError::Untyped)?;
        match (inner[last], &inner[..last]) {
            (APPLICATION_DATA, _) if fits => return Ok(last),
            (APPLICATION_DATA, _) => {
                self.unread = 0..last;
                return Ok(self.read_spill(out));
            }
            (HANDSHAKE, message) if message == KEY_UPDATE => self.key.update(),
            (ALERT, alert) if alert == CLOSE_NOTIFY => self.ended = true,
            // TLS 1.3 ignores the level.
            (ALERT, &[_, description]) => return Err(alert(description)),
            (content_type, _) => return Err(RecordError::Unexpected { content_type }),
        }
        Ok(0)
    }
}

fn alert(description: u8) -> RecordError {
    RecordError::Alert {
        description: description.into(),
    }
}
