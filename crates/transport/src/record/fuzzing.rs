//! Fuzz targets of the record layer for `crates/fuzz`.

use std::sync::OnceLock;

use aws_lc_rs::aead;
use rustls::KeyLog;

use super::{
    ALERT, APPLICATION_DATA, CLOSE_NOTIFY, HANDSHAKE, KEY_UPDATE, Opener, TAG_BYTES, TrafficKey,
    TrafficSecrets, header,
};

/// Opens the records of a peer that seals arbitrary contents with the keys, and of a peer without keys that sends
/// arbitrary bytes.
///
/// The first two bytes determine the sizes of the pieces in which records arrive and of each read. A sequence of steps
/// follows. Each step consists of a kind, a length, and that number of bytes. The kinds are application data, padded
/// application data, a key update, the end of the stream, any other inner type, and raw bytes.
///
/// # Panics
/// Panics if the opened plaintext differs from the sealed plaintext before the first invalid record.
pub fn records(bytes: &[u8]) {
    let Some((&[piece, want], mut steps)) = bytes.split_first_chunk() else {
        return;
    };
    let mut sealed = Sealed {
        key: key(),
        records: Vec::new(),
        plaintext: Vec::new(),
        sound: true,
    };
    while let Some((&[kind, length], rest)) = steps.split_first_chunk() {
        let (taken, rest) = rest.split_at(usize::from(length).min(rest.len()));
        sealed.step(kind, taken);
        steps = rest;
    }
    let mut opener = Opener::new(key(), Vec::new(), &[]);
    let (opened, failed) = read_all(
        &mut opener,
        &sealed.records,
        usize::from(piece) * 64 + 1,
        usize::from(want) * 64 + 1,
    );
    assert!(
        opened.len() <= sealed.plaintext.len(),
        "more was opened than was sealed"
    );
    assert_eq!(opened, sealed.plaintext[..opened.len()]);
    assert!(
        !sealed.sound || (!failed && opened.len() == sealed.plaintext.len()),
        "all was in place"
    );
}

/// Returns a key that is the same at both ends and in every run.
fn key() -> TrafficKey {
    static SECRETS: OnceLock<TrafficSecrets> = OnceLock::new();
    let secrets = SECRETS.get_or_init(|| {
        let secrets = TrafficSecrets::default();
        secrets.log("CLIENT_TRAFFIC_SECRET_0", &[], &[7; 32]);
        secrets
    });
    TrafficKey::first(&aead::AES_128_GCM, secrets)
}

struct Sealed {
    key: TrafficKey,
    records: Vec<u8>,
    /// The plaintext that the reader may return.
    plaintext: Vec<u8>,
    /// True if the reader must return all of the plaintext.
    sound: bool,
}

impl Sealed {
    fn step(&mut self, kind: u8, taken: &[u8]) {
        match kind % 8 {
            0 => self.application_data(taken, 0),
            1 => self.application_data(taken, taken.len()),
            2 => self.application_data(&taken.repeat(64), 0),
            3 => {
                self.record(HANDSHAKE, &KEY_UPDATE);
                self.key.update();
            }
            4 => {
                self.record(ALERT, &CLOSE_NOTIFY);
                // Bytes after the end are ignored and may have any value.
                self.sound = false;
            }
            5 | 6 => {
                let (inner, rest) = taken
                    .split_first()
                    .map_or((0, taken), |(inner, rest)| (*inner, rest));
                self.sound = false;
                self.record(inner, rest);
                // Zeros are padding, and the byte before them is the content type.
                let inner = [rest, &[inner]].concat();
                let last = inner.iter().rposition(|&byte| byte != 0);
                if let Some(last) = last.filter(|&last| inner[last] == APPLICATION_DATA) {
                    self.plaintext.extend_from_slice(&inner[..last]);
                }
            }
            _ => {
                self.sound = false;
                self.records.extend_from_slice(taken);
            }
        }
    }

    fn application_data(&mut self, plaintext: &[u8], padding: usize) {
        let inner = [plaintext, &[APPLICATION_DATA], &vec![0; padding]].concat();
        let (last, before) = inner.split_last().expect("it has a content type");
        self.record(*last, before);
        self.plaintext.extend_from_slice(plaintext);
    }

    fn record(&mut self, content_type: u8, plaintext: &[u8]) {
        let mut body = vec![0; plaintext.len() + 1 + TAG_BYTES];
        let header = header(body.len());
        self.key.seal(header, content_type, plaintext, &mut body);
        self.records.extend_from_slice(&header);
        self.records.extend_from_slice(&body);
    }
}

/// Returns all plaintext up to the end or the first error, and whether an error occurred.
fn read_all(opener: &mut Opener, records: &[u8], piece: usize, want: usize) -> (Vec<u8>, bool) {
    let mut opened = Vec::new();
    let mut out = vec![0; want];
    for mut piece in records.chunks(piece) {
        while !piece.is_empty() && !opener.has_ended() {
            if opener.receive(&mut piece).is_err() {
                return (opened, true);
            }
            loop {
                let Ok(filled) = opener.read(&mut out) else {
                    return (opened, true);
                };
                opened.extend_from_slice(&out[..filled]);
                if filled < want {
                    break;
                }
            }
        }
    }
    (opened, false)
}
