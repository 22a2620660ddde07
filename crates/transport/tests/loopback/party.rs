//! A host or user with a key, and peers that violate the protocol.

use std::{sync::Arc, time::Duration};

use rustls::{
    ClientConfig, ServerConfig,
    crypto::aws_lc_rs::{default_provider, sign::any_ecdsa_type},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use zmove_transport::{Fingerprint, Identity};

use crate::trust_all::TrustAll;

/// A timeout longer than any successful operation takes.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// The ALPN names of zmove version 9.
pub(crate) const NEWER_NAMES: [&[u8]; 2] = [b"zmove/9", b"zmove"];
/// The greeting of version 9. Its remaining fields have no meaning in this version.
pub(crate) const NEWER_GREETING: [u8; 40] = *b"ZMOVE\r\n\x1a\x09\0..............................";

/// A host or user with a key.
pub(crate) struct Party {
    home: TempDir,
    pub(crate) identity: Identity,
}

impl Party {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create(home.path()).unwrap();
        Self { home, identity }
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.identity.fingerprint()
    }

    /// Returns the private key and its self-signed certificate.
    pub(crate) fn pem(&self) -> String {
        std::fs::read_to_string(self.home.path().join("key.pem")).unwrap()
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.home.path().join("key.pem")).unwrap()
    }

    /// Returns this party's private key with the given certificates.
    pub(crate) fn key_with(
        &self,
        certificates: Vec<CertificateDer<'static>>,
    ) -> Arc<SingleCertAndKey> {
        let key = PrivateKeyDer::from_pem_file(self.home.path().join("key.pem")).unwrap();
        Arc::new(CertifiedKey::new(certificates, any_ecdsa_type(&key).unwrap()).into())
    }
}

/// Configuration of a host that presents the given key and accepts these protocols.
pub(crate) fn host_config(key: Arc<SingleCertAndKey>, protocols: &[&[u8]]) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(key);
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    config
}

/// Configuration of a client that trusts every host, presents the given key, if any, and offers these protocols.
pub(crate) fn client_config(
    key: Option<Arc<SingleCertAndKey>>,
    protocols: &[&[u8]],
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAll));
    let mut config = match key {
        Some(key) => builder.with_client_cert_resolver(key),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    config
}

/// Starts a TLS server with this configuration over TCP that sends nothing after the handshake.
pub(crate) async fn serve_tls(config: ServerConfig) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            drop(
                TlsAcceptor::from(Arc::new(config.clone()))
                    .accept(socket)
                    .await,
            );
        }
    });
    port
}
