//! What a broker may see of work items: sealed bodies, and names that say nothing.
//!
//! **Invariant:** a body opens only with the key of its job, in the job and the epoch for which it was sealed, and
//! under the message id that follows from what it says. So a broker can keep, repeat and drop items, and neither read
//! nor make nor exchange one.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use zmove_types::{Hex, SharedJobId, from_hex};

use crate::work::WorkItem;

/// What all nodes of a job know and its broker does not.
#[derive(Clone)]
pub struct JobKey([u8; Self::BYTES]);

impl JobKey {
    /// The length of a key.
    pub const BYTES: usize = 32;

    /// The key that these bytes are: random ones, of this job alone.
    #[must_use]
    pub const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }
}

impl JobKey {
    /// The key of a job of a cluster that has this key.
    #[must_use]
    pub fn of_job(&self, job: SharedJobId) -> Self {
        let mut hasher =
            blake3::Hasher::new_derive_key("zmove 2026-11-26 key of a job of a cluster");
        hasher.update(&self.0);
        hasher.update(&job.0);
        Self(*hasher.finalize().as_bytes())
    }

    /// By what the nodes of a cluster know the queue of a job of their own that has this key; it says nothing else.
    #[must_use]
    pub fn queue_tag(&self) -> String {
        let tag = blake3::derive_key("zmove 2026-11-29 tag of the queue of a job", &self.0);
        Hex(&tag[..16]).to_string()
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

/// Seals and opens what goes over the broker of one epoch of a job.
#[derive(Debug)]
pub(super) struct Seal {
    bodies: RandomizedNonceKey,
    ends: RandomizedNonceKey,
    ids: [u8; JobKey::BYTES],
    job: SharedJobId,
    epoch: u64,
}

/// The name of a message, the same for each time that an item is put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageId([u8; 16]);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl Seal {
    pub(super) fn new(key: &JobKey, job: SharedJobId, epoch: u64) -> Self {
        let aes = |purpose| aes_of(key, purpose);
        Self {
            bodies: aes("zmove 2026-11-26 bodies of work items at a broker"),
            ends: aes("zmove 2026-11-26 ends of epochs at a broker"),
            ids: blake3::derive_key(
                "zmove 2026-11-26 message ids of work items at a broker",
                &key.0,
            ),
            job,
            epoch,
        }
    }

    /// Keyed, since a path that is guessed could be hashed by anybody.
    pub(super) fn message_id(&self, item: &WorkItem) -> MessageId {
        let mut hasher = blake3::Hasher::new_keyed(&self.ids);
        hasher.update(&item.id(self.job).0);
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        MessageId(id)
    }

    pub(super) fn seal(&self, item: &WorkItem) -> Vec<u8> {
        seal(
            &self.bodies,
            &self.associated_data(self.message_id(item)),
            item.encode(),
        )
    }

    /// The item in a message of this name; `None` if none was sealed under it.
    pub(super) fn open(&self, id: &str, body: &[u8]) -> Option<WorkItem> {
        let id = MessageId(from_hex(id.as_bytes())?);
        let item = WorkItem::decode(&open(&self.bodies, &self.associated_data(id), body)?)?;
        (self.message_id(&item) == id).then_some(item)
    }

    fn associated_data(&self, id: MessageId) -> Vec<u8> {
        [&self.job.0[..], &self.epoch.to_le_bytes(), &id.0].concat()
    }

    /// A record that the epochs of the job up to this one are over.
    pub(super) fn seal_end(&self, epoch: u64) -> Vec<u8> {
        seal(&self.ends, &self.job.0, epoch.to_le_bytes().to_vec())
    }

    /// Up to which epoch the job is over, if that is what a record says.
    pub(super) fn open_end(&self, body: &[u8]) -> Option<u64> {
        let epoch = open(&self.ends, &self.job.0, body)?;
        Some(u64::from_le_bytes(epoch.try_into().ok()?))
    }
}

/// The key for one purpose.
pub(super) fn aes_of(key: &JobKey, purpose: &str) -> RandomizedNonceKey {
    let key = blake3::derive_key(purpose, &key.0);
    RandomizedNonceKey::new(&AES_256_GCM, &key).expect("a derived key has this length")
}

/// Nonce, ciphertext, tag. The nonce is random: at 2³² bodies of one job the odds that any two have the same are 2⁻³³.
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
    use crate::lab::JOB;
    use crate::work::{Marks, Place, Work};
    use zmove_types::{Name, RelPath};

    fn seal_of(key: u8, job: SharedJobId, epoch: u64) -> Seal {
        Seal::new(&JobKey::new([key; JobKey::BYTES]), job, epoch)
    }

    fn item(name: &[u8]) -> WorkItem {
        let directory = Place {
            source: 1,
            path: RelPath::root(),
        };
        let names = vec![Name::from_bytes(name).unwrap()];
        WorkItem::first(1, Marks::new(), Work::Names { directory, names })
    }

    #[test]
    fn what_is_sealed_opens_and_shows_nothing() {
        let seal = seal_of(1, JOB, 3);
        let (id, body) = (
            seal.message_id(&item(b"secret")).to_string(),
            seal.seal(&item(b"secret")),
        );
        assert_eq!(seal.open(&id, &body), Some(item(b"secret")));
        assert!(!body.windows(6).any(|window| window == b"secret"));
        assert_ne!(seal.seal(&item(b"secret")), body, "no nonce comes twice");
    }

    #[test]
    fn an_id_is_that_of_item_and_key() {
        let id = seal_of(1, JOB, 3).message_id(&item(b"a"));
        assert_eq!(seal_of(1, JOB, 4).message_id(&item(b"a")), id);
        assert_ne!(seal_of(2, JOB, 3).message_id(&item(b"a")), id);
        assert_ne!(seal_of(1, JOB, 3).message_id(&item(b"b")), id);
        assert_ne!(
            seal_of(1, JOB, 3).message_id(&WorkItem {
                pass: 2,
                ..item(b"a")
            }),
            id
        );
    }

    #[test]
    fn what_was_sealed_otherwise_does_not_open() {
        let seal = seal_of(1, JOB, 3);
        let (id, body) = (
            seal.message_id(&item(b"a")).to_string(),
            seal.seal(&item(b"a")),
        );
        let other_job = SharedJobId([8; 16]);
        for other in [
            seal_of(2, JOB, 3),
            seal_of(1, other_job, 3),
            seal_of(1, JOB, 4),
        ] {
            assert_eq!(other.open(&id, &body), None);
        }
        assert_eq!(
            seal.open(&seal.message_id(&item(b"b")).to_string(), &body),
            None,
            "another's name"
        );
        assert_eq!(seal.open("", &body), None);
        assert!((0..body.len()).all(|len| seal.open(&id, &body[..len]).is_none()));
        for at in 0..body.len() {
            let mut changed = body.clone();
            changed[at] ^= 1;
            assert_eq!(seal.open(&id, &changed), None, "byte {at}");
        }
    }

    #[test]
    fn an_end_is_that_of_its_job() {
        let end = seal_of(1, JOB, 3).seal_end(5);
        assert_eq!(seal_of(1, JOB, 9).open_end(&end), Some(5));
        assert_eq!(seal_of(2, JOB, 3).open_end(&end), None);
        assert_eq!(seal_of(1, SharedJobId([8; 16]), 3).open_end(&end), None);
        let item = seal_of(1, JOB, 3).seal(&item(b"a"));
        assert_eq!(seal_of(1, JOB, 3).open_end(&item), None);
    }
}
