//! The grant that lets a node take part in a job of many nodes. The head (the node that leads the job) signs the grant.
//! The receivers trust the head's key, so they need not know the keys of the other nodes.
//!
//! A grant is not a message. A node presents it as its last certificate on every connection, because a receiver reads
//! only certificates from a peer with an unknown key. No DER certificate begins with the same bytes as a grant.
//! **Invariant:** a grant can be used only by the holder of the key that it names, and only for the opening that it
//! contains.

use serde::{Deserialize, Serialize};

use super::{Open, bytes, decode_message, list};
use crate::error::WireError;
use crate::limits::{
    CERTIFICATE_BYTES_MAX, JOB_GRANT_BYTES_MAX, JOB_GRANT_CERTIFICATES_MAX,
    JOB_GRANT_RECEIVERS_MAX, SIGNATURE_BYTES_MAX, within,
};

/// A grant for one node of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobGrant {
    /// The key of the node.
    pub node: [u8; 32],
    /// The keys of the receivers that accept the grant.
    #[serde(deserialize_with = "list::at_most::<JOB_GRANT_RECEIVERS_MAX, _, _>")]
    pub receivers: Vec<[u8; 32]>,
    /// The only opening that the grant permits. Its run and the name of its node may differ. Only the names in this
    /// opening may be the first component of a path. An empty list allows any name.
    pub open: Open,
    /// The time from which the grant is valid, in seconds since 1970.
    pub not_before: u64,
    /// The time until which the grant is valid, in seconds since 1970.
    pub not_after: u64,
}

impl JobGrant {
    /// Encodes the grant, which yields the text to sign.
    ///
    /// # Panics
    /// Never, because the vector grows as needed.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a vector grows")
    }
}

/// A grant with the signature of the head (the node that leads the job).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SignedJobGrant {
    /// The decoded grant. `text` is its encoding.
    #[serde(skip)]
    pub grant: JobGrant,
    /// The signed bytes: the encoded grant.
    pub text: Vec<u8>,
    /// The certificates of the node that leads the job. The certificate of its own key is the first.
    pub certificates: Vec<Vec<u8>>,
    /// The signature of the text.
    pub signature: Vec<u8>,
}

/// A signed grant as received.
#[derive(Deserialize)]
struct ReceivedJobGrant {
    #[serde(deserialize_with = "bytes::at_most::<JOB_GRANT_BYTES_MAX, _>")]
    text: Vec<u8>,
    #[serde(deserialize_with = "list::at_most::<JOB_GRANT_CERTIFICATES_MAX, _, _>")]
    certificates: Vec<Certificate>,
    #[serde(deserialize_with = "bytes::at_most::<SIGNATURE_BYTES_MAX, _>")]
    signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Certificate(
    #[serde(deserialize_with = "bytes::at_most::<CERTIFICATE_BYTES_MAX, _>")] Vec<u8>,
);

impl SignedJobGrant {
    /// Maximum size of a signed grant, in bytes.
    pub const BYTES_MAX: usize = 40 << 10;

    /// Returns whether a peer's certificate is a grant.
    #[must_use]
    pub fn is_job_grant(certificate: &[u8]) -> bool {
        certificate.starts_with(ANY_VERSION)
    }

    /// Encodes the signed grant.
    ///
    /// # Panics
    /// Never, because the vector grows as needed.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, [ANY_VERSION, VERSION].concat()).expect("a vector grows")
    }

    /// Decodes a signed grant.
    ///
    /// # Errors
    /// The bytes are not a grant of this version, are too long, or are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        within(
            "number of bytes of a grant",
            bytes.len() as u64,
            Self::BYTES_MAX as u64,
        )?;
        let body = bytes
            .strip_prefix(ANY_VERSION)
            .and_then(|rest| rest.strip_prefix(VERSION));
        let taken = postcard::take_from_bytes::<ReceivedJobGrant>(body.ok_or(WireError::Message)?);
        let Ok((
            ReceivedJobGrant {
                text,
                certificates,
                signature,
            },
            [],
        )) = taken
        else {
            return Err(WireError::Message);
        };
        let certificates = certificates
            .into_iter()
            .map(|certificate| certificate.0)
            .collect();
        let signed = Self {
            grant: decode_message(&text)?,
            text,
            certificates,
            signature,
        };
        if signed.encode() == bytes {
            Ok(signed)
        } else {
            Err(WireError::OtherForm)
        }
    }
}

const ANY_VERSION: &[u8] = b"zmove job grant ";
const VERSION: &[u8] = b"1\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::open::TargetShape;
    use crate::message::open::tests::fixed;
    use zmove_types::Name;

    fn sample() -> SignedJobGrant {
        let grant = JobGrant {
            node: [1; 32],
            receivers: vec![[2; 32]],
            open: Open::new(b"t".to_vec(), [3; 16]),
            not_before: 300,
            not_after: 301,
        };
        let text = grant.encode();
        SignedJobGrant {
            grant,
            text,
            certificates: vec![vec![4], vec![5]],
            signature: vec![6],
        }
    }

    #[test]
    fn a_grant_is_pinned() {
        let bytes = sample().encode();
        let open = fixed(b"t", 3);
        let text = [&[1; 32][..], &[1], &[2; 32], &open, &[0xAC, 2, 0xAD, 2]].concat();
        let length = u8::try_from(text.len()).unwrap();
        let rest = [2, 1, 4, 1, 5, 1, 6];
        assert_eq!(
            bytes,
            [b"zmove job grant 1\n", &[length][..], &text, &rest].concat()
        );
        assert_eq!(SignedJobGrant::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn a_grant_that_is_cut_lengthened_or_of_another_version_is_none() {
        let bytes = sample().encode();
        for length in 0..bytes.len() {
            assert!(
                SignedJobGrant::decode(&bytes[..length]).is_err(),
                "{length}"
            );
        }
        assert_eq!(
            SignedJobGrant::decode(&[&bytes[..], &[0]].concat()),
            Err(WireError::Message)
        );
        let newer = [b"zmove job grant 2\n", &bytes[18..]].concat();
        assert_eq!(SignedJobGrant::decode(&newer), Err(WireError::Message));
        assert!(
            SignedJobGrant::is_job_grant(&newer) && !SignedJobGrant::is_job_grant(&[0x30, 0x82])
        );
        let longer = SignedJobGrant {
            text: [&sample().text[..], &[0]].concat(),
            ..sample()
        };
        assert!(
            SignedJobGrant::decode(&longer.encode()).is_err(),
            "the text goes on"
        );
        // Encodes the number of certificates in two bytes instead of one.
        let count = 18 + 1 + sample().text.len();
        let mut overlong = bytes.clone();
        overlong[count] |= 0x80;
        overlong.insert(count + 1, 0);
        assert_eq!(SignedJobGrant::decode(&overlong), Err(WireError::OtherForm));
    }

    #[test]
    fn what_a_grant_holds_is_bounded() {
        let decoded = |signed: &SignedJobGrant| SignedJobGrant::decode(&signed.encode());
        let receivers = |count| {
            let grant = JobGrant {
                receivers: vec![[2; 32]; count],
                ..sample().grant
            };
            SignedJobGrant {
                text: grant.encode(),
                grant,
                ..sample()
            }
        };
        let top = Name::from_bytes(&[b'n'; 200]).unwrap();
        let tops = |count| {
            let shape = TargetShape::Directory {
                tops: vec![top.clone(); count],
            };
            let grant = JobGrant {
                open: Open {
                    shape,
                    ..sample().grant.open
                },
                ..sample().grant
            };
            SignedJobGrant {
                text: grant.encode(),
                grant,
                ..sample()
            }
        };
        let certificates = |count, bytes| SignedJobGrant {
            certificates: vec![vec![7; bytes]; count],
            ..sample()
        };
        let signature = |bytes| SignedJobGrant {
            signature: vec![8; bytes],
            ..sample()
        };
        let fits = [
            receivers(JOB_GRANT_RECEIVERS_MAX),
            tops(70),
            certificates(JOB_GRANT_CERTIFICATES_MAX, 4 << 10),
            signature(SIGNATURE_BYTES_MAX),
        ];
        assert!(
            fits.iter()
                .all(|signed| decoded(signed).as_ref() == Ok(signed))
        );
        let too_much = [
            receivers(JOB_GRANT_RECEIVERS_MAX + 1),
            tops(90),
            certificates(JOB_GRANT_CERTIFICATES_MAX + 1, 1),
            certificates(1, CERTIFICATE_BYTES_MAX + 1),
            signature(SIGNATURE_BYTES_MAX + 1),
        ];
        assert!(
            too_much
                .iter()
                .all(|signed| decoded(signed) == Err(WireError::Message))
        );
        let long = certificates(JOB_GRANT_CERTIFICATES_MAX, 9 << 10);
        assert!(matches!(decoded(&long), Err(WireError::OverLimit { .. })));
    }
}
