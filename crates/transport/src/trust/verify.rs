//! TLS 1.3 with pinned keys: the checks of both sides during the handshake.
//!
//! The client checks the host's key against its [`HostPolicy`]. The server accepts any key, and its caller looks up the
//! fingerprint before it parses any data. Names, dates and issuers in certificates matter only if an
//! [authority](super::authority) is used. Otherwise, only the key matters. **Invariant:** both sides verify the peer's
//! signature over the handshake, so a copied certificate is worthless.

use std::sync::{Arc, OnceLock};

use rustls::{
    CertificateError, ClientConfig, CommonState, DigitallySignedStruct, DistinguishedName, Error,
    OtherError, PeerIncompatible, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature},
    server::{
        NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::SingleCertAndKey,
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use zmove_wire::{ANY_PROTOCOL_NAME, PATH_CHECK_BYTES, PATH_CHECK_NAME, PROTOCOL_NAME};

use super::authority::{CertificateFault, HostAuthority};
use super::{fingerprint::Fingerprint, identity::Identity, provider};

/// The keys that a client accepts from a host.
#[derive(Clone, Debug)]
pub enum HostPolicy {
    /// Only this key.
    Pinned(Fingerprint),
    /// The first key that a connection of this run proves, and then only that key.
    AcceptNew(FirstKey),
    /// No key. The handshake fails, and the error contains the host's key, so that the user can decide whether to trust
    /// it.
    RefuseUnknown,
    /// Keys that the site's authority certifies. All other keys count as unknown.
    Vouched(HostAuthority),
}

/// The key that the first connection of a run has proved. Clones share the value.
#[derive(Clone, Debug, Default)]
pub struct FirstKey(Arc<OnceLock<Fingerprint>>);

impl FirstKey {
    /// Returns the key after a connection has proved it.
    #[must_use]
    pub fn get(&self) -> Option<Fingerprint> {
        self.0.get().copied()
    }
}

/// The reason why a host's key is not accepted.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum HostKeyFault {
    #[error("the host's key {found} is not known")]
    Unknown { found: Fingerprint },
    #[error("the host's key is {found}, not {expected}")]
    Changed {
        expected: Fingerprint,
        found: Fingerprint,
    },
    #[error("{fault}")]
    Certificate { fault: CertificateFault },
}

/// Returns the fingerprint of a peer that has completed its handshake.
pub(crate) fn peer_fingerprint(session: &CommonState) -> Result<Fingerprint, Error> {
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    Fingerprint::of_certificate(certificate.ok_or(Error::NoCertificatesPresented)?)
}

/// The reason why a host was not accepted. Needed because some connectors do not return this error. Clones share the
/// value.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandshakeFault(Arc<OnceLock<Error>>);

impl HandshakeFault {
    pub(crate) fn get(&self) -> Option<Error> {
        self.0.get().cloned()
    }

    fn note<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.inspect_err(|error| drop(self.0.set(error.clone())))
    }
}

/// Returns the ALPN protocol names, the preferred one first.
fn protocol_names() -> Vec<Vec<u8>> {
    [PROTOCOL_NAME, ANY_PROTOCOL_NAME].map(Vec::from).into()
}

/// Returns the ALPN protocol names of a path check. The last name identifies the path check. The other names are
/// padding that makes the client hello larger than a packet.
fn path_check_names() -> Vec<Vec<u8>> {
    const NAME_BYTES_MAX: usize = 255;
    let filler = vec![b'-'; NAME_BYTES_MAX];
    let mut names = vec![filler; PATH_CHECK_BYTES.div_ceil(NAME_BYTES_MAX)];
    names.push(PATH_CHECK_NAME.to_vec());
    names
}

/// Returns the TLS settings of a client. Session resumption is disabled because it would bypass the check of the key.
/// Early data is disabled too.
pub(crate) fn client_config(
    provider: CryptoProvider,
    identity: &Identity,
    policy: HostPolicy,
    fault: HandshakeFault,
) -> ClientConfig {
    let algorithms = provider.signature_verification_algorithms;
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3 suites")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(HostVerifier {
            policy,
            algorithms,
            fault,
        }))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified())));
    config.alpn_protocols = protocol_names();
    config.resumption = Resumption::disabled();
    config
}

/// Returns the settings of a client that queries a host's version. It offers the protocol name that all versions
/// support. It accepts any key without pinning it, because it only reads a greeting and sends nothing.
pub(crate) fn version_query_config(config: &ClientConfig) -> ClientConfig {
    let algorithms = config.crypto_provider().signature_verification_algorithms;
    let mut config = config.clone();
    config.alpn_protocols = vec![ANY_PROTOCOL_NAME.to_vec()];
    config
        .dangerous()
        .set_certificate_verifier(Arc::new(HostVerifier {
            policy: HostPolicy::AcceptNew(FirstKey::default()),
            algorithms,
            fault: HandshakeFault::default(),
        }));
    config
}

/// Returns the settings of a client that checks the path to a host. Its hello is larger than any packet.
pub(crate) fn path_check_config(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    config.alpn_protocols = path_check_names();
    config
}

/// Returns the TLS settings of a server. The server sends no session tickets. A client that never reads would leave
/// them in its socket. Closing a socket with unread data resets the connection, which destroys data in flight.
pub(crate) fn server_config(identity: &Identity) -> ServerConfig {
    let provider = Arc::new(provider());
    let algorithms = provider.signature_verification_algorithms;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3 suites")
        .with_client_cert_verifier(Arc::new(AnyClientVerifier { algorithms }))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.certified())));
    config.alpn_protocols = protocol_names();
    config.alpn_protocols.push(PATH_CHECK_NAME.to_vec());
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config
}

/// The result of checking that a peer has signed with the private key of its certificate.
type Proof = Result<HandshakeSignatureValid, Error>;

/// The client's check of a host.
#[derive(Debug)]
struct HostVerifier {
    policy: HostPolicy,
    algorithms: WebPkiSupportedAlgorithms,
    fault: HandshakeFault,
}

impl HostVerifier {
    /// Checks whether the policy accepts the key `found` for the host.
    fn apply_policy(&self, found: Fingerprint) -> Result<(), HostKeyFault> {
        let expected = match &self.policy {
            HostPolicy::Pinned(expected) => *expected,
            HostPolicy::AcceptNew(first) => first.get().unwrap_or(found),
            HostPolicy::RefuseUnknown => return Err(HostKeyFault::Unknown { found }),
            // The authority has already checked the certificate.
            HostPolicy::Vouched(_) => found,
        };
        if expected == found {
            Ok(())
        } else {
            Err(HostKeyFault::Changed { expected, found })
        }
    }

    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let found = Fingerprint::of_certificate(certificate)?;
        if let HostPolicy::Vouched(authority) = &self.policy {
            authority
                .check(certificate, issuers, now)
                .map_err(|fault| {
                    refused(match fault {
                        // If the authority has not issued the host's certificate, the host counts as unknown.
                        CertificateFault::NotIssued => HostKeyFault::Unknown { found },
                        fault => HostKeyFault::Certificate { fault },
                    })
                })?;
        }
        self.apply_policy(found).map_err(refused)?;
        Ok(ServerCertVerified::assertion())
    }

    /// Accepts the key of a host that has just proved that it holds the key.
    fn settle(&self, found: Fingerprint) -> Result<(), HostKeyFault> {
        if let HostPolicy::AcceptNew(first) = &self.policy {
            // Concurrent connections may reach this point. One of them sets the key, and the hosts of all others must
            // have proved the same key.
            first.0.get_or_init(|| found);
        }
        self.apply_policy(found)
    }
}

fn refused(fault: HostKeyFault) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(fault))))
}

impl ServerCertVerifier for HostVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.fault.note(self.check(end_entity, intermediates, now))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Proof {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    /// Verifies the host's signature and then pins a new key. Pinning it before the check would let a host with a
    /// copied certificate set the pin.
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Proof {
        let proven = || {
            let valid = verify_tls13_signature(message, cert, dss, &self.algorithms)?;
            self.settle(Fingerprint::of_certificate(cert)?)
                .map_err(refused)?;
            Ok(valid)
        };
        self.fault.note(proven())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The server's check of a client, which must prove that it holds a key. rustls requires a client certificate by
/// default.
#[derive(Debug)]
struct AnyClientVerifier {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Fingerprint::of_certificate(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Proof {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Proof {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
