//! Seals plaintext into records, many in one buffer, so that one system call sends them.
//!
//! **Invariant:** no key seals more than [`RECORDS_PER_KEY_MAX`] records: the last one announces the next key.

use super::{
    ALERT, APPLICATION_DATA, CLOSE_NOTIFY, HANDSHAKE, HEADER_BYTES, KEY_UPDATE,
    PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX, TAG_BYTES, TrafficKey, header,
};

/// The number of full records for one system call. More do not stay in the processor's cache, fewer cost more calls.
const RECORDS_MAX: usize = 16;

/// The most records for one key. AES-GCM may seal 2^24.5 full ones (RFC 8446 §5.5); this stays well below, for all
/// suites.
const RECORDS_PER_KEY_MAX: u64 = 1 << 23;

/// The bytes that a record adds to its plaintext.
const OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;

/// Seals plaintext into records that wait to be sent.
pub(crate) struct Sealer {
    key: TrafficKey,
    pub(super) records_per_key_max: u64,
    waiting: Vec<u8>,
    used: usize,
}

impl Sealer {
    pub(crate) fn new(key: TrafficKey) -> Self {
        // One record more than the full ones, for a frame's header and head before the data.
        let waiting = vec![0; (RECORDS_MAX + 1) * RECORD_BYTES_MAX];
        Self {
            key,
            records_per_key_max: RECORDS_PER_KEY_MAX,
            waiting,
            used: 0,
        }
    }

    /// Seals as much of `plaintext` as there is room for; returns how much that was.
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

    /// Seals the orderly end, for which the caller must have [made room](Self::clear).
    pub(crate) fn close(&mut self) {
        self.push(ALERT, &CLOSE_NOTIFY);
    }

    /// Frees the room: the waiting records have been sent.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// The records that wait to be sent.
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

/// The least room for more: a full record and the change of keys before it.
const ROOM_BYTES_MIN: usize = RECORD_BYTES_MAX + OVERHEAD_BYTES + KEY_UPDATE.len();
