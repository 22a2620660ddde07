//! Whether a certificate is of use, seen at the start: clients would only say that they do not trust it.
//!
//! webpki looks at what a certificate says of itself before it looks who vouches for it. Nobody is named to it here, so
//! that `UnknownIssuer` means that all else is in order.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage};
use zmove_jobs::{Moment, shown};

/// Why a certificate is of no use, and what to do.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum Fault {
    /// The time of the certificate is over.
    #[error("it expired at {}: issue another one", shown(*at))]
    Expired { at: Moment },
    /// The time of the certificate has not come.
    #[error("it is not valid before {}: see whether this host's clock is right", shown(*at))]
    NotYetValid { at: Moment },
    /// The certificate has no name by which a client could ask.
    #[error("it names no host: issue one with subjectAltName=DNS:NAME or IP:ADDRESS")]
    NoName,
    /// The certificate is for clients, say.
    #[error("it is not for a server: issue one with extendedKeyUsage=serverAuth")]
    OtherPurpose,
    /// The certificate must not issue others.
    #[error(
        "it is no authority's, which has basicConstraints=CA:TRUE and keyUsage=keyCertSign: name the certificate by \
         which those of the clients were issued"
    )]
    NoAuthority,
    /// Any other fault.
    #[error("{0}")]
    Other(Error),
}

/// Judges the certificate of a runner.
pub(super) fn judge_server(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Fault> {
    match judge(certificate, now) {
        // One that is its own authority is taken by clients other than those of webpki.
        Error::UnknownIssuer | Error::CaUsedAsEndEntity if is_named(certificate) => Ok(()),
        Error::UnknownIssuer | Error::CaUsedAsEndEntity => Err(Fault::NoName),
        Error::RequiredEkuNotFoundContext(_) => Err(Fault::OtherPurpose),
        other => Err(fault(other)),
    }
}

/// Judges the certificate of an authority.
pub(super) fn judge_authority(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
) -> Result<(), Fault> {
    match judge(certificate, now) {
        Error::CaUsedAsEndEntity if may_sign(certificate) => Ok(()),
        // The handshake makes less of what a certificate that is trusted says of itself.
        Error::UnsupportedCriticalExtension => Ok(()),
        // Of the first version there are no extensions, and so nothing that tells an authority from others.
        Error::CaUsedAsEndEntity
        | Error::UnknownIssuer
        | Error::RequiredEkuNotFoundContext(_)
        | Error::UnsupportedCertVersion => Err(Fault::NoAuthority),
        other => Err(fault(other)),
    }
}

/// When the time of a certificate ends, if it says.
pub(super) fn end(certificate: &CertificateDer<'_>) -> Option<Moment> {
    match judge(
        certificate,
        UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX)),
    ) {
        Error::CertExpired { not_after, .. } => Some(moment(not_after)),
        _ => None,
    }
}

pub(super) fn now() -> UnixTime {
    // With a clock before 1970, which is wrong, no certificate is valid yet.
    UnixTime::since_unix_epoch(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

/// What is wrong with a certificate, be it that nobody vouches for it.
fn judge(certificate: &CertificateDer<'_>, now: UnixTime) -> Error {
    let judged = EndEntityCert::try_from(certificate).and_then(|certificate| {
        certificate
            .verify_for_usage(&[], &[], &[], now, KeyUsage::server_auth(), None, None)
            .map(drop)
    });
    judged.expect_err("nobody is named who could vouch for it")
}

fn fault(error: Error) -> Fault {
    match error {
        Error::CertExpired { not_after, .. } => Fault::Expired {
            at: moment(not_after),
        },
        Error::CertNotValidYet { not_before, .. } => Fault::NotYetValid {
            at: moment(not_before),
        },
        other => Fault::Other(other),
    }
}

/// Whether a certificate has a name or an address of a host: what it presents is told by webpki where another is asked
/// for.
fn is_named(certificate: &CertificateDer<'_>) -> bool {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else {
        return false;
    };
    let nobody = ServerName::try_from("nobody.invalid").expect("it is a name");
    match certificate.verify_is_valid_for_subject_name(&nobody) {
        Err(Error::CertNotValidForName(context)) => context
            .presented
            .iter()
            .any(|name| name.starts_with("DnsName") || name.starts_with("IpAddress")),
        is_valid => is_valid.is_ok(),
    }
}

/// Whether the key of a certificate may sign others: webpki does not look at its `keyUsage`, where it has one.
fn may_sign(certificate: &[u8]) -> bool {
    let key_usage = |bytes: &[u8]| bytes == KEY_USAGE;
    let Some(at) = certificate.windows(KEY_USAGE.len()).position(key_usage) else {
        return true;
    };
    let value = &certificate[at + KEY_USAGE.len()..];
    let value = value.strip_prefix(&CRITICAL).unwrap_or(value);
    // Tag and length of an OCTET STRING, those of the BIT STRING in it, how many bits are not used, the first eight.
    value.get(5).is_some_and(|bits| bits & KEY_CERT_SIGN != 0)
}

fn moment(time: UnixTime) -> Moment {
    Moment::default().after(Duration::from_secs(time.as_secs()))
}

/// The object identifier 2.5.29.15 in DER.
const KEY_USAGE: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x0f];
/// The BOOLEAN of an extension that has to be understood.
const CRITICAL: [u8; 3] = [0x01, 0x01, 0xff];
/// Bit 5, counted from the highest.
const KEY_CERT_SIGN: u8 = 0b100;

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair,
        KeyUsagePurpose, SanType, date_time_ymd,
    };

    use super::*;

    /// The first second of 2026.
    const NOW: u64 = 1_767_225_600;
    const DAY: u64 = 24 * 60 * 60;

    fn made(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["dtn.example.org".to_owned()]).unwrap();
        change(&mut params);
        params
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap()
            .der()
            .clone()
    }

    fn server(change: impl FnOnce(&mut CertificateParams)) -> Result<(), Fault> {
        judge_server(
            &made(change),
            UnixTime::since_unix_epoch(Duration::from_secs(NOW)),
        )
    }

    fn authority(change: impl FnOnce(&mut CertificateParams)) -> Result<(), Fault> {
        let certificate = made(|params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            change(params);
        });
        judge_authority(
            &certificate,
            UnixTime::since_unix_epoch(Duration::from_secs(NOW)),
        )
    }

    fn at(seconds: u64) -> Moment {
        Moment(i64::try_from(seconds * 1000).unwrap())
    }

    #[test]
    fn a_certificate_counts_in_its_time() {
        let last = |params: &mut CertificateParams| params.not_after = date_time_ymd(2025, 12, 31);
        let next = |params: &mut CertificateParams| params.not_before = date_time_ymd(2026, 1, 2);
        for judged in [server(last), authority(last)] {
            assert_eq!(judged, Err(Fault::Expired { at: at(NOW - DAY) }));
        }
        for judged in [server(next), authority(next)] {
            assert_eq!(judged, Err(Fault::NotYetValid { at: at(NOW + DAY) }));
        }
        assert_eq!((server(|_| ()), authority(|_| ())), (Ok(()), Ok(())));
        assert_eq!(end(&made(last)), Some(at(NOW - DAY)));
    }

    #[test]
    fn a_server_has_a_name_and_is_for_servers() {
        assert_eq!(
            server(|params| params.subject_alt_names.clear()),
            Err(Fault::NoName)
        );
        let mail = SanType::Rfc822Name("alice@example.org".try_into().unwrap());
        assert_eq!(
            server(|params| params.subject_alt_names = vec![mail]),
            Err(Fault::NoName)
        );
        let address = SanType::IpAddress("192.0.2.7".parse().unwrap());
        assert_eq!(
            server(|params| params.subject_alt_names = vec![address]),
            Ok(())
        );
        let purposes = |purposes: &[ExtendedKeyUsagePurpose]| {
            server(|params| params.extended_key_usages = purposes.to_vec())
        };
        let (of_client, of_server) = (
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        );
        assert_eq!(
            purposes(std::slice::from_ref(&of_client)),
            Err(Fault::OtherPurpose)
        );
        assert_eq!(purposes(&[of_client, of_server]), Ok(()));
        assert_eq!(
            server(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            Ok(())
        );
    }

    #[test]
    fn an_authority_may_sign() {
        assert_eq!(
            authority(|params| params.is_ca = IsCa::ExplicitNoCa),
            Err(Fault::NoAuthority)
        );
        assert_eq!(
            authority(|params| params.is_ca = IsCa::NoCa),
            Err(Fault::NoAuthority)
        );
        let usages =
            |usages: &[KeyUsagePurpose]| authority(|params| params.key_usages = usages.to_vec());
        let [sign, list, other] = [
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DecipherOnly,
        ];
        assert_eq!(usages(&[list, other]), Err(Fault::NoAuthority));
        assert_eq!(usages(&[list]), Err(Fault::NoAuthority));
        assert_eq!(usages(&[sign]), Ok(()));
        assert_eq!(usages(&[list, sign, other]), Ok(()));
    }
}
