//! A site's certificate authority. Its certificates are checked against the clock and its revocation lists.
//!
//! The daemon uses an authority for clients whose key has no line of its own ([`ClientAuthority::check`]). The client
//! uses it for hosts that are not pinned ([`HostAuthority`]). A certificate names the holder of a key. The handshake
//! has already proved that the peer holds the key. **Invariant:** if a revocation list is configured, a certificate is
//! accepted only if its issuer has a current list that does not contain it. If a list cannot be read, no certificate is
//! accepted. The number and size of a peer's certificates are limited, so that checking them takes negligible time.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, Error, RootCertStore};
use rustls_pki_types::{
    CertificateDer, CertificateRevocationListDer, ServerName, UnixTime, pem::PemObject as _,
};

use super::expiry::Expiry;
use super::{file::read_trusted, provider};
use crate::error::{AuthorityError, KeyFileError};

mod subject;

pub(super) use subject::NamedCertificate;

const KNOWN_CAS_FILE: &str = "known_cas.pem";
const KNOWN_CAS_CRL: &str = "known_cas.crl";
/// Maximum number of certificates between a peer's own certificate and its authority. The limit is low because the peer
/// chooses these certificates and their names, and webpki tries each one as the issuer of every other one. With ten
/// certificates of the same name, this takes seconds.
const ISSUERS_MAX: usize = 4;
/// Maximum size of a certificate, in bytes. A certificate with a 4096-bit RSA key and a few names has half of this
/// size.
const CERTIFICATE_BYTES_MAX: usize = 4 << 10;

/// An authority for clients, with parsed certificates and revocation lists.
#[derive(Debug)]
pub(super) struct ClientAuthority(Result<Arc<dyn ClientCertVerifier>, CertificateFault>);

/// The reason why a certificate is rejected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateFault {
    /// The certificate has expired.
    #[error("its certificate expired at {0}: have a new one issued")]
    Expired(Expiry),
    /// The certificate is not valid yet.
    #[error("its certificate is not valid before {0}: check the clocks of both hosts")]
    NotYetValid(Expiry),
    /// The authority has revoked the certificate.
    #[error("its certificate is revoked: have a new one issued")]
    Revoked,
    /// The authority did not issue the certificate.
    #[error("its certificate was not issued by the site's authority")]
    NotIssued,
    /// The certificate is for another host.
    #[error("its certificate is not for this host name")]
    OtherName,
    /// The certificate is for another purpose, for example a client certificate presented by a host.
    #[error("its certificate is for another purpose")]
    OtherPurpose,
    /// The revocation list has expired.
    #[error("the authority's revocation list is outdated (its renewal was due by {0})")]
    StaleList(Expiry),
    /// The peer presented too many certificates, or a certificate that is too large.
    #[error(
        "it sent more than {ISSUERS_MAX} certificates, or one larger than {CERTIFICATE_BYTES_MAX} bytes"
    )]
    TooMuch,
    /// The certificate's issuer has no revocation list.
    #[error("the revocation list of its certificate's issuer is missing")]
    NoList,
    /// Any other fault.
    #[error("{0}")]
    Other(Error),
}

impl ClientAuthority {
    /// Reads the certificates and revocation lists of an authority. Each file contains one or more of them in PEM form.
    pub(super) fn load(
        certificates: &Path,
        revoked: Option<&Path>,
    ) -> Result<Self, AuthorityError> {
        let bytes =
            read_trusted(certificates)?.ok_or_else(|| KeyFileError::missing(certificates))?;
        let revoked = match revoked {
            Some(path) => lists(
                path,
                &read_trusted(path)?.ok_or_else(|| KeyFileError::missing(path))?,
            )?,
            None => Vec::new(),
        };
        let roots = Arc::new(roots(certificates, &bytes)?);
        let builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::new(provider()));
        let builder = builder.with_crls(revoked).enforce_revocation_expiration();
        Ok(Self(builder.build().map_err(unusable)))
    }

    /// Checks that the authority has issued a client's certificate, which is the first in `chain`.
    pub(super) fn check(
        &self,
        chain: &[CertificateDer<'_>],
        now: SystemTime,
    ) -> Result<(), CertificateFault> {
        let Some((own, issuers)) = chain.split_first() else {
            return Err(CertificateFault::NotIssued);
        };
        check_size(own, issuers)?;
        let verifier = self.0.as_ref().map_err(Clone::clone)?;
        verifier
            .verify_client_cert(own, issuers, unix(now))
            .map(|_| ())
            .map_err(fault)
    }
}

/// The authorities that a client trusts for one host. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HostAuthority {
    verifier: Result<Arc<WebPkiServerVerifier>, CertificateFault>,
    /// The name that the host's certificate must be valid for.
    name: ServerName<'static>,
}

impl HostAuthority {
    /// Reads `known_cas.pem` in `home`, and `known_cas.crl` if it exists. Returns `None` if there is no authority, or
    /// if `host` is not a name that a certificate can contain.
    ///
    /// # Errors
    ///
    /// Returns [`AuthorityError`] if a file cannot be read, is writable by other users, or is damaged.
    pub fn load(home: &Path, host: &str) -> Result<Option<Self>, AuthorityError> {
        let certificates = home.join(KNOWN_CAS_FILE);
        let revoked = home.join(KNOWN_CAS_CRL);
        let Some(bytes) = read_trusted(&certificates)? else {
            return Ok(None);
        };
        let revoked = read_trusted(&revoked)?
            .map(|bytes| lists(&revoked, &bytes))
            .transpose()?;
        let roots = Arc::new(roots(&certificates, &bytes)?);
        let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::new(provider()));
        let builder = builder
            .with_crls(revoked.unwrap_or_default())
            .enforce_revocation_expiration();
        let verifier = builder.build().map_err(unusable);
        let name = ServerName::try_from(host.to_owned()).ok();
        Ok(name.map(|name| Self { verifier, name }))
    }

    /// Checks that one of the authorities has issued the host's certificate.
    pub(super) fn check(
        &self,
        own: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), CertificateFault> {
        check_size(own, issuers)?;
        let verifier = self.verifier.as_ref().map_err(Clone::clone)?;
        verifier
            .verify_server_cert(own, issuers, &self.name, &[], now)
            .map(|_| ())
            .map_err(fault)
    }
}

/// Checks the number and size of a peer's certificates.
fn check_size(
    own: &CertificateDer<'_>,
    issuers: &[CertificateDer<'_>],
) -> Result<(), CertificateFault> {
    let fits = |certificate: &CertificateDer<'_>| certificate.len() <= CERTIFICATE_BYTES_MAX;
    let few = issuers.len() <= ISSUERS_MAX;
    if few && fits(own) && issuers.iter().all(fits) {
        Ok(())
    } else {
        Err(CertificateFault::TooMuch)
    }
}

fn roots(path: &Path, bytes: &[u8]) -> Result<RootCertStore, AuthorityError> {
    let damaged = || AuthorityError::Damaged { path: path.into() };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bytes) {
        roots
            .add(certificate.map_err(|_| damaged())?)
            .map_err(|_| damaged())?;
    }
    if roots.is_empty() {
        Err(damaged())
    } else {
        Ok(roots)
    }
}

/// Parses the revocation lists in a file. Fails if the file contains no list, because an empty file would revoke
/// nothing, or if a list is invalid.
fn lists(
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, AuthorityError> {
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(bytes).collect();
    let lists = lists.ok().filter(|lists| !lists.is_empty());
    lists.ok_or_else(|| AuthorityError::Damaged { path: path.into() })
}

fn unix(now: SystemTime) -> UnixTime {
    // If the clock is before 1970, no certificate is valid.
    UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Returns the fault of an authority whose verifier could not be created. The only possible cause is an unreadable
/// revocation list.
fn unusable(error: VerifierBuilderError) -> CertificateFault {
    CertificateFault::Other(Error::General(error.to_string()))
}

fn fault(error: Error) -> CertificateFault {
    let moment = |time: UnixTime| Expiry::after(UNIX_EPOCH, Duration::from_secs(time.as_secs()));
    let Error::InvalidCertificate(reason) = &error else {
        return CertificateFault::Other(error);
    };
    let known = match reason {
        CertificateError::ExpiredContext { not_after, .. } => {
            moment(*not_after).map(CertificateFault::Expired)
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            moment(*not_before).map(CertificateFault::NotYetValid)
        }
        CertificateError::ExpiredRevocationListContext { next_update, .. } => {
            moment(*next_update).map(CertificateFault::StaleList)
        }
        CertificateError::Revoked => Some(CertificateFault::Revoked),
        CertificateError::UnknownRevocationStatus => Some(CertificateFault::NoList),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            Some(CertificateFault::NotIssued)
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Some(CertificateFault::OtherName)
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            Some(CertificateFault::OtherPurpose)
        }
        _ => None,
    };
    known.unwrap_or(CertificateFault::Other(error))
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair,
    };

    use super::*;

    /// Creates a certificate for a name with a new key. The certificate is enlarged by `more` bytes.
    fn certificate(
        issuer: &Issuer<'_, KeyPair>,
        name: &str,
        more: usize,
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        if name != "alice" {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params.custom_extensions =
            vec![CustomExtension::from_oid_content(&[1, 2, 3], vec![0; more])];
        params
            .signed_by(&KeyPair::generate().unwrap(), issuer)
            .unwrap()
            .der()
            .clone()
    }

    fn issuer(name: &str) -> Issuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Issuer::new(params, KeyPair::generate().unwrap())
    }

    /// Returns the results of checking a chain that a client presents and one that a host presents.
    fn verdicts(chain: &[CertificateDer<'static>]) -> [CertificateFault; 2] {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&issuer("site"), "site", 0)).unwrap();
        let roots = Arc::new(roots);
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::new(provider()));
        let clients = ClientAuthority(builder.build().map_err(unusable));
        let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::new(provider()));
        let verifier = builder.build().map_err(unusable);
        let hosts = HostAuthority {
            verifier,
            name: ServerName::try_from("dtn.example.org").unwrap(),
        };
        let (own, issuers) = chain.split_first().unwrap();
        let now = SystemTime::now();
        [
            clients.check(chain, now).unwrap_err(),
            hosts.check(own, issuers, unix(now)).unwrap_err(),
        ]
    }

    #[test]
    fn a_chain_that_is_long_or_large_is_not_looked_at() {
        let x = issuer("X");
        let chain = |issuers: usize, more: usize| {
            let mut chain = vec![certificate(&x, "alice", 0)];
            chain.extend((0..issuers).map(|_| certificate(&x, "X", more)));
            chain
        };
        assert_eq!(
            verdicts(&chain(ISSUERS_MAX, 0)),
            [CertificateFault::NotIssued, CertificateFault::NotIssued]
        );
        let too_much = [CertificateFault::TooMuch, CertificateFault::TooMuch];
        assert_eq!(verdicts(&chain(ISSUERS_MAX + 1, 0)), too_much);
        assert_eq!(verdicts(&chain(1, CERTIFICATE_BYTES_MAX)), too_much);
        assert_eq!(
            verdicts(&[certificate(&x, "alice", CERTIFICATE_BYTES_MAX)]),
            too_much
        );
    }
}
