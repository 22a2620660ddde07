//! The grants for the nodes of a job. The head (the node that leads the job) signs a grant, and a node presents it.
//!
//! **Invariant:** a signed grant cannot be mistaken for any other text that this key signs.

use std::sync::Arc;

use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;
use zmove_wire::{JobGrant, SignedJobGrant};

use super::{Identity, signer_of};
use crate::channel::Claim;

const CONTEXT: &[u8] = b"zmove job grant v1\0";

impl Identity {
    /// Signs a grant. The result includes all certificates of this key.
    ///
    /// # Errors
    ///
    /// Returns an error if the key cannot sign.
    pub fn sign_job_grant(&self, grant: JobGrant) -> Result<SignedJobGrant, rustls::Error> {
        let text = grant.encode();
        let signature = self.signature_of(&[CONTEXT, &text].concat())?;
        let certificates = self
            .certified
            .cert
            .iter()
            .map(|certificate| certificate.to_vec())
            .collect();
        Ok(SignedJobGrant {
            grant,
            text,
            certificates,
            signature,
        })
    }

    /// Returns the same key. It presents this grant in addition to its certificates.
    #[must_use]
    pub fn with_job_grant(&self, grant: &SignedJobGrant) -> Self {
        let mut chain = self.certified.cert.clone();
        chain.push(CertificateDer::from(grant.encode()));
        let certified = Arc::new(CertifiedKey::new(chain, Arc::clone(&self.certified.key)));
        Self {
            certified,
            ..self.clone()
        }
    }
}

/// Returns the claim of the signer of a grant: the key with its certificates. Returns `None` if the signature is not
/// valid.
#[must_use]
pub fn job_grant_signer(signed: &SignedJobGrant) -> Option<Claim> {
    let bytes = [CONTEXT, &signed.text].concat();
    let key = signer_of(signed.certificates.first()?, &signed.signature, &bytes)?;
    Some(Claim::again(key, signed.certificates.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::Signed;
    use zmove_wire::Open;

    fn grant() -> JobGrant {
        JobGrant {
            node: [1; 32],
            receivers: vec![[2; 32]],
            open: Open::new(b"t".to_vec(), [0; 16]),
            not_before: 1,
            not_after: 2,
        }
    }

    #[test]
    fn a_grant_names_the_key_that_has_signed_it_and_no_bit_of_it_can_change() {
        let head = Identity::for_once().unwrap();
        let signed = head.sign_job_grant(grant()).unwrap();
        assert_eq!(job_grant_signer(&signed).unwrap().key, head.fingerprint());
        for bit in 0..8 * signed.text.len() {
            let mut flipped = signed.clone();
            flipped.text[bit / 8] ^= 1 << (bit % 8);
            assert!(job_grant_signer(&flipped).is_none(), "{bit}");
        }
        let other = Identity::for_once()
            .unwrap()
            .sign_job_grant(grant())
            .unwrap();
        for certificates in [other.certificates, Vec::new()] {
            assert!(
                job_grant_signer(&SignedJobGrant {
                    certificates,
                    ..signed.clone()
                })
                .is_none()
            );
        }
    }

    #[test]
    fn another_text_that_was_signed_is_no_grant() {
        let head = Identity::for_once().unwrap();
        let text = grant().encode();
        let Signed {
            certificate,
            signature,
        } = head.sign(&text).unwrap();
        let signed = SignedJobGrant {
            grant: grant(),
            text,
            certificates: vec![certificate],
            signature,
        };
        assert!(job_grant_signer(&signed).is_none());
        let SignedJobGrant {
            text,
            mut certificates,
            signature,
            ..
        } = head.sign_job_grant(grant()).unwrap();
        assert_eq!(
            Signed {
                certificate: certificates.remove(0),
                signature
            }
            .signer_of(&text),
            None
        );
    }
}
