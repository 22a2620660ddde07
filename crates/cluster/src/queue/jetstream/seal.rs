//! Encryption of work items at a broker: sealed bodies, and names that reveal nothing.
//!
//! **Invariant:** a body can be decrypted only with the key of its job, in the job for which it was sealed, and under
//! the message id that is derived from its contents. A broker can therefore keep, replay and drop items, but it cannot
//! read, forge or swap them.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use zmove_types::{Hex, SharedJobId};

use crate::queue::WorkItem;

/// A secret that all nodes of a job share and its broker does not know.
#[derive(Clone)]
pub struct JobKey([u8; Self::BYTES]);

impl JobKey {
    /// Length of a key, in bytes.
    pub const BYTES: usize = 32;

    /// Creates a key from random bytes that are used for this job only.
    #[must_use]
    pub const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Derives the key of a job from this cluster key.
    #[must_use]
    pub fn of_job(&self, job: SharedJobId) -> Self {
        let mut hasher =
            blake3::Hasher::new_derive_key("zmove 2026-11-26 key of a job of a cluster");
        hasher.update(&self.0);
        hasher.update(&job.0);
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

/// Encrypts and decrypts the objects of a job at the broker.
#[derive(Debug)]
pub(super) struct Seal {
    bodies: RandomizedNonceKey,
    names: [u8; JobKey::BYTES],
    job: SharedJobId,
}

impl Seal {
    pub(super) fn new(key: &JobKey, job: SharedJobId) -> Self {
        Self {
            bodies: aes_of(key, "zmove 2026-11-26 bodies of work items at a broker"),
            names: blake3::derive_key("zmove 2026-11-29 names at a broker", &key.0),
            job,
        }
    }

    /// Returns the name of the job.
    pub(super) fn job_name(&self) -> String {
        self.name(&[])
    }

    /// Returns the message id of an item. The id is the same each time that the item is put into the queue. It is
    /// computed with the job's key, because anyone could hash a path that they guess.
    pub(super) fn message_id(&self, item: &WorkItem) -> String {
        self.name(&item.id().0)
    }

    /// Returns the record that the job is over.
    pub(super) fn end_record(&self) -> String {
        self.name(b"end")
    }

    /// Returns a name that can be computed only with the key of the job.
    fn name(&self, of: &[u8]) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.names);
        hasher.update(&self.job.0);
        hasher.update(of);
        Hex(&hasher.finalize().as_bytes()[..16]).to_string()
    }

    pub(super) fn seal(&self, item: &WorkItem) -> Vec<u8> {
        let id = self.message_id(item);
        seal(&self.bodies, id.as_bytes(), item.encode())
    }

    /// Decrypts the item in a message with this id. Returns `None` if it was not sealed under this id.
    pub(super) fn open(&self, id: &str, body: &[u8]) -> Option<WorkItem> {
        let item = WorkItem::decode(&open(&self.bodies, id.as_bytes(), body)?)?;
        (self.message_id(&item) == id).then_some(item)
    }
}

/// Derives the encryption key for one purpose.
pub(super) fn aes_of(key: &JobKey, purpose: &str) -> RandomizedNonceKey {
    let key = blake3::derive_key(purpose, &key.0);
    RandomizedNonceKey::new(&AES_256_GCM, &key).expect("a derived key has this length")
}

/// Returns nonce, ciphertext and tag. The nonce is random: for a job with 2³² bodies, the probability that a nonce
/// repeats is 2⁻³³.
pub(super) fn seal(
    key: &RandomizedNonceKey,
    associated_data: &[u8],
    mut plaintext: Vec<u8>,
) -> Vec<u8> {
    let nonce = key
        .seal_in_place_append_tag(Aad::from(associated_data), &mut plaintext)
        .expect("an item is short");
    [nonce.as_ref(), &plaintext[..]].concat()
}

pub(super) fn open(
    key: &RandomizedNonceKey,
    associated_data: &[u8],
    body: &[u8],
) -> Option<Vec<u8>> {
    let (nonce, plaintext) = body.split_at_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut plaintext = plaintext.to_vec();
    let len = key
        .open_in_place(nonce, Aad::from(associated_data), &mut plaintext)
        .ok()?
        .len();
    plaintext.truncate(len);
    Some(plaintext)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::{JOB, item_of, root};
    use crate::queue::ItemWork;
    use zmove_types::Name;

    fn seal_of(key: u8, job: SharedJobId) -> Seal {
        Seal::new(&JobKey::new([key; JobKey::BYTES]), job)
    }

    fn item(name: &[u8]) -> WorkItem {
        let names = vec![Name::from_bytes(name).unwrap()];
        let directory = root();
        item_of(1, ItemWork::Names { directory, names })
    }

    #[test]
    fn a_sealed_item_opens_and_shows_nothing() {
        let seal = seal_of(1, JOB);
        let id = seal.message_id(&item(b"secret"));
        let body = seal.seal(&item(b"secret"));
        assert_eq!(seal.open(&id, &body), Some(item(b"secret")));
        assert!(!body.windows(6).any(|window| window == b"secret"));
        assert_ne!(seal.seal(&item(b"secret")), body, "no nonce comes twice");
    }

    #[test]
    fn an_id_follows_from_item_pass_and_key() {
        let id = seal_of(1, JOB).message_id(&item(b"a"));
        assert_eq!(seal_of(1, JOB).message_id(&item(b"a")), id);
        assert_ne!(seal_of(2, JOB).message_id(&item(b"a")), id);
        assert_ne!(seal_of(1, JOB).message_id(&item(b"b")), id);
        let of_next_pass = WorkItem {
            pass: 2,
            ..item(b"a")
        };
        assert_ne!(seal_of(1, JOB).message_id(&of_next_pass), id);
    }

    #[test]
    fn an_item_that_was_sealed_otherwise_does_not_open() {
        let seal = seal_of(1, JOB);
        let id = seal.message_id(&item(b"a"));
        let body = seal.seal(&item(b"a"));
        for other in [seal_of(2, JOB), seal_of(1, SharedJobId([8; 16]))] {
            assert_eq!(other.open(&id, &body), None);
            assert_ne!(other.job_name(), seal.job_name());
        }
        let other_id = seal.message_id(&item(b"b"));
        assert_eq!(seal.open(&other_id, &body), None);
        assert_eq!(seal.open("", &body), None);
        assert!((0..body.len()).all(|len| seal.open(&id, &body[..len]).is_none()));
        for at in 0..body.len() {
            let mut changed = body.clone();
            changed[at] ^= 1;
            assert_eq!(seal.open(&id, &changed), None, "byte {at}");
        }
    }

    #[test]
    fn an_end_belongs_to_its_job() {
        let end = seal_of(1, JOB).end_record();
        assert_eq!(seal_of(1, JOB).end_record(), end);
        for other in [seal_of(2, JOB), seal_of(1, SharedJobId([8; 16]))] {
            assert_ne!(other.end_record(), end);
        }
        assert_ne!(seal_of(1, JOB).job_name(), end);
    }
}
