//! Reads the names in a certificate.
//!
//! **Invariant:** if a certificate has two common names, this module returns none, because programs disagree on which
//! one counts.

use rustls_pki_types::{CertificateDer, ServerName};
use webpki::EndEntityCert;

/// A certificate by any issuer, for reading its names.
pub(in crate::trust) struct NamedCertificate<'a>(EndEntityCert<'a>);

impl<'a> NamedCertificate<'a> {
    /// Parses a certificate. Returns `None` if it is malformed or larger than [`CERTIFICATE_BYTES_MAX`].
    pub(in crate::trust) fn read(certificate: &'a CertificateDer<'_>) -> Option<Self> {
        let fits = certificate.len() <= CERTIFICATE_BYTES_MAX;
        fits.then(|| EndEntityCert::try_from(certificate).ok().map(Self))
            .flatten()
    }

    /// Returns the common name of the subject if the subject has exactly one and it is text.
    pub(in crate::trust) fn common_name(&self) -> Option<String> {
        only_common_name(self.0.subject())
    }

    /// Returns the alternative DNS names, some of which may begin with `*.`. IP addresses are not included.
    pub(in crate::trust) fn hosts(&self) -> impl Iterator<Item = &str> {
        self.0.valid_dns_names()
    }

    /// Returns whether `name` is among the certificate's alternative names, which may be DNS names or IP addresses.
    pub(in crate::trust) fn is_for_host(&self, name: &str) -> bool {
        let name = ServerName::try_from(name);
        name.is_ok_and(|name| self.0.verify_is_valid_for_subject_name(&name).is_ok())
    }
}

/// Returns the only common name of a subject. A subject is a sequence of sets of pairs, each with an object identifier
/// and a value.
fn only_common_name(mut subject: &[u8]) -> Option<String> {
    let mut found = None;
    while !subject.is_empty() {
        let mut set = expect(&mut subject, SET)?;
        while !set.is_empty() {
            let mut pair = expect(&mut set, SEQUENCE)?;
            if expect(&mut pair, OBJECT_IDENTIFIER)? != COMMON_NAME {
                continue;
            }
            let (tag, value) = next(&mut pair)?;
            let text = std::str::from_utf8(value)
                .ok()
                .filter(|_| TEXT_TAGS.contains(&tag))?;
            if found.replace(text.to_owned()).is_some() {
                return None;
            }
        }
    }
    found
}

fn expect<'a>(bytes: &mut &'a [u8], expected: u8) -> Option<&'a [u8]> {
    next(bytes)
        .filter(|(tag, _)| *tag == expected)
        .map(|(_, value)| value)
}

/// Removes one DER value from the start of `bytes` and returns its tag and contents.
fn next<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&[tag, length], rest) = bytes.split_first_chunk()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81 => rest
            .split_first()
            .map(|(length, rest)| (usize::from(*length), rest))?,
        0x82 => {
            let ([high, low], rest) = rest.split_first_chunk()?;
            (usize::from(*high) << 8 | usize::from(*low), rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some((tag, value))
}

/// Maximum size in bytes of a certificate whose names are read. A certificate with a hundred names has about 4 KiB.
const CERTIFICATE_BYTES_MAX: usize = 16 << 10;

const SET: u8 = 0x31;
const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// The object identifier 2.5.4.3 (common name).
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// `UTF8String`, `PrintableString` and `IA5String`, all of which are valid UTF-8.
const TEXT_TAGS: [u8; 3] = [0x0c, 0x13, 0x16];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes `tag`, the length, and `value`.
    fn der(tag: u8, value: &[u8]) -> Vec<u8> {
        let length = u8::try_from(value.len()).unwrap();
        assert!(length < 0x80);
        [&[tag, length], value].concat()
    }

    fn part(kind: u8, tag: u8, value: &[u8]) -> Vec<u8> {
        der(
            SET,
            &der(
                SEQUENCE,
                &[der(OBJECT_IDENTIFIER, &[0x55, 4, kind]), der(tag, value)].concat(),
            ),
        )
    }

    #[test]
    fn the_common_name_is_found_among_others() {
        let subject = [
            part(10, 0x0c, b"Site"),
            part(3, 0x0c, "zoë".as_bytes()),
            part(11, 0x13, b"Unit"),
        ]
        .concat();
        assert_eq!(only_common_name(&subject).as_deref(), Some("zoë"));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_no_name() {
        let alice = part(3, 0x0c, b"alice");
        let (both, none) = (
            [alice.clone(), part(3, 0x0c, b"bob")].concat(),
            part(10, 0x0c, b"Site"),
        );
        let (raw, bytes) = (part(3, 0x1e, b"alice"), part(3, 0x0c, b"\xff"));
        for subject in [
            &both[..],
            &none,
            &raw,
            &bytes,
            &alice[..alice.len() - 1],
            b"",
        ] {
            assert_eq!(only_common_name(subject), None, "{subject:?}");
        }
    }

    proptest! {
        #[test]
        fn no_subject_panics(subject in any::<Vec<u8>>()) {
            let _name = only_common_name(&subject);
        }
    }
}
