//! The identifier of a key: the SHA-256 hash of the public key as encoded in the certificate.
//!
//! Formatted like ssh fingerprints: `SHA256:` followed by 43 characters of base64 without padding. **Invariant:** all
//! certificates of one key have the same fingerprint. Parsing accepts exactly the formatted form.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use rustls::server::ParsedCertificate;
use rustls_pki_types::CertificateDer;

const PREFIX: &str = "SHA256:";

/// The SHA-256 hash of a certificate's `SubjectPublicKeyInfo` in DER form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Returns the fingerprint of the key in `certificate`, regardless of the other fields of the certificate.
    pub(crate) fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self, rustls::Error> {
        let public_key = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, public_key.as_ref());
        Ok(Self(
            digest.as_ref().try_into().expect("SHA-256 has 32 bytes"),
        ))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let encoded = text.strip_prefix(PREFIX).ok_or(ParseFingerprintError)?;
        let decoded = STANDARD_NO_PAD
            .decode(encoded)
            .map_err(|_| ParseFingerprintError)?;
        decoded
            .try_into()
            .map(Self)
            .map_err(|_| ParseFingerprintError)
    }
}

/// The error for text that is not `SHA256:` with 43 characters of base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a key fingerprint ('SHA256:' and 43 characters of base64)")]
pub struct ParseFingerprintError;

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "SHA256:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

    fn counting() -> Fingerprint {
        Fingerprint(std::array::from_fn(|index| u8::try_from(index).unwrap()))
    }

    #[test]
    fn prints_as_ssh_does() {
        assert_eq!(counting().to_string(), TEXT);
        assert_eq!(TEXT.len(), "SHA256:".len() + 43);
    }

    #[test]
    fn parses_what_it_prints() {
        assert_eq!(TEXT.parse(), Ok(counting()));
    }

    #[test]
    fn refuses_every_other_form() {
        let padded = format!("{TEXT}=");
        let lower = TEXT.replace("SHA256", "sha256");
        // With 9 instead of 8, the two bits after the last byte are not zero.
        let loose_bits = TEXT.replace("Hh8", "Hh9");
        let short = &TEXT[..TEXT.len() - 1];
        let bare = &TEXT[7..];
        let url_alphabet = format!("SHA256:{}", "_".repeat(43));
        for text in [
            &padded,
            &lower,
            &loose_bits,
            short,
            bare,
            &url_alphabet,
            " ",
            "",
            "SHA256:",
        ] {
            assert_eq!(
                text.parse::<Fingerprint>(),
                Err(ParseFingerprintError),
                "{text}"
            );
        }
    }
}
