//! The keys of a connection: those that rustls has negotiated, and their successors (RFC 8446 §5.3, §7.1 to §7.3).
//!
//! After many records, a key is replaced by the next key with TLS's `KeyUpdate`. rustls returns the current keys, but
//! not the secrets that are needed to derive the next keys. The rustls type that can derive them (`KernelConnection`)
//! requires an unbuffered connection, which tokio-rustls does not provide. So the secrets are taken from the key log,
//! one log per connection. They are kept in memory like rustls's own secrets, and wiped when dropped.
//!
//! **Invariant:** no key seals two records with the same nonce. The sequence number continues from that of rustls and
//! restarts only with a new key. A connection whose keys have changed since the handshake is rejected.

use std::fmt;
use std::sync::{Arc, OnceLock};

use aws_lc_rs::{
    aead::{self, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{self, HKDF_SHA256, HKDF_SHA384, KeyType, Okm, Prk},
};
use rustls::{ClientConfig, Connection, ConnectionTrafficSecrets, KeyLog, ServerConfig};

use super::{HEADER_BYTES, RecordError, TAG_BYTES};
use crate::lane::LaneError;

const NONCE_BYTES: usize = aead::NONCE_LEN;

/// The first traffic secrets of one connection, which rustls has derived.
#[derive(Default)]
pub(crate) struct TrafficSecrets {
    client: OnceLock<Secret>,
    server: OnceLock<Secret>,
}

/// The key of one direction and the sequence number of its next record.
pub(crate) struct TrafficKey {
    aead: &'static aead::Algorithm,
    secret: Secret,
    key: LessSafeKey,
    iv: [u8; NONCE_BYTES],
    sequence: u64,
}

/// A traffic secret, from which its keys and the next secret are derived.
#[derive(Clone)]
struct Secret {
    prk: Prk,
    hash: hkdf::Algorithm,
}

/// Returns the keys for the next records of a connection: the sealing key and the opening key. The caller must have
/// read all plaintext and written all records.
pub(crate) fn traffic_keys(
    session: Connection,
    secrets: &TrafficSecrets,
) -> Result<(TrafficKey, TrafficKey), LaneError> {
    let (own, peer) = match session {
        Connection::Client(_) => (&secrets.client, &secrets.server),
        Connection::Server(_) => (&secrets.server, &secrets.client),
    };
    let extracted = session.dangerous_extract_secrets()?;
    Ok((
        TrafficKey::resume(own, extracted.tx.0, &extracted.tx.1)?,
        TrafficKey::resume(peer, extracted.rx.0, &extracted.rx.1)?,
    ))
}

impl TrafficSecrets {
    /// Returns a copy of `config` for one connection. The secrets of the connection are stored in `self`.
    pub(crate) fn of_client(self: &Arc<Self>, config: &ClientConfig) -> Arc<ClientConfig> {
        let mut config = config.clone();
        config.enable_secret_extraction = true;
        config.key_log = Arc::<Self>::clone(self);
        Arc::new(config)
    }

    /// Returns a copy of `config` for one connection. The secrets of the connection are stored in `self`.
    pub(crate) fn of_server(self: &Arc<Self>, config: &ServerConfig) -> Arc<ServerConfig> {
        let mut config = config.clone();
        config.enable_secret_extraction = true;
        config.key_log = Arc::<Self>::clone(self);
        Arc::new(config)
    }

    fn place(&self, label: &str) -> Option<&OnceLock<Secret>> {
        match label {
            "CLIENT_TRAFFIC_SECRET_0" => Some(&self.client),
            "SERVER_TRAFFIC_SECRET_0" => Some(&self.server),
            _ => None,
        }
    }
}

impl KeyLog for TrafficSecrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if let Some(place) = self.place(label)
            && let Some(secret) = Secret::new(secret)
        {
            // A connection has only one handshake, so no other secret can be stored here.
            place.get_or_init(|| secret);
        }
    }

    fn will_log(&self, label: &str) -> bool {
        self.place(label).is_some()
    }
}

impl fmt::Debug for TrafficSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrafficSecrets")
    }
}

impl TrafficKey {
    /// Recreates the key that rustls uses. The key and its initialization vector are derived from the same secret. So
    /// if the vector differs, the keys have changed since the handshake.
    fn resume(
        secret: &OnceLock<Secret>,
        sequence: u64,
        used: &ConnectionTrafficSecrets,
    ) -> Result<Self, RecordError> {
        let (aead, used_iv) = match used {
            ConnectionTrafficSecrets::Aes128Gcm { iv, .. } => (&aead::AES_128_GCM, iv),
            ConnectionTrafficSecrets::Aes256Gcm { iv, .. } => (&aead::AES_256_GCM, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { iv, .. } => (&aead::CHACHA20_POLY1305, iv),
            _ => return Err(RecordError::Rekeyed),
        };
        let key = Self::new(
            aead,
            secret.get().ok_or(RecordError::Rekeyed)?.clone(),
            sequence,
        );
        if used_iv.as_ref() == key.iv {
            Ok(key)
        } else {
            Err(RecordError::Rekeyed)
        }
    }

    fn new(aead: &'static aead::Algorithm, secret: Secret, sequence: u64) -> Self {
        let key = secret.derive(b"key", aead, |derived| UnboundKey::from(derived));
        let mut iv = [0; NONCE_BYTES];
        secret
            .derive(b"iv", IvLength, |derived| derived.fill(&mut iv))
            .expect("the lengths are equal");
        Self {
            aead,
            secret,
            key: LessSafeKey::new(key),
            iv,
            sequence,
        }
    }

    /// Returns the key with which the client seals its first record.
    pub(super) fn first(aead: &'static aead::Algorithm, secrets: &TrafficSecrets) -> Self {
        Self::new(
            aead,
            secrets.client.get().expect("the handshake is over").clone(),
            0,
        )
    }

    /// Replaces this key with the next key.
    pub(super) fn update(&mut self) {
        *self = Self::new(self.aead, self.secret.next(), 0);
    }

    /// Returns the number of records that this key has sealed or opened.
    pub(super) const fn records(&self) -> u64 {
        self.sequence
    }

    /// Seals the next record into `body`: the ciphertext, the sealed content type, and the tag.
    pub(super) fn seal(
        &mut self,
        header: [u8; HEADER_BYTES],
        content_type: u8,
        plaintext: &[u8],
        body: &mut [u8],
    ) {
        let (sealed, ending) = body.split_at_mut(plaintext.len());
        let nonce = self.nonce();
        self.key
            .seal_out_of_place_scatter(
                nonce,
                Aad::from(header),
                plaintext,
                sealed,
                &[content_type],
                ending,
            )
            .expect("the lengths agree and are far below the suites' limits");
    }

    /// Opens the next record and writes its contents to `inner`. `body` must be longer than a tag. The length of
    /// `inner` must be that of `body` minus that of the tag.
    pub(super) fn open(
        &mut self,
        header: [u8; HEADER_BYTES],
        body: &[u8],
        inner: &mut [u8],
    ) -> Result<(), RecordError> {
        let nonce = self.nonce();
        let (sealed, tag) = body.split_at(body.len() - TAG_BYTES);
        let opened = self
            .key
            .open_separate_gather(nonce, Aad::from(header), sealed, tag, inner);
        opened.map_err(|_| RecordError::Forged)
    }

    #[expect(clippy::big_endian_bytes, reason = "TLS is big-endian")]
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        let sequence = self.sequence.to_be_bytes();
        let low = &mut nonce[NONCE_BYTES - sequence.len()..];
        low.iter_mut()
            .zip(sequence)
            .for_each(|(byte, sequence)| *byte ^= sequence);
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Secret {
    /// Creates a secret. Returns `None` for a length that no supported cipher suite uses.
    fn new(bytes: &[u8]) -> Option<Self> {
        // The length of a secret is the output length of its suite's hash.
        let hash = [HKDF_SHA256, HKDF_SHA384]
            .into_iter()
            .find(|hash| hash.len() == bytes.len())?;
        Some(Self {
            prk: Prk::new_less_safe(hash, bytes),
            hash,
        })
    }

    fn next(&self) -> Self {
        Self {
            prk: self.derive(b"traffic upd", self.hash, |derived| Prk::from(derived)),
            hash: self.hash,
        }
    }

    /// HKDF-Expand-Label of RFC 8446 §7.1, with an empty context.
    fn derive<L: KeyType, T>(
        &self,
        label: &[u8],
        length: L,
        make: impl FnOnce(Okm<'_, L>) -> T,
    ) -> T {
        const PREFIX: &[u8] = b"tls13 ";
        let short = |length| u8::try_from(length).expect("labels, keys and secrets are short");
        let lengths = [0, short(length.len()), short(PREFIX.len() + label.len())];
        let info = [&lengths[..], PREFIX, label, &[0]];
        make(
            self.prk
                .expand(&info, length)
                .expect("the hash gives that many bytes"),
        )
    }
}

/// The length of an initialization vector.
struct IvLength;

impl KeyType for IvLength {
    fn len(&self) -> usize {
        NONCE_BYTES
    }
}
