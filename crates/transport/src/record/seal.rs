//! Seals plaintext into several records in one buffer, so that a single system call sends them.
//!
//! **Invariant:** no key seals more than [`RECORDS_PER_KEY_MAX`] records. The last one announces the next key.

use super::{
    ALERT, APPLICATION_DATA, CLOSE_NOTIFY, HANDSHAKE, HEADER_BYTES, KEY_UPDATE,
    PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX, TAG_BYTES, TrafficKey, header,
};

/// Number of full records per system call. More records would not stay in the CPU cache. Fewer records would require
/// more calls.
const RECORDS_MAX: usize = 16;

/// Maximum number of records per key. AES-GCM may seal 2^24.5 full records (RFC 8446 §5.5). This value is well below
/// that limit and is used for all cipher suites.
const RECORDS_PER_KEY_MAX: u64 = 1 << 23;

/// Number of bytes that a record adds to its plaintext.
const OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;

/// Seals plaintext into a buffer of records to be sent.
pub(crate) struct Sealer {
    key: TrafficKey,
    pub(super) records_per_key_max: u64,
    waiting: Vec<u8>,
    used: usize,
}

impl Sealer {
    pub(crate) fn new(key: TrafficKey) -> Self {
        // The buffer has space for one record in addition to the full records. The header and head of a frame, which
        // precede the data, use this space.
        let waiting = vec![0; (RECORDS_MAX + 1) * RECORD_BYTES_MAX];
        Self {
            key,
            records_per_key_max: RECORDS_PER_KEY_MAX,
            waiting,
            used: 0,
        }
    }

    /// Seals as much of `plaintext` as fits into the buffer. Returns the number of bytes sealed.
    pub(crate) fn seal(&mut self, plaintext: &[u8]) -> usize {
        let mut taken = 0;
        while taken < plaintext.len() && self.waiting.len() - self.used >= ROOM_BYTES_MIN {
            self.update_if_due();
            let rest = &plaintext[taken..];
            let record = &rest[..rest.len().min(PLAINTEXT_BYTES_MAX)];
            self.push(APPLICATION_DATA, record);
            taken += record.len();
        }
        taken
    }

    /// Seals the end of the stream. The caller must have [emptied the buffer](Self::clear).
    pub(crate) fn close(&mut self) {
        self.push(ALERT, &CLOSE_NOTIFY);
    }

    /// Empties the buffer, after its records have been sent.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns the records to be sent.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.waiting[..self.used]
    }

    fn update_if_due(&mut self) {
        if self.key.records() + 1 >= self.records_per_key_max {
            self.push(HANDSHAKE, &KEY_UPDATE);
            self.key.update();
        }
    }

    fn push(&mut self, content_type: u8, plaintext: &[u8]) {
        let room = &mut self.waiting[self.used..][..plaintext.len() + OVERHEAD_BYTES];
        let (head, body) = room.split_at_mut(HEADER_BYTES);
        let header = header(body.len());
        head.copy_from_slice(&header);
        self.key.seal(header, content_type, plaintext, body);
        self.used += plaintext.len() + OVERHEAD_BYTES;
    }
}

/// Minimum free space for another record: a full record and a key update before it.
const ROOM_BYTES_MIN: usize = RECORD_BYTES_MAX + OVERHEAD_BYTES + KEY_UPDATE.len();
